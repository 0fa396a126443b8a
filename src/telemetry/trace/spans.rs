//! Which spans end with a change of a record: a pure function of the records, and of what was seen between them.
//!
//! ```text
//!  maintenance ───────────────────────────────────────────────────────────────────────────────┐
//!  │ announce (no length)                                                                     │
//!  ├─ detect ─┬─ queue ─┬─ drain ──────┬─ guest shutdown ─┬─ power off ─┬─ place ─┬─ … ─┬─ uncordon
//!                       └─ cordon
//! ```
//!
//! Phases follow each other without gaps or overlaps, because each ends at the very time that the next one keeps as its
//! beginning. These times stand on the Node, so a phase that began in another process is told whole; and a span's id is
//! a digest of the episode, the phase and its beginning, so whoever tells it tells the same span.

use std::collections::BTreeSet;

use jiff::Timestamp;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, TraceFlags, TraceId, TraceState};
use opentelemetry::{KeyValue, StringValue, Value};
use sha2::{Digest as _, Sha256};

use crate::ids::{NodeName, TaskRef};
use crate::maintenance::decide::Transition;
use crate::maintenance::episode::{DrainEnd, Ended, Episode, Phase, Record};

/// A span that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The episode's trace.
    pub trace: TraceId,
    /// Its own id.
    pub id: SpanId,
    /// The span it is part of; `None` for the root.
    pub parent: Option<SpanId>,
    /// One of a fixed set; what it was about is in the attributes.
    pub name: &'static str,
    /// Whether another program was called.
    pub kind: SpanKind,
    /// When it began.
    pub start: Timestamp,
    /// When it ended, which is never before it began.
    pub end: Timestamp,
    /// What it was about.
    pub attributes: Vec<KeyValue>,
    /// What went wrong, if something did.
    pub failed: Option<String>,
    /// The root of another episode that this one waited for.
    pub link: Option<SpanContext>,
}

/// What this process has seen of a phase that no record keeps. It only refines what the records tell, so that nothing
/// is missing and nothing invented when it is lost with its process.
#[derive(Clone, Debug, Default)]
pub struct Saw {
    /// This process began the phase itself. What it has seen of one begun before says nothing of its earlier part.
    pub from_the_start: bool,
    /// The guest was asked to shut down.
    pub guest_asked: bool,
    /// When the power was first to be cut.
    pub power_cut: Option<Timestamp>,
    /// When it was first clear that only the own host will do.
    pub host_awaited: Option<Timestamp>,
    /// When the node was first Ready and its GPUs were still missing.
    pub gpus_awaited: Option<Timestamp>,
    /// The PodDisruptionBudgets that held pods back.
    pub budgets: BTreeSet<String>,
    /// The root of the episode that had the place this one waited for.
    pub behind: Option<SpanContext>,
}

/// The root span of an episode, as other spans name it; `None` for a traceparent that is none.
pub fn root(episode: &Episode) -> Option<SpanContext> {
    let mut parts = episode.traceparent.split('-').skip(1);
    let trace = TraceId::from_hex(parts.next()?).ok()?;
    let span = SpanId::from_hex(parts.next()?).ok()?;
    let context = SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::default());
    context.is_valid().then_some(context)
}

