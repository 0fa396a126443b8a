//! The facts of Kubernetes as plain data.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::device_slice::DeviceSlice;
use super::foreign_maintenance::{ForeignApi, ForeignMaintenance};
use super::hook::Hooks;
use super::node_condition::FoundConditions;
use super::node_guard::FoundGuards;
use super::node_maintenance::NodeMaintenanceStatus;
pub use super::requested_maintenance::{RequestAction, RequestedMaintenance};
use crate::ids::{BootId, NodeName, NodeUid, RequestUid, VmUuid};

/// A change of a fact or of the watch.
#[derive(Clone, Debug, PartialEq)]
pub enum KubernetesUpdate {
    /// All Nodes are void. A complete list follows, and then [`KubernetesUpdate::Settled`].
    Reset,
    /// A Node that the selector matches appeared or changed.
    Node(Box<NodeFacts>),
    /// A Node from the reply to our PATCH. The selector may not match it.
    Answered(Box<NodeFacts>),
    /// A Node that was read because a PATCH of it was a conflict.
    ReadAgain {
        node: Box<NodeFacts>,
        /// The version of the PATCH.
        conflicted: u64,
    },
    /// A Node was deleted, or the selector no longer matches it.
    NodeGone { name: NodeName, uid: NodeUid },
    /// The list since the last `Reset` is complete.
    Settled,
    /// An update of the watch of NodeMaintenance objects.
    Maintenances(NodeMaintenanceUpdate),
    /// An update of the watch of the NodeMaintenance objects of another project.
    ForeignMaintenances(ForeignApi, NodeMaintenanceUpdate),
    /// The pods of this Node changed, while they are watched.
    PodsChanged(NodeName),
    /// The state of a watched PodDisruptionBudget that blocks a drain.
    Budget { budget: Budget, state: BudgetState },
    /// The state of a Node that is watched by name, whether the selector matches it or not.
    Followed(Box<NodeFacts>),
    /// The same, from a new list. A restore of etcd sets versions back, so the ones before do not count.
    FollowedListed(Box<NodeFacts>),
    /// A Node that is watched by name was deleted.
    FollowedGone { name: NodeName, uid: NodeUid },
    /// A Node that is watched by name does not exist.
    FollowedAbsent { name: NodeName },
    /// All Nodes of the cluster were searched for episodes, whether selected or not.
    Scanned {
        /// Those with one, at most 1,000.
        stranded: Vec<StrandedNode>,
    },
    /// All ResourceSlices of this Node, after a change of them.
    Devices {
        node: NodeName,
        /// Its slices of the drivers in `GPU_RESOURCES`.
        slices: Arc<[DeviceSlice]>,
    },
    /// The ResourceSlices were listed, or cannot be listed.
    DevicesListed,
    /// The watch broke and is rebuilt; a `Reset` follows when it is synced again.
    Lost {
        /// The operation and the error.
        why: String,
    },
}

/// A Node with an episode, found by a search of all Nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrandedNode {
    pub name: NodeName,
    pub uid: NodeUid,
    /// The label selector matches the Node.
    pub is_selected: bool,
}

/// A PodDisruptionBudget.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Budget {
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetState {
    /// Its watch is broken or not allowed.
    Unknown,
    /// It allows no disruption.
    Blocks,
    /// It allows a disruption, or was deleted.
    Allows,
}

/// An update of the watch of NodeMaintenance objects.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeMaintenanceUpdate {
    /// All objects are void. A complete list follows, and then [`NodeMaintenanceUpdate::Settled`].
    Reset,
    /// An object appeared or changed.
    Seen(Box<NodeMaintenanceFacts>),
    /// An object as it was in the reply to our own write, which may come after the update that it was deleted.
    Answered(Box<NodeMaintenanceFacts>),
    /// An object was deleted.
    Gone { name: String, uid: RequestUid },
    /// The list since the last `Reset` is complete. It is empty if the kind is not installed.
    Settled,
    /// The watch broke and is rebuilt; a `Reset` follows when it is synced again.
    Lost {
        /// The operation and the error.
        why: String,
        /// The kube-apiserver refused it (401 or 403).
        refused: bool,
    },
}

/// A NodeMaintenance object.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeMaintenanceFacts {
    /// `metadata.name`. An object of another project has its project before it and a slash, as in `medik8s/NAME`, so that it has the
    /// name of no object of ours.
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
    /// Whether it is a request or the record of an episode.
    pub role: NodeMaintenanceRole,
    /// Its status has an end time.
    pub is_over: bool,
    pub status: Box<NodeMaintenanceStatus>,
}

