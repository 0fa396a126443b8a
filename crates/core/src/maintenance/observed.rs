//! What is known of one node at one moment. `drain` has the result of a drain round and the proof of a drain, `attempt` what
//! became of effects.

mod attempt;
mod drain;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::clock::{Deadline, Monotonic, Now};
use super::effect::EffectKind;
use super::episode::{Detection, EpisodeOrigin, Record};
use super::placement::PlacementOffer;
use super::request::Request;
use crate::ids::{BootId, EpisodeId, HostRef, NodeName, NodeUid, TaskRef, VmRef, VmUuid};

pub use attempt::{AttemptOutcome, EffectAttempt, EffectRefusal, RetryAdvice};
pub use drain::{DrainReport, Drained, PendingEviction, PendingReason};

/// One node, ready to be decided on.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSnapshot {
    /// What stands on the Node.
    pub record: Record,
    /// The facts.
    pub observed: Observed,
}

/// The pictures that were drawn last: of all nodes, or of those whose picture may be another one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SnapshotBatch {
    /// By node.
    pub snapshots: BTreeMap<NodeName, Arc<NodeSnapshot>>,
    /// Whether they are all, so that a node that is not among them is gone.
    pub are_all: bool,
    /// Where they are not all: the hosts that were told of since, each with name and state.
    pub hosts: BTreeMap<HostRef, (String, HostState)>,
}

impl SnapshotBatch {
    /// The pictures of all nodes.
    pub fn all(sights: BTreeMap<NodeName, NodeSnapshot>) -> Self {
        Self {
            snapshots: sights
                .into_iter()
                .map(|(name, snapshot)| (name, Arc::new(snapshot)))
                .collect(),
            are_all: true,
            hosts: BTreeMap::new(),
        }
    }

    /// Whether `node` is still there, as far as these tell.
    pub fn keeps(&self, node: &NodeName) -> bool {
        !self.are_all || self.snapshots.contains_key(node)
    }
}

impl NodeSnapshot {
    /// Whether nothing can be decided on it: the node is in service on a host in service, and nobody asks otherwise.
    pub fn is_idle(&self) -> bool {
        let seen = &self.observed;
        let on_host_in_service = seen.vm.found().is_some_and(|vm| vm.host == HostState::InService);
        self.record == Record::InService
            && seen.hearing == SourceState::Both
            && seen.request.is_none()
            && seen.stray_of.is_none()
            && on_host_in_service
    }
}

/// All that a decision about one node may look at.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// When this process began to act, on the wall clock: when it was started, or when it began to lead. For traces alone.
    pub process_began: Timestamp,
    /// Since when this process knows the record that stands there.
    pub record_seen: RecordAge,
    /// The leadership under which is decided.
    pub lead: LeadershipTerm,
    /// Whether both worlds are being heard. Without them nothing is done: what we know may be old.
    pub hearing: SourceState,
    /// The Node, `None` when the object is gone.
    pub node: Option<ObservedNode>,
    /// What stands on a NodeMaintenance object of this episode, so that it outlives the Node.
    pub has_copy: bool,
    /// The record stands on the Node itself, and not on its copy alone.
    pub is_record_on_node: bool,
    /// What a person asks of it: the oldest request that is not fulfilled yet.
    pub request: Option<Request>,
    /// Its VM.
    pub vm: BoundVm,
    /// The episode that ended a short while before a power-off of ours cut the VM's power, where none stands on the Node:
    /// it was still on its way from a leader that was deposed.
    pub stray_of: Option<EpisodeId>,
    /// Whether it may begin to drain.
    pub admission: Admission,
    /// The traceparent of the first episode among those ahead of it, where it waits its turn.
    pub behind: Option<Arc<str>>,
    /// What an episode that begins would be told to come from; empty where none can begin. Nothing is decided from it.
    pub origin: EpisodeOrigin,
    /// What the latest drain round of this episode found.
    pub drain: Option<DrainReport>,
    /// Counts the changes of the node's pods, and of the budgets that hold them, so that a round older than the latest change is known as such.
    pub pods_revision: u64,
    /// The latest try of each kind of effect in this process.
    pub attempts: BTreeMap<EffectKind, EffectAttempt>,
    /// Where the VM could go while it is off.
    pub offer: PlacementOffer,
    /// The state of the host it is being relocated to, when it is. A host of another cluster is unknown here.
    pub target: HostState,
    /// The state of the host that the episode is about, when there is an episode.
    pub home: HostState,
}

/// Since when a process knows a record, on its own clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordAge {
    /// When it first saw the record as it stands: what the record says to have elapsed, had elapsed then.
    pub at: Now,
    /// When it first saw the record's phase. A try from before was made in another phase.
    pub phase_at: Monotonic,
    /// It saw the phase begin, while it was acting itself: whatever was done in this phase, it did.
    pub from_the_start: bool,
}

/// The leadership under which a decision is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadershipTerm {
    /// Which; 0 without leader election.
    pub epoch: u64,
    /// From when on effects may begin: before, one of the predecessor's may still arrive.
    pub acts_from: Option<Deadline>,
}

