//! Single reads of NodeMaintenance objects and their kind, for the subcommands.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::ListParams;
use kube::core::{CustomResourceExt as _, DeserializeGuard};

use super::kind::NodeMaintenance;
use haulout_kubernetes::reads::{ReadError, get, list};

/// All NodeMaintenance objects that can be read; none if the kind is not installed. The controller logs the others.
pub async fn all(client: &kube::Client) -> Result<Vec<NodeMaintenance>, ReadError> {
    let objects: Api<DeserializeGuard<NodeMaintenance>> = Api::all(client.clone());
    match list(objects, ListParams::default(), "the NodeMaintenances").await {
        Err(ReadError::Absent { .. }) => Ok(Vec::new()),
        listed => Ok(listed?.into_iter().filter_map(|object| object.0.ok()).collect()),
    }
}

pub async fn one(client: &kube::Client, name: &str) -> Result<NodeMaintenance, ReadError> {
    get(Api::all(client.clone()), name, &format!("nodemaintenance/{name}")).await
}

/// The installed definition of the kind NodeMaintenance.
pub async fn definition(client: &kube::Client) -> Result<CustomResourceDefinition, ReadError> {
    let definitions = Api::all(client.clone());
    get(
        definitions,
        NodeMaintenance::crd_name(),
        "the kind NodeMaintenance",
    )
    .await
}

/// Whether `installed` has the schema and the selectable fields of this program.
pub fn is_ours(installed: &CustomResourceDefinition) -> bool {
    let ours = NodeMaintenance::crd();
    let schemas = |definition: &CustomResourceDefinition| {
        let versions = definition.spec.versions.iter();
        let served = versions.filter(|version| version.served);
        let schemas = served.map(|version| {
            let fields = version.selectable_fields.clone();
            (version.name.clone(), version.schema.clone(), fields)
        });
        schemas.collect::<Vec<_>>()
    };
    let installed = schemas(installed);
    schemas(&ours).iter().all(|ours| installed.contains(ours))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use haulout_kubernetes::stand_in::{ScriptedReply, scripted};

    #[tokio::test]
    async fn list_leaves_out_an_object_that_cannot_be_read() {
        let object = |name: &str, spec: serde_json::Value| {
            json!({
                "apiVersion": "haulout.dev/v1alpha1", "kind": "NodeMaintenance", "metadata": {"name": name}, "spec": spec,
            })
        };
        let list = json!({
            "apiVersion": "haulout.dev/v1alpha1", "kind": "NodeMaintenanceList", "metadata": {},
            "items": [object("odd", json!({"action": "Explode"})), object("a", json!({"nodeName": "gpu-1"}))],
        });
        let (client, _) = scripted(vec![ScriptedReply::Json(200, list)], vec![]);
        let objects = tokio::time::timeout(Duration::from_secs(20), all(&client))
            .await
            .unwrap()
            .unwrap();
        let names: Vec<_> = objects
            .into_iter()
            .filter_map(|object| object.metadata.name)
            .collect();
        assert_eq!(names, ["a"]);
    }
}
