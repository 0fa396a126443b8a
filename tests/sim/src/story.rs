//! What happened in a run: lines for people, and the digest of everything.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc::UnboundedSender;

use crate::said::Said;

/// The lines that are kept. A run has some thousand.
const LINES_MAX: usize = 100_000;

/// The story of a run.
#[derive(Debug, Default)]
pub struct Story {
    digest: Sha256,
    lines: Vec<String>,
    telling: Telling,
    /// Hears every line for people while it happens.
    pub listener: Option<UnboundedSender<Told>>,
    said: Option<Said>,
}

/// A line for people.
#[derive(Clone, Debug)]
pub struct Told {
    /// The time of the run.
    pub at: Duration,
    /// Who does something.
    pub who: String,
    /// What they do.
    pub what: String,
}

/// What lines of a story are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Telling {
    /// None.
    #[default]
    Nothing,
    /// What changes something, and what goes wrong.
    Deeds,
    /// All requests as well.
    Requests,
}

impl Story {
    /// A story of which `telling` is kept, and the texts of writes in `said`.
    pub fn new(telling: Telling, said: Option<Said>) -> Self {
        Self {
            telling,
            said,
            ..Self::default()
        }
    }

    /// Adds a line about a request that was answered.
    pub fn request(&mut self, at: Duration, who: &str, what: &str) {
        match self.telling {
            Telling::Requests => self.tell(at, who, what),
            Telling::Nothing | Telling::Deeds => {
                self.note(at, who);
                self.note(at, what);
            }
        }
    }

    /// Adds the content of a request to the digest.
    pub fn content(&mut self, content: &[u8]) {
        self.digest.update(content);
    }

    /// Keeps the texts of a write to Kubernetes.
    pub fn write(&self, line: &str, body: &Value) {
        if let Some(said) = &self.said {
            said.write(line, body);
        }
    }

    /// Adds to the digest only.
    fn note(&mut self, at: Duration, what: &str) {
        self.digest.update(at.as_micros().to_le_bytes());
        self.digest.update(what.as_bytes());
    }

    /// Adds a line for people.
    pub fn tell(&mut self, at: Duration, who: &str, what: &str) {
        self.note(at, who);
        self.note(at, what);
        if let Some(listener) = &self.listener {
            // Whoever does not listen any more misses nothing.
            let _ = listener.send(Told {
                at,
                who: who.to_owned(),
                what: what.to_owned(),
            });
        }
        if self.telling != Telling::Nothing && self.lines.len() < LINES_MAX {
            let (seconds, millis) = (at.as_secs(), at.subsec_millis());
            let (minutes, seconds) = (seconds / 60, seconds % 60);
            let line = format!("{minutes:>4}:{seconds:02}.{millis:03}  {who:<11} {what}");
            self.lines.push(line);
        }
    }

    /// The digest so far.
    pub fn digest(&self) -> String {
        let mut text = String::new();
        for byte in self.digest.clone().finalize().iter().take(8) {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    pub fn lines(&self) -> &[String] {
        &self.lines
    }
}
