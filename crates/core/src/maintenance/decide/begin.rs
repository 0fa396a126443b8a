//! A node without an episode: whether an episode begins.

use jiff::Timestamp;

use super::approval::is_approved;
use super::claims::dead_node;
use super::rounds::drain_time_of;
use super::vmotion::vmotion_grace;
use super::{
    Decision, back, cordoned, host_of, needs_host_first, not_visible, start_draining, transition_to, wait,
};
use crate::maintenance::clock::Now;
use crate::maintenance::desired::DesiredState;
use crate::maintenance::episode::{CordonOwner, Episode, InFlight, Phase, Record, Trigger};
use crate::maintenance::observed::{
    Admission, BoundVm, HostState, LeadershipEpoch, Observed, ObservedNode, ObservedVm, PowerState,
};
use crate::maintenance::policy::Policy;
use crate::maintenance::request::Request;
use crate::maintenance::waiting::WaitingOn;

pub(super) fn in_service(node: &ObservedNode, seen: &Observed, policy: &Policy, now: Now) -> Decision {
    let vm = match seen.vm.or_wait() {
        Ok(vm) => vm,
        // It has no host whose maintenance could concern it.
        Err(_) if seen.vm == BoundVm::NoVm && seen.request.is_none() => return Decision::Idle,
        Err(waiting_on) => return wait(waiting_on),
    };
    let request = seen.request.as_ref();
    if let Some(ended) = &seen.late_power_off_of
        && vm.power == Some(PowerState::Off)
        && request.is_none()
        && !node.overrides.skip
    {
        // A power-off of an ended episode took effect late and stopped the VM. A new episode brings the node back.
        let mut trigger = Trigger::new(now.wall);
        trigger.late_power_off_of = Some(ended.clone());
        return begin_while_off(node, vm, trigger, seen.leadership, policy, now);
    }
    if vm.is_left_to_vcenter && request.is_none() {
        return Decision::Idle;
    }
    let desired = DesiredState::of(vm, None, request);
    match desired {
        DesiredState::InService | DesiredState::RetryExpected { .. } => return Decision::Idle,
        DesiredState::Unknown if request.is_none() => return Decision::Idle,
        DesiredState::Unknown => return wait(not_visible(vm)),
        DesiredState::Down | DesiredState::Drained(_) => {}
    }
    if node.overrides.skip {
        return wait(WaitingOn::Skip);
    }
    match (vm.power, request) {
        (Some(PowerState::On), _) => {}
        (Some(PowerState::Off), None) if is_evacuated(node, vm) => {
            let trigger = trigger(vm, None, now);
            return begin_while_off(node, vm, trigger, seen.leadership, policy, now);
        }
        // Somebody else powered the VM off. It does not block the maintenance of its host.
        (_, None) => return Decision::Idle,
        (None, Some(_)) => return wait(WaitingOn::PowerState),
        (Some(PowerState::Off) | Some(PowerState::Suspended), Some(request)) => {
            let request = request.identity.clone();
            return wait(WaitingOn::PoweredOn { request });
        }
    }
    if let Some(reason) = dead_node(node, vm, None) {
        return wait(WaitingOn::Parked(reason));
    }
    if let Some(request) = request
        && !vm.has_to_leave(None)
        && request.is_met_on(&vm.host_name)
    {
        return wait(WaitingOn::AlreadyThere {
            request: request.identity.clone(),
            host: vm.host_name.clone(),
        });
    }
    let queued = new_episode(node, vm, trigger(vm, request, now), seen.leadership, policy, now);
    Decision::Write(Box::new(if may_drain_at_once(vm, seen, policy) {
        start_draining(&queued, node, drain_time_of(desired, request, policy), now)
    } else {
        transition_to(queued)
    }))
}

/// Whether nothing has to be awaited between the begin of an episode and its drain.
fn may_drain_at_once(vm: &ObservedVm, seen: &Observed, policy: &Policy) -> bool {
    let request = seen.request.as_ref();
    vmotion_grace(vm, request, policy.vmotion_grace).is_zero()
        && !needs_host_first(&vm.host, request)
        && seen.admission == Admission::Granted
        && !policy.require_approval
}