/// The spans that ended when `transition` took the place of `before`, in the order in which they are to be told. `wrote`
/// is when that write began and when it was accepted.
pub fn ended(
    node: &NodeName,
    before: &Record,
    transition: &Transition,
    wrote: (Timestamp, Timestamp),
    saw: &Saw,
) -> Vec<Span> {
    let (was, is) = (before.episode(), transition.record.episode());
    let goes_on = was.zip(is).is_some_and(|(was, is)| was.id == is.id);
    let mut spans = Vec::new();
    if let Some(told) = was.and_then(|episode| Story::of(node, episode)) {
        let next = is.filter(|_| goes_on);
        let is_over = next.is_none_or(|next| told.phase_id(next) != told.phase_id(told.episode));
        if is_over {
            told.phase(next, next.map_or(wrote.0, |next| next.since), saw, &mut spans);
        }
        if next.is_none() {
            told.end(transition, wrote, &mut spans);
        }
    }
    if let Some(told) = is.and_then(|episode| Story::of(node, episode)) {
        if !goes_on {
            told.beginning(&mut spans);
        }
        let looked_for_a_place = was.is_some_and(|was| matches!(was.phase.at_work(), Phase::AwaitingHost));
        if goes_on && !looked_for_a_place {
            told.placed_at_once(&mut spans);
        }
        if transition.unschedulable == Some(true) {
            // Part of the phase that it began, which is told later but under a name that is known.
            let parent = told.phase_id(told.episode);
            let cordon = told.span("cordon", SpanKind::Client, (wrote.0, wrote.1));
            spans.push(kubernetes(Span {
                parent: Some(parent),
                ..cordon
            }));
        }
    }
    spans
}

/// One episode of one node, whose spans are told.
struct Story<'a> {
    episode: &'a Episode,
    root: SpanContext,
    identity: [KeyValue; 3],
}

impl<'a> Story<'a> {
    fn of(node: &NodeName, episode: &'a Episode) -> Option<Self> {
        // Trace stores look for a span by its own attributes, not by those of its root, which comes last.
        let identity = [
            text("haulout.episode", episode.id.as_str()),
            text("k8s.node.name", node.as_str()),
            text("vcenter.host.name", &episode.host.name),
        ];
        Some(Self {
            episode,
            root: root(episode)?,
            identity,
        })
    }

    /// vCenter's clock may be ahead of ours; the trace begins no later than the episode.
    fn start(&self) -> Timestamp {
        self.episode.trigger.clicked_at.min(self.episode.begun_at)
    }

    fn id(&self, what: &str, since: Timestamp) -> SpanId {
        let digest = Sha256::digest(format!("{}\n{what}\n{since}", self.episode.id));
        let bytes: [u8; 8] = std::array::from_fn(|index| digest.get(index).copied().unwrap_or(1));
        SpanId::from_bytes(bytes)
    }

    /// The id of the span that the phase of `episode` begins with.
    fn phase_id(&self, episode: &Episode) -> SpanId {
        self.id(episode.phase.name(), episode.since)
    }

    fn span(&self, name: &'static str, kind: SpanKind, (start, end): (Timestamp, Timestamp)) -> Span {
        Span {
            trace: self.root.trace_id(),
            id: self.id(name, start),
            parent: Some(self.root.span_id()),
            name,
            kind,
            start: whole_microsecond(start),
            end: whole_microsecond(end.max(start)),
            attributes: self.identity.to_vec(),
            failed: None,
            link: None,
        }
    }

    fn beginning(&self, spans: &mut Vec<Span>) {
        let episode = self.episode;
        let announce = self.span(
            "announce",
            SpanKind::Internal,
            (episode.begun_at, episode.begun_at),
        );
        spans.push(self.with_trigger(announce));
        let detect = self.span("detect", SpanKind::Internal, (self.start(), episode.begun_at));
        spans.push(self.with_trigger(detect));
    }

    fn with_trigger(&self, mut span: Span) -> Span {
        let trigger = &self.episode.trigger;
        let task = trigger.task.as_ref().map(TaskRef::as_str);
        span.attributes
            .push(text("k8s.node.uid", self.episode.node_uid.as_str()));
        span.attributes
            .extend(task.map(|task| text("vcenter.task.id", task)));
        span.attributes
            .extend(trigger.user.as_ref().map(|user| text("enduser.id", user)));
        if let Some(uuid) = &self.episode.vm_uuid {
            span.attributes.push(text("vcenter.vm.id", &uuid.to_string()));
        }
        span
    }

    /// A place that was found without having been waited for.
    fn placed_at_once(&self, spans: &mut Vec<Span>) {
        let Some(strategy) = strategy(&self.episode.phase) else {
            return;
        };
        let since = self.episode.since;
        let mut place = self.span("place", SpanKind::Internal, (since, since));
        place
            .attributes
            .push(text("haulout.placement.strategy", strategy));
        spans.push(place);
    }

