//! The two clocks of a lease, read at one moment.

use std::time::Duration;

/// One moment on two clocks that cannot be set.
///
/// They differ by the time that the machine was suspended. Each side of a lease uses the clock that is worse for itself: a leader
/// counts suspensions, a candidate that waits for another leader does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoottimeInstant {
    /// Since an arbitrary moment, without suspensions (`CLOCK_MONOTONIC`).
    pub monotonic: Duration,
    /// Since the boot of the machine, with suspensions (`CLOCK_BOOTTIME`).
    pub since_boot: Duration,
}

#[cfg(target_os = "linux")]
pub(super) fn now() -> BoottimeInstant {
    use rustix::time::{ClockId, clock_gettime};

    let read = |clock| {
        let time = clock_gettime(clock);
        // Neither clock is ever negative, and nanoseconds are below a second's.
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
    };
    BoottimeInstant {
        monotonic: read(ClockId::Monotonic),
        since_boot: read(ClockId::Boottime),
    }
}

/// Elsewhere only the command line runs, which never leads. The clock of std has no time of suspensions.
#[cfg(not(target_os = "linux"))]
pub(super) fn now() -> BoottimeInstant {
    use std::sync::LazyLock;
    use std::time::Instant;

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let elapsed = START.elapsed();
    BoottimeInstant {
        monotonic: elapsed,
        since_boot: elapsed,
    }
}
