//! A copy of the leader's inventory, with what plans read besides.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt as _;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinSet;

use super::rights::{self, MachineRights};
use super::warnings::DrainLimits;
use haulout_core::ids::{HostRef, NodeName};
use haulout_core::inventory::{Fact, Forecast, Inventory};
use haulout_core::maintenance::clock::Now;
use haulout_core::maintenance::effect_report::{EffectReport, EffectResult};
use haulout_core::maintenance::policy::StaticDevices;
use haulout_core::maintenance::waiting::few;
use haulout_kubernetes::drain::{self, DrainSettings, NamespacePolicies};
use haulout_kubernetes::machine_guard::names_machine;
use haulout_kubernetes::reads;
use haulout_vsphere::client::Vcenter;

/// The settings that plans depend on.
#[derive(Clone, Debug)]
pub struct PlanSettings {
    /// `GPU_NODE_LABEL`.
    pub selector: String,
    pub limits: DrainLimits,
    pub static_devices: StaticDevices,
    /// Machines of Cluster API and OpenShift are guarded.
    pub guards_machines: bool,
}

/// What plans read besides the inventory.
pub struct PlanSources {
    pub vcenter: Vcenter,
    pub client: kube::Client,
    /// The cluster of the Machines, if it is another one.
    pub management: Option<kube::Client>,
    pub settings: PlanSettings,
}

/// Tells the client how far an answer is. What it has no room for is dropped.
#[derive(Clone, Debug)]
pub(crate) struct PlanProgress(pub(crate) mpsc::Sender<String>);

impl PlanProgress {
    pub(super) fn tell(&self, text: String) {
        let _ = self.0.try_send(text);
    }
}

/// The nodes that Cluster API or OpenShift manage.
#[derive(Debug, Default)]
pub(super) struct NodesWithMachine {
    pub(super) nodes: BTreeSet<NodeName>,
    /// The namespaces of their Machines.
    pub(super) namespaces: BTreeSet<String>,
}

impl NodesWithMachine {
    pub(super) fn of(nodes: &[Node]) -> Self {
        let managed = nodes.iter().filter(|node| names_machine(node));
        Self {
            nodes: managed.map(|node| NodeName::new(node.name_any())).collect(),
            namespaces: rights::namespaces(nodes),
        }
    }
}

/// What one answer is made from. Surveys change the copy of the inventory only.
pub(crate) struct LeaderView {
    pub(super) sources: Arc<PlanSources>,
    pub(super) inventory: Inventory,
    pub(super) now: Now,
    /// Held until the last computation has ended, also if nobody waits for the answer any more.
    pub(super) _turn: OwnedSemaphorePermit,
}

impl LeaderView {
    /// Forecasts after a survey of the hosts in question.
    pub(super) async fn forecast(
        self,
        forecast: impl Fn(&mut Inventory) -> Vec<Forecast> + Clone + Send + 'static,
    ) -> anyhow::Result<(Self, Vec<Forecast>)> {
        let (view, first) = self.compute(forecast.clone()).await?;
        let surveyed = view.survey(&first).await?;
        let now = view.now;
        view.compute(move |inventory| {
            inventory.advance(surveyed, now);
            forecast(inventory)
        })
        .await
    }

    /// Computes on a thread of its own. A forecast of a large fleet takes seconds of CPU, and the event loop and the Lease have to
    /// go on meanwhile.
    pub(super) async fn compute<T: Send + 'static>(
        mut self,
        work: impl FnOnce(&mut Inventory) -> T + Send + 'static,
    ) -> anyhow::Result<(Self, T)> {
        let mut thread = JoinSet::new();
        thread.spawn_blocking(move || {
            let made = work(&mut self.inventory);
            (self, made)
        });
        let done = thread.join_next().await.context("computing a forecast")?;
        done.context("computing a forecast")
    }

    /// Surveys the hosts that could take VMs.
    async fn survey(&self, forecasts: &[Forecast]) -> anyhow::Result<Vec<Fact>> {
        let Some(first) = forecasts.first() else {
            return Ok(Vec::new());
        };
        let offers = forecasts.iter().filter_map(|it| it.offer.as_ref());
        let hosts: BTreeSet<HostRef> = offers.flat_map(|offer| offer.survey.clone()).collect();
        let hosts: Vec<HostRef> = hosts.into_iter().collect();
        let surveyed = self.sources.vcenter.survey(&hosts).await;
        let surveyed = surveyed.context("reading which VMs hold the passthrough devices of other hosts")?;
        let surveyed = surveyed.into_iter().map(|(host, reading)| {
            Fact::Effect(EffectReport {
                node: first.node.clone(),
                found: EffectResult::Surveyed { host, reading },
            })
        });
        Ok(surveyed.collect())
    }

    /// The pods of a node with their policies, read like in a drain round.
    pub(super) async fn pods(&self, node: &NodeName) -> anyhow::Result<(Vec<Pod>, NamespacePolicies)> {
        let settings = DrainSettings::default();
        let pods = drain::list(&self.sources.client, node, &settings).await?;
        let namespaces = &settings.namespaces;
        let policies = namespaces
            .read_policies(&self.sources.client, &pods, settings.list_deadline)
            .await;
        Ok((pods, policies))
    }

    pub(super) async fn budgets(&self) -> anyhow::Result<Vec<PodDisruptionBudget>> {
        Ok(reads::budgets(&self.sources.client).await?)
    }

    /// The nodes with a Machine; none if Machines are not guarded.
    pub(super) async fn machines(&self) -> anyhow::Result<NodesWithMachine> {
        if !self.sources.settings.guards_machines {
            return Ok(NodesWithMachine::default());
        }
        let nodes = reads::nodes(&self.sources.client, &self.sources.settings.selector).await?;
        Ok(NodesWithMachine::of(&nodes))
    }

    /// The rights on these Machines that Haulout lacks, in words.
    pub(super) async fn missing_machine_rights(
        &self,
        machines: &NodesWithMachine,
        not_checked: &mut Vec<String>,
    ) -> Vec<String> {
        if machines.nodes.is_empty() {
            return Vec::new();
        }
        let sources = &self.sources;
        let management = sources.management.as_ref();
        let rights = MachineRights::needed(management, &sources.client, &machines.namespaces).await;
        rights.missing(not_checked).await
    }
}

/// That the VMs of some nodes are not known yet, so any of them may be on the host of a plan.
pub(super) fn not_looked_up(view: &LeaderView) -> Option<String> {
    let nodes = view.inventory.not_looked_up();
    (!nodes.is_empty()).then(|| {
        let names: Vec<&str> = nodes.iter().map(NodeName::as_str).collect();
        format!(
            "the host of the VM of {}, which vCenter has not reported yet",
            few(&names)
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_of_cluster_api_and_of_openshift_have_a_machine() {
        let node = |name: &str, annotations: serde_json::Value| -> Node {
            serde_json::from_value(json!({"metadata": {"name": name, "annotations": annotations}})).unwrap()
        };
        let cluster_api = json!({
            "cluster.x-k8s.io/machine": "gpu-1", "cluster.x-k8s.io/cluster-namespace": "clusters",
        });
        let nodes = [
            node("gpu-1", cluster_api),
            node(
                "gpu-2",
                json!({"machine.openshift.io/machine": "openshift-machine-api/gpu-2"}),
            ),
            node("gpu-3", json!({"other": "x"})),
        ];
        let machines = NodesWithMachine::of(&nodes);
        assert_eq!(machines.nodes, ["gpu-1", "gpu-2"].map(NodeName::new).into());
        assert_eq!(machines.namespaces, ["clusters".to_owned()].into());
    }
}
