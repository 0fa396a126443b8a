//! Log lines about all nodes together, each written once.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::{info, warn};

use crate::controller::observer::Observer;
use crate::ids::NodeName;
use crate::inventory::{Inventory, UnhandledModes};
use crate::maintenance::waiting::few;
use crate::status::{NodeStatus, NodeStatuses, ToldOnce};
use crate::telemetry::metrics::Degraded;

/// Logs what was not logged before.
#[derive(Debug, Default)]
pub(super) struct Notices(Mutex<LoggedNotices>);

#[derive(Debug, Default)]
struct LoggedNotices {
    is_complete: bool,
    degraded: BTreeSet<Degraded>,
    evacuation_policies: ToldOnce,
    nodes_without_vm: ToldOnce,
    modes: UnhandledModes,
}

impl Observer for Notices {
    fn applied(&self, inventory: &Inventory) {
        let degraded = &mut self.0.lock().degraded;
        for (part, reason) in Degraded::parts(inventory) {
            match reason {
                Some(reason) if degraded.insert(part) => warn!("{reason}"),
                None if degraded.remove(&part) => info!("no longer degraded: {}", part.name()),
                Some(_) | None => {}
            }
        }
    }

    fn built_by_leader(&self, statuses: &Arc<NodeStatuses>, inventory: &Inventory) {
        let mut logged = self.0.lock();
        logged
            .evacuation_policies
            .update_statuses(statuses, NodeStatus::evacuation_policy);
        logged
            .nodes_without_vm
            .update_statuses(statuses, NodeStatus::is_no_vm);
        // One line for all nodes, so not before all are known.
        if !inventory.is_synced() {
            return;
        }
        if !logged.is_complete {
            logged.is_complete = true;
            let episodes = statuses.values().filter(|it| it.record.episode().is_some());
            info!(
                nodes = statuses.len(),
                hosts = inventory.hosts_of_ours().len(),
                episodes = episodes.count(),
                "inventory complete"
            );
        }
        let nodes = logged.evacuation_policies.take_new();
        if !nodes.is_empty() {
            warn!(
                count = nodes.len(),
                nodes = first_names(&nodes),
                "vCenter itself shuts down the VMs of these nodes when their hosts enter maintenance, because \
                 maintenance.vm.evacuation.poweroff is set on them or a compute policy says so; their pods may end before they are evicted"
            );
        }
        let nodes = logged.nodes_without_vm.take_new();
        if !nodes.is_empty() {
            info!(
                count = nodes.len(),
                nodes = first_names(&nodes),
                "vCenter knows no VM of these nodes, and nothing says that they are VMs of vSphere: they are left alone"
            );
        }
    }

    /// Logs each host that is asked for something that Haulout does not react to.
    fn leader_tick(&self, inventory: &Inventory) {
        let Some(hosts) = inventory.unhandled_hosts() else {
            return;
        };
        let warnings = self.0.lock().modes.take_new(hosts);
        for warning in warnings.into_iter().filter(|warning| warning.is_new) {
            let nodes: Vec<NodeName> = warning.of.nodes.keys().cloned().collect();
            warn!(
                host = warning.of.name,
                nodes = first_names(&nodes),
                "{}",
                warning.of.sentence()
            );
        }
    }
}

fn first_names(nodes: &[NodeName]) -> String {
    let names: Vec<&str> = nodes.iter().map(NodeName::as_str).collect();
    few(&names)
}