    /// The phase that ended at `end`, and went over into that of `next`.
    fn phase(&self, next: Option<&Episode>, end: Timestamp, saw: &Saw, spans: &mut Vec<Span>) {
        let since = self.episode.since;
        let whole = (since, end);
        // Where the phase has a second part, it begins at a time that only whoever saw it knows.
        let cut = |at: Option<Timestamp>| {
            at.filter(|_| saw.from_the_start)
                .map(|at| at.clamp(since, end.max(since)))
        };
        let begun = spans.len();
        match &self.episode.phase {
            Phase::Queued => {
                let mut queue = self.span("queue", SpanKind::Internal, whole);
                queue.link.clone_from(&saw.behind);
                spans.push(queue);
            }
            Phase::Draining => spans.push(self.drain(next, whole, saw)),
            Phase::Drained => spans.push(self.span("drained", SpanKind::Internal, whole)),
            Phase::ShuttingDown(_) => match cut(saw.power_cut) {
                Some(at) if saw.guest_asked => {
                    let mut asked = vcenter(self.span("guest shutdown", SpanKind::Client, (since, at)));
                    asked.failed = Some("the guest did not shut down in time".to_owned());
                    spans.push(asked);
                    spans.push(vcenter(self.span("power off", SpanKind::Client, (at, end))));
                }
                Some(_) => spans.push(vcenter(self.span("power off", SpanKind::Client, whole))),
                None => spans.push(vcenter(self.span("guest shutdown", SpanKind::Client, whole))),
            },
            Phase::Relocating { to } => {
                let mut relocate = vcenter(self.span("relocate", SpanKind::Client, whole));
                relocate.attributes.push(text("haulout.target.host", &to.name));
                spans.push(relocate);
            }
            Phase::AwaitingHost => self.away(next, whole, cut(saw.host_awaited), saw, spans),
            Phase::PoweringOn { .. } => {
                spans.push(vcenter(self.span("power on", SpanKind::Client, whole)));
            }
            Phase::Rejoining => {
                let ready_until = cut(saw.gpus_awaited).unwrap_or(end);
                spans.push(self.span("wait node ready", SpanKind::Internal, (since, ready_until)));
                if let Some(at) = cut(saw.gpus_awaited) {
                    spans.push(self.span("wait gpu allocatable", SpanKind::Internal, (at, end)));
                }
            }
            Phase::Parked { reason, resume, .. } => {
                let mut parked = self.span("parked", SpanKind::Internal, whole);
                parked
                    .attributes
                    .push(text("haulout.parked.phase", resume.at_work().name()));
                parked.failed = Some(reason.to_string());
                spans.push(parked);
            }
        }
        // What began the phase was told as part of this span.
        if let Some(first) = spans.get_mut(begun) {
            first.id = self.phase_id(self.episode);
        }
    }

    fn drain(&self, next: Option<&Episode>, whole: (Timestamp, Timestamp), saw: &Saw) -> Span {
        let mut drain = self.span("drain", SpanKind::Internal, whole);
        if !saw.budgets.is_empty() {
            let names = saw
                .budgets
                .iter()
                .cloned()
                .map(StringValue::from)
                .collect::<Vec<_>>();
            drain.attributes.push(KeyValue::new(
                "k8s.pdb.name",
                Value::Array(opentelemetry::Array::String(names)),
            ));
        }
        let outcome = match next.map(|next| &next.phase) {
            Some(Phase::ShuttingDown(DrainEnd::TimedOut)) => {
                let left = next.map_or(0, |next| next.left_behind.len());
                drain.failed = Some(format!("the drain timeout passed with {left} pods left"));
                "timed out"
            }
            Some(Phase::Drained | Phase::ShuttingDown(DrainEnd::Complete)) => "complete",
            Some(Phase::Parked { .. }) => "parked",
            Some(
                Phase::Queued
                | Phase::Draining
                | Phase::Relocating { .. }
                | Phase::AwaitingHost
                | Phase::PoweringOn { .. }
                | Phase::Rejoining,
            ) => "interrupted",
            None => "called off",
        };
        drain.attributes.push(text("haulout.drain.outcome", outcome));
        drain
    }

