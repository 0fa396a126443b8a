//! Traces: one per episode, its spans told as they end, from the times that stand on the Node.
//!
//! Spans are not opened and closed: an open one would die with the process, while an episode outlives many. They are
//! written whole when a record changes, and handed to the exporter. The SDK's tracers would want their ids from a
//! generator that has to be told through thread-locals, and its batch thread runs no async client; so [`export`] fills
//! the SDK's own `SpanData` and runs as a task like any other.
//!
//! # Once, over a SIGKILL
//!
//! No protocol tells a process that died in mid-export whether its last spans were stored: OTLP has no transaction and
//! cannot be asked. So there is a choice. To send at most once loses spans at the wrong moment, and with the root the
//! whole trace's shape. To send at least once may send a span again, which is harmless where *again* means *the same
//! bytes*: Jaeger shows one of identical spans (its query service drops equal hashes, its Cassandra schema has the hash
//! in the key), Tempo keeps one of each id. Haulout sends at least once, and takes care that it is the same bytes:
//!
//! 1. What ends with a change of record is written into the record by that very PATCH ([`crate::maintenance::trail`]),
//!    with everything its spans are made of. Spans are a pure function of what stands there ([`spans`]), ids included.
//! 2. They are sent when the PATCH was accepted, so that nothing is told that did not happen.
//! 3. What a collector has acknowledged is left out of the record by the next PATCH, so that marking costs none of its own.
//! 4. A process that finds debts of another one pays them after its first own change of that record: then it is the one
//!    that acts, and nobody else pays them as well. The debts of an ended episode, the root among them, stay on the Node
//!    as `last-episode`, and a process pays them that starts within [`RECENT`] of the end.
//!
//! What is left: between the last acknowledged export and the next PATCH a kill makes the next process send that one part
//! again. A store that keeps identical spans apart shows it twice, and so does Jaeger if a span's bytes differ, which
//! takes another version of Haulout or other resource attributes. Lost are: the spans of single pods that were not sent
//! yet (`pods`), the second halves of phases whose middle only the dead process saw (the phase is told whole), a root
//! where nobody starts within [`RECENT`] of the end (another replica that runs already does not look), and what a collector refuses or is too slow to take, which is counted.

pub mod catalogue;
pub mod export;
mod pods;
pub mod receipts;
pub mod spans;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;

use crate::actor::tell::{Tell, Told};
use crate::ids::NodeName;
use crate::maintenance::decide::Transition;
use crate::maintenance::effect::EffectKind;
use crate::maintenance::episode::{Episode, Phase, Record};
use crate::maintenance::finding::{Finding, Found};
use crate::maintenance::record;
use crate::maintenance::trail::{Last, Owed};
use pods::Drain;
use receipts::Receipts;
use spans::Span;

/// How many spans may wait for the exporter. An episode has about a dozen, and three for each of its pods up to
/// 200, so this is some hundred episodes that go on while a collector hangs, and about a megabyte.
pub const QUEUE: usize = 2048;

/// How old the end of an episode may be for its last spans to be sent by a process that starts: a Pod is back within
/// minutes, and after that each further start would only send the same again.
pub const RECENT: SignedDuration = SignedDuration::from_mins(10);

/// Turns what actors tell into spans, and hands them on without ever waiting.
#[derive(Debug)]
pub struct Traces {
    queue: mpsc::Sender<Span>,
    lost: Counter,
    receipts: Receipts,
    /// vCenter's name or address.
    vcenter: String,
    process_began: Timestamp,
    drains: Mutex<BTreeMap<NodeName, Drain>>,
    /// The nodes whose last episode has been looked at. What comes to stand there later was not left by a process before
    /// this one.
    looked_at: Mutex<BTreeSet<NodeName>>,
}

impl Traces {
    /// A listener whose spans go into `queue`, and whose collector's acknowledgements come as `receipts`. Spans that find
    /// the queue full are counted in `lost`. Those of calls to vCenter say that they went to `vcenter`.
    pub fn new(
        queue: mpsc::Sender<Span>,
        lost: Counter,
        receipts: Receipts,
        vcenter: String,
        process_began: Timestamp,
    ) -> Self {
        Self {
            queue,
            lost,
            receipts,
            vcenter,
            process_began,
            drains: Mutex::default(),
            looked_at: Mutex::default(),
        }
    }

