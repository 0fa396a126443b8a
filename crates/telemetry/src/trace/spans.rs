//! The spans of an episode: a pure function of its record, except for the durations of writes.
//!
//! ```text
//!  maintenance ───────────────────────────────────────────────────────────────────────────────┐
//!  │ announce (a moment)                                                                      │
//!  ├─ detect ─┬─ queue ─┬─ drain ──────┬─ guest shutdown ─┬─ power off ─┬─ place ─┬─ … ─┬─ uncordon
//!                       └─ cordon
//! ```
//!
//! Phases have no gaps or overlaps: each ends when the next one starts. A span id is a digest of
//! episode, phase and start, so that every process builds the same spans from the same record.

pub(super) mod attributes;
mod phases;

use jiff::{SignedDuration, Timestamp};
use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, TraceFlags, TraceId, TraceState};
use sha2::{Digest as _, Sha256};

use attributes::{count, failed, kubernetes, number, text};
use haulout_core::ids::{NodeName, TaskRef};
use haulout_core::maintenance::episode::{Episode, EpisodeOrigin, EpisodeResult, Incident};

/// The minimum duration. Jaeger considers a span of no duration as negative, adds a warning, and does
/// not recognize it as a duplicate.
const MIN_DURATION: SignedDuration = SignedDuration::from_micros(1);

/// A finished span.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub trace: TraceId,
    pub id: SpanId,
    /// The parent span; `None` for the root.
    pub parent: Option<SpanId>,
    /// One of a fixed set; details are in the attributes.
    pub name: &'static str,
    pub kind: SpanKind,
    pub start: Timestamp,
    /// Never before `start`.
    pub end: Timestamp,
    /// What it was about.
    pub attributes: Vec<KeyValue>,
    pub events: Vec<SpanEvent>,
    /// The error message, if it failed.
    pub failed: Option<String>,
    /// The root span of a related episode.
    pub link: Option<SpanContext>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SpanEvent {
    pub at: Timestamp,
    /// One of a fixed set.
    pub name: &'static str,
    /// What it was about.
    pub attributes: Vec<KeyValue>,
}

/// The context of the root span; `None` if the traceparent is invalid.
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

/// The end of an episode.
#[derive(Clone, Copy, Debug)]
pub struct SpanEnd {
    /// The result; `None` if another episode replaced it.
    pub ended: Option<EpisodeResult>,
    pub uncordoned: bool,
    /// Start and end of the write that recorded the end.
    pub wrote: (Timestamp, Timestamp),
}

/// Builds the spans of an episode.
#[derive(Clone)]
pub struct EpisodeSpans<'a> {
    node: &'a NodeName,
    episode: &'a Episode,
    host: &'a str,
    root: SpanContext,
}

impl<'a> EpisodeSpans<'a> {
    /// `None` if the traceparent is invalid.
    pub fn of(node: &'a NodeName, episode: &'a Episode) -> Option<Self> {
        Some(Self {
            node,
            episode,
            host: &episode.host.name,
            root: root(episode)?,
        })
    }

    /// The start of the trace: at the latest just before the episode, because vCenter's clock may be
    /// ahead.
    fn start(&self) -> Timestamp {
        let begun_at = self.episode.begun_at;
        let before = begun_at.saturating_sub(MIN_DURATION).unwrap_or(begun_at);
        self.episode.trigger.clicked_at.min(before)
    }

    fn id(&self, what: &str, since: Timestamp) -> SpanId {
        self.id_of(what, "", since)
    }

    /// The id of the span `what` of the pod with this UID.
    pub(super) fn id_of(&self, what: &str, uid: &str, since: Timestamp) -> SpanId {
        let digest = Sha256::digest(format!("{}\n{what}\n{uid}\n{since}", self.episode.id));
        let bytes: [u8; 8] = std::array::from_fn(|index| digest.get(index).copied().unwrap_or(1));
        SpanId::from_bytes(bytes)
    }