impl NodeMaintenanceFacts {
    /// Whether it is the object `known`, in an earlier version.
    pub fn is_before(&self, known: &Self) -> bool {
        self.uid == known.uid && self.resource_version < known.resource_version
    }

    /// Whether it is the object `known`, in the same version or a later one.
    pub fn is_same_or_later(&self, known: &Self) -> bool {
        self.uid == known.uid && self.resource_version >= known.resource_version
    }
}

/// The role of a NodeMaintenance object.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeMaintenanceRole {
    Request(RequestedMaintenance),
    /// The record of an episode, created by Haulout: a copy of the record on the Node, which stays as history.
    Episode {
        /// `status.record`: the same JSON as on the Node.
        record: Option<String>,
    },
    /// An object of another project.
    Foreign(Box<ForeignMaintenance>),
}

impl NodeMaintenanceRole {
    pub fn asked(&self) -> Option<&RequestedMaintenance> {
        match self {
            Self::Request(asked) => Some(asked),
            Self::Foreign(foreign) => foreign.asked.as_ref().ok(),
            Self::Episode { .. } => None,
        }
    }

    /// The other project whose object it is.
    pub fn foreign_api(&self) -> Option<ForeignApi> {
        match self {
            Self::Foreign(foreign) => Some(foreign.origin.api),
            Self::Request(_) | Self::Episode { .. } => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    /// `metadata.name`.
    pub name: NodeName,
    /// `metadata.uid`.
    pub uid: NodeUid,
    /// `metadata.resourceVersion`, which every PATCH sends back, so that a write on an old version is refused. Comparable as a
    /// number (KEP-5504).
    pub resource_version: u64,
    /// `metadata.creationTimestamp`, on the kube-apiserver's clock; the Unix epoch if absent.
    pub created_at: Timestamp,
    /// The UUID in `spec.providerID`.
    pub provider_uuid: Option<VmUuid>,
    /// `status.nodeInfo.systemUUID`.
    pub system_uuid: Option<VmUuid>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// The field manager that `metadata.managedFields` names as the owner of `spec.unschedulable`.
    pub cordoned_by: Option<String>,
    pub ready: ReadyCondition,
    /// `status.nodeInfo.bootID`.
    pub boot_id: Option<BootId>,
    /// `status.allocatable` of each GPU resource, by resource name; a resource with none is absent.
    pub gpus: Arc<BTreeMap<String, u64>>,
    /// `status.capacity` of each GPU resource. It stays for some minutes after a device plugin has stopped.
    pub gpu_capacity: Arc<BTreeMap<String, u64>>,
    /// `haulout.dev/accepted-gpus`: the counts with which the node is taken back.
    pub accepted_gpus: Arc<BTreeMap<String, u64>>,
    pub annotations: NodeAnnotations,
    /// The value of the label `LIMIT_GROUP_LABEL`, where that is set.
    pub limit_group: Option<String>,
    /// The conditions of an episode on it.
    pub conditions: FoundConditions,
    pub guards: FoundGuards,
    pub hooks: Hooks,
    /// `spec.taints`.
    pub taints: Arc<[NodeTaint]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTaint {
    pub key: String,
    pub value: Option<String>,
    pub effect: String,
    /// `timeAdded`, which only `NoExecute` taints have.
    pub time_added: Option<Timestamp>,
}

/// The condition `Ready` of a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyCondition {
    /// Its status is `True`.
    pub is_true: bool,
    /// Its status is `Unknown`: the kubelet has not renewed its Lease for a while.
    pub is_unknown: bool,
    /// `lastHeartbeatTime`, which shows whether the kubelet still updates the condition.
    pub heartbeat: Option<Timestamp>,
    /// `lastTransitionTime`, since when it has its status.
    pub since: Option<Timestamp>,
}

/// Our annotations on a Node. Their keys are in [`crate::keys`].
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
    /// `keep-cordoned`: the Node stays cordoned at the end. Never written by Haulout.
    pub keep_cordoned: Option<String>,
    /// `fulfilled-request`: the UID of the latest request that was fulfilled.
    pub fulfilled: Option<String>,
    /// `haulout.dev/skip`. Never written by Haulout.
    pub skip: Option<String>,
    /// `haulout.dev/approved`: the id of an episode, or the UID of a NodeMaintenance. Set by people, removed by Haulout when the drain
    /// begins.
    pub approved: Option<String>,
    /// `haulout.dev/strategy`. Never written by Haulout.
    pub strategy: Option<String>,
}
