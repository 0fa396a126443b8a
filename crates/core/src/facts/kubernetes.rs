//! What Kubernetes tells, as plain data: the part of a Node that maintenance is about, and when its pods change.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::node_maintenance::NodeMaintenanceStatus;
use crate::ids::{BootId, NodeName, NodeUid, RequestUid, VmUuid};

/// One thing that the kube-apiserver told, or that became of the watch itself.
#[derive(Clone, Debug, PartialEq)]
pub enum KubernetesUpdate {
    /// All Nodes told before are void. A complete list follows, closed by [`Update::Settled`].
    Reset,
    /// A Node that the selector matches appeared or changed.
    Node(Box<NodeFacts>),
    /// A Node as the answer to our own PATCH or GET shows it. Whether the selector matches it is not said.
    Answered(Box<NodeFacts>),
    /// A Node was deleted, or the selector matches it no longer.
    NodeGone {
        /// Its name.
        name: NodeName,
        /// Which of the Nodes of that name.
        uid: NodeUid,
    },
    /// What was told since the last `Reset` is complete.
    Settled,
    /// What the watch of NodeMaintenance objects tells.
    Maintenances(NodeMaintenanceUpdate),
    /// A pod on this Node came, went or changed, while the Node's pods are being watched.
    PodsChanged(NodeName),
    /// What the watch of a PodDisruptionBudget that holds a drain tells.
    Budget {
        /// Which budget.
        budget: Budget,
        /// How it stands.
        stands: BudgetStands,
    },
    /// A Node that is followed by its name is so, whether the selector matches it or not.
    Followed(Box<NodeFacts>),
    /// A Node that is followed by its name was deleted.
    FollowedGone {
        /// Its name.
        name: NodeName,
        /// Which of the Nodes of that name.
        uid: NodeUid,
    },
    /// There is no Node of a name that is followed.
    FollowedAbsent {
        /// The name.
        name: NodeName,
    },
    /// All Nodes of the cluster were looked through for episodes: ours and others', selected or not.
    Scanned {
        /// Those that were found, at most 1,000.
        stranded: Vec<StrandedNode>,
    },
    /// The watch broke; it is being rebuilt, and a `Reset` follows when it stands again.
    Lost {
        /// What was tried and what the kube-apiserver answered, for people.
        why: String,
    },
}

/// An episode that stands on a Node, as a look through all Nodes finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrandedNode {
    /// The Node.
    pub name: NodeName,
    /// Which of the Nodes of that name.
    pub uid: NodeUid,
    /// The prefix of the annotation, without the slash.
    pub prefix: String,
    /// It is the prefix that this program is configured with.
    pub is_ours: bool,
    /// The label selector matches the Node.
    pub is_selected: bool,
}

/// A PodDisruptionBudget.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Budget {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// How a budget stands, as far as it is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetStands {
    /// Its watch is broken, or not allowed.
    Unheard,
    /// It is watched, and allows no disruption.
    Holds,
    /// It allows one, or is gone.
    Allows,
}

/// What the watch of NodeMaintenance objects tells.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeMaintenanceUpdate {
    /// All objects told before are void. A complete list follows, closed by [`NodeMaintenanceUpdate::Settled`].
    Reset,
    /// An object appeared or changed, or is the answer to our own write.
    Seen(Box<NodeMaintenanceFacts>),
    /// An object was deleted.
    Gone {
        /// Its name.
        name: String,
        /// Which of the objects of that name.
        uid: RequestUid,
    },
    /// What was told since the last `Reset` is complete. Where the kind is not installed, that is nothing at all.
    Settled,
    /// The watch broke; it is being rebuilt, and a `Reset` follows when it stands again.
    Lost {
        /// What was tried and what the kube-apiserver answered, for people.
        why: String,
        /// The kube-apiserver refused it (401 or 403): it will until somebody gives the right.
        refused: bool,
    },
}