    /// The id of the first span of the current phase.
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
            start: truncate_to_microsecond(start),
            end: truncate_to_microsecond(end.max(start)),
            // Backends search spans by their own attributes, and the root span comes last.
            attributes: vec![
                text("haulout.episode", self.episode.id.as_str()),
                text("k8s.node.name", self.node.as_str()),
                text("vcenter.host.name", self.host),
            ],
            events: Vec::new(),
            failed: None,
            link: None,
        }
    }

    /// The spans of the start of the episode.
    pub fn begin_spans(&self) -> Vec<Span> {
        let episode = self.episode;
        let first = episode.history.finished.first();
        let this = Self {
            host: first.map_or(self.host, |first| &first.host),
            ..self.clone()
        };
        let announce = this.span(
            "announce",
            SpanKind::Internal,
            (episode.begun_at, after(episode.begun_at)),
        );
        let detect = this.span("detect", SpanKind::Internal, (self.start(), episode.begun_at));
        let mut detect = self.with_trigger(detect);
        let source = episode.trigger.detection;
        let source = source.map(|source| text("haulout.detection.source", source.name()));
        detect.attributes.extend(source);
        let ahead = episode.trigger.clicked_at.duration_since(episode.begun_at);
        if ahead.is_positive() {
            // vCenter's clock is at least this far ahead.
            let ahead = i64::try_from(ahead.as_millis()).unwrap_or(i64::MAX);
            detect
                .attributes
                .push(KeyValue::new("haulout.clock_skew_ms", ahead));
        }
        vec![self.with_trigger(announce), detect]
    }

    fn with_trigger(&self, mut span: Span) -> Span {
        let episode = self.episode;
        let trigger = &episode.trigger;
        let EpisodeOrigin { cluster, vm, .. } = &episode.history.origin;
        span.attributes
            .push(text("haulout.trigger", episode.trigger_kind().name()));
        span.attributes
            .push(text("k8s.node.uid", episode.node_uid.as_str()));
        let uuid = episode.vm_uuid.map(|uuid| uuid.to_string());
        let request = trigger.request.as_ref();
        let request_name = request.map(ToString::to_string);
        let known = [
            ("vcenter.task.id", trigger.task.as_ref().map(TaskRef::as_str)),
            ("enduser.id", trigger.user.as_deref()),
            ("haulout.request", request_name.as_deref()),
            ("haulout.request.uid", request.map(|request| request.uid.as_str())),
            ("vcenter.vm.id", uuid.as_deref()),
            ("vcenter.vm.name", vm.as_deref()),
            ("vcenter.cluster.name", cluster.as_deref()),
        ];
        let known = known.into_iter().filter_map(|(key, it)| Some(text(key, it?)));
        span.attributes.extend(known);
        span
    }

    /// The span of the write that cordoned the Node, a child of the current phase.
    pub fn cordoned(&self, wrote: (Timestamp, Timestamp)) -> Span {
        let cordon = self.span("cordon", SpanKind::Client, (wrote.0, at_least_min(wrote)));
        kubernetes(Span {
            parent: Some(self.phase_id()),
            ..cordon
        })
    }

    /// The spans of the end of the episode, except for its last phase; the root is last.
    pub fn ended(&self, end: SpanEnd) -> Vec<Span> {
        let episode = self.episode;
        let mut spans = Vec::new();
        let (at, mut until) = (end.wrote.0, end.wrote.0);
        if end.uncordoned {
            until = at_least_min(end.wrote);
            spans.push(kubernetes(self.span("uncordon", SpanKind::Client, (at, until))));
        }
        let root = self.span("maintenance", SpanKind::Server, (self.start(), until));
        let mut root = self.with_trigger(root);
        root.id = self.root.span_id();
        root.parent = None;
        root.events = events(episode, end);
        root.link = episode.history.origin.before.as_deref().and_then(context);
        let result = match end.ended {
            Some(EpisodeResult::Succeeded) => "succeeded",
            Some(EpisodeResult::Cancelled) => "cancelled",
            Some(EpisodeResult::Vmotioned) => "vmotioned",
            Some(EpisodeResult::Failed) => "failed",
            None => "replaced",
        };
        root.attributes.push(text("haulout.result", result));
        let moved = episode.moved_to.as_ref();
        root.attributes
            .extend(moved.map(|host| text("haulout.target.host", &host.name)));
        let accepted = episode.accepted_gpus.as_ref();
        root.attributes
            .extend(accepted.map(|fewer| text("haulout.gpus.accepted", fewer)));
        let left = episode.left_behind.len();
        if left > 0 {
            root.attributes.push(count("haulout.pods.left_behind", left));
        }
        if end.ended == Some(EpisodeResult::Failed) {
            let why = episode.relocation_failure.clone().unwrap_or_default();
            root = failed(root, "not_to_be_had", why);
        }
        spans.push(root);
        spans
    }
}

/// The events of the root span.
fn events(episode: &Episode, end: SpanEnd) -> Vec<SpanEvent> {
    let incident = |incident: &Incident| match incident {
        Incident::Restarted { at } => SpanEvent {
            at: *at,
            name: "controller.restarted",
            attributes: Vec::new(),
        },
        Incident::LeaderChanged { at, old, new } => SpanEvent {
            at: *at,
            name: "leader.changed",
            attributes: vec![number("old", *old), number("new", *new)],
        },
    };
    let cancelled = (end.ended == Some(EpisodeResult::Cancelled)).then(|| SpanEvent {
        at: end.wrote.0,
        name: "operator.cancelled",
        attributes: Vec::new(),
    });
    let incidents = episode.history.incidents.iter().map(incident);
    incidents.chain(cancelled).collect()
}

/// `at` plus the minimum duration.
fn after(at: Timestamp) -> Timestamp {
    at.saturating_add(MIN_DURATION).unwrap_or(at)
}

fn at_least_min((start, end): (Timestamp, Timestamp)) -> Timestamp {
    end.max(after(start))
}

/// Backends store start and duration in microseconds. Truncating both ends here keeps phases adjacent.
fn truncate_to_microsecond(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}

#[cfg(test)]
mod tests;
