//! VMs with a passthrough device at a fixed address, which may be changed for one of another host.

use std::sync::Arc;

use haulout_core::facts::vsphere::{DeviceChange, StaticDevice};
use haulout_core::fixtures::A40;
use haulout_core::ids::HostRef;
use haulout_core::maintenance::clock::Now;
use haulout_core::maintenance::decide::{Decision, decide};
use haulout_core::maintenance::effect::{Effect, EffectKind, PowerOnTarget};
use haulout_core::maintenance::episode::{CordonOwner, Episode, Phase, Record, RefusedMove};
use haulout_core::maintenance::observed::{
    AttemptOutcome, CordonedBy, EffectAttempt, EffectRefusal, HostState, Observed, ObservedNode, ObservedVm,
    PowerState, RetryAdvice,
};
use haulout_core::maintenance::placement::{DeviceOffer, RejectionReason, StaticPlacement};
use haulout_core::maintenance::policy::DrainTimeoutAction;
use haulout_core::maintenance::waiting::WaitingOn;

use crate::facts::*;

const HERE: &str = "0000:3b:00.0";

/// A VM that is off on `host`, which takes VMs, with one device at a fixed address.
fn seen(host: HostRef, offer: DeviceOffer) -> Observed {
    let vm = ObservedVm {
        host_ref: Some(host),
        ..vm(Some(PowerState::Off), HostState::InService)
    };
    let cordoned_node = ObservedNode {
        unschedulable: true,
        cordoned_by: CordonedBy::Haulout,
        ..node()
    };
    Observed {
        static_devices: Some(StaticPlacement {
            devices: vec![device(HERE)],
            offer,
        }),
        ..observed(cordoned_node, vm)
    }
}

fn device(address: &str) -> StaticDevice {
    StaticDevice {
        address: address.to_owned(),
        vendor: A40.0,
        device: A40.1,
    }
}

fn one_device() -> DeviceOffer {
    DeviceOffer::Devices(vec![DeviceChange {
        from: HERE.to_owned(),
        to: "0000:5e:00.0".to_owned(),
    }])
}

/// About to be powered on; `home_devices` are recorded.
fn powering_on(home_devices: &[&str]) -> Record {
    let phase = Phase::PoweringOn { by_drs: false };
    Record::Episode(Arc::new(Episode {
        home_devices: home_devices.iter().copied().map(device).collect(),
        powered_off: true,
        ..episode(phase, CordonOwner::Ours, true)
    }))
}

fn decided(record: &Record, seen: &Observed) -> Decision {
    decide(record, seen, &policy(DrainTimeoutAction::PowerOff), moment(2))
}

fn attempt(at: Now, host: HostRef, outcome: AttemptOutcome) -> EffectAttempt {
    EffectAttempt {
        at,
        host: Some(host),
        task: None,
        refusals: 1,
        refused_since: at,
        tries: 1,
        outcome,
    }
}

fn with_attempt(kind: EffectKind, host: HostRef, outcome: AttemptOutcome, mut seen: Observed) -> Observed {
    seen.attempts.insert(kind, attempt(moment(1), host, outcome));
    seen
}

fn refused(advice: RetryAdvice) -> AttemptOutcome {
    AttemptOutcome::Refused(EffectRefusal {
        advice,
        message: "no".to_owned(),
    })
}

fn is_power_on(decision: &Decision) -> bool {
    let Decision::Act { effect, .. } = decision else {
        return false;
    };
    matches!(
        effect,
        Effect::PowerOn {
            place: PowerOnTarget::Host(_),
            ..
        }
    )
}

fn recorded(decision: Decision) -> Episode {
    match decision {
        Decision::Write(transition) => transition.record.episode().cloned().expect("an episode"),
        other => panic!("{other:#?}"),
    }
}

