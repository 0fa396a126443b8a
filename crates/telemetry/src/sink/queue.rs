//! Which value of which key is due, and when.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::{Delivery, Keep, Pace, SinkKey, SinkValue, Urgency};
use haulout_core::maintenance::clock::doubled;

/// How long keys of one group are left out after one was refused. A person who then grants the privilege needs no restart.
pub(super) const LEFT_OUT_FOR: Duration = Duration::from_secs(60 * 60);

#[derive(Debug)]
pub(super) struct SinkQueue<Key, Value> {
    pace: Pace,
    keys: BTreeMap<Key, OfKey<Value>>,
    refused_until: BTreeMap<&'static str, Instant>,
    /// The key of the last value that was dropped because too many waited, and how many there were since they were counted last.
    dropped: Option<(Key, u64)>,
}

/// A value that is being delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Due<Key, Value> {
    pub(super) key: Key,
    pub(super) value: Value,
    urgency: Urgency,
    /// How many attempts failed.
    tries: u32,
}

#[derive(Debug)]
struct OfKey<Value> {
    /// Those that are [`Urgency::Final`], and then at most one other.
    waiting: VecDeque<Waiting<Value>>,
    /// The state that is there; `None` if it is not known.
    delivered: Option<Value>,
    /// When the next attempt may be made.
    due: Instant,
    /// When the last one was made.
    attempted_at: Option<Instant>,
    /// The pause after the next delivery.
    pause: Duration,
    is_putting: bool,
}

#[derive(Debug)]
struct Waiting<Value> {
    value: Value,
    urgency: Urgency,
    tries: u32,
}

impl<Key: SinkKey, Value: SinkValue> SinkQueue<Key, Value> {
    pub(super) fn new(pace: Pace) -> Self {
        Self {
            pace,
            keys: BTreeMap::new(),
            refused_until: BTreeMap::new(),
            dropped: None,
        }
    }

    pub(super) fn pace(&self) -> Pace {
        self.pace
    }

    pub(super) fn knows(&self, key: &Key) -> bool {
        self.keys.contains_key(key)
    }

    pub(super) fn push(&mut self, key: Key, value: Value, urgency: Urgency, now: Instant) {
        let pace = self.pace;
        self.keys.retain(|_, of_key| !of_key.may_be_forgotten(now));
        let of_key = self.keys.entry(key.clone()).or_insert_with(|| OfKey {
            waiting: VecDeque::new(),
            delivered: None,
            due: now,
            attempted_at: None,
            pause: pace.pause_min,
            is_putting: false,
        });
        if urgency != Urgency::Progress {
            of_key.pause = pace.pause_min;
            let soonest = of_key.attempted_at.map_or(now, |at| at + pace.pause_min);
            of_key.due = of_key.due.min(soonest);
        }
        of_key
            .waiting
            .pop_back_if(|waiting| waiting.urgency != Urgency::Final);
        of_key.waiting.push_back(Waiting {
            value,
            urgency,
            tries: 0,
        });
        of_key.drop_delivered();
        let finals = of_key.waiting.iter().filter(|it| it.urgency == Urgency::Final);
        if let Keep::Each { max_final, .. } = pace.keep
            && finals.count() > max_final
        {
            of_key.waiting.pop_front();
            let before = self.dropped.take().map_or(0, |(_, count)| count);
            self.dropped = Some((key, before + 1));
        }
    }

    /// Takes the value that is due for the longest time. [`Self::delivered`] must follow.
    pub(super) fn take(&mut self, now: Instant) -> Option<Due<Key, Value>> {
        if matches!(self.pace.keep, Keep::Each { .. }) {
            self.drop_refused(now);
        }
        let ready = self.ready().filter(|(_, due)| *due <= now);
        let key = ready.min_by_key(|(_, due)| *due)?.0.clone();
        let of_key = self.keys.get_mut(&key)?;
        let Waiting {
            value,
            urgency,
            tries,
        } = of_key.waiting.pop_front()?;
        of_key.is_putting = true;
        Some(Due {
            key,
            value,
            urgency,
            tries,
        })
    }

    /// When [`Self::take`] returns the next one.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.ready().map(|(_, due)| due).min()
    }

    /// Processes the result of an attempt. Returns whether the value is lost.
    pub(super) fn delivered(&mut self, due: Due<Key, Value>, delivery: &Delivery, now: Instant) -> bool {
        let Pace {
            pause_min,
            pause_max,
            keep,
            ..
        } = self.pace;
        if let Delivery::Refused(_) = delivery {
            self.refused_until.insert(due.key.group(), now + LEFT_OUT_FOR);
        }
        let Some(of_key) = self.keys.get_mut(&due.key) else {
            return false;
        };
        of_key.is_putting = false;
        of_key.attempted_at = Some(now);
        let is_kept = match (delivery, keep) {
            (Delivery::Done, _) => {
                of_key.due = now + of_key.pause;
                if due.urgency == Urgency::Progress {
                    of_key.pause = (of_key.pause * 2).min(pause_max);
                }
                if keep == Keep::Newest {
                    of_key.delivered = Some(due.value);
                    of_key.drop_delivered();
                }
                return false;
            }
            (Delivery::Refused(_) | Delivery::Rejected(_), Keep::Each { .. }) => false,
            (Delivery::Later(_), Keep::Each { tries, .. }) => due.tries + 1 < tries,
            (Delivery::Refused(_) | Delivery::Rejected(_) | Delivery::Later(_), Keep::Newest) => true,
        };
        // The attempt may have had an effect.
        of_key.delivered = None;
        of_key.due = now + doubled(pause_min, due.tries, pause_max);
        let is_newest = of_key.waiting.is_empty();
        if is_kept && (is_newest || due.urgency == Urgency::Final) {
            of_key.waiting.push_front(Waiting {
                value: due.value,
                urgency: due.urgency,
                tries: due.tries.saturating_add(1),
            });
        }
        !is_kept && !matches!(delivery, Delivery::Refused(_))
    }

    /// How many values were dropped since the last call, and the key of the last one.
    pub(super) fn take_dropped(&mut self) -> Option<(Key, u64)> {
        self.dropped.take()
    }

    /// The keys with a value to be delivered, and when.
    fn ready(&self) -> impl Iterator<Item = (&Key, Instant)> {
        let waiting = self.keys.iter().filter(|(_, of_key)| of_key.is_ready());
        waiting.map(|(key, of_key)| {
            let refused = self.refused_until.get(key.group()).copied();
            (key, refused.map_or(of_key.due, |until| until.max(of_key.due)))
        })
    }

    /// Drops events of groups that are refused: later they would be old.
    fn drop_refused(&mut self, now: Instant) {
        self.refused_until.retain(|_, until| now < *until);
        for (key, of_key) in &mut self.keys {
            if self.refused_until.contains_key(key.group()) {
                of_key.waiting.clear();
            }
        }
    }
}

impl<Value: SinkValue> OfKey<Value> {
    fn is_ready(&self) -> bool {
        !self.is_putting && !self.waiting.is_empty()
    }

    /// Drops a state that is there already.
    fn drop_delivered(&mut self) {
        if !self.is_putting {
            let Self {
                waiting, delivered, ..
            } = self;
            waiting.pop_back_if(|waiting| delivered.as_ref() == Some(&waiting.value));
        }
    }

    fn may_be_forgotten(&self, now: Instant) -> bool {
        let has_value = self.delivered.as_ref().is_some_and(|it| *it != Value::default());
        !self.is_putting && self.waiting.is_empty() && now >= self.due && !has_value
    }
}
