//! Checks whether Machines of Cluster API can be guarded.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use tracing::debug;

use super::{Section, right};
use crate::config::Config;
use crate::ids::is_object_name;
use crate::keys::NODE_CLUSTER_NAMESPACE;
use crate::kubernetes::client::KubeConnectError;
use crate::kubernetes::machine_guard::MachineApi;
use crate::kubernetes::rights::Right;
use crate::kubernetes::{client, rights};

/// The number of namespaces of Machines that are checked. A workload cluster has its Machines in one.
const NAMESPACES_MAX: usize = 5;

/// The rights that guards on Machines need, and the cluster in which they are needed.
struct MachineRights {
    client: kube::Client,
    needed: Vec<(&'static Right, Option<String>)>,
}

/// The namespaces of the Machines of `nodes`, as their annotations say.
pub(in crate::cli) fn namespaces(nodes: &[Node]) -> BTreeSet<String> {
    let named = nodes
        .iter()
        .filter_map(|node| node.annotations().get(NODE_CLUSTER_NAMESPACE));
    // A kubelet may write any text there.
    named.filter(|name| is_object_name(name)).cloned().collect()
}

async fn machine_rights(
    config: &Config,
    client: &kube::Client,
    namespaces: &BTreeSet<String>,
) -> Result<MachineRights, KubeConnectError> {
    let Some(path) = &config.management_kubeconfig else {
        let api = MachineApi::new(client.clone());
        let of_cluster_api = api.is_cluster_api().await.then_some(rights::MACHINES);
        let of_openshift = api.is_openshift().await.then_some(rights::OPENSHIFT);
        let needed = of_cluster_api.into_iter().chain(of_openshift).flatten();
        return Ok(MachineRights {
            client: client.clone(),
            needed: needed.map(|right| (right, None)).collect(),
        });
    };
    let management = client::connect_other("MANAGEMENT_KUBECONFIG", path).await?;
    let in_namespace = |namespace: &String| {
        let namespace = namespace.clone();
        rights::MACHINES
            .iter()
            .map(move |right| (right, Some(namespace.clone())))
    };
    Ok(MachineRights {
        client: management,
        needed: namespaces
            .iter()
            .take(NAMESPACES_MAX)
            .flat_map(in_namespace)
            .collect(),
    })
}

pub(super) async fn check(config: &Config, client: &kube::Client, nodes: &[Node], section: &mut Section) {
    if !config.guards.machines {
        return;
    }
    let namespaces = namespaces(nodes);
    match machine_rights(config, client, &namespaces).await {
        Ok(rights) => {
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
        Err(error @ KubeConnectError::InCluster { .. }) => section.warn(
            format!("the rights on Machines are not checked: {error}"),
            "run it in the pod: kubectl exec deployment/haulout -- haulout check",
        ),
        Err(error) => section.missing(
            error.to_string(),
            "without it, Haulout does not start: correct it, or unset MANAGEMENT_KUBECONFIG",
        ),
    }
}

/// The rights on Machines that are missing, in words. What cannot be told from here is not in it; `check` shows that.
pub(in crate::cli) async fn missing_rights(
    config: &Config,
    client: &kube::Client,
    namespaces: &BTreeSet<String>,
) -> Vec<String> {
    let mut missing = Vec::new();
    if !config.guards.machines {
        return missing;
    }
    let rights = match machine_rights(config, client, namespaces).await {
        Ok(rights) => rights,
        Err(error) => {
            debug!("the rights on Machines are not checked: {error}");
            return missing;
        }
    };
    for (needed, namespace) in &rights.needed {
        match rights::lacking(&rights.client, needed, namespace.as_deref()).await {
            Ok(lacking) if lacking.is_empty() => {}
            Ok(lacking) => missing.push(format!(
                "may not {} {} in {}",
                lacking.join(", "),
                needed.resource,
                needed.group
            )),
            Err(error) => debug!("a right on Machines is not checked: {error}"),
        }
    }
    missing
}
