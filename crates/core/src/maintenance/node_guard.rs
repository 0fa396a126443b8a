//! Guards on the Node: what an episode sets there so that the scheduler and other controllers leave the node alone.
//!
//! A guard is set in the PATCH that cordons the Node, and removed in a later one with the record, so that no crash comes between
//! the record and the guard. Pure.

use std::collections::BTreeSet;

use super::episode::{Episode, Phase, Record};
use super::observed::ObservedNode;
use super::policy::{GuardPolicy, MaintenanceTaint};
pub use crate::facts::node_guard::{FoundGuards, GuardField, GuardState, NodeGuard};

/// The guards that one PATCH sets and removes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardChanges {
    pub set: BTreeSet<NodeGuard>,
    pub remove: BTreeSet<NodeGuard>,
}

/// Whether `episode` needs `guard` by these settings.
///
/// The maintenance taint goes when the VM is on again: the DaemonSet controller creates no pod on a Node with a taint that the pod
/// does not tolerate, and a device plugin that has to be created again would never report the GPUs.
pub(super) fn is_wanted(guard: NodeGuard, episode: &Episode, policy: &GuardPolicy) -> bool {
    let phase = episode.phase.at_work();
    let is_queued = *phase == Phase::Queued;
    match guard {
        NodeGuard::MaintenanceTaint => match policy.maintenance_taint {
            MaintenanceTaint::Off => false,
            MaintenanceTaint::UntilPowerOn => !is_queued && *phase != Phase::Rejoining,
            MaintenanceTaint::UntilBack => !is_queued,
        },
        NodeGuard::OutOfServiceTaint => policy.out_of_service_taint && is_out_of_service(episode),
        NodeGuard::QueuedTaint => is_queued && policy.enabled.contains(&guard),
        NodeGuard::ClusterAutoscaler | NodeGuard::Medik8s | NodeGuard::Nvsentinel | NodeGuard::Gardener => {
            !is_queued && policy.enabled.contains(&guard)
        }
    }
}

/// Whether the VM is known to be off and not about to be powered on, with pods or volumes left behind. A parked episode may be about a
/// VM that somebody has powered on.
fn is_out_of_service(episode: &Episode) -> bool {
    let has_left_volumes = episode
        .volumes
        .as_ref()
        .is_some_and(|volumes| !volumes.left.is_empty());
    let is_off = episode.phase.kind().is_waiting_for_host() && !episode.power_on_due;
    is_off && (has_left_volumes || !episode.left_behind.is_empty())
}

impl GuardChanges {
    /// Each guard that changes, and whether it is set.
    pub fn all(&self) -> impl Iterator<Item = (NodeGuard, bool)> {
        let set = self.set.iter().map(|guard| (*guard, true));
        set.chain(self.remove.iter().map(|guard| (*guard, false)))
    }

    /// The changes of the PATCH that replaces `before` by `after`.
    pub fn of(before: &Record, after: &Record, node: &ObservedNode) -> Self {
        let kept = after.episode().map(|episode| &episode.guards);
        let is_kept = |guard: &NodeGuard| kept.is_some_and(|kept| kept.contains(guard));
        let all = || NodeGuard::ALL.iter().copied();
        if after.episode().is_none() && before.episode().is_none() {
            return Self::default();
        }
        let owned = owned(before.episode(), node);
        Self {
            set: all()
                .filter(|guard| is_kept(guard) && !node.guards.contains_key(guard))
                .collect(),
            remove: owned.into_iter().filter(|guard| !is_kept(guard)).collect(),
        }
    }
}

/// Whether `node` has an out-of-service taint that `episode` has set.
pub(super) fn has_out_of_service_taint(episode: &Episode, node: &ObservedNode) -> bool {
    owned(Some(episode), node).contains(&NodeGuard::OutOfServiceTaint)
}

/// The guards on `node` that `episode` has set. One that somebody changed or that somebody else had set is not removed.
fn owned(episode: Option<&Episode>, node: &ObservedNode) -> BTreeSet<NodeGuard> {
    let of_record = episode.filter(|episode| episode.node_uid == node.uid);
    let is_recorded = |guard: &NodeGuard| of_record.is_some_and(|episode| episode.guards.contains(guard));
    let is_set = |(guard, state): (&NodeGuard, &GuardState)| {
        let is_ours = match state {
            GuardState::Ours => true,
            GuardState::Set => guard.is_own() || is_recorded(guard),
            GuardState::Other | GuardState::NotNeeded => false,
        };
        is_ours.then_some(*guard)
    };
    node.guards.iter().filter_map(is_set).collect()
}

/// The guards that an episode owns once `after` is written in place of `before`: those it needs and that are absent on the Node or
/// its own.
pub(super) fn guards_after(
    before: &Record,
    after: &Episode,
    node: &ObservedNode,
    policy: &GuardPolicy,
) -> BTreeSet<NodeGuard> {
    let owned = owned(before.episode(), node);
    NodeGuard::ALL
        .iter()
        .copied()
        .filter(|guard| is_wanted(*guard, after, policy))
        .filter(|guard| owned.contains(guard) || !node.guards.contains_key(guard))
        .collect()
}

#[cfg(test)]
mod tests;
