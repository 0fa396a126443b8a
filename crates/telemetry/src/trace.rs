//! Traces: one per episode. Spans are built from the times and the finished phases in the record.
//!
//! Spans are built when they are complete, because an open span would be lost with the process. The
//! SDK's tracers are not used: they take ids from a thread-local generator, and the batch thread cannot
//! run an async client. [`export`] fills the SDK's `SpanData` and runs as a task.
//!
//! # Restarts
//!
//! The spans of a phase are sent when its end is recorded, the root at the end of the episode. A
//! process that takes over an episode sends the spans of all finished phases in its record, because it
//! does not know which were sent. All ids are digests of the episode, so backends can recognize
//! duplicates: Jaeger removes them on request, Tempo keeps one.
//!
//! Lost are spans that a collector refuses or takes too slowly (counted), spans of pods and of the
//! cordon that were not sent before the process died, and the last phase and the root if the process
//! died right after it recorded the end.

pub mod catalogue;
pub mod export;
mod pods;
pub mod spans;

use std::collections::BTreeMap;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;

use haulout_controller::observer::Observer;
use haulout_core::ids::{EpisodeId, NodeName};
use haulout_core::inventory::Fact;
use haulout_core::maintenance::decide::Transition;
use haulout_core::maintenance::effect::EffectKind;
use haulout_core::maintenance::effect_report::{EffectReport, EffectResult};
use haulout_core::maintenance::episode::{Episode, FinishedPhase, Phase, Record};
use haulout_core::maintenance::waiting::WaitingOn;
use haulout_core::status::node_event::NodeEvent;
use haulout_core::status::story::Beat;
use pods::TracedDrain;
use spans::attributes::{VCENTER, is_call_to, text};
use spans::{EpisodeSpans, Span, SpanEnd};

/// Capacity of the queue to the exporter, about a megabyte: some hundred episodes of a dozen spans,
/// plus three for each of up to 200 pods.
pub const QUEUE: usize = 2048;

/// Builds spans from the events of actors, without waiting.
#[derive(Debug)]
pub struct Traces {
    queue: mpsc::Sender<Span>,
    lost: Counter,
    /// The name or address of vCenter.
    vcenter: String,
    open: Mutex<BTreeMap<NodeName, OpenEpisode>>,
}

/// What was sent of the open episode of a node.
#[derive(Debug, Default)]
struct OpenEpisode {
    episode: Option<EpisodeId>,
    /// The last finished phase that was sent.
    sent: Option<PhaseKey>,
    drain: Option<TracedDrain>,
}

/// A phase: its name and start.
type PhaseKey = (&'static str, Timestamp);

impl Traces {
    /// Creates an observer that sends spans to `queue`. Spans that do not fit are counted in `lost`.
    /// Spans of calls to vCenter have the address `vcenter`.
    pub fn new(queue: mpsc::Sender<Span>, lost: Counter, vcenter: String) -> Self {
        Self {
            queue,
            lost,
            vcenter,
            open: Mutex::default(),
        }
    }

    /// Adds the result of an eviction round.
    fn effect_reported(&self, report: &EffectReport) {
        if let EffectResult::Evictions(round) = &report.found {
            let drain = |open: &mut OpenEpisode| Some(open.drain.as_mut()?.apply(&report.node, round));
            let spans = self.open.lock().get_mut(&report.node).and_then(drain);
            self.send(spans.unwrap_or_default());
        }
    }

    /// Sends the finished phases that were not sent; all of them if the episode is new to this process.
    fn catch_up(&self, node: &NodeName, episode: &Episode, builder: &EpisodeSpans<'_>) {
        let mut spans = Vec::new();
        let mut all = self.open.lock();
        let open = all.entry(node.clone()).or_default();
        if open.episode.as_ref() != Some(&episode.id) {
            spans.extend(builder.begin_spans());
            *open = OpenEpisode {
                episode: Some(episode.id.clone()),
                ..OpenEpisode::default()
            };
        }
        let finished = &episode.history.finished;
        let sent = finished.iter().rposition(|it| open.sent == Some(phase_key(it)));
        let missing = finished.iter().skip(sent.map_or(0, |at| at + 1));
        spans.extend(missing.flat_map(|it| builder.finished(it)));
        open.sent = finished.last().map(phase_key).or(open.sent);
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
                self.open.lock().remove(node);
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

    /// Sends the pods of a drain that ended at `end`, unless `next` is still in it.
    fn end_drain(&self, node: &NodeName, next: Option<&Episode>, end: Timestamp) {
        let over = self.open.lock().get_mut(node).and_then(|open| {
            open.drain
                .take_if(|drain| !next.is_some_and(|next| drain.belongs_to(next)))
        });
        self.send(over.map(|drain| drain.end(node, end)).unwrap_or_default());
    }

    /// An eviction round begins.
    fn drain_started(&self, node: &NodeName, record: &Record) {
        let Some(episode) = record.episode().filter(|it| it.phase == Phase::Draining) else {
            return;
        };
        if let Some(open) = self.open.lock().get_mut(node)
            && !open.drain.as_ref().is_some_and(|drain| drain.belongs_to(episode))
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

fn phase_key(finished: &FinishedPhase) -> PhaseKey {
    (finished.phase.name(), finished.since)
}

impl Observer for Traces {
    fn observe(&self, node: &NodeName, beat: &Beat<'_>) {
        let record = match beat.event {
            NodeEvent::Recorded {
                before,
                transition,
                wrote,
                ..
            } => return self.recorded(node, before, transition, wrote),
            // An episode of an unsupported release is not taken over.
            NodeEvent::Waits {
                on: WaitingOn::OtherRelease { .. },
                ..
            } => return,
            NodeEvent::Waits { record, .. }
            | NodeEvent::Forecasts { record, .. }
            | NodeEvent::Asks { record, .. }
            | NodeEvent::NotRecorded { before: record, .. } => record,
        };
        if let Some(episode) = record.episode()
            && let Some(builder) = EpisodeSpans::of(node, episode)
        {
            self.catch_up(node, episode, &builder);
        }
        if let NodeEvent::Asks { effect, .. } = beat.event
            && effect.kind() == EffectKind::DrainRound
        {
            self.drain_started(node, record);
        }
    }

    fn actor_ended(&self, node: &NodeName) {
        self.open.lock().remove(node);
    }

    fn fact(&self, fact: &Fact) {
        if let Fact::Effect(report) = fact {
            self.effect_reported(report);
        }
    }
}

#[cfg(test)]
mod tests;
