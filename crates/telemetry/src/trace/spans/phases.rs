//! The spans of finished phases.

use jiff::Timestamp;
use opentelemetry::KeyValue;
use opentelemetry::trace::SpanKind;

use super::attributes::{POWER_OFF, SHUTDOWN, TIMEOUT, by, count, failed, kind, text, texts, vcenter};
use super::{EpisodeSpans, Span, SpanEvent, after, context};
use haulout_core::maintenance::episode::{
    FinishedPhase, Phase, PhaseOutcome, PhaseStats, PodCounts, QueuePosition, RefusedHost,
};

impl EpisodeSpans<'_> {
    pub fn finished(&self, finished: &FinishedPhase) -> Vec<Span> {
        let about_host = EpisodeSpans {
            host: &finished.host,
            ..self.clone()
        };
        about_host.phase(finished)
    }

    fn phase(&self, finished: &FinishedPhase) -> Vec<Span> {
        let whole = (finished.since, finished.until);
        let mut spans = match &finished.phase {
            Phase::Queued => vec![self.queue(finished)],
            Phase::Draining => vec![self.drain(finished)],
            Phase::Drained => vec![self.span("drained", SpanKind::Internal, whole)],
            Phase::ShuttingDown(_) => self.shutdown(finished),
            Phase::Relocating { to } => {
                let relocate = self.span("relocate", SpanKind::Client, whole);
                let task = finished.stats.task.as_ref();
                let mut relocate = by(task, vcenter(relocate, "RelocateVM_Task"));
                relocate.attributes.push(text("haulout.target.host", &to.name));
                vec![relocate]
            }
            Phase::AwaitingHost => self.away(finished),
            Phase::PoweringOn { by_drs } => {
                let method = if *by_drs {
                    "PowerOnMultiVM_Task"
                } else {
                    "PowerOnVM_Task"
                };
                let power_on = self.span("power on", SpanKind::Client, whole);
                vec![by(finished.stats.task.as_ref(), vcenter(power_on, method))]
            }
            Phase::Rejoining => self.rejoin(finished),
            Phase::Parked { reason, resume, .. } => {
                let mut parked = self.span("parked", SpanKind::Internal, whole);
                let resumes = text("haulout.parked.phase", resume.at_work().name());
                parked.attributes.push(resumes);
                vec![failed(parked, kind(reason), reason.to_string())]
            }
        };
        // Spans of the cordon and of pods use this id as parent before the span is built.
        if let Some(first) = spans.first_mut() {
            first.id = self.id(finished.phase.name(), finished.since);
        }
        spans.extend(self.place_at_once(finished));
        spans
    }

    fn queue(&self, finished: &FinishedPhase) -> Span {
        let stats = &finished.stats;
        let mut queue = self.span("queue", SpanKind::Internal, (finished.since, finished.until));
        queue.link = stats.ahead_traceparent.as_deref().and_then(context);
        if let Some(QueuePosition {
            position,
            limit,
            setting,
        }) = &stats.queue
        {
            queue.attributes.extend([
                count("haulout.queue.position", *position),
                KeyValue::new("haulout.queue.limit", i64::from(*limit)),
                text("haulout.queue.setting", setting),
            ]);
        }
        queue
    }

    fn drain(&self, finished: &FinishedPhase) -> Span {
        let stats = &finished.stats;
        let mut drain = self.span("drain", SpanKind::Internal, (finished.since, finished.until));
        if !stats.budgets.is_empty() {
            let budgets = texts("k8s.pdb.name", stats.budgets.iter().cloned());
            drain.attributes.push(budgets);
        }
        let outcome = match finished.outcome {
            PhaseOutcome::Passed => "complete",
            PhaseOutcome::TimedOut { left_behind } => {
                let why = format!("the drain timeout passed with {left_behind} pods left");
                drain = failed(drain, TIMEOUT, why);
                "timed out"
            }
            PhaseOutcome::Relocated | PhaseOutcome::LeftToDrs | PhaseOutcome::Interrupted => "interrupted",
            PhaseOutcome::Parked => "parked",
            PhaseOutcome::Ended => "cancelled",
        };
        drain.attributes.push(text("haulout.drain.outcome", outcome));
        if let Some(PodCounts {
            listed,
            ignored,
            evicted,
        }) = &stats.pods
        {
            drain.attributes.extend([
                count("haulout.pods.total", *listed),
                count("haulout.pods.evicted", *evicted),
                count("haulout.pods.ignored", *ignored),
            ]);
        }
        drain
    }

    /// The guest shutdown, the power-off, or both.
    fn shutdown(&self, finished: &FinishedPhase) -> Vec<Span> {
        let (since, end) = (finished.since, finished.until);
        let asked = |until| {
            let asked = self.span("guest shutdown", SpanKind::Client, (since, until));
            vcenter(asked, SHUTDOWN)
        };
        let cut = |from| {
            let cut = self.span("power off", SpanKind::Client, (from, end));
            by(finished.stats.task.as_ref(), vcenter(cut, POWER_OFF))
        };
        match within(finished, finished.stats.power_cut) {
            Some(at) if finished.stats.guest_asked => {
                let why = "the guest did not shut down in time".to_owned();
                vec![failed(asked(at), TIMEOUT, why), cut(at)]
            }
            Some(_) => vec![cut(since)],
            None => vec![asked(end)],
        }
    }

    /// The time without a host: the search for another host, then the wait for the original one.
    fn away(&self, finished: &FinishedPhase) -> Vec<Span> {
        let stats = &finished.stats;
        let (since, end) = (finished.since, finished.until);
        let found = placed_by(finished).filter(|_| stats.from_the_start);
        let (place_until, strategy) = match (within(finished, stats.host_awaited), found) {
            (Some(at), _) => (at, "wait"),
            (None, Some((found, _))) => (end, found),
            // The phase began in another process: the start of the wait is unknown, and the wait is
            // most of it.
            (None, None) => (since, "wait"),
        };
        let waited = strategy == "wait";
        let mut spans = Vec::new();
        if place_until > since || !waited {
            let place = self.span("place", SpanKind::Internal, (since, place_until));
            spans.push(placed(place, strategy, stats));
        }
        if waited {
            spans.push(self.span("wait host exit", SpanKind::Internal, (place_until, end)));
        }
        spans
    }

    /// The wait for the Node, then for its GPUs.
    fn rejoin(&self, finished: &FinishedPhase) -> Vec<Span> {
        let (since, end) = (finished.since, finished.until);
        let gpus_awaited = within(finished, finished.stats.gpus_awaited);
        let ready_until = gpus_awaited.unwrap_or(end);
        let mut spans = vec![self.span("wait node ready", SpanKind::Internal, (since, ready_until))];
        if let Some(at) = gpus_awaited {
            let mut gpus = self.span("wait gpu allocatable", SpanKind::Internal, (at, end));
            let had = self.episode.gpus_before.iter().filter(|(_, count)| **count > 0);
            let names = had.map(|(name, _)| name.clone());
            gpus.attributes.push(texts("k8s.resource.name", names));
            spans.push(gpus);
        }
        spans
    }

    /// A host that was found outside of the phase for the search: a short child of the next phase.
    fn place_at_once(&self, finished: &FinishedPhase) -> Option<Span> {
        let (strategy, next) = placed_by(finished)?;
        if matches!(finished.phase.at_work(), Phase::AwaitingHost) {
            return None;
        }
        let end = finished.until;
        let mut place = self.span("place", SpanKind::Internal, (end, after(end)));
        place.parent = Some(self.id(next, end));
        Some(placed(place, strategy, &finished.stats))
    }
}

