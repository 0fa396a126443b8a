//! Which spans tell a part of the story: a pure function of what the record keeps.
//!
//! ```text
//!  maintenance ───────────────────────────────────────────────────────────────────────────────┐
//!  │ announce (a moment)                                                                      │
//!  ├─ detect ─┬─ queue ─┬─ drain ──────┬─ guest shutdown ─┬─ power off ─┬─ place ─┬─ … ─┬─ uncordon
//!                       └─ cordon
//! ```
//!
//! Phases follow each other without gaps or overlaps, because each ends at the very time that the next one keeps as its
//! beginning. These times stand on the Node, so a phase that began in another process is told whole; and a span's id is
//! a digest of the episode, the phase and its beginning, so whoever tells it tells the same span. Cordon and uncordon are
//! moments: the PATCH that writes them down cannot write down how long it took.

use jiff::{SignedDuration, Timestamp};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, TraceFlags, TraceId, TraceState};
use opentelemetry::{KeyValue, StringValue, Value};
use sha2::{Digest as _, Sha256};

use crate::ids::{NodeName, TaskRef};
use crate::maintenance::episode::{DrainEnd, Ended, Episode, Phase};
use crate::maintenance::trail::{Incident, Last, NoPlace, Origin, Owed, Part, Passed, Pods, Queue, Saw};
use crate::maintenance::waiting::ParkReason;

/// The length of what has none. Jaeger takes a span that ends where it begins for one of negative duration, marks it with a
/// warning, and does not know it again when it is sent twice.
const A_MOMENT: SignedDuration = SignedDuration::from_micros(1);

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
    /// What happened in it.
    pub moments: Vec<Moment>,
    /// What went wrong, if something did.
    pub failed: Option<String>,
    /// The root of another episode that this one waited for.
    pub link: Option<SpanContext>,
}

impl Span {
    /// Whether it is the span of a call to `peer`.
    pub(super) fn is_call_to(&self, peer: &str) -> bool {
        let is_peer = |it: &KeyValue| it.key.as_str() == PEER && it.value.as_str() == peer;
        self.attributes.iter().any(is_peer)
    }
}

/// Something that happened at one moment of a span.
#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    /// When.
    pub at: Timestamp,
    /// What: one of a fixed set.
    pub name: &'static str,
    /// What it was about.
    pub attributes: Vec<KeyValue>,
}

/// The root span of an episode, as other spans name it; `None` for a traceparent that is none.
pub fn root(episode: &Episode) -> Option<SpanContext> {
    context(&episode.traceparent)
}

fn context(traceparent: &str) -> Option<SpanContext> {
    let mut parts = traceparent.split('-').skip(1);
    let trace = TraceId::from_hex(parts.next()?).ok()?;
    let span = SpanId::from_hex(parts.next()?).ok()?;
    let context = SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::default());
    context.is_valid().then_some(context)
}

/// The spans of one part of the story of `episode`; the last of them stands for the part. They depend on nothing but the
/// record, so that whoever tells the part tells the same to the last bit.
pub fn told(node: &NodeName, episode: &Episode, owed: &Owed) -> Vec<Span> {
    let mut spans = Vec::new();
    let Some(story) = Story::of(node, episode, &owed.host) else {
        return spans;
    };
    match &owed.part {
        Part::Begun => story.beginning(&mut spans),
        Part::Cordoned { phase, at } => {
            // Part of the phase that it began, which is told later but under a name that is known.
            let parent = story.id(phase, *at);
            let cordon = story.span("cordon", SpanKind::Client, (*at, after(*at)));
            spans.push(kubernetes(Span {
                parent: Some(parent),
                ..cordon
            }));
        }
        Part::Passed(passed) => story.phase(passed, &mut spans),
    }
    spans
}

/// The spans of an episode's end, the root as the last of them; what its record still owes is not among them.
pub fn ended(node: &NodeName, last: &Last) -> Vec<Span> {
    let mut spans = Vec::new();
    if let Some(story) = Story::of(node, &last.episode, &last.episode.host.name) {
        story.end(last, &mut spans);
    }
    spans
}

