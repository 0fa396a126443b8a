//! The watches of Kubernetes, and the writer of NodeMaintenance objects.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::App;
use super::observers::Observers;
use crate::config::Config;
use crate::ids::NodeName;
use crate::kubernetes::lease::ElectionStatus;
use crate::kubernetes::update::{Budget, KubernetesUpdate};
use crate::kubernetes::watch::{Selection, Settings, WatchContext, budgets, followed, nodes, pods, scan};
use crate::nodemaintenance;

/// What the watches need.
pub(super) struct Watches {
    pub(super) client: kube::Client,
    pub(super) selection: Selection,
    pub(super) settings: Settings,
    /// Takes what they see.
    pub(super) facts: mpsc::Sender<KubernetesUpdate>,
    pub(super) standing: watch::Receiver<ElectionStatus>,
    pub(super) draining: watch::Receiver<BTreeSet<NodeName>>,
    pub(super) budgets: watch::Receiver<BTreeSet<Budget>>,
    pub(super) followed: watch::Receiver<BTreeSet<NodeName>>,
}

impl App {
    pub(super) fn watch_kubernetes(&mut self, config: &Config, watches: Watches, observers: &Observers) {
        let Watches {
            client,
            selection,
            settings,
            facts,
            standing,
            draining,
            budgets: names_of_budgets,
            followed: names,
        } = watches;
        let context = WatchContext {
            client,
            settings,
            out: facts,
            stop: self.streams_stop.clone(),
        };
        let own = || context.clone();
        self.spawn("the watch of Nodes", nodes::run(selection.clone(), own()));
        self.spawn(
            "the scan of all Nodes",
            scan::run(selection.clone(), standing, own()),
        );
        self.spawn(
            "the watch of followed Nodes",
            followed::run(names, selection, own()),
        );
        self.spawn("the watch of pods", pods::run(draining, own()));
        self.spawn("the watch of budgets", budgets::run(names_of_budgets, own()));
        if config.node_maintenances {
            let selector = config.gpu_node_label.clone();
            self.spawn(
                "the watch of NodeMaintenances",
                nodemaintenance::watch::run(selector, own()),
            );
        }
        if let Some(objects) = &observers.objects {
            let metrics = Arc::clone(&observers.metrics);
            let refused = move |count| metrics.node_maintenance_writes_refused(count);
            self.spawn(
                "the writer of NodeMaintenances",
                nodemaintenance::writer::run(
                    context.client,
                    self.gate.clone(),
                    Arc::clone(objects),
                    refused,
                    context.out,
                    context.stop,
                ),
            );
        }
    }
}
