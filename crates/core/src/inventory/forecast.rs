//! Forecasts: what would happen to nodes if their maintenance began now.

use std::collections::BTreeMap;

use super::Inventory;
use super::placement::{HostsView, Reservation, device_needs};
use crate::ids::{HostRef, NodeName, VmRef};
use crate::maintenance::episode::Record;
use crate::maintenance::observed::{Admission, BoundVm, HostState, ObservedNode};
use crate::maintenance::placement::{PlacementOffer, find_host};

/// The forecast of the maintenance of one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// The node.
    pub node: NodeName,
    /// Its record.
    pub record: Record,
    /// The Node, where there is one.
    pub seen: Option<ObservedNode>,
    /// Its VM.
    pub vm: BoundVm,
    /// The name of its VM.
    pub vm_name: Option<String>,
    /// Whether VMware Tools run in it; `None` if unknown.
    pub tools_running: Option<bool>,
    /// vCenter itself powers the VM off when its host enters maintenance, and so races the drain.
    pub evacuation_power_off: bool,
    /// Its place in the admission queue, if it would have to wait.
    pub queue: Option<Admission>,
    /// Where its VM would be placed once it is off; `None` if unknown.
    pub offer: Option<PlacementOffer>,
}

/// The nodes that a maintenance of a host concerns.
#[derive(Clone, Debug, PartialEq)]
pub struct Reach {
    /// The host.
    pub host: HostRef,
    /// Its state.
    pub state: HostState,
    /// The nodes whose VMs are on it.
    pub nodes: Vec<NodeName>,
}

impl Inventory {
    /// Whether both sources are synced and the VMs of all nodes have been looked up.
    pub fn is_complete(&self) -> bool {
        let looked_up = |name: &NodeName| !matches!(self.vm_of(name), BoundVm::NotLookedUp);
        self.disconnected().is_none() && !self.is_set_incomplete() && self.names().iter().all(looked_up)
    }

    /// Why vCenter is disconnected, if it is.
    pub fn disconnected_reason(&self) -> Option<&str> {
        self.vcenter.disconnected.as_deref()
    }

    /// Every node with a Node, a record or a copy of one.
    pub fn nodes(&self) -> Vec<NodeName> {
        self.names().into_iter().collect()
    }

    /// The names of all hosts, for completion.
    pub fn host_names(&self) -> Vec<String> {
        self.hosts.values().filter_map(|host| host.name.clone()).collect()
    }

    /// The nodes that a maintenance of the host of this name would concern.
    pub fn reach(&self, host: &str) -> Option<Reach> {
        let host = self.hosts.values().find(|it| it.name.as_deref() == Some(host))?;
        let is_there = |name: &NodeName| {
            let vm = self.vm_of(name);
            vm.found().is_some_and(|vm| vm.on.as_ref() == Some(&host.moref))
        };
        Some(Reach {
            host: host.moref.clone(),
            state: self.host_state(Some(&host.moref)),
            nodes: self.names().into_iter().filter(is_there).collect(),
        })
    }

    /// The VMs of our nodes, with their names.
    pub fn vms_of_ours(&self) -> BTreeMap<VmRef, String> {
        let bound = self.nodes.keys().filter_map(|name| self.bound_vm(name));
        bound
            .map(|vm| {
                let name = vm.name.clone().unwrap_or_else(|| vm.moref.to_string());
                (vm.moref.clone(), name)
            })
            .collect()
    }

    /// The forecasts of `names`, in this order: a host that is offered to one node is reserved against the next.
    pub fn forecast(&mut self, names: &[NodeName]) -> Vec<Forecast> {
        self.update_admission(&self.names());
        let placed = self.placed(&self.names());
        let mut reservations = placed.reservations;
        let mut forecasts = Vec::new();
        let mut views = HostsView::new();
        for name in names {
            let Some(snapshot) = self.snapshot(name, PlacementOffer::default()) else {
                continue;
            };
            let vm = self.bound_vm(name);
            let offer = match placed.offers.get(name).or_else(|| placed.previews.get(name)) {
                Some(offer) => Some(offer.clone()),
                None => self.offer_to(name, &mut reservations, &mut views),
            };
            let (queue, limits) = self.queue_of(name);
            forecasts.push(Forecast {
                node: name.clone(),
                record: snapshot.record,
                seen: snapshot.observed.node,
                vm: snapshot.observed.vm,
                vm_name: vm.and_then(|vm| vm.name.clone()),
                tools_running: vm.and_then(|vm| vm.tools_running),
                evacuation_power_off: vm.is_some_and(|vm| self.is_evacuated_by_power_off(vm)),
                queue: queue.full(name, limits).map(|_| queue.admission(name, limits)),
                offer,
            });
        }
        forecasts
    }

    fn offer_to(
        &self,
        name: &NodeName,
        reservations: &mut Vec<(NodeName, Reservation)>,
        views: &mut HostsView,
    ) -> Option<PlacementOffer> {
        let wanted = self.wanted(self.bound_vm(name)?, None, None)?;
        let hosts = self.hosts_for(&wanted, reservations, views);
        let offer = find_host(&wanted, hosts, None, &[]);
        if let Some((host, _)) = &offer.fits {
            let needs = device_needs(&wanted);
            let reservation = Reservation {
                vm: wanted.vm,
                host: host.clone(),
                needs,
                vgpus: wanted.vgpus,
                memory_mib: wanted.memory_mib.unwrap_or_default(),
            };
            reservations.push((name.clone(), reservation));
        }
        Some(offer)
    }

    /// The GPUs of `names`, by resource: what the cluster lacks during their maintenance.
    pub fn gpus_of(&self, names: &[NodeName]) -> BTreeMap<String, u64> {
        let mut sum: BTreeMap<String, u64> = BTreeMap::new();
        for node in names.iter().filter_map(|name| self.nodes.get(name)) {
            for (resource, count) in &*self.gpus(node, None) {
                let so_far = sum.entry(resource.clone()).or_default();
                *so_far = so_far.saturating_add(*count);
            }
        }
        sum
    }
}
