//! Offers hosts to nodes that need one. A device that is offered to one node is reserved against the others.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::Inventory;
use super::devices::{sriov_cards, vgpus};
use crate::facts::kubernetes::{NodeFacts, RequestAction};
use crate::facts::vsphere::{DetectionSignal, HostConnection, Vm};
use crate::ids::{ComputeRef, HostRef, NodeName, VmRef};
use crate::maintenance::decide::is_replaced;
use crate::maintenance::episode::{Detection, Episode, MAX_REFUSALS, Phase, Record};
use crate::maintenance::observed::HostState;
use crate::maintenance::placement::{HostView, PlacementOffer, ReservedVm, VmRequirements, find_host};
use crate::maintenance::request::Request;

/// A node that needs a host.
struct PlacementRequest {
    since: Timestamp,
    node: NodeName,
    wanted: VmRequirements,
    /// The hosts that refused its VM in this episode.
    refused: Vec<(HostRef, String)>,
}

/// The nodes that need a host now or later, and the reservations of those that have one.
#[derive(Default)]
struct PlacementRequests {
    waiting: Vec<PlacementRequest>,
    previews: Vec<PlacementRequest>,
    reservations: Vec<Reservation>,
}

/// A host, and the VM for which it is reserved before vCenter shows it there.
pub(super) type Reservation = (HostRef, ReservedVm);

/// The result of placement for several nodes.
pub(super) struct Placed {
    /// For nodes whose VMs are off.
    pub(super) offers: BTreeMap<NodeName, PlacementOffer>,
    /// For nodes whose VMs are still on: nothing is reserved for them, and the host may be another one later.
    pub(super) previews: BTreeMap<NodeName, PlacementOffer>,
    pub(super) reservations: Vec<Reservation>,
}

/// The hosts of each cluster, collected once for all its VMs. In a profile of a drain of 200 nodes, collecting them for each VM took
/// most of the time of building snapshots.
pub(super) type HostsView = BTreeMap<ComputeRef, Vec<HostView>>;

impl Inventory {
    /// The state of a host; unknown if vCenter does not report it.
    pub(super) fn host_state(&self, host: Option<&HostRef>) -> HostState {
        let Some(host) = host.and_then(|moref| self.vcenter.host(moref)) else {
            return HostState::Unknown;
        };
        match (host.connection, host.in_maintenance, &host.entering) {
            (None, _, _) | (Some(HostConnection::Connected), None, _) => HostState::Unknown,
            (Some(HostConnection::Disconnected | HostConnection::NotResponding), _, _) => {
                HostState::Unreachable
            }
            (Some(HostConnection::Connected), Some(true), _) => HostState::InMaintenance,
            (Some(HostConnection::Connected), Some(false), Some(entering)) => HostState::Entering {
                task: entering.task.clone(),
                clicked_at: entering.queued_at,
                user: entering.user.clone(),
                detection: if entering.queued_at < self.acting_since {
                    Detection::AtStartup
                } else {
                    match entering.signal {
                        DetectionSignal::Push => Detection::Pushed,
                        DetectionSignal::Reread => Detection::Polled,
                    }
                },
            },
            (Some(HostConnection::Connected), Some(false), None) if host.in_quarantine == Some(true) => {
                HostState::Quarantined
            }
            (Some(HostConnection::Connected), Some(false), None) => {
                match self.vcenter.settles_at(&host.moref) {
                    Some(until) => HostState::Settling { until },
                    None => HostState::InService,
                }
            }
        }
    }

    /// An offer for each node that needs a host, in the order of their triggers. The offered host is reserved while the node needs
    /// one, so that two nodes never take the same device.
    pub(super) fn offers(&mut self, names: &BTreeSet<NodeName>) -> BTreeMap<NodeName, PlacementOffer> {
        let mut placed = self.placed(names);
        for name in names {
            if let Some(local) = self.node_states.get_mut(name) {
                local.offered = placed
                    .offers
                    .get(name)
                    .and_then(|offer| offer.fits.as_ref())
                    .map(|(host, _)| host.clone());
            }
        }
        placed.offers.append(&mut placed.previews);
        placed.offers
    }

