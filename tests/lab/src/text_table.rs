//! A table as Markdown with aligned columns.

/// A header and rows of cells.
#[derive(Debug, Clone)]
pub struct TextTable {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table without rows.
    pub fn new(header: &[&str]) -> Self {
        Self {
            header: header.iter().map(|&cell| cell.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table as Markdown. Columns of numbers are right-aligned.
    pub fn markdown(&self) -> String {
        let columns: Vec<Column> = (0..self.header.len()).map(|at| self.column(at)).collect();
        let rules: Vec<String> = columns.iter().map(Column::rule).collect();
        let mut text = line(&self.header, &columns) + &line(&rules, &columns);
        text.extend(self.rows.iter().map(|row| line(row, &columns)));
        text
    }

    fn column(&self, at: usize) -> Column {
        let cells = || self.rows.iter().filter_map(|row| row.get(at));
        let widths = cells()
            .chain(self.header.get(at))
            .map(|cell| cell.chars().count());
        Column {
            // A rule has at least three characters.
            width: widths.max().unwrap_or_default().max(3),
            is_numeric: cells().any(|cell| !cell.is_empty())
                && cells().all(|cell| cell.is_empty() || is_number(cell)),
        }
    }
}

struct Column {
    width: usize,
    is_numeric: bool,
}

impl Column {
    fn rule(&self) -> String {
        let colon = if self.is_numeric { ":" } else { "" };
        "-".repeat(self.width - colon.len()) + colon
    }
}

fn line(cells: &[String], columns: &[Column]) -> String {
    let padded = cells.iter().zip(columns).map(|(cell, column)| {
        let pad = " ".repeat(column.width.saturating_sub(cell.chars().count()));
        if column.is_numeric {
            format!(" {pad}{cell} |")
        } else {
            format!(" {cell}{pad} |")
        }
    });
    format!("|{}\n", padded.collect::<String>())
}

/// Whether a cell is a number or `-`.
fn is_number(cell: &str) -> bool {
    cell == "-" || cell.parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::TextTable;

    #[test]
    fn columns_line_up_and_numbers_stand_at_the_right() {
        let mut table = TextTable::new(&["who", "ms", ""]);
        table.row(vec!["haulout".to_owned(), "12.5".to_owned(), "met".to_owned()]);
        table.row(vec!["baseline".to_owned(), "7".to_owned(), String::new()]);
        assert_eq!(
            table.markdown(),
            "| who      |   ms |     |\n\
             | -------- | ---: | --- |\n\
             | haulout  | 12.5 | met |\n\
             | baseline |    7 |     |\n"
        );
    }

    #[test]
    fn a_table_without_rows_has_its_header() {
        assert_eq!(TextTable::new(&["a"]).markdown(), "| a   |\n| --- |\n");
    }
}
