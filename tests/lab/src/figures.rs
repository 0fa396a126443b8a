//! Statistics of the benches, and the table that shows them.
//!
//! A bench adds samples to a [`FigureTable`] and saves it as JSON. [`publish`] writes the tables of all benches into a
//! directory of `benches/results`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::text_table::TextTable;

/// The variable that names the directory of the tables.
pub const DIRECTORY: &str = "HAULOUT_FIGURES";

/// The variable with the build profile of a bench, if it is not the default.
const PROFILE: &str = "HAULOUT_BENCH_PROFILE";

/// Whether `QUICK=1` requests the smallest run.
pub fn is_quick() -> bool {
    is_set("QUICK")
}

/// Whether an environment variable is set to a value other than empty or `0`.
pub fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty() && value != "0")
}

/// The samples of one quantity.
#[derive(Debug, Clone, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds a value. NaN is left out, because samples are ordered.
    pub fn add(&mut self, value: f64) {
        if value.is_finite() {
            self.0.push(value);
        }
    }

    /// Adds one duration, in milliseconds.
    pub fn add_ms(&mut self, duration: Duration) {
        self.add(duration.as_secs_f64() * 1e3);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The quantile of `share` by nearest rank, so that it is a measured value. `None` without samples.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        // The rank is at most the length of a vector.
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss
        )]
        let rank = (share.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied()
    }

    pub fn median(&self) -> Option<f64> {
        self.quantile(0.5)
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut samples = Self::default();
        values.into_iter().for_each(|value| samples.add(value));
        samples
    }
}

/// A row of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The case, such as `200 pods, no budget`.
    pub case: String,
    /// The program that was measured.
    pub who: String,
    /// The quantity with its unit, such as `wall ms`.
    pub what: String,
    /// How many samples.
    pub count: usize,
    pub median: Option<f64>,
    /// The 99th percentile by nearest rank: the maximum if there are fewer than 100 samples.
    pub p99: Option<f64>,
    /// The median divided by the baseline's median.
    pub ratio: Option<f64>,
    /// The target of `ratio`, or of the median if there is no ratio.
    pub target: Option<f64>,
}

/// The figures of one bench.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FigureTable {
    pub bench: String,
    /// The command of the bench.
    pub command: String,
    /// The rows, in the order they were added.
    pub rows: Vec<Row>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

impl Row {
    /// Whether the target is met. `None` without a target, or without a value to compare.
    pub fn is_met(&self) -> Option<bool> {
        Some(self.ratio.or(self.median)? <= self.target?)
    }
}

impl FigureTable {
    /// An empty table of `bench`.
    pub fn new(bench: &str) -> Self {
        let quick = if is_quick() { "QUICK=1 " } else { "" };
        let profile = std::env::var(PROFILE);
        let profile = profile.map_or_else(|_| String::new(), |profile| format!("--profile {profile} "));
        Self {
            bench: bench.to_owned(),
            command: format!("{quick}cargo bench {profile}--bench {bench}"),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a row of `samples`.
    pub fn row(&mut self, case: &str, who: &str, what: &str, samples: &Samples) -> &mut Row {
        self.rows.push(Row {
            case: case.to_owned(),
            who: who.to_owned(),
            what: what.to_owned(),
            count: samples.count(),
            median: samples.median(),
            p99: samples.quantile(0.99),
            ratio: None,
            target: None,
        });
        let last = self.rows.len() - 1;
        &mut self.rows[last]
    }

    /// Sets the ratio to `baseline` in all other rows of `case` and `what`.
    pub fn compare(&mut self, case: &str, what: &str, baseline: &str) {
        let is_of = |row: &Row| row.case == case && row.what == what;
        let base = self
            .rows
            .iter()
            .find(|row| is_of(row) && row.who == baseline)
            .and_then(|row| row.median)
            .filter(|median| *median > 0.0);
        for row in &mut self.rows {
            if is_of(row) && row.who != baseline {
                row.ratio = row.median.zip(base).map(|(median, base)| median / base);
            }
        }
    }

    /// Sets the target of the rows of `case`, `what` and `who`.
    pub fn target(&mut self, case: &str, what: &str, who: &str, target: f64) {
        for row in &mut self.rows {
            if row.case == case && row.what == what && row.who == who {
                row.target = Some(target);
            }
        }
    }

    /// Adds a note.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// The table as text.
    pub fn markdown(&self) -> String {
        let mut table = TextTable::new(&[
            "case", "who", "what", "n", "median", "p99", "ratio", "at most", "",
        ]);
        for row in &self.rows {
            let verdict = match row.is_met() {
                Some(true) => "met",
                Some(false) => "missed",
                None => "",
            };
            let mut cells = vec![
                row.case.clone(),
                row.who.clone(),
                row.what.clone(),
                row.count.to_string(),
            ];
            let numbers = [row.median, row.p99, row.ratio, row.target];
            cells.extend(numbers.map(|number| number.map_or_else(String::new, figure)));
            cells.push(verdict.to_owned());
            table.row(cells);
        }
        let mut text = format!("### {}\n\n`{}`\n\n{}", self.bench, self.command, table.markdown());
        for note in &self.notes {
            text.push_str(&format!("\n- {note}"));
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        text
    }

    /// Saves the table as JSON in the directory of [`DIRECTORY`], or else in `otherwise`, and prints the path.
    ///
    /// # Errors If the file cannot be written.
    pub fn keep(&self, otherwise: &Path) -> anyhow::Result<PathBuf> {
        let directory = std::env::var_os(DIRECTORY).map_or_else(|| otherwise.to_owned(), PathBuf::from);
        std::fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
        let path = directory.join(format!("{}.json", self.bench));
        let text = serde_json::to_string_pretty(self).context("writing a table")?;
        std::fs::write(&path, text + "\n").with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }
}

/// All tables in `directory`, in the order of their names.
///
/// # Errors If the directory or a table cannot be read.
pub fn kept(directory: &Path) -> anyhow::Result<Vec<FigureTable>> {
    let reading = || format!("reading the figures in {}", directory.display());
    let mut tables = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(reading)? {
        let path = entry.with_context(reading)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            let table: FigureTable =
                serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))?;
            tables.push(table);
        }
    }
    tables.sort_by(|one, other| one.bench.cmp(&other.bench));
    Ok(tables)
}

