//! The snapshot of a node: all that is known about it at one moment. `attempt` has the results of effects.

mod attempt;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

pub use super::admission::{Admission, SlotLimit};
use super::clock::{Deadline, Monotonic, Now};
pub use super::drain::{DrainReport, Drained, PendingEviction, PendingReason, TerminatingPod};
use super::effect::EffectKind;
use super::episode::{EpisodeOrigin, Record};
use super::hook::Hooks;
pub use super::host::HostState;
use super::machine_guard::MachineGuardReport;
use super::placement::{PlacementForecast, PlacementOffer, StaticPlacement};
use super::record::LastEpisode;
use super::request::{Approval, Request};
use super::volumes::VolumeReport;
use super::waiting::{ParkReason, WaitingOn};
use crate::facts::kubernetes::NodeTaint;
use crate::facts::node_condition::FoundConditions;
use crate::facts::node_guard::FoundGuards;
pub use crate::facts::vsphere::PowerState;
use crate::facts::vsphere::VmotionDevice;
use crate::ids::{BootId, EpisodeId, HostRef, NodeName, NodeUid, VmRef, VmUuid};

pub use attempt::{AttemptOutcome, EffectAttempt, EffectRefusal, RetryAdvice};

/// The input of a decision about one node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSnapshot {
    /// The record on the Node, or its copy.
    pub record: Record,
    pub observed: Observed,
}

/// The snapshots of all nodes.
pub type Snapshots = BTreeMap<NodeName, Arc<NodeSnapshot>>;

impl NodeSnapshot {
    /// Whether nothing can be decided: the node is in service on a host in service, without a request.
    pub fn is_idle(&self) -> bool {
        let seen = &self.observed;
        let on_host_in_service = seen.vm.found().is_some_and(|vm| vm.host == HostState::InService);
        self.record == Record::InService
            && seen.sources == SourceState::Synced
            && seen.request.is_none()
            && seen.late_power_off_of.is_none()
            && on_host_in_service
    }
}

/// The facts that a decision about one node may use.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// When this process started or became the leader, on the wall clock.
    pub acting_since: Timestamp,
    /// Since when this process knows the record.
    pub record_seen: RecordAge,
    /// The leadership of this process.
    pub leadership: LeadershipEpoch,
    /// Whether both sources are synced. Otherwise the facts may be out of date, and nothing is done.
    pub sources: SourceState,
    /// The Node; `None` if it was deleted.
    pub node: Option<ObservedNode>,
    /// A NodeMaintenance holds a copy of the record, so that the record outlives the Node.
    pub has_copy: bool,
    /// The Node has no record, and whether a copy takes its place is not known until its VM is.
    pub copy_awaits_vm: bool,
    /// The `resourceVersion` of that copy, for a write to it.
    pub copy_version: Option<u64>,
    /// The record is on the Node, and not only on its copy.
    pub is_record_on_node: bool,
    /// Only this process remembers the record: it was removed from the Node, and copies cannot be read.
    pub is_only_remembered: bool,
    /// The oldest request for this node that is not fulfilled.
    pub request: Option<Request>,
    pub vm: BoundVm,
    /// The ended episode whose power-off took effect late and stopped the VM, where there is no episode now. Its power-off
    /// arrived late, or its guest shut down after its end. Where an episode is queued, that episode.
    pub late_power_off_of: Option<EpisodeId>,
    /// Whether it may begin to drain.
    pub admission: Admission,
    /// The traceparent of the first episode ahead of it in the queue.
    pub ahead_traceparent: Option<Arc<str>>,
    /// The origin of an episode that begins now; empty where none can begin. Nothing is decided from it.
    pub origin: EpisodeOrigin,
    /// The report of the latest drain round of this episode.
    pub drain: Option<DrainReport>,
    /// The latest list of the volumes that are attached to the node.
    pub volumes: Option<VolumeReport>,
    /// Counts the changes of the node's pods and of the budgets that block them, to detect an outdated drain round.
    pub pods_revision: u64,
    /// The latest report of guards on its Machine.
    pub machine_guards: Option<MachineGuardReport>,
    /// The latest attempt of each kind of effect in this process.
    pub attempts: BTreeMap<EffectKind, EffectAttempt>,
    /// Where the VM can go while it is off.
    pub offer: PlacementOffer,
    /// The devices at fixed addresses of a VM that is about to be powered on, where `STATIC_DEVICES` allows to change them.
    pub static_devices: Option<StaticPlacement>,
    /// Where the VM is likely to go, while it is on and its host enters maintenance. Only displayed.
    pub forecast: Option<PlacementForecast>,
    /// The state of the host that the VM is being relocated to. A host of another cluster is unknown.
    pub target: HostState,
    /// The state of the host whose maintenance the episode handles.
    pub home: HostState,
}