/// One episode of one node, whose spans are told.
pub(super) struct Story<'a> {
    episode: &'a Episode,
    root: SpanContext,
    identity: [KeyValue; 3],
}

impl<'a> Story<'a> {
    pub(super) fn of(node: &NodeName, episode: &'a Episode, host: &str) -> Option<Self> {
        // Trace stores look for a span by its own attributes, not by those of its root, which comes last.
        let identity = [
            text("haulout.episode", episode.id.as_str()),
            text("k8s.node.name", node.as_str()),
            text("vcenter.host.name", host),
        ];
        Some(Self {
            episode,
            root: root(episode)?,
            identity,
        })
    }

    /// vCenter's clock may be ahead of ours; the trace begins a moment before the episode at the latest.
    fn start(&self) -> Timestamp {
        let begun_at = self.episode.begun_at;
        let before = begun_at.saturating_sub(A_MOMENT).unwrap_or(begun_at);
        self.episode.trigger.clicked_at.min(before)
    }

    fn id(&self, what: &str, since: Timestamp) -> SpanId {
        self.id_of(what, "", since)
    }

    /// The id of the span `what` that is about the pod of this UID.
    pub(super) fn id_of(&self, what: &str, uid: &str, since: Timestamp) -> SpanId {
        let digest = Sha256::digest(format!("{}\n{what}\n{uid}\n{since}", self.episode.id));
        let bytes: [u8; 8] = std::array::from_fn(|index| digest.get(index).copied().unwrap_or(1));
        SpanId::from_bytes(bytes)
    }

    /// The id of the span that the phase in the record begins with.
    pub(super) fn phase_id(&self) -> SpanId {
        self.id(self.episode.phase.name(), self.episode.since)
    }

    pub(super) fn span(
        &self,
        name: &'static str,
        kind: SpanKind,
        (start, end): (Timestamp, Timestamp),
    ) -> Span {
        Span {
            trace: self.root.trace_id(),
            id: self.id(name, start),
            parent: Some(self.root.span_id()),
            name,
            kind,
            start: whole_microsecond(start),
            end: whole_microsecond(end.max(start)),
            attributes: self.identity.to_vec(),
            moments: Vec::new(),
            failed: None,
            link: None,
        }
    }

    fn beginning(&self, spans: &mut Vec<Span>) {
        let episode = self.episode;
        let announce = self.span(
            "announce",
            SpanKind::Internal,
            (episode.begun_at, after(episode.begun_at)),
        );
        spans.push(self.with_trigger(announce));
        let detect = self.span("detect", SpanKind::Internal, (self.start(), episode.begun_at));
        let mut detect = self.with_trigger(detect);
        let source = episode.trigger.detection;
        let source = source.map(|source| text("haulout.detection.source", source.name()));
        detect.attributes.extend(source);
        let ahead = episode.trigger.clicked_at.duration_since(episode.begun_at);
        if ahead.is_positive() {
            // A click from the future: vCenter's clock is ahead of ours by this much at least.
            let ahead = i64::try_from(ahead.as_millis()).unwrap_or(i64::MAX);
            detect
                .attributes
                .push(KeyValue::new("haulout.clock_skew_ms", ahead));
        }
        spans.push(detect);
    }

    fn with_trigger(&self, mut span: Span) -> Span {
        let trigger = &self.episode.trigger;
        let task = trigger.task.as_ref().map(TaskRef::as_str);
        let set_off_by = match (&trigger.task, &trigger.request) {
            (Some(_), _) => "task",
            (None, Some(_)) => "request",
            (None, None) => "host_state",
        };
        span.attributes.push(text("haulout.trigger", set_off_by));
        span.attributes
            .push(text("k8s.node.uid", self.episode.node_uid.as_str()));
        span.attributes
            .extend(task.map(|task| text("vcenter.task.id", task)));
        span.attributes
            .extend(trigger.user.as_ref().map(|user| text("enduser.id", user)));
        if let Some(request) = &trigger.request {
            span.attributes.push(text("haulout.request", &request.name));
            span.attributes
                .push(text("haulout.request.uid", request.uid.as_str()));
        }
        if let Some(uuid) = &self.episode.vm_uuid {
            span.attributes.push(text("vcenter.vm.id", &uuid.to_string()));
        }
        let Origin { cluster, vm, .. } = &self.episode.trail.origin;
        let named = [("vcenter.vm.name", vm), ("vcenter.cluster.name", cluster)];
        let named = named
            .into_iter()
            .filter_map(|(key, name)| Some(text(key, name.as_ref()?)));
        span.attributes.extend(named);
        span
    }

