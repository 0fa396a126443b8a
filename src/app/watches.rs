//! The watches of Kubernetes, and the writer of NodeMaintenance objects.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::Controller;
use super::outputs::Outputs;
use crate::config::Config;
use crate::ids::NodeName;
use crate::kubernetes::lease::ElectionStatus;
use crate::kubernetes::update::{Budget, KubernetesUpdate};
use crate::kubernetes::watch::{
    Selection, Settings, WatchContext, budgets, devices, followed, nodes, pods, scan,
};
use crate::nodemaintenance;

pub(super) struct Watches {
    pub(super) client: kube::Client,
    pub(super) selection: Selection,
    pub(super) settings: Settings,
    pub(super) facts: mpsc::Sender<KubernetesUpdate>,
    pub(super) election_status: watch::Receiver<ElectionStatus>,
    pub(super) draining: watch::Receiver<BTreeSet<NodeName>>,
    pub(super) budgets: watch::Receiver<BTreeSet<Budget>>,
    pub(super) followed: watch::Receiver<BTreeSet<NodeName>>,
}

impl Controller {
    pub(super) fn watch_kubernetes(&mut self, config: &Config, watches: Watches, outputs: &Outputs) {
        let Watches {
            selection, followed, ..
        } = watches;
        let context = WatchContext {
            client: watches.client,
            settings: watches.settings,
            out: watches.facts,
            stop: self.streams_stop.clone(),
        };
        let own = || context.clone();
        let gpu_resources = selection.gpu_resources.clone();
        let releases = selection.releases.clone();
        self.spawn("watch of Nodes", nodes::run(selection.clone(), own()));
        let scan = scan::run(selection.clone(), watches.election_status, own());
        self.spawn("scan of all Nodes", scan);
        self.spawn(
            "watch of followed Nodes",
            followed::run(followed, selection, own()),
        );
        self.spawn("watch of pods", pods::run(watches.draining, own()));
        self.spawn("watch of budgets", budgets::run(watches.budgets, own()));
        if gpu_resources.has_drivers() {
            self.spawn("watch of ResourceSlices", devices::run(gpu_resources, own()));
        }
        let watch = nodemaintenance::watch::run(config.gpu_node_label.clone(), releases, own());
        self.spawn("watch of NodeMaintenances", watch);
        for api in &config.foreign_node_maintenances.0 {
            let watch = nodemaintenance::watch::run_foreign(*api, own());
            self.spawn("watch of NodeMaintenances of another project", watch);
        }
        if let Some(objects) = &outputs.objects {
            let metrics = Arc::clone(&outputs.metrics);
            let refused = move |count| metrics.node_maintenance_writes_refused(count);
            let (fence, objects) = (self.fence.clone(), Arc::clone(objects));
            let WatchContext {
                client, out, stop, ..
            } = context;
            let writer = nodemaintenance::writer::run(client, fence, objects, refused, out, stop);
            self.spawn("writer of NodeMaintenances", writer);
        }
    }
}