/// Since when a process knows a record, on its own clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordAge {
    /// When it first saw this version of the record. The elapsed times in the record count from then.
    pub at: Now,
    /// When it first saw the record in this phase. Earlier attempts belong to another phase.
    pub phase_at: Monotonic,
    /// It saw the phase begin while it was the leader, so that no other process did anything in this phase.
    pub from_the_start: bool,
}

/// The leadership under which a decision is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadershipEpoch {
    /// The number of the leadership; 0 without leader election.
    pub epoch: u64,
    /// When effects may begin. Before, an effect of the previous leader may still arrive.
    pub acts_from: Option<Deadline>,
}

impl LeadershipEpoch {
    /// Without leader election.
    pub const ALONE: Self = Self {
        epoch: 0,
        acts_from: None,
    };
}

/// The state of the two sources of facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceState {
    Synced,
    /// The vCenter stream is syncing or disconnected.
    NoVcenter {
        /// The reason, as far as known.
        why: String,
    },
    /// The watch of Nodes is syncing or disconnected.
    NoKubernetes {
        /// The reason, as far as known.
        why: String,
    },
}

/// The facts of a Node.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedNode {
    /// `metadata.uid`.
    pub uid: NodeUid,
    /// `metadata.resourceVersion`.
    pub resource_version: u64,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// Who set `spec.unschedulable`, by `metadata.managedFields`.
    pub cordoned_by: CordonedBy,
    /// It stays cordoned at the end.
    pub keep_cordoned: bool,
    /// The annotations that people set.
    pub overrides: NodeOverrides,
    /// The condition Ready is True.
    pub ready: bool,
    /// The condition Ready is Unknown: its kubelet does not report.
    pub is_unreachable: bool,
    /// Since when the condition Ready has its status.
    pub ready_since: Option<Timestamp>,
    /// `status.nodeInfo.bootID`.
    pub boot_id: Option<BootId>,
    /// Allocatable GPUs by resource name, and those in ResourceSlices of this boot by driver.
    pub gpus: Arc<BTreeMap<String, u64>>,
    /// `status.capacity` of each GPU resource that is not 0. It stays for some minutes after a device plugin has stopped.
    pub gpu_capacity: Arc<BTreeMap<String, u64>>,
    /// The GPUs of the healthy node: those that are allocatable, and those of a device plugin that is down for the moment.
    pub expected_gpus: Arc<BTreeMap<String, u64>>,
    /// The counts with which a person takes the node back.
    pub accepted_gpus: Arc<BTreeMap<String, u64>>,
    /// When the newest ResourceSlice with GPUs was created.
    pub newest_slice: Option<Timestamp>,
    /// When the last episode requested a guest shutdown, while that may still take effect.
    pub asked_guest: Option<Timestamp>,
    /// The episode that ended last, as it is shown. Nothing is decided from it.
    pub last_episode: Option<Arc<LastEpisode>>,
    /// The conditions of an episode on it.
    pub conditions: FoundConditions,
    pub guards: FoundGuards,
    pub hooks: Hooks,
    /// Its taints, which a PATCH replaces as a whole.
    pub taints: Arc<[NodeTaint]>,
}

impl ObservedNode {
    /// A Node of which only the UID is known: it is not Ready, and schedulable.
    pub fn unread(uid: NodeUid) -> Self {
        Self {
            uid,
            resource_version: 0,
            unschedulable: false,
            cordoned_by: CordonedBy::Unknown,
            keep_cordoned: false,
            overrides: NodeOverrides::default(),
            ready: false,
            is_unreachable: false,
            ready_since: None,
            boot_id: None,
            gpus: Arc::default(),
            gpu_capacity: Arc::default(),
            expected_gpus: Arc::default(),
            accepted_gpus: Arc::default(),
            newest_slice: None,
            asked_guest: None,
            last_episode: None,
            conditions: FoundConditions::new(),
            guards: FoundGuards::new(),
            hooks: Hooks::new(),
            taints: Arc::default(),
        }
    }
}

