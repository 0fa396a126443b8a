//! Which snapshots a fact can change, so that only those are built. The rebuild once a minute ([`super::schedule`]) detects and
//! repairs mistakes.

use std::collections::BTreeSet;

use super::{Fact, Inventory};
use crate::facts::kubernetes::{
    KubernetesUpdate, NodeFacts, NodeMaintenanceRole, NodeMaintenanceUpdate, ReadyCondition,
};
use crate::facts::vsphere::VsphereUpdate;
use crate::ids::{HostRef, NodeName};
use crate::maintenance::effect::EffectKind;
use crate::maintenance::effect_report::EffectResult;
use crate::maintenance::episode::Record;

/// The snapshots to be built.
#[derive(Clone, Debug)]
pub(super) enum Dirty {
    All,
    /// Those of these nodes, and of all active ones.
    WithActive(BTreeSet<NodeName>),
    /// Those of these nodes: no slot and no offer changes.
    Only(BTreeSet<NodeName>),
}

impl Inventory {
    /// The snapshots that a fact can change. Three facts arrive so often that they must be cheap: heartbeats of kubelets, changes of
    /// hosts without a VM of ours, and progress of drains.
    ///
    /// Active nodes compete for slots and hosts, so most facts concern all of them.
    pub(super) fn dirty_by(&self, fact: &Fact) -> Option<Dirty> {
        match fact {
            Fact::Vsphere(update) => self.dirty_by_vsphere(update),
            Fact::Kubernetes(update) => self.dirty_by_kubernetes(update),
            Fact::Effect(report) => match report.found {
                // Evictions are only displayed.
                EffectResult::Evictions(_) => None,
                EffectResult::Drain(_)
                | EffectResult::MachineGuarded(_)
                | EffectResult::Volumes(_)
                | EffectResult::Tried {
                    kind: EffectKind::DrainRound | EffectKind::ListVolumes,
                    ..
                } => Some(Dirty::only(&report.node)),
                EffectResult::Tried { .. }
                | EffectResult::Surveyed { .. }
                | EffectResult::DryRunRecord { .. }
                | EffectResult::DryRunEffect(_) => Some(Dirty::with_active(&report.node)),
            },
            Fact::Leadership(_) => Some(Dirty::All),
        }
    }

    fn dirty_by_vsphere(&self, update: &VsphereUpdate) -> Option<Dirty> {
        match update {
            VsphereUpdate::Host(host) => match self.hosts.get(&host.moref) {
                Some(known) if known == host => None,
                // Only active nodes look for a host.
                Some(_) | None => {
                    let ours = self.nodes_on(&host.moref);
                    (!ours.is_empty() || !self.all_idle).then_some(Dirty::WithActive(ours))
                }
            },
            VsphereUpdate::Vm(vm) => match self.vms.get(&vm.moref) {
                Some(known) if known == vm => None,
                Some(known) if known.template == vm.template => {
                    Some(Dirty::WithActive(self.nodes_of(&vm.moref).cloned().collect()))
                }
                // A template is never bound, so the node may be bound to another VM now.
                Some(_) | None => Some(Dirty::All),
            },
            VsphereUpdate::Task(task) => {
                let nodes = task.vm.iter().flat_map(|vm| self.nodes_of(vm));
                Some(Dirty::WithActive(nodes.cloned().collect()))
            }
            // A node that waits for a task is active.
            VsphereUpdate::TaskGone(_) => Some(Dirty::WithActive(BTreeSet::new())),
            // The same result again matters only to nodes that wait for a current lookup, and they are active.
            VsphereUpdate::Found { key, vms } if self.lookup_answers.get(key) == Some(vms) => {
                Some(Dirty::WithActive(BTreeSet::new()))
            }
            VsphereUpdate::EvacuationPolicies { vms } => {
                (*vms != self.evacuated_by_policy).then_some(Dirty::All)
            }
            VsphereUpdate::Settled => self.vcenter.disconnected.is_some().then_some(Dirty::All),
            VsphereUpdate::Reset
            | VsphereUpdate::HostGone(_)
            | VsphereUpdate::Compute(_)
            | VsphereUpdate::ComputeGone(_)
            | VsphereUpdate::VmGone(_)
            | VsphereUpdate::Found { .. }
            | VsphereUpdate::OutOfScope { .. }
            | VsphereUpdate::Lost { .. } => Some(Dirty::All),
        }
    }

