//! A node without an episode: whether one begins, and with what.

use jiff::Timestamp;

use super::{
    Decision, back, cordoned, go, is_approved, is_to_be_placed_first, not_visible, stands_on, start_draining,
    wait,
};
use crate::ids::EpisodeId;
use crate::maintenance::clock::Now;
use crate::maintenance::episode::{Episode, InFlight, Phase, Record, Trigger};
use crate::maintenance::observed::{
    Admission, BoundVm, GuestRequest, HostState, LeadershipTerm, Observed, ObservedNode, ObservedPower,
    ObservedVm, STRAY,
};
use crate::maintenance::policy::Policy;
use crate::maintenance::request::{DesiredState, Request};
use crate::maintenance::waiting::{ParkReason, WaitingOn};

pub(super) fn in_service(node: &ObservedNode, seen: &Observed, policy: &Policy, now: Now) -> Decision {
    let vm = match the_vm(&seen.vm) {
        Ok(vm) => vm,
        Err(waiting_on) => return wait(waiting_on),
    };
    let request = seen.request.as_ref();
    if let Some(ended) = &seen.stray_of
        && vm.power == ObservedPower::Off
        && request.is_none()
        && !node.wishes.skip
    {
        return make_up_for(ended, node, vm, seen.lead, policy, now);
    }
    match DesiredState::of(&vm.host, request) {
        DesiredState::Nothing | DesiredState::Interrupted { .. } => return Decision::Rest,
        DesiredState::Unclear if request.is_none() => return Decision::Rest,
        DesiredState::Unclear => return wait(not_visible(vm)),
        DesiredState::Down | DesiredState::Drained(_) => {}
    }
    if node.wishes.skip {
        return wait(WaitingOn::Skip);
    }
    match (vm.power, request) {
        (ObservedPower::On, _) => {}
        // A VM that is off without an episode was powered off by somebody who knows why; it does not hold its host up.
        (_, None) => return Decision::Rest,
        (ObservedPower::Unknown, Some(_)) => return wait(WaitingOn::PowerState),
        (ObservedPower::Off | ObservedPower::Suspended, Some(request)) => {
            let request = request.mark.clone();
            return wait(WaitingOn::PoweredOn { request });
        }
    }
    if let Some(request) = request
        && !vm.host.is_leaving()
        && request.is_met_on(&vm.on_name)
    {
        return wait(WaitingOn::AlreadyThere {
            request: request.mark.clone(),
            host: vm.on_name.clone(),
        });
    }
    let queued = begun(node, vm, trigger(vm, request, now), seen.lead, policy, now);
    let may_drain = !is_to_be_placed_first(&vm.host, request)
        && seen.admission == Admission::Granted
        && is_approved(node, policy.require_approval);
    Decision::Record(Box::new(if may_drain {
        start_draining(&queued, node, now)
    } else {
        go(queued)
    }))
}

/// The VM of a node; what is waited for where it is not exactly one.
pub(super) fn the_vm(seen: &BoundVm) -> Result<&ObservedVm, WaitingOn> {
    Err(WaitingOn::Parked(match seen {
        BoundVm::Found(vm) => return Ok(vm),
        BoundVm::NotLookedUp => return Err(WaitingOn::VmLookup),
        BoundVm::Missing { .. } => ParkReason::VmMissing,
        BoundVm::NoUuid => ParkReason::NoUuid,
        BoundVm::Ambiguous(vms) => ParkReason::VmAmbiguous { count: vms.len() },
        BoundVm::Shared(nodes) => ParkReason::VmShared { nodes: nodes.clone() },
    }))
}

/// Since when a node wants a place under the limits, if it does: what [`super::decide`] makes of it when it is granted one.
pub fn wants_place(
    record: &Record,
    node: &ObservedNode,
    vm: &ObservedVm,
    request: Option<&Request>,
    require_approval: bool,
) -> Option<Timestamp> {
    let called = DesiredState::of(&vm.host, request).is_out_of_service();
    if vm.power != ObservedPower::On || !called || node.wishes.skip || !is_approved(node, require_approval) {
        return None;
    }
    let asked = || asked_at(&vm.host, request);
    match record {
        Record::InService => {
            let met = request.is_some_and(|request| request.is_met_on(&vm.on_name));
            (vm.host.is_leaving() || !met).then(asked)
        }
        // By what vCenter and the kube-apiserver tell, not by the record, which a kubelet may write.
        Record::Episode(episode) => {
            let phase = episode.phase.at_work();
            let wants = *phase == Phase::Queued
                || *phase == Phase::Drained && DesiredState::of(&vm.host, request) == DesiredState::Down
                || *phase == Phase::Rejoining && back::is_to_leave_again(episode, vm, request);
            wants.then(asked)
        }
        Record::Python(_) | Record::Unreadable { .. } => None,
    }
}

/// When a node was called out of service. A host that is in maintenance already was asked for earlier than anybody can
/// tell, and none of its VMs can run: it comes last.
fn asked_at(host: &HostState, request: Option<&Request>) -> Timestamp {
    match host {
        HostState::Entering { clicked_at, .. } => *clicked_at,
        HostState::Unknown
        | HostState::Unreachable
        | HostState::InMaintenance
        | HostState::Quarantined
        | HostState::InService => request.map_or(Timestamp::MAX, |request| request.asked_at),
    }
}

/// What calls the node out of service.
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
        ) => Trigger {
            task: Some(task.clone()),
            clicked_at: *clicked_at,
            user: user.clone(),
            detection: Some(*detection),
            request: None,
            stray_of: None,
        },
        (_, request) => Trigger {
            task: None,
            clicked_at: request.map_or(now.wall, |request| request.asked_at),
            user: None,
            detection: None,
            request: request.map(|request| request.mark.clone()),
            stray_of: None,
        },
    }
}

/// The VM went off by a power-off of ours that arrived after its episode had ended. Nobody else knows of it, so it is
/// brought back as from any maintenance: on another boot, with its GPUs.
fn make_up_for(
    ended: &EpisodeId,
    node: &ObservedNode,
    vm: &ObservedVm,
    lead: LeadershipTerm,
    policy: &Policy,
    now: Now,
) -> Decision {
    let trigger = Trigger {
        task: None,
        clicked_at: now.wall,
        user: None,
        detection: None,
        request: None,
        stray_of: Some(ended.clone()),
    };
    let episode = Episode {
        powered_off: true,
        phase: Phase::AwaitingHost,
        in_flight: InFlight::default(),
        ..begun(node, vm, trigger, lead, policy, now)
    };
    Decision::Record(Box::new(cordoned(episode, node)))
}

/// A new episode, with all that has to be known of the time before it.
fn begun(
    node: &ObservedNode,
    vm: &ObservedVm,
    trigger: Trigger,
    lead: LeadershipTerm,
    policy: &Policy,
    now: Now,
) -> Episode {
    let is_recent = |asked: &GuestRequest| now.wall.duration_since(asked.ended_at).abs() <= STRAY;
    let asked = node.asked_guest.filter(is_recent);
    Episode {
        vm_uuid: vm.uuid,
        vm: Some(vm.moref.clone()),
        boot_before: node.boot_id.clone(),
        gpus_before: node.gpus.clone(),
        in_flight: InFlight {
            earlier_guest_shutdown: asked.map(|asked| asked.at),
            ..InFlight::default()
        },
        release: policy.releases.own.clone(),
        epoch: lead.epoch,
        ..Episode::new(node.uid.clone(), trigger, stands_on(vm), Phase::Queued, now.wall)
    }
}