/// The annotations that people set on a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeOverrides {
    /// `haulout.dev/skip`: the node is left alone.
    pub skip: bool,
    /// `haulout.dev/approved`: the drain that may begin.
    pub approved: Option<Approval>,
    /// `haulout.dev/strategy`.
    pub strategy: Strategy,
}

/// What happens to a VM that is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// `migrate`: it is relocated to a host that fits, or else waits for its own host.
    #[default]
    Migrate,
    /// `wait`: it waits for its own host.
    Wait,
}

/// How long after the end of an episode a power-off is attributed to it. It is longer than a request can be in transit and covers
/// some minutes of clock difference; vCenter keeps a VM's recent tasks about as long.
pub const LATE_POWER_OFF_WINDOW: SignedDuration = SignedDuration::from_mins(15);

/// Who owns `spec.unschedulable`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CordonedBy {
    /// No field manager is named.
    Unknown,
    Haulout,
    /// Another field manager, such as `kubectl-cordon`.
    Other(String),
}

/// The VM of a node.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "most nodes have the large variant, and there is one value for each node"
)]
pub enum BoundVm {
    /// vCenter has not answered the lookup yet.
    NotLookedUp,
    /// vCenter knows none: not created, removed, on a removed host, or not visible to our user.
    Missing {
        /// This process knew the VM before. Otherwise the node may belong to another vCenter.
        was_known: bool,
    },
    /// vCenter knows none, and nothing says that the node is one: a physical machine, or a VM of another platform.
    NoVm,
    /// The VM is outside `VCENTER_SCOPE`; it is not touched.
    OutOfScope,
    /// The Node has no UUID, and VMs are not looked up by name.
    NoUuid,
    /// More than one VM matches the node; none of them is touched.
    Ambiguous(BTreeSet<VmRef>),
    /// Other Nodes match the same VM; it is not touched, because that would affect their pods.
    Shared(Vec<NodeName>),
    /// The VM is on and belongs to a Node that is not there: the machine may be registered under this name now. It is not touched.
    HeldByDeadNode {
        node: NodeName,
        /// It was deleted during its episode; otherwise it is not Ready.
        is_deleted: bool,
    },
    /// Exactly one VM matches.
    Found(ObservedVm),
}

impl BoundVm {
    /// The VM, if exactly one matches.
    pub fn found(&self) -> Option<&ObservedVm> {
        self.or_wait().ok()
    }

    /// The VM, or the wait if there is not exactly one.
    pub fn or_wait(&self) -> Result<&ObservedVm, WaitingOn> {
        Err(WaitingOn::Parked(match self {
            Self::Found(vm) => return Ok(vm),
            Self::NotLookedUp => return Err(WaitingOn::VmLookup),
            Self::Missing { .. } | Self::NoVm => ParkReason::VmMissing,
            Self::OutOfScope => ParkReason::VmOutOfScope,
            Self::NoUuid => ParkReason::NoUuid,
            Self::Ambiguous(vms) => ParkReason::VmAmbiguous { count: vms.len() },
            Self::Shared(nodes) => ParkReason::VmShared { nodes: nodes.clone() },
            Self::HeldByDeadNode { node, is_deleted } => ParkReason::VmHeldByDeadNode {
                node: node.clone(),
                is_deleted: *is_deleted,
            },
        }))
    }
}

/// The facts of a VM.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedVm {
    pub moref: VmRef,
    /// Its BIOS UUID.
    pub uuid: Option<VmUuid>,
    pub power: Option<PowerState>,
    /// The host where it runs or is registered.
    pub host_ref: Option<HostRef>,
    /// The name of that host, or its moref if the name is unknown.
    pub host_name: String,
    pub host: HostState,
    /// DRS is fully automated for this VM and may place it.
    pub drs: bool,
    /// A pending question that a person must answer first.
    pub question: Option<String>,
    /// The latest `EnterMaintenanceMode_Task` of its host, if it failed and was not cancelled.
    pub interrupted: Option<FailedMaintenance>,
    /// A power-off task of the VM is queued or running, by any user.
    pub is_being_cut: bool,
    /// Whether VMware Tools run in it, where vCenter reports that.
    pub tools_running: Option<bool>,
    /// All its passthrough devices let vCenter move it by vMotion.
    pub vmotion: Option<Vmotion>,
    /// It has passthrough devices with which vCenter cannot move it while it runs.
    pub is_pinned: bool,
    /// vCenter moves it by vMotion, however long that takes, and so the maintenance of its host begins no episode.
    pub is_left_to_vcenter: bool,
    /// When the maintenance was requested that its host is in, as far as vCenter still lists its task.
    pub maintenance_asked_at: Option<Timestamp>,
    /// vCenter itself shuts it down when its host enters maintenance, without a drain.
    pub evacuation_power_off: bool,
    /// The other Nodes that match it, by name.
    pub other_claimants: Vec<OtherClaimant>,
}

