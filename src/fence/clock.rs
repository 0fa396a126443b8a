//! The two clocks of a lease, read at one moment.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// One moment on two clocks, neither of which anybody can set.
///
/// They differ by the time that the machine was suspended. Each side of a lease goes by the one that is to its own
/// disadvantage: who leads counts all the time there was, who waits for another counts only what it was awake to see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoottimeInstant {
    /// Since some moment in the past, without suspensions (`CLOCK_MONOTONIC`).
    pub awake: Duration,
    /// Since the boot of the machine, with them (`CLOCK_BOOTTIME`).
    pub since_boot: Duration,
}

/// This moment.
pub(super) fn now() -> BoottimeInstant {
    let read = |clock| {
        let time = clock_gettime(clock);
        // Neither clock is ever negative, and nanoseconds are below a second's.
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
    };
    BoottimeInstant {
        awake: read(ClockId::Monotonic),
        since_boot: read(ClockId::Boottime),
    }
}