    fn phase(&self, passed: &Passed, spans: &mut Vec<Span>) {
        let Passed {
            since, until, saw, ..
        } = passed;
        let (since, end) = (*since, *until);
        let whole = (since, end);
        // Where the phase has a second part, it begins at a time that only whoever saw it knows.
        let cut = |at: Option<Timestamp>| {
            at.filter(|_| saw.from_the_start)
                .map(|at| at.clamp(since, end.max(since)))
        };
        let begun = spans.len();
        match &passed.phase {
            Phase::Queued => {
                let mut queue = self.span("queue", SpanKind::Internal, whole);
                queue.link = saw.behind.as_deref().and_then(context);
                if let Some(Queue {
                    position,
                    limit,
                    setting,
                }) = &saw.queue
                {
                    queue.attributes.extend([
                        count("haulout.queue.position", *position),
                        KeyValue::new("haulout.queue.limit", i64::from(*limit)),
                        text("haulout.queue.setting", setting),
                    ]);
                }
                spans.push(queue);
            }
            Phase::Draining => spans.push(self.drain(passed)),
            Phase::Drained => spans.push(self.span("drained", SpanKind::Internal, whole)),
            Phase::ShuttingDown(_) => match cut(saw.power_cut) {
                Some(at) if saw.guest_asked => {
                    let asked = self.span("guest shutdown", SpanKind::Client, (since, at));
                    let why = "the guest did not shut down in time".to_owned();
                    spans.push(failed(vcenter(asked, SHUTDOWN), TIMEOUT, why));
                    let cut = self.span("power off", SpanKind::Client, (at, end));
                    spans.push(by(saw.task.as_ref(), vcenter(cut, POWER_OFF)));
                }
                Some(_) => {
                    let cut = self.span("power off", SpanKind::Client, whole);
                    spans.push(by(saw.task.as_ref(), vcenter(cut, POWER_OFF)));
                }
                None => {
                    let asked = self.span("guest shutdown", SpanKind::Client, whole);
                    spans.push(vcenter(asked, SHUTDOWN));
                }
            },
            Phase::Relocating { to } => {
                let relocate = self.span("relocate", SpanKind::Client, whole);
                let mut relocate = by(saw.task.as_ref(), vcenter(relocate, "RelocateVM_Task"));
                relocate.attributes.push(text("haulout.target.host", &to.name));
                spans.push(relocate);
            }
            Phase::AwaitingHost => self.away(passed, cut(saw.host_awaited), spans),
            Phase::PoweringOn { by_drs } => {
                let method = if *by_drs {
                    "PowerOnMultiVM_Task"
                } else {
                    "PowerOnVM_Task"
                };
                let power_on = vcenter(self.span("power on", SpanKind::Client, whole), method);
                spans.push(by(saw.task.as_ref(), power_on));
            }
            Phase::Rejoining => {
                let ready_until = cut(saw.gpus_awaited).unwrap_or(end);
                spans.push(self.span("wait node ready", SpanKind::Internal, (since, ready_until)));
                if let Some(at) = cut(saw.gpus_awaited) {
                    let mut gpus = self.span("wait gpu allocatable", SpanKind::Internal, (at, end));
                    let had = self.episode.gpus_before.iter().filter(|(_, count)| **count > 0);
                    let names = had.map(|(name, _)| name.clone());
                    gpus.attributes.push(texts("k8s.resource.name", names));
                    spans.push(gpus);
                }
            }
            Phase::Parked { reason, resume, .. } => {
                let mut parked = self.span("parked", SpanKind::Internal, whole);
                parked
                    .attributes
                    .push(text("haulout.parked.phase", resume.at_work().name()));
                spans.push(failed(parked, kind(reason), reason.to_string()));
            }
        }
        // What began the phase was told as part of this span.
        if let Some(first) = spans.get_mut(begun) {
            first.id = self.id(passed.phase.name(), since);
        }
        // A place that was found without having been looked for is a moment of the phase that it began.
        let looked_for = matches!(passed.phase.at_work(), Phase::AwaitingHost);
        if let Some(strategy) = passed.next.as_ref().and_then(Phase::placed_by)
            && !looked_for
        {
            let mut place = self.span("place", SpanKind::Internal, (end, after(end)));
            place.parent = passed.next.as_ref().map(|next| self.id(next.name(), end));
            spans.push(placed(place, strategy, saw));
        }
    }

