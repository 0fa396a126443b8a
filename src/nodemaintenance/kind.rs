//! The kind `NodeMaintenance`: what people write in it, and what they read there.

#![expect(
    unreachable_pub,
    reason = "KubeSchema gives the visibility of the spec to a struct inside a function"
)]

pub use crate::maintenance::policy::DrainTimeoutAction;
pub use haulout_core::facts::node_maintenance::*;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Asks for one node to be taken out of service, or keeps the record of an episode.
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
    doc = "Asks for one node to be taken out of service, or keeps the record of an episode.",
    validation = Rule::new("self.spec.nodeName.size() > 0").message("spec.nodeName has to name a Node"),
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
    validation = Rule::new("!has(self.targetHost) || self.action == 'Relocate'").message("spec.targetHost goes with action Relocate only"),
)]
pub struct NodeMaintenanceSpec {
    /// The Node.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,
    /// What is asked for.
    #[serde(default)]
    pub action: MaintenanceAction,
    /// The name of the ESXi host to relocate the VM to; any that fits without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub target_host: Option<String>,
    /// How long the drain may take, in the place of the controller's own setting where that is shorter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604800))]
    pub drain_timeout_seconds: Option<u32>,
    /// What happens then: `Hold` goes before the controller's own setting. A request to drain, and no more, is held always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_timeout_action: Option<DrainTimeoutAction>,
    /// After how long the guest's power is cut, in the place of the controller's own setting where that is shorter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub guest_shutdown_timeout_seconds: Option<u32>,
    /// `Request`: a person asks. `Episode`: Haulout's own record of an episode; creating one asks for nothing.
    #[serde(default)]
    pub origin: MaintenanceOrigin,
    /// The label selector of the controller that made the record of an episode: of several controllers in a cluster, each
    /// goes by its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum MaintenanceAction {
    /// Cordon and drain it, and keep it so until the request is deleted.
    #[default]
    Drain,
    /// Drain it, shut its VM down, and keep it off until the request is deleted.
    PowerOff,
    /// Drain it, move its VM to another host, and bring it back.
    Relocate,
    /// Drain it, shut its VM down and power it on, and bring it back.
    Reboot,
    /// What its host's maintenance needs; only the record of an episode says so.
    #[value(skip)]
    HostMaintenance,
}

/// Who made an object, and for what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MaintenanceOrigin {
    /// A person asks.
    #[default]
    Request,
    /// Haulout keeps the record of an episode.
    Episode,
}
