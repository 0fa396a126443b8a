//! The metrics. Events of actors are counted; gauges show the latest status.

mod current_state;
mod families;
mod text;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

pub use families::{ALL, Descriptor, MetricKind};
pub use text::Text;

use current_state::CurrentState;
use families::{Counters, Families, Histogram, Labels, PREFIX, labels};
use haulout_controller::observer::{ConnectionState, Observer, WatchedApi};
use haulout_core::ids::NodeName;
use haulout_core::inventory::{Fact, Inventory};
use haulout_core::maintenance::decide::Transition;
use haulout_core::maintenance::effect::EffectKind;
use haulout_core::maintenance::effect_report::{EffectReport, EffectResult};
use haulout_core::maintenance::episode::{DrainEnd, Episode, EpisodeResult, Phase, Record};
use haulout_core::maintenance::observed::AttemptOutcome;
use haulout_core::maintenance::waiting::ParkReason;
use haulout_core::named_enum;
use haulout_core::status::node_event::{NodeEvent, ReconcileOutcome};
use haulout_core::status::story::Beat;
use haulout_core::status::{NodeStatuses, TriggerKind};
use haulout_kubernetes::lease::ElectionStatus;

#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Metrics with names shared by all controllers.
    foreign: Registry,
    leader: Family<Labels, Gauge>,
    families: Families,
    current: Arc<CurrentState>,
}

named_enum! {
    /// A degraded part of the controller, without which it continues.
    pub enum Degraded {
        /// NodeMaintenance objects cannot be watched: no requests, no second copies of records.
        NodeMaintenances = "node-maintenances",
        /// NodeMaintenance objects of another project cannot be watched: no requests of that kind.
        ForeignNodeMaintenances = "foreign-node-maintenances",
    }
}

impl Degraded {
    /// Each part, with the reason if it is degraded.
    pub fn parts(inventory: &Inventory) -> [(Self, Option<String>); 2] {
        let own = inventory.ignored_request_watch().map(|why| {
            format!(
                "NodeMaintenance objects cannot be watched, so there are no requests and no second copies of records: {why}"
            )
        });
        let foreign = inventory.ignored_foreign_watch().map(|(api, why)| {
            format!("the NodeMaintenance objects of {api} cannot be watched, so there are no requests of this kind: {why}")
        });
        [
            (Self::NodeMaintenances, own),
            (Self::ForeignNodeMaintenances, foreign),
        ]
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let mut foreign = Registry::default();
        let leader = families::foreign(&mut foreign);
        let families = Families::register(&mut registry);
        let current = Arc::new(CurrentState::default());
        registry.register_collector(Box::new(Arc::clone(&current)));
        Self {
            registry,
            foreign,
            leader,
            families,
            current,
        }
    }
}

impl Metrics {
    /// Encodes all metrics as `text`.
    ///
    /// # Errors
    /// If a metric cannot be encoded, which is a bug.
    pub fn write(&self, text: Text) -> Result<String, std::fmt::Error> {
        let mut open = String::new();
        prometheus_client::encoding::text::encode_registry(&mut open, &self.foreign)?;
        prometheus_client::encoding::text::encode(&mut open, &self.registry)?;
        Ok(match text {
            Text::OpenMetrics => open,
            Text::Prometheus => text::to_prometheus(&open),
        })
    }

    /// Sets whether this replica leads by the Lease `name`.
    fn leads(&self, name: &str, leads: bool) {
        let name = vec![("name", Cow::Owned(name.to_owned()))];
        self.leader.get_or_create(&name).set(i64::from(leads));
    }

    /// Updates the status of nodes.
    fn update_statuses(&self, statuses: &Arc<NodeStatuses>) {
        self.current.lock().update_statuses(Arc::clone(statuses));
    }

    /// Sets how many hosts of each cluster could take one more VM.
    fn show_free_gpu_hosts(&self, by_cluster: BTreeMap<String, u32>) {
        self.current.lock().free_gpu_hosts = by_cluster;
    }

    /// Sets the name of the vCenter.
    pub fn set_vcenter_name(&self, name: &str) {
        name.clone_into(&mut self.current.lock().vcenter);
    }

    /// Counts the result of an effect.
    fn effect_reported(&self, report: &EffectReport) {
        if let EffectResult::Tried {
            kind: EffectKind::PowerOff,
            outcome: AttemptOutcome::Running(task),
            ..
        } = &report.found
            && let Some(reason) = self.current.lock().cuts_power(&report.node, task)
        {
            inc(&self.families.forced_poweroffs, [("reason", reason)]);
        }
    }

    /// Counts evictions by the HTTP status of the response, 0 for none.
    pub fn evictions(&self, code: u16, count: u64) {
        let code = vec![("code", Cow::Owned(code.to_string()))];
        self.families.eviction_requests.get_or_create(&code).inc_by(count);
    }

    /// Counts a call to vCenter. `operation` is a known method, `code` its outcome.
    pub fn vcenter_called(&self, operation: &'static str, code: &'static str, duration: Duration) {
        let both = labels([("operation", operation), ("code", code)]);
        self.families.vcenter_requests.get_or_create(&both).inc();
        let histogram = self.families.vcenter_request_duration.get_or_create(&both);
        histogram.observe(duration.as_secs_f64(), None, None);
    }

