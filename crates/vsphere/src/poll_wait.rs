//! How long a poll for updates asks vCenter to wait. A proxy or firewall may close a request that is idle for longer than some time,
//! which differs by site. A poll that is cut costs a new subscription, so the wait becomes shorter than that time by itself. A reply that is
//! too large costs one as well, so the next set has smaller parts.

use std::time::Duration;

use parking_lot::Mutex;

/// The shortest wait: six calls a minute.
const SHORTEST: Duration = Duration::from_secs(10);

/// Object updates per part of a set, vCenter's own maximum. Most parts of so many hosts with all their PCI devices are under the
/// parser's limits.
const MOST_OBJECTS: u32 = 100;

/// The fewest, so that the largest vCenter does not need more parts than a set may have.
const FEWEST_OBJECTS: u32 = 10;

/// How much two times may differ that are the same limit.
const SAME: Duration = Duration::from_secs(2);

/// The wait of the next poll.
#[derive(Debug)]
pub(crate) struct PollWait(Mutex<Learned>);

#[derive(Debug)]
struct Learned {
    wait: Duration,
    /// After how long the latest poll was cut that no longer one has disproved.
    cut_after: Option<Duration>,
    objects: u32,
}

impl PollWait {
    pub(crate) fn new(wait: Duration) -> Self {
        Self(Mutex::new(Learned {
            wait,
            cut_after: None,
            objects: MOST_OBJECTS,
        }))
    }

    /// How many object updates a part of a set may have.
    pub(crate) fn objects(&self) -> u32 {
        self.0.lock().objects
    }

    /// Learns that a part was too large.
    pub(super) fn was_too_large(&self) {
        let mut learned = self.0.lock();
        learned.objects = (learned.objects / 2).max(FEWEST_OBJECTS);
        tracing::info!(
            "a part of vCenter's updates is too large; the next ones have at most {} objects",
            learned.objects
        );
    }

    pub(crate) fn get(&self) -> Duration {
        self.0.lock().wait
    }

    /// Learns from a poll that ended after `took`, without an answer if `is_cut`. A restart of vCenter cuts one poll, but not two in a
    /// row after the same time.
    pub(super) fn ended(&self, took: Duration, is_cut: bool) {
        let mut learned = self.0.lock();
        let before = learned.cut_after;
        if !is_cut {
            learned.cut_after = before.filter(|cut| took <= *cut + SAME);
            return;
        }
        learned.cut_after = Some(took);
        let shorter = (took.min(learned.wait) / 2).max(SHORTEST);
        if before.is_some_and(|cut| cut.abs_diff(took) <= SAME) && took > SHORTEST && shorter < learned.wait {
            tracing::info!(
                "polls for updates of vCenter are cut after {} s, by a proxy or firewall; they ask for {} s from now on",
                took.as_secs(),
                shorter.as_secs()
            );
            learned.wait = shorter;
            learned.cut_after = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The wait after polls that ended so: after how many seconds, and whether without an answer.
    fn wait_after(ends: &[(u64, bool)]) -> u64 {
        let wait = PollWait::new(Duration::from_secs(120));
        for (seconds, is_cut) in ends {
            wait.ended(Duration::from_secs(*seconds), *is_cut);
        }
        wait.get().as_secs()
    }

    #[test]
    fn wait_becomes_shorter_than_the_time_after_which_polls_are_cut() {
        for (ends, wait) in [
            // A proxy that closes idle requests after a minute. Changes come between.
            (&[(60, true), (60, true)][..], 30),
            (&[(60, true), (3, false), (61, true)], 30),
            // A firewall that drops them silently: the poll ends by its own deadline.
            (&[(150, true), (150, true)], 60),
            (&[(150, true), (150, true), (90, true), (90, true)], 30),
            // vCenter restarts.
            (&[(60, true)], 120),
            (&[(60, true), (20, true), (100, true)], 120),
            // A poll that lasted longer.
            (&[(60, true), (120, false), (60, true)], 120),
            // Nothing is learned from connections that fail at once.
            (&[(0, true), (0, true), (1, true)], 120),
            (&[(12, true), (12, true), (11, true), (11, true)], 10),
        ] {
            assert_eq!(wait_after(ends), wait, "{ends:?}");
        }
    }
}
