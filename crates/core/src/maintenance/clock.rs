//! The clocks of a decision. Deadlines and backoffs count elapsed time; wall-clock times are only displayed.
//!
//! A wall clock can be stepped, and replicas have different ones. So nothing is decided from the difference of two wall-clock
//! times: a process counts on its monotonic clock, and the record keeps the time that elapsed before.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// How far an adjusted wall clock gets from the elapsed time. A clock that is further away was set.
const ADJUSTED_MAX: SignedDuration = SignedDuration::from_secs(1);

/// A moment on `CLOCK_BOOTTIME`: it never goes back, cannot be set, and counts suspended time.
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

    /// The moment `span` later, saturating.
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
    /// The wall clock, for display only.
    pub wall: Timestamp,
    /// The clock of deadlines and backoffs.
    pub monotonic: Monotonic,
}

impl Now {
    /// A moment from a wall-clock time and the seconds since boot.
    pub fn at(wall: Timestamp, uptime_seconds: u64) -> Self {
        Self {
            wall,
            monotonic: Monotonic::since_boot(Duration::from_secs(uptime_seconds)),
        }
    }

    /// Whether the wall clock was set since `earlier`.
    pub fn is_clock_set_since(self, earlier: Self) -> bool {
        let expected = wall_after(earlier.wall, self.monotonic.since(earlier.monotonic));
        self.wall.duration_since(expected).abs() > ADJUSTED_MAX
    }

    /// The same moment `span` later.
    pub fn after(self, span: Duration) -> Self {
        Self {
            wall: wall_after(self.wall, span),
            monotonic: self.monotonic.after(span),
        }
    }
}

/// A duration in whole milliseconds, as it is stored in a record.
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

    pub fn span(self) -> Duration {
        Duration::from_millis(self.0)
    }

    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(Self::of(span).0))
    }

    /// Whether it is zero and need not be stored.
    pub fn is_zero(&self) -> bool {
        self.0 == 0
    }
}

/// The elapsed time since a recorded event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Timer {
    /// When, on the wall clock of the process that recorded it.
    pub since: Timestamp,
    /// The time that had elapsed at the last write of the record.
    #[serde(default)]
    pub elapsed: Elapsed,
}

impl Timer {
    /// A timer that begins now.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    pub at: Monotonic,
    /// The deadline in whole seconds of the wall clock, for display. It is computed from the time at which the record was first seen,
    /// so that it stays the same in repeated decisions.
    pub shown: Timestamp,
}

/// A pause that was doubled this often, and is at most `longest`.
pub fn doubled(first: Duration, times: u32, longest: Duration) -> Duration {
    // Sixteen doublings exceed every reasonable pause, and prevent an overflow.
    first.saturating_mul(1 << times.min(16)).min(longest)
}

/// `from` plus `span`, saturating.
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
