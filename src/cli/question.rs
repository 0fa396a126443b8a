//! A question to the person at the terminal.

use std::io::{BufRead as _, IsTerminal as _};

use anyhow::Context as _;

use super::out::Output;

/// The answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Consent {
    Given,
    Refused,
    /// Nobody can be asked, and no flag answers.
    NobodyToAsk,
}

/// Asks a person, unless the flag `--yes` answers.
///
/// # Errors
/// When the answer cannot be read.
pub(super) fn ask(yes: bool, out: Output, question: &str) -> anyhow::Result<Consent> {
    let is_terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    if let Some(consent) = without_asking(yes, is_terminal) {
        return Ok(consent);
    }
    out.progress(&format!("{question} [y/N]"));
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.context("reading the answer")?;
    Ok(if is_yes(&line) {
        Consent::Given
    } else {
        Consent::Refused
    })
}

fn without_asking(yes: bool, is_terminal: bool) -> Option<Consent> {
    match (yes, is_terminal) {
        (true, _) => Some(Consent::Given),
        (false, true) => None,
        (false, false) => Some(Consent::NobodyToAsk),
    }
}

fn is_yes(line: &str) -> bool {
    let line = line.trim();
    ["y", "yes"].iter().any(|yes| line.eq_ignore_ascii_case(yes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn person_is_asked_at_a_terminal_only_and_unless_a_flag_answers() {
        assert_eq!(without_asking(true, false), Some(Consent::Given));
        assert_eq!(without_asking(true, true), Some(Consent::Given));
        assert_eq!(without_asking(false, true), None);
        assert_eq!(without_asking(false, false), Some(Consent::NobodyToAsk));
        assert!(is_yes(" Y\n") && is_yes("yes\n"));
        assert!(!is_yes("\n") && !is_yes("n\n") && !is_yes("yesterday\n"));
    }
}