    fn dirty_by_kubernetes(&self, update: &KubernetesUpdate) -> Option<Dirty> {
        match update {
            // A Node whose label is back can begin an episode again, also if nothing else about it changed.
            KubernetesUpdate::Node(node) if self.followed.contains(&node.name) => Some(Dirty::All),
            KubernetesUpdate::Node(node)
            | KubernetesUpdate::Answered(node)
            | KubernetesUpdate::ReadAgain { node, .. }
            | KubernetesUpdate::Followed(node)
            | KubernetesUpdate::FollowedListed(node) => {
                let Some(known) = self.nodes.get(&node.name) else {
                    return Some(Dirty::All);
                };
                if is_heartbeat(known, node) {
                    let is_active = self.active.contains(&node.name);
                    return is_active.then(|| Dirty::only(&node.name));
                }
                // A change of keys concerns all nodes that claim the same VM.
                let is_same_machine = known.uid == node.uid && self.keys(known) == self.keys(node);
                Some(if is_same_machine {
                    let mut nodes = self.nodes_of_same_vm(node);
                    nodes.insert(node.name.clone());
                    Dirty::WithActive(nodes)
                } else {
                    Dirty::All
                })
            }
            KubernetesUpdate::PodsChanged(node) => Some(Dirty::only(node)),
            KubernetesUpdate::Devices { node, slices } => {
                let is_change = self.nodes.contains_key(node) && *self.device_slices.of(node) != **slices;
                // A limit may count the GPUs.
                is_change.then(|| Dirty::with_active(node))
            }
            KubernetesUpdate::Maintenances(
                NodeMaintenanceUpdate::Seen(seen) | NodeMaintenanceUpdate::Answered(seen),
            ) => {
                let state = self.node_states.get(&seen.node);
                let has_record = state.is_some_and(|state| matches!(state.on_node, Some(Record::Episode(_))));
                let is_copy = matches!(seen.role, NodeMaintenanceRole::Episode { .. });
                // The record on the Node takes precedence over the copy.
                Some(if has_record && is_copy {
                    Dirty::only(&seen.node)
                } else {
                    Dirty::All
                })
            }
            // A node that is being drained is active.
            KubernetesUpdate::Budget { .. } | KubernetesUpdate::Scanned { .. } => {
                Some(Dirty::WithActive(BTreeSet::new()))
            }
            KubernetesUpdate::Reset
            | KubernetesUpdate::NodeGone { .. }
            | KubernetesUpdate::FollowedGone { .. }
            | KubernetesUpdate::FollowedAbsent { .. }
            | KubernetesUpdate::Settled
            | KubernetesUpdate::Maintenances(_)
            | KubernetesUpdate::DevicesListed
            | KubernetesUpdate::ForeignMaintenances(..)
            | KubernetesUpdate::Lost { .. } => Some(Dirty::All),
        }
    }

    /// The nodes whose VM runs on `host`.
    pub(super) fn nodes_on(&self, host: &HostRef) -> BTreeSet<NodeName> {
        let vms = self.vms.values().filter(|vm| vm.host.as_ref() == Some(host));
        vms.flat_map(|vm| self.nodes_of(&vm.moref)).cloned().collect()
    }

    /// The nodes that match a VM that `node` matches. Each depends on whether the others are Ready.
    fn nodes_of_same_vm(&self, node: &NodeFacts) -> BTreeSet<NodeName> {
        let keys = self.keys(node);
        let vms = keys
            .iter()
            .filter_map(|key| self.lookup_answers.get(key))
            .flatten();
        vms.flat_map(|vm| self.nodes_of(vm)).cloned().collect()
    }

    /// The nodes whose snapshots are to be built.
    pub(super) fn dirty_nodes(&self) -> BTreeSet<NodeName> {
        match &self.dirty {
            None => self.active.clone(),
            Some(Dirty::All) => self.names(),
            Some(Dirty::WithActive(nodes)) => nodes.union(&self.active).cloned().collect(),
            Some(Dirty::Only(nodes)) => nodes.clone(),
        }
    }
}

impl Dirty {
    fn only(node: &NodeName) -> Self {
        Self::Only(BTreeSet::from([node.clone()]))
    }

    fn with_active(node: &NodeName) -> Self {
        Self::WithActive(BTreeSet::from([node.clone()]))
    }

    /// The union of both.
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::All, _) | (_, Self::All) => Self::All,
            (Self::Only(mut nodes), Self::Only(more)) => {
                nodes.extend(more);
                Self::Only(nodes)
            }
            (
                Self::WithActive(mut nodes) | Self::Only(mut nodes),
                Self::WithActive(more) | Self::Only(more),
            ) => {
                nodes.extend(more);
                Self::WithActive(nodes)
            }
        }
    }
}

/// Whether a Node differs only in what each heartbeat of its kubelet changes.
fn is_heartbeat(known: &NodeFacts, node: &NodeFacts) -> bool {
    let ready = ReadyCondition {
        heartbeat: known.ready.heartbeat,
        ..node.ready
    };
    let heartbeat = NodeFacts {
        resource_version: known.resource_version,
        ready,
        ..node.clone()
    };
    *known == heartbeat
}