    /// The time without a host: the look for another, then the wait for the own one.
    fn away(
        &self,
        next: Option<&Episode>,
        (since, end): (Timestamp, Timestamp),
        awaited: Option<Timestamp>,
        saw: &Saw,
        spans: &mut Vec<Span>,
    ) {
        let found = next.and_then(|next| strategy(&next.phase));
        let (place_until, strategy) = match (awaited, found) {
            (Some(at), _) => (at, "wait"),
            (None, Some(strategy)) if saw.from_the_start => (end, strategy),
            // Begun in another process, the wait is most of it, and where it began is not known.
            (None, _) => (since, "wait"),
        };
        if place_until > since || strategy != "wait" {
            let mut place = self.span("place", SpanKind::Internal, (since, place_until));
            place
                .attributes
                .push(text("haulout.placement.strategy", strategy));
            spans.push(place);
        }
        if strategy == "wait" {
            spans.push(self.span("wait host exit", SpanKind::Internal, (place_until, end)));
        }
    }

    fn end(&self, transition: &Transition, wrote: (Timestamp, Timestamp), spans: &mut Vec<Span>) {
        let uncordons = transition.unschedulable == Some(false);
        if uncordons {
            spans.push(kubernetes(self.span("uncordon", SpanKind::Client, wrote)));
        }
        let end = if uncordons { wrote.1 } else { wrote.0 };
        let maintenance = self.span("maintenance", SpanKind::Server, (self.start(), end));
        let mut maintenance = self.with_trigger(maintenance);
        maintenance.id = self.root.span_id();
        maintenance.parent = None;
        let result = match transition.ended {
            Some(Ended::Succeeded) => "succeeded",
            Some(Ended::Cancelled) => "cancelled",
            Some(Ended::Failed) => "failed",
            None => "replaced",
        };
        maintenance.attributes.push(text("haulout.result", result));
        let moved = self.episode.moved_to.as_ref();
        maintenance
            .attributes
            .extend(moved.map(|host| text("haulout.target.host", &host.name)));
        if !self.episode.left_behind.is_empty() {
            let left = i64::try_from(self.episode.left_behind.len()).unwrap_or(i64::MAX);
            maintenance
                .attributes
                .push(KeyValue::new("haulout.pods.left_behind", left));
        }
        spans.push(maintenance);
    }
}

/// Trace stores keep a beginning and a duration in whole microseconds. Cut here already, phases meet there as well.
fn whole_microsecond(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}

/// How a VM that goes on in `phase` was placed, where it was.
fn strategy(phase: &Phase) -> Option<&'static str> {
    match phase {
        Phase::Relocating { .. } => Some("relocate"),
        Phase::PoweringOn { by_drs: true } => Some("drs"),
        Phase::PoweringOn { by_drs: false }
        | Phase::Queued
        | Phase::Draining
        | Phase::Drained
        | Phase::ShuttingDown(_)
        | Phase::AwaitingHost
        | Phase::Rejoining
        | Phase::Parked { .. } => None,
    }
}

fn text(name: &'static str, value: &str) -> KeyValue {
    KeyValue::new(name, value.to_owned())
}

fn vcenter(span: Span) -> Span {
    calling("vcenter", span)
}

fn kubernetes(span: Span) -> Span {
    calling("kube-apiserver", span)
}

/// Jaeger draws its arrows by the older of the two names; the conventions have moved on to the other.
fn calling(peer: &'static str, mut span: Span) -> Span {
    span.attributes.push(KeyValue::new("peer.service", peer));
    span.attributes.push(KeyValue::new("service.peer.name", peer));
    span
}

#[cfg(test)]
mod tests;
