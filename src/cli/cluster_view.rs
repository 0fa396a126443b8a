//! A snapshot of vCenter and Kubernetes, read with the controller's own stream and inventory until the
//! first complete set.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt as _;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::check::machines;
use super::plan::{DrainLimits, EpisodeDurations};
use crate::app;
use crate::config::Config;
use crate::foreign_maintenance::ForeignApi;
use crate::ids::{HostRef, NodeName};
use crate::inventory::{Fact, Forecast, Inventory, readings};
use crate::kubernetes::drain::{self, DrainSettings, NamespacePolicies};
use crate::kubernetes::facts::{GpuResources, node_facts};
use crate::kubernetes::kubelet_config;
use crate::kubernetes::machine_guard::names_machine;
use crate::kubernetes::reads::{self, ReadError};
use crate::kubernetes::update::{KubernetesUpdate, NodeMaintenanceFacts, NodeMaintenanceUpdate};
use crate::maintenance::effect_report::{EffectReport, EffectResult};
use crate::nodemaintenance::foreign::Reading;
use crate::nodemaintenance::{self, api, foreign};
use crate::vsphere::client::Vcenter;
use crate::vsphere::{self, updates};

/// Limit for the first complete set, which takes seconds with a large vCenter.
const SYNC_LIMIT: Duration = Duration::from_secs(60);

/// Limit for the logout of the stream.
const LOGOUT_LIMIT: Duration = Duration::from_secs(8);

/// Capacity of the channel for facts.
const FACT_CAPACITY: usize = 1024;

/// The nodes that Cluster API or OpenShift manage.
#[derive(Debug, Default)]
pub(super) struct NodesWithMachine {
    pub(super) nodes: BTreeSet<NodeName>,
    /// The namespaces of their Machines.
    pub(super) namespaces: BTreeSet<String>,
}

impl NodesWithMachine {
    fn of(nodes: &[Node]) -> Self {
        let managed = nodes.iter().filter(|node| names_machine(node));
        Self {
            nodes: managed.map(|node| NodeName::new(node.name_any())).collect(),
            namespaces: machines::namespaces(nodes),
        }
    }
}

/// A snapshot of vCenter and Kubernetes.
pub(super) struct ClusterView {
    pub(super) inventory: Inventory,
    pub(super) vcenter: Vcenter,
    pub(super) client: kube::Client,
    pub(super) limits: DrainLimits,
    pub(super) machines: NodesWithMachine,
    /// How long ended episodes took.
    pub(super) durations: EpisodeDurations,
}

impl ClusterView {
    /// Reads vCenter and Kubernetes. Changes nothing except for the vCenter session.
    pub(super) async fn read(config: &Config, client: kube::Client) -> anyhow::Result<Self> {
        let mut inventory = Inventory::new(app::rules(config, &client), app::clock());
        let nodes = reads::nodes(&client, &config.gpu_node_label).await?;
        let machines = NodesWithMachine::of(&nodes);
        let gpus = GpuResources::parse(&config.gpu_resources).context("GPU_RESOURCES")?;
        let limit_group = config.pace.limit_group_label.as_deref();
        let nodes = nodes
            .iter()
            .map(|node| KubernetesUpdate::Node(Box::new(node_facts(node, limit_group, &gpus))));
        let mut updates = vec![KubernetesUpdate::Reset];
        updates.extend(nodes);
        updates.push(KubernetesUpdate::Settled);
        match reads::device_slices(&client, &gpus, None).await {
            Ok(slices) => updates.extend(
                slices
                    .into_iter()
                    .map(|(node, slices)| KubernetesUpdate::Devices { node, slices }),
            ),
            Err(error) => debug!("GPUs in ResourceSlices are not counted: {error}"),
        }
        updates.push(KubernetesUpdate::DevicesListed);
        let objects = nodemaintenance::read::all(&client).await?;
        let concerning = objects
            .iter()
            .filter(|object| api::concerns(object, &config.gpu_node_label));
        let durations = EpisodeDurations::of(concerning.clone());
        let maintenances = complete_list(concerning.map(api::facts));
        updates.extend(maintenances.map(KubernetesUpdate::Maintenances));
        for api in &config.foreign_node_maintenances.0 {
            let maintenances = complete_list(foreign_maintenances(&client, *api).await);
            updates.extend(maintenances.map(|update| KubernetesUpdate::ForeignMaintenances(*api, update)));
        }
        let changes = inventory.advance(updates.into_iter().map(Fact::Kubernetes), app::clocks());
        let watch_set = changes.requested.map(|it| it.watch_set).unwrap_or_default();
        let vcenter =
            Vcenter::new(app::vcenter_settings(config)?).context("preparing the connection to vCenter")?;
        let mut view = Self {
            inventory,
            vcenter,
            client,
            limits: DrainLimits {
                timeout: config.drain_timeout,
                action: config.drain_timeout_action,
                wait_max: config.drain_wait_max,
                guest_shutdown: config.guest_shutdown_timeout,
            },
            machines,
            durations,
        };
        view.read_vcenter(watch_set).await?;
        view.read_policies().await;
        Ok(view)
    }

    /// Reads the compute policies. Without them, VMs that one of them shuts down are not known.
    async fn read_policies(&mut self) {
        match self.vcenter.evacuation_policies().await {
            Ok(policies) => {
                let vms = policies.into_iter().flat_map(|policy| policy.vms).collect();
                let update = vsphere::update::VsphereUpdate::EvacuationPolicies { vms };
                self.inventory.advance([Fact::Vsphere(update)], app::clocks());
            }
            Err(error) => debug!("the compute policies cannot be read: {}", error.chain()),
        }
    }

