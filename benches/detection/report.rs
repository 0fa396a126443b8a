//! The output of a bench.

use std::io::Write as _;

use haulout_lab::figures::Samples;
use haulout_lab::text_table::TextTable;

/// Prints what a bench found.
pub fn report(intro: &str, tables: &[(&str, &TextTable)], notes: &[String]) {
    let mut screen = format!("{intro}\n");
    for (title, table) in tables {
        screen += &format!("\n{title}\n\n{}", table.markdown());
    }
    screen += "\n";
    for note in notes {
        screen += &format!("- {note}\n");
    }
    say(&screen);
}

/// Prints a text.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// As in the saved tables: 0.5 is the median.
pub fn quantile(samples: &[f64], share: f64) -> f64 {
    let samples: Samples = samples.iter().copied().collect();
    samples.quantile(share).unwrap_or(f64::NAN)
}
