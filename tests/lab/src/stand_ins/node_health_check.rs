//! medik8s' NodeHealthCheck with a remediator that power-cycles the VM, as fence-agents-remediation does with
//! `fence_vmware_rest` and the action `reboot`.
//!
//! It follows medik8s/node-healthcheck-operator, `internal/controller/nodehealthcheck_controller.go` (dd444329): a Node whose
//! Ready condition is False or Unknown for longer than `duration` is remediated, unless `isNodeRemediationExcluded`: the label
//! `remediation.medik8s.io/exclude-from-remediation` has the value `true`. It is remediated once until it is healthy again.
//!
//! Left out: the objects of the remediation, `minHealthy`, leases, escalation. The kind NodeHealthCheck is there without a
//! function, because programs look for its API group.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Node;

use super::{AsyncRound, Decisions, FixtureNodes, StandIn};
use crate::fixture::Fixture;
use crate::vcenter::OtherUser;

/// The user of vCenter.
pub const FENCE_AGENT: &str = "fence-agent";

/// The label that excludes a Node with the value `true`.
const EXCLUDE: &str = "remediation.medik8s.io/exclude-from-remediation";

const DEFINITION: &str = "
metadata:
  name: nodehealthchecks.remediation.medik8s.io
spec:
  group: remediation.medik8s.io
  scope: Cluster
  names: {kind: NodeHealthCheck, listKind: NodeHealthCheckList, plural: nodehealthchecks, singular: nodehealthcheck}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

/// Installs its kind and starts it for the Nodes of a fixture. It power-cycles the VM of a Node that is not Ready for longer
/// than `unhealthy_after`.
///
/// # Errors
/// If the kind is there already: a fixture with it needs a cluster of its own.
pub async fn start(fixture: &Fixture<'_>, unhealthy_after: Duration) -> anyhow::Result<StandIn> {
    fixture.kube.define(DEFINITION).await?;
    Ok(StandIn::run(NodeHealthCheck {
        nodes: FixtureNodes::of(fixture),
        vcenter: fixture.vcenter.as_user(FENCE_AGENT),
        unhealthy_after,
        remediating: BTreeSet::new(),
    }))
}

struct NodeHealthCheck {
    nodes: FixtureNodes,
    vcenter: OtherUser,
    unhealthy_after: Duration,
    /// The Nodes of which the VM was power-cycled.
    remediating: BTreeSet<String>,
}

impl AsyncRound for NodeHealthCheck {
    async fn round(&mut self, decided: &mut Decisions) -> anyhow::Result<()> {
        for node in self.nodes.list().await? {
            let name = node.metadata.name.clone().unwrap_or_default();
            if !is_unhealthy(&node, self.unhealthy_after) {
                self.remediating.remove(&name);
                continue;
            }
            let labels = node.metadata.labels.as_ref();
            if labels.and_then(|it| it.get(EXCLUDE)).map(String::as_str) == Some("true") {
                decided.excluded += 1;
                continue;
            }
            if self.remediating.insert(name) {
                decided.acted += 1;
                self.power_cycle(&node).await?;
            }
        }
        Ok(())
    }
}

impl NodeHealthCheck {
    async fn power_cycle(&self, node: &Node) -> anyhow::Result<()> {
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        let uuid = &info.context("a Node without a UUID")?.system_uuid;
        let state = self.vcenter.state().await?;
        let vm = state.vms.iter().find(|vm| vm.uuid == *uuid);
        match vm.context("a Node without a VM")?.is_on() {
            true => self.vcenter.power_off(uuid).await,
            false => self.vcenter.power_on(uuid).await,
        }
    }
}

fn is_unhealthy(node: &Node, after: Duration) -> bool {
    let mut conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.find(|it| it.type_ == "Ready" && it.status != "True");
    let since = ready.and_then(|ready| ready.last_transition_time.as_ref());
    since.is_some_and(|since| {
        let elapsed = jiff::Timestamp::now().duration_since(since.0);
        Duration::try_from(elapsed).is_ok_and(|elapsed| elapsed > after)
    })
}