/// The placement strategy after the phase, and the name of the next phase.
fn placed_by(finished: &FinishedPhase) -> Option<(&'static str, &'static str)> {
    match finished.outcome {
        PhaseOutcome::Relocated => Some(("relocate", "Relocating")),
        PhaseOutcome::LeftToDrs => Some(("drs", "PoweringOn")),
        PhaseOutcome::Passed
        | PhaseOutcome::TimedOut { .. }
        | PhaseOutcome::Interrupted
        | PhaseOutcome::Parked
        | PhaseOutcome::Ended => None,
    }
}

/// `at`, if it divides the phase. Unknown to a process that did not begin the phase.
fn within(finished: &FinishedPhase, at: Option<Timestamp>) -> Option<Timestamp> {
    at.filter(|_| finished.stats.from_the_start)
        .map(|at| at.clamp(finished.since, finished.until.max(finished.since)))
}

/// Completes the span of the search with the rejected hosts.
fn placed(mut place: Span, strategy: &'static str, stats: &PhaseStats) -> Span {
    place
        .attributes
        .push(text("haulout.placement.strategy", strategy));
    let at = place.end;
    let refused = stats.refused.iter().map(|RefusedHost { host, why }| SpanEvent {
        at,
        name: "host.refused",
        attributes: vec![text("vcenter.host.name", host), text("reason", why)],
    });
    place.events.extend(refused);
    place
}
