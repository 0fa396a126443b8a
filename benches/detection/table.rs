//! One table, three ways: aligned for the terminal, as Markdown, and as JSON.

use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Map, Value, json};

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

    fn lines(&self, open: &str, between: &str, close: &str, rule: bool) -> String {
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
            format!("{open}{}{close}\n", cells.join(between))
                .trim_start()
                .to_owned()
        };
        let mut text = line(&heads);
        if rule {
            let dashes: Vec<String> = (0..heads.len()).map(|column| "-".repeat(width(column))).collect();
            text += &line(&dashes);
        }
        text.extend(self.rows.iter().map(|row| line(row)));
        text
    }

    /// Aligned, for the terminal.
    pub fn screen(&self) -> String {
        self.lines("", "  ", "", true)
    }

    fn json(&self) -> Value {
        let row = |cells: &Vec<String>| -> Map<String, Value> {
            let pairs = self.columns.iter().zip(cells);
            pairs
                .map(|(head, cell)| {
                    let figure = cell
                        .parse::<f64>()
                        .map_or_else(|_| json!(cell), |figure| json!(figure));
                    ((*head).to_owned(), figure)
                })
                .collect()
        };
        self.rows.iter().map(row).collect()
    }
}

fn is_figure(cell: &str) -> bool {
    cell.starts_with(|c: char| c.is_ascii_digit() || c == '-') && !cell.contains(' ')
}

/// Says what a bench found, and writes it to `benches/results/NAME.md` and `NAME.json`.
pub fn report(name: &str, intro: &str, tables: &[(&str, &Table)], notes: &[String]) -> anyhow::Result<()> {
    let mut screen = String::new();
    let mut markdown = format!("# {name}\n\n{intro}\n");
    let mut json = Map::new();
    json.insert("bench".into(), name.into());
    json.insert("intro".into(), intro.into());
    for (title, table) in tables {
        screen += &format!("\n{title}\n\n{}", table.screen());
        markdown += &format!("\n## {title}\n\n{}", table.lines("| ", " | ", " |", true));
        json.insert((*title).to_owned(), table.json());
    }
    screen += "\n";
    markdown += "\n";
    for note in notes {
        screen += &format!("- {note}\n");
        markdown += &format!("- {note}\n");
    }
    json.insert("notes".into(), json!(notes));
    say(&screen);
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/results");
    std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    std::fs::write(dir.join(format!("{name}.md")), markdown)?;
    std::fs::write(
        dir.join(format!("{name}.json")),
        format!("{:#}\n", Value::Object(json)),
    )?;
    Ok(())
}

/// Says something to whoever watches.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// The value that this share of the samples does not exceed: 0.5 is the median.
pub fn quantile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    // The nearest rank: the figure is one that was measured.
    let rank = (last as f64 * share).ceil() as usize;
    sorted.get(rank.min(last)).copied().unwrap_or(f64::NAN)
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