    /// Takes what an effect found.
    pub fn found(&self, finding: &Finding) {
        if let Found::Evictions(round) = &finding.found {
            let mut drains = self.drains.lock().unwrap_or_else(PoisonError::into_inner);
            let spans = drains
                .get_mut(&finding.node)
                .map(|drain| drain.take(&finding.node, round))
                .unwrap_or_default();
            drop(drains);
            self.send(spans);
        }
    }

    /// Takes what stands on `node` of the episode that ended last. Where a process before this one left it and it ended a
    /// moment ago, that process may have died before it was told.
    pub fn left_behind(&self, node: &NodeName, last_episode: &str) {
        let mut looked_at = self.looked_at.lock().unwrap_or_else(PoisonError::into_inner);
        if !looked_at.insert(node.clone()) {
            return;
        }
        drop(looked_at);
        let Some(last) = record::read_last(last_episode) else {
            return;
        };
        if last.episode.trail.owed.is_empty() {
            return;
        }
        let before = self.process_began.duration_since(last.at);
        if before.is_negative() || before > RECENT {
            return;
        }
        self.pay(node, &last.episode, &last.episode.trail.owed);
        self.end(node, &last);
    }

    fn recorded(&self, node: &NodeName, closed: &Record, transition: &Transition, at: Timestamp) {
        self.end_of_drain(node, closed, transition, at);
        if let Some(last) = Last::of(closed, transition, at) {
            self.pay(node, &last.episode, &last.episode.trail.owed);
            self.end(node, &last);
        }
        if let Some(episode) = transition.record.episode() {
            self.pay(node, episode, &episode.trail.owed);
        }
    }

    fn pay(&self, node: &NodeName, episode: &Episode, owed: &[Owed]) {
        for part in owed {
            self.send_once(spans::told(node, episode, part));
        }
    }

    fn end(&self, node: &NodeName, last: &Last) {
        self.send_once(spans::ended(node, last));
    }

    /// Sends the spans of a part, unless this process did before.
    fn send_once(&self, mut spans: Vec<Span>) {
        for call in spans.iter_mut().filter(|span| span.is_call_to(spans::VCENTER)) {
            call.attributes.push(spans::text("server.address", &self.vcenter));
        }
        if spans.last().is_some_and(|last| self.receipts.is_first(last.id)) {
            self.send(spans);
        }
    }

    fn send(&self, spans: Vec<Span>) {
        for span in spans {
            if self.queue.try_send(span).is_err() {
                self.lost.inc();
            }
        }
    }

    fn end_of_drain(&self, node: &NodeName, closed: &Record, transition: &Transition, at: Timestamp) {
        let mut drains = self.drains.lock().unwrap_or_else(PoisonError::into_inner);
        let next = transition.record.episode();
        let over = drains.remove(node).and_then(|drain| {
            if next.is_some_and(|next| drain.is_that_of(next)) {
                drains.insert(node.clone(), drain);
                return None;
            }
            let goes_on = next.filter(|next| closed.episode().is_some_and(|was| was.id == next.id));
            Some(drain.end(node, goes_on.map_or(at, |next| next.since)))
        });
        drop(drains);
        self.send(over.unwrap_or_default());
    }

    /// A round of evictions begins in `record`.
    fn drains(&self, node: &NodeName, record: &Record) {
        let Some(episode) = record.episode().filter(|it| it.phase == Phase::Draining) else {
            return;
        };
        let mut drains = self.drains.lock().unwrap_or_else(PoisonError::into_inner);
        if !drains.get(node).is_some_and(|drain| drain.is_that_of(episode)) {
            drains.insert(node.clone(), Drain::of(episode));
        }
    }
}

impl Tell for Arc<Traces> {
    fn tell(&self, node: &NodeName, told: Told<'_>) {
        match told {
            Told::Recorded {
                before,
                transition,
                wrote: (at, _),
                ..
            } => self.recorded(node, before, transition, at),
            Told::Asks { record, effect } => match effect.kind() {
                EffectKind::DrainRound => self.drains(node, record),
                EffectKind::ShutdownGuest
                | EffectKind::PowerOff
                | EffectKind::Survey
                | EffectKind::Relocate
                | EffectKind::PowerOn => {}
            },
            Told::NotRecorded { .. } | Told::Waits { .. } => {}
        }
    }

    fn owes(&self, node: &NodeName, episode: &Episode, owed: &Owed) -> bool {
        spans::told(node, episode, owed)
            .last()
            .is_some_and(|last| !self.receipts.has_arrived(last.id))
    }
}

#[cfg(test)]
mod tests;
