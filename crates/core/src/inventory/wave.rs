//! Forecasts of the maintenance of several hosts at once: in which rounds, and how many hosts can leave.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;

use super::Inventory;
use super::forecast::Forecast;
use super::placement::{HostsView, Reservation};
use crate::ids::{ComputeRef, HostRef, NodeName, TaskRef};
use crate::maintenance::admission::{AdmissionRound, QueuedNode};
use crate::maintenance::decide::wants_place;
use crate::maintenance::episode::Detection;
use crate::maintenance::observed::{BoundVm, HostState, ObservedVm, Strategy};

/// The rounds of the nodes of one limit group. Each group has its own limits, so groups do not wait for each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaveGroup {
    pub group: Option<String>,
    /// The rounds, as far as nodes of the wave are in them.
    pub rounds: Vec<AdmissionRound>,
    /// The nodes that no round admits.
    pub left: Vec<NodeName>,
}

/// How many hosts can leave at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostsThatCanLeave {
    /// The hosts whose VMs all find a place on hosts that stay.
    pub hosts: usize,
    /// The hosts in service that have VMs of nodes.
    pub of: usize,
}

impl Forecast {
    /// The host that its VM moves to when its own host leaves: of those that can take it, unless the node waits for its own host.
    pub fn finds_host(&self) -> Option<&str> {
        let waits = self
            .seen
            .as_ref()
            .is_some_and(|node| node.overrides.strategy == Strategy::Wait);
        let (_, host) = self.offer.as_ref().filter(|_| !waits)?.fits.as_ref()?;
        Some(host)
    }
}

impl Inventory {
    /// The rounds in which the nodes of `forecasts` are taken out of service if the maintenance of their hosts begins now, in the
    /// order of the forecasts. Nodes that are in the queue already keep their turn.
    pub fn wave(&self, forecasts: &[Forecast]) -> Vec<WaveGroup> {
        let ours: BTreeSet<&NodeName> = forecasts.iter().map(|it| &it.node).collect();
        let movers: BTreeSet<NodeName> = forecasts
            .iter()
            .filter(|it| it.finds_host().is_some())
            .map(|it| it.node.clone())
            .collect();
        let mut groups: BTreeMap<Option<String>, Vec<(usize, &Forecast)>> = BTreeMap::new();
        for (index, forecast) in forecasts.iter().enumerate() {
            let group = self.nodes.node(&forecast.node);
            let group = group.and_then(|node| node.limit_group.clone());
            groups.entry(group).or_default().push((index, forecast));
        }
        let rounds_of = |(group, members): (Option<String>, Vec<(usize, &Forecast)>)| {
            let mut queue = self.admission_queues.get(&group).cloned().unwrap_or_default();
            for (index, forecast) in members {
                queue.queued.extend(self.queued_in_wave(forecast, index));
                // A request may ask for no more than a drain; the maintenance of its host asks for more.
                if !queue.draining.contains(&forecast.node) {
                    queue.drain_only.remove(&forecast.node);
                }
            }
            self.count_gpus(&mut queue);
            let (mut rounds, mut left) = queue.rounds(self.limits(group.as_deref()), &movers);
            for round in &mut rounds {
                round.nodes.retain(|name| ours.contains(name));
                round.away.retain(|name| ours.contains(name));
            }
            rounds.retain(|round| !round.nodes.is_empty());
            left.retain(|name| ours.contains(name));
            WaveGroup { group, rounds, left }
        };
        groups.into_iter().map(rounds_of).collect()
    }

    /// The place in the queue of a node whose host is the `index`th to enter maintenance, if the node then needs a slot and has no
    /// place yet: also one that is away already and has to leave again. An approval is taken for given.
    fn queued_in_wave(&self, forecast: &Forecast, index: usize) -> Option<QueuedNode> {
        let name = &forecast.node;
        let (queue, _) = self.queue_of(name);
        let is_queued = queue.queued.iter().any(|it| it.node == *name);
        let BoundVm::Found(vm) = &forecast.vm else {
            return None;
        };
        if is_queued {
            return None;
        }
        let index = i64::try_from(index).unwrap_or(i64::MAX);
        let clicked_at = self
            .now
            .wall
            .saturating_add(SignedDuration::from_millis(index))
            .unwrap_or(self.now.wall);
        let vm = ObservedVm {
            host: HostState::Entering {
                task: TaskRef::new("wave"),
                clicked_at,
                user: None,
                detection: Detection::Pushed,
            },
            ..vm.clone()
        };
        let node = self.nodes.node(name);
        let request = self.due_request(name, node, &forecast.record);
        let clicked_at = wants_place(
            &forecast.record,
            forecast.seen.as_ref()?,
            &vm,
            request.as_ref(),
            false,
        )?;
        Some(QueuedNode {
            clicked_at,
            node: name.clone(),
        })
    }

    /// How many of the hosts with VMs of ours can enter maintenance at the same time, so that each VM finds a place on a host that
    /// stays. Hosts with fewer VMs are tried first, and each VM takes the host that placement prefers, so there may be a choice of
    /// more hosts than this finds.
    pub fn hosts_that_can_leave(&self) -> HostsThatCanLeave {
        let names = self.names();
        let mut nodes: BTreeMap<HostRef, Vec<NodeName>> = BTreeMap::new();
        for name in &names {
            if let BoundVm::Found(vm) = self.vm_of(name)
                && let Some(host) = vm.host_ref.filter(|_| vm.host.is_out() && !vm.is_left_to_vcenter)
            {
                nodes.entry(host).or_default().push(name.clone());
            }
        }
        let of = nodes.len();
        let mut hosts: Vec<(HostRef, Vec<NodeName>)> = nodes.into_iter().collect();
        hosts.sort_by_key(|(host, nodes)| (nodes.len(), host.clone()));
        // VMs never leave their cluster.
        let mut reservations: BTreeMap<Option<ComputeRef>, Vec<Reservation>> = BTreeMap::new();
        for (host, reserved) in self.placed(&names).reservations {
            let compute = self.vcenter.cluster_of(&host).cloned();
            reservations.entry(compute).or_default().push((host, reserved));
        }
        let mut views = HostsView::new();
        let mut leaving: BTreeSet<HostRef> = BTreeSet::new();
        for (host, nodes) in hosts {
            let reserved = reservations
                .entry(self.vcenter.cluster_of(&host).cloned())
                .or_default();
            if reserved.iter().any(|(on, _)| *on == host) {
                continue;
            }
            let before = reserved.len();
            leaving.insert(host.clone());
            let all_fit = nodes.iter().all(|name| {
                !self.waits_for_home(name)
                    && self
                        .offer_to(name, &leaving, reserved, &mut views)
                        .is_some_and(|offer| offer.fits.is_some())
            });
            if !all_fit {
                leaving.remove(&host);
                reserved.truncate(before);
            }
        }
        HostsThatCanLeave {
            hosts: leaving.len(),
            of,
        }
    }
}
