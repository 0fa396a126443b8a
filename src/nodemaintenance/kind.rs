//! The kind `NodeMaintenance`: its spec and its status.

#![expect(
    unreachable_pub,
    reason = "KubeSchema gives the visibility of the spec to a struct inside a function"
)]

pub use crate::maintenance::policy::DrainTimeoutAction;
pub use haulout_core::facts::node_maintenance::*;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A request to take one node out of service, or the record of an episode.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "haulout.dev",
    version = "v1alpha1",
    kind = "NodeMaintenance",
    plural = "nodemaintenances",
    singular = "nodemaintenance",
    shortname = "nm",
    category = "haulout",
    status = "NodeMaintenanceStatus",
    derive = "PartialEq",
    doc = "A request to take one node out of service, or the record of an episode.",
    validation = Rule::new("self.spec.nodeName.size() > 0").message("spec.nodeName must name a Node"),
    printcolumn(json_path = ".spec.nodeName", name = "Node", type_ = "string"),
    printcolumn(json_path = ".status.host", name = "Host", type_ = "string"),
    printcolumn(json_path = ".spec.action", name = "Action", type_ = "string"),
    printcolumn(json_path = ".status.state", name = "State", type_ = "string"),
    printcolumn(json_path = ".status.drainProgress", name = "Drained", type_ = "integer", format = "int32"),
    printcolumn(json_path = ".metadata.creationTimestamp", name = "Age", type_ = "date"),
    printcolumn(json_path = ".status.target", name = "Target", type_ = "string", priority = 1),
    printcolumn(json_path = ".spec.reason", name = "Reason", type_ = "string", priority = 1),
    printcolumn(json_path = ".status.waitingOn.message", name = "Waiting for", type_ = "string", priority = 1),
    printcolumn(json_path = ".status.traceId", name = "Trace", type_ = "string", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.nodeName == oldSelf.nodeName").message("spec.nodeName cannot be changed; delete this object and create another"),
    validation = Rule::new("self.origin == oldSelf.origin").message("spec.origin cannot be changed"),
    validation = Rule::new("self.action == oldSelf.action").message("spec.action cannot be changed; delete this object and create another"),
    validation = Rule::new("has(self.targetHost) == has(oldSelf.targetHost) && (!has(self.targetHost) || self.targetHost == oldSelf.targetHost)").message("spec.targetHost cannot be changed; delete this object and create another"),
    validation = Rule::new("!has(self.targetHost) || self.action == 'Relocate'").message("spec.targetHost is allowed with action Relocate only"),
)]
pub struct NodeMaintenanceSpec {
    /// The name of the Node.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,
    /// The requested action.
    #[serde(default)]
    pub action: MaintenanceAction,
    /// The name of the ESXi host to which the VM is relocated. If unset, any host that fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub target_host: Option<String>,
    /// The longest drain. Replaces the setting of the controller if that is shorter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604800))]
    pub drain_timeout_seconds: Option<u32>,
    /// Action after the longest drain. `Hold` takes precedence over the setting of the controller. A request with action `Drain`
    /// always holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_timeout_action: Option<DrainTimeoutAction>,
    /// The longest guest shutdown before the power is cut. Replaces the setting of the controller if that is shorter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub guest_shutdown_timeout_seconds: Option<u32>,
    /// `Request`: a request of a person. `Episode`: the record of an episode, kept by Haulout; creating one has no effect.
    #[serde(default)]
    pub origin: MaintenanceOrigin,
    /// The label selector of the controller that created the record of an episode. Of several controllers in a cluster, each
    /// uses its own records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
}

/// The requested action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum MaintenanceAction {
    /// Cordon and drain the node, and keep it drained until the request is deleted.
    #[default]
    Drain,
    /// Drain the node, shut its VM down, and keep it off until the request is deleted.
    PowerOff,
    /// Drain the node, relocate its VM to another host, and bring it back.
    Relocate,
    /// Drain the node, shut its VM down, power it on, and bring the node back.
    Reboot,
    /// The maintenance of its host. Only records of episodes have it.
    #[value(skip)]
    HostMaintenance,
}

/// The origin of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MaintenanceOrigin {
    /// A request of a person.
    #[default]
    Request,
    /// The record of an episode, kept by Haulout.
    Episode,
}
