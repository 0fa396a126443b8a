//! When snapshots are built.

use std::time::Duration;

use crate::maintenance::clock::Monotonic;

/// How long the rest of an incomplete set of vCenter is waited for. It arrives within milliseconds, or with the next reply of the
/// long poll where a VM was found and its properties were not sent yet. Nodes that it does not concern do not wait longer.
const SET_COMPLETE_BY: Duration = Duration::from_secs(2);

/// A build that took less is followed by the next one at once: timers are no finer.
const NO_REST: Duration = Duration::from_millis(1);

/// The longest rest between two builds. An operator does not notice it.
const REST_MAX: Duration = Duration::from_secs(1);

/// How often every snapshot is rebuilt and compared with the incremental one.
const REBUILD_EVERY: Duration = Duration::from_secs(60);

/// The timers of the inventory.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    set_complete_by: Option<Monotonic>,
    rests_until: Option<Monotonic>,
    rebuild_at: Option<Monotonic>,
}

impl Schedule {
    /// Whether facts are only applied for now, because the last build took long. So builds take at most half of one processor.
    pub(super) fn rests(&mut self, now: Monotonic) -> bool {
        let rests = self.rests_until.is_some_and(|until| now < until);
        if !rests {
            self.rests_until = None;
        }
        rests
    }

    /// Takes how long the last build took, the use of its snapshots included.
    pub(super) fn built(&mut self, now: Monotonic, took: Duration) {
        self.rests_until = (took >= NO_REST).then(|| now.after(took.min(REST_MAX)));
    }

    /// Whether the rest of an incomplete set is waited for. The first call starts the timer.
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

    /// Whether every snapshot is to be rebuilt. The first call only starts the timer.
    pub(super) fn is_rebuild_due(&mut self, now: Monotonic) -> bool {
        let at = *self.rebuild_at.get_or_insert(now.after(REBUILD_EVERY));
        if now < at {
            return false;
        }
        self.rebuild_at = Some(now.after(REBUILD_EVERY));
        true
    }

    /// When there is something to do though no fact comes in. Never before the end of a rest, or the caller would spin.
    pub(super) fn next_at(&self, is_dirty: bool, is_acting: bool) -> Option<Monotonic> {
        let build_at = self.set_complete_by.or(self.rests_until).filter(|_| is_dirty);
        let rebuild_at = self.rebuild_at.filter(|_| is_acting);
        let next = build_at.into_iter().chain(rebuild_at).min()?;
        Some(self.rests_until.map_or(next, |until| until.max(next)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Monotonic {
        Monotonic::default().after(Duration::from_millis(millis))
    }

    #[test]
    fn a_long_build_is_followed_by_a_rest_of_the_same_length() {
        for (took, rest) in [(0, 0), (1, 1), (40, 40), (5_000, 1_000)] {
            let mut schedule = Schedule::default();
            schedule.built(at(100), Duration::from_millis(took));
            assert_eq!(schedule.rests(at(99 + rest)), rest > 0, "{took}");
            let next = (rest > 0).then(|| at(100 + rest));
            assert_eq!(schedule.next_at(true, true), next, "{took}");
            assert_eq!(schedule.next_at(false, true), None, "{took}");
            assert!(!schedule.rests(at(100 + rest)), "{took}");
            assert_eq!(schedule.next_at(true, true), None, "{took}");
        }
    }

    #[test]
    fn an_incomplete_set_is_waited_for_two_seconds_from_its_first_fact() {
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
    fn snapshots_are_rebuilt_once_a_minute() {
        let mut schedule = Schedule::default();
        assert!(!schedule.is_rebuild_due(at(0)));
        assert!(!schedule.is_rebuild_due(at(59_999)));
        assert_eq!(schedule.next_at(false, true), Some(at(60_000)));
        assert!(schedule.is_rebuild_due(at(61_000)));
        assert!(!schedule.is_rebuild_due(at(120_999)));
        assert!(schedule.is_rebuild_due(at(121_000)));
    }

    #[test]
    fn a_rebuild_is_due_after_a_rest_and_never_on_a_standby() {
        let mut schedule = Schedule::default();
        assert!(!schedule.is_rebuild_due(at(0)));
        schedule.built(at(59_900), Duration::from_millis(500));
        assert!(schedule.rests(at(60_100)));
        for is_dirty in [false, true] {
            assert_eq!(schedule.next_at(is_dirty, true), Some(at(60_400)), "{is_dirty}");
        }
        assert_eq!(schedule.next_at(false, false), None);
    }
}