    /// The offers, the previews, and all reservations including those of the offers.
    pub(super) fn placed(&self, names: &BTreeSet<NodeName>) -> Placed {
        let PlacementRequests {
            mut waiting,
            previews,
            mut reservations,
        } = self.placement_requests(names);
        waiting.sort_by(|a, b| (a.since, &a.node).cmp(&(b.since, &b.node)));
        let mut offers = BTreeMap::new();
        let mut views = HostsView::new();
        for placement in &waiting {
            let kept = self
                .node_states
                .get(&placement.node)
                .and_then(|local| local.offered.clone());
            let hosts = self.hosts_for(&placement.wanted, &reservations, &mut views);
            let offer = find_host(&placement.wanted, hosts, kept.as_ref(), &placement.refused);
            if let Some((host, _)) = &offer.fits {
                reservations.push((host.clone(), ReservedVm::of(&placement.wanted)));
            }
            offers.insert(placement.node.clone(), offer);
        }
        let preview = |placement: PlacementRequest| {
            let hosts = self.hosts_for(&placement.wanted, &reservations, &mut views);
            let offer = find_host(&placement.wanted, hosts, None, &placement.refused);
            (placement.node, offer)
        };
        Placed {
            previews: previews.into_iter().map(preview).collect(),
            offers,
            reservations,
        }
    }

    /// The nodes that need a host now or will need one, and what is reserved already.
    fn placement_requests(&self, names: &BTreeSet<NodeName>) -> PlacementRequests {
        let mut requests = PlacementRequests::default();
        for name in names {
            let node = self.nodes.node(name);
            let record = self.record_for(name);
            let Some(record @ Record::Episode(episode)) = &record else {
                continue;
            };
            let reserves = node.is_none_or(|node| self.may_reserve(node, episode));
            if let Some(host) = self.reserved_host(episode) {
                if !reserves {
                    continue;
                }
                requests
                    .reservations
                    .extend(self.reservation(name, episode, host));
                continue;
            }
            let Some(vm) = self.bound_vm(name) else { continue };
            let request = self.due_request(name, node, record);
            let wanted = self.wanted(vm, request.as_ref(), Some(episode));
            let placement = wanted.map(|wanted| PlacementRequest {
                since: episode.trigger.clicked_at,
                node: name.clone(),
                wanted: VmRequirements {
                    home_only: episode.refusals.len() >= MAX_REFUSALS
                        || node.map_or(episode.waits_for_home, |_| self.waits_for_home(name)),
                    ..wanted
                },
                refused: refused_hosts(episode),
            });
            let relocates = |request: &Request| matches!(request.action, RequestAction::Relocate { .. });
            let phase = episode.phase.at_work();
            let is_leaving = self.host_state(vm.host.as_ref()).is_leaving();
            if *phase == Phase::AwaitingHost {
                requests.waiting.extend(placement.filter(|_| reserves));
            } else if matches!(phase, Phase::Queued | Phase::Draining)
                && (is_leaving || request.as_ref().is_some_and(relocates))
            {
                requests.previews.extend(placement);
            }
        }
        requests
    }

    /// Whether the episode of a node keeps hosts from others. Where nothing is done for it, only a copy shows that Haulout wrote it: a
    /// relocation of a node that a person has paused may still run.
    fn may_reserve(&self, node: &NodeFacts, episode: &Episode) -> bool {
        let vm = self.vm_of(&node.name);
        let is_another = vm.found().is_some_and(|vm| is_replaced(episode, vm).is_some());
        self.is_believed(node, episode) || (self.has_own_copy_of(&node.name, episode) && !is_another)
    }

    /// The host that is reserved for the VM of an episode: while the VM is relocated to it, and until the node is back.
    fn reserved_host(&self, episode: &Episode) -> Option<HostRef> {
        let is_coming_back = episode.phase.at_work().kind().is_coming_back();
        let moved_to = episode.moved_to.as_ref().filter(|_| is_coming_back);
        episode.phase.target().or(moved_to)?.moref.clone()
    }

    /// The reservation of a relocation that is running or has just ended. The VM is known from the record, also while the node is
    /// not bound.
    fn reservation(&self, name: &NodeName, episode: &Episode, host: HostRef) -> Option<Reservation> {
        let vm = match (self.bound_vm(name), &episode.vm) {
            (Some(vm), _) => Some(vm),
            (None, Some(moref)) => self.vcenter.vm(moref),
            (None, None) => None,
        }?;
        let reserved = ReservedVm {
            vm: vm.moref.clone(),
            needs: self.needs(vm, Some(episode)),
            vgpus: vgpus(vm),
            memory_mib: reserved_memory(vm).unwrap_or_default(),
        };
        Some((host, reserved))
    }

