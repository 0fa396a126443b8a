//! Forecasts: what would happen to nodes if their maintenance began now.

use std::collections::{BTreeMap, BTreeSet};

use super::Inventory;
use super::placement::{HostsView, Reservation};
use crate::ids::{HostRef, NodeName, VmRef};
use crate::maintenance::episode::Record;
use crate::maintenance::observed::{Admission, BoundVm, HostState, ObservedNode, SourceState};
use crate::maintenance::placement::{
    HostView, PlacementOffer, RejectedHost, RejectionReason, ReservedVm, find_host,
};

type Offers = BTreeMap<NodeName, PlacementOffer>;

/// The forecast of the maintenance of one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    pub node: NodeName,
    pub record: Record,
    /// The Node, where there is one.
    pub seen: Option<ObservedNode>,
    pub vm: BoundVm,
    pub vm_name: Option<String>,
    /// Its place in the admission queue, if it would have to wait.
    pub queue: Option<Admission>,
    /// Where its VM would be placed once it is off; `None` if unknown.
    pub offer: Option<PlacementOffer>,
}

/// The nodes that a maintenance of a host concerns.
#[derive(Clone, Debug, PartialEq)]
pub struct Reach {
    pub host: HostRef,
    pub state: HostState,
    /// The nodes whose VMs are on it.
    pub nodes: Vec<NodeName>,
}

impl Inventory {
    /// Whether both sources are synced and the VMs of all nodes have been looked up.
    pub fn is_complete(&self) -> bool {
        self.disconnected().is_none() && !self.vcenter.is_set_incomplete() && self.not_looked_up().is_empty()
    }

    /// Whether this process is the leader, or runs without leader election.
    pub fn is_acting(&self) -> bool {
        self.is_acting
    }

    /// Why a source is not synced, if one is not.
    pub fn unsynced_reason(&self) -> Option<String> {
        match self.disconnected()? {
            SourceState::NoVcenter { why } => Some(format!("vCenter: {why}")),
            SourceState::NoKubernetes { why } => Some(format!("Kubernetes: {why}")),
            SourceState::Synced => None,
        }
    }

    /// The nodes whose VM has not been looked up.
    pub fn not_looked_up(&self) -> Vec<NodeName> {
        let is_open = |name: &NodeName| matches!(self.vm_of(name), BoundVm::NotLookedUp);
        self.names().into_iter().filter(is_open).collect()
    }

    /// Why vCenter is disconnected, if it is.
    pub fn disconnected_reason(&self) -> Option<&str> {
        self.vcenter.disconnected()
    }

    /// Every node with a Node, a record or a copy of one.
    pub fn nodes(&self) -> Vec<NodeName> {
        self.names().into_iter().collect()
    }

    /// The names of all hosts, for completion.
    pub fn host_names(&self) -> Vec<String> {
        self.vcenter
            .hosts()
            .filter_map(|host| host.name.clone())
            .collect()
    }

    /// The nodes that a maintenance of the host of this name would concern.
    pub fn reach(&self, host: &str) -> Option<Reach> {
        let host = self.vcenter.hosts().find(|it| it.name.as_deref() == Some(host))?;
        let is_there = |name: &NodeName| {
            let vm = self.vm_of(name);
            vm.found()
                .is_some_and(|vm| vm.host_ref.as_ref() == Some(&host.moref))
        };
        Some(Reach {
            host: host.moref.clone(),
            state: self.host_state(Some(&host.moref)),
            nodes: self.names().into_iter().filter(is_there).collect(),
        })
    }

    /// The VMs of our nodes, with their names.
    pub fn vms_of_ours(&self) -> BTreeMap<VmRef, String> {
        let bound = self.nodes.names().filter_map(|name| self.bound_vm(name));
        bound
            .map(|vm| {
                let name = vm.name.clone().unwrap_or_else(|| vm.moref.to_string());
                (vm.moref.clone(), name)
            })
            .collect()
    }

    /// The forecasts of `names`, in this order: a host that is offered to one node is reserved against the next. The hosts in `leaving`
    /// enter maintenance as well, so none is offered.
    pub fn forecast(&mut self, names: &[NodeName], leaving: &BTreeSet<HostRef>) -> Vec<Forecast> {
        self.update_admission(&self.names());
        let placed = self.placed(&self.names());
        let mut reservations = placed.reservations;
        let mut views = HostsView::new();
        let offers = (&placed.offers, &placed.previews);
        let of_node = |name| self.forecast_of(name, leaving, offers, &mut reservations, &mut views);
        names.iter().filter_map(of_node).collect()
    }

