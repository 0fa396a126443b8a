//! Tables in kubectl's format: upper-case headers, three spaces between columns.

use unicode_width::UnicodeWidthStr as _;

use crate::kubernetes::answer::plain;

/// The text of an empty cell, as in kubectl.
pub(super) const NONE: &str = "<none>";

#[derive(Debug)]
pub(super) struct Table {
    headers: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(headers: &[&'static str]) -> Self {
        Self {
            headers: headers.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; an empty cell shows [`NONE`].
    pub(super) fn row(&mut self, cells: Vec<String>) {
        let cell = |text: String| match plain(&text) {
            text if text.is_empty() => NONE.to_owned(),
            text => text,
        };
        self.rows.push(cells.into_iter().map(cell).collect());
    }

    pub(super) fn render(&self, with_headers: bool) -> String {
        let headers: Vec<String> = self.headers.iter().map(|it| (*it).to_owned()).collect();
        let lines: Vec<&Vec<String>> = with_headers
            .then_some(&headers)
            .into_iter()
            .chain(&self.rows)
            .collect();
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.width()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.headers.len()).map(width).collect();
        let mut text = String::new();
        for line in lines {
            let mut written = String::new();
            for (cell, width) in line.iter().zip(&widths) {
                written.push_str(cell);
                let gap = width.saturating_sub(cell.width()) + 3;
                written.extend(std::iter::repeat_n(' ', gap));
            }
            text.push_str(written.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_for_wide_characters() {
        let mut table = Table::new(&["NODE", "STATE"]);
        table.row(vec!["gpu-1".to_owned(), "Draining".to_owned()]);
        table.row(vec!["ノード".to_owned(), String::new()]);
        table.row(vec!["a\u{1b}[31mb".to_owned(), "x".to_owned()]);
        assert_eq!(
            table.render(true),
            "NODE      STATE\ngpu-1     Draining\nノード    <none>\na [31mb   x\n"
        );
        assert!(!table.render(false).contains("NODE"));
    }
}
