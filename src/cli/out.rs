//! Output: results to stdout, progress to stderr, colours for terminals only.

use std::io::{ErrorKind, IsTerminal as _, Write as _};

use anyhow::Context as _;
use serde::Serialize;

use super::Format;
use crate::kubernetes::answer::plain;

/// Exit code of a subcommand that found a problem.
pub(super) const PROBLEM_FOUND: u8 = 4;

/// The reader of stdout has enough, such as `head`. That is no failure.
#[derive(Debug, thiserror::Error)]
#[error("stdout is closed")]
pub struct StdoutClosed;

#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    is_terminal: bool,
    paint: Paint,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Paint {
    is_on: bool,
}

/// The meaning of a colour, which the text has as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Good,
    Busy,
    Bad,
    Faint,
}

impl Output {
    /// Colours on terminals only, unless `NO_COLOR` is set (<https://no-color.org>).
    pub(super) fn new() -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        let is_refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self {
            is_terminal,
            paint: Paint {
                is_on: is_terminal && !is_refused && !is_dumb,
            },
        }
    }

    pub(super) fn paint(self) -> Paint {
        self.paint
    }

    pub(super) fn is_terminal(self) -> bool {
        self.is_terminal
    }

    /// Prints `value` in a machine-readable format, or else `text` unless it is empty.
    pub(super) fn print_value(
        self,
        format: Format,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        let text = match format {
            Format::Json => json(value)?,
            Format::Yaml => serde_saphyr::to_string(value)?,
            Format::Table | Format::Wide | Format::Name => text(),
        };
        if text.is_empty() {
            Ok(())
        } else {
            self.result(&text)
        }
    }

    /// Prints a result, with one line end.
    pub(super) fn result(self, text: &str) -> anyhow::Result<()> {
        let mut stdout = std::io::stdout().lock();
        match writeln!(stdout, "{}", text.trim_end_matches('\n')).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(StdoutClosed.into()),
            written => written.context("writing to stdout"),
        }
    }

    /// Replaces the content of the terminal.
    pub(super) fn redraw(self, text: &str) -> anyhow::Result<()> {
        self.result(&format!("\x1b[H\x1b[2J{text}"))
    }

    /// Prints progress. Errors are ignored.
    pub(super) fn progress(self, text: &str) {
        let _ = writeln!(std::io::stderr().lock(), "{text}");
    }
}

/// `value` as indented JSON.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)?)
}

/// A list in kubectl's format, with `.items[]`.
#[derive(Debug, Serialize)]
pub(super) struct Items<'a, T> {
    pub(super) items: &'a [T],
}

impl Paint {
    #[cfg(test)]
    pub(super) const OFF: Self = Self { is_on: false };

    pub(super) fn apply(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => "32",
            Tone::Busy => "33",
            Tone::Bad => "31",
            Tone::Faint => "2",
        };
        if self.is_on {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// The nodes as `-o name` shows them.
pub(super) fn node_names<'a>(nodes: impl Iterator<Item = &'a String>) -> String {
    let names = nodes.map(|node| format!("node/{}", plain(node)));
    names.collect::<Vec<_>>().join("\n")
}