    /// The forecast of each node if only its host is in maintenance, in the order of the hosts: what is reserved for the VMs of one
    /// host does not keep those of another.
    pub fn forecast_each_host(&mut self) -> Vec<Forecast> {
        let names = self.names();
        self.update_admission(&names);
        let placed = self.placed(&names);
        let mut reservations = placed.reservations;
        let taken = reservations.len();
        let mut by_host: BTreeMap<Option<HostRef>, Vec<NodeName>> = BTreeMap::new();
        for name in names {
            let host = self.bound_vm(&name).and_then(|vm| vm.host.clone());
            by_host.entry(host).or_default().push(name);
        }
        let mut views = HostsView::new();
        let mut forecasts = Vec::new();
        let (none, offers) = (BTreeSet::new(), (&placed.offers, &placed.previews));
        for names in by_host.into_values() {
            for name in &names {
                forecasts.extend(self.forecast_of(name, &none, offers, &mut reservations, &mut views));
            }
            reservations.truncate(taken);
        }
        forecasts
    }

    fn forecast_of(
        &self,
        name: &NodeName,
        leaving: &BTreeSet<HostRef>,
        (offers, previews): (&Offers, &Offers),
        reservations: &mut Vec<Reservation>,
        views: &mut HostsView,
    ) -> Option<Forecast> {
        let snapshot = self.snapshot(name, PlacementOffer::default())?;
        let vm = self.bound_vm(name);
        let is_to_stay = |offer: &&PlacementOffer| {
            offer
                .fits
                .as_ref()
                .is_none_or(|(host, _)| !leaving.contains(host))
        };
        let made = offers.get(name).or_else(|| previews.get(name)).filter(is_to_stay);
        let offer = match made {
            Some(offer) => Some(offer.clone()),
            None => self.offer_to(name, leaving, reservations, views),
        };
        let (queue, limits) = self.queue_of(name);
        Some(Forecast {
            node: name.clone(),
            record: snapshot.record,
            seen: snapshot.observed.node,
            vm: snapshot.observed.vm,
            vm_name: vm.and_then(|vm| vm.name.clone()),
            queue: queue.full(name, limits).map(|_| queue.admission(name, limits)),
            offer,
        })
    }

    /// The host for the VM of `name` among those that are not in `leaving`, which is then reserved.
    pub(super) fn offer_to(
        &self,
        name: &NodeName,
        leaving: &BTreeSet<HostRef>,
        reservations: &mut Vec<Reservation>,
        views: &mut HostsView,
    ) -> Option<PlacementOffer> {
        let wanted = self.wanted(self.bound_vm(name)?, None, None)?;
        let hosts = self.hosts_for(&wanted, reservations, views);
        let staying: Vec<HostView>;
        let hosts = if leaving.is_empty() {
            hosts
        } else {
            let stays = |host: &&HostView| !leaving.contains(&host.moref);
            staying = hosts.iter().filter(stays).cloned().collect();
            &staying
        };
        let mut offer = find_host(&wanted, hosts, None, &[]);
        let is_away = |host: &&HostRef| wanted.from.as_ref() != Some(*host);
        let near = |host: &&HostRef| self.vcenter.cluster_of(host) == wanted.compute.as_ref();
        let refused = leaving.iter().filter(is_away).filter(near);
        offer.refused.extend(refused.map(|host| {
            RejectedHost {
                host: self
                    .vcenter
                    .host(host)
                    .and_then(|host| host.name.clone())
                    .unwrap_or_else(|| host.to_string()),
                why: RejectionReason::State("to enter maintenance as well"),
            }
        }));
        if let Some((host, _)) = offer.fits.as_ref().filter(|_| !self.waits_for_home(name)) {
            reservations.push((host.clone(), ReservedVm::of(&wanted)));
        }
        Some(offer)
    }

    /// The GPUs of `names`, by resource: what the cluster lacks during their maintenance.
    pub fn gpus_of(&self, names: &[NodeName]) -> BTreeMap<String, u64> {
        let mut sum: BTreeMap<String, u64> = BTreeMap::new();
        for node in names.iter().filter_map(|name| self.nodes.node(name)) {
            for (resource, count) in &*self.nodes.gpus(node, None) {
                let so_far = sum.entry(resource.clone()).or_default();
                *so_far = so_far.saturating_add(*count);
            }
        }
        sum
    }
}
