//! VMs that vCenter can move by vMotion although they have a GPU.

use std::sync::Arc;
use std::time::Duration;

use haulout_core::facts::kubernetes::RequestAction;
use haulout_core::facts::vsphere::VmotionDevice;
use haulout_core::maintenance::clock::Elapsed;
use haulout_core::maintenance::decide::{Decision, Transition, decide, wants_place};
use haulout_core::maintenance::episode::{CordonOwner, DrainEnd, Episode, EpisodeResult, Phase, Record};
use haulout_core::maintenance::observed::{BoundVm, HostState, Observed, ObservedNode, PowerState, Vmotion};
use haulout_core::maintenance::policy::DrainTimeoutAction;
use haulout_core::maintenance::waiting::WaitingOn;

use crate::cases::report;
use crate::facts::*;

/// A node whose VM has devices of this kind. Its host enters maintenance.
fn seen(device: Option<VmotionDevice>, is_under_way: bool) -> Observed {
    let mut vm = vm(Some(PowerState::On), entering());
    vm.vmotion = device.map(|device| Vmotion { device, is_under_way });
    observed(node(), vm)
}

fn decided(record: &Record, seen: &Observed) -> Decision {
    decide(record, seen, &policy(DrainTimeoutAction::PowerOff), moment(2))
}

fn record(episode: Episode) -> Record {
    Record::Episode(Arc::new(episode))
}

/// A node that has been queued for so long when it is decided on, two seconds after its record was seen.
fn queued_for(seconds: u64) -> Record {
    record(Episode {
        elapsed: Elapsed::of(Duration::from_secs(seconds.saturating_sub(2))),
        ..episode(Phase::Queued, CordonOwner::NotYet, false)
    })
}

fn transition(decision: Decision) -> Transition {
    match decision {
        Decision::Write(transition) => *transition,
        other => panic!("{other:#?}"),
    }
}

fn phase(decision: Decision) -> Phase {
    transition(decision).record.phase().cloned().expect("an episode")
}

fn is_left_alone(decision: &Decision) -> bool {
    matches!(
        decision,
        Decision::Wait {
            waiting_on: WaitingOn::Vmotion { .. },
            recheck: Some(_),
        }
    )
}

#[test]
fn node_whose_vm_can_be_vmotioned_is_neither_cordoned_nor_drained_at_first() {
    for device in [VmotionDevice::Vgpu, VmotionDevice::Dvx] {
        let begun = transition(decided(&Record::InService, &seen(Some(device), false)));
        assert_eq!(begun.record.phase(), Some(&Phase::Queued), "{device:?}");
        assert_eq!(begun.unschedulable, None);
        assert!(is_left_alone(&decided(&begun.record, &seen(Some(device), false))));
    }
    let begun = decided(&Record::InService, &seen(None, false));
    assert_eq!(phase(begun), Phase::Draining);
}

#[test]
fn node_is_drained_if_vcenter_has_not_moved_its_vm_in_time() {
    use VmotionDevice::{Dvx, Vgpu};
    for (device, is_under_way, seconds, is_drained) in [
        (Vgpu, false, 299, false),
        (Vgpu, false, 300, true),
        (Dvx, false, 299, false),
        (Dvx, false, 300, true),
        // A vMotion that is under way is awaited for another half hour.
        (Vgpu, true, 300 + 1799, false),
        (Vgpu, true, 300 + 1800, true),
    ] {
        let next = decided(&queued_for(seconds), &seen(Some(device), is_under_way));
        if is_drained {
            assert_eq!(phase(next), Phase::Draining, "{device:?} {seconds}");
        } else {
            assert!(is_left_alone(&next), "{device:?} {seconds} {next:#?}");
        }
    }
}

#[test]
fn request_of_a_person_does_not_wait_for_a_vmotion() {
    let mut asked = seen(Some(VmotionDevice::Vgpu), false);
    asked.request = Some(request(RequestAction::PowerOff));
    assert_eq!(phase(decided(&Record::InService, &asked)), Phase::Draining);
    assert_eq!(phase(decided(&queued_for(1), &asked)), Phase::Draining);
}

#[test]
fn node_that_was_queued_for_a_request_leaves_the_host_on_which_its_vm_is_by_then() {
    let mut asked = seen(Some(VmotionDevice::Vgpu), false);
    asked.request = Some(request(RequestAction::PowerOff));
    let mut vm = vm(Some(PowerState::On), HostState::InService);
    vm.host_ref = Some(spare());
    asked.vm = haulout_core::maintenance::observed::BoundVm::Found(vm);
    let begun = transition(decided(&queued_for(1), &asked)).record;
    assert_eq!(begun.episode().unwrap().host.moref, Some(spare()));
}

#[test]
fn vmotion_of_the_vm_ends_the_episode_and_leaves_the_node_as_it_was() {
    for (on, ended) in [
        (spare(), EpisodeResult::Vmotioned),
        (home(), EpisodeResult::Cancelled),
    ] {
        let mut moved = seen(Some(VmotionDevice::Vgpu), false);
        let mut vm = vm(Some(PowerState::On), HostState::InService);
        vm.host_ref = Some(on);
        moved.vm = haulout_core::maintenance::observed::BoundVm::Found(vm);
        let end = transition(decided(&queued_for(40), &moved));
        assert_eq!((end.record, end.unschedulable), (Record::InService, None));
        assert_eq!(end.ended, Some(ended));
    }
}

#[test]
fn guest_is_not_shut_down_in_the_middle_of_a_vmotion() {
    let shutting_down = record(episode(
        Phase::ShuttingDown(DrainEnd::Complete),
        CordonOwner::Ours,
        false,
    ));
    for is_under_way in [true, false] {
        let mut drained = seen(Some(VmotionDevice::Vgpu), is_under_way);
        drained.node = Some(ObservedNode {
            unschedulable: true,
            ..node()
        });
        drained.drain = Some(report(moment(1).monotonic, 0, vec![]));
        let next = decided(&shutting_down, &drained);
        assert_eq!(is_left_alone(&next), is_under_way, "{next:#?}");
        assert_eq!(matches!(next, Decision::Act { .. }), !is_under_way, "{next:#?}");
    }
}

#[test]
fn wait_for_a_vmotion_is_recorded_in_elapsed_time() {
    let mut seen = seen(Some(VmotionDevice::Vgpu), false);
    seen.record_seen.at = moment(-60);
    let next = transition(decided(&queued_for(0), &seen));
    let elapsed = next.record.episode().map(|episode| episode.elapsed);
    assert_eq!(elapsed, Some(Elapsed::of(Duration::from_secs(62))));
}

#[test]
fn node_whose_vm_is_left_to_vcenter_is_drained_by_a_request_only() {
    let mut seen = seen(None, false);
    if let BoundVm::Found(vm) = &mut seen.vm {
        vm.is_left_to_vcenter = true;
    }
    let places = |seen: &Observed| {
        let (node, vm) = (seen.node.as_ref().unwrap(), seen.vm.found().unwrap());
        wants_place(&Record::InService, node, vm, seen.request.as_ref(), false)
    };
    assert_eq!(decided(&Record::InService, &seen), Decision::Idle);
    assert_eq!(places(&seen), None, "it takes no drain slot");
    seen.request = Some(request(RequestAction::Drain));
    assert_eq!(phase(decided(&Record::InService, &seen)), Phase::Draining);
    assert!(places(&seen).is_some());
}
