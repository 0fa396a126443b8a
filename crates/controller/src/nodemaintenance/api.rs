//! Reads, creates and deletes NodeMaintenance objects, and writes their status. People write the spec, only Haulout the status.

use std::time::Duration;

use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions, ValidationDirective};
use kube::core::ObjectMeta;
use kube::{Api, Resource as _, ResourceExt as _};
use serde_json::json;
use thiserror::Error;

use super::kind::{
    DrainTimeoutAction, MaintenanceAction, MaintenanceOrigin, MaintenanceWindow, NodeMaintenance,
    NodeMaintenanceSpec, NodeMaintenanceStatus,
};
use haulout_core::ids::{EpisodeId, NodeName, RequestUid, is_object_name};
use haulout_core::keys::{CLI_MANAGER, FIELD_MANAGER, REQUESTED_BY, SENTINEL};
use haulout_kubernetes::answer::{self, ApiRefusal, plain};
use haulout_kubernetes::fence::Permit;
use haulout_kubernetes::update::{
    NodeMaintenanceFacts, NodeMaintenanceRole, RequestAction, RequestedMaintenance,
};

const WRITE_DEADLINE: Duration = Duration::from_secs(10);

/// The number of digits of an episode's id in the name of its object.
const ID_DIGITS: usize = 8;

/// The longest name of a Kubernetes object.
const NAME_BYTES_MAX: usize = 253;

/// The longest `status.record` that is read, as for the record on a Node.
const RECORD_BYTES_MAX: usize = 64 * 1024;

/// The longest name of a user, as in the schema.
const USER_CHARS_MAX: usize = 253;

/// The maximum length of each list of a status that is read, which is the maximum that is written.
const LIST_MAX: usize = 100;

/// Why a NodeMaintenance was not written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WriteError {
    /// The object does not exist, or the kind is not installed.
    #[error("NodeMaintenance {name} is not there: {message}")]
    Gone { name: String, message: String },
    /// The kube-apiserver or an admission webhook refused it.
    #[error("NodeMaintenance {name} was not written: {message}; it is tried again")]
    Refused { name: String, message: String },
    /// No usable reply. It may have been written nevertheless.
    #[error("whether NodeMaintenance {name} was written is unknown: {message}; it is tried again")]
    Unreachable { name: String, message: String },
}

/// The name of the object that keeps the record of an episode.
pub fn name_of(node: &NodeName, episode: &EpisodeId) -> String {
    let digits: String = episode.as_str().chars().take(ID_DIGITS).collect();
    let room = node
        .as_str()
        .floor_char_boundary(NAME_BYTES_MAX.saturating_sub(ID_DIGITS + 1));
    let node = node.as_str().get(..room).unwrap_or_default();
    format!("{}-{digits}", node.trim_end_matches(['.', '-']))
}

/// Whether it concerns the controller of the nodes of `selector`: all requests do, and its own episodes.
pub fn concerns(object: &NodeMaintenance, selector: &str) -> bool {
    match object.spec.origin {
        MaintenanceOrigin::Request => true,
        MaintenanceOrigin::Episode => object.spec.selector.as_deref() == Some(selector),
    }
}

pub fn facts(object: &NodeMaintenance) -> NodeMaintenanceFacts {
    let status = bounded(object.status.clone().unwrap_or_default());
    NodeMaintenanceFacts {
        name: object.name_any(),
        uid: RequestUid::new(object.uid().unwrap_or_default()),
        resource_version: object
            .resource_version()
            .and_then(|version| version.parse().ok())
            .unwrap_or(0),
        generation: object.meta().generation.unwrap_or(0),
        created_at: object
            .creation_timestamp()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        node: NodeName::new(object.spec.node_name.clone()),
        role: role(&object.spec, &status),
        is_over: status.ended_at.is_some(),
        status: Box::new(status),
    }
}

