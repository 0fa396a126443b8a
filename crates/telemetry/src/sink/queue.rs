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
    keys: BTreeMap<Key, KeyState<Value>>,
    refused_until: BTreeMap<&'static str, Instant>,
    /// The key of the last value that was dropped because too many waited, and how many there were since they were counted last.
    dropped: Option<(Key, u64)>,
}

/// How many values may wait that no newer one replaces. A state has none: its newest value is all that is kept.
fn max_final(keep: Keep) -> usize {
    match keep {
        Keep::Newest => usize::MAX,
        Keep::Each { max_final, .. } => max_final,
    }
}

/// What became of a value after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueFate {
    Delivered,
    /// It is tried again.
    Waits,
    /// A newer one took its place.
    Replaced,
    Lost,
    /// Its group is left out for a while.
    Refused,
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
struct KeyState<Value> {
    /// Those that are [`Urgency::Final`], and then at most one other. A value that is being delivered is not among them, and comes first.
    waiting: VecDeque<Waiting<Value>>,
    /// The value that is known to be there.
    known_there: Option<Value>,
    /// When the next attempt may be made.
    due: Instant,
    /// When the last one ended.
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
        self.keys
            .retain(|_, state| !state.may_be_forgotten(now, pace.pause_max));
        let state = self.keys.entry(key.clone()).or_insert_with(|| KeyState {
            waiting: VecDeque::new(),
            known_there: None,
            due: now,
            attempted_at: None,
            pause: pace.pause_min,
            is_putting: false,
        });
        if urgency != Urgency::Progress {
            state.pause = pace.pause_min;
            let soonest = state.attempted_at.map_or(now, |at| at + pace.pause_min);
            state.due = state.due.min(soonest);
        }
        state
            .waiting
            .pop_back_if(|waiting| waiting.urgency != Urgency::Final);
        state.waiting.push_back(Waiting {
            value,
            urgency,
            tries: 0,
        });
        state.drop_known();
        if state.finals() > max_final(pace.keep) {
            state.waiting.pop_front();
            let before = self.dropped.take().map_or(0, |(_, count)| count);
            self.dropped = Some((key, before + 1));
        }
    }

    /// Takes the value that has been due the longest. [`Self::attempt_ended`] must follow.
    pub(super) fn take(&mut self, now: Instant) -> Option<Due<Key, Value>> {
        if matches!(self.pace.keep, Keep::Each { .. }) {
            self.drop_refused(now);
        }
        let ready = self.ready().filter(|(_, due)| *due <= now);
        let key = ready.min_by_key(|(_, due)| *due)?.0.clone();
        let state = self.keys.get_mut(&key)?;
        let Waiting {
            value,
            urgency,
            tries,
        } = state.waiting.pop_front()?;
        state.is_putting = true;
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

    /// Decides what becomes of a value after an attempt.
    pub(super) fn attempt_ended(
        &mut self,
        due: Due<Key, Value>,
        delivery: &Delivery,
        now: Instant,
    ) -> ValueFate {
        let Pace {
            pause_min,
            pause_max,
            keep,
            ..
        } = self.pace;
        if let Delivery::Refused(_) = delivery {
            self.refused_until.insert(due.key.group(), now + LEFT_OUT_FOR);
        }
        let Some(state) = self.keys.get_mut(&due.key) else {
            return ValueFate::Delivered;
        };
        state.is_putting = false;
        state.attempted_at = Some(now);
        let is_kept = match (delivery, keep) {
            (Delivery::Done, _) => {
                state.due = now + state.pause;
                if due.urgency == Urgency::Progress {
                    state.pause = (state.pause * 2).min(pause_max);
                }
                if keep == Keep::Newest {
                    state.known_there = Some(due.value);
                    state.drop_known();
                }
                return ValueFate::Delivered;
            }
            (Delivery::Refused(_) | Delivery::Rejected(_), Keep::Each { .. }) => false,
            (Delivery::Later(_), Keep::Each { tries, .. }) => due.tries + 1 < tries,
            (Delivery::Refused(_) | Delivery::Rejected(_) | Delivery::Later(_), Keep::Newest) => true,
        };
        // The attempt may have had an effect.
        state.known_there = None;
        state.due = now + doubled(pause_min, due.tries, pause_max);
        let is_final = due.urgency == Urgency::Final;
        let is_replaced = !state.waiting.is_empty() && !is_final;
        if !is_kept || is_final && state.finals() >= max_final(keep) {
            return match delivery {
                Delivery::Refused(_) => ValueFate::Refused,
                Delivery::Done | Delivery::Later(_) | Delivery::Rejected(_) => ValueFate::Lost,
            };
        }
        if is_replaced {
            return ValueFate::Replaced;
        }
        state.waiting.push_front(Waiting {
            value: due.value,
            urgency: due.urgency,
            tries: due.tries.saturating_add(1),
        });
        ValueFate::Waits
    }

    /// How many values were dropped since the last call, and the key of the last one.
    pub(super) fn take_dropped(&mut self) -> Option<(Key, u64)> {
        self.dropped.take()
    }

    /// The keys with a value to be delivered, and when.
    fn ready(&self) -> impl Iterator<Item = (&Key, Instant)> {
        let waiting = self.keys.iter().filter(|(_, state)| state.is_ready());
        waiting.map(|(key, state)| {
            let refused = self.refused_until.get(key.group()).copied();
            (key, refused.map_or(state.due, |until| until.max(state.due)))
        })
    }

    /// Drops events of groups that are refused: later they would be old.
    fn drop_refused(&mut self, now: Instant) {
        self.refused_until.retain(|_, until| now < *until);
        for (key, state) in &mut self.keys {
            if self.refused_until.contains_key(key.group()) {
                state.waiting.clear();
            }
        }
    }
}

impl<Value: SinkValue> KeyState<Value> {
    /// How many values wait that no newer one replaces.
    fn finals(&self) -> usize {
        let finals = self.waiting.iter().filter(|it| it.urgency == Urgency::Final);
        finals.count()
    }

    fn is_ready(&self) -> bool {
        !self.is_putting && !self.waiting.is_empty()
    }

    /// Drops a state that is there already.
    fn drop_known(&mut self) {
        if !self.is_putting {
            let Self {
                waiting, known_there, ..
            } = self;
            waiting.pop_back_if(|waiting| known_there.as_ref() == Some(&waiting.value));
        }
    }

    /// After a long silence, so that values which come slowly become rare too.
    fn may_be_forgotten(&self, now: Instant, silence: Duration) -> bool {
        let has_value = self
            .known_there
            .as_ref()
            .is_some_and(|it| *it != Value::default());
        !self.is_putting && self.waiting.is_empty() && now >= self.due + silence && !has_value
    }
}
