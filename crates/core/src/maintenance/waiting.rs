//! What a node is waiting for: one typed value with its only sentence. Its kind is a [`WaitKind`].

mod guidance;
mod sentences;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::admission::SlotLimit;
use super::drain::PendingEviction;
use super::effect::EffectKind;
use super::hook::HookPoint;
use super::kinds::{PodState, WaitKind};
use super::placement::RejectedHost;
use super::policy::DrainTimeoutAction;
use super::request::RequestIdentity;
use super::volumes::AttachedVolume;
use crate::facts::vsphere::VmotionDevice;
use crate::facts::window::WindowError;
use crate::ids::{EpisodeId, NodeName};
use crate::keys::{APPROVED, SKIP};

pub use guidance::{NextStep, WaitDeadline};
pub(super) use sentences::rejected;
pub use sentences::{BUDGET, few, few_by};
use sentences::{held_by_dead_node, hooks, list, pods_left, turn, volumes_left};

/// The end of the drain timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainTimeout {
    /// When it passes.
    pub at: Timestamp,
    /// What happens then to pods that are left.
    pub action: DrainTimeoutAction,
}

/// What a node is waiting for. The text follows "waiting for"; `Error` is derived for its `Display`.
#[derive(Clone, Debug, PartialEq, Error)]
#[expect(missing_docs, reason = "the text says what each variant means")]
pub enum WaitingOn {
    #[error("the connection to vCenter: {why}")]
    Vcenter { why: String },
    #[error("the connection to Kubernetes: {why}")]
    Kubernetes { why: String },
    #[error("{until:.0}, when no request of the previous leader can arrive any more")]
    Takeover { until: Timestamp },
    #[error("the Node, which was deleted or is no longer selected")]
    NodeObject,
    #[error(
        "release {release} of Haulout, whose maintenance of this node is under way; if that release is gone, set \
         ADOPT_RELEASES={release}"
    )]
    OtherRelease { release: String },
    #[error("a retry of its host's maintenance, which failed, until {until:.0}: {message}")]
    MaintenanceRetry { message: String, until: Timestamp },
    #[error(
        "{at:.0}, because its state has changed too often in a short time; another controller may be writing to the Node"
    )]
    WritePace { at: Timestamp },
    #[error("{at:.0}, when its VM is powered on again: it went off {losses} times before the node was back")]
    PowerOnPause { losses: u8, at: Timestamp },
    #[error("vCenter to find its VM")]
    VmLookup,
    #[error(
        "vCenter to move its VM, which has {}, by vMotion; the node is drained if the VM is still there at {until:.0}",
        .device.words()
    )]
    Vmotion { device: VmotionDevice, until: Timestamp },
    #[error("{}", turn(.ahead, *.position, *.limit))]
    Slot {
        ahead: Vec<NodeName>,
        position: usize,
        limit: SlotLimit,
    },
    #[error("{}", pods_left(.left))]
    Pods {
        left: Vec<PendingEviction>,
        timeout: Option<DrainTimeout>,
    },
    #[error("the list of its pods")]
    DrainRound,
    /// The drain timeout passed and `DRAIN_TIMEOUT_ACTION` is `hold`.
    #[error("a person, because the drain timeout passed and DRAIN_TIMEOUT_ACTION is hold: {}", pods_left(.0))]
    DrainHeld(Vec<PendingEviction>),
    #[error("{}", volumes_left(.volumes, *.until))]
    Volumes {
        volumes: Vec<AttachedVolume>,
        until: Timestamp,
    },
    #[error("the guest to shut down; its power is cut at {until:.0}")]
    GuestShutdown { until: Timestamp },
    #[error("the guest, which may still shut down after the cancel, until {until:.0}")]
    GuestShutdownAfterCancel { until: Timestamp },
    #[error("vCenter's task to {}", .0.words())]
    Task(EffectKind),
    #[error("the next try to {} at {at:.0}; the last was refused: {message}", .effect.words())]
    Retry {
        effect: EffectKind,
        message: String,
        at: Timestamp,
    },
    #[error("host {host}, which is {state}")]
    HostVisible { host: String, state: &'static str },
    #[error("host {host} to stay until {until:.0}: it came back by itself and may be under repair")]
    HostSettling { host: String, until: Timestamp },
    #[error("host {host}, which is {state}, to be back in service{}", rejected("elsewhere", .refused))]
    HostExit {
        host: String,
        state: &'static str,
        refused: Vec<RejectedHost>,
    },
    #[error(
        "host {host} to enter maintenance mode, although its VM is off: another VM on it is on, or \"Move powered-off VMs\" was \
         selected, and then the VM has to leave the host{}", rejected("elsewhere", .refused)
    )]
    HostEntry {
        host: String,
        refused: Vec<RejectedHost>,
    },
    #[error("a person to delete NodeMaintenance {}, which asks for it to be {asks}", .request)]
    Request {
        request: RequestIdentity,
        /// [`RequestAction`](super::request::RequestAction) as text.
        asks: String,
    },
    #[error("{at:.0}, before which NodeMaintenance {} may not begin", .request)]
    NotBefore { request: RequestIdentity, at: Timestamp },
    #[error("{at:.0}, when the window of NodeMaintenance {} opens", .request.name)]
    Window { request: RequestIdentity, at: Timestamp },
    #[error("a person to correct spec.window of NodeMaintenance {}: {why}", .request.name)]
    InvalidWindow {
        request: RequestIdentity,
        why: WindowError,
    },
    #[error("a person to approve its drain: annotate it with {APPROVED}={episode}")]
    Approval { episode: EpisodeId },
    #[error("{}", hooks(*.point, .names, *.until))]
    Hook {
        point: HookPoint,
        names: Vec<String>,
        until: Option<Timestamp>,
    },
    #[error("a person to remove {SKIP} from the Node; until then Haulout leaves it alone")]
    Skip,
    #[error("its VM to be powered on, before NodeMaintenance {} can start", .request)]
    PoweredOn { request: RequestIdentity },
    #[error("a person to delete NodeMaintenance {}: its VM is on {host} already", .request)]
    AlreadyThere { request: RequestIdentity, host: String },
    #[error("a host to relocate it to, as NodeMaintenance {} asks{}", .request, rejected("so far", .refused))]
    Place {
        request: RequestIdentity,
        refused: Vec<RejectedHost>,
    },
    #[error("a survey of the free passthrough devices of other hosts")]
    Survey,
    #[error("a person to answer vCenter's question about the VM: {0}")]
    Question(String),
    #[error("the VM's power state to be known")]
    PowerState,
    #[error("the node: {missing}")]
    NodeReady { missing: &'static str },
    #[error("{resource} to be allocatable again: {have} of {want}")]
    Gpus { resource: String, have: u64, want: u64 },
    #[error("the guards on its Machine to be {}", if *.is_removal { "removed" } else { "set" })]
    MachineGuards { is_removal: bool },
    #[error("a person or a change: {0}")]
    Parked(ParkReason),
}

