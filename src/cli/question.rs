//! A question to the person at the terminal.

use std::io::{BufRead as _, IsTerminal as _};

use anyhow::{Context as _, ensure};

use super::out::Output;

/// Asks a person, unless the flag `--yes` answers. Returns whether the answer is yes.
///
/// # Errors
/// When there is no terminal, with `what` would be done, or when the answer cannot be read.
pub(super) fn agreed(yes: bool, out: Output, question: &str, what: &str) -> anyhow::Result<bool> {
    if yes {
        return Ok(true);
    }
    ensure!(
        std::io::stdin().is_terminal() && std::io::stderr().is_terminal(),
        "{what}. Without a terminal, confirm it with --yes"
    );
    out.progress(&format!("{question} [y/N]"));
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.context("reading the answer")?;
    Ok(is_yes(&line))
}

fn is_yes(line: &str) -> bool {
    let line = line.trim();
    ["y", "yes"].iter().any(|yes| line.eq_ignore_ascii_case(yes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_an_agreement() {
        assert!(agreed(true, Output::new(), "Go on?", "it goes on").unwrap());
        assert!(is_yes(" Y\n") && is_yes("yes\n"));
        assert!(!is_yes("\n") && !is_yes("n\n") && !is_yes("yesterday\n"));
    }
}