    /// Follows vCenter until the inventory is complete, and ends the stream.
    async fn read_vcenter(&mut self, watch_set: vsphere::update::WatchSet) -> anyhow::Result<()> {
        let (sender, mut updates) = mpsc::channel(FACT_CAPACITY);
        let (_watch_set, watch_set) = watch::channel(watch_set);
        let stop = CancellationToken::new();
        let mut stream = JoinSet::new();
        stream.spawn(updates::run(
            self.vcenter.clone(),
            watch_set,
            sender,
            stop.clone(),
        ));
        let sync = async {
            while let Some(update) = updates.recv().await {
                if let vsphere::update::VsphereUpdate::Lost { why } = update {
                    return Err(anyhow!("vCenter cannot be read: {why}"));
                }
                let is_settled = update == vsphere::update::VsphereUpdate::Settled;
                self.inventory.advance([Fact::Vsphere(update)], app::clocks());
                if is_settled && self.inventory.is_complete() {
                    return Ok(());
                }
            }
            Err(anyhow!("the vCenter update stream ended"))
        };
        let synced = timeout(SYNC_LIMIT, sync).await;
        stop.cancel();
        // A stream that does not end in time is aborted with its JoinSet.
        let _ = timeout(LOGOUT_LIMIT, stream.join_next()).await;
        match synced {
            Ok(result) => result,
            Err(_elapsed) => match self.inventory.disconnected_reason() {
                Some(why) => Err(anyhow!(
                    "vCenter has not sent its complete inventory within {} s: {why}",
                    SYNC_LIMIT.as_secs()
                )),
                // An unreadable VM affects its own node only.
                None => Ok(()),
            },
        }
    }

    /// Forecasts maintenance of `names`, with the hosts in `leaving`. Like the controller it surveys the hosts in question first.
    pub(super) async fn forecast(
        &mut self,
        names: &[NodeName],
        leaving: &BTreeSet<HostRef>,
    ) -> anyhow::Result<Vec<Forecast>> {
        let first = self.inventory.forecast(names, leaving);
        self.survey(&first).await?;
        Ok(self.inventory.forecast(names, leaving))
    }

    /// Forecasts maintenance of each host alone.
    pub(super) async fn forecast_each_host(&mut self) -> anyhow::Result<Vec<Forecast>> {
        let first = self.inventory.forecast_each_host();
        self.survey(&first).await?;
        Ok(self.inventory.forecast_each_host())
    }

    /// Surveys the hosts that could take VMs.
    async fn survey(&mut self, forecasts: &[Forecast]) -> anyhow::Result<()> {
        let Some(first) = forecasts.first() else {
            return Ok(());
        };
        let mut hosts: Vec<HostRef> = forecasts
            .iter()
            .filter_map(|it| it.offer.as_ref())
            .flat_map(|offer| offer.survey.clone())
            .collect();
        hosts.sort();
        hosts.dedup();
        let claims = self.vcenter.survey(&hosts).await;
        let claims = claims.context("reading which VMs hold the passthrough devices of other hosts")?;
        for (host, reading) in readings(claims) {
            let found = EffectResult::Surveyed { host, reading };
            let node = first.node.clone();
            self.inventory
                .advance([Fact::Effect(EffectReport { node, found })], app::clocks());
        }
        Ok(())
    }

    /// The pods of a node with their policies, read like in a drain round.
    pub(super) async fn pods(&self, node: &NodeName) -> anyhow::Result<(Vec<Pod>, NamespacePolicies)> {
        let settings = DrainSettings::default();
        let pods = drain::list(&self.client, node, &settings).await?;
        let policies = drain::policies(&self.client, &pods, node, &settings).await;
        Ok((pods, policies))
    }

    /// How long the kubelet of a node delays a shutdown.
    pub(super) async fn shutdown_grace(&self, node: &NodeName) -> Result<Duration, ReadError> {
        kubelet_config::shutdown_grace(&self.client, node).await
    }

    pub(super) async fn budgets(&self) -> anyhow::Result<Vec<PodDisruptionBudget>> {
        Ok(reads::budgets(&self.client).await?)
    }

    /// Ends the session, if a read opened one after the stream ended.
    pub(super) async fn close(&self) {
        self.vcenter.logout().await;
    }
}

/// The objects of one kind that have a request; none where they cannot be read: `haulout check` shows a missing right.
async fn foreign_maintenances(client: &kube::Client, api: ForeignApi) -> Vec<NodeMaintenanceFacts> {
    let objects = foreign::all(client, api).await.unwrap_or_else(|error| {
        debug!("{error}");
        None
    });
    let facts = |object| match foreign::read_foreign(api, object) {
        Reading::Stands(facts) => Some(facts),
        Reading::Withdrawn(_) => None,
    };
    objects.iter().flatten().filter_map(facts).collect()
}

/// The updates of a watch that has listed these objects.
fn complete_list(
    objects: impl IntoIterator<Item = NodeMaintenanceFacts>,
) -> impl Iterator<Item = NodeMaintenanceUpdate> {
    let seen = objects.into_iter().map(Box::new).map(NodeMaintenanceUpdate::Seen);
    std::iter::once(NodeMaintenanceUpdate::Reset)
        .chain(seen)
        .chain([NodeMaintenanceUpdate::Settled])
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
