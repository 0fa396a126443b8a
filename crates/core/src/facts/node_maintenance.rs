//! The status of a NodeMaintenance object, as it is read and written.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The times that can be read of those that the kube-apiserver accepts for `format: date-time`: it also accepts text after the
/// time, offsets such as `+99:99`, and more than nine digits of a second. The last years are left out, because an offset can move
/// a time out of the range.
pub const READABLE_TIME: &str = r"^([0-8][0-9]{3}|9[0-8][0-9]{2})-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$";

/// Restricts the times in the schema of conditions.
fn with_readable_times(conditions: &mut Schema) {
    let mut at = conditions.get_mut("items");
    for key in ["properties", "lastTransitionTime"] {
        at = at.and_then(|schema| schema.get_mut(key));
    }
    if let Some(time) = at.and_then(serde_json::Value::as_object_mut) {
        time.insert("pattern".to_owned(), json!(READABLE_TIME));
    }
}

/// The status of a NodeMaintenance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeMaintenanceStatus {
    /// The generation of the object that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Running`, `Succeeded`, `Failed`, `Cancelled`, or `Unknown` if no process saw the end. A requested drain has succeeded once the node is drained, also while it is kept
    /// drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The phase of the episode: `Queued`, `Draining`, `Drained`, `ShuttingDown`, `Relocating`, `AwaitingHost`, `PoweringOn`,
    /// `Rejoining` or `Parked`; `Ended` when it is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The latest error, while it lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The pods that block the drain, as `namespace/name`; at most 50.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pending_pods: Vec<String>,
    /// The same pods, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<PendingPod>,
    /// The number of pods on the node when its drain began.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 4294967295_u32))]
    pub total_pods: Option<u32>,
    /// The number of those that had to be evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 4294967295_u32))]
    pub eviction_pods: Option<u32>,
    /// The share of those that are gone, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 4294967295_u32))]
    pub drain_progress: Option<u32>,
    /// The pods that ended with the VM because the drain timed out, as `namespace/name`; at most 50.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<String>,
    /// How it ended: `Succeeded`, `Failed`, `Cancelled` or `NotSeen`. Unset while it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The user who created the request, from `spec.requestedBy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
    /// The ESXi host of the VM when the episode began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The host to which the VM is being relocated, or was relocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The id of the episode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub episode: Option<String>,
    /// The id of its trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// The URL of its trace, if the controller is configured with a tracing UI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_url: Option<String>,
    /// What it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_on: Option<WaitStatus>,
    /// The phases so far, with their times.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseTimes>,
    /// When it began, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// When it ended, RFC 3339. An object that has ended requests nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// `Succeeded`, `Reconciling` and `Stalled`, as `kubectl wait` and kstatus read them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]), transform = with_readable_times)]
    pub conditions: Vec<Condition>,
    /// The record as on the Node. If the Node object is deleted, the episode continues from this copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
}

/// A pod that blocks the drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PendingPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Why it blocks, as one word: `Terminating`, `HeldByBudget`, `Migrating`, `Refused`, `NotAsked` or `Waiting`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// Why it blocks, as a sentence.
    pub reason: String,
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitStatus {
    /// The kind of the wait, as one word.
    pub reason: String,
    /// The sentence that follows "waiting for".
    pub message: String,
    /// When the wait began, RFC 3339.
    pub since: String,
    /// When the wait ends by itself, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// What happens at the deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<String>,
    /// A command or a step for the person who wants it to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,
}

impl PendingPod {
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl WaitStatus {
    /// The same wait as `earlier`, if that has its reason: it began then, also if another process or an earlier one saw it begin.
    #[must_use]
    pub fn continuing(self, earlier: Option<&Self>) -> Self {
        let same = earlier.filter(|earlier| earlier.reason == self.reason);
        Self {
            since: same.map_or(self.since, |same| same.since.clone()),
            ..self
        }
    }
}

/// When a phase began and ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhaseTimes {
    /// The phase.
    pub phase: String,
    /// When it began, RFC 3339.
    pub started_at: String,
    /// When it ended, RFC 3339; absent while it lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
}
