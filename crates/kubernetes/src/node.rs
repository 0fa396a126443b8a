//! Writes a transition to a Node: our annotations and the cordon in one PATCH with `resourceVersion`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::core::Status;
use serde_json::{Map, Value, json};
use thiserror::Error;

use super::answer::{self, ApiRefusal};
use super::facts::{GpuResources, node_facts};
use super::update::{NodeAnnotations, NodeFacts, NodeTaint};
use crate::fence::Permit;
use crate::ids::{NodeName, NodeUid};
use crate::keys::{self, ACCEPTED_GPUS, APPROVED, FIELD_MANAGER};
use crate::maintenance::node_guard::{GuardChanges, GuardField};

/// One transition of one Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePatch {
    pub uid: NodeUid,
    /// The version on which the transition was decided; a Node that has changed since is not written.
    pub resource_version: u64,
    /// The new values of our annotations. `None` removes one, except for `fulfilled`, which then stays. The annotations that people
    /// set are not written.
    pub annotations: NodeAnnotations,
    /// The episode was shown by plain annotations alone, which may be those of the Python controller. They are removed.
    pub is_adoption: bool,
    /// The episode ends, so that what a person accepted for it is removed.
    pub is_end: bool,
    /// The approval of a person is used up or void, and removed.
    pub ends_approval: bool,
    /// The new `spec.unschedulable`; `None` leaves it as it is.
    pub unschedulable: Option<bool>,
    /// The guards that are set and removed.
    pub guards: GuardChanges,
    /// The taints of the Node in that version. A merge patch replaces the list as a whole.
    pub taints: Arc<[NodeTaint]>,
}

/// Why a Node was not written or read, and what happens next.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", self.text())]
pub struct NodeError {
    pub kind: NodeErrorKind,
    node: NodeName,
    call: NodeCall,
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeCall {
    Get,
    Patch,
    ClearGpus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeErrorKind {
    /// The Node has changed since it was read.
    Conflict,
    /// The Node was deleted, or the name belongs to another one.
    Gone,
    /// Haulout lacks the right.
    Forbidden,
    /// An admission webhook or policy, or the validation of Nodes, refuses this write.
    Rejected,
    /// The Node was read without a version. A PATCH with the version "0" is not checked against later changes
    /// (`doUnconditionalUpdate` in the kube-apiserver's `registry/store.go`).
    Unversioned,
    /// No usable reply. A PATCH may have been carried out nevertheless.
    Unreachable,
}

/// Writes the transition and returns the resulting Node.
///
/// It may be repeated: if the first PATCH was carried out and its reply was lost, the second one is refused with
/// [`NodeErrorKind::Conflict`].
pub async fn patch(
    _permit: &Permit,
    client: &kube::Client,
    (limit_group, gpu_resources): (Option<&str>, &GpuResources),
    name: &NodeName,
    patch: &NodePatch,
    deadline: Duration,
) -> Result<NodeFacts, NodeError> {
    if patch.resource_version == 0 {
        return Err(NodeError {
            kind: NodeErrorKind::Unversioned,
            node: name.clone(),
            call: NodeCall::Patch,
            message: String::new(),
        });
    }
    let nodes: Api<core::Node> = Api::all(client.clone());
    let params = PatchParams::apply(FIELD_MANAGER);
    let body = Patch::Merge(patch.body());
    match answer::within(deadline, nodes.patch(name.as_str(), &params, &body)).await {
        Ok(node) => Ok(node_facts(&node, limit_group, gpu_resources)),
        Err(refusal) => Err(NodeError::new(name, &refusal, NodeCall::Patch)),
    }
}

/// Sets `capacity` and `allocatable` of these resources to 0, on this version of the Node only, and returns the resulting Node.
pub async fn clear_gpus(
    _permit: &Permit,
    client: &kube::Client,
    (limit_group, gpu_resources): (Option<&str>, &GpuResources),
    name: &NodeName,
    (uid, resource_version): (&NodeUid, u64),
    resources: &BTreeSet<String>,
    deadline: Duration,
) -> Result<NodeFacts, NodeError> {
    let call = NodeCall::ClearGpus;
    if resource_version == 0 {
        return Err(NodeError {
            kind: NodeErrorKind::Unversioned,
            node: name.clone(),
            call,
            message: String::new(),
        });
    }
    let counts: Map<String, Value> = resources
        .iter()
        .map(|resource| (resource.clone(), json!("0")))
        .collect();
    let body = Patch::Merge(json!({
        "metadata": {"uid": uid.as_str(), "resourceVersion": resource_version.to_string()},
        "status": {"capacity": counts, "allocatable": counts},
    }));
    let nodes: Api<core::Node> = Api::all(client.clone());
    let params = PatchParams::apply(FIELD_MANAGER);
    match answer::within(deadline, nodes.patch_status(name.as_str(), &params, &body)).await {
        Ok(node) => Ok(node_facts(&node, limit_group, gpu_resources)),
        Err(refusal) => Err(NodeError::new(name, &refusal, call)),
    }
}

/// Reads the Node with a consistent read, without caches.
pub async fn get(
    client: &kube::Client,
    (limit_group, gpu_resources): (Option<&str>, &GpuResources),
    name: &NodeName,
    deadline: Duration,
) -> Result<NodeFacts, NodeError> {
    let nodes: Api<core::Node> = Api::all(client.clone());
    match answer::within(deadline, nodes.get(name.as_str())).await {
        Ok(node) => Ok(node_facts(&node, limit_group, gpu_resources)),
        Err(refusal) => Err(NodeError::new(name, &refusal, NodeCall::Get)),
    }
}

impl NodePatch {
    /// The annotations to set, and to remove with null.
    fn changed_annotations(&self) -> Map<String, Value> {
        let NodeAnnotations {
            state,
            host,
            migrated_to_host,
            transition_time,
            episode,
            fulfilled,
            last_episode,
            keep_cordoned: _,
            skip: _,
            approved: _,
            strategy: _,
        } = &self.annotations;
        let mut annotations: Map<String, Value> = [
            (keys::PLAIN.state, state),
            (keys::PLAIN.host, host),
            (keys::PLAIN.migrated_to_host, migrated_to_host),
            (keys::PLAIN.transition_time, transition_time),
            (keys::EPISODE, episode),
            (keys::LAST_EPISODE, last_episode),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), json!(value)))
        .collect();
        if let Some(fulfilled) = fulfilled {
            annotations.insert(keys::FULFILLED.to_owned(), json!(fulfilled));
        }
        if self.is_adoption {
            let of = keys::PYTHON;
            for key in [of.state, of.host, of.migrated_to_host, of.transition_time] {
                annotations.insert(key.to_owned(), Value::Null);
            }
        }
        if self.ends_approval {
            annotations.insert(APPROVED.to_owned(), Value::Null);
        }
        if self.is_end {
            annotations.insert(ACCEPTED_GPUS.to_owned(), Value::Null);
        }
        annotations
    }

