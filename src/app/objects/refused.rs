//! Objects whose writes are refused: when each is tried again, and what the log says of it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use crate::cluster::maintenances::WriteError;

/// The first wait after a refusal; it doubles with each. Most refusals are a conflict or a webhook that restarts.
const WAIT_MIN: Duration = Duration::from_secs(1);

/// The longest wait. A person who has cured the reason can wait that long, and an object that is refused for ever costs
/// 12 requests an hour.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// The longest wait after no answer, which says nothing about the object: a second copy must not be late by minutes
/// because the kube-apiserver was away.
const UNANSWERED_WAIT_MAX: Duration = Duration::from_secs(10);

/// How long after its wait an object is remembered that was not tried again: nothing of it is due any more.
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// How many objects are remembered. More are refused only where all are, and those that are forgotten are tried again
/// sooner.
const MAX: usize = 1_000;

/// The objects whose latest write was refused, by name.
#[derive(Debug, Default)]
pub(super) struct Refused(BTreeMap<String, Entry>);

#[derive(Debug)]
struct Entry {
    wait: Duration,
    until: Instant,
}

impl Refused {
    /// Whether `name` is not to be tried at `now`.
    pub(super) fn is_held(&self, name: &str, now: Instant) -> bool {
        self.0.get(name).is_some_and(|entry| now < entry.until)
    }

    /// When the first of them may be tried again; far away where there is none.
    pub(super) fn next(&self) -> Instant {
        let now = Instant::now();
        let waits = self.0.values().map(|entry| entry.until);
        waits
            .filter(|until| *until > now)
            .min()
            .unwrap_or(now + FORGET_AFTER)
    }

    /// Takes that a write was refused at `now`, or, where it is not `is_answered`, that nothing is known of it.
    pub(super) fn add(&mut self, name: String, error: &WriteError, is_answered: bool, now: Instant) {
        self.0.retain(|_, entry| now < entry.until + FORGET_AFTER);
        let longest = if is_answered {
            WAIT_MAX
        } else {
            UNANSWERED_WAIT_MAX
        };
        if let Some(entry) = self.0.get_mut(&name) {
            entry.wait = (entry.wait * 2).min(longest);
            entry.until = now + entry.wait;
            return;
        }
        warn!(
            "{error}, after 1 s and then less and less often, every {} s at the least; others are written meanwhile, and \
             the record on each Node stands",
            longest.as_secs()
        );
        if self.0.len() >= MAX
            && let Some(soonest) = self.soonest()
        {
            self.0.remove(&soonest);
        }
        let until = now + WAIT_MIN;
        self.0.insert(
            name,
            Entry {
                wait: WAIT_MIN,
                until,
            },
        );
    }

    /// Takes that a write was carried out.
    pub(super) fn written(&mut self, name: &str) {
        if self.0.remove(name).is_some() {
            info!("NodeMaintenance {name} is written again");
        }
    }

    fn soonest(&self) -> Option<String> {
        let soonest = self.0.iter().min_by_key(|(_, entry)| entry.until);
        soonest.map(|(name, _)| name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str) -> WriteError {
        WriteError::Refused {
            name: name.to_owned(),
            said: "no".to_owned(),
        }
    }

    /// The waits after so many refusals in a row, in seconds.
    fn waits(refusals: usize, is_answered: bool) -> Vec<u64> {
        let mut refused = Refused::default();
        let mut now = Instant::now();
        let mut wait = |now: &mut Instant| {
            refused.add("a".to_owned(), &refusal("a"), is_answered, *now);
            let until = refused.0["a"].until;
            let wait = until - *now;
            assert!(refused.is_held("a", *now) && !refused.is_held("a", until));
            *now = until;
            wait.as_secs()
        };
        (0..refusals).map(|_| wait(&mut now)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn waits_double_up_to_five_minutes_and_without_an_answer_up_to_ten_seconds() {
        assert_eq!(waits(11, true), [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(waits(6, false), [1, 2, 4, 8, 10, 10]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_is_carried_out_ends_the_waits() {
        let mut refused = Refused::default();
        let now = Instant::now();
        refused.add("a".to_owned(), &refusal("a"), true, now);
        refused.add("a".to_owned(), &refusal("a"), true, now);
        assert_eq!(refused.next(), now + WAIT_MIN * 2);
        refused.written("a");
        assert!(!refused.is_held("a", now));
        refused.add("a".to_owned(), &refusal("a"), true, now);
        assert_eq!(refused.next(), now + WAIT_MIN);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_is_bounded_in_number_and_time() {
        let mut refused = Refused::default();
        let begin = Instant::now();
        for number in 0..MAX + 5 {
            let name = number.to_string();
            let at = begin + Duration::from_millis(u64::try_from(number).unwrap());
            refused.add(name.clone(), &refusal(&name), true, at);
        }
        assert_eq!(refused.0.len(), MAX);
        assert!(!refused.0.contains_key("4") && refused.0.contains_key("5"));
        refused.add(
            "late".to_owned(),
            &refusal("late"),
            true,
            begin + FORGET_AFTER * 2,
        );
        assert_eq!(refused.0.len(), 1, "of the others nothing is due any more");
    }
}
