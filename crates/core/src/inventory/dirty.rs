//! Which pictures a fact can change, so that only those are drawn anew.

use std::collections::BTreeSet;

use super::{Fact, Inventory};
use crate::facts::kubernetes;
use crate::facts::vsphere;
use crate::ids::{HostRef, NodeName, TaskRef};
use crate::maintenance::effect::EffectKind;
use crate::maintenance::effect_report::EffectResult;
use crate::maintenance::episode::Record;
use crate::maintenance::observed::{AttemptOutcome, EffectAttempt};

/// What has to be drawn anew.
#[derive(Debug)]
pub(super) enum Dirty {
    /// Every picture.
    All,
    /// Those of these nodes, and of whoever is awake.
    WithActive(BTreeSet<NodeName>),
    /// Those of these nodes. What came in is their own: it changes nobody's place in a queue or on a host.
    Only(BTreeSet<NodeName>),
}

impl Inventory {
    /// Which pictures a fact can change. A vCenter may have thousands of hosts that change all the time and carry nothing of
    /// ours: while no node is on its way out or back, they cost a look at where our VMs stand. One on its way may go to
    /// any of them. And a thousand kubelets say several times a second that they live, each of a node at rest in a Node
    /// that is another only by its version; what happens to the node next shows its latest.
    pub(super) fn dirty_by(&self, fact: &Fact) -> Option<Dirty> {
        let of = |node: &NodeName| Some(Dirty::WithActive(BTreeSet::from([node.clone()])));
        let only_of = |node: &NodeName| Some(Dirty::Only(BTreeSet::from([node.clone()])));
        match fact {
            Fact::Kubernetes(
                kubernetes::KubernetesUpdate::Node(node)
                | kubernetes::KubernetesUpdate::Answered(node)
                | kubernetes::KubernetesUpdate::Followed(node),
            ) => {
                let Some(known) = self.nodes.get(&node.name) else {
                    return Some(Dirty::All);
                };
                if is_later_only(known, node) {
                    let is_awake = self.active.contains(&node.name);
                    return is_awake.then(|| only_of(&node.name)).flatten();
                }
                // Who goes by the same keys is seen by those that share a VM.
                let is_same_machine = known.uid == node.uid && self.keys(known) == self.keys(node);
                if is_same_machine {
                    of(&node.name)
                } else {
                    Some(Dirty::All)
                }
            }
            Fact::Kubernetes(kubernetes::KubernetesUpdate::PodsChanged(node)) => only_of(node),
            Fact::Kubernetes(kubernetes::KubernetesUpdate::Maintenances(
                kubernetes::NodeMaintenanceUpdate::Seen(seen),
            )) if matches!(seen.role, kubernetes::NodeMaintenanceRole::Episode { .. }) => {
                let on_node = self
                    .node_states
                    .get(&seen.node)
                    .and_then(|local| local.on_node.as_ref());
                let before = self.maintenances.get(&seen.name).map(|before| &before.node);
                match on_node {
                    _ if before.is_some_and(|before| *before != seen.node) => Some(Dirty::All),
                    // The record on the Node counts; the copy only has to say the same.
                    Some(Record::Episode(_)) => only_of(&seen.node),
                    Some(Record::InService | Record::Python(_) | Record::Unreadable { .. }) => of(&seen.node),
                    None => Some(Dirty::All),
                }
            }
            Fact::Kubernetes(kubernetes::KubernetesUpdate::FollowedAbsent { name })
                if !self.followed.contains(name) =>
            {
                None
            }
            // It changes who is to be looked for, and no picture.
            Fact::Kubernetes(kubernetes::KubernetesUpdate::Scanned { stranded }) => {
                (self.unselected_episodes != *stranded).then(|| Dirty::WithActive(BTreeSet::new()))
            }
            // Whoever drains is awake.
            Fact::Kubernetes(kubernetes::KubernetesUpdate::Budget { .. }) => {
                Some(Dirty::WithActive(BTreeSet::new()))
            }
            Fact::Effect(report) => match report.found {
                // It is for those who look on.
                EffectResult::Evictions(_) => None,
                EffectResult::Drain(_)
                | EffectResult::Tried {
                    kind: EffectKind::DrainRound,
                    ..
                } => only_of(&report.node),
                EffectResult::Tried { .. }
                | EffectResult::Surveyed { .. }
                | EffectResult::DryRunRecord { .. }
                | EffectResult::DryRunEffect(_) => of(&report.node),
            },
            Fact::Vsphere(vsphere::VsphereUpdate::Host(host)) => {
                let known = self.hosts.get(&host.moref);
                if known == Some(host) {
                    return None;
                }
                let ours = self.nodes_on(&host.moref);
                if ours.is_empty() && self.all_idle {
                    return None;
                }
                let stays = known.is_some_and(|known| known.compute == host.compute);
                Some(if stays {
                    Dirty::WithActive(ours)
                } else {
                    Dirty::All
                })
            }
            // A template binds nobody; who stops being one, or begins to be, may bind others.
            Fact::Vsphere(vsphere::VsphereUpdate::Vm(vm)) => match self.vms.get(&vm.moref) {
                Some(known) if known == vm => None,
                Some(known) if known.template == vm.template => {
                    Some(Dirty::WithActive(self.nodes_of(&vm.moref).cloned().collect()))
                }
                Some(_) | None => Some(Dirty::All),
            },
            Fact::Vsphere(vsphere::VsphereUpdate::Task(task)) => {
                let of_vm = task.vm.iter().flat_map(|vm| self.nodes_of(vm));
                let ours = of_vm.chain(self.awaiting(&task.moref));
                Some(Dirty::WithActive(ours.cloned().collect()))
            }
            Fact::Vsphere(vsphere::VsphereUpdate::TaskGone(task)) => {
                Some(Dirty::WithActive(self.awaiting(task).cloned().collect()))
            }
            // The same answer, given anew: whoever asked may be sure of it.
            Fact::Vsphere(vsphere::VsphereUpdate::Found { key, vms })
                if self.lookup_answers.get(key) == Some(vms) =>
            {
                Some(Dirty::WithActive(
                    self.nodes_by_key.get(key).cloned().unwrap_or_default(),
                ))
            }
            Fact::Vsphere(vsphere::VsphereUpdate::Settled) => {
                self.vcenter.disconnected.is_some().then_some(Dirty::All)
            }
            Fact::Vsphere(_) | Fact::Kubernetes(_) | Fact::Leadership(_) => Some(Dirty::All),
        }
    }