/// What the object is for. One that asks for what only an episode does is taken for the record of one.
fn role(spec: &NodeMaintenanceSpec, status: &NodeMaintenanceStatus) -> NodeMaintenanceRole {
    let NodeMaintenanceSpec {
        node_name: _,
        reason,
        requested_by,
        action,
        target_host,
        drain_timeout_seconds,
        drain_timeout_action,
        guest_shutdown_timeout_seconds,
        not_before,
        window,
        origin,
        selector: _,
    } = spec;
    let seconds = |seconds: &Option<u32>| seconds.map(|seconds| Duration::from_secs(seconds.into()));
    let action = match action {
        MaintenanceAction::Drain => Some(RequestAction::Drain),
        MaintenanceAction::PowerOff => Some(RequestAction::PowerOff),
        MaintenanceAction::Relocate => Some(RequestAction::Relocate {
            to: target_host.clone(),
        }),
        MaintenanceAction::Reboot => Some(RequestAction::Reboot),
        MaintenanceAction::HostMaintenance => None,
    };
    match (origin, action) {
        (MaintenanceOrigin::Request, Some(action)) => NodeMaintenanceRole::Request(RequestedMaintenance {
            reason: reason.clone().unwrap_or_default(),
            requested_by: requested_by.as_deref().map(user),
            action,
            drain_timeout: seconds(drain_timeout_seconds),
            hold_on_drain_timeout: drain_timeout_action.map(|action| match action {
                DrainTimeoutAction::Hold => true,
                DrainTimeoutAction::PowerOff => false,
            }),
            guest_shutdown_timeout: seconds(guest_shutdown_timeout_seconds),
            not_before: not_before.as_ref().map(|time| time.0),
            window: window.as_ref().map(MaintenanceWindow::read),
        }),
        (MaintenanceOrigin::Episode, _) | (MaintenanceOrigin::Request, None) => {
            NodeMaintenanceRole::Episode {
                record: status.record.clone(),
            }
        }
    }
}

/// A user name from an object that anyone with the right may create.
fn user(name: &str) -> String {
    plain(&name.chars().take(USER_CHARS_MAX).collect::<String>())
}

/// Cuts a status to the limits.
fn bounded(mut status: NodeMaintenanceStatus) -> NodeMaintenanceStatus {
    status.record = status.record.filter(|record| record.len() <= RECORD_BYTES_MAX);
    status.pending_pods.truncate(LIST_MAX);
    status.pods.truncate(LIST_MAX);
    status.phases.truncate(LIST_MAX);
    status.conditions.truncate(LIST_MAX);
    status
}

/// Creates the object that keeps the record of an episode; `None` if it exists already.
pub(crate) async fn create(
    _permit: &Permit,
    client: &kube::Client,
    name: &str,
    spec: NodeMaintenanceSpec,
) -> Result<Option<NodeMaintenanceFacts>, WriteError> {
    check_name(name)?;
    let object = NodeMaintenance::new(name, spec);
    match post(client, &object, FIELD_MANAGER, ValidationDirective::Ignore).await {
        Ok(object) => Ok(Some(object)),
        Err(refusal) if refusal.code() == Some(409) => Ok(None),
        Err(refusal) => Err(WriteError::new(name, &refusal)),
    }
}

/// A request; the kube-apiserver generates the end of its name.
pub fn requested(spec: NodeMaintenanceSpec) -> NodeMaintenance {
    let metadata = ObjectMeta {
        generate_name: Some(format!("{}-", spec.node_name)),
        ..ObjectMeta::default()
    };
    NodeMaintenance {
        metadata,
        spec,
        status: None,
    }
}

/// Creates a request. In a dry run the kube-apiserver checks it only.
pub async fn request(
    client: &kube::Client,
    spec: NodeMaintenanceSpec,
    is_dry: bool,
) -> Result<NodeMaintenanceFacts, WriteError> {
    let object = requested(spec);
    let name = object.metadata.generate_name.clone().unwrap_or_default();
    let dry = if is_dry { "&dryRun=All" } else { "" };
    let posted = post(
        client,
        &object,
        &format!("{CLI_MANAGER}{dry}"),
        ValidationDirective::Strict,
    )
    .await;
    posted.map_err(|refusal| WriteError::new(&name, &refusal))
}

/// Creates the request of a sentinel. One of that name exists where it was asked for before.
pub async fn request_as_sentinel(
    client: &kube::Client,
    name: &str,
    spec: NodeMaintenanceSpec,
) -> Result<(), WriteError> {
    check_name(name)?;
    let mut object = NodeMaintenance::new(name, spec);
    let labels = object.labels_mut();
    labels.insert(REQUESTED_BY.to_owned(), SENTINEL.to_owned());
    match post(client, &object, SENTINEL, ValidationDirective::Strict).await {
        Ok(_) => Ok(()),
        Err(refusal) if refusal.code() == Some(409) => Ok(()),
        Err(refusal) => Err(WriteError::new(name, &refusal)),
    }
}

