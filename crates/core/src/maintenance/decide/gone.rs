//! The Node of an episode was deleted, and possibly registered again.

use std::time::Duration;

use super::{
    Decision, Noted, cordoned, in_episode, is_replaced, is_to_be_taken_over, take_over, transition_to, wait,
};
use crate::maintenance::clock::{Elapsed, Now, Timer};
use crate::maintenance::effect::{Effect, EffectKind, PowerOnTarget};
use crate::maintenance::episode::{CordonOwner, Episode, Phase};
use crate::maintenance::observed::{
    CordonedBy, EffectAttempt, NodeOverrides, Observed, ObservedNode, ObservedVm, PowerState, Strategy,
};
use crate::maintenance::policy::Policy;
use crate::maintenance::waiting::{ParkReason, WaitingOn};

/// The Node object was deleted during the episode. While its VM is off, the episode continues from the record on its
/// NodeMaintenance, because the kubelet registers the Node only after the VM is on. If the VM is on, the kubelet is awaited.
pub(super) fn without_node(
    episode: &Episode,
    aged_by: Duration,
    seen: &Observed,
    policy: &Policy,
    now: Now,
    noted: &Noted<'_>,
) -> Decision {
    let off = seen.vm.found().filter(|vm| vm.power == Some(PowerState::Off));
    if !seen.has_copy {
        return match off {
            Some(vm) => without_record(episode, vm, seen, policy, now),
            None => wait(WaitingOn::NodeObject),
        };
    }
    if off.is_none() && !episode.phase.vm_is_off() {
        return wait(WaitingOn::NodeObject);
    }
    if is_to_be_taken_over(episode, seen.leadership, policy) {
        return take_over(episode, seen.leadership, policy);
    }
    // The values of a Node that is gone: not Ready, and nothing is scheduled there.
    let absent = ObservedNode {
        unschedulable: true,
        overrides: NodeOverrides {
            strategy: if episode.waits_for_home {
                Strategy::Wait
            } else {
                Strategy::Migrate
            },
            ..NodeOverrides::default()
        },
        ..ObservedNode::unread(episode.node_uid.clone())
    };
    in_episode(episode, aged_by, &absent, seen, policy, now, noted)
}

/// There is neither a Node nor a NodeMaintenance to write the record to. The VM is powered on where it is registered, so that its
/// kubelet registers the Node again. Nothing else can be done without a record.
fn without_record(
    episode: &Episode,
    vm: &ObservedVm,
    seen: &Observed,
    policy: &Policy,
    now: Now,
) -> Decision {
    let kind = EffectKind::PowerOn;
    let is_kept_off =
        seen.request.is_some() || (episode.phase.vm_is_off() && episode.power_off_request.is_some());
    let (Some(host), None) = (&vm.host_ref, is_replaced(episode, vm)) else {
        return wait(WaitingOn::NodeObject);
    };
    let is_away = episode.waits_for_home && episode.host.moref != vm.host_ref;
    if !vm.host.takes_vms() || is_kept_off || is_away {
        return wait(WaitingOn::NodeObject);
    }
    let waiting_on = WaitingOn::Task { effect: kind };
    let retry_at = |attempt: &EffectAttempt| attempt.at.after(policy.backoff(attempt.tries)).monotonic;
    match seen.attempts.get(&kind).map(retry_at) {
        Some(at) if now.monotonic < at => Decision::Wait {
            waiting_on,
            recheck: Some(at),
        },
        Some(_) | None => Decision::Act {
            effect: Effect::PowerOn {
                vm: vm.moref.clone(),
                place: PowerOnTarget::Host(host.clone()),
            },
            waiting_on,
            recheck: None,
        },
    }
}

/// The Node was deleted and registered again. If it is the same VM, the episode continues: the Node is cordoned in the same
/// write, and drained again if the power is still to be cut.
pub(super) fn onto_another_node(
    episode: &Episode,
    node: &ObservedNode,
    seen: &Observed,
    policy: &Policy,
    now: Now,
) -> Decision {
    let is_same = |vm: &&ObservedVm| {
        let is_uuid = match (vm.uuid, episode.vm_uuid) {
            (Some(is), Some(was)) => is.same_machine(was),
            (None, _) | (_, None) => false,
        };
        is_uuid && is_replaced(episode, vm).is_none()
    };
    let vm = match seen.vm.or_wait() {
        Ok(vm) => Some(vm).filter(is_same),
        Err(WaitingOn::VmLookup) => return wait(WaitingOn::VmLookup),
        Err(_) => None,
    };
    let Some(vm) = vm else {
        return wait(WaitingOn::Parked(ParkReason::AnotherNode));
    };
    let at_work = episode.phase.at_work();
    let was_drained = matches!(at_work, Phase::Drained | Phase::ShuttingDown(_));
    let phase = if was_drained && vm.power == Some(PowerState::On) {
        Phase::Draining
    } else {
        at_work.clone()
    };
    let queued = phase == Phase::Queued;
    let mut in_flight = episode.in_flight;
    if matches!(at_work, Phase::ShuttingDown(_))
        && phase == Phase::Draining
        && in_flight.guest_shutdown.is_none()
    {
        // Whether the guest was asked, nothing of the Node that is gone can tell.
        in_flight.guest_shutdown = Some(Timer {
            since: episode.since,
            elapsed: episode.elapsed,
        });
        in_flight.is_assumed = true;
    }
    let here = Episode {
        in_flight,
        node_uid: node.uid.clone(),
        cordon: cordon_on(episode, node, seen),
        drained_for: Elapsed::ZERO,
        limited_from: Elapsed::ZERO,
        release: policy.releases.own.clone(),
        ..episode.enter(phase, now)
    };
    Decision::Write(Box::new(if queued {
        transition_to(here)
    } else {
        cordoned(here, node)
    }))
}

/// The owner of the cordon of a new Node. A Node that was restored from a copy, by a backup or with `kubectl replace`, has our
/// record and our cordon, written by another field manager. After a restore of etcd it is an earlier Node with our cordon, possibly
/// without the record.
fn cordon_on(episode: &Episode, node: &ObservedNode, seen: &Observed) -> CordonOwner {
    if !(node.unschedulable && episode.cordon_is_ours()) {
        return CordonOwner::NotYet;
    }
    match &node.cordoned_by {
        CordonedBy::Haulout => CordonOwner::Ours,
        CordonedBy::Other(_) | CordonedBy::Unknown if !seen.is_record_on_node => CordonOwner::NotYet,
        CordonedBy::Other(manager) => CordonOwner::Adopted(Some(manager.clone())),
        CordonedBy::Unknown => CordonOwner::Adopted(None),
    }
}