impl WaitingOn {
    /// The wait as a sentence about the node, or the reason why it is parked.
    pub fn sentence(&self) -> String {
        if let Self::Parked(reason) = self {
            reason.to_string()
        } else {
            format!("waits for {self}")
        }
    }

    /// Its kind.
    pub fn kind(&self) -> WaitKind {
        match self {
            Self::Vcenter { .. } => WaitKind::Vcenter,
            Self::Kubernetes { .. } => WaitKind::Kubernetes,
            Self::Takeover { .. } => WaitKind::Takeover,
            Self::NodeObject => WaitKind::NodeObject,
            Self::OtherRelease { .. } => WaitKind::OtherRelease,
            Self::MaintenanceRetry { .. } => WaitKind::MaintenanceRetry,
            Self::PowerOnPause { .. } => WaitKind::PowerOnPause,
            Self::WritePace { .. } => WaitKind::WritePace,
            Self::VmLookup => WaitKind::VmLookup,
            Self::Vmotion { .. } => WaitKind::Vmotion,
            Self::Slot { .. } => WaitKind::Slot,
            Self::Pods { left, .. } if left.iter().any(|pod| pod.why.state() == PodState::HeldByBudget) => {
                WaitKind::DisruptionBudget
            }
            Self::Pods { .. } => WaitKind::Pods,
            Self::DrainRound => WaitKind::DrainRound,
            Self::DrainHeld(_) => WaitKind::DrainHeld,
            Self::Volumes { .. } => WaitKind::Volumes,
            Self::GuestShutdown { .. } => WaitKind::GuestShutdown,
            Self::GuestShutdownAfterCancel { .. } => WaitKind::GuestShutdownAfterCancel,
            Self::Task(_) => WaitKind::Task,
            Self::Retry { .. } => WaitKind::Retry,
            Self::HostVisible { .. } => WaitKind::HostVisible,
            Self::HostSettling { .. } => WaitKind::HostSettling,
            Self::HostExit { .. } => WaitKind::HostExit,
            Self::HostEntry { .. } => WaitKind::HostEntry,
            Self::Request { .. } => WaitKind::Request,
            Self::NotBefore { .. } => WaitKind::NotBefore,
            Self::Window { .. } => WaitKind::Window,
            Self::InvalidWindow { .. } => WaitKind::InvalidWindow,
            Self::Approval { .. } => WaitKind::Approval,
            Self::Hook { .. } => WaitKind::Hook,
            Self::Skip => WaitKind::Skip,
            Self::PoweredOn { .. } => WaitKind::PoweredOn,
            Self::AlreadyThere { .. } => WaitKind::AlreadyThere,
            Self::Place { .. } => WaitKind::Place,
            Self::Survey => WaitKind::Survey,
            Self::Question(_) => WaitKind::Question,
            Self::PowerState => WaitKind::PowerState,
            Self::NodeReady { .. } => WaitKind::NodeReady,
            Self::Gpus { .. } => WaitKind::Gpus,
            Self::MachineGuards { .. } => WaitKind::MachineGuards,
            Self::Parked(_) => WaitKind::Parked,
        }
    }
}

