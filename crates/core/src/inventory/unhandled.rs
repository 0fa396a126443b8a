//! What hosts with our VMs are asked for and Haulout does not react to, so that people can be told.

use std::collections::{BTreeMap, BTreeSet};

use super::Inventory;
use crate::facts::vsphere::{Host, PowerState, Vm};
use crate::ids::{HostRef, NodeName, NodeUid, TaskRef};

/// Something that Haulout does not react to, although it may wait for a VM to be off.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnhandledMode {
    /// A task puts the host into standby mode. It waits until no VM there is powered on.
    Standby { task: TaskRef },
    /// The host is in a partial maintenance mode, enters or leaves it.
    PartialMaintenance {
        /// Its key in the vSphere API.
        mode: String,
    },
}

/// A host with such a mode and running VMs of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnhandledHost {
    pub host: HostRef,
    pub name: String,
    pub mode: UnhandledMode,
    /// The nodes whose VMs run there.
    pub nodes: BTreeMap<NodeName, NodeUid>,
}

impl UnhandledHost {
    /// What is to be told.
    pub fn sentence(&self) -> String {
        let host = &self.name;
        match &self.mode {
            UnhandledMode::Standby { task } => format!(
                "ESXi host {host} is to enter standby mode ({task}), which waits until its VMs are off; nothing is drained, because \
                 Haulout reacts to maintenance mode only"
            ),
            UnhandledMode::PartialMaintenance { mode } => format!(
                "ESXi host {host} is in the partial maintenance mode {mode}, or enters or leaves it; nothing is drained, because Haulout \
                 reacts to maintenance mode only"
            ),
        }
    }
}

/// What was told already.
#[derive(Debug, Default)]
pub struct UnhandledModes {
    told: BTreeMap<(HostRef, UnhandledMode), BTreeSet<NodeName>>,
}

/// What is to be told of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeWarning {
    /// The host. Its nodes are those that have not been told.
    pub of: UnhandledHost,
    /// The host itself has not been told.
    pub is_new: bool,
}

impl UnhandledModes {
    /// What has not been told of these hosts, which are all. It counts as told from now on.
    pub fn take_new(&mut self, hosts: Vec<UnhandledHost>) -> Vec<ModeWarning> {
        let mut before = std::mem::take(&mut self.told);
        let mut untold = Vec::new();
        for mut of in hosts {
            let key = (of.host.clone(), of.mode.clone());
            let told = before.remove(&key);
            let is_new = told.is_none();
            let mut told = told.unwrap_or_default();
            of.nodes.retain(|name, _| told.insert(name.clone()));
            self.told.insert(key, told);
            if is_new || !of.nodes.is_empty() {
                untold.push(ModeWarning { of, is_new });
            }
        }
        untold
    }
}

impl Inventory {
    /// The hosts with a mode that Haulout does not react to and with running VMs of ours; `None` while a source is disconnected.
    pub fn unhandled_hosts(&self) -> Option<Vec<UnhandledHost>> {
        if !self.is_synced() {
            return None;
        }
        let hosts = self.vcenter.hosts().flat_map(|host| {
            let modes = modes_of(host);
            modes.map(|mode| UnhandledHost {
                host: host.moref.clone(),
                name: host.name.clone().unwrap_or_else(|| host.moref.to_string()),
                mode,
                nodes: self.running_on(&host.moref),
            })
        });
        Some(hosts.filter(|host| !host.nodes.is_empty()).collect())
    }

    /// The nodes whose VMs run on the host.
    fn running_on(&self, host: &HostRef) -> BTreeMap<NodeName, NodeUid> {
        let is_on_it = |vm: &Vm| vm.host.as_ref() == Some(host) && vm.power == Some(PowerState::On);
        let running = self
            .nodes
            .all()
            .filter(|node| self.bound_vm(&node.name).is_some_and(is_on_it));
        running
            .map(|node| (node.name.clone(), node.uid.clone()))
            .collect()
    }
}

fn modes_of(host: &Host) -> impl Iterator<Item = UnhandledMode> {
    let standby = host.entering_standby.clone();
    let partial = host.partial_maintenance.clone();
    let standby = standby.map(|task| UnhandledMode::Standby { task });
    let partial = partial.map(|mode| UnhandledMode::PartialMaintenance { mode });
    standby.into_iter().chain(partial)
}

#[cfg(test)]
mod tests;
