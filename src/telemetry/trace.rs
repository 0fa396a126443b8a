//! Traces: one per episode, its spans built from the times and the finished phases in the record.
//!
//! Spans are not opened and closed: an open one would die with the process, while an episode outlives many. They are built when
//! they are over and handed to the exporter. The SDK's tracers would want their ids from a generator that is told through
//! thread-locals, and its batch thread runs no async client; so [`export`] fills the SDK's own `SpanData` and runs as a task like
//! any other.
//!
//! # Restarts
//!
//! A phase's spans are sent when its end is written, the root when the end of the episode is. A process that meets an episode for
//! the first time sends the spans of all phases that are finished in its record, because it cannot know which of them its
//! predecessor sent. Trace id and span ids are digests of the episode, so a span that is sent again is the same span: Jaeger
//! drops identical ones when it is asked, Tempo keeps one of each id.
//!
//! Lost are: what a collector refuses or is too slow to take, which is counted; the spans of single pods and of the cordon that
//! were not sent when a process died; and the last phase and the root of an episode whose process died right after it had written
//! the end.

pub mod catalogue;
pub mod export;
mod pods;
pub mod spans;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;

use crate::ids::{EpisodeId, NodeName};
use crate::maintenance::decide::Transition;
use crate::maintenance::effect::EffectKind;
use crate::maintenance::effect_report::{EffectReport, EffectResult};
use crate::maintenance::episode::{Episode, FinishedPhase, Phase, Record};
use crate::maintenance::waiting::WaitingOn;
use crate::status::observer::{NodeEvent, Observer};
use pods::TracedDrain;
use spans::attributes::{VCENTER, is_call_to, text};
use spans::{EpisodeSpans, Span, SpanEnd};

/// How many spans may wait for the exporter. An episode has about a dozen, and three for each of its pods up to
/// 200, so this is some hundred episodes that go on while a collector hangs, and about a megabyte.
pub const QUEUE: usize = 2048;

/// Turns what actors report into spans, and hands them on without ever waiting.
#[derive(Debug)]
pub struct Traces {
    queue: mpsc::Sender<Span>,
    lost: Counter,
    /// vCenter's name or address.
    vcenter: String,
    open: Mutex<BTreeMap<NodeName, OpenEpisode>>,
}

/// What this process has sent of a node's open episode.
#[derive(Debug, Default)]
struct OpenEpisode {
    episode: Option<EpisodeId>,
    /// The finished phase that was sent last.
    sent: Option<Stay>,
    drain: Option<TracedDrain>,
}

/// One stay in a phase: its name and when it began.
type Stay = (&'static str, Timestamp);

impl Traces {
    /// A listener whose spans go into `queue`. Spans that find it full are counted in `lost`. Those of calls to vCenter say
    /// that they went to `vcenter`.
    pub fn new(queue: mpsc::Sender<Span>, lost: Counter, vcenter: String) -> Self {
        Self {
            queue,
            lost,
            vcenter,
            open: Mutex::default(),
        }
    }

    /// Takes what an effect found.
    pub fn found(&self, finding: &EffectReport) {
        if let EffectResult::Evictions(round) = &finding.found {
            let drain = |open: &mut OpenEpisode| Some(open.drain.as_mut()?.take(&finding.node, round));
            let spans = self.open().get_mut(&finding.node).and_then(drain);
            self.send(spans.unwrap_or_default());
        }
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<NodeName, OpenEpisode>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what is over of the episode and was not sent: all of it, where this process meets the episode for the first time.
    fn catch_up(&self, node: &NodeName, episode: &Episode, builder: &EpisodeSpans<'_>) {
        let mut spans = Vec::new();
        let mut all = self.open();
        let open = all.entry(node.clone()).or_default();
        if open.episode.as_ref() != Some(&episode.id) {
            spans.extend(builder.begun());
            *open = OpenEpisode {
                episode: Some(episode.id.clone()),
                ..OpenEpisode::default()
            };
        }
        let finished = &episode.history.finished;
        let sent = finished.iter().rposition(|it| open.sent == Some(stay(it)));
        let missing = finished.iter().skip(sent.map_or(0, |at| at + 1));
        spans.extend(missing.flat_map(|it| builder.finished(it)));
        open.sent = finished.last().map(stay).or(open.sent);
        drop(all);
        self.send(spans);
    }

    fn recorded(
        &self,
        node: &NodeName,
        before: &Record,
        transition: &Transition,
        wrote: (Timestamp, Timestamp),
    ) {
        let next = transition.record.episode();
        if let Some(was) = before.episode()
            && let Some(builder) = EpisodeSpans::of(node, was)
        {
            let goes_on = next.filter(|next| next.id == was.id);
            self.end_drain(node, next, goes_on.map_or(wrote.0, |next| next.since));
            self.catch_up(node, was, &builder);
            if goes_on.is_none() {
                self.send(builder.ended(SpanEnd {
                    ended: transition.ended,
                    uncordoned: transition.unschedulable == Some(false),
                    wrote,
                }));
                self.open().remove(node);
            }
        }
        if let Some(next) = next
            && let Some(builder) = EpisodeSpans::of(node, next)
        {
            self.catch_up(node, next, &builder);
            if transition.unschedulable == Some(true) {
                self.send(vec![builder.cordoned(wrote)]);
            }
        }
    }

    /// Sends the pods of a drain that is over at `end`, unless `next` is still in it.
    fn end_drain(&self, node: &NodeName, next: Option<&Episode>, end: Timestamp) {
        let over = self.open().get_mut(node).and_then(|open| {
            open.drain
                .take_if(|drain| !next.is_some_and(|next| drain.is_that_of(next)))
        });
        self.send(over.map(|drain| drain.end(node, end)).unwrap_or_default());
    }

    /// A round of evictions begins in `record`.
    fn drains(&self, node: &NodeName, record: &Record) {
        let Some(episode) = record.episode().filter(|it| it.phase == Phase::Draining) else {
            return;
        };
        if let Some(open) = self.open().get_mut(node)
            && !open.drain.as_ref().is_some_and(|drain| drain.is_that_of(episode))
        {
            open.drain = Some(TracedDrain::of(episode));
        }
    }

    fn send(&self, spans: Vec<Span>) {
        for mut span in spans {
            if is_call_to(&span, VCENTER) {
                span.attributes.push(text("server.address", &self.vcenter));
            }
            if self.queue.try_send(span).is_err() {
                self.lost.inc();
            }
        }
    }
}

fn stay(finished: &FinishedPhase) -> Stay {
    (finished.phase.name(), finished.since)
}

impl Observer for Traces {
    fn observe(&self, node: &NodeName, told: NodeEvent<'_>) {
        let record = match told {
            NodeEvent::Recorded {
                before,
                transition,
                wrote,
                ..
            } => return self.recorded(node, before, transition, wrote),
            // An episode of another release is not taken over.
            NodeEvent::Waits {
                on: WaitingOn::OtherRelease { .. },
                ..
            } => return,
            NodeEvent::Waits { record, .. }
            | NodeEvent::Asks { record, .. }
            | NodeEvent::NotRecorded { before: record, .. } => record,
        };
        if let Some(episode) = record.episode()
            && let Some(builder) = EpisodeSpans::of(node, episode)
        {
            self.catch_up(node, episode, &builder);
        }
        if let NodeEvent::Asks { effect, .. } = told
            && effect.kind() == EffectKind::DrainRound
        {
            self.drains(node, record);
        }
    }

    fn gone(&self, node: &NodeName) {
        self.open().remove(node);
    }
}

#[cfg(test)]
mod tests;
