//! Single reads of NodeMaintenance objects and their kind, for the subcommands.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::ListParams;
use kube::core::CustomResourceExt as _;

use super::kind::NodeMaintenance;
use crate::kubernetes::reads::{ReadError, get, list};

/// All NodeMaintenance objects; none if the kind is not installed.
pub(crate) async fn all(client: &kube::Client) -> Result<Vec<NodeMaintenance>, ReadError> {
    let listed = list(
        Api::all(client.clone()),
        ListParams::default(),
        "the NodeMaintenances",
    );
    match listed.await {
        Err(ReadError::Absent { .. }) => Ok(Vec::new()),
        listed => listed,
    }
}

/// One NodeMaintenance.
pub(crate) async fn one(client: &kube::Client, name: &str) -> Result<NodeMaintenance, ReadError> {
    get(Api::all(client.clone()), name, &format!("nodemaintenance/{name}")).await
}

/// The installed definition of the kind NodeMaintenance.
pub(crate) async fn definition(client: &kube::Client) -> Result<CustomResourceDefinition, ReadError> {
    let definitions = Api::all(client.clone());
    get(
        definitions,
        NodeMaintenance::crd_name(),
        "the kind NodeMaintenance",
    )
    .await
}

/// Whether `installed` has the schema and the selectable fields of this program.
pub(crate) fn is_ours(installed: &CustomResourceDefinition) -> bool {
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
