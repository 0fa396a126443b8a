//! The clocks of a decision. Deadlines and backoffs count elapsed time; wall-clock times are for people.
//!
//! A wall clock can be stepped, and two replicas have two of them. So nothing is decided from the difference of two wall-clock
//! times: a process counts on its own monotonic clock, and what has elapsed before is kept in the record.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// A moment on this machine's `CLOCK_BOOTTIME`: it never goes back, nobody sets it, and it counts suspended time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Monotonic(Duration);

impl Monotonic {
    /// The moment this long after boot.
    pub const fn since_boot(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// The time since boot.
    pub fn uptime(self) -> Duration {
        self.0
    }

    /// The moment `span` later; the last one there is where that does not exist.
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }

    /// The time since `earlier`; zero where that is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The moment of a decision, on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The wall clock: what is written down for people, and nothing else.
    pub wall: Timestamp,
    /// What deadlines and backoffs count by.
    pub monotonic: Monotonic,
}

impl Now {
    /// The moment at which the wall clock shows `wall` and so many seconds have passed since boot.
    pub fn at(wall: Timestamp, uptime_seconds: u64) -> Self {
        Self {
            wall,
            monotonic: Monotonic::since_boot(Duration::from_secs(uptime_seconds)),
        }
    }

    /// The same moment `span` later.
    pub fn after(self, span: Duration) -> Self {
        Self {
            wall: wall_after(self.wall, span),
            monotonic: self.monotonic.after(span),
        }
    }
}

/// How long something has lasted, in whole milliseconds, as it is written into a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Elapsed(u64);

impl Elapsed {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// `span`, in whole milliseconds.
    pub fn of(span: Duration) -> Self {
        Self(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    }

    /// The time.
    pub fn span(self) -> Duration {
        Duration::from_millis(self.0)
    }

    /// The time, `span` later.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(Self::of(span).0))
    }

    /// Whether it is none, and need not be written.
    pub fn is_zero(&self) -> bool {
        self.0 == 0
    }
}

/// Something that was done once and lasts since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Timer {
    /// When, on the wall clock of the process that did it.
    pub since: Timestamp,
    /// How long it had lasted when the record was written last.
    #[serde(default)]
    pub elapsed: Elapsed,
}

impl Timer {
    /// One that begins now.
    pub fn start(now: Now) -> Self {
        Self {
            since: now.wall,
            elapsed: Elapsed::ZERO,
        }
    }

    /// The same `span` later.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self {
            elapsed: self.elapsed.plus(span),
            ..self
        }
    }
}

/// When something is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// The moment that is waited for.
    pub at: Monotonic,
    /// The same in whole seconds of the wall clock, for people. It is reckoned from when the record was seen first and not
    /// from the moment of the decision, so that it stays the same from one look to the next.
    pub shown: Timestamp,
}

/// `from` plus `span`, or the end of time where that does not exist.
pub fn wall_after(from: Timestamp, span: Duration) -> Timestamp {
    SignedDuration::try_from(span)
        .ok()
        .and_then(|span| from.checked_add(span).ok())
        .unwrap_or(Timestamp::MAX)
}

/// `at` in whole seconds.
pub fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
