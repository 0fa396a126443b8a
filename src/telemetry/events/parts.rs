//! The duration of an episode in four parts.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use crate::maintenance::episode::Record;
use crate::status::PhaseKind;

/// The time spent so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    /// This process saw the whole episode; otherwise the parts would not add up.
    is_complete: bool,
    queue: SignedDuration,
    drain: SignedDuration,
    host: SignedDuration,
    boot: SignedDuration,
}

/// A duration as text: `0.4s`, `42s`, `18m48s`, `3h15m`.
#[derive(Clone, Copy)]
pub(super) struct Took(pub(super) SignedDuration);

impl Parts {
    /// Adds the phase that ended at `at`.
    pub(super) fn add(&mut self, before: &Record, at: Timestamp) {
        let Some(episode) = before.episode() else {
            *self = Self {
                is_complete: matches!(before, Record::InService),
                ..Self::default()
            };
            return;
        };
        let spent = at.duration_since(episode.since).max(SignedDuration::ZERO);
        let kind = episode.phase.at_work().kind();
        let part = if kind == PhaseKind::Queued {
            &mut self.queue
        } else if kind.is_draining() {
            &mut self.drain
        } else if kind.is_waiting_for_host() {
            &mut self.host
        } else if kind.is_coming_back() {
            &mut self.boot
        } else {
            // A person decided how long it stays drained.
            return;
        };
        *part = part.saturating_add(spent);
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("queue", self.queue),
            ("drain", self.drain),
            ("host", self.host),
            ("boot", self.boot),
        ];
        let spent = parts
            .iter()
            .filter(|(_, span)| self.is_complete && *span > SignedDuration::ZERO);
        for (index, (name, span)) in spent.enumerate() {
            f.write_str(if index == 0 { " (" } else { ", " })?;
            write!(f, "{name} {}", Took(*span))?;
        }
        if self.is_complete && parts.iter().any(|(_, span)| *span > SignedDuration::ZERO) {
            f.write_str(")")?;
        }
        Ok(())
    }
}

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Clocks may differ, which can make the span negative.
        let span = self.0.max(SignedDuration::ZERO);
        let seconds = span.as_secs();
        if seconds < 10 {
            return write!(f, "{:.1}s", span.as_secs_f64());
        }
        let (hours, minutes, rest) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
        match (hours, minutes, rest) {
            (0, 0, _) => write!(f, "{rest}s"),
            (0, _, 0) => write!(f, "{minutes}m"),
            (0, ..) => write!(f, "{minutes}m{rest}s"),
            (_, 0, _) => write!(f, "{hours}h"),
            (..) => write!(f, "{hours}h{minutes}m"),
        }
    }
}
