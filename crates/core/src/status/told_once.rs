//! Nodes of which something is to be told once each.

use std::collections::BTreeSet;

use super::{NodeStatus, NodeStatuses};
use crate::ids::NodeName;
use crate::maintenance::observed::BoundVm;

/// The nodes that something concerns, and those that were told already.
#[derive(Debug, Default)]
pub struct ToldOnce {
    concerned: BTreeSet<NodeName>,
    told: BTreeSet<NodeName>,
}

impl ToldOnce {
    /// Processes new statuses. `concerns` says whether it concerns a node; `None` where that is not known at the moment.
    pub fn update_statuses(
        &mut self,
        statuses: &NodeStatuses,
        concerns: impl Fn(&NodeStatus) -> Option<bool>,
    ) {
        self.concerned.retain(|name| statuses.contains_key(name));
        for (name, status) in statuses {
            match concerns(status) {
                Some(true) => self.concerned.insert(name.clone()),
                Some(false) => self.concerned.remove(name),
                None => false,
            };
        }
    }

    /// The nodes that have not been told since they became concerned. They count as told from now on.
    pub fn take_new(&mut self) -> Vec<NodeName> {
        let untold = self.concerned.difference(&self.told).cloned().collect();
        self.told.clone_from(&self.concerned);
        untold
    }
}

impl NodeStatus {
    /// Whether vCenter itself shuts the VM down when its host enters maintenance, without a drain; `None` without a VM.
    pub fn evacuation_policy(&self) -> Option<bool> {
        self.vm.found().map(|vm| vm.evacuation_power_off)
    }

    /// Whether the node is no VM that vCenter knows, and so is left alone; `None` where that is not known at the moment.
    pub fn is_no_vm(&self) -> Option<bool> {
        self.is_known.then_some(self.vm == BoundVm::NoVm)
    }
}
