//! Builds one snapshot per node from the facts of vCenter, of Kubernetes and of effects. Pure: no async, no clock, no I/O.
//!
//! A snapshot holds everything about its node, so a missed or repeated fact is repaired by the next one. Between a `Reset` and its
//! `Settled` a source counts as disconnected; objects that are not reported again by then are forgotten.
//!
//! `advance.rs` is the entry: read it first.

mod advance;
mod advice;
mod binding;
mod budgets;
mod capacity;
mod changes;
mod devices;
mod dry_run;
mod effect_reports;
mod followed;
mod forecast;
mod kubernetes;
mod last_gpus;
mod lookups;
mod node_state;
mod nodes;
mod placement;
mod power_offs;
mod request_sources;
mod requests;
mod schedule;
mod slots;
mod snapshot;
mod standby;
mod unhandled;
mod vcenter;
mod wave;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::facts::foreign_maintenance::ForeignApi;
use crate::facts::kubernetes::{Budget, KubernetesUpdate};
use crate::facts::vsphere;
use crate::ids::{HostRef, NodeName, VmRef};
use crate::maintenance::admission::AdmissionQueue;
use crate::maintenance::clock::{Monotonic, Now};
use crate::maintenance::effect_report::EffectReport;
use crate::maintenance::episode::{Phase, PythonState, Record};
use crate::maintenance::observed::{LeadershipEpoch, Snapshots, SourceState};
use crate::maintenance::placement::PlacementOffer;
use crate::maintenance::policy::{Limit, NodeBinding, Releases, StaticDevices, VmotionGrace};
use crate::maintenance::request::RequestIdentity;
use lookups::LookupStore;
use node_state::NodeState;
use nodes::NodeStore;
use request_sources::RequestSources;
use slots::Slot;
use vcenter::VcenterStore;

pub use advance::{Built, Changes, Requested};
pub use forecast::{Forecast, Reach};
use snapshot::is_paused;
pub use snapshot::record_of;
pub use unhandled::{ModeWarning, UnhandledHost, UnhandledMode, UnhandledModes};
pub use wave::{HostsThatCanLeave, WaveGroup};

/// One input of the inventory.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// From vCenter.
    Vsphere(vsphere::VsphereUpdate),
    Kubernetes(KubernetesUpdate),
    /// The result of an effect.
    Effect(EffectReport),
    /// This replica is the leader from now on, or (`None`) a standby.
    Leadership(Option<LeadershipEpoch>),
}

/// The settings of the inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InventorySettings {
    /// The releases whose episodes are handled.
    pub releases: Releases,
    /// `MAX_CONCURRENT_DRAINS`.
    pub concurrent_drains: u32,
    pub unavailable: Limit,
    pub unavailable_gpus: Limit,
    /// `MAX_POWER_OFFS_PER_HOUR`.
    pub power_offs: Limit,
    pub binding: NodeBinding,
    pub require_approval: bool,
    /// `GPU_RESOURCES` names drivers: ResourceSlices are watched.
    pub device_slices: bool,
    /// NodeMaintenance objects are watched.
    pub node_maintenances: bool,
    /// `FOREIGN_NODE_MAINTENANCES`: the other projects whose NodeMaintenance objects are watched.
    pub foreign_maintenances: BTreeSet<ForeignApi>,
    /// How long a node may hold a drain slot.
    pub drain_slot: Duration,
    /// How long a node waits for vCenter to move its VM by vMotion, and needs no slot meanwhile.
    pub vmotion_grace: VmotionGrace,
    pub static_devices: StaticDevices,
    /// `HOST_SETTLE_SECONDS`: how long a host that returned by itself has to stay before it is used; zero uses it at once.
    pub host_settle: Duration,
}

/// All facts, and the snapshots made of them.
#[derive(Clone, Debug)]
pub struct Inventory {
    settings: InventorySettings,
    /// When this process started or became the leader.
    acting_since: Timestamp,
    leadership: LeadershipEpoch,
    /// The time of the facts that are being applied.
    now: Now,
    /// This process is the leader, or runs without leader election.
    is_acting: bool,
    /// The slots that were held when this process began to act are known.
    knows_slots: bool,
    /// When snapshots change next without a fact: a slot lapses, a request or its window begins or ends, the time for a vMotion or for a
    /// late power-off is over, or a power-off is more than an hour ago.
    next_timed_change: Option<Monotonic>,
    vcenter: VcenterStore,
    lookups: LookupStore,
    nodes: NodeStore,
    /// The watches of NodeMaintenances.
    request_sources: RequestSources,
    /// The node that was bound to each VM first.
    owners: BTreeMap<VmRef, NodeName>,
    requests: requests::RequestStore,
    node_states: BTreeMap<NodeName, NodeState>,
    /// For each host, the episode about it that ended last.
    last_episodes: BTreeMap<HostRef, LastEpisodeOfHost>,
    /// The hosts offered in the last snapshots to nodes that need one.
    offers: BTreeMap<NodeName, PlacementOffer>,
    /// The watched budgets that allow no disruption.
    blocked_budgets: BTreeSet<Budget>,
    /// By group of nodes.
    admission_queues: BTreeMap<Option<String>, AdmissionQueue>,
    /// Something has changed since the last build.
    is_changed: bool,
    /// The latest snapshots; none on a standby.
    snapshots: Snapshots,
    schedule: schedule::Schedule,
}

