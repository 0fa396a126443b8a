//! When snapshots are built.

use std::time::Duration;

use crate::maintenance::clock::Monotonic;

/// The maximum wait for the rest of an incomplete set of vCenter. It arrives within milliseconds, or with the next reply of the
/// long poll where a VM was found and its properties were not sent yet. Nodes that are not concerned do not wait longer.
const SET_COMPLETE_BY: Duration = Duration::from_secs(2);

/// The shortest build that is followed by a pause; timers are no finer.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// A pause is this many times as long as the build before. So builds use at most a quarter of one CPU, unless one takes longer than a
/// third of a second.
const PAUSE_PER_BUILD: u32 = 3;

/// The longest pause between two builds; operators do not notice it.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How often snapshots are built without a change, in case one depends on a time for which there is no timer.
const BUILD_EVERY: Duration = Duration::from_secs(60);

/// The timers of the inventory.
#[derive(Clone, Debug, Default)]
pub(super) struct Schedule {
    set_complete_by: Option<Monotonic>,
    paused_until: Option<Monotonic>,
    build_at: Option<Monotonic>,
}

impl Schedule {
    /// Whether facts are only applied, because the last build took long.
    pub(super) fn is_paused(&mut self, now: Monotonic) -> bool {
        let is_paused = self.paused_until.is_some_and(|until| now < until);
        if !is_paused {
            self.paused_until = None;
        }
        is_paused
    }

    /// Records how long the last build took, including the use of its snapshots.
    pub(super) fn built(&mut self, now: Monotonic, took: Duration) {
        self.paused_until =
            (took >= PAUSE_MIN).then(|| now.after(took.saturating_mul(PAUSE_PER_BUILD).min(PAUSE_MAX)));
    }

    /// Whether to wait for the rest of an incomplete set. The first call starts the timer.
    pub(super) fn waits_for_set(&mut self, now: Monotonic, is_incomplete: bool) -> bool {
        if !is_incomplete {
            self.set_complete_by = None;
            return false;
        }
        let until = *self.set_complete_by.get_or_insert(now.after(SET_COMPLETE_BY));
        now < until
    }

    /// Stops the timer of [`Schedule::waits_for_set`].
    pub(super) fn end_wait_for_set(&mut self) {
        self.set_complete_by = None;
    }

    /// Whether to build without a change. The first call only starts the timer.
    pub(super) fn is_build_due(&mut self, now: Monotonic) -> bool {
        let at = *self.build_at.get_or_insert(now.after(BUILD_EVERY));
        if now < at {
            return false;
        }
        self.build_at = Some(now.after(BUILD_EVERY));
        true
    }

    /// When to build without a new fact. Never before the end of a pause, or the caller would spin.
    pub(super) fn next_at(&self, is_changed: bool, is_acting: bool) -> Option<Monotonic> {
        let changed_at = self.set_complete_by.or(self.paused_until).filter(|_| is_changed);
        let build_at = self.build_at.filter(|_| is_acting);
        let next = changed_at.into_iter().chain(build_at).min()?;
        Some(self.paused_until.map_or(next, |until| until.max(next)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Monotonic {
        Monotonic::default().after(Duration::from_millis(millis))
    }

    #[test]
    fn long_build_is_followed_by_a_pause_three_times_as_long() {
        for (took, pause) in [(0, 0), (1, 3), (40, 120), (5_000, 1_000)] {
            let mut schedule = Schedule::default();
            schedule.built(at(100), Duration::from_millis(took));
            assert_eq!(schedule.is_paused(at(99 + pause)), pause > 0, "{took}");
            let next = (pause > 0).then(|| at(100 + pause));
            assert_eq!(schedule.next_at(true, true), next, "{took}");
            assert_eq!(schedule.next_at(false, true), None, "{took}");
            assert!(!schedule.is_paused(at(100 + pause)), "{took}");
            assert_eq!(schedule.next_at(true, true), None, "{took}");
        }
    }

    #[test]
    fn incomplete_set_is_awaited_for_two_seconds() {
        let mut schedule = Schedule::default();
        assert!(schedule.waits_for_set(at(0), true));
        assert!(schedule.waits_for_set(at(1_999), true));
        assert_eq!(schedule.next_at(true, true), Some(at(2_000)));
        assert!(!schedule.waits_for_set(at(2_000), true));
        assert!(!schedule.waits_for_set(at(2_001), false));
        assert!(
            schedule.waits_for_set(at(3_000), true),
            "another set has its own time"
        );
    }

    #[test]
    fn ended_wait_for_a_set_causes_no_build() {
        let mut schedule = Schedule::default();
        assert!(schedule.waits_for_set(at(0), true));
        schedule.end_wait_for_set();
        assert_eq!(schedule.next_at(true, true), None);
        assert!(
            schedule.waits_for_set(at(5_000), true),
            "another set has its own time"
        );
    }

    #[test]
    fn snapshots_are_built_once_a_minute() {
        let mut schedule = Schedule::default();
        assert!(!schedule.is_build_due(at(0)));
        assert!(!schedule.is_build_due(at(59_999)));
        assert_eq!(schedule.next_at(false, true), Some(at(60_000)));
        assert!(schedule.is_build_due(at(61_000)));
        assert!(!schedule.is_build_due(at(120_999)));
        assert!(schedule.is_build_due(at(121_000)));
    }

    #[test]
    fn build_is_due_after_a_pause_and_never_on_a_standby() {
        let mut schedule = Schedule::default();
        assert!(!schedule.is_build_due(at(0)));
        schedule.built(at(59_900), Duration::from_millis(167));
        assert!(schedule.is_paused(at(60_100)));
        for is_changed in [false, true] {
            assert_eq!(
                schedule.next_at(is_changed, true),
                Some(at(60_401)),
                "{is_changed}"
            );
        }
        assert_eq!(schedule.next_at(false, false), None);
    }
}
