//! The metrics: what actors tell is counted as it is told, and how things stand is shown from the hub's latest picture.

mod current_state;
mod families;
mod text;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use haulout_core::named_enum;
use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

pub use families::{ALL, Descriptor, MetricKind};
pub use text::Text;

use crate::ids::NodeName;
use crate::maintenance::decide::Transition;
use crate::maintenance::effect::EffectKind;
use crate::maintenance::effect_report::{EffectReport, EffectResult};
use crate::maintenance::episode::{DrainEnd, Episode, EpisodeResult, Phase, Record};
use crate::maintenance::observed::AttemptOutcome;
use crate::maintenance::waiting::ParkReason;
use crate::status::observer::{NodeEvent, Observer, ReconcileOutcome};
use crate::status::{NodeStatuses, TriggerKind};
use current_state::CurrentState;
use families::{Counters, Families, Histogram, Labels, PREFIX, labels};

/// All metrics of the process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Those whose names are not ours.
    foreign: Registry,
    leader: Family<Labels, Gauge>,
    families: Families,
    picture: Arc<CurrentState>,
}

named_enum! {
    /// A part of the controller, or of its nodes, without which it goes on.
    pub enum Degraded {
        /// NodeMaintenance objects cannot be watched: no requests, and no second copies of records.
        NodeMaintenances = "node-maintenances",
        /// An episode stands on a Node under another annotation prefix: nothing here goes on with it.
        OtherPrefix = "other-prefix",
    }
}

impl Metrics {
    /// All metrics, at zero.
    pub fn at_zero() -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let mut foreign = Registry::default();
        let leader = families::foreign(&mut foreign);
        let families = Families::register(&mut registry);
        let picture = Arc::new(CurrentState::default());
        registry.register_collector(Box::new(Arc::clone(&picture)));
        Self {
            registry,
            foreign,
            leader,
            families,
            picture,
        }
    }

    /// All of them, as `text`.
    ///
    /// # Errors
    /// Where a metric cannot be written, which would be a fault of the program.
    pub fn write(&self, text: Text) -> Result<String, std::fmt::Error> {
        let mut open = String::new();
        prometheus_client::encoding::text::encode_registry(&mut open, &self.foreign)?;
        prometheus_client::encoding::text::encode(&mut open, &self.registry)?;
        Ok(match text {
            Text::OpenMetrics => open,
            Text::Prometheus => text::older(&open),
        })
    }

    /// Takes whether this replica leads by the Lease `name`.
    pub fn leads(&self, name: &str, leads: bool) {
        let name = vec![("name", Cow::Owned(name.to_owned()))];
        self.leader.get_or_create(&name).set(i64::from(leads));
    }

    /// Takes how nodes stand.
    pub fn show(&self, statuses: &NodeStatuses) {
        self.picture.lock().show(statuses);
    }

    /// Takes how many hosts of each cluster could take one more VM.
    pub fn show_free_gpu_hosts(&self, by_cluster: BTreeMap<String, u32>) {
        self.picture.lock().free_gpu_hosts = by_cluster;
    }

    /// Takes the name of the vCenter that it is about.
    pub fn name_vcenter(&self, name: &str) {
        name.clone_into(&mut self.picture.lock().vcenter);
    }

    /// Takes what an effect found.
    pub fn found(&self, finding: &EffectReport) {
        if let EffectResult::Tried {
            kind: EffectKind::PowerOff,
            outcome: AttemptOutcome::Running(task),
            ..
        } = &finding.found
            && let Some(reason) = self.picture.lock().cuts_power(&finding.node, task)
        {
            inc(&self.families.forced_poweroffs, [("reason", reason)]);
        }
    }

    /// Takes how many evictions were answered with this HTTP status, 0 for none.
    pub fn evictions(&self, code: u16, count: u64) {
        let code = vec![("code", Cow::Owned(code.to_string()))];
        self.families.eviction_requests.get_or_create(&code).inc_by(count);
    }

    /// Takes a call to vCenter. `operation` is one of the methods that the program knows, `code` what came of it.
    pub fn vcenter_called(&self, operation: &'static str, code: &'static str, took: Duration) {
        let both = labels([("operation", operation), ("code", code)]);
        self.families.vcenter_requests.get_or_create(&both).inc();
        let duration = self.families.vcenter_request_duration.get_or_create(&both);
        duration.observe(took.as_secs_f64(), None, None);
    }

    /// Takes whether the stream of vCenter's updates stands.
    pub fn vcenter_is(&self, up: bool) {
        self.picture.lock().is_vcenter_up = up;
    }

    /// Records whether vCenter can be reached, where several replicas may run.
    pub fn vcenter_is_reachable(&self, reachable: bool) {
        self.picture.lock().is_vcenter_reachable = Some(reachable);
    }

    /// Records the time of the last successful `WaitForUpdatesEx` response, including empty ones.
    pub fn vcenter_answered(&self, at: Timestamp) {
        self.picture.lock().vcenter_answered = Some(at);
    }

    /// Takes whether the controller goes on without this part of it.
    pub fn degraded(&self, part: Degraded, is_degraded: bool) {
        let reason = labels([("reason", part.name())]);
        let degraded = self.families.degraded.get_or_create(&reason);
        degraded.set(i64::from(is_degraded));
    }

    /// Takes how many writes of NodeMaintenance objects were refused or not answered.
    pub fn node_maintenance_writes_refused(&self, count: u64) {
        self.families.node_maintenance_writes_refused.inc_by(count);
    }

    /// Counts an Event or a change of Node conditions that was not written.
    pub fn event_dropped(&self) {
        self.families.events_dropped.inc();
    }

    /// Counts snapshots that differed from rebuilt ones.
    pub fn snapshots_outdated(&self, count: usize) {
        self.families.snapshots_outdated.inc_by(count as u64);
    }

    /// The counter of spans that were lost, for whoever loses them.
    pub fn trace_spans_lost(&self) -> Counter {
        self.families.trace_spans_lost.clone()
    }

    fn decided(&self, decision: &'static str) {
        inc(&self.families.decisions, [("decision", decision)]);
    }

    fn recorded(&self, before: &Record, transition: &Transition, at: Timestamp) {
        let was = before.episode();
        let is = transition.record.episode();
        if let Some(episode) = is
            && was.is_none_or(|was| was.id != episode.id)
        {
            self.began(episode, at);
        }
        if let Some(was) = was {
            let goes_on = is.is_some_and(|is| is.id == was.id && is.since == was.since);
            if !goes_on {
                let both = labels([
                    ("phase", was.phase.name()),
                    ("result", result_of_phase(is, transition.ended)),
                ]);
                let duration = self.families.phase_duration.get_or_create(&both);
                observe(&duration, was.since, at, was);
            }
            if let Some(is) = is.filter(|is| !goes_on && cuts_pods_off(was, is)) {
                let count = u64::try_from(is.left_behind.len()).unwrap_or(u64::MAX);
                self.families.drain_pods_left_behind.inc_by(count);
            }
            let was_queued = matches!(was.phase.at_work(), Phase::Queued);
            if was_queued && is.is_some_and(|is| is.phase.is_draining()) {
                observe(&self.families.queue_wait, was.begun_at, at, was);
            }
            if let Some(ended) = transition.ended {
                self.ended(was, ended, at);
            }
        }
    }

    fn began(&self, episode: &Episode, at: Timestamp) {
        let trigger = episode.trigger_kind();
        inc(&self.families.episodes_started, [("trigger", trigger.name())]);
        if let Some(source) = episode.trigger.detection {
            // A click from before the process tells how long nobody listened, not how long listening takes.
            let source = labels([("source", source.name())]);
            let latency = self.families.detection_latency.get_or_create(&source);
            observe(&latency, episode.trigger.clicked_at, at, episode);
        }
        if trigger != TriggerKind::Adopted && episode.phase.is_draining() {
            observe(&self.families.queue_wait, at, at, episode);
        }
    }

    fn ended(&self, episode: &Episode, ended: EpisodeResult, at: Timestamp) {
        let result = result(ended);
        let placement = match (&episode.moved_to, episode.powered_off) {
            (Some(_), _) => "migrated",
            (None, true) => "returned",
            (None, false) => "none",
        };
        let both = [("result", result), ("placement", placement)];
        inc(&self.families.episodes_finished, both);
        let result = labels([("result", result)]);
        let duration = self.families.episode_duration.get_or_create(&result);
        observe(&duration, episode.begun_at, at, episode);
    }
}

