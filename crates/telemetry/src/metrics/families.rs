//! All metrics: name, labels, help, and registration.

use std::borrow::Cow;

use haulout_core::named_enum;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry, Unit};

use haulout_core::maintenance::episode::Detection;
use haulout_core::status::node_event::ReconcileOutcome;
use haulout_core::status::{PhaseKind, TriggerKind};

/// The prefix of our metrics.
pub(super) const PREFIX: &str = "haulout";

/// A set of labels. Values come from closed lists, or are names of our nodes and their hosts.
pub(super) type Labels = Vec<(&'static str, Cow<'static, str>)>;

/// A histogram; exemplars have the trace of the latest episode in each bucket.
pub(super) type Histogram = HistogramWithExemplars<[(&'static str, String); 1]>;

/// A second to a day: a drain takes minutes, host maintenance hours.
const LONG_BUCKETS: [f64; 17] = [
    1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0,
    43200.0, 86400.0,
];

/// A push arrives within a second, a re-read within its interval.
const DETECTION_BUCKETS: [f64; 11] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// A call takes milliseconds, the long poll up to minutes.
const REQUEST_BUCKETS: [f64; 12] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0,
];

/// A reconcile that only decides takes microseconds; one with a write or a call takes as long as that.
const RECONCILE_BUCKETS: [f64; 9] = [0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0];

named_enum! {
    /// The type of a metric.
    pub enum MetricKind {
        /// Only increases, from 0 at process start.
        Counter = "counter",
        Gauge = "gauge",
        /// Counts values by bucket.
        Histogram = "histogram",
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    stem: &'static str,
    is_seconds: bool,
    is_foreign: bool,
    /// Whether name, type and labels stay the same until the next major version.
    pub is_stable: bool,
    pub kind: MetricKind,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

impl Descriptor {
    /// The full name, as in queries.
    pub fn name(&self) -> String {
        if self.is_foreign {
            return self.stem.to_owned();
        }
        let seconds = if self.is_seconds { "_seconds" } else { "" };
        let is_counter = self.kind == MetricKind::Counter;
        let total = if is_counter { "_total" } else { "" };
        format!("{PREFIX}_{}{seconds}{total}", self.stem)
    }

    pub(super) fn stem(&self) -> &'static str {
        self.stem
    }

    pub(super) fn unit(&self) -> Option<Unit> {
        self.is_seconds.then_some(Unit::Seconds)
    }

    const fn new(
        kind: MetricKind,
        stem: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self {
            stem,
            is_seconds: false,
            is_foreign: false,
            is_stable: true,
            kind,
            labels,
            help,
        }
    }

    /// Uses the name that other controllers use too, without our prefix.
    const fn shared_name(mut self) -> Self {
        self.is_foreign = true;
        self
    }

    /// May change with any version.
    const fn alpha(mut self) -> Self {
        self.is_stable = false;
        self
    }

    const fn in_seconds(mut self) -> Self {
        self.is_seconds = true;
        self
    }
}

/// Declares each metric as a constant, and the list of all of them.
macro_rules! metrics {
    ($($constant:ident: $kind:ident, $stem:literal, [$($label:literal),*], $help:literal $(, $mark:ident)*;)*) => {
        $(pub(super) const $constant: Descriptor =
            Descriptor::new(MetricKind::$kind, $stem, &[$($label),*], $help)$(.$mark())*;)*

        /// All metrics, by topic.
        pub const ALL: &[Descriptor] = &[$($constant),*];
    };
}

metrics! {
    BUILD_INFO: Gauge, "build_info", ["version", "revision"],
        "1, with the version and the commit it was built from";
    LEADER: Gauge, "leader_election_master_status", ["name"],
        "1 while this replica leads by the Lease of that name, 0 while it does not; absent without leader election", shared_name;
    DETECTION_LATENCY: Histogram, "detection_latency", ["source"],
        "From the start of the maintenance task on vCenter's clock until the episode is recorded on its Node on ours; negative \
         values count as 0. The source is property_collector for a push, poll for the re-read every POLL_INTERVAL_SECONDS, \
         startup for a task older than the process", in_seconds;
    EPISODES_STARTED: Counter, "episodes_started", ["trigger"],
        "Episodes that began, by trigger: a task, host_state for a host in maintenance without a task, request for a \
         NodeMaintenance, adopted from the Python controller, stray for a VM that went off after its episode had ended";
    EPISODES_FINISHED: Counter, "episodes_finished", ["result", "placement"],
        "Episodes that ended: with success, cancelled, or failed if the node is back but the request could not be fulfilled. \
         The placement is migrated, returned to its host, or none if the VM was never off";
    EPISODES_ACTIVE: Gauge, "episodes_active", ["phase"],
        "Nodes in each phase of an episode";
    EPISODE_DURATION: Histogram, "episode_duration", ["result"],
        "From the first record of an episode until its end, including its wait in the queue", in_seconds;
    PHASE_DURATION: Histogram, "phase_duration", ["phase", "result"],
        "Duration of ended phases: with success, cancelled, timeout if the drain timed out or the phase was parked as overdue, \
         failed if it was parked for another reason or its episode failed", in_seconds;
    NODE_PHASE: Gauge, "node_phase", ["node", "phase"],
        "1 for the phase of the node, 0 for the others; InService without an episode";
    NODE_PHASE_START: Gauge, "node_phase_start_timestamp", ["node"],
        "Start of the current phase of the node's episode; absent without an episode", in_seconds;
    WAITING_ON: Gauge, "waiting_on", ["node", "kind"],
        "1 for what the node waits for, as waiting_on in the log; absent if it does not wait", alpha;
    NODE_MAINTAINABLE: Gauge, "node_maintainable", ["node", "reason"],
        "1 with the reason none if nothing about VM and Node stands against a maintenance; 0 with each reason that stands against it \
         or makes it worse, as kubectl haulout report names them", alpha;
    QUEUE_DEPTH: Gauge, "queue_depth", [],
        "Nodes in the phase Queued: they wait for a slot under MAX_CONCURRENT_DRAINS and the other limits, for an approval, or for \
         a host for a relocation";
    QUEUE_POSITION: Gauge, "queue_position", ["node", "limit"],
        "Position of a node among those that wait for a slot, from 1, with the setting that is the limit; absent with a slot";
    QUEUE_WAIT: Histogram, "queue_wait", [],
        "From the first record of an episode until its drain began; 0 if it began at once", in_seconds;
    DRAIN_PODS_PENDING: Gauge, "drain_pods_pending", ["node", "reason"],
        "Remaining pods of a draining node in the latest round: blocked by a pdb, terminating, or other";
    DRAIN_PODS_LEFT_BEHIND: Counter, "drain_pods_left_behind", [],
        "Pods that remained when a drain timed out and the VM was shut down";
    EVICTION_REQUESTS: Counter, "eviction_requests", ["code"],
        "Eviction requests by the HTTP status of the response: 201 is accepted, 0 is no response. Counted at the end of a round";
    FORCED_POWEROFFS: Counter, "forced_poweroffs", ["reason"],
        "Times the power of a VM was cut because its guest did not shut down: at the guest_deadline, or because of no_tools, \
         without VMware Tools";
    VCENTER_REQUESTS: Counter, "vcenter_requests", ["operation", "code"],
        "Calls to vCenter by outcome: ok, fault, no_answer, unreadable";
    VCENTER_REQUEST_DURATION: Histogram, "vcenter_request_duration", ["operation", "code"],
        "Duration of calls to vCenter; WaitForUpdatesEx is the long poll, which waits by design", in_seconds;
    VCENTER_SESSION_UP: Gauge, "vcenter_session_up", ["vcenter"],
        "1 while the vCenter update stream is connected; a standby has none";
    VCENTER_REACHABLE: Gauge, "vcenter_reachable", ["vcenter"],
        "1 while the vCenter update stream is connected, or vCenter answers the probe of a standby; absent without leader \
         election", alpha;
    VCENTER_LAST_UPDATE: Gauge, "vcenter_last_update_timestamp", ["vcenter"],
        "Time of the last response to the long poll for updates", in_seconds;
    HOST_MAINTENANCE_STATE: Gauge, "host_maintenance_state", ["host", "state"],
        "1 for the state of a host with a VM of a node, 0 for the others: normal, entering, in, or unknown";
    NODE_HOST: Gauge, "node_host_info", ["node", "host"],
        "1 for the host of the node's VM, also while it is off: joins metrics of nodes with those of hosts", alpha;
    EVACUATION_POLICY_NODES: Gauge, "nodes_with_evacuation_policy", [],
        "Nodes whose VM vCenter itself shuts down when its host enters maintenance, because maintenance.vm.evacuation.poweroff is \
         set on it or a compute policy says so: their pods may end before they are evicted", alpha;
    FREE_GPU_HOSTS: Gauge, "free_gpu_hosts", ["compute_cluster"],
        "Hosts in service with a free device that fits a VM of a node in that vSphere cluster. Devices of other VMs are \
         seen only while an episode searches for a host, so there may be fewer", alpha;
    DECISIONS: Counter, "decisions", ["decision"],
        "Decisions: record, record_refused, or an effect; wait is counted when the reason of the wait changes", alpha;
    RECONCILE: Counter, "reconcile", ["result"],
        "Reconciles of nodes, each with at most one action: it recorded, acted, waited or rested; outdated if the Node had \
         changed meanwhile, refused if the kube-apiserver rejected a change", alpha;
    RECONCILE_DURATION: Histogram, "reconcile_duration", ["result"],
        "Duration of reconciles, including the PATCH of a record or the calls of an effect", in_seconds, alpha;
    DEGRADED: Gauge, "degraded", ["reason"],
        "1 while the controller works without a part: node-maintenances if NodeMaintenance objects cannot be watched, \
         foreign-node-maintenances if those of another project cannot", alpha;
    MACHINE_GUARDS_LEFT: Counter, "machine_guards_left", [],
        "Objects of Cluster API or OpenShift on which a guard was left at the end of an episode, because it could not be removed. \
         The log and the Event GuardFailed name them, and the commands that remove the guards";
    NODE_MAINTENANCE_WRITES_REFUSED: Counter, "node_maintenance_writes_refused", [],
        "Failed writes of NodeMaintenance objects; each is retried after 1 s at first and after five minutes at most";
    EVENTS_DROPPED: Counter, "events_dropped", [],
        "Events and changes of Node conditions that were not written and are not retried: more than 512 about Nodes or 2,048 \
         about pods were queued, or the kube-apiserver refused one or did not respond. The log has the same; maintenance \
         continues";
    VCENTER_EVENTS_LOST: Counter, "vcenter_events_lost", [],
        "Events that vCenter did not take within half an hour of attempts. Those without the privilege Global.LogEvent are not \
         counted", alpha;
    TRACE_SPANS_LOST: Counter, "trace_spans_lost", [],
        "Spans that were not exported: the collector was down, too slow, or refused them";
    NOTIFICATIONS_LOST: Counter, "notifications_lost", [],
        "Notifications that the receiver of NOTIFY_URL_FILE did not take", alpha;
    SILENCE_REQUESTS_FAILED: Counter, "silence_requests_failed", [],
        "Requests to the Alertmanager of ALERTMANAGER_URL_FILE that failed. They are tried again; meanwhile, alerts of nodes in \
         maintenance may be sent", alpha;
}

pub(super) type Counters = Family<Labels, Counter>;
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// Declares the metrics that are updated by events.
macro_rules! families {
    ($($field:ident: $type:ty = $descriptor:ident, $empty:expr;)+) => {
        /// The metrics that are updated by events.
        #[derive(Debug)]
        pub(super) struct Families {
            $(pub(super) $field: $type),+
        }

        impl Families {
            pub(super) fn register(registry: &mut Registry) -> Self {
                let families = Self {
                    $($field: registered(registry, &$descriptor, $empty)),+
                };
                families.create_series();
                families
            }
        }
    };
}

families! {
    detection_latency: Histograms = DETECTION_LATENCY, histograms(|| Histogram::new(DETECTION_BUCKETS.into_iter()));
    episodes_started: Counters = EPISODES_STARTED, Family::default();
    episodes_finished: Counters = EPISODES_FINISHED, Family::default();
    episode_duration: Histograms = EPISODE_DURATION, histograms(|| Histogram::new(LONG_BUCKETS.into_iter()));
    phase_duration: Histograms = PHASE_DURATION, histograms(|| Histogram::new(LONG_BUCKETS.into_iter()));
    queue_wait: Histogram = QUEUE_WAIT, Histogram::new(LONG_BUCKETS.into_iter());
    drain_pods_left_behind: Counter = DRAIN_PODS_LEFT_BEHIND, Counter::default();
    eviction_requests: Counters = EVICTION_REQUESTS, Family::default();
    forced_poweroffs: Counters = FORCED_POWEROFFS, Family::default();
    vcenter_requests: Counters = VCENTER_REQUESTS, Family::default();
    vcenter_request_duration: Histograms = VCENTER_REQUEST_DURATION, histograms(|| Histogram::new(REQUEST_BUCKETS.into_iter()));
    decisions: Counters = DECISIONS, Family::default();
    reconcile: Counters = RECONCILE, Family::default();
    reconcile_duration: Histograms = RECONCILE_DURATION, histograms(|| Histogram::new(RECONCILE_BUCKETS.into_iter()));
    degraded: Family<Labels, Gauge> = DEGRADED, Family::default();
    machine_guards_left: Counter = MACHINE_GUARDS_LEFT, Counter::default();
    node_maintenance_writes_refused: Counter = NODE_MAINTENANCE_WRITES_REFUSED, Counter::default();
    events_dropped: Counter = EVENTS_DROPPED, Counter::default();
    vcenter_events_lost: Counter = VCENTER_EVENTS_LOST, Counter::default();
    trace_spans_lost: Counter = TRACE_SPANS_LOST, Counter::default();
    notifications_lost: Counter = NOTIFICATIONS_LOST, Counter::default();
    silence_requests_failed: Counter = SILENCE_REQUESTS_FAILED, Counter::default();
}

impl Families {
    /// Creates the counters and histograms that alerts and the dashboard use: one that appears with its first event shows no
    /// increase.
    fn create_series(&self) {
        for trigger in TriggerKind::ALL {
            let trigger = labels([("trigger", trigger.name())]);
            let _ = self.episodes_started.get_or_create(&trigger);
        }
        for result in ["success", "cancelled", "failed"] {
            for placement in ["migrated", "returned", "none"] {
                let both = labels([("result", result), ("placement", placement)]);
                let _ = self.episodes_finished.get_or_create(&both);
            }
        }
        for result in ["success", "cancelled", "failed"] {
            let _ = self.episode_duration.get_or_create(&labels([("result", result)]));
        }
        for phase in PhaseKind::ALL {
            if !matches!(phase, PhaseKind::InService | PhaseKind::Adopting) {
                let both = labels([("phase", phase.name()), ("result", "success")]);
                let _ = self.phase_duration.get_or_create(&both);
            }
        }
        for source in [Detection::Pushed, Detection::Polled] {
            let source = labels([("source", source.name())]);
            let _ = self.detection_latency.get_or_create(&source);
        }
        for result in ReconcileOutcome::ALL {
            let result = labels([("result", result.name())]);
            let _ = self.reconcile.get_or_create(&result);
        }
        for part in super::Degraded::ALL {
            let _ = self.degraded.get_or_create(&labels([("reason", part.name())]));
        }
        for reason in ["guest_deadline", "no_tools"] {
            let _ = self.forced_poweroffs.get_or_create(&labels([("reason", reason)]));
        }
    }
}

/// Labels with constant values.
pub(super) fn labels<const N: usize>(pairs: [(&'static str, &'static str); N]) -> Labels {
    pairs
        .into_iter()
        .map(|(name, value)| (name, Cow::Borrowed(value)))
        .collect()
}

/// The metrics without our prefix.
pub(super) fn foreign(registry: &mut Registry) -> Family<Labels, Gauge> {
    registered(registry, &LEADER, Family::default())
}

fn histograms(empty: fn() -> Histogram) -> Histograms {
    Family::new_with_constructor(empty)
}

fn registered<M: Metric + Clone>(registry: &mut Registry, descriptor: &Descriptor, metric: M) -> M {
    match descriptor.unit() {
        Some(unit) => {
            registry.register_with_unit(descriptor.stem(), descriptor.help, unit, metric.clone());
        }
        None => registry.register(descriptor.stem(), descriptor.help, metric.clone()),
    }
    metric
}