/// The state of one source.
#[derive(Clone, Debug)]
struct Source<Key> {
    disconnected: Option<String>,
    /// The objects of the whole list that is being received, while the source is disconnected.
    seen: BTreeSet<Key>,
    /// Something was reported since the last `Settled`.
    is_incomplete: bool,
}

/// An episode that has ended.
#[derive(Clone, Debug)]
struct LastEpisodeOfHost {
    at: Timestamp,
    traceparent: Arc<str>,
}

impl<Key> Source<Key> {
    fn disconnected(name: &str) -> Self {
        Self {
            disconnected: Some(format!("{name} has not synced yet")),
            seen: BTreeSet::new(),
            is_incomplete: false,
        }
    }
}

impl Inventory {
    /// An empty inventory, for a process that starts at `acting_since`.
    pub fn new(settings: InventorySettings, acting_since: Timestamp) -> Self {
        let request_sources = RequestSources::new(settings.node_maintenances, &settings.foreign_maintenances);
        Self {
            vcenter: VcenterStore::new(settings.host_settle),
            nodes: NodeStore::new(settings.device_slices),
            settings,
            acting_since,
            leadership: LeadershipEpoch::ALONE,
            now: Now {
                wall: acting_since,
                monotonic: Monotonic::default(),
            },
            is_acting: false,
            knows_slots: false,
            next_timed_change: None,
            owners: BTreeMap::new(),
            lookups: LookupStore::default(),
            request_sources,
            requests: requests::RequestStore::default(),
            node_states: BTreeMap::new(),
            last_episodes: BTreeMap::new(),
            offers: BTreeMap::new(),
            blocked_budgets: BTreeSet::new(),
            admission_queues: BTreeMap::new(),
            is_changed: true,
            snapshots: Snapshots::new(),
            schedule: schedule::Schedule::default(),
        }
    }

    /// Sets the time at which the next facts are received.
    pub(crate) fn set_time(&mut self, now: Now) {
        // `notBefore` and windows are times of the wall clock: if it is set, other requests may be due.
        self.is_changed |= now.is_clock_set_since(self.now);
        self.now = now;
        self.is_changed |= self.request_sources.set_time(now.monotonic);
        if self.next_timed_change.is_some_and(|at| now.monotonic >= at) {
            self.next_timed_change = None;
            self.is_changed = true;
        }
        self.is_changed |= self.vcenter.set_time(now.monotonic);
    }

    /// Applies a change of leadership. What was observed before may have been caused by another replica.
    fn apply_leadership(&mut self, epoch: Option<LeadershipEpoch>) {
        self.is_acting = epoch.is_some();
        let Some(epoch) = epoch else { return };
        self.leadership = epoch;
        self.acting_since = self.now.wall;
        self.knows_slots = false;
        for state in self.node_states.values_mut() {
            state.observed_record.forget_origin();
            state.slot = Slot::default();
        }
    }

    pub(crate) fn apply(&mut self, fact: Fact) {
        self.is_changed |= self.is_change(&fact);
        match fact {
            Fact::Vsphere(update) => self.apply_vsphere(update),
            Fact::Kubernetes(update) => self.apply_kubernetes(update),
            Fact::Effect(report) => self.apply_effect(report),
            Fact::Leadership(epoch) => self.apply_leadership(epoch),
        }
    }

    /// The objects that the vSphere stream has to watch: the VMs of our nodes, and the tasks of running effects. Where the keys of VMs
    /// change, owners that no longer exist are forgotten.
    pub(crate) fn update_watch_set(&mut self) -> vsphere::WatchSet {
        let names = self.names();
        let keys: BTreeSet<vsphere::VmKey> = names.iter().flat_map(|name| self.all_keys_of(name)).collect();
        if self.lookups.want(keys) {
            self.forget_owners(&names);
        }
        let urgent = self.urgent();
        let tasks = self
            .node_states
            .values()
            .flat_map(|local| local.attempts.values())
            .filter_map(|attempt| attempt.outcome.running_task().cloned());
        vsphere::WatchSet {
            vms: Arc::clone(self.lookups.wanted()),
            urgent,
            kept_off: self.kept_off(),
            tasks: tasks.collect(),
        }
    }

