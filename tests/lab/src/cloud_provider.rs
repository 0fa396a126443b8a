//! A cloud provider for Nodes whose kubelet is told that there is one: it writes their addresses, as that of vSphere does.

use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::json;

use crate::kube::{Kube, User};

/// The taint of a Node that a kubelet has registered and of which the provider has not yet heard.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// The retry interval.
const RETRY: Duration = Duration::from_millis(200);

/// The provider of one Node.
pub(crate) struct CloudProvider {
    nodes: Api<Node>,
    name: String,
}

impl CloudProvider {
    pub(crate) fn new(kube: &Kube, node: &str) -> anyhow::Result<Self> {
        let client = kube.client_for(&User::admin("cloud-controller-manager"))?;
        Ok(Self {
            nodes: Api::all(client),
            name: node.to_owned(),
        })
    }

    /// Initializes each Node of this name.
    pub(crate) async fn run(self) {
        let of_name = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        let changes = watcher(self.nodes.clone(), of_name)
            .default_backoff()
            .applied_objects();
        let mut changes = std::pin::pin!(changes);
        while let Some(changed) = changes.next().await {
            let Ok(mut node) = changed else { continue };
            while is_uninitialized(&node) {
                if let Err(error) = self.initialize(&node).await {
                    tracing::debug!(%error, node = self.name, "initializing a Node");
                    tokio::time::sleep(RETRY).await;
                }
                match self.nodes.get_opt(&self.name).await {
                    Ok(Some(now)) => node = now,
                    Ok(None) => break,
                    Err(_) => tokio::time::sleep(RETRY).await,
                }
            }
        }
    }

    async fn initialize(&self, node: &Node) -> kube::Result<()> {
        let address = json!({"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}});
        let params = PatchParams::default();
        let written = self
            .nodes
            .patch_status(&self.name, &params, &Patch::Merge(&address))
            .await?;
        let left: Vec<&Taint> = taints(&written).filter(|taint| !is_its(taint)).collect();
        let metadata =
            json!({"uid": node.metadata.uid, "resourceVersion": written.metadata.resource_version});
        let initialized = json!({"metadata": metadata, "spec": {"taints": left}});
        self.nodes
            .patch(&self.name, &params, &Patch::Merge(&initialized))
            .await
            .map(drop)
    }
}

fn taints(node: &Node) -> impl Iterator<Item = &Taint> {
    node.spec.iter().flat_map(|spec| spec.taints.iter().flatten())
}

fn is_its(taint: &Taint) -> bool {
    taint.key == UNINITIALIZED
}

fn is_uninitialized(node: &Node) -> bool {
    taints(node).any(is_its)
}