    /// The JSON merge patch. An absent cordon is written as null, as `kubectl uncordon` does: the field disappears.
    fn body(&self) -> Value {
        let mut annotations = self.changed_annotations();
        let mut labels = Map::new();
        for (guard, is_set) in self.guards.all() {
            let of = |value: &str| if is_set { json!(value) } else { Value::Null };
            match guard.field() {
                GuardField::Annotation { key, value } => annotations.insert(key.to_owned(), of(value)),
                GuardField::Label { key, value } => labels.insert(key.to_owned(), of(value)),
                GuardField::Taint { .. } => None,
            };
        }
        let mut body = json!({
            "metadata": {
                "uid": self.uid.as_str(),
                "resourceVersion": self.resource_version.to_string(),
                "annotations": annotations,
            },
        });
        if !labels.is_empty() {
            body["metadata"]["labels"] = Value::Object(labels);
        }
        if let Some(unschedulable) = self.unschedulable {
            let value = if unschedulable { json!(true) } else { Value::Null };
            body["spec"]["unschedulable"] = value;
        }
        if let Some(taints) = self.taints() {
            body["spec"]["taints"] = taints;
        }
        body
    }

    /// The new list of taints, if it changes.
    fn taints(&self) -> Option<Value> {
        let changed = self
            .guards
            .all()
            .filter_map(|(guard, is_set)| match guard.field() {
                GuardField::Taint { key, value, effect } => Some((key, value, effect, is_set)),
                GuardField::Label { .. } | GuardField::Annotation { .. } => None,
            });
        let changed: Vec<(&str, Option<&str>, &str, bool)> = changed.collect();
        if changed.is_empty() {
            return None;
        }
        let is_kept = |taint: &&NodeTaint| {
            let mut same = changed.iter();
            !same.any(|(key, _, effect, _)| taint.key == *key && taint.effect == *effect)
        };
        let kept = self.taints.iter().filter(is_kept).map(|taint| core::Taint {
            key: taint.key.clone(),
            value: taint.value.clone(),
            effect: taint.effect.clone(),
            time_added: taint.time_added.map(Time),
        });
        let added = changed.iter().filter(|(_, _, _, is_set)| *is_set);
        let added = added.map(|(key, value, effect, _)| core::Taint {
            key: (*key).to_owned(),
            value: value.map(str::to_owned),
            effect: (*effect).to_owned(),
            ..core::Taint::default()
        });
        Some(json!(kept.chain(added).collect::<Vec<_>>()))
    }
}

