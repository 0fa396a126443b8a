//! Objects whose writes are refused: when each is retried, and what is logged.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::api::WriteError;

/// The first wait after a refusal, which doubles with each further one.
const WAIT_MIN: Duration = Duration::from_secs(1);

/// The longest wait: 12 requests per hour for an object that is always refused.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// The longest wait if there was no reply, so that copies are not late after an outage of the kube-apiserver.
const UNANSWERED_WAIT_MAX: Duration = Duration::from_secs(10);

/// How long after its wait an object is remembered that was not retried, because no write is due any more.
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// The maximum number of remembered objects. Those that are forgotten are retried sooner.
const MAX: usize = 1_000;

/// The objects whose latest write was refused or not answered.
#[derive(Debug, Default)]
pub(super) struct RefusedWrites {
    by_name: BTreeMap<String, RefusedWrite>,
    /// Writes are not answered, which is logged once for all objects.
    is_outage: bool,
}

#[derive(Debug)]
struct RefusedWrite {
    wait: Duration,
    until: Instant,
    /// The refusal was logged.
    is_logged: bool,
}

impl RefusedWrites {
    /// Whether `name` must not be tried at `now`.
    pub(super) fn is_held(&self, name: &str, now: Instant) -> bool {
        self.by_name.get(name).is_some_and(|entry| now < entry.until)
    }

    /// When the next object may be retried; far in the future if there is none.
    pub(super) fn next(&self) -> Instant {
        let now = Instant::now();
        let waits = self.by_name.values().map(|entry| entry.until);
        waits
            .filter(|until| *until > now)
            .min()
            .unwrap_or(now + FORGET_AFTER)
    }

    /// Processes a write that was refused at `now`, or was not answered.
    pub(super) fn add(&mut self, name: String, error: &WriteError, is_answered: bool, now: Instant) {
        self.by_name.retain(|_, entry| now < entry.until + FORGET_AFTER);
        if !self.by_name.contains_key(&name)
            && self.by_name.len() >= MAX
            && let Some(soonest) = self.soonest()
        {
            self.by_name.remove(&soonest);
        }
        let longest = if is_answered {
            WAIT_MAX
        } else {
            UNANSWERED_WAIT_MAX
        };
        let entry = self.by_name.entry(name).or_insert(RefusedWrite {
            wait: Duration::ZERO,
            until: now,
            is_logged: false,
        });
        entry.wait = (entry.wait * 2).clamp(WAIT_MIN, longest);
        entry.until = now + entry.wait;
        if is_answered {
            if !std::mem::replace(&mut entry.is_logged, true) {
                warn!(
                    "{error} after growing waits of at most {} s; other objects are written meanwhile, and the record on its \
                     Node is not affected",
                    longest.as_secs()
                );
            }
        } else if !std::mem::replace(&mut self.is_outage, true) {
            warn!("{error}, and so are others; the records on the Nodes are not affected");
        }
    }

    /// Processes a successful write.
    pub(super) fn written(&mut self, name: &str) {
        if std::mem::take(&mut self.is_outage) {
            info!("writes of NodeMaintenance objects are answered again");
        }
        if self.by_name.remove(name).is_some_and(|entry| entry.is_logged) {
            info!("NodeMaintenance {name} is written again");
        }
    }

    fn soonest(&self) -> Option<String> {
        let soonest = self.by_name.iter().min_by_key(|(_, entry)| entry.until);
        soonest.map(|(name, _)| name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str) -> WriteError {
        WriteError::Refused {
            name: name.to_owned(),
            message: "no".to_owned(),
        }
    }

    /// The waits after so many refusals in a row, in seconds.
    fn waits(refusals: usize, is_answered: bool) -> Vec<u64> {
        let mut refused = RefusedWrites::default();
        let mut now = Instant::now();
        let mut wait = |now: &mut Instant| {
            refused.add("a".to_owned(), &refusal("a"), is_answered, *now);
            let until = refused.by_name["a"].until;
            let wait = until - *now;
            assert!(refused.is_held("a", *now) && !refused.is_held("a", until));
            *now = until;
            wait.as_secs()
        };
        (0..refusals).map(|_| wait(&mut now)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn waits_double_up_to_5_minutes_and_without_reply_up_to_10_seconds() {
        assert_eq!(waits(11, true), [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(waits(6, false), [1, 2, 4, 8, 10, 10]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_is_carried_out_ends_the_waits() {
        let mut refused = RefusedWrites::default();
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
    async fn each_refusal_and_each_outage_is_logged_once() {
        let mut refused = RefusedWrites::default();
        let now = Instant::now();
        let is_logged = |refused: &RefusedWrites| refused.by_name["a"].is_logged;
        refused.add("a".to_owned(), &refusal("a"), false, now);
        refused.add("b".to_owned(), &refusal("b"), false, now);
        assert_eq!((refused.is_outage, is_logged(&refused)), (true, false));
        refused.add("a".to_owned(), &refusal("a"), true, now);
        assert_eq!((refused.is_outage, is_logged(&refused)), (true, true));
        refused.written("b");
        assert_eq!((refused.is_outage, is_logged(&refused)), (false, true));
    }

    #[tokio::test(start_paused = true)]
    async fn refused_writes_are_limited_in_number_and_time() {
        let mut refused = RefusedWrites::default();
        let begin = Instant::now();
        for number in 0..MAX + 5 {
            let name = number.to_string();
            let at = begin + Duration::from_millis(u64::try_from(number).unwrap());
            refused.add(name.clone(), &refusal(&name), true, at);
        }
        assert_eq!(refused.by_name.len(), MAX);
        assert!(!refused.by_name.contains_key("4") && refused.by_name.contains_key("5"));
        refused.add(
            "late".to_owned(),
            &refusal("late"),
            true,
            begin + FORGET_AFTER * 2,
        );
        assert_eq!(refused.by_name.len(), 1, "of the others nothing is due any more");
    }
}
