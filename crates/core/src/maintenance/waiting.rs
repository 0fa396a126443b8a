//! What a node is waiting for: each wait is one entry of `waits!`, with its only sentence.

mod guidance;
mod sentences;
#[macro_use]
mod table;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::admission::SlotLimit;
use super::drain::PendingEviction;
use super::effect::EffectKind;
use super::hook::HookPoint;
use super::kinds::PodState;
use super::placement::RejectedHost;
use super::policy::DrainTimeoutAction;
use super::request_identity::RequestIdentity;
use super::volumes::AttachedVolume;
use crate::facts::vsphere::VmotionDevice;
use crate::facts::window::WindowError;
use crate::ids::{EpisodeId, NodeName};
use crate::keys::{APPROVED, HOOK_SUFFIX, SKIP};

pub use guidance::{WaitDeadline, is_command};
use guidance::{about_parked, about_pods, at, delete, kubectl, words};
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

// The entry of a wait: its fields, its stable name, the wait in words that follow "waits for"; then
// - `says`: the sentence, which follows "waiting for" as well;
// - `needs person`: the maintenance goes on only after a person acts. Hooks are left out: most of them are removed by a program;
// - `runbook`: that of the alert about such a wait, by its name in docs/runbooks;
// - `ends`: when the wait ends by itself, and what happens then;
// - `next`: what a person can do; absent where it ends by itself or has its reason elsewhere.
waits! {
    // Of `Pods`, where a budget holds one of them.
    kind DisruptionBudget = "disruption-budget", "a PodDisruptionBudget", runbook "HauloutDrainStuck";

    Vcenter { why: String } = "vcenter", "vCenter",
        says("the connection to vCenter: {why}"),
        runbook "HauloutVCenterUnreachable", next |_node| words("run `haulout check` in a pod of the Deployment");
    Kubernetes { why: String } = "kubernetes", "Kubernetes",
        says("the connection to Kubernetes: {why}"),
        runbook "HauloutKubernetesUnreachable";
    Takeover { until: Timestamp } = "takeover", "the end of the previous leader",
        says("{until:.0}, when no request of the previous leader can arrive any more"),
        ends at(*until, "the first effect begins");
    NodeObject = "node-object", "its Node object",
        says("the Node, which was deleted or is no longer selected"),
        needs person, runbook "HauloutWaitsForPerson", next |node| kubectl(format!("haulout status {node}"));
    OtherRelease { release: String } = "other-release", "another release",
        says(
            "release {release} of Haulout, whose maintenance of this node is under way; if that release is gone, set \
             ADOPT_RELEASES={release}"
        ),
        needs person, runbook "HauloutNodeParked", next |node| kubectl(format!("haulout status {node}"));
    MaintenanceRetry { message: String, until: Timestamp } = "maintenance-retry", "a retry of the maintenance",
        says("a retry of its host's maintenance, which failed, until {until:.0}: {message}"),
        ends at(*until, "the node is uncordoned");
    PowerOnPause { losses: u8, at: Timestamp } = "power-on-pause", "a pause before the next power-on",
        says("{at:.0}, when its VM is powered on again: it went off {losses} times before the node was back"),
        ends guidance::at(*at, "the VM is powered on");
    WritePace { at: Timestamp } = "write-pace", "a pause in writes to the Node",
        says("{at:.0}, because its state has changed too often in a short time; another controller may be writing to the Node"),
        ends guidance::at(*at, "the Node is written again");
    VmLookup = "vm-lookup", "its VM to be found",
        says("vCenter to find its VM");
    Vmotion { device: VmotionDevice, until: Timestamp } = "vmotion", "a vMotion",
        says(
            "vCenter to move its VM, which has {}, by vMotion; the node is drained if the VM is still there at {until:.0}",
            .device.words()
        ),
        ends at(*until, "the node is drained");
    Slot { ahead: Vec<NodeName>, position: usize, limit: SlotLimit } = "slot", "a slot",
        says("{}", turn(.ahead, *.position, *.limit));
    Pods { left: Vec<PendingEviction>, timeout: Option<DrainTimeout> } = "pods", "pods to end",
        says("{}", pods_left(.left)),
        runbook "HauloutDrainStuck",
        ends timeout.and_then(|timeout| match timeout.action {
            DrainTimeoutAction::PowerOff => at(timeout.at, "the VM is shut down with the pods that are left"),
            DrainTimeoutAction::Hold => at(timeout.at, "a person is needed"),
        }),
        next |node| about_pods(left, node);
    DrainRound = "drain-round", "the list of pods",
        says("the list of its pods");
    // The drain timeout passed and `DRAIN_TIMEOUT_ACTION` is `hold`.
    DrainHeld { left: Vec<PendingEviction> } = "drain-held", "a person, with pods left",
        says("a person, because the drain timeout passed and DRAIN_TIMEOUT_ACTION is hold: {}", pods_left(.left)),
        needs person, runbook "HauloutWaitsForPerson", next |node| about_pods(left, node);
    Volumes { volumes: Vec<AttachedVolume>, until: Timestamp } = "volumes", "volumes to be detached",
        says("{}", volumes_left(.volumes, *.until)),
        runbook "HauloutShutdownStuck", ends at(*until, "the VM is shut down although volumes are attached"),
        next |node| kubectl(format!("get volumeattachments | grep {node}"));
    GuestShutdown { until: Timestamp } = "guest-shutdown", "the guest to shut down",
        says("the guest to shut down; its power is cut at {until:.0}"),
        runbook "HauloutShutdownStuck", ends at(*until, "power is cut");
    GuestShutdownAfterCancel { until: Timestamp } = "guest-shutdown-after-cancel", "a guest that may still shut down",
        says("the guest, which may still shut down after the cancel, until {until:.0}"),
        ends at(*until, "the guest is taken for running");
    Task { effect: EffectKind } = "task", "a task in vCenter",
        says("vCenter's task to {}", .effect.words());
    Retry { effect: EffectKind, message: String, at: Timestamp } = "retry", "the next attempt",
        says("the next try to {} at {at:.0}; the last was refused: {message}", .effect.words()),
        ends guidance::at(*at, "it is tried again"), next |node| kubectl(format!("haulout status {node}"));
    HostVisible { host: String, state: &'static str } = "host-visible", "its host to be connected",
        says("host {host}, which is {state}"),
        next |_node| words("look in vCenter why the host does not respond");
    HostSettling { host: String, until: Timestamp } = "host-settling", "its host to stay",
        says("host {host} to stay until {until:.0}: it came back by itself and may be under repair"),
        ends at(*until, "the host is used");
    HostExit { host: String, state: &'static str, refused: Vec<RejectedHost> } = "host-exit", "its host to leave maintenance mode",
        says("host {host}, which is {state}, to be back in service{}", rejected("elsewhere", .refused)),
        next |_node| words("when the work on the host is done, take it out of maintenance mode");
    HostEntry { host: String, refused: Vec<RejectedHost> } = "host-entry", "its host to enter maintenance mode",
        says(
            "host {host} to enter maintenance mode, although its VM is off: another VM on it is on, or \"Move powered-off VMs\" was \
             selected, and then the VM has to leave the host{}", rejected("elsewhere", .refused)
        ),
        next |_node| words(
            "look in vCenter which VMs are still on the host; if only this one is, enter maintenance mode again without \
             \"Move powered-off VMs\", or free a device on another host",
        );
    // `asks`: a `RequestAction` as text.
    Request { request: RequestIdentity, asks: String } = "request", "its request to be deleted",
        says("a person to delete NodeMaintenance {}, which asks for it to be {asks}", .request),
        next |node| delete(request, node);
    NotBefore { request: RequestIdentity, at: Timestamp } = "not-before", "the time of its request",
        says("{at:.0}, before which NodeMaintenance {} may not begin", .request),
        ends guidance::at(*at, "the request may begin");
    Window { request: RequestIdentity, at: Timestamp } = "window", "the window of its request",
        says("{at:.0}, when the window of NodeMaintenance {} opens", .request.name),
        ends guidance::at(*at, "the request may begin");
    InvalidWindow { request: RequestIdentity, why: WindowError } = "invalid-window", "a window to be corrected",
        says("a person to correct spec.window of NodeMaintenance {}: {why}", .request.name),
        needs person, runbook "HauloutWaitsForPerson",
        next |_node| kubectl(format!("edit nodemaintenance {}", request.name));
    Approval { episode: EpisodeId } = "approval", "an approval",
        says("a person to approve its drain: annotate it with {APPROVED}={episode}"),
        needs person, runbook "HauloutWaitsForPerson", next |node| kubectl(format!("haulout approve {node}"));
    Hook { point: HookPoint, names: Vec<String>, until: Option<Timestamp> } = "hook", "a hook",
        says("{}", hooks(*.point, .names, *.until)),
        runbook "HauloutWaitsForPerson", ends until.and_then(|until| at(until, "the step is made")),
        next |node| names.first().and_then(|name| {
            kubectl(format!("annotate node {node} {point}{HOOK_SUFFIX}/{name}-"))
        });
    Skip = "skip", "the skip annotation to be removed",
        says("a person to remove {SKIP} from the Node; until then Haulout leaves it alone"),
        needs person, runbook "HauloutWaitsForPerson", next |node| kubectl(format!("annotate node {node} {SKIP}-"));
    PoweredOn { request: RequestIdentity } = "powered-on", "its VM to be powered on",
        says("its VM to be powered on, before NodeMaintenance {} can start", .request),
        needs person, runbook "HauloutWaitsForPerson", next |_node| words("power the VM on in vCenter, or delete the request");
    AlreadyThere { request: RequestIdentity, host: String } = "already-there", "a request that is done to be deleted",
        says("a person to delete NodeMaintenance {}: its VM is on {host} already", .request),
        needs person, runbook "HauloutWaitsForPerson", next |node| delete(request, node);
    Place { request: RequestIdentity, refused: Vec<RejectedHost> } = "place", "a host to relocate to",
        says("a host to relocate it to, as NodeMaintenance {} asks{}", .request, rejected("so far", .refused));
    Survey = "survey", "a survey of devices",
        says("a survey of the free passthrough devices of other hosts");
    Question(text: String) = "question", "an answer to vCenter's question",
        says("a person to answer vCenter's question about the VM: {0}"),
        needs person, runbook "HauloutWaitsForPerson",
        next |_node| words("answer the question in vCenter, on the page of the VM");
    PowerState = "power-state", "the power state of its VM",
        says("the VM's power state to be known");
    NodeReady { missing: &'static str } = "node-ready", "the node to be Ready",
        says("the node: {missing}"),
        runbook "HauloutNodeNotBackAfterPowerOn", next |node| kubectl(format!("describe node {node}"));
    Gpus { resource: String, have: u64, want: u64 } = "gpus", "its GPUs",
        says("{resource} to be allocatable again: {have} of {want}"),
        runbook "HauloutNodeNotBackAfterPowerOn", next |node| kubectl(format!("haulout accept {node}"));
    MachineGuards { is_removal: bool } = "machine-guards", "guards on its Machine",
        says("the guards on its Machine to be {}", if *.is_removal { "removed" } else { "set" });
    Parked(reason: ParkReason) = "parked", "a person",
        says("a person or a change: {0}"),
        needs person, runbook "HauloutNodeParked", next |node| about_parked(reason, node);
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

    pub fn kind(&self) -> WaitKind {
        if let Self::Pods { left, .. } = self
            && left.iter().any(|pod| pod.why.state() == PodState::HeldByBudget)
        {
            return WaitKind::DisruptionBudget;
        }
        self.kind_of_entry()
    }
}

/// Why an episode is parked. `Error` is derived for its `Display`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[serde(rename_all = "camelCase", tag = "kind")]
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