impl LeadershipTerm {
    /// That of a process that is alone.
    pub const ALONE: Self = Self {
        epoch: 0,
        acts_from: None,
    };
}

/// Which of the two worlds are being heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// Both, and each has synced.
    Both,
    /// vCenter's stream is down or not complete yet.
    NoVcenter {
        /// Why, as far as known.
        why: String,
    },
    /// The watch of Nodes is down or not complete yet.
    NoKubernetes {
        /// Why, as far as known.
        why: String,
    },
}

/// A Node.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedNode {
    /// `metadata.uid`.
    pub uid: NodeUid,
    /// `metadata.resourceVersion`.
    pub resource_version: u64,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// Who set `spec.unschedulable`, as the managed fields tell.
    pub cordoned_by: CordonedBy,
    /// A person asks to leave it cordoned at the end.
    pub keep_cordoned: bool,
    /// What else a person has written on it.
    pub wishes: NodeOverrides,
    /// The condition Ready is True.
    pub ready: bool,
    /// When the kubelet last said so.
    pub heartbeat: Option<Timestamp>,
    /// `status.nodeInfo.bootID`.
    pub boot_id: Option<BootId>,
    /// Allocatable GPUs by resource name.
    pub gpus: Arc<BTreeMap<String, u64>>,
    /// What the last episode of this Node asked of the guest, where it ended before the guest did.
    pub asked_guest: Option<GuestRequest>,
}

/// A guest that was asked to shut down in an episode that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestRequest {
    /// When it was asked.
    pub at: Timestamp,
    /// When the episode ended.
    pub ended_at: Timestamp,
}

/// What a person writes on a Node, to be heeded whatever happens to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeOverrides {
    /// `haulout.dev/skip`: hands off.
    pub skip: bool,
    /// `haulout.dev/approved`: its next drain may begin.
    pub approved: bool,
    /// `haulout.dev/strategy`.
    pub strategy: Strategy,
}

/// What becomes of a VM that is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// `migrate`: it is moved where another host can take it, and waits for its own otherwise.
    #[default]
    Migrate,
    /// `wait`: it waits for its own host.
    Wait,
}

/// How long after an episode's end a VM that goes off is taken for its last: far longer than a request can be on its way, and
/// about as long as vCenter keeps a task among a VM's recent ones. It is compared with the difference of two clocks, so it
/// covers some minutes of that as well.
pub const STRAY: SignedDuration = SignedDuration::from_mins(15);

/// Who owns `spec.unschedulable`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CordonedBy {
    /// Nobody is named.
    Unknown,
    /// Haulout.
    Haulout,
    /// Another field manager, such as `kubectl-cordon`.
    Other(String),
}

/// The VM of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum BoundVm {
    /// vCenter has not been asked yet, or has not answered.
    NotLookedUp,
    /// vCenter knows none: not created, removed, on a removed host, or not visible to our user.
    Missing {
        /// This process knew one before. Otherwise this may be a vCenter that has nothing to do with the node.
        was_known: bool,
    },
    /// The Node tells no UUID by which it could be found, and names are not looked up.
    NoUuid,
    /// More than one answers to the node's key: none of them is touched.
    Ambiguous(BTreeSet<VmRef>),
    /// Other Nodes answer to the same VM: to cut its power for one would cut it on the pods of the others.
    Shared(Vec<NodeName>),
    /// This one.
    Found(ObservedVm),
}

impl BoundVm {
    /// The VM, where it is exactly one.
    pub fn found(&self) -> Option<&ObservedVm> {
        match self {
            Self::Found(vm) => Some(vm),
            Self::NotLookedUp
            | Self::Missing { .. }
            | Self::NoUuid
            | Self::Ambiguous(_)
            | Self::Shared(_) => None,
        }
    }
}

/// What is known of a VM.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedVm {
    /// Its moref.
    pub moref: VmRef,
    /// Its BIOS UUID.
    pub uuid: Option<VmUuid>,
    /// Its power state.
    pub power: ObservedPower,
    /// The host it stands on, running or registered.
    pub on: Option<HostRef>,
    /// That host's name, or its moref where the name is unknown.
    pub on_name: String,
    /// That host's state.
    pub host: HostState,
    /// DRS is fully automated for this VM and may place it.
    pub drs: bool,
    /// A pending question that a person must answer first.
    pub question: Option<String>,
    /// An Enter Maintenance Mode of its host that failed and was not cancelled, where that is the latest of its maintenance.
    pub interrupted: Option<FailedMaintenance>,
    /// A task that cuts its power is queued or running, whoever started it.
    pub is_being_cut: bool,
    /// Whether VMware Tools run in it, where vCenter tells.
    pub tools_running: Option<bool>,
}

/// A maintenance that failed: who asked for it is likely to try again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedMaintenance {
    /// When this process saw it fail.
    pub at: Now,
    /// What vCenter said.
    pub said: String,
}