#[test]
fn addresses_of_its_own_host_are_recorded_before_a_vm_gets_other_devices() {
    let decision = decided(&powering_on(&[]), &seen(spare(), one_device()));
    let episode = recorded(decision);
    assert_eq!(episode.home_devices, [device(HERE)]);
    assert_eq!(episode.phase, Phase::PoweringOn { by_drs: false });
    let decision = decided(&powering_on(&[HERE]), &seen(spare(), one_device()));
    let Decision::Act { effect, .. } = decision else {
        panic!("{decision:#?}")
    };
    let DeviceOffer::Devices(changes) = one_device() else {
        panic!("no devices")
    };
    let expected = Effect::Reconfigure {
        vm: vm(Some(PowerState::Off), HostState::InService).moref,
        host: spare(),
        devices: changes,
    };
    assert_eq!(effect, expected);
}

#[test]
fn vm_is_powered_on_only_after_it_has_the_devices_of_this_host() {
    let kind = EffectKind::Reconfigure;
    let done = |host| with_attempt(kind, host, AttemptOutcome::Done, seen(spare(), one_device()));
    assert!(is_power_on(&decided(&powering_on(&[HERE]), &done(spare()))));
    // Somebody moved it in between.
    assert!(!is_power_on(&decided(&powering_on(&[HERE]), &done(home()))));
}

#[test]
fn vm_that_did_not_leave_its_own_host_keeps_its_devices() {
    assert!(is_power_on(&decided(
        &powering_on(&[]),
        &seen(home(), one_device())
    )));
    let back = decided(&powering_on(&[HERE]), &seen(home(), one_device()));
    assert!(!is_power_on(&back), "{back:#?}");
}

#[test]
fn other_host_is_chosen_where_the_devices_are_gone_or_the_change_is_refused() {
    let with_refusal = |advice| {
        let seen = seen(spare(), one_device());
        with_attempt(EffectKind::Reconfigure, spare(), refused(advice), seen)
    };
    let taken = seen(spare(), DeviceOffer::Rejected(RejectionReason::DevicesTaken));
    let mut at_home_again = with_refusal(RetryAdvice::Person);
    at_home_again.home = HostState::InService;
    for seen in [taken, with_refusal(RetryAdvice::OtherHost), at_home_again] {
        let episode = recorded(decided(&powering_on(&[HERE]), &seen));
        assert_eq!(episode.phase, Phase::AwaitingHost);
        assert!(episode.has_refused(&spare(), RefusedMove::PowerOn));
    }
    // A missing privilege is missing on each host: the VM is not moved from one to the next.
    for advice in [RetryAdvice::Retry, RetryAdvice::Person] {
        let mut seen = with_refusal(advice);
        seen.home = HostState::InMaintenance;
        let decision = decided(&powering_on(&[HERE]), &seen);
        assert!(!matches!(decision, Decision::Write(_)), "{decision:#?}");
    }
}

#[test]
fn nothing_is_done_before_the_devices_of_the_hosts_are_reported() {
    for recorded in [&[][..], &[HERE]] {
        let decision = decided(&powering_on(recorded), &seen(spare(), DeviceOffer::Unreported));
        assert!(matches!(decision, Decision::Wait { .. }), "{decision:#?}");
    }
}

#[test]
fn own_host_is_surveyed_again_until_it_has_a_device_for_the_vm() {
    let taken = || seen(home(), DeviceOffer::Rejected(RejectionReason::DevicesTaken));
    let waits = |decision: Decision| match decision {
        Decision::Act {
            effect, waiting_on, ..
        } => (Some(effect), waiting_on),
        Decision::Wait { waiting_on, .. } => (None, waiting_on),
        other => panic!("{other:#?}"),
    };
    let (effect, waiting_on) = waits(decided(&powering_on(&[HERE]), &taken()));
    let survey = Effect::Survey { hosts: vec![home()] };
    assert_eq!(effect, Some(survey));
    assert!(
        waiting_on.to_string().contains("no matching device free"),
        "{waiting_on}"
    );
    let surveyed = with_attempt(EffectKind::Survey, home(), AttemptOutcome::Done, taken());
    let (effect, waiting_on) = waits(decided(&powering_on(&[HERE]), &surveyed));
    assert_eq!(effect, None, "not before the next interval");
    let is_retry = matches!(
        waiting_on,
        WaitingOn::Retry {
            effect: EffectKind::Reconfigure,
            ..
        }
    );
    assert!(is_retry, "{waiting_on}");
}