/// Another Node that matches the VM of a node: its kubelet reports a wrong UUID, or one of the two is an earlier name of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherClaimant {
    pub node: NodeName,
    /// The condition Ready is True.
    pub ready: bool,
    /// Since when the condition Ready has its status.
    pub ready_since: Option<Timestamp>,
    /// When it was created. No kubelet may write that.
    pub registered_at: Timestamp,
}

/// A VM with passthrough devices that vCenter can move by vMotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vmotion {
    pub device: VmotionDevice,
    /// A vMotion of the VM is queued or running.
    pub is_under_way: bool,
}

/// A failed maintenance, which is likely to be retried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedMaintenance {
    /// When this process saw it fail.
    pub at: Now,
    /// The fault.
    pub message: String,
}

impl ObservedVm {
    /// A VM whose properties are unknown.
    pub fn unread(moref: VmRef) -> Self {
        Self {
            moref,
            uuid: None,
            power: None,
            host_ref: None,
            host_name: "(no host)".to_owned(),
            host: HostState::Unknown,
            drs: false,
            question: None,
            interrupted: None,
            is_being_cut: false,
            tools_running: None,
            vmotion: None,
            is_pinned: false,
            is_left_to_vcenter: false,
            maintenance_asked_at: None,
            evacuation_power_off: false,
            other_claimants: Vec::new(),
        }
    }
}

impl Observed {
    /// A node with this VM at `now`, without leader election and with both sources synced; all else is unknown.
    pub fn of(node: Option<ObservedNode>, vm: BoundVm, now: Now) -> Self {
        Self {
            acting_since: now.wall,
            record_seen: RecordAge {
                at: now,
                phase_at: now.monotonic,
                from_the_start: false,
            },
            leadership: LeadershipEpoch::ALONE,
            sources: SourceState::Synced,
            node,
            has_copy: false,
            copy_awaits_vm: false,
            copy_version: None,
            is_record_on_node: false,
            is_only_remembered: false,
            request: None,
            vm,
            late_power_off_of: None,
            admission: Admission::Granted,
            ahead_traceparent: None,
            origin: EpisodeOrigin::default(),
            drain: None,
            volumes: None,
            pods_revision: 0,
            machine_guards: None,
            attempts: BTreeMap::new(),
            offer: PlacementOffer::default(),
            static_devices: None,
            forecast: None,
            target: HostState::Unknown,
            home: HostState::Unknown,
        }
    }

    /// Whether the node is cordoned and a complete list shows no pod that blocks its drain, which began at least `settled` after the
    /// cordon and after the latest change of its pods.
    pub fn is_drained(&self, settled: Duration, now: Monotonic) -> bool {
        let node = self.node.as_ref().filter(|node| node.unschedulable);
        node.is_some()
            && self.drain.as_ref().is_some_and(|report| {
                let is_unreachable = node.is_some_and(|node| node.is_unreachable);
                report.blocking(is_unreachable, now).next().is_none()
                    && report.listed_at >= self.record_seen.phase_at.after(settled)
                    && report.pods_revision == self.pods_revision
            })
    }

    /// The latest attempt of `kind` in the current phase.
    pub fn attempt(&self, kind: EffectKind) -> Option<&EffectAttempt> {
        let attempt = self.attempts.get(&kind)?;
        (attempt.at.monotonic >= self.record_seen.phase_at).then_some(attempt)
    }

    /// The latest drain round in the current phase.
    pub fn round(&self) -> Option<&DrainReport> {
        let report = self.drain.as_ref()?;
        (report.listed_at >= self.record_seen.phase_at).then_some(report)
    }
}
