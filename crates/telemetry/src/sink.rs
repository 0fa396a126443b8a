//! The engine of outputs that deliver one value after the other: to objects in vCenter, or to a receiver outside. It knows which value is
//! due, when it is tried again, and when it is given up. An output is an adapter: what it pushes, and how it puts one value.
//!
//! Nothing waits for a delivery. Memory is bounded: few values of a key wait.

mod queue;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use haulout_controller::failure_log::FailureStreak;
use queue::{Due, SinkQueue, ValueFate};

/// An output.
pub trait Sink: Sync {
    type Key: SinkKey;
    type Value: SinkValue;

    /// Delivers `value`, within a deadline.
    fn put(&self, key: &Self::Key, value: &Self::Value) -> impl Future<Output = Delivery> + Send;

    /// Logs what became of a value.
    fn log(&self, key: &Self::Key, report: SinkReport<'_>);
}

/// What has values of its own, which are delivered in order: an object, or a node.
pub trait SinkKey: Clone + Debug + Ord + Send + Sync {
    /// The keys that are refused together: objects of one kind.
    fn group(&self) -> &'static str;
}

/// What is delivered. The default is no value: a key that has it is forgotten.
pub trait SinkValue: Clone + Debug + Default + PartialEq + Send + Sync {}

impl<T: Clone + Debug + Default + PartialEq + Send + Sync> SinkValue for T {}

/// The result of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It is there, or the object is gone.
    Done,
    /// It may work later.
    Later(String),
    /// This value is not taken. With [`Keep::Each`] it is lost, with [`Keep::Newest`] it is tried again.
    Rejected(String),
    /// Nothing is taken for keys of this group until a person changes something. They are left out for an hour.
    Refused(String),
}

/// What a sink logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkReport<'a> {
    /// An attempt failed, and is repeated.
    Later { why: &'a str },
    /// So many values in a row are lost, of all keys together. Not all of them are logged.
    Lost { why: &'a str, count: u64 },
    /// A value is delivered after so many were lost.
    Recovered { count: u64 },
    /// The first refusal of a group, or the first one since a delivery to it.
    Refused { why: &'a str },
}

/// How an output delivers.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Deliveries at once, of different keys, so that one without an answer holds up few others.
    pub at_once: usize,
    /// The first pause after a delivery of a key. Each further [`Urgency::Progress`] doubles it, any other value sets it back. It is also
    /// the first pause after a failed attempt, which doubles with each further attempt of the same value.
    pub pause_min: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    pub keep: Keep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// A state: the newest value is tried until it is there, and once it is there not again.
    Newest,
    /// Events: each is lost after `tries` attempts, and the oldest where more than `max_final` [`Urgency::Final`] of a key wait.
    Each { tries: u32, max_final: usize },
}

/// How a value may be delayed or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Something changed.
    Change,
    /// It is still the same with other details. These become rare.
    Progress,
    /// A newer value does not replace it. For [`Keep::Each`] only, which bounds how many wait.
    Final,
}

/// The values, which an observer pushes and [`run`] delivers.
#[derive(Debug)]
pub struct Outbox<Key, Value>(Arc<OutboxState<Key, Value>>);

#[derive(Debug)]
struct OutboxState<Key, Value> {
    queue: Mutex<SinkQueue<Key, Value>>,
    pushed: Notify,
}

impl<Key, Value> Clone for Outbox<Key, Value> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<Key: SinkKey, Value: SinkValue> Outbox<Key, Value> {
    pub fn new(pace: Pace) -> Self {
        Self(Arc::new(OutboxState {
            queue: Mutex::new(SinkQueue::new(pace)),
            pushed: Notify::new(),
        }))
    }

    /// Has `value` delivered. It replaces one that waits, unless that is [`Urgency::Final`].
    pub fn push(&self, key: Key, value: Value, urgency: Urgency) {
        self.queue(|queue| queue.push(key, value, urgency, Instant::now()));
        self.0.pushed.notify_one();
    }

