//! Prints lines of several sources in the order of time, in columns, with times relative to the maintenance request.

use std::collections::BTreeSet;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// The delay of a line, so that an earlier line of a slower source comes first.
const HOLD: Duration = Duration::from_millis(300);
/// The interval in which delayed lines are checked.
const TICK: Duration = Duration::from_millis(40);
/// The line width.
const WIDTH: usize = 120;
/// The columns before the text: time and place.
const INDENT: usize = 23;

/// The source of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// vCenter.
    Vcenter,
    Kubernetes,
    /// Haulout's log.
    Haulout,
    /// An explanation.
    Note,
}

/// A printed line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Line {
    /// Its time.
    pub(crate) at: Timestamp,
    /// Its source.
    pub(crate) place: Place,
    pub(crate) what: String,
    /// Whether times count from this maintenance request.
    pub(crate) click: bool,
}

impl Line {
    /// A line that is not a maintenance request.
    pub(crate) fn new(at: Timestamp, place: Place, what: impl Into<String>) -> Self {
        Self {
            at,
            place,
            what: what.into(),
            click: false,
        }
    }
}

enum Message {
    Line(Line),
    Begin,
    End(oneshot::Sender<()>),
}

/// A handle of the printer, which runs as long as a handle lives.
#[derive(Debug, Clone)]
pub(crate) struct Printer {
    to_task: mpsc::UnboundedSender<Message>,
}

impl Printer {
    /// Starts a printer that prints nothing until [`Self::begin`].
    pub(crate) fn start() -> Self {
        let (to_task, messages) = mpsc::unbounded_channel();
        tokio::spawn(run(messages));
        Self { to_task }
    }

    /// Prints a line, if printing has begun.
    pub(crate) fn print(&self, line: Line) {
        // The printer runs as long as the program.
        let _ = self.to_task.send(Message::Line(line));
    }

    /// Begins to print.
    pub(crate) fn begin(&self) {
        let _ = self.to_task.send(Message::Begin);
    }

    /// Prints the delayed lines, and stops printing.
    pub(crate) async fn end(&self) {
        let (reply, replied) = oneshot::channel();
        let _ = self.to_task.send(Message::End(reply));
        let _ = replied.await;
    }
}

async fn run(mut messages: mpsc::UnboundedReceiver<Message>) {
    let mut held: BTreeSet<Line> = BTreeSet::new();
    let mut zero: Option<Timestamp> = None;
    let mut open = false;
    let mut ending: Option<(oneshot::Sender<()>, Instant)> = None;
    let mut tick = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            message = messages.recv() => match message {
                Some(Message::Line(line)) => {
                    if open {
                        held.insert(line);
                    }
                }
                Some(Message::Begin) => {
                    open = true;
                    zero = None;
                }
                Some(Message::End(reply)) => ending = Some((reply, Instant::now() + HOLD)),
                None => return,
            },
            _ = tick.tick() => {}
        }
        let over = ending.as_ref().is_some_and(|(_, at)| Instant::now() >= *at);
        let due = Timestamp::now() - HOLD;
        while let Some(line) = held.pop_first() {
            if line.at > due && !over {
                held.insert(line);
                break;
            }
            if line.click {
                if zero.is_some() {
                    say("");
                }
                zero = Some(line.at);
            }
            print(&line, zero);
        }
        if over && let Some((reply, _)) = ending.take() {
            open = false;
            let _ = reply.send(());
        }
    }
}

fn print(line: &Line, zero: Option<Timestamp>) {
    let time = zero.map_or_else(
        || " ".repeat(9),
        |zero| format!("{:>7.3} s", seconds_between(zero, line.at)),
    );
    let (name, colour) = match line.place {
        Place::Vcenter => ("vCenter", "36"),
        Place::Kubernetes => ("Kubernetes", "34"),
        Place::Haulout => ("Haulout", "32"),
        Place::Note => ("", "2"),
    };
    let mut rows = wrap(&line.what, WIDTH - INDENT).into_iter();
    let paint_text = |text: &str| match line.place {
        Place::Note => paint(colour, text),
        Place::Vcenter | Place::Kubernetes | Place::Haulout => text.to_owned(),
    };
    let first = rows.next().unwrap_or_default();
    say(&format!(
        "{}  {}  {}",
        paint("2", &time),
        paint(colour, &format!("{name:<10}")),
        paint_text(&first)
    ));
    for row in rows {
        say(&format!("{:INDENT$}{}", "", paint_text(&row)));
    }
}

/// The seconds from one time to another.
pub(crate) fn seconds_between(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

/// Wraps a text at spaces into rows of at most `width` characters.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut rows: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match rows.last_mut() {
            Some(row) if row.chars().count() + 1 + word.chars().count() <= width => {
                row.push(' ');
                row.push_str(word);
            }
            Some(_) | None => rows.push(word.to_owned()),
        }
    }
    rows
}

/// Prints a line. A closed pipe, as with `make demo | head`, is no error.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Says that something is ready, and how long it took.
pub fn ready(what: &str, since: std::time::Instant) {
    say(&format!("{:>7.1} s  {what}", since.elapsed().as_secs_f64()));
}

pub fn heading(text: &str) {
    say("");
    say(&paint("1", text));
}

/// A paragraph with the indentation of the lines.
pub fn paragraph(text: &str) {
    for row in wrap(text, WIDTH - 2) {
        say(&format!("  {row}"));
    }
}

/// Colours a text if stdout is a terminal.
fn paint(colour: &str, text: &str) -> String {
    static COLOURS: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        std::io::stdout().is_terminal() && !refused && !dumb
    });
    if *COLOURS && !text.trim().is_empty() {
        format!("\x1b[{colour}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::wrap;

    #[test]
    fn lines_are_wrapped_at_spaces_without_loss() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("unbreakable word", 4), ["unbreakable", "word"]);
        assert!(wrap("", 4).is_empty());
    }
}
