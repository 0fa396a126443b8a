//! The whole picture of one node, put together.

use jiff::Timestamp;

use super::Inventory;
use crate::cluster::update::Node;
use crate::ids::NodeName;
use crate::keys::FIELD_MANAGER;
use crate::maintenance::episode::{Phase, PythonState, Record};
use crate::maintenance::observed::{
    Admission, CordonedBy, Hearing, HostState, Lead, NodeSeen, Observed, PowerSeen, Sight, VmFacts, VmSeen,
};
use crate::maintenance::placement::Offer;
use crate::maintenance::record::{Annotations, read};
use crate::vsphere::update::Vm;

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
        let paper = self.local.get(&node.name).and_then(|local| local.paper.record());
        paper.cloned().unwrap_or_else(|| record_of(node))
    }

    /// The VM of `node`, where it is exactly one.
    pub(super) fn bound_vm(&self, node: &Node) -> Option<&Vm> {
        match self.vm_of(node) {
            VmSeen::Found(facts) => self.vms.get(&facts.moref),
            VmSeen::NotLookedUp | VmSeen::Missing | VmSeen::Ambiguous(_) | VmSeen::Shared(_) => None,
        }
    }

    /// Since when `node` wants a place under the limits, if it does: when the maintenance of its host was asked for.
    pub(super) fn applies_since(&self, node: &Node, record: &Record) -> Option<Timestamp> {
        let vm = self.vm_with_paper(node);
        let VmSeen::Found(VmFacts {
            host,
            power: PowerSeen::On,
            ..
        }) = &vm
        else {
            return None;
        };
        if !host.is_leaving() {
            return None;
        }
        match record {
            Record::InService => Some(clicked_at(host)),
            Record::Episode(episode) => match episode.phase.at_work() {
                Phase::Queued => Some(episode.trigger.clicked_at),
                Phase::Rejoining => Some(clicked_at(host)),
                Phase::Draining
                | Phase::ShuttingDown(_)
                | Phase::Relocating { .. }
                | Phase::AwaitingHost
                | Phase::PoweringOn { .. }
                | Phase::Parked { .. } => None,
            },
            Record::Python(_) | Record::Unreadable { .. } => None,
        }
    }

    pub(super) fn sight(&self, name: &NodeName, offer: Offer) -> Option<Sight> {
        let hearing = match (&self.vcenter.silent, &self.kubernetes.silent) {
            (None, None) => Hearing::Both,
            (Some(why), _) => Hearing::NoVcenter { why: why.clone() },
            (None, Some(why)) => Hearing::NoKubernetes { why: why.clone() },
        };
        let local = self.local.get(name);
        let Some(node) = self.nodes.get(name) else {
            let record = local.and_then(|local| local.record_of_gone.clone())?;
            return Some(Sight {
                record,
                seen: gone(hearing, self.process_began, self.lead),
            });
        };
        let record = self.record(node);
        let mut vm = self.vm_of(node);
        let target = match record.phase().map(Phase::at_work) {
            Some(Phase::Relocating { to }) => self.host_state(to.moref.as_ref()),
            // Its power is cut next: of the one VM that answers at this time, not of the one that answered once.
            Some(Phase::ShuttingDown(_)) => {
                if matches!(vm, VmSeen::Found(_)) && !self.is_surely(node) {
                    vm = VmSeen::NotLookedUp;
                }
                HostState::Unknown
            }
            Some(
                Phase::Queued
                | Phase::Draining
                | Phase::AwaitingHost
                | Phase::PoweringOn { .. }
                | Phase::Rejoining
                | Phase::Parked { .. },
            )
            | None => HostState::Unknown,
        };
        let admission = self.ledger.admission(name, self.limits());
        let mut seen = Observed {
            process_began: self.process_began,
            lead: self.lead,
            hearing,
            node: Some(node_seen(node)),
            vm,
            behind: self.root_ahead(&admission),
            admission,
            drain: local.and_then(|local| local.drain.clone()),
            pods_revision: local.map_or(0, |local| local.pods_revision),
            attempts: local.map(|local| local.attempts.clone()).unwrap_or_default(),
            offer,
            target,
        };
        if let Some(local) = local {
            local.paper.overlay(&mut seen, |host| self.host_state(Some(host)));
        }
        Some(Sight { record, seen })
    }

    /// The traceparent of the first episode among those ahead.
    fn root_ahead(&self, admission: &Admission) -> Option<String> {
        match admission {
            Admission::Granted => None,
            Admission::Behind { ahead, .. } => ahead.iter().find_map(|name| {
                let record = self.record(self.nodes.get(name)?);
                record.episode().map(|episode| episode.traceparent.clone())
            }),
        }
    }

    fn vm_with_paper(&self, node: &Node) -> VmSeen {
        let mut vm = self.vm_of(node);
        if let (VmSeen::Found(facts), Some(local)) = (&mut vm, self.local.get(&node.name)) {
            local.paper.overlay_vm(facts, |host| self.host_state(Some(host)));
        }
        vm
    }
}

/// When the maintenance of a leaving host was asked for. A host that is in maintenance already was asked for earlier
/// than anybody can tell, and none of its VMs can run: it comes last.
fn clicked_at(host: &HostState) -> Timestamp {
    match host {
        HostState::Entering { clicked_at, .. } => *clicked_at,
        HostState::Unknown
        | HostState::Unreachable
        | HostState::InMaintenance
        | HostState::Quarantined
        | HostState::InService => Timestamp::MAX,
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
        ready: node.ready.is_true,
        heartbeat: node.ready.heartbeat,
        boot_id: node.boot_id.clone(),
        gpus: node.gpus.clone(),
    }
}

/// What is known of a Node that was deleted in mid-episode.
fn gone(hearing: Hearing, process_began: Timestamp, lead: Lead) -> Observed {
    Observed {
        process_began,
        lead,
        hearing,
        node: None,
        vm: VmSeen::NotLookedUp,
        admission: Admission::Granted,
        behind: None,
        drain: None,
        pods_revision: 0,
        attempts: std::collections::BTreeMap::new(),
        offer: Offer::default(),
        target: HostState::Unknown,
    }
}
