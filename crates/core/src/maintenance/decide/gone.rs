//! The Node of an episode was deleted, and perhaps registered again.

use std::sync::Arc;
use std::time::Duration;

use super::begin::the_vm;
use super::{Decision, cordoned, go, in_episode, is_replaced, is_to_be_taken_over, take_over, wait};
use crate::maintenance::clock::{Elapsed, Now};
use crate::maintenance::effect::{Effect, EffectKind, PowerOnTarget};
use crate::maintenance::episode::{CordonOwner, Episode, Phase};
use crate::maintenance::observed::{
    CordonedBy, NodeOverrides, Observed, ObservedNode, ObservedPower, ObservedVm,
};
use crate::maintenance::policy::Policy;
use crate::maintenance::waiting::{ParkReason, WaitingOn};

/// The Node object was deleted in mid-episode. While its VM is off nobody else brings it back, and the kubelet registers
/// the Node again only once it runs: so the episode goes on by its copy. A running VM's kubelet is waited for.
pub(super) fn without_node(
    episode: &Episode,
    aged_by: Duration,
    seen: &Observed,
    policy: &Policy,
    now: Now,
) -> Decision {
    let off = seen.vm.found().filter(|vm| vm.power == ObservedPower::Off);
    if !seen.has_copy {
        return match off {
            Some(vm) => without_record(episode, vm, seen, policy, now),
            None => wait(WaitingOn::NodeObject),
        };
    }
    if off.is_none() && !episode.phase.vm_is_off() {
        return wait(WaitingOn::NodeObject);
    }
    if is_to_be_taken_over(episode, seen.lead, policy) {
        return take_over(episode, seen.lead, policy);
    }
    // A Node that is gone says nothing: it is not Ready, and nothing is scheduled there.
    let nobody = ObservedNode {
        uid: episode.node_uid.clone(),
        resource_version: 0,
        unschedulable: true,
        cordoned_by: CordonedBy::Unknown,
        keep_cordoned: false,
        wishes: NodeOverrides::default(),
        ready: false,
        heartbeat: None,
        boot_id: None,
        gpus: Arc::default(),
        asked_guest: None,
    };
    in_episode(episode, aged_by, &nobody, seen, policy, now)
}

/// There is neither a Node nor an object to write the record to: the VM is powered on where it stands as soon as its host takes
/// it, and its kubelet registers the Node anew. Nothing else can be done without a record.
fn without_record(
    episode: &Episode,
    vm: &ObservedVm,
    seen: &Observed,
    policy: &Policy,
    now: Now,
) -> Decision {
    let kind = EffectKind::PowerOn;
    let is_asked_for = seen.request.is_none() && episode.kept_off_by.is_none();
    let (Some(host), None) = (&vm.on, is_replaced(episode, vm)) else {
        return wait(WaitingOn::NodeObject);
    };
    if !vm.host.takes_vms() || !is_asked_for {
        return wait(WaitingOn::NodeObject);
    }
    let again = seen.attempts.get(&kind).map(|attempt| {
        let pause = policy.backoff(attempt.tries);
        attempt.at.after(pause).monotonic
    });
    match again {
        Some(at) if now.monotonic < at => Decision::Wait {
            waiting_on: WaitingOn::Task(kind),
            recheck: Some(at),
        },
        Some(_) | None => Decision::Act {
            effect: Effect::PowerOn {
                vm: vm.moref.clone(),
                place: PowerOnTarget::Host(host.clone()),
            },
            waiting_on: WaitingOn::Task(kind),
            recheck: None,
        },
    }
}

/// The Node was deleted and registered again. If it is the same machine, the episode goes on with it: cordoned in the
/// same write, and drained anew if its power is still to be cut.
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
    let vm = match the_vm(&seen.vm) {
        Ok(vm) => Some(vm).filter(is_same),
        Err(WaitingOn::VmLookup) => return wait(WaitingOn::VmLookup),
        Err(_) => None,
    };
    let Some(vm) = vm else {
        return wait(WaitingOn::Parked(ParkReason::AnotherNode));
    };
    let at_work = episode.phase.at_work();
    let was_drained = matches!(at_work, Phase::Drained | Phase::ShuttingDown(_));
    let phase = if was_drained && vm.power == ObservedPower::On {
        Phase::Draining
    } else {
        at_work.clone()
    };
    let queued = phase == Phase::Queued;
    let here = Episode {
        node_uid: node.uid.clone(),
        cordon: cordon_on(episode, node, seen),
        drained_for: Elapsed::ZERO,
        release: policy.releases.own.clone(),
        ..episode.enter(phase, now)
    };
    Decision::Record(Box::new(if queued { go(here) } else { cordoned(here, node) }))
}

/// Whose the cordon is that a new Node has. A Node that was put back from a copy of the old one, by a backup or with `kubectl
/// replace`, comes with our record and with our cordon, written by whoever put it back.
fn cordon_on(episode: &Episode, node: &ObservedNode, seen: &Observed) -> CordonOwner {
    let is_put_back = seen.is_record_on_node && node.unschedulable && episode.cordon_is_ours();
    match (&node.cordoned_by, is_put_back) {
        (_, false) => CordonOwner::NotYet,
        (CordonedBy::Haulout, true) => CordonOwner::Ours,
        (CordonedBy::Other(manager), true) => CordonOwner::Adopted(Some(manager.clone())),
        (CordonedBy::Unknown, true) => CordonOwner::Adopted(None),
    }
}