/// Why an episode is parked. `Error` is derived for its `Display`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[serde(rename_all = "camelCase", tag = "kind")]
#[expect(missing_docs, reason = "the text says what each variant means")]
pub enum ParkReason {
    #[error("the episode on the Node cannot be read and is left alone: {why}")]
    UnreadableRecord { why: String },
    #[error("the Node was deleted and recreated; its record is about another one")]
    AnotherNode,
    #[error("vCenter knows no VM for this node")]
    VmMissing,
    #[error("its VM is outside VCENTER_SCOPE; it is not changed")]
    VmOutOfScope,
    #[error("{count} VMs match this node; none is changed")]
    VmAmbiguous { count: usize },
    #[error("its VM also matches {}; it is not changed", list(.nodes))]
    VmShared { nodes: Vec<NodeName> },
    #[error("{}", held_by_dead_node(.node, *.is_deleted))]
    VmHeldByDeadNode { node: NodeName, is_deleted: bool },
    #[error(
        "the Node is not Ready while its VM is on, and {} has the same VM, which is not stopped; if that is the machine's name now, \
         delete this Node", list(.nodes)
    )]
    NodeNotReady { nodes: Vec<NodeName> },
    #[error(
        "the Node reports no UUID of its VM (spec.providerID, status.nodeInfo.systemUUID); NODE_BINDING=name finds VMs by name"
    )]
    NoUuid,
    #[error("{is} matches this node, but its maintenance began with {was}; neither is changed")]
    VmReplaced { was: String, is: String },
    #[error(
        "the VM went off again {losses} times before the node was back; find out why and power it on in vCenter"
    )]
    PowerLost { losses: u8 },
    #[error("the VM is suspended")]
    VmSuspended,
    #[error("the Node is uncordoned again and again; cordon it to continue the drain")]
    Uncordoned,
    #[error(
        "its VM was powered on although NodeMaintenance {request} asks for it to be kept off; delete the request or power it off"
    )]
    PoweredOn { request: String },
    #[error("{phase} is overdue, still waiting for {waiting_on}")]
    Overdue { phase: String, waiting_on: String },
}

#[cfg(test)]
mod tests;
