//! The whole picture of one node, put together.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::Inventory;
use crate::cluster::update::Node;
use crate::ids::{EpisodeId, NodeName, VmRef};
use crate::keys::FIELD_MANAGER;
use crate::maintenance::decide::wants_place;
use crate::maintenance::episode::{Phase, PythonState, Record};
use crate::maintenance::observed::{
    Admission, CordonedBy, Hearing, HostState, NodeSeen, Observed, PowerSeen, Sight, Strategy, VmFacts,
    VmSeen, Wishes,
};
use crate::maintenance::placement::Offer;
use crate::maintenance::record::{self, Annotations, read};
use crate::maintenance::trail::Origin;
use crate::vsphere::update::{Power, Vm};

/// How long after an episode's end a power-off of ours is taken for its last: far longer than a request can be on its way,
/// and about as long as vCenter keeps a task among a VM's recent ones.
const STRAY: SignedDuration = SignedDuration::from_mins(10);

/// What stands on `node`.
pub fn record_of(node: &Node) -> Record {
    let marks = node.marks.clone();
    read(&Annotations {
        state: marks.state,
        host: marks.host,
        migrated_to_host: marks.migrated_to_host,
        transition_time: marks.transition_time,
        episode: marks.episode,
    })
}

/// Whether a record takes a place under `MAX_CONCURRENT_DRAINS`, and under `MAX_UNAVAILABLE`.
pub(super) fn takes_places(record: &Record) -> (bool, bool) {
    match record {
        Record::InService => (false, false),
        Record::Python(python) => (python.state == PythonState::Draining, true),
        Record::Episode(episode) => (episode.phase.is_draining(), episode.phase.is_unavailable()),
        // Whoever wrote it may well have drained the node.
        Record::Unreadable { .. } => (false, true),
    }
}

impl Inventory {
    /// The record that counts: what stands on the Node, or in a dry run what would stand there.
    pub(super) fn record(&self, node: &Node) -> Record {
        let local = self.local.get(&node.name);
        let record = local.and_then(|local| local.paper.record().or(local.on_node.as_ref()));
        let record = record.cloned().unwrap_or_else(|| record_of(node));
        match record {
            Record::InService => self.left_by_another(node).unwrap_or(Record::InService),
            Record::Episode(_) | Record::Python(_) | Record::Unreadable { .. } => record,
        }
    }

    /// The episode of a Node that was deleted, where this one is the same machine registered again. One whose own Node has
    /// ended it is only a copy that has not heard of it yet.
    fn left_by_another(&self, node: &Node) -> Option<Record> {
        let copy = self.copy(&node.name)?;
        let VmSeen::Found(vm) = self.vm_of(&node.name) else {
            return None;
        };
        let is_same_machine = vm.uuid.is_some() && vm.uuid == copy.vm_uuid;
        (copy.node_uid != node.uid && is_same_machine).then(|| Record::Episode(Arc::clone(copy)))
    }

    /// The VM of a node, where it is exactly one.
    pub(super) fn bound_vm(&self, name: &NodeName) -> Option<&Vm> {
        match self.vm_of(name) {
            VmSeen::Found(facts) => self.vms.get(&facts.moref),
            VmSeen::NotLookedUp | VmSeen::Missing | VmSeen::Ambiguous(_) | VmSeen::Shared(_) => None,
        }
    }

    /// Since when `node` wants a place under the limits, if it does.
    pub(super) fn applies_since(&self, node: &Node, record: &Record) -> Option<Timestamp> {
        let VmSeen::Found(vm) = self.vm_with_paper(node) else {
            return None;
        };
        let request = self.request(&node.name, Some(node));
        let approval = self.rules.require_approval;
        wants_place(record, &node_seen(node), &vm, request.as_ref(), approval)
    }

