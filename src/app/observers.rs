//! The observers of the event loop: the metrics, the health checks, the status page, NodeMaintenance objects and traces.

use std::sync::{Arc, Once};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tracing::{info, warn};

use crate::controller::event_loop::LoopObserver;
use crate::controller::executor::OnEvictions;
use crate::http::health::Health;
use crate::http::status::StatusPage;
use crate::http::status::view::PageLeadership;
use crate::ids::NodeName;
use crate::inventory::{Built, Fact, Inventory, UnhandledHost, UnhandledModes};
use crate::kubernetes::lease::ElectionStatus;
use crate::kubernetes::update as kubernetes;
use crate::maintenance::waiting::few;
use crate::nodemaintenance::objects::StatusReconciler;
use crate::status::{NodeStatus, NodeStatuses, ToldOnce, statuses};
use crate::telemetry::events::Events;
use crate::telemetry::metrics::{Degraded, Metrics};
use crate::telemetry::silences::SilenceBoard;
use crate::telemetry::trace::Traces;
use crate::telemetry::vcenter_attribute::AttributeBoard;
use crate::vsphere::client::{CallOutcome, Callback};
use crate::vsphere::update::VsphereUpdate;

/// The method of the long poll.
const LONG_POLL: &str = "WaitForUpdatesEx";

/// The observers of the event loop.
#[derive(Clone, Debug)]
pub(super) struct Observers {
    pub(super) metrics: Arc<Metrics>,
    pub(super) health: Arc<Health>,
    pub(super) objects: Option<Arc<StatusReconciler>>,
    pub(super) status: Option<Arc<StatusPage>>,
    /// The name of the Lease; `None` without leader election.
    pub(super) lease: Option<String>,
    pub(super) traces: Option<Arc<Traces>>,
    pub(super) events: Option<Arc<Events>>,
    /// The custom attribute in vCenter.
    pub(super) attribute: Option<AttributeBoard>,
    /// The silences in an Alertmanager.
    pub(super) silences: Option<SilenceBoard>,
    inventory_logged: Arc<Once>,
    evacuation_policies: Arc<Mutex<ToldOnce>>,
    nodes_without_vm: Arc<Mutex<ToldOnce>>,
    unhandled_modes: Arc<Mutex<UnhandledModes>>,
}

impl Observers {
    pub(super) fn of(lease: Option<String>) -> Self {
        Self {
            metrics: Arc::new(Metrics::default()),
            health: Arc::new(Health::default()),
            objects: None,
            status: None,
            lease,
            traces: None,
            events: None,
            attribute: None,
            silences: None,
            inventory_logged: Arc::new(Once::new()),
            evacuation_policies: Arc::default(),
            nodes_without_vm: Arc::default(),
            unhandled_modes: Arc::default(),
        }
    }

    /// Warns once of each host that is asked for something that Haulout does not react to.
    fn warn_of_unhandled(&self, hosts: Vec<UnhandledHost>) {
        let mut modes = self.unhandled_modes.lock();
        for untold in modes.take_new(hosts) {
            if untold.is_new {
                let nodes: Vec<&str> = untold.of.nodes.keys().map(NodeName::as_str).collect();
                warn!(
                    host = untold.of.name,
                    nodes = few(&nodes),
                    "{}",
                    untold.of.sentence()
                );
            }
            if let Some(events) = &self.events {
                events.unhandled(&untold.of);
            }
        }
    }

    /// Warns once of each node whose VM vCenter itself shuts down for maintenance.
    fn warn_of_evacuation_policies(&self, statuses: &NodeStatuses) {
        let untold = self.untold(&self.evacuation_policies, statuses, NodeStatus::evacuation_policy);
        let names: Vec<&str> = untold.iter().map(NodeName::as_str).collect();
        if !names.is_empty() {
            warn!(
                count = names.len(),
                nodes = few(&names),
                "vCenter itself shuts down the VMs of these nodes when their hosts enter maintenance, because \
                 maintenance.vm.evacuation.poweroff is set on them or a compute policy says so; their pods may end before they are evicted"
            );
        }
    }

