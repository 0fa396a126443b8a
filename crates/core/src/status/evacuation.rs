//! The nodes whose VMs vCenter itself shuts down when their hosts enter maintenance, each to be told once.

use std::collections::BTreeSet;

use super::{NodeStatus, NodeStatuses};
use crate::ids::NodeName;

/// The nodes of this kind, and those that were told already.
#[derive(Debug, Default)]
pub struct EvacuationPolicies {
    concerned: BTreeSet<NodeName>,
    told: BTreeSet<NodeName>,
}

impl EvacuationPolicies {
    /// Processes new statuses.
    pub fn show(&mut self, statuses: &NodeStatuses) {
        if statuses.are_all {
            self.concerned.retain(|name| statuses.nodes.contains_key(name));
        }
        for (name, status) in &statuses.nodes {
            // A VM that is not known at the moment is neither.
            let Some(vm) = status.vm.found() else { continue };
            if vm.evacuation_power_off {
                self.concerned.insert(name.clone());
            } else {
                self.concerned.remove(name);
            }
        }
    }

    /// The nodes that have not been told since they became concerned. They count as told from now on.
    pub fn take_untold(&mut self) -> Vec<NodeName> {
        let untold = self.concerned.difference(&self.told).cloned().collect();
        self.told.clone_from(&self.concerned);
        untold
    }
}

impl NodeStatus {
    /// Whether vCenter itself shuts the VM down when its host enters maintenance, without a drain.
    pub fn has_evacuation_policy(&self) -> bool {
        self.vm.found().is_some_and(|vm| vm.evacuation_power_off)
    }
}
