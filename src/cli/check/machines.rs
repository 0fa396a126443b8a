//! Checks whether Machines of Cluster API can be guarded.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

use super::{Section, right};
use crate::config::Config;
use crate::ids::is_object_name;
use crate::keys::NODE_CLUSTER_NAMESPACE;
use crate::kubernetes::client::KubeConnectError;
use crate::kubernetes::machine_guard::MachineApi;
use crate::kubernetes::{client, rights};

/// The number of namespaces of Machines that are checked. A workload cluster has its Machines in one.
const NAMESPACES_MAX: usize = 5;

pub(super) async fn check(config: &Config, client: &kube::Client, nodes: &[Node], section: &mut Section) {
    if !config.guards.machines {
        return;
    }
    let Some(path) = &config.management_kubeconfig else {
        let api = MachineApi::new(client.clone());
        let of_cluster_api = api.is_cluster_api().await.then_some(rights::MACHINES);
        let of_openshift = api.is_openshift().await.then_some(rights::OPENSHIFT);
        for needed in of_cluster_api.into_iter().chain(of_openshift).flatten() {
            right(client, needed, None, section).await;
        }
        return;
    };
    let management = match client::connect_other("MANAGEMENT_KUBECONFIG", path).await {
        Ok(management) => management,
        Err(error @ KubeConnectError::InCluster { .. }) => {
            let hint = "run it in the pod: kubectl exec deployment/haulout -- haulout check";
            return section.warn(format!("the rights on Machines are not checked: {error}"), hint);
        }
        Err(error) => {
            let hint = "without it, Haulout does not start: correct it, or unset MANAGEMENT_KUBECONFIG";
            return section.missing(error.to_string(), hint);
        }
    };
    let named = nodes
        .iter()
        .filter_map(|node| node.annotations().get(NODE_CLUSTER_NAMESPACE));
    // A kubelet may write any text there.
    let namespaces: BTreeSet<&String> = named.filter(|name| is_object_name(name)).collect();
    if namespaces.is_empty() {
        section.warn(
            format!("no node has the annotation {NODE_CLUSTER_NAMESPACE}, so no Machine is guarded"),
            "Cluster API writes it to the Nodes of its Machines; without Cluster API, unset MANAGEMENT_KUBECONFIG",
        );
    }
    for namespace in namespaces.into_iter().take(NAMESPACES_MAX) {
        for needed in rights::MACHINES {
            right(&management, needed, Some(namespace), section).await;
        }
    }
}