impl NodeError {
    fn new(node: &NodeName, refusal: &ApiRefusal, call: NodeCall) -> Self {
        let kind = match refusal {
            ApiRefusal::Unreachable(_) => NodeErrorKind::Unreachable,
            ApiRefusal::Status(status) => match status.code {
                404 | 410 => NodeErrorKind::Gone,
                401 => NodeErrorKind::Forbidden,
                403 if !is_admission(status) => NodeErrorKind::Forbidden,
                409 => NodeErrorKind::Conflict,
                422 if is_about_uid(status) => NodeErrorKind::Gone,
                400 | 403 | 405..=408 | 411..=428 => NodeErrorKind::Rejected,
                _ => NodeErrorKind::Unreachable,
            },
        };
        Self {
            kind,
            node: node.clone(),
            call,
            message: refusal.to_string(),
        }
    }

    fn text(&self) -> String {
        let Self { node, message, .. } = self;
        let (verb, done) = match self.call {
            NodeCall::Get => ("get", "read"),
            NodeCall::Patch => ("patch", "written"),
            NodeCall::ClearGpus => return self.text_of_clear(),
        };
        let why = match self.kind {
            NodeErrorKind::Conflict => format!(
                "it has changed since it was read: {message}; the step is decided again on the changed node"
            ),
            NodeErrorKind::Gone => format!(
                "it is gone or another node has its name: {message}; the maintenance waits until the inventory knows it again"
            ),
            NodeErrorKind::Forbidden => format!(
                "Haulout may not: {message}; allow its service account `{verb}` on nodes, the step is tried again until then"
            ),
            NodeErrorKind::Rejected => {
                format!("admission refused it: {message}; the step is tried again until that changes")
            }
            NodeErrorKind::Unversioned => "the resourceVersion it was read with is no number above 0 and a write could undo a change of somebody else; the step is tried again on the next view of the node".to_owned(),
            NodeErrorKind::Unreachable => {
                return format!(
                    "whether node {node} was {done} is unknown: {message}; it is read again before anything else is done to it"
                );
            }
        };
        format!("node {node} was not {done}, because {why}")
    }
}

impl NodeError {
    fn text_of_clear(&self) -> String {
        let Self { node, message, .. } = self;
        let why = match self.kind {
            NodeErrorKind::Conflict | NodeErrorKind::Gone => {
                format!(
                    "it has changed since it was read: {message}; it is decided again on the changed node"
                )
            }
            NodeErrorKind::Unversioned => {
                "the resourceVersion it was read with is no number above 0".to_owned()
            }
            NodeErrorKind::Forbidden => format!(
                "Haulout may not: {message}; allow its service account `patch` on nodes/status. The maintenance goes on without, and the node may be uncordoned before its device plugin has registered"
            ),
            NodeErrorKind::Rejected => format!(
                "admission refused it: {message}; allow it to set extended resources to 0. The maintenance goes on without, and the node may be uncordoned before its device plugin has registered"
            ),
            NodeErrorKind::Unreachable => format!("{message}; it is tried again a few times"),
        };
        format!("the GPU count in the status of node {node} was not set to 0, because {why}")
    }
}

/// Whether the write failed because of `metadata.uid`, which is immutable: the Node of that name is another one.
fn is_about_uid(status: &Status) -> bool {
    status
        .details
        .iter()
        .flat_map(|details| &details.causes)
        .any(|cause| cause.field == "metadata.uid")
}

/// Whether a 403 came from admission and not from RBAC. Only the message differs. An unknown message only leads to less precise
/// advice.
fn is_admission(status: &Status) -> bool {
    [
        "admission webhook",
        "ValidatingAdmissionPolicy",
        "admission plugin",
    ]
    .iter()
    .any(|words| status.message.contains(words))
}

#[cfg(test)]
mod tests;
