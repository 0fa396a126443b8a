//! Writes a transition to a Node: our annotations and the cordon in one PATCH with `resourceVersion`.

use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::core::Status;
use serde_json::{Map, Value, json};
use thiserror::Error;

use super::answer::{self, ApiRefusal};
use super::facts::{GpuResources, node_facts};
use super::update::{NodeAnnotations, NodeFacts};
use crate::fence::Permit;
use crate::ids::{NodeName, NodeUid};
use crate::keys::{APPROVED, FIELD_MANAGER, Keys};

/// One transition of one Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePatch {
    /// The UID of the Node.
    pub uid: NodeUid,
    /// The version on which the transition was decided; a Node that has changed since is not written.
    pub resource_version: u64,
    /// The new values of our annotations. `None` removes one, except for `fulfilled`, which then stays. The annotations that people
    /// set are not written.
    pub annotations: NodeAnnotations,
    /// The episode ends, so that its approval is removed.
    pub is_end: bool,
    /// The new `spec.unschedulable`; `None` leaves it as it is.
    pub unschedulable: Option<bool>,
}

/// Why a Node was not written, and what happens next.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PatchError {
    /// The Node has changed since it was read.
    #[error(
        "node {node} was not written, because it has changed since it was read: {said}; the step is decided again on the changed node"
    )]
    Conflict {
        /// The Node.
        node: NodeName,
        /// What Kubernetes said.
        said: String,
    },
    /// The Node was deleted, or the name belongs to another one.
    #[error(
        "node {node} was not written, because it is gone or another node has its name: {said}; the maintenance waits until the inventory knows it again"
    )]
    Gone {
        /// The Node.
        node: NodeName,
        /// What Kubernetes said.
        said: String,
    },
    /// Haulout may not write Nodes.
    #[error(
        "node {node} was not written, because Haulout may not: {said}; allow its service account `patch` on nodes, the step is tried again until then"
    )]
    Forbidden {
        /// The Node.
        node: NodeName,
        /// What Kubernetes said.
        said: String,
    },
    /// An admission webhook or policy, or the validation of Nodes, refuses this write.
    #[error(
        "node {node} was not written, because admission refused it: {said}; the step is tried again until that changes"
    )]
    Rejected {
        /// The Node.
        node: NodeName,
        /// The words of the webhook, the policy or the validation.
        said: String,
    },
    /// The Node was read without a version. A PATCH with the version "0" is not checked against later changes
    /// (`doUnconditionalUpdate` in the kube-apiserver's `registry/store.go`).
    #[error(
        "node {node} was not written, because the resourceVersion it was read with is no number above 0 and a write could undo a change of somebody else; the step is tried again on the next view of the node"
    )]
    Unversioned {
        /// The Node.
        node: NodeName,
    },
    /// No usable reply. The PATCH may have been carried out nevertheless.
    #[error(
        "whether node {node} was written is unknown: {said}; it is read again before anything else is done to it"
    )]
    Unreachable {
        /// The Node.
        node: NodeName,
        /// What went wrong.
        said: String,
    },
}

/// Why a Node could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NodeGetError {
    /// There is no Node of that name.
    #[error("there is no node {node}: {said}")]
    Gone {
        /// The Node.
        node: NodeName,
        /// What Kubernetes said.
        said: String,
    },
    /// Haulout may not read Nodes.
    #[error("Haulout may not read node {node}: {said}; allow its service account `get` on nodes")]
    Forbidden {
        /// The Node.
        node: NodeName,
        /// What Kubernetes said.
        said: String,
    },
    /// No usable answer.
    #[error("node {node} could not be read: {said}; it is read again later")]
    Unreachable {
        /// The Node.
        node: NodeName,
        /// What went wrong.
        said: String,
    },
}

/// Writes the transition and returns the resulting Node.
///
/// It may be repeated: if the first PATCH was carried out and its reply was lost, the second one is refused with
/// [`PatchError::Conflict`].
pub async fn patch(
    _permit: &Permit,
    client: &kube::Client,
    keys: &Keys,
    gpu_resources: &GpuResources,
    name: &NodeName,
    patch: &NodePatch,
    deadline: Duration,
) -> Result<NodeFacts, PatchError> {
    if patch.resource_version == 0 {
        return Err(PatchError::Unversioned { node: name.clone() });
    }
    let nodes: Api<core::Node> = Api::all(client.clone());
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let body = Patch::Merge(patch.body(keys));
    match answer::within(deadline, nodes.patch(name.as_str(), &params, &body)).await {
        Ok(node) => Ok(node_facts(&node, keys, gpu_resources)),
        Err(refusal) => Err(PatchError::new(name, &refusal)),
    }
}

/// Reads the Node with a consistent read, without caches.
pub async fn get(
    client: &kube::Client,
    keys: &Keys,
    gpu_resources: &GpuResources,
    name: &NodeName,
    deadline: Duration,
) -> Result<NodeFacts, NodeGetError> {
    let nodes: Api<core::Node> = Api::all(client.clone());
    match answer::within(deadline, nodes.get(name.as_str())).await {
        Ok(node) => Ok(node_facts(&node, keys, gpu_resources)),
        Err(refusal) => Err(NodeGetError::new(name, &refusal)),
    }
}

impl NodePatch {
    /// The JSON merge patch. An absent cordon is written as null, as `kubectl uncordon` does: the field disappears.
    fn body(&self, keys: &Keys) -> Value {
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
            (&keys.state, state),
            (&keys.host, host),
            (&keys.migrated_to_host, migrated_to_host),
            (&keys.transition_time, transition_time),
            (&keys.episode, episode),
            (&keys.last_episode, last_episode),
        ]
        .into_iter()
        .map(|(key, value)| (key.clone(), json!(value)))
        .collect();
        if let Some(fulfilled) = fulfilled {
            annotations.insert(keys.fulfilled.clone(), json!(fulfilled));
        }
        if self.is_end {
            annotations.insert(APPROVED.to_owned(), Value::Null);
        }
        let mut body = json!({
            "metadata": {
                "uid": self.uid.as_str(),
                "resourceVersion": self.resource_version.to_string(),
                "annotations": annotations,
            },
        });
        if let Some(unschedulable) = self.unschedulable
            && let Some(body) = body.as_object_mut()
        {
            let value = if unschedulable { json!(true) } else { Value::Null };
            body.insert("spec".to_owned(), json!({ "unschedulable": value }));
        }
        body
    }
}

impl PatchError {
    fn new(node: &NodeName, refusal: &ApiRefusal) -> Self {
        let (node, said) = (node.clone(), refusal.said());
        match refusal {
            ApiRefusal::Unreachable(_) => Self::Unreachable { node, said },
            ApiRefusal::Status(status) => match status.code {
                404 | 410 => Self::Gone { node, said },
                409 => Self::Conflict { node, said },
                422 if is_about_uid(status) => Self::Gone { node, said },
                401 => Self::Forbidden { node, said },
                403 if !is_admission(status) => Self::Forbidden { node, said },
                400 | 403 | 405..=408 | 411..=428 => Self::Rejected { node, said },
                _ => Self::Unreachable { node, said },
            },
        }
    }
}

impl NodeGetError {
    fn new(node: &NodeName, refusal: &ApiRefusal) -> Self {
        let (node, said) = (node.clone(), refusal.said());
        match refusal {
            ApiRefusal::Status(status) if status.code == 404 => Self::Gone { node, said },
            ApiRefusal::Status(status) if matches!(status.code, 401 | 403) => Self::Forbidden { node, said },
            ApiRefusal::Status(_) | ApiRefusal::Unreachable(_) => Self::Unreachable { node, said },
        }
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