    /// Tells once of each node that is left alone because it is no VM.
    fn tell_of_nodes_without_vm(&self, statuses: &NodeStatuses) {
        let untold = self.untold(&self.nodes_without_vm, statuses, NodeStatus::is_no_vm);
        let names: Vec<&str> = untold.iter().map(NodeName::as_str).collect();
        if !names.is_empty() {
            info!(
                count = names.len(),
                nodes = few(&names),
                "vCenter knows no VM of these nodes, and nothing says that they are VMs of vSphere: they are left alone"
            );
        }
    }

    /// The nodes to be told now; none until all are known.
    fn untold(
        &self,
        told: &Mutex<ToldOnce>,
        statuses: &NodeStatuses,
        concerns: impl Fn(&NodeStatus) -> Option<bool>,
    ) -> Vec<NodeName> {
        let mut told = told.lock();
        told.update_statuses(statuses, concerns);
        match self.health.is_ready() {
            true => told.take_new(),
            false => Vec::new(),
        }
    }

    fn vcenter(&self, synced: Result<(), String>) {
        if let Some(status) = &self.status {
            status.vcenter(synced.clone());
        }
        self.health.vcenter(synced);
    }

    fn kubernetes(&self, synced: Result<(), String>) {
        if let Some(objects) = &self.objects {
            objects.set_nodes_synced(synced.is_ok());
        }
        if let Some(status) = &self.status {
            status.kubernetes(synced.clone());
        }
        self.health.kubernetes(synced);
    }

    /// Counts calls to vCenter.
    pub(super) fn on_answer(
        &self,
        clock: fn() -> Timestamp,
    ) -> Callback<(&'static str, CallOutcome, Duration)> {
        let (metrics, status) = (Arc::clone(&self.metrics), self.status.clone());
        Callback::new(move |(method, outcome, took)| {
            let code = match outcome {
                CallOutcome::Returned => "ok",
                CallOutcome::Fault => "fault",
                CallOutcome::Nothing => "no_answer",
                CallOutcome::Unreadable => "unreadable",
            };
            metrics.vcenter_called(method, code, took);
            if method == LONG_POLL && outcome == CallOutcome::Returned {
                metrics.vcenter_answered(clock());
                if let Some(status) = &status {
                    status.vcenter_answered();
                }
            }
        })
    }

    /// Counts evictions.
    pub(super) fn on_evictions(&self) -> OnEvictions {
        let metrics = Arc::clone(&self.metrics);
        Box::new(move |code, count| metrics.evictions(code, count))
    }

    /// Counts Events that are dropped.
    pub(super) fn on_event_dropped(&self) -> impl Fn() + Send + Sync + 'static {
        let metrics = Arc::clone(&self.metrics);
        move || metrics.event_dropped()
    }
}

impl LoopObserver for Observers {
    fn turned(&self) {
        self.health.event_loop_progressed();
    }

    fn election(&self, election: &ElectionStatus) {
        let Some(lease) = &self.lease else { return };
        self.metrics.leads(lease, election.leadership.is_some());
        let who = match (&election.leadership, &election.leader) {
            (Some(leadership), _) if leadership.yields => format!(
                "this replica leads, epoch {}, and yields to one that reaches vCenter",
                leadership.epoch
            ),
            (Some(leadership), _) => format!("this replica leads, epoch {}", leadership.epoch),
            (None, Some(leader)) => format!("{leader} leads"),
            (None, None) => "no replica leads".to_owned(),
        };
        self.health.leadership(who, election.leadership.is_none());
        if let Some(status) = &self.status {
            status.leadership(match &election.leadership {
                Some(_) => PageLeadership::Leads,
                None => PageLeadership::StandsBy {
                    leader: election.leader.clone(),
                },
            });
        }
    }

