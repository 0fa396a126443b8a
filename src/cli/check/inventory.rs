//! A snapshot of vCenter and Kubernetes, for checks where no controller runs yet. It is read with the controller's own stream
//! and inventory until the first complete set.

use std::collections::BTreeSet;
use std::iter;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::app;
use crate::config::Config;
use crate::inventory::{Fact, Inventory, InventorySettings};
use crate::kubernetes::facts::{GpuResources, node_facts};
use crate::kubernetes::reads;
use crate::kubernetes::update::{KubernetesUpdate, NodeMaintenanceUpdate};
use crate::nodemaintenance::{self, api};
use crate::vsphere::client::Vcenter;
use crate::vsphere::{self, updates};

/// Limit for the first complete set, which takes seconds with a large vCenter.
const SYNC_LIMIT: Duration = Duration::from_secs(60);

/// Limit for the logout of the stream.
const LOGOUT_LIMIT: Duration = Duration::from_secs(8);

/// Capacity of the channel for facts.
const FACT_CAPACITY: usize = 1024;

/// A snapshot of vCenter and Kubernetes, read without the controller.
pub(in crate::cli) struct ClusterView {
    pub(super) inventory: Inventory,
    pub(super) vcenter: Vcenter,
    pub(super) client: kube::Client,
}

impl ClusterView {
    /// Reads vCenter and Kubernetes. Changes nothing except for the vCenter session.
    pub(super) async fn read(config: &Config, client: kube::Client) -> anyhow::Result<Self> {
        // What only the pace of maintenances or the count of GPUs depends on is not shown.
        let settings = InventorySettings {
            device_slices: false,
            foreign_maintenances: BTreeSet::new(),
            ..app::inventory_settings(config, &client)
        };
        let mut inventory = Inventory::new(settings, app::clock());
        let nodes = reads::nodes(&client, &config.gpu_node_label).await?;
        let gpus = GpuResources::parse(&config.gpu_resources).context("GPU_RESOURCES")?;
        let limit_group = config.pace.limit_group_label.as_deref();
        let nodes = nodes
            .iter()
            .map(|node| KubernetesUpdate::Node(Box::new(node_facts(node, limit_group, &gpus))));
        let objects = nodemaintenance::read::all(&client).await?;
        let concerning = objects
            .iter()
            .filter(|object| api::concerns(object, &config.gpu_node_label));
        let maintenances = concerning.map(|object| NodeMaintenanceUpdate::Seen(Box::new(api::facts(object))));
        let maintenances = iter::once(NodeMaintenanceUpdate::Reset)
            .chain(maintenances)
            .chain([NodeMaintenanceUpdate::Settled]);
        let updates = iter::once(KubernetesUpdate::Reset)
            .chain(nodes)
            .chain([KubernetesUpdate::Settled])
            .chain(maintenances.map(KubernetesUpdate::Maintenances));
        let changes = inventory.advance(updates.map(Fact::Kubernetes), app::clocks());
        let watch_set = changes.requested.map(|it| it.watch_set).unwrap_or_default();
        let vcenter =
            Vcenter::new(app::vcenter_settings(config)?).context("preparing the connection to vCenter")?;
        let mut view = Self {
            inventory,
            vcenter,
            client,
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

    /// Ends the session, if a read opened one after the stream ended.
    pub(in crate::cli) async fn close(&self) {
        self.vcenter.logout().await;
    }
}