/// Writes `figures.json` and `summary.md` of `tables` into `directory`; `about` says what was measured and on which machine.
///
/// # Errors If the directory or a file cannot be written.
pub fn publish(tables: &[FigureTable], about: &str, directory: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    let json = serde_json::to_string_pretty(tables).context("writing the figures")?;
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let text: Vec<String> = tables.iter().map(FigureTable::markdown).collect();
    let summary = format!("# Figures of {name}\n\n{about}\n\n{}", text.join("\n"));
    for (file, text) in [("figures.json", json + "\n"), ("summary.md", summary)] {
        let path = directory.join(file);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// A number with three significant digits, or without decimals from 100 on. NaN is `-`.
pub fn figure(value: f64) -> String {
    match value.abs() {
        size if size.is_nan() => "-".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{FigureTable, Samples, publish};

    fn samples(values: impl IntoIterator<Item = u32>) -> Samples {
        values.into_iter().map(f64::from).collect()
    }

    #[test]
    fn a_quantile_is_a_value_that_was_measured() {
        let hundred = samples((1..=100).rev());
        assert_eq!(hundred.median(), Some(50.0));
        assert_eq!(hundred.quantile(0.99), Some(99.0));
        assert_eq!(hundred.quantile(0.0), Some(1.0));
        assert_eq!(hundred.quantile(1.0), Some(100.0));
        assert_eq!(samples([3]).quantile(0.99), Some(3.0));
        assert_eq!(samples([3, 1, 2]).median(), Some(2.0));
        assert_eq!(samples([]).median(), None);
    }

    #[test]
    fn what_is_no_number_is_no_sample() {
        let samples: Samples = [1.0, f64::NAN, f64::INFINITY].into_iter().collect();
        assert_eq!((samples.count(), samples.median()), (1, Some(1.0)));
    }

    #[test]
    fn ratio_is_to_the_baseline_of_the_same_case_and_quantity() {
        let mut table = FigureTable::new("drain");
        table.row("a", "baseline", "ms", &samples([100]));
        table.row("a", "haulout", "ms", &samples([125]));
        table.row("a", "haulout", "requests", &samples([7]));
        table.row("b", "haulout", "ms", &samples([900]));
        table.compare("a", "ms", "baseline");
        table.target("a", "ms", "haulout", 1.3);
        table.target("a", "requests", "haulout", 6.0);
        let ratios: Vec<_> = table.rows.iter().map(|row| row.ratio).collect();
        assert_eq!(ratios, [None, Some(1.25), None, None]);
        let met: Vec<_> = table.rows.iter().map(super::Row::is_met).collect();
        assert_eq!(met, [None, Some(true), Some(false), None]);
        let text = table.markdown();
        let line = text.lines().find(|line| line.contains("| met "));
        let cells: Vec<&str> = line.unwrap().split('|').map(str::trim).collect();
        let expected = ["a", "haulout", "ms", "1", "125", "125", "1.25", "1.30", "met"];
        assert_eq!(cells[1..10], expected);
    }

    #[test]
    fn baseline_of_zero_gives_no_ratio() {
        let mut table = FigureTable::new("drain");
        table.row("a", "baseline", "ms", &samples([0]));
        table.row("a", "haulout", "ms", &samples([1]));
        table.compare("a", "ms", "baseline");
        assert_eq!(table.rows[1].ratio, None);
    }

    #[test]
    fn a_directory_holds_the_tables_and_a_summary() {
        let root = crate::run_dir::RunDir::create().unwrap();
        let directory = root.path().join("2026-01-02-4-cores");
        let mut table = FigureTable::new("drain");
        table.row("a", "haulout", "ms", &samples([5]));
        publish(std::slice::from_ref(&table), "commit abc", &directory).unwrap();
        let summary = std::fs::read_to_string(directory.join("summary.md")).unwrap();
        assert!(summary.starts_with("# Figures of 2026-01-02-4-cores\n\ncommit abc\n\n### drain\n"));
        let json = std::fs::read_to_string(directory.join("figures.json")).unwrap();
        assert_eq!(serde_json::from_str::<Vec<FigureTable>>(&json).unwrap(), [table]);
    }
}