    pub(super) fn sight(&self, name: &NodeName, offer: Offer) -> Option<Sight> {
        let local = self.local.get(name);
        let node = self.nodes.get(name);
        let record = match node {
            Some(node) => self.record(node),
            None => self.record_of_gone(name)?,
        };
        let mut vm = self.vm_of(name);
        let target = match record.phase().map(Phase::at_work) {
            Some(Phase::Relocating { to }) => self.host_state(to.moref.as_ref()),
            // Its power is cut next: of the one VM that answers at this time, not of the one that answered once.
            Some(Phase::ShuttingDown(_)) => {
                let is_sure = node.is_some_and(|node| self.is_surely(node));
                if matches!(vm, VmSeen::Found(_)) && !is_sure {
                    vm = VmSeen::NotLookedUp;
                }
                HostState::Unknown
            }
            Some(
                Phase::Queued
                | Phase::Draining
                | Phase::Drained
                | Phase::AwaitingHost
                | Phase::PoweringOn { .. }
                | Phase::Rejoining
                | Phase::Parked { .. },
            )
            | None => HostState::Unknown,
        };
        let stray_of = match (&record, &vm, node) {
            (Record::InService, VmSeen::Found(vm), Some(node)) if vm.power == PowerSeen::Off => {
                self.stray_of(node, &vm.moref)
            }
            (
                Record::InService | Record::Episode(_) | Record::Python(_) | Record::Unreadable { .. },
                _,
                _,
            ) => None,
        };
        let mut seen = Observed {
            stray_of,
            process_began: self.process_began,
            lead: self.lead,
            hearing: self.silent().unwrap_or(Hearing::Both),
            node: node.map(node_seen),
            has_copy: self
                .copy(name)
                .is_some_and(|copy| record.episode().is_some_and(|episode| episode.id == copy.id)),
            request: self.request(name, node),
            vm,
            behind: None,
            origin: Origin::default(),
            admission: Admission::Granted,
            drain: local.and_then(|local| local.drain.clone()),
            pods_revision: local.map_or(0, |local| local.pods_revision),
            are_budgets_heard: local
                .and_then(|local| local.drain.as_ref())
                .is_some_and(|report| self.hears_budgets(report)),
            attempts: local.map(|local| local.attempts.clone()).unwrap_or_default(),
            offer,
            target,
        };
        if let Some(local) = local {
            local.paper.overlay(&mut seen, |host| self.host_state(Some(host)));
        }
        let mut sight = Sight { record, seen };
        // What others do is shown to those alone on whom something can be decided: so one at rest stays as it was drawn.
        if !sight.is_at_rest() {
            let admission = self.ledger.admission(name, self.limits());
            sight.seen.behind = self.root_ahead(&admission);
            sight.seen.admission = admission;
            if let (VmSeen::Found(vm), None) = (&sight.seen.vm, sight.record.episode()) {
                sight.seen.origin = self.origin(vm);
            }
        }
        Some(sight)
    }

    /// The episode of `node` that had ended when a power-off of ours arrived, where that is why `vm` is off. What vCenter
    /// tells of the VM's latest change of power decides, so whoever switched it on or off since is respected; a guest
    /// that shut itself down leaves no task, but then a power-on is the latest, or a power-off from within the episode.
    fn stray_of(&self, node: &Node, vm: &VmRef) -> Option<EpisodeId> {
        let last = record::read_last(node.marks.last_episode.as_deref()?)?;
        let of_vm = self.tasks.values().filter(|task| task.vm.as_ref() == Some(vm));
        let latest = of_vm
            .filter(|task| task.made().is_some())
            .max_by_key(|task| task.queued_at)?;
        let is_stray = latest.made() == Some(Power::Off)
            && latest.by_us
            && latest.queued_at > last.episode.since
            && latest.queued_at.duration_since(last.at) <= STRAY;
        is_stray.then_some(last.episode.id)
    }

    /// What is told of an episode that begins with `vm` where it stands.
    fn origin(&self, vm: &VmFacts) -> Origin {
        let host = vm.on.as_ref();
        let compute = host.and_then(|host| self.hosts.get(host)?.compute.as_ref());
        Origin {
            cluster: compute.and_then(|compute| self.computes.get(compute)?.name.clone()),
            vm: self.vms.get(&vm.moref).and_then(|vm| vm.name.clone()),
            before: host.and_then(|host| Some(self.last_of.get(host)?.traceparent.to_string())),
        }
    }

    /// The traceparent of the first episode among those ahead.
    fn root_ahead(&self, admission: &Admission) -> Option<Arc<str>> {
        match admission {
            Admission::Granted => None,
            Admission::Behind { ahead, .. } => ahead.iter().find_map(|name| {
                let record = self.record(self.nodes.get(name)?);
                record.episode().map(|episode| episode.traceparent.clone())
            }),
        }
    }

    fn vm_with_paper(&self, node: &Node) -> VmSeen {
        let mut vm = self.vm_of(&node.name);
        if let (VmSeen::Found(facts), Some(local)) = (&mut vm, self.local.get(&node.name)) {
            local.paper.overlay_vm(facts, |host| self.host_state(Some(host)));
        }
        vm
    }
}

fn node_seen(node: &Node) -> NodeSeen {
    NodeSeen {
        uid: node.uid.clone(),
        resource_version: node.resource_version,
        unschedulable: node.unschedulable,
        cordoned_by: match node.cordoned_by.as_deref() {
            None => CordonedBy::Unknown,
            Some(FIELD_MANAGER) => CordonedBy::Haulout,
            Some(other) => CordonedBy::Other(other.to_owned()),
        },
        keep_cordoned: node.marks.keep_cordoned.as_deref() == Some("true"),
        wishes: Wishes {
            skip: node.marks.skip.as_deref() == Some("true"),
            approved: node.marks.approved.as_deref() == Some("true"),
            strategy: match node.marks.strategy.as_deref() {
                Some("wait") => Strategy::Wait,
                // A word that we do not know is no wish.
                Some(_) | None => Strategy::Migrate,
            },
        },
        ready: node.ready.is_true,
        heartbeat: node.ready.heartbeat,
        boot_id: node.boot_id.clone(),
        gpus: node.gpus.clone(),
    }
}