    /// Sets whether vCenter is reachable, if several replicas may run.
    pub fn set_vcenter_reachable(&self, reachable: bool) {
        self.current.lock().is_vcenter_reachable = Some(reachable);
    }

    /// Records the time of the last successful `WaitForUpdatesEx` response, including empty ones.
    pub fn vcenter_answered(&self, at: Timestamp) {
        self.current.lock().vcenter_answered = Some(at);
    }

    /// Counts failed writes of NodeMaintenance objects.
    pub fn node_maintenance_writes_refused(&self, count: u64) {
        self.families.node_maintenance_writes_refused.inc_by(count);
    }

    /// Counts an Event or a condition change that was not written.
    pub fn event_dropped(&self) {
        self.families.events_dropped.inc();
    }

    /// The counter of events that vCenter did not take, for those that post them.
    pub fn vcenter_events_lost(&self) -> Counter {
        self.families.vcenter_events_lost.clone()
    }

    /// The counter of lost notifications, for those that send them.
    pub fn notifications_lost(&self) -> Counter {
        self.families.notifications_lost.clone()
    }

    /// The counter of failed requests to an Alertmanager, for those that send them.
    pub fn silence_requests_failed(&self) -> Counter {
        self.families.silence_requests_failed.clone()
    }

    /// The counter of lost spans, for the exporter.
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
            self.episode_began(episode, at);
        }
        if let Some(was) = was {
            if let Some(is) = is.filter(|is| is.machine_guards.left.is_some())
                && was.machine_guards.left.is_none()
            {
                let count = u64::try_from(is.machine_guards.objects.len()).unwrap_or(u64::MAX);
                self.families.machine_guards_left.inc_by(count);
            }
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

    fn episode_began(&self, episode: &Episode, at: Timestamp) {
        let trigger = episode.trigger_kind();
        inc(&self.families.episodes_started, [("trigger", trigger.name())]);
        if let Some(source) = episode.trigger.detection {
            // For a task from before the process started this is not the latency of detection; the
            // source says so.
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
    fn observe(&self, node: &NodeName, beat: &Beat<'_>) {
        match beat.event {
            NodeEvent::Recorded {
                before, transition, ..
            } => {
                self.decided("record");
                // After a transition the actor reports its next wait again.
                if beat.is_new {
                    self.current.lock().waits.remove(node);
                }
                self.recorded(before, transition, beat.at);
            }
            NodeEvent::NotRecorded { .. } => self.decided("record_refused"),
            NodeEvent::Forecasts { .. } => {}
            NodeEvent::Asks { effect, .. } => self.decided(effect.kind().name()),
            NodeEvent::Waits { on, .. } => {
                self.decided("wait");
                self.current.lock().waits.insert(node.clone(), on.kind());
            }
        }
    }

    fn reconciled(&self, outcome: ReconcileOutcome, duration: Duration) {
        let result = labels([("result", outcome.name())]);
        self.families.reconcile.get_or_create(&result).inc();
        let histogram = self.families.reconcile_duration.get_or_create(&result);
        histogram.observe(duration.as_secs_f64(), None, None);
    }

    fn election(&self, lease: &str, status: &ElectionStatus) {
        self.leads(lease, status.leadership.is_some());
    }

    fn connection(&self, api: WatchedApi, state: ConnectionState<'_>) {
        if api == WatchedApi::Vcenter {
            self.current.lock().is_vcenter_up = !matches!(state, ConnectionState::Lost { .. });
        }
    }

    fn fact(&self, fact: &Fact) {
        if let Fact::Effect(report) = fact {
            self.effect_reported(report);
        }
    }

    fn applied(&self, inventory: &Inventory) {
        for (part, reason) in Degraded::parts(inventory) {
            let degraded = self
                .families
                .degraded
                .get_or_create(&labels([("reason", part.name())]));
            degraded.set(i64::from(reason.is_some()));
        }
    }

    fn built_by_leader(&self, statuses: &Arc<NodeStatuses>, _inventory: &Inventory) {
        self.update_statuses(statuses);
    }

    fn leader_tick(&self, inventory: &Inventory) {
        self.show_free_gpu_hosts(inventory.free_gpu_hosts());
    }
}

/// Whether a drain that timed out is followed by a shutdown with pods left.
fn cuts_pods_off(was: &Episode, is: &Episode) -> bool {
    matches!(was.phase.at_work(), Phase::Draining)
        && matches!(is.phase.at_work(), Phase::ShuttingDown(DrainEnd::TimedOut))
}

/// Failed: a person requested a relocation and no host could take the VM. Everything else is parked and
/// resumes.
fn result(ended: EpisodeResult) -> &'static str {
    match ended {
        EpisodeResult::Succeeded | EpisodeResult::Vmotioned => "success",
        EpisodeResult::Cancelled => "cancelled",
        EpisodeResult::Failed => "failed",
    }
}

/// The result of a phase, from the record after it: a phase may fail although its episode continues.
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

/// Observes a duration; a negative one, from clocks that differ, counts as 0.
fn observe(histogram: &Histogram, from: Timestamp, to: Timestamp, episode: &Episode) {
    let duration = to.duration_since(from).as_secs_f64().max(0.0);
    let trace = [("trace_id", episode.id.to_string())];
    histogram.observe(duration, Some(trace), None);
}

#[cfg(test)]
mod tests;