    /// The nodes whose VM stands on `host`.
    fn nodes_on(&self, host: &HostRef) -> BTreeSet<NodeName> {
        let vms = self.vms.values().filter(|vm| vm.host.as_ref() == Some(host));
        vms.flat_map(|vm| self.nodes_of(&vm.moref)).cloned().collect()
    }

    /// The nodes for which a try of this process waits for `task`.
    fn awaiting<'a>(&'a self, task: &'a TaskRef) -> impl Iterator<Item = &'a NodeName> {
        let is_it = move |attempt: &EffectAttempt| match &attempt.outcome {
            AttemptOutcome::Running(running) => running == task,
            AttemptOutcome::Asked | AttemptOutcome::Done | AttemptOutcome::Refused(_) => false,
        };
        let locals = self.node_states.iter();
        locals.filter_map(move |(name, local)| local.attempts.values().any(is_it).then_some(name))
    }

    /// The nodes whose pictures may be other ones than were drawn last.
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
    /// Both of them.
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

/// Whether a Node shows nothing more than that its kubelet lives.
fn is_later_only(known: &kubernetes::NodeFacts, node: &kubernetes::NodeFacts) -> bool {
    let ready = kubernetes::ReadyCondition {
        heartbeat: known.ready.heartbeat,
        ..node.ready
    };
    let only_later = kubernetes::NodeFacts {
        resource_version: known.resource_version,
        ready,
        ..node.clone()
    };
    *known == only_later
}