    /// The same, unless the key is known.
    pub(crate) fn push_first(&self, key: Key, value: Value) {
        self.queue(|queue| {
            if !queue.knows(&key) {
                queue.push(key, value, Urgency::Change, Instant::now());
            }
        });
        self.0.pushed.notify_one();
    }

    /// What is to be delivered, as if it were at once.
    #[cfg(test)]
    pub(crate) fn deliver_all(&self) -> Vec<(Key, Value)> {
        let far = Instant::now() + Duration::from_secs(60 * 60);
        let one = || {
            self.queue(|queue| {
                let due = queue.take(far)?;
                let one = (due.key.clone(), due.value.clone());
                queue.attempt_ended(due, &Delivery::Done, Instant::now());
                Some(one)
            })
        };
        std::iter::from_fn(one).collect()
    }

    fn queue<T>(&self, act: impl FnOnce(&mut SinkQueue<Key, Value>) -> T) -> T {
        act(&mut self.0.queue.lock())
    }
}

/// Delivers what is in `outbox` until `stop`; what waits then is neither delivered nor counted. Lost values are added to `lost`; those of a group that is refused are not, because that
/// is logged.
pub async fn run<S: Sink>(
    sink: &S,
    outbox: Outbox<S::Key, S::Value>,
    lost: Counter,
    stop: CancellationToken,
) {
    let at_once = outbox.queue(|queue| queue.pace().at_once);
    let mut log = DeliveryLog::default();
    let mut putting = FuturesUnordered::new();
    loop {
        while putting.len() < at_once
            && let Some(due) = outbox.queue(|queue| queue.take(Instant::now()))
        {
            putting.push(put(sink, due));
        }
        if let Some((key, count)) = outbox.queue(SinkQueue::take_dropped) {
            lost.inc_by(count);
            log.lost(sink, &key, "too many wait", count);
        }
        let next = match putting.len() < at_once {
            true => outbox.queue(|queue| queue.next_due()),
            false => None,
        };
        // Priority: shutdown, results, new values, the time at which a value is due.
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Some((due, delivery)) = putting.next() => {
                let key = due.key.clone();
                let fate = outbox.queue(|queue| queue.attempt_ended(due, &delivery, Instant::now()));
                lost.inc_by(u64::from(fate == ValueFate::Lost));
                log.attempt_ended(sink, &key, &delivery, fate);
            }
            () = outbox.0.pushed.notified() => {}
            () = until(next) => {}
        }
    }
}

async fn put<S: Sink>(sink: &S, due: Due<S::Key, S::Value>) -> (Due<S::Key, S::Value>, Delivery) {
    let delivery = sink.put(&due.key, &due.value).await;
    (due, delivery)
}

/// Completes at `time`; without one, never.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// What is logged, and how often.
#[derive(Debug, Default)]
struct DeliveryLog {
    losses: FailureStreak,
    /// The groups that are refused.
    refused: BTreeSet<&'static str>,
}

impl DeliveryLog {
    fn attempt_ended<S: Sink>(&mut self, sink: &S, key: &S::Key, delivery: &Delivery, fate: ValueFate) {
        match delivery {
            Delivery::Done => {
                self.refused.remove(key.group());
                if let Some(count) = self.losses.ended() {
                    sink.log(key, SinkReport::Recovered { count });
                }
            }
            Delivery::Later(why) | Delivery::Rejected(why) => match fate {
                ValueFate::Lost => self.lost(sink, key, why, 1),
                ValueFate::Waits => sink.log(key, SinkReport::Later { why }),
                ValueFate::Delivered | ValueFate::Replaced | ValueFate::Refused => {}
            },
            Delivery::Refused(why) => {
                if self.refused.insert(key.group()) {
                    sink.log(key, SinkReport::Refused { why });
                }
            }
        }
    }

    fn lost<S: Sink>(&mut self, sink: &S, key: &S::Key, why: &str, values: u64) {
        for _ in 0..values {
            if let Some(count) = self.losses.failed() {
                sink.log(key, SinkReport::Lost { why, count });
            }
        }
    }
}

#[cfg(test)]
mod tests;