impl Observer for Metrics {
    fn observe(&self, node: &NodeName, told: NodeEvent<'_>) {
        match told {
            NodeEvent::Recorded {
                before,
                transition,
                wrote: (_, at),
                ..
            } => {
                self.decided("record");
                // After a change for people an actor tells anew what its node waits for.
                if !transition.is_bookkeeping(before) {
                    self.picture.lock().waits.remove(node);
                }
                self.recorded(before, transition, at);
            }
            NodeEvent::NotRecorded { .. } => self.decided("record_refused"),
            NodeEvent::Asks { effect, .. } => self.decided(effect.kind().name()),
            NodeEvent::Waits { on, .. } => {
                self.decided("wait");
                self.picture.lock().waits.insert(node.clone(), on.kind());
            }
        }
    }

    fn turned(&self, turn: ReconcileOutcome, took: Duration) {
        let result = labels([("result", families::name_of(turn))]);
        self.families.reconcile.get_or_create(&result).inc();
        let duration = self.families.reconcile_duration.get_or_create(&result);
        duration.observe(took.as_secs_f64(), None, None);
    }
}

/// Whether a drain that timed out is followed by a shutdown with the pods that are left.
fn cuts_pods_off(was: &Episode, is: &Episode) -> bool {
    matches!(was.phase.at_work(), Phase::Draining)
        && matches!(is.phase.at_work(), Phase::ShuttingDown(DrainEnd::TimedOut))
}

/// An episode ends in these ways alone: what cannot go on is parked and goes on later, and only a relocation that a person
/// asks for is ever given up.
fn result(ended: EpisodeResult) -> &'static str {
    match ended {
        EpisodeResult::Succeeded => "success",
        EpisodeResult::Cancelled => "cancelled",
        EpisodeResult::Failed => "failed",
    }
}

/// How a phase ended, by what came after it: a phase may fail or be late, though its episode goes on.
fn result_of_phase(next: Option<&Episode>, ended: Option<EpisodeResult>) -> &'static str {
    let Some(Episode { phase, .. }) = next else {
        return ended.map_or("success", result);
    };
    match phase.parked() {
        Some((ParkReason::Overdue { .. }, _)) => "timeout",
        Some(_) => "failed",
        None if *phase == Phase::ShuttingDown(DrainEnd::TimedOut) => "timeout",
        None => "success",
    }
}

fn inc<const N: usize>(counters: &Counters, pairs: [(&'static str, &'static str); N]) {
    counters.get_or_create(&labels(pairs)).inc();
}

/// Counts the time between the two, which clocks that differ may turn around: then it is none.
fn observe(histogram: &Histogram, from: Timestamp, to: Timestamp, episode: &Episode) {
    let took = to.duration_since(from).as_secs_f64().max(0.0);
    let trace = [("trace_id", episode.id.to_string())];
    histogram.observe(took, Some(trace), None);
}

#[cfg(test)]
mod tests;
