//! Checks whether Machines of Cluster API can be guarded.

use k8s_openapi::api::core::v1::Node;

use super::{Section, right};
use crate::config::Config;
use crate::keys::NODE_CLUSTER_NAMESPACE;
use crate::kubernetes::client::{KubeConnectError, connect_other};
use crate::plan::rights::{MachineRights, namespaces};

/// Connects to the management cluster, if it is another one.
async fn management(config: &Config) -> Result<Option<kube::Client>, KubeConnectError> {
    match &config.management_kubeconfig {
        Some(path) => connect_other("MANAGEMENT_KUBECONFIG", path).await.map(Some),
        None => Ok(None),
    }
}

pub(super) async fn check(config: &Config, client: &kube::Client, nodes: &[Node], section: &mut Section) {
    if !config.guards.machines {
        return;
    }
    let namespaces = namespaces(nodes);
    match management(config).await {
        Ok(management) => {
            let rights = MachineRights::needed(management.as_ref(), client, &namespaces).await;
            if config.management_kubeconfig.is_some() && namespaces.is_empty() {
                section.warn(
                    format!("no node has the annotation {NODE_CLUSTER_NAMESPACE}, so no Machine is guarded"),
                    "Cluster API writes it to the Nodes of its Machines; without Cluster API, unset MANAGEMENT_KUBECONFIG",
                );
            }
            for (needed, namespace) in &rights.needed {
                right(&rights.client, needed, namespace.as_deref(), section).await;
            }
        }
        Err(error @ KubeConnectError::InCluster(_)) => section.warn(
            format!("the rights on Machines are not checked: {error}"),
            "run it in the pod: kubectl -n haulout exec deployment/haulout -- /haulout check",
        ),
        Err(error) => section.missing(
            error.to_string(),
            "without it, Haulout does not start: correct it, or unset MANAGEMENT_KUBECONFIG",
        ),
    }
}
