//! NodeMaintenance objects of other projects: read as requests for a drain, with the status that their own operators would write.
//!
//! Their kinds are followed from the source: `api/v1beta1` of medik8s/node-maintenance-operator (3a54cd1) and of
//! kubevirt/node-maintenance-operator (a2f7248), and `api/v1alpha1` of Mellanox/maintenance-operator (e15d07b).

mod read;
mod status;

use std::time::Duration;

use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use serde_json::json;

use super::api::WriteError;
use super::due_write::ForeignWrite;
use haulout_core::facts::foreign_maintenance::{ForeignApi, ForeignOrigin, ForeignStatus};
use haulout_core::ids::is_object_name;
use haulout_core::keys::FIELD_MANAGER;
use haulout_kubernetes::answer;
use haulout_kubernetes::fence::Permit;
use haulout_kubernetes::reads::{self, ReadError};
use haulout_kubernetes::update::NodeMaintenanceFacts;

pub use read::{Reading, read_foreign};
pub(super) use status::{is_early, is_progress, refused, status_of};

const WRITE_DEADLINE: Duration = Duration::from_secs(10);

/// The kind of a project.
pub(crate) fn kind(api: ForeignApi) -> ApiResource {
    let kind = GroupVersionKind::gvk(api.group(), api.version(), "NodeMaintenance");
    ApiResource::from_gvk_with_plural(&kind, "nodemaintenances")
}

/// All objects of a project; `None` if its kind is not installed.
pub async fn all(client: &kube::Client, api: ForeignApi) -> Result<Option<Vec<DynamicObject>>, ReadError> {
    let objects = Api::all_with(client.clone(), &kind(api));
    let what = format!("the NodeMaintenances of {api}");
    match reads::list(objects, ListParams::default(), &what).await {
        Ok(objects) => Ok(Some(objects)),
        Err(ReadError::Absent { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The API of the objects of an origin; `None` if its namespace is no valid name, which could change the path of a call.
pub(super) fn api_of(client: &kube::Client, origin: &ForeignOrigin) -> Option<Api<DynamicObject>> {
    let resource = kind(origin.api);
    match &origin.namespace {
        Some(namespace) => {
            is_object_name(namespace).then(|| Api::namespaced_with(client.clone(), namespace, &resource))
        }
        None => Some(Api::all_with(client.clone(), &resource)),
    }
}

/// Applies the status of an object. Without force: the kube-apiserver refuses it if another manager has written one of the fields
/// meanwhile.
pub(super) async fn write_status(
    _permit: &Permit,
    client: &kube::Client,
    write: &ForeignWrite,
) -> Result<NodeMaintenanceFacts, WriteError> {
    let objects = api_of(client, &write.origin).filter(|_| is_object_name(&write.name));
    let Some(objects) = objects else {
        return Err(WriteError::Refused {
            name: answer::plain(&write.key),
            message: "this is not a valid name of an object, so nothing was sent".to_owned(),
        });
    };
    let resource = kind(write.origin.api);
    let body = json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": write.name, "uid": write.uid.as_str()},
        "status": fields(write),
    });
    let params = PatchParams::apply(FIELD_MANAGER);
    let patch = Patch::Apply(&body);
    let call = objects.patch_status(&write.name, &params, &patch);
    match answer::within(WRITE_DEADLINE, call).await {
        Ok(object) => Ok(read_foreign(write.origin.api, &object).into_facts()),
        Err(refusal) => Err(WriteError::new(&write.key, &refusal)),
    }
}

/// The fields of the status to apply.
fn fields(write: &ForeignWrite) -> serde_json::Value {
    // Plain structs of strings and numbers are values.
    let mut fields = serde_json::to_value(&write.status).unwrap_or_default();
    match (&write.status, write.origin.api) {
        (ForeignStatus::Medik8s(_), ForeignApi::Medik8s) => {
            fields["lastUpdate"] = json!(format!("{:.0}", write.at))
        }
        (ForeignStatus::Medik8s(_), ForeignApi::Kubevirt | ForeignApi::Nvidia)
        | (ForeignStatus::Nvidia(_), _) => {}
    }
    fields
}

#[cfg(test)]
mod tests;
