//! For display only: the hosts of our nodes and of their clusters, and the snapshots of a standby.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Inventory;
use crate::facts::vsphere::Host;
use crate::ids::{ComputeRef, HostRef};
use crate::maintenance::observed::{HostState, Snapshots};
use crate::maintenance::placement::PlacementOffer;

impl Inventory {
    /// The snapshot of each node without slots and offered hosts. A standby only displays them.
    pub(super) fn standby_snapshots(&mut self) -> Snapshots {
        self.is_changed = false;
        self.snapshots.clear();
        let names = self.names().into_iter();
        names
            .filter_map(|name| {
                let snapshot = self.snapshot(&name, PlacementOffer::default())?;
                Some((name, Arc::new(snapshot)))
            })
            .collect()
    }

    /// The hosts of each cluster that has a VM of ours, with name and state.
    pub fn hosts_of_ours(&self) -> BTreeMap<HostRef, (String, HostState)> {
        self.near_ours().map(|host| self.shown(host)).collect()
    }

    /// Whether a usable host of these clusters has not reported its devices. vCenter sends them soon after the first set.
    pub fn awaits_devices(&self) -> bool {
        self.near_ours().any(|host| {
            host.passthrough.is_none() && self.host_state(Some(&host.moref)) == HostState::InService
        })
    }

    /// The hosts of each cluster that has a VM of ours.
    fn near_ours(&self) -> impl Iterator<Item = &Arc<Host>> {
        let ours = self
            .nodes
            .names()
            .filter_map(|name| self.bound_vm(name)?.host.as_ref());
        let ours: BTreeSet<&HostRef> = ours.collect();
        let computes: BTreeSet<&ComputeRef> = ours
            .iter()
            .filter_map(|host| self.vcenter.host(host)?.compute.as_ref())
            .collect();
        self.vcenter.hosts().filter(move |host| {
            let is_near = |compute| computes.contains(compute);
            ours.contains(&host.moref) || host.compute.as_ref().is_some_and(is_near)
        })
    }

    fn shown(&self, host: &Host) -> (HostRef, (String, HostState)) {
        let name = host.name.clone().unwrap_or_else(|| host.moref.to_string());
        let state = self.host_state(Some(&host.moref));
        (host.moref.clone(), (name, state))
    }
}
