//! A table for the terminal.

use std::io::Write as _;

use haulout_lab::figures::Samples;

/// A table of a bench.
#[derive(Debug)]
pub struct Table {
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(columns: &[&'static str]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Its lines, aligned.
    pub fn screen(&self) -> String {
        let heads: Vec<String> = self.columns.iter().map(|head| (*head).to_owned()).collect();
        let width = |column: usize| {
            let cells = std::iter::once(&heads).chain(&self.rows);
            cells
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or_default()
        };
        let line = |row: &[String]| {
            let cells: Vec<String> = row
                .iter()
                .enumerate()
                .map(|(column, cell)| {
                    let pad = " ".repeat(width(column).saturating_sub(cell.chars().count()));
                    if is_figure(cell) {
                        format!("{pad}{cell}")
                    } else {
                        format!("{cell}{pad}")
                    }
                })
                .collect();
            format!("{}\n", cells.join("  "))
        };
        let dashes: Vec<String> = (0..heads.len()).map(|column| "-".repeat(width(column))).collect();
        let mut text = line(&heads) + &line(&dashes);
        text.extend(self.rows.iter().map(|row| line(row)));
        text
    }
}

fn is_figure(cell: &str) -> bool {
    cell.starts_with(|c: char| c.is_ascii_digit() || c == '-') && !cell.contains(' ')
}

/// Says what a bench found.
pub fn report(intro: &str, tables: &[(&str, &Table)], notes: &[String]) {
    let mut screen = format!("{intro}\n");
    for (title, table) in tables {
        screen += &format!("\n{title}\n\n{}", table.screen());
    }
    screen += "\n";
    for note in notes {
        screen += &format!("- {note}\n");
    }
    say(&screen);
}

/// Says something to whoever watches.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// As in the tables that are kept: 0.5 is the median.
pub fn quantile(samples: &[f64], share: f64) -> f64 {
    let samples: Samples = samples.iter().copied().collect();
    samples.quantile(share).unwrap_or(f64::NAN)
}

/// A figure with as many digits as it deserves.
pub fn figure(value: f64) -> String {
    match value {
        v if v.is_nan() => "-".into(),
        v if v.abs() >= 100.0 => format!("{v:.0}"),
        v if v.abs() >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}
