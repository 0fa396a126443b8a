//! Traces: one per episode, its spans told as they end, from the times that stand on the Node.
//!
//! Spans are not opened and closed: an open one would die with the process, while an episode outlives many. They are
//! written whole when a record changes, and handed to the exporter. The SDK's tracers would want their ids from a
//! generator that has to be told through thread-locals, and its batch thread runs no async client; so [`export`] fills
//! the SDK's own `SpanData` and runs as a task like any other.

pub mod export;
pub mod spans;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use opentelemetry::trace::SpanContext;
use tokio::sync::mpsc;

use crate::actor::tell::{Tell, Told};
use crate::ids::NodeName;
use crate::maintenance::decide::Transition;
use crate::maintenance::effect::EffectKind;
use crate::maintenance::episode::Record;
use crate::maintenance::observed::PodLeftBecause;
use crate::maintenance::waiting::WaitingOn;
use spans::{Saw, Span};

/// How many spans may wait for the exporter. An episode has about a dozen, so this is a hundred episodes that go on
/// while a collector hangs, and about a megabyte.
pub const QUEUE: usize = 2048;

/// The most budgets that a span names: a drain may meet one after the other for days.
const MAX_BUDGETS: usize = 20;

/// Turns what actors tell into spans, and hands them on without ever waiting.
#[derive(Debug)]
pub struct Traces {
    queue: mpsc::Sender<Span>,
    lost: Arc<AtomicU64>,
    clock: fn() -> Timestamp,
    nodes: Mutex<BTreeMap<NodeName, InEpisode>>,
}

/// What is known of a node in an episode.
#[derive(Debug)]
struct InEpisode {
    root: Option<SpanContext>,
    phase: (&'static str, Timestamp),
    saw: Saw,
}

impl Traces {
    /// A listener whose spans go into `queue`. Those that find it full are counted in `lost`.
    pub fn new(queue: mpsc::Sender<Span>, lost: Arc<AtomicU64>, clock: fn() -> Timestamp) -> Self {
        Self {
            queue,
            lost,
            clock,
            nodes: Mutex::default(),
        }
    }

    fn recorded(
        &self,
        node: &NodeName,
        before: &Record,
        transition: &Transition,
        wrote: (Timestamp, Timestamp),
    ) {
        if transition.is_takeover(before) {
            // No phase ended, and this process has not seen this one from its start.
            return;
        }
        let spans = {
            let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            let was = nodes.remove(node);
            let saw = was.as_ref().map(|was| was.saw.clone()).unwrap_or_default();
            if let Some(mut is) = InEpisode::of(&transition.record) {
                match was {
                    // The same phase goes on, and so does what was seen of it.
                    Some(was) if was.root == is.root && was.phase == is.phase => is.saw = was.saw,
                    Some(_) | None => is.saw.from_the_start = true,
                }
                nodes.insert(node.clone(), is);
            }
            spans::ended(node, before, transition, wrote, &saw)
        };
        for span in spans {
            if self.queue.try_send(span).is_err() {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Lets `note` write down what is seen of the phase that `node` is in.
    fn note(&self, node: &NodeName, record: &Record, note: impl FnOnce(&mut Saw)) {
        let Some(met) = InEpisode::of(record) else {
            return;
        };
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever changed the record without this process having told of it has begun the phase.
        let known = nodes
            .get(node)
            .is_some_and(|known| known.root == met.root && known.phase == met.phase);
        if !known {
            nodes.insert(node.clone(), met);
        }
        if let Some(known) = nodes.get_mut(node) {
            note(&mut known.saw);
        }
    }

    fn waits(&self, node: &NodeName, record: &Record, on: &WaitingOn) {
        let now = (self.clock)();
        match on {
            WaitingOn::Slot { ahead, .. } => {
                let holder = {
                    let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
                    ahead
                        .iter()
                        .find_map(|ahead| nodes.get(ahead).and_then(|it| it.root.clone()))
                };
                self.note(node, record, |saw| saw.behind = holder.or(saw.behind.take()));
            }
            WaitingOn::Pods(left) | WaitingOn::DrainHeld(left) => self.note(node, record, |saw| {
                for pod in left {
                    match &pod.why {
                        PodLeftBecause::Budget { names, .. } => {
                            let room = MAX_BUDGETS.saturating_sub(saw.budgets.len());
                            saw.budgets.extend(names.iter().take(room).cloned());
                        }
                        PodLeftBecause::Leaving
                        | PodLeftBecause::Refused { .. }
                        | PodLeftBecause::NotReached => {}
                    }
                }
            }),
            WaitingOn::HostExit { .. } => {
                self.note(node, record, |saw| {
                    saw.host_awaited.get_or_insert(now);
                });
            }
            WaitingOn::Gpus { .. } => {
                self.note(node, record, |saw| {
                    saw.gpus_awaited.get_or_insert(now);
                });
            }
            // It was Ready for a moment only: the wait for it goes on.
            WaitingOn::NodeReady { .. } => self.note(node, record, |saw| saw.gpus_awaited = None),
            WaitingOn::Vcenter { .. }
            | WaitingOn::Kubernetes { .. }
            | WaitingOn::Takeover { .. }
            | WaitingOn::NodeObject
            | WaitingOn::VmLookup
            | WaitingOn::DrainRound
            | WaitingOn::GuestShutdown { .. }
            | WaitingOn::GuestShutdownAfterCancel { .. }
            | WaitingOn::Task(_)
            | WaitingOn::Retry { .. }
            | WaitingOn::HostVisible { .. }
            | WaitingOn::Survey
            | WaitingOn::Question(_)
            | WaitingOn::PowerState
            | WaitingOn::Parked(_) => self.note(node, record, |_| {}),
        }
    }
}

impl InEpisode {
    fn of(record: &Record) -> Option<Self> {
        let episode = record.episode()?;
        Some(Self {
            root: spans::root(episode),
            phase: (episode.phase.name(), episode.since),
            saw: Saw::default(),
        })
    }
}

impl Tell for Traces {
    fn tell(&self, node: &NodeName, told: Told<'_>) {
        match told {
            Told::Recorded {
                before,
                transition,
                wrote,
                ..
            } => self.recorded(node, before, transition, wrote),
            Told::NotRecorded { .. } => {}
            Told::Asks { record, effect } => match effect.kind() {
                EffectKind::ShutdownGuest => self.note(node, record, |saw| saw.guest_asked = true),
                EffectKind::PowerOff => {
                    let now = (self.clock)();
                    self.note(node, record, |saw| {
                        saw.power_cut.get_or_insert(now);
                    });
                }
                EffectKind::DrainRound | EffectKind::Survey | EffectKind::Relocate | EffectKind::PowerOn => {}
            },
            Told::Waits { record, on, .. } => self.waits(node, record, on),
        }
    }
}

#[cfg(test)]
mod tests;