    fn fact(&self, fact: &Fact) {
        match fact {
            Fact::Vsphere(VsphereUpdate::Settled) => {
                self.metrics.set_vcenter_up(true);
                self.vcenter(Ok(()));
            }
            Fact::Vsphere(VsphereUpdate::Reset) => {
                self.metrics.set_vcenter_up(true);
                let why = "vCenter is sending its whole inventory again";
                self.vcenter(Err(why.to_owned()));
            }
            Fact::Vsphere(VsphereUpdate::Lost { why }) => {
                self.metrics.set_vcenter_up(false);
                self.vcenter(Err(why.clone()));
            }
            Fact::Kubernetes(kubernetes::KubernetesUpdate::Settled) => self.kubernetes(Ok(())),
            Fact::Kubernetes(kubernetes::KubernetesUpdate::Reset) => {
                let why = "the Nodes are being listed again";
                self.kubernetes(Err(why.to_owned()));
            }
            Fact::Kubernetes(kubernetes::KubernetesUpdate::Lost { why }) => self.kubernetes(Err(why.clone())),
            Fact::Kubernetes(kubernetes::KubernetesUpdate::Maintenances(update)) => {
                if let Some(objects) = &self.objects {
                    objects.queue(update);
                }
            }
            Fact::Kubernetes(kubernetes::KubernetesUpdate::ForeignMaintenances(api, update)) => {
                if let Some(objects) = &self.objects {
                    objects.queue_foreign(*api, update);
                }
            }
            Fact::Effect(report) => {
                self.metrics.effect_reported(report);
                if let Some(traces) = &self.traces {
                    traces.effect_reported(report);
                }
            }
            Fact::Vsphere(_) | Fact::Kubernetes(_) | Fact::Leadership(_) => {}
        }
    }

    /// Shows degraded parts.
    fn applied(&self, inventory: &Inventory) {
        let without = inventory.ignored_request_watch().map(|why| {
            format!(
                "NodeMaintenance objects cannot be watched, so there are no requests and no second copies of records: {why}"
            )
        });
        let without_foreign = inventory.ignored_foreign_watch().map(|(api, why)| {
            format!("the NodeMaintenance objects of {api} cannot be watched, so there are no requests of this kind: {why}")
        });
        for (part, reason) in [
            (Degraded::NodeMaintenances, without),
            (Degraded::ForeignNodeMaintenances, without_foreign),
        ] {
            self.metrics.degraded(part, reason.is_some());
            if self.health.degraded(part, reason.clone()) {
                match reason {
                    Some(reason) => warn!("{reason}"),
                    None => info!("no longer degraded: {}", part.name()),
                }
            }
        }
    }

    fn built(&self, built: &Built, inventory: &Inventory) {
        let statuses = statuses(&built.snapshots);
        if let Some(objects) = &self.objects {
            objects.update_statuses(&statuses);
        }
        if let Some(status) = &self.status {
            status.update_statuses(&statuses);
        }
        if built.is_standby {
            return;
        }
        if self.health.is_ready() {
            self.inventory_logged.call_once(|| {
                let episodes = statuses.values().filter(|it| it.record.episode().is_some());
                info!(
                    nodes = statuses.len(),
                    hosts = inventory.hosts_of_ours().len(),
                    episodes = episodes.count(),
                    "inventory complete"
                );
            });
        }
        if let Some(attribute) = &self.attribute {
            attribute.look_for_leftovers(&statuses, || inventory.hosts_of_ours().into_keys().collect());
        }
        if let Some(silences) = &self.silences {
            silences.update_statuses(&statuses, self.health.is_ready());
        }
        if let Some(events) = &self.events {
            events.update_statuses(&statuses);
        }
        if let Some(status) = &self.status {
            status.show_hosts(inventory.hosts_of_ours());
        }
        self.warn_of_evacuation_policies(&statuses);
        self.tell_of_nodes_without_vm(&statuses);
        self.metrics.update_statuses(statuses);
    }

    fn leader_tick(&self, inventory: &Inventory) {
        self.metrics.show_free_gpu_hosts(inventory.free_gpu_hosts());
        if let Some(events) = &self.events {
            events.repair_conditions();
        }
        if let Some(hosts) = inventory.unhandled_hosts() {
            self.warn_of_unhandled(hosts);
        }
    }
}