/// The time since which a node needs a slot, if it does. [`super::decide`] uses the slot as soon as it is granted. A node whose VM
/// vCenter may still move by vMotion needs none yet; see [`super::vmotion_grace`].
pub fn wants_place(
    record: &Record,
    node: &ObservedNode,
    vm: &ObservedVm,
    request: Option<&Request>,
    require_approval: bool,
) -> Option<Timestamp> {
    let desired = DesiredState::of(vm, record.episode(), request);
    let is_wanted = desired.is_out_of_service();
    if vm.power != Some(PowerState::On)
        || !is_wanted
        || node.overrides.skip
        || dead_node(node, vm, None).is_some()
        || !is_approved(node, vm, request, record.episode(), require_approval)
    {
        return None;
    }
    let asked = || asked_at(&vm.host, request);
    match record {
        Record::InService => {
            let met = request.is_some_and(|request| request.is_met_on(&vm.host_name));
            let is_left = vm.is_left_to_vcenter && request.is_none();
            (!is_left && (vm.has_to_leave(None) || !met)).then(asked)
        }
        // The time comes from vCenter and the kube-apiserver, not from the record, which a kubelet may write.
        Record::Episode(episode) => {
            let phase = episode.phase.at_work();
            let wants = *phase == Phase::Queued
                || *phase == Phase::Drained && desired == DesiredState::Down
                || *phase == Phase::Rejoining && back::has_to_leave_again(episode, vm, request);
            wants.then(asked)
        }
        Record::Python(_) | Record::Unreadable { .. } => None,
    }
}

/// When the maintenance of a node was requested. A host that is already in maintenance comes last, because none of its VMs
/// can run.
fn asked_at(host: &HostState, request: Option<&Request>) -> Timestamp {
    match host {
        HostState::Entering { clicked_at, .. } => *clicked_at,
        HostState::Unknown
        | HostState::Unreachable
        | HostState::InMaintenance
        | HostState::Settling { .. }
        | HostState::Quarantined
        | HostState::InService => request.map_or(Timestamp::MAX, |request| request.asked_at),
    }
}

fn trigger(vm: &ObservedVm, request: Option<&Request>, now: Now) -> Trigger {
    match (&vm.host, request) {
        (
            HostState::Entering {
                task,
                clicked_at,
                user,
                detection,
            },
            _,
        ) if vm.has_to_leave(None) => Trigger {
            task: Some(task.clone()),
            user: user.clone(),
            detection: Some(*detection),
            ..Trigger::new(*clicked_at)
        },
        (_, request) => Trigger {
            user: request.and_then(|request| request.requested_by.clone()),
            request: request.map(|request| request.identity.clone()),
            ..Trigger::new(request.map_or(now.wall, |request| request.asked_at))
        },
    }
}

/// Whether vCenter itself shut the VM down for the maintenance of its host. Its Node was Ready until then; a VM that was off before
/// stays off.
///
/// A kubelet that is stopped with its guest is missed after some tens of seconds, and one with a shutdown grace period says at once that
/// its node shuts down: Ready may have become False or Unknown since the maintenance was requested.
pub(super) fn is_evacuated(node: &ObservedNode, vm: &ObservedVm) -> bool {
    let was_ready_at = |asked_at: Timestamp| {
        // Kubernetes writes whole seconds.
        let is_later = |since: Timestamp| since.as_second() >= asked_at.as_second();
        node.ready || node.ready_since.is_some_and(is_later)
    };
    let was_in_service = match &vm.host {
        HostState::Entering { clicked_at, .. } => was_ready_at(*clicked_at),
        HostState::InMaintenance => vm.maintenance_asked_at.map_or(node.ready, was_ready_at),
        HostState::Unknown
        | HostState::Unreachable
        | HostState::Settling { .. }
        | HostState::Quarantined
        | HostState::InService => false,
    };
    vm.evacuation_power_off && was_in_service
}

/// Begins an episode whose VM is off already: the node is cordoned and brought back.
fn begin_while_off(
    node: &ObservedNode,
    vm: &ObservedVm,
    trigger: Trigger,
    leadership: LeadershipEpoch,
    policy: &Policy,
    now: Now,
) -> Decision {
    let episode = Episode {
        powered_off: true,
        phase: Phase::AwaitingHost,
        in_flight: InFlight::default(),
        ..new_episode(node, vm, trigger, leadership, policy, now)
    };
    Decision::Write(Box::new(cordoned(episode, node)))
}

/// A new episode, with the state of the node before it.
fn new_episode(
    node: &ObservedNode,
    vm: &ObservedVm,
    trigger: Trigger,
    leadership: LeadershipEpoch,
    policy: &Policy,
    now: Now,
) -> Episode {
    Episode {
        vm_uuid: vm.uuid,
        vm: Some(vm.moref.clone()),
        cordon: if node.unschedulable {
            CordonOwner::Theirs
        } else {
            CordonOwner::NotYet
        },
        boot_before: node.boot_id.clone(),
        gpus_before: node.expected_gpus.clone(),
        slices_before: node.newest_slice,
        in_flight: InFlight {
            earlier_guest_shutdown: node.asked_guest,
            ..InFlight::default()
        },
        release: policy.releases.own.clone(),
        epoch: leadership.epoch,
        ..Episode::new(node.uid.clone(), trigger, host_of(vm), Phase::Queued, now.wall)
    }
}