/// A request is validated strictly: where the installed CRD does not have its window, it would begin at once.
async fn post(
    client: &kube::Client,
    object: &NodeMaintenance,
    manager: &str,
    validation: ValidationDirective,
) -> Result<NodeMaintenanceFacts, ApiRefusal> {
    let path = NodeMaintenance::url_path(&(), None);
    // `PostParams` has no field validation.
    let validation = validation.as_str();
    let uri = format!("{path}?fieldManager={manager}&fieldValidation={validation}");
    let call = async {
        let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
        let post = http::Request::post(uri).header(http::header::CONTENT_TYPE, "application/json");
        let post = post.body(body).map_err(kube::Error::HttpError)?;
        client.request::<NodeMaintenance>(post).await
    };
    let created = answer::within(WRITE_DEADLINE, call).await;
    created.map(|object| facts(&object))
}

/// The condition of a write to an object.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WriteIf<'a> {
    /// It was not deleted and created again.
    Uid(&'a RequestUid),
    /// It has not changed since this version, where one is known.
    Version(Option<u64>),
}

/// Writes `changes` to the status of an object: a merge patch, in which null removes a field.
pub(crate) async fn write_status(
    _permit: &Permit,
    client: &kube::Client,
    name: &str,
    condition: WriteIf<'_>,
    changes: &serde_json::Value,
) -> Result<NodeMaintenanceFacts, WriteError> {
    check_name(name)?;
    let objects: Api<NodeMaintenance> = Api::all(client.clone());
    let params = PatchParams::apply(FIELD_MANAGER);
    let mut body = json!({ "status": changes });
    let metadata = match condition {
        WriteIf::Uid(uid) => Some(json!({ "uid": uid.as_str() })),
        WriteIf::Version(version) => version.map(|version| json!({ "resourceVersion": version.to_string() })),
    };
    if let (Some(metadata), Some(body)) = (metadata, body.as_object_mut()) {
        body.insert("metadata".to_owned(), metadata);
    }
    let patch = Patch::Merge(&body);
    let call = objects.patch_status(name, &params, &patch);
    match answer::within(WRITE_DEADLINE, call).await {
        Ok(object) => Ok(facts(&object)),
        Err(refusal) => Err(WriteError::new(name, &refusal)),
    }
}

/// Deletes an object of the history.
pub(crate) async fn delete(
    _permit: &Permit,
    client: &kube::Client,
    name: &str,
    uid: &RequestUid,
) -> Result<(), WriteError> {
    withdraw(client, name, uid, None).await
}

/// Deletes an object, for a person or a sentinel, which need no permit. With a version, only if the object has not changed since: a
/// request may have begun.
pub async fn withdraw(
    client: &kube::Client,
    name: &str,
    uid: &RequestUid,
    unless_changed_since: Option<&str>,
) -> Result<(), WriteError> {
    check_name(name)?;
    let objects: Api<NodeMaintenance> = Api::all(client.clone());
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(uid.to_string()),
            resource_version: unless_changed_since.map(str::to_owned),
        }),
        ..DeleteParams::default()
    };
    match answer::within(WRITE_DEADLINE, objects.delete(name, &params)).await {
        Ok(_) => Ok(()),
        Err(refusal) => match WriteError::new(name, &refusal) {
            WriteError::Gone { .. } => Ok(()),
            error @ (WriteError::Refused { .. } | WriteError::Unreachable { .. }) => Err(error),
        },
    }
}

impl WriteError {
    pub(super) fn new(name: &str, refusal: &ApiRefusal) -> Self {
        let (name, message) = (name.to_owned(), refusal.to_string());
        match refusal.code() {
            Some(404) => Self::Gone { name, message },
            Some(_) => Self::Refused { name, message },
            None => Self::Unreachable { name, message },
        }
    }
}

/// Refuses an invalid name, which could change the path of the call.
fn check_name(name: &str) -> Result<(), WriteError> {
    if is_object_name(name) {
        return Ok(());
    }
    Err(WriteError::Refused {
        name: answer::plain(name),
        message: "this is not a valid name of an object, so nothing was sent".to_owned(),
    })
}

#[cfg(test)]
mod tests;
