//! cluster-autoscaler's scale-down of an unneeded Node.
//!
//! It follows kubernetes/autoscaler, in `cluster-autoscaler/core/scaledown`: `eligibility/eligibility.go` (0a11e9c1) and
//! `unneeded/nodes.go` (03cf0e66). A Node with the annotation `cluster-autoscaler.kubernetes.io/scale-down-disabled: "true"` is
//! no candidate; the annotation is read again before the removal. A Node is removed when it has been unneeded for
//! `--scale-down-unneeded-time` (10 minutes) if it is Ready, and for `--scale-down-unready-time` (20 minutes) if it is not.
//!
//! Left out: utilization, so only a Node without pods is unneeded; node groups and their minimum; the drain and the removal
//! of the VM, of which the taint `ToBeDeletedByClusterAutoscaler` and the deletion of the Node are left.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;

use super::{AsyncRound, Decisions, FixtureNodes, StandIn};
use crate::fixture::Fixture;

/// The annotation that excludes a Node with the value `true`.
pub const SCALE_DOWN_DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";

/// Starts it for the Nodes of a fixture. It removes a Node that is unneeded for longer than `unneeded`.
pub fn start(fixture: &Fixture<'_>, unneeded: Duration) -> StandIn {
    StandIn::run(Autoscaler {
        nodes: FixtureNodes::of(fixture),
        pods: Api::all(fixture.client()),
        unneeded,
        since: BTreeMap::new(),
    })
}

struct Autoscaler {
    nodes: FixtureNodes,
    pods: Api<Pod>,
    unneeded: Duration,
    since: BTreeMap<String, Instant>,
}

impl AsyncRound for Autoscaler {
    async fn round(&mut self, decided: &mut Decisions) -> anyhow::Result<()> {
        for node in self.nodes.list().await? {
            let name = node.metadata.name.clone().unwrap_or_default();
            if !self.is_empty(&name).await? {
                self.since.remove(&name);
                continue;
            }
            let since = *self.since.entry(name.clone()).or_insert_with(Instant::now);
            if since.elapsed() < self.unneeded {
                continue;
            }
            let annotations = node.metadata.annotations.as_ref();
            if annotations
                .and_then(|it| it.get(SCALE_DOWN_DISABLED))
                .map(String::as_str)
                == Some("true")
            {
                decided.excluded += 1;
                continue;
            }
            self.remove(&node, &name).await?;
            decided.acted += 1;
        }
        Ok(())
    }
}

impl Autoscaler {
    /// Whether the Node has no pods but those of DaemonSets.
    async fn is_empty(&self, node: &str) -> anyhow::Result<bool> {
        let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let is_of_node = |pod: &Pod| {
            let mut owners = pod.metadata.owner_references.iter().flatten();
            owners.any(|owner| owner.kind == "DaemonSet")
        };
        Ok(self.pods.list(&params).await?.iter().all(is_of_node))
    }

    async fn remove(&self, node: &Node, name: &str) -> anyhow::Result<()> {
        let now = jiff::Timestamp::now().as_second().to_string();
        let taint = json!({"key": "ToBeDeletedByClusterAutoscaler", "value": now, "effect": "NoSchedule"});
        let mut taints = vec![taint];
        let old = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        for taint in old.into_iter().flatten() {
            taints.push(json!(taint));
        }
        let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
        let params = PatchParams {
            field_manager: Some("cluster-autoscaler".to_owned()),
            ..PatchParams::default()
        };
        self.nodes.api.patch(name, &params, &patch).await?;
        self.nodes.api.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }
}
