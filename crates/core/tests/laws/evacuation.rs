//! VMs that vCenter itself shuts down when their host enters maintenance.

use std::sync::Arc;

use haulout_core::facts::kubernetes::RequestAction;
use haulout_core::ids::{BootId, TaskRef};
use haulout_core::maintenance::decide::{Decision, decide};
use haulout_core::maintenance::episode::{CordonOwner, Detection, EpisodeResult, Phase, Record};
use haulout_core::maintenance::observed::{
    BoundVm, HostState, Observed, ObservedNode, ObservedVm, PowerState,
};
use haulout_core::maintenance::policy::DrainTimeoutAction;
use jiff::{SignedDuration, Timestamp};

use crate::facts::*;

/// A node whose VM carries the mark and is off.
fn shut_down(host: HostState, node: ObservedNode) -> Observed {
    let vm = ObservedVm {
        evacuation_power_off: true,
        ..vm(Some(PowerState::Off), host)
    };
    observed(node, vm)
}

fn clicked_at(clicked_at: Timestamp) -> HostState {
    HostState::Entering {
        task: TaskRef::new("task-1"),
        clicked_at,
        user: None,
        detection: Detection::Pushed,
    }
}

fn decided(seen: &Observed) -> Decision {
    decide(
        &Record::InService,
        seen,
        &policy(DrainTimeoutAction::PowerOff),
        moment(2),
    )
}

fn not_ready_since(second: i64) -> ObservedNode {
    ObservedNode {
        ready: false,
        ready_since: Some(at(second)),
        ..node()
    }
}

#[test]
fn vm_that_vcenter_shut_down_at_the_click_gets_an_episode() {
    // The click was at second 0.
    for (host, node) in [
        (entering(), node()),
        (clicked_at(at(0)), not_ready_since(0)),
        (
            clicked_at(at(0) + SignedDuration::from_millis(900)),
            not_ready_since(0),
        ),
        (entering(), not_ready_since(50)),
        (HostState::InMaintenance, node()),
    ] {
        let seen = shut_down(host, node);
        let Decision::Write(transition) = decided(&seen) else {
            panic!("no episode begins: {seen:#?}");
        };
        assert_eq!(transition.unschedulable, Some(true), "it is cordoned");
        let episode = transition.record.episode().unwrap();
        assert_eq!(episode.phase, Phase::AwaitingHost);
        assert_eq!(episode.cordon, CordonOwner::Ours);
        assert!(
            episode.powered_off,
            "the node counts as back on another boot only"
        );
        assert!(episode.in_flight.is_empty(), "vCenter was asked for nothing");
    }
}

/// Where Haulout sees the VM off only when its host is in maintenance already, or begins to run then. A kubelet with a shutdown grace
/// period reports Ready False at once, any other one is missed later.
#[test]
fn vm_that_vcenter_shut_down_before_its_host_was_in_maintenance_gets_an_episode() {
    for (asked_at, since, is_evacuated) in [
        (Some(100), 100, true),
        (Some(100), 160, true),
        (Some(100), 99, false),
        // vCenter does not list the task any more.
        (None, 160, false),
    ] {
        let mut seen = shut_down(HostState::InMaintenance, not_ready_since(since));
        let BoundVm::Found(vm) = &mut seen.vm else {
            panic!()
        };
        vm.maintenance_asked_at = asked_at.map(at);
        let decision = decided(&seen);
        assert_eq!(
            matches!(decision, Decision::Write(_)),
            is_evacuated,
            "asked for at {asked_at:?}, not Ready since {since}: {decision:#?}"
        );
    }
}

#[test]
fn vm_that_was_off_before_the_click_stays_off() {
    for (host, node) in [
        (entering(), not_ready_since(-1)),
        (
            entering(),
            ObservedNode {
                ready: false,
                ..node()
            },
        ),
        (HostState::InMaintenance, not_ready_since(1)),
        (HostState::InService, node()),
        (HostState::Unknown, node()),
    ] {
        let seen = shut_down(host, node);
        assert_eq!(decided(&seen), Decision::Idle, "{seen:#?}");
    }
}

#[test]
fn vm_without_the_mark_that_is_off_at_the_click_stays_off() {
    let seen = observed(node(), vm(Some(PowerState::Off), entering()));
    assert_eq!(decided(&seen), Decision::Idle);
}

#[test]
fn vm_with_the_mark_is_kept_off_by_a_skip_or_a_request() {
    let mut skipped = shut_down(entering(), node());
    skipped.node.as_mut().unwrap().overrides.skip = true;
    let mut asked = shut_down(entering(), node());
    asked.request = Some(request(RequestAction::PowerOff));
    for seen in [skipped, asked] {
        assert!(matches!(decided(&seen), Decision::Wait { .. }), "{seen:#?}");
    }
}

/// The VM was off and on again while Haulout was away or disconnected.
#[test]
fn node_whose_vm_was_restarted_elsewhere_unseen_has_to_be_back_first() {
    let elsewhere = |boot: &str, ready: bool| {
        let vm = ObservedVm {
            host_ref: Some(spare()),
            host_name: "esx-spare".to_owned(),
            ..vm(Some(PowerState::On), HostState::InService)
        };
        let node = ObservedNode {
            boot_id: Some(BootId::new(boot)),
            ready,
            ..node()
        };
        observed(node, vm)
    };
    for phase in [Phase::Queued, Phase::Draining] {
        let record = Record::Episode(Arc::new(episode(phase, CordonOwner::Ours, false)));
        let decided = |seen: &Observed| {
            let policy = policy(DrainTimeoutAction::PowerOff);
            match decide(&record, seen, &policy, moment(2)) {
                Decision::Write(transition) => transition,
                other => panic!("{other:#?}"),
            }
        };
        for ready in [false, true] {
            let transition = decided(&elsewhere("another boot", ready));
            let episode = transition.record.episode().expect("it goes on");
            assert_eq!(episode.phase, Phase::Rejoining);
            assert!(episode.powered_off);
            let to = episode.moved_to.as_ref().and_then(|to| to.moref.clone());
            assert_eq!(to, Some(spare()));
        }
        // It may still boot, so its boot id may be old.
        let waits = decided(&elsewhere(old_boot().as_str(), false));
        assert_eq!(waits.record.phase(), Some(&Phase::Rejoining));
        // vCenter moved it by vMotion.
        let mut moved = elsewhere(old_boot().as_str(), true);
        assert_eq!(decided(&moved).ended, Some(EpisodeResult::Vmotioned));
        // That is not possible with its devices, so HA restarted it, and its Node is Ready since before.
        if let BoundVm::Found(vm) = &mut moved.vm {
            vm.is_pinned = true;
        }
        let restarted = decided(&moved);
        let episode = restarted.record.episode().expect("it goes on");
        assert_eq!((&episode.phase, episode.powered_off), (&Phase::Rejoining, true));
    }
}
