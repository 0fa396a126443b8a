//! The kind `NodeMaintenance`: its spec and its status.

#![expect(
    unreachable_pub,
    reason = "KubeSchema gives the visibility of the spec to a struct inside a function"
)]

pub use haulout_core::facts::node_maintenance::*;
pub use haulout_core::maintenance::policy::DrainTimeoutAction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use haulout_core::facts::window::{UTC, Window, WindowError};

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
    selectable = ".spec.nodeName",
    doc = "A request to take one node out of service, or the record of an episode.",
    validation = Rule::new("self.spec.nodeName.size() > 0").message("spec.nodeName must name a Node"),
    printcolumn(json_path = ".spec.nodeName", name = "Node", type_ = "string"),
    printcolumn(json_path = ".status.host", name = "Host", type_ = "string"),
    printcolumn(json_path = ".spec.action", name = "Action", type_ = "string"),
    printcolumn(json_path = ".status.state", name = "State", type_ = "string"),
    printcolumn(json_path = ".status.result", name = "Result", type_ = "string"),
    printcolumn(json_path = ".status.drainProgress", name = "Drained", type_ = "integer", format = "int32"),
    printcolumn(json_path = ".metadata.creationTimestamp", name = "Age", type_ = "date"),
    printcolumn(json_path = ".status.target", name = "Target", type_ = "string", priority = 1),
    printcolumn(json_path = ".spec.reason", name = "Reason", type_ = "string", priority = 1),
    printcolumn(json_path = ".status.requestedBy", name = "Requested by", type_ = "string", priority = 1),
    printcolumn(json_path = ".status.waitingOn.message", name = "Waiting for", type_ = "string", priority = 1),
    printcolumn(json_path = ".status.traceId", name = "Trace", type_ = "string", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.nodeName == oldSelf.nodeName").message("spec.nodeName cannot be changed; delete this object and create another"),
    validation = Rule::new("self.origin == oldSelf.origin").message("spec.origin cannot be changed"),
    validation = Rule::new("self.action == oldSelf.action").message("spec.action cannot be changed; delete this object and create another"),
    validation = Rule::new("has(self.targetHost) == has(oldSelf.targetHost) && (!has(self.targetHost) || self.targetHost == oldSelf.targetHost)").message("spec.targetHost cannot be changed; delete this object and create another"),
    validation = Rule::new("has(self.requestedBy) == has(oldSelf.requestedBy) && (!has(self.requestedBy) || self.requestedBy == oldSelf.requestedBy)").message("spec.requestedBy cannot be changed"),
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
    /// The user who creates the request. `kubectl haulout drain` sets it, and an admission policy of the chart refuses the name of
    /// another user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub requested_by: Option<String>,
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
    /// When the request may begin at the earliest. One that has begun is not affected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = READABLE_TIME))]
    pub not_before: Option<Time>,
    /// The days and hours in which the request may begin. The end of the window does not stop a maintenance that has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<MaintenanceWindow>,
    /// `Request`: a request of a person. `Episode`: the record of an episode, kept by Haulout; creating one has no effect.
    #[serde(default)]
    pub origin: MaintenanceOrigin,
    /// The label selector of the controller that created the record of an episode. Of several controllers in a cluster, each
    /// uses its own records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
}

/// The days and hours in which a request may begin. It is open while a clock in its time zone shows one of its hours.
///
/// The values are validated again when they are read: an older CRD may have another schema.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["start", "end"]))]
pub struct MaintenanceWindow {
    /// The days on which it opens. If unset, every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<WindowDay>", length(max = 7), extend("x-kubernetes-list-type" = "set"))]
    pub days: Vec<String>,
    /// When it opens, as `HH:MM`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub start: String,
    /// When it closes, as `HH:MM`. If not after `start`, on the next day.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub end: String,
    /// The IANA name of its time zone, such as `Europe/Berlin`.
    #[serde(default = "utc")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Za-z0-9_+/-]+$"))]
    pub time_zone: String,
}

/// A day of a window.
#[derive(JsonSchema)]
pub enum WindowDay {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

fn utc() -> String {
    UTC.to_owned()
}

impl MaintenanceWindow {
    /// The window, or what is wrong with it.
    pub fn read(&self) -> Result<Window, WindowError> {
        Window::new(&self.days, &self.start, &self.end, &self.time_zone)
    }
}

impl From<&Window> for MaintenanceWindow {
    fn from(window: &Window) -> Self {
        Self {
            days: window.days().into_iter().map(str::to_owned).collect(),
            start: window.start(),
            end: window.end(),
            time_zone: window.time_zone().to_owned(),
        }
    }
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