/// The power state of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObservedPower {
    /// Not told.
    Unknown,
    /// Running.
    On,
    /// Off.
    Off,
    /// Suspended.
    Suspended,
}

/// The state of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostState {
    /// Not in the inventory, or not readable. Never taken for "out of maintenance".
    Unknown,
    /// Disconnected or not responding: what vCenter tells of it is old.
    Unreachable,
    /// On its way into maintenance; nothing but power-off, shutdown and migrate is allowed on its VMs.
    Entering {
        /// The task.
        task: TaskRef,
        /// When it was queued, on vCenter's clock.
        clicked_at: Timestamp,
        /// Who clicked.
        user: Option<String>,
        /// How the click was heard of.
        detection: Detection,
    },
    /// In maintenance.
    InMaintenance,
    /// In service, but distrusted by proactive HA: nothing is placed there.
    Quarantined,
    /// In service.
    InService,
}

impl HostState {
    /// Entering or in maintenance: its VMs have to leave, or be off.
    pub fn is_leaving(&self) -> bool {
        match self {
            Self::Entering { .. } | Self::InMaintenance => true,
            Self::Unknown | Self::Unreachable | Self::Quarantined | Self::InService => false,
        }
    }

    /// Known to be out of maintenance.
    pub fn is_out(&self) -> bool {
        match self {
            Self::Quarantined | Self::InService => true,
            Self::Unknown | Self::Unreachable | Self::Entering { .. } | Self::InMaintenance => false,
        }
    }

    /// A VM may be placed there and powered on there.
    pub fn takes_vms(&self) -> bool {
        matches!(self, Self::InService)
    }

    /// The state in words that go into a sentence.
    pub fn words(&self) -> &'static str {
        match self {
            Self::Unknown => "unknown to vCenter",
            Self::Unreachable => "not reachable for vCenter",
            Self::Entering { .. } => "entering maintenance mode",
            Self::InMaintenance => "in maintenance mode",
            Self::Quarantined => "in quarantine",
            Self::InService => "in service",
        }
    }
}

/// Whether a node may begin to drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may.
    Granted,
    /// It waits its turn.
    Behind {
        /// Those that hold the places, or stand before it in the queue.
        ahead: Vec<NodeName>,
        /// Which limit is full.
        limit: SlotLimit,
    },
}

/// A limit on how many nodes may be in maintenance at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotLimit {
    /// `MAX_CONCURRENT_DRAINS`.
    ConcurrentDrains(u32),
    /// `MAX_UNAVAILABLE`, as a number of nodes.
    Unavailable(u32),
}

impl ObservedVm {
    /// A VM of which nothing is known but that it exists.
    pub fn unread(moref: VmRef) -> Self {
        Self {
            moref,
            uuid: None,
            power: ObservedPower::Unknown,
            on: None,
            on_name: "(no host)".to_owned(),
            host: HostState::Unknown,
            drs: false,
            question: None,
            interrupted: None,
            is_being_cut: false,
            tools_running: None,
        }
    }
}

impl Observed {
    /// A node with this VM at `now`, of a process that is alone and hears both worlds: nothing else is known, nothing was done.
    pub fn of(node: Option<ObservedNode>, vm: BoundVm, now: Now) -> Self {
        Self {
            process_began: now.wall,
            record_seen: RecordAge {
                at: now,
                phase_at: now.monotonic,
                from_the_start: false,
            },
            lead: LeadershipTerm::ALONE,
            hearing: SourceState::Both,
            node,
            has_copy: false,
            is_record_on_node: false,
            request: None,
            vm,
            stray_of: None,
            admission: Admission::Granted,
            behind: None,
            origin: EpisodeOrigin::default(),
            drain: None,
            pods_revision: 0,
            attempts: BTreeMap::new(),
            offer: PlacementOffer::default(),
            target: HostState::Unknown,
            home: HostState::Unknown,
        }
    }

    /// Whether a complete list, begun `settled` or longer after the Node was cordoned and after the latest change of its pods,
    /// shows the cordoned node empty.
    pub fn is_drained(&self, settled: Duration) -> bool {
        let cordoned = self.node.as_ref().is_some_and(|node| node.unschedulable);
        cordoned
            && self.drain.as_ref().is_some_and(|report| {
                report.left.is_empty()
                    && report.listed_at >= self.record_seen.phase_at.after(settled)
                    && report.pods_revision == self.pods_revision
            })
    }

    /// The latest try of `kind`, where it was made in the phase that stands there.
    pub fn attempt(&self, kind: EffectKind) -> Option<&EffectAttempt> {
        let attempt = self.attempts.get(&kind)?;
        (attempt.at.monotonic >= self.record_seen.phase_at).then_some(attempt)
    }

    /// The latest drain round, where it began in the phase that stands there.
    pub fn round(&self) -> Option<&DrainReport> {
        let report = self.drain.as_ref()?;
        (report.listed_at >= self.record_seen.phase_at).then_some(report)
    }
}