    fn drain(&self, passed: &Passed) -> Span {
        let Passed { saw, next, .. } = passed;
        let mut drain = self.span("drain", SpanKind::Internal, (passed.since, passed.until));
        if !saw.budgets.is_empty() {
            drain
                .attributes
                .push(texts("k8s.pdb.name", saw.budgets.iter().cloned()));
        }
        let outcome = match next {
            Some(Phase::ShuttingDown(DrainEnd::TimedOut)) => {
                let left = passed.left_behind;
                let why = format!("the drain timeout passed with {left} pods left");
                drain = failed(drain, TIMEOUT, why);
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
        if let Some(Pods {
            listed,
            ignored,
            evicted,
        }) = &saw.pods
        {
            drain.attributes.extend([
                count("haulout.pods.total", *listed),
                count("haulout.pods.evicted", *evicted),
                count("haulout.pods.ignored", *ignored),
            ]);
        }
        drain
    }

    /// The time without a host: the look for another, then the wait for the own one.
    fn away(&self, passed: &Passed, awaited: Option<Timestamp>, spans: &mut Vec<Span>) {
        let Passed { saw, .. } = passed;
        let (since, end) = (passed.since, passed.until);
        let found = passed.next.as_ref().and_then(Phase::placed_by);
        let (place_until, strategy) = match (awaited, found) {
            (Some(at), _) => (at, "wait"),
            (None, Some(strategy)) if saw.from_the_start => (end, strategy),
            // Begun in another process, the wait is most of it, and where it began is not known.
            (None, _) => (since, "wait"),
        };
        if place_until > since || strategy != "wait" {
            let place = self.span("place", SpanKind::Internal, (since, place_until));
            spans.push(placed(place, strategy, saw));
        }
        if strategy == "wait" {
            spans.push(self.span("wait host exit", SpanKind::Internal, (place_until, end)));
        }
    }

    fn end(&self, last: &Last, spans: &mut Vec<Span>) {
        let end = if last.uncordoned { after(last.at) } else { last.at };
        if last.uncordoned {
            spans.push(kubernetes(self.span(
                "uncordon",
                SpanKind::Client,
                (last.at, end),
            )));
        }
        let maintenance = self.span("maintenance", SpanKind::Server, (self.start(), end));
        let mut maintenance = self.with_trigger(maintenance);
        maintenance.id = self.root.span_id();
        maintenance.parent = None;
        maintenance.moments = moments(last);
        maintenance.link = self.episode.trail.origin.before.as_deref().and_then(context);
        let result = match last.ended {
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
            let left = self.episode.left_behind.len();
            maintenance
                .attributes
                .push(count("haulout.pods.left_behind", left));
        }
        if last.ended == Some(Ended::Failed) {
            let why = self.episode.gave_up.clone().unwrap_or_default();
            maintenance = failed(maintenance, "not_to_be_had", why);
        }
        spans.push(maintenance);
    }
}

/// What happened to the episode beside its phases.
fn moments(last: &Last) -> Vec<Moment> {
    let number = |name, number: u64| KeyValue::new(name, i64::try_from(number).unwrap_or(i64::MAX));
    let mut moments: Vec<Moment> = last
        .episode
        .trail
        .incidents
        .iter()
        .map(|incident| match incident {
            Incident::Restarted { at } => Moment {
                at: *at,
                name: "controller.restarted",
                attributes: Vec::new(),
            },
            Incident::LeaderChanged { at, old, new } => Moment {
                at: *at,
                name: "leader.changed",
                attributes: vec![number("old", *old), number("new", *new)],
            },
        })
        .collect();
    if last.ended == Some(Ended::Cancelled) {
        moments.push(Moment {
            at: last.at,
            name: "operator.cancelled",
            attributes: Vec::new(),
        });
    }
    moments
}

/// When a moment is over that begins at `at`.
fn after(at: Timestamp) -> Timestamp {
    at.saturating_add(A_MOMENT).unwrap_or(at)
}

/// Trace stores keep a beginning and a duration in whole microseconds. Cut here already, phases meet there as well.
fn whole_microsecond(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}

/// The look for a place, with what spoke against each host that was looked at.
fn placed(mut place: Span, strategy: &'static str, saw: &Saw) -> Span {
    place
        .attributes
        .push(text("haulout.placement.strategy", strategy));
    place
        .moments
        .extend(saw.refused.iter().map(|NoPlace { host, why }| Moment {
            at: place.end,
            name: "host.refused",
            attributes: vec![text("vcenter.host.name", host), text("reason", why)],
        }));
    place
}

pub(super) fn count(name: &'static str, count: usize) -> KeyValue {
    KeyValue::new(name, i64::try_from(count).unwrap_or(i64::MAX))
}

pub(super) fn text(name: &'static str, value: &str) -> KeyValue {
    KeyValue::new(name, value.to_owned())
}

fn texts(name: &'static str, values: impl Iterator<Item = String>) -> KeyValue {
    let values = values.map(StringValue::from).collect();
    KeyValue::new(name, Value::Array(opentelemetry::Array::String(values)))
}

/// vCenter, as spans of calls to it name it.
pub(super) const VCENTER: &str = "vcenter";

/// By this attribute Jaeger draws its arrows.
const PEER: &str = "peer.service";

/// The methods by which a VM comes to be off.
const SHUTDOWN: &str = "ShutdownGuest";
const POWER_OFF: &str = "PowerOffVM_Task";

/// What failed because it took too long, in the word of the conventions.
const TIMEOUT: &str = "timeout";

/// The span of what failed in one of few ways, for these words.
fn failed(mut span: Span, kind: &'static str, why: String) -> Span {
    span.attributes.push(KeyValue::new("error.type", kind));
    span.failed = Some(why);
    span
}

/// Why an episode was parked, without what differs from one to the other.
fn kind(reason: &ParkReason) -> &'static str {
    match reason {
        ParkReason::UnreadableRecord { .. } => "unreadable_record",
        ParkReason::AnotherNode => "another_node",
        ParkReason::VmMissing => "vm_missing",
        ParkReason::VmAmbiguous { .. } => "vm_ambiguous",
        ParkReason::VmShared { .. } => "vm_shared",
        ParkReason::VmSuspended => "vm_suspended",
        ParkReason::NoUuid => "no_uuid",
        ParkReason::VmReplaced { .. } => "vm_replaced",
        ParkReason::PowerLost { .. } => "power_lost",
        ParkReason::Uncordoned => "uncordoned",
        ParkReason::PoweredOn { .. } => "powered_on",
        ParkReason::Overdue { .. } => TIMEOUT,
    }
}

fn vcenter(mut span: Span, method: &'static str) -> Span {
    span.attributes.push(KeyValue::new("rpc.method", method));
    calling(VCENTER, span)
}

/// The task by which vCenter did it.
fn by(task: Option<&TaskRef>, mut span: Span) -> Span {
    let task = task.map(|task| text("vcenter.task.id", task.as_str()));
    span.attributes.extend(task);
    span
}

fn kubernetes(span: Span) -> Span {
    calling("kube-apiserver", span)
}

/// Jaeger draws its arrows by the older of the two names; the conventions have moved on to the other.
fn calling(peer: &'static str, mut span: Span) -> Span {
    span.attributes.push(KeyValue::new(PEER, peer));
    span.attributes.push(KeyValue::new("service.peer.name", peer));
    span
}

#[cfg(test)]
mod tests;