    /// What a VM needs of a host. A VM that is on none is placed in the cluster of its own host.
    pub(super) fn wanted(
        &self,
        vm: &Vm,
        request: Option<&Request>,
        episode: Option<&Episode>,
    ) -> Option<VmRequirements> {
        let from = vm.host.clone();
        let home = episode.map_or_else(|| from.clone(), |episode| episode.host.moref.clone());
        let registered_on = from.as_ref().or(home.as_ref())?;
        let compute = self.vcenter.cluster_of(registered_on).cloned();
        Some(VmRequirements {
            vm: vm.moref.clone(),
            build: self.vcenter.host(registered_on).and_then(|host| host.build),
            home,
            home_only: false,
            from,
            compute: compute.clone(),
            datastores: vm.datastores.clone(),
            datastore_states: vm.datastore_states.clone(),
            networks: vm.networks.clone(),
            memory_mib: reserved_memory(vm),
            hardware_version: vm.hardware_version.clone(),
            rules: self.vcenter.rules_of(compute.as_ref()),
            devices: self.wanted_devices(vm, episode),
            sriov: sriov_cards(vm),
            vgpus: vgpus(vm),
            only: request.and_then(|request| match &request.action {
                RequestAction::Relocate { to } => to.clone(),
                RequestAction::Drain | RequestAction::PowerOff | RequestAction::Reboot => None,
            }),
        })
    }

    /// The hosts of the cluster of a VM, with the reservations of others.
    pub(super) fn hosts_for<'a>(
        &self,
        wanted: &VmRequirements,
        reservations: &[Reservation],
        views: &'a mut HostsView,
    ) -> &'a [HostView] {
        let Some(compute) = &wanted.compute else {
            return &[];
        };
        let hosts = views
            .entry(compute.clone())
            .or_insert_with(|| self.hosts_of(compute));
        for host in hosts.iter_mut() {
            let reading = host.reading.as_ref();
            let has_claim = |vm: &VmRef| {
                let mut claims = reading.iter().flat_map(|reading| reading.claims());
                claims.any(|claim| claim.vm == *vm)
            };
            let runs = |vm: &VmRef| reading.is_some_and(|reading| reading.runs(vm));
            let on_host = reservations.iter().filter(|(on, _)| *on == host.moref);
            let of_others = on_host.map(|(_, it)| it).filter(|it| it.vm != wanted.vm);
            let reserved = of_others.cloned().map(|mut it| {
                // The survey already includes the devices of a VM that is there.
                if has_claim(&it.vm) {
                    it.needs.clear();
                    it.vgpus.clear();
                }
                if runs(&it.vm) {
                    it.memory_mib = 0;
                }
                it
            });
            host.reserved = reserved.collect();
        }
        hosts
    }

    /// The hosts of a cluster, without reservations.
    fn hosts_of(&self, compute: &ComputeRef) -> Vec<HostView> {
        let hosts = self.vcenter.hosts();
        hosts
            .filter(|host| host.compute.as_ref() == Some(compute))
            .map(|host| HostView {
                moref: host.moref.clone(),
                name: host.name.clone().unwrap_or_else(|| host.moref.to_string()),
                compute: host.compute.clone(),
                state: self.host_state(Some(&host.moref)),
                build: host.build,
                is_maintained: self.vcenter.is_maintained(&host.moref),
                datastores: host.datastores.clone(),
                devices: host.passthrough.clone(),
                sriov: host.sriov.clone(),
                reserved: Vec::new(),
                reading: self.vcenter.survey(&host.moref).cloned(),
            })
            .collect()
    }
}

/// The hosts that refused the VM in this episode, except its own.
fn refused_hosts(episode: &Episode) -> Vec<(HostRef, String)> {
    let home = episode.host.moref.as_ref();
    let refusals = episode.refusals.iter().filter(|it| Some(&it.host) != home);
    refusals.map(|it| (it.host.clone(), it.message.clone())).collect()
}

/// The memory that a VM reserves at power-on; `None` if it is unknown. Without a passthrough device that is its own setting, which is
/// not read.
fn reserved_memory(vm: &Vm) -> Option<u64> {
    let has_device = vm.passthrough.as_ref().is_some_and(|devices| !devices.is_empty());
    vm.memory_mib.filter(|_| has_device)
}

#[cfg(test)]
mod tests;