    /// The nodes whose pods have to be watched: those being drained, and those kept drained.
    pub(crate) fn nodes_with_watched_pods(&self) -> BTreeSet<NodeName> {
        let there = self
            .snapshots
            .iter()
            .filter(|(_, snapshot)| snapshot.observed.node.is_some());
        let drained = there.filter(|(_, snapshot)| match &snapshot.record {
            Record::Episode(episode) => {
                episode.phase.is_draining() || *episode.phase.at_work() == Phase::Drained
            }
            Record::Python(python) => python.state == PythonState::Draining,
            Record::InService | Record::Unreadable { .. } => false,
        });
        drained.map(|(name, _)| name.clone()).collect()
    }

    /// Every node with a Node, a record or a copy of one.
    fn names(&self) -> BTreeSet<NodeName> {
        let known = self.nodes.names().chain(self.node_states.keys()).cloned();
        known.chain(self.only_copied()).collect()
    }

    /// Builds the snapshots of all nodes.
    fn build_snapshots(&mut self) -> Snapshots {
        self.is_changed = false;
        let names = self.names();
        // Slots and offers depend on which node has which VM, and the snapshots on all three.
        self.observe_records(&names);
        self.update_admission(&names);
        self.offers = self.offers(&names);
        let snapshot = |name: NodeName| {
            let offer = self.offers.get(&name).cloned().unwrap_or_default();
            let snapshot = self.snapshot(&name, offer)?;
            Some((name, Arc::new(snapshot)))
        };
        self.snapshots = names.into_iter().filter_map(snapshot).collect();
        self.snapshots.clone()
    }

    /// Binds each node to its VM, and notes when its record was first seen and that it had a VM.
    fn observe_records(&mut self, names: &BTreeSet<NodeName>) {
        let acting = self.is_acting.then_some(self.leadership.epoch);
        for name in names {
            let Some(record) = self.record_for(name) else {
                continue;
            };
            // First, because a VM that several nodes match is found for its owner only.
            self.claim(name);
            let has_known_vm = self.vm_of(name).found().is_some();
            let is_paused = self.nodes.node(name).is_some_and(is_paused);
            let evicts = record.phase() == Some(&Phase::Draining);
            let is_held = is_paused || evicts && self.disconnected_for(name, &record).is_some();
            let local = self.node_states.entry(name.clone()).or_default();
            local.has_known_vm |= has_known_vm;
            local.observed_record.update(&record, self.now, acting, is_held);
        }
    }

    /// The disconnected source, if any: nothing may be done for any node. A disconnected watch of NodeMaintenances counts only for
    /// a while.
    fn disconnected(&self) -> Option<SourceState> {
        let requests = self.request_sources.disconnected();
        let kubernetes = self.nodes.disconnected().or(requests);
        let devices = self.nodes.are_slices_awaited();
        match (self.vcenter.disconnected(), kubernetes) {
            (Some(why), _) => Some(SourceState::NoVcenter { why: why.to_owned() }),
            (None, Some(why)) => Some(SourceState::NoKubernetes { why: why.to_owned() }),
            (None, None) => devices.then(|| SourceState::NoKubernetes {
                why: "the ResourceSlices are being listed".to_owned(),
            }),
        }
    }

    /// Whether all objects of vCenter and all Nodes are known.
    pub fn is_synced(&self) -> bool {
        self.vcenter.disconnected().is_none() && self.nodes.disconnected().is_none()
    }

    /// Why the watch of NodeMaintenances is disconnected, where maintenance continues without it.
    pub fn ignored_request_watch(&self) -> Option<&str> {
        self.request_sources.ignored(None)
    }

    /// The same of the watch of NodeMaintenances of another project.
    pub fn ignored_foreign_watch(&self) -> Option<(ForeignApi, &str)> {
        let ignored = |api: &ForeignApi| Some((*api, self.request_sources.ignored(Some(*api))?));
        ForeignApi::ALL.iter().find_map(ignored)
    }

    /// The disconnected source for one node. A node with a request waits for the watch of NodeMaintenances in any case, because the
    /// request may have been deleted.
    fn disconnected_for(&self, name: &NodeName, record: &Record) -> Option<SourceState> {
        if let Some(sources) = self.disconnected() {
            return Some(sources);
        }
        if !self.request_sources.is_any_ignored() {
            return None;
        }
        let episode = record.episode();
        let recorded = episode.map(|it| [&it.trigger.request, &it.power_off_request]);
        let recorded = recorded
            .into_iter()
            .flatten()
            .flatten()
            .map(RequestIdentity::foreign_api);
        let effective = self.request(name, self.nodes.node(name));
        let effective = effective.map(|request| request.identity.foreign_api());
        let why = recorded
            .chain(effective)
            .find_map(|api| self.request_sources.ignored(api));
        why.map(|why| SourceState::NoKubernetes { why: why.to_owned() })
    }
}

#[cfg(test)]
mod tests;