/// A NodeMaintenance object.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeMaintenanceFacts {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: RequestUid,
    /// `metadata.resourceVersion`, comparable as a number.
    pub resource_version: u64,
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.creationTimestamp`.
    pub created_at: Timestamp,
    /// `spec.nodeName`.
    pub node: NodeName,
    /// Who made it, and for what.
    pub role: NodeMaintenanceRole,
    /// Its status says that it has come to its end.
    pub is_over: bool,
    /// Its status as it stands, to tell whether it says what is so.
    pub status: Box<NodeMaintenanceStatus>,
}

/// What a NodeMaintenance object is.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeMaintenanceRole {
    /// A person's request.
    Request(RequestedMaintenance),
    /// The record of an episode, made by Haulout: the second copy of what stands on the Node, kept as history. It asks for
    /// nothing.
    Episode {
        /// `status.record`: the same JSON as on the Node.
        record: Option<String>,
    },
}

/// What a person asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedMaintenance {
    /// `spec.reason`.
    pub reason: String,
    /// `spec.action`.
    pub action: RequestedAction,
    /// `spec.targetHost`.
    pub target_host: Option<String>,
    /// `spec.drainTimeoutSeconds`.
    pub drain_timeout: Option<std::time::Duration>,
    /// `spec.drainTimeoutAction` is `Hold`, or `PowerOff`.
    pub hold_on_drain_timeout: Option<bool>,
    /// `spec.guestShutdownTimeoutSeconds`.
    pub guest_shutdown_timeout: Option<std::time::Duration>,
}

/// `spec.action`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema of the kind says what each asks for")]
pub enum RequestedAction {
    Drain,
    PowerOff,
    Relocate,
    Reboot,
}

/// The part of a Node that maintenance is about.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    /// `metadata.name`.
    pub name: NodeName,
    /// `metadata.uid`.
    pub uid: NodeUid,
    /// `metadata.resourceVersion`: sent back with every PATCH, so that a write on an old view is refused. Comparable as
    /// a number (KEP-5504), which tells an older view from a younger one.
    pub resource_version: u64,
    /// `metadata.creationTimestamp`, on the kube-apiserver's clock; the Unix epoch where it is absent.
    pub created_at: Timestamp,
    /// The UUID in `spec.providerID`.
    pub provider_uuid: Option<VmUuid>,
    /// `status.nodeInfo.systemUUID`.
    pub system_uuid: Option<VmUuid>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// The field manager that `metadata.managedFields` names as the owner of `spec.unschedulable`.
    pub cordoned_by: Option<String>,
    /// The condition `Ready`.
    pub ready: ReadyCondition,
    /// `status.nodeInfo.bootID`.
    pub boot_id: Option<BootId>,
    /// `status.allocatable` of each GPU resource, by resource name; a resource with none is absent.
    pub gpus: Arc<BTreeMap<String, u64>>,
    /// Our annotations.
    pub marks: NodeAnnotations,
}

/// The condition `Ready` of a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyCondition {
    /// Its status is `True`.
    pub is_true: bool,
    /// `lastHeartbeatTime`: when the kubelet last said so. It tells a living Ready from one that nobody has refuted yet.
    pub heartbeat: Option<Timestamp>,
}

/// Our annotations on a Node, by what they say (their keys are in [`crate::keys`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAnnotations {
    /// `state`: `draining`, `powered-off` or `migrated`.
    pub state: Option<String>,
    /// `host`: the name of the ESXi host that triggered maintenance.
    pub host: Option<String>,
    /// `migrated-to-host`: the name of the host the VM was moved to.
    pub migrated_to_host: Option<String>,
    /// `transition-time`: RFC 3339.
    pub transition_time: Option<String>,
    /// `episode`: our versioned JSON.
    pub episode: Option<String>,
    /// `last-episode`: our versioned JSON of the episode that ended last.
    pub last_episode: Option<String>,
    /// `keep-cordoned`: a person asks us to leave the Node cordoned at the end. Never written by us.
    pub keep_cordoned: Option<String>,
    /// `fulfilled-request`: the UID of the latest request that was fulfilled.
    pub fulfilled: Option<String>,
    /// `haulout.dev/skip`. Never written by us.
    pub skip: Option<String>,
    /// `haulout.dev/approved`: a person's, and taken away by us at the end.
    pub approved: Option<String>,
    /// `haulout.dev/strategy`. Never written by us.
    pub strategy: Option<String>,
}
