use crate::facts::kubernetes::{NodeMaintenanceRole, RequestAction};
use crate::facts::vsphere::{Compute, Drs, HostReading, VsphereUpdate};
use crate::fixtures::{
    drain_report, entering as entering_state, found, home, host, moment, name, policy, trio,
    vm as observed_vm, vm_ref,
};
use crate::ids::{ComputeRef, TaskRef};
use crate::inventory::dry_run::DryRunOverlay;
use crate::inventory::tests::{asked, entering, inventory_with, maintenance, snapshot_of, surveyed, vsphere};
use crate::inventory::{Fact, Inventory};
use crate::maintenance::decide::{Decision, decide};
use crate::maintenance::drain::DrainReport;
use crate::maintenance::effect::{Effect, EffectKind, PowerOnTarget};
use crate::maintenance::effect_report::{EffectReport, EffectResult};
use crate::maintenance::episode::Record;
use crate::maintenance::observed::{AttemptOutcome, CordonedBy, HostState, PowerState};
use crate::maintenance::placement::HostSurvey;
use crate::maintenance::policy::DrainTimeoutAction;

/// One step of node 1: its decision, with the reply of the dry-run executor.
fn step(inventory: &mut Inventory, second: i64) -> Option<String> {
    let now = moment(second);
    let report = |found| Fact::Effect(EffectReport { node: name(1), found });
    inventory.set_time(now);
    if !inventory.update_watch_set().urgent.is_empty() {
        inventory.apply(found(1, &[1]));
    }
    let snapshot = snapshot_of(inventory, 1);
    match decide(
        &snapshot.record,
        &snapshot.observed,
        &policy(DrainTimeoutAction::Hold),
        now,
    ) {
        Decision::Write(transition) => {
            let phase = transition.record.phase_name().to_owned();
            inventory.apply(report(EffectResult::DryRunRecord {
                record: Box::new(transition.record),
                unschedulable: transition.unschedulable,
                fulfilled: transition.fulfilled.map(|request| request.uid),
            }));
            Some(phase)
        }
        Decision::Act { effect, .. } => {
            let kind = effect.kind();
            inventory.apply(match &effect {
                Effect::DrainRound { pods_revision, .. } => report(EffectResult::Drain(DrainReport {
                    pods_revision: *pods_revision,
                    ..drain_report(now.monotonic, Vec::new())
                })),
                Effect::Survey { .. } => surveyed(4, HostSurvey::Read(HostReading::default())),
                Effect::ListVolumes
                | Effect::ShutdownGuest { .. }
                | Effect::PowerOff { .. }
                | Effect::Relocate { .. }
                | Effect::Reconfigure { .. }
                | Effect::SetMachineGuards { .. }
                | Effect::RemoveMachineGuards { .. }
                | Effect::ClearGpus { .. }
                | Effect::PowerOn { .. } => report(EffectResult::DryRunEffect(effect.clone())),
            });
            inventory.apply(report(EffectResult::Tried {
                kind,
                at: now,
                host: effect.host().cloned(),
                outcome: AttemptOutcome::Done,
            }));
            Some(kind.name().to_owned())
        }
        Decision::Wait { .. } | Decision::Idle => None,
    }
}

/// The phases and effects of node 1 in the two minutes from second `from`.
fn walk(inventory: &mut Inventory, from: i64) -> Vec<String> {
    let mut steps: Vec<String> = (from..from + 120)
        .filter_map(|second| step(inventory, second))
        .collect();
    steps.dedup();
    steps
}

fn cluster(drs: Option<Drs>) -> Fact {
    vsphere(VsphereUpdate::Compute(Compute {
        moref: ComputeRef::new("c"),
        name: None,
        drs,
        rules: Default::default(),
    }))
}

fn clicked() -> Inventory {
    let facts = [
        cluster(None),
        vsphere(VsphereUpdate::Host(host(4).into())),
        vsphere(VsphereUpdate::Host(entering(1, 5).into())),
    ];
    inventory_with(trio(1).into_iter().chain(facts))
}

#[test]
fn dry_run_completes_an_episode_and_does_not_repeat_it() {
    let mut inventory = clicked();
    let steps = walk(&mut inventory, 10);
    let effects = [
        EffectKind::DrainRound,
        EffectKind::ShutdownGuest,
        EffectKind::Relocate,
        EffectKind::PowerOn,
    ];
    let names: Vec<&str> = effects.iter().map(|kind| kind.name()).collect();
    let mut done: Vec<&str> = steps
        .iter()
        .map(String::as_str)
        .filter(|step| names.contains(step))
        .collect();
    done.dedup();
    assert_eq!(done, names, "{steps:?}");
    assert_eq!(steps.last().map(String::as_str), Some("InService"), "{steps:?}");
    let after = snapshot_of(&mut inventory, 1);
    assert_eq!(after.record, Record::InService);
    assert!(
        after.is_idle(),
        "the click whose episode has ended is done: {after:?}"
    );
    assert_eq!(walk(&mut inventory, 200), [] as [String; 0]);
    // Another maintenance task of the same host begins another episode.
    inventory.apply(vsphere(VsphereUpdate::Host(host(1).into())));
    let mut again = entering(1, 300);
    if let Some(entering) = &mut again.entering {
        entering.task = TaskRef::new("task-again");
    }
    inventory.apply(vsphere(VsphereUpdate::Host(again.into())));
    assert!(!walk(&mut inventory, 310).is_empty());
}

#[test]
fn a_dry_run_shows_the_node_as_it_would_be() {
    let mut inventory = clicked();
    let mut powered_off = false;
    for second in 10..130 {
        inventory.set_time(moment(second));
        let before = snapshot_of(&mut inventory, 1);
        let phase = before.record.phase_name().to_owned();
        let node = before.observed.node.clone().unwrap();
        if !["InService", "Queued"].contains(&&*phase) {
            assert!(node.unschedulable, "{phase}");
            assert_eq!(node.cordoned_by, CordonedBy::Haulout, "{phase}");
        }
        // While the lookup is repeated, there is no VM to show.
        if let Some(vm) = before.observed.vm.found() {
            powered_off |= vm.power == Some(PowerState::Off);
            assert!(phase != "Relocating" || vm.power == Some(PowerState::Off));
        }
        if step(&mut inventory, second).as_deref() == Some("InService") {
            break;
        }
    }
    assert!(powered_off);
    let after = snapshot_of(&mut inventory, 1).observed;
    assert!(!after.node.unwrap().unschedulable);
    assert_eq!(after.vm.found().unwrap().power, Some(PowerState::On));
}

#[test]
fn request_that_a_dry_run_fulfilled_is_not_served_again() {
    let role = NodeMaintenanceRole::Request(asked(RequestAction::Reboot));
    let mut inventory = inventory_with(trio(1).into_iter().chain([maintenance(
        "reboot".to_owned(),
        name(1),
        1,
        role,
    )]));
    let steps = walk(&mut inventory, 10);
    assert_eq!(steps.last().map(String::as_str), Some("InService"), "{steps:?}");
    assert!(
        steps.iter().any(|step| step == EffectKind::PowerOn.name()),
        "{steps:?}"
    );
    assert_eq!(walk(&mut inventory, 200), [] as [String; 0]);
}

#[test]
fn a_power_on_in_a_dry_run_leaves_the_vm_where_it_is_unless_drs_chooses() {
    for (place, on) in [
        (PowerOnTarget::Host(home()), Some(home())),
        (PowerOnTarget::Drs, None),
    ] {
        let mut overlay = DryRunOverlay::default();
        overlay.perform(&Effect::PowerOn { vm: vm_ref(1), place });
        let mut vm = observed_vm(Some(PowerState::Off), entering_state());
        overlay.apply_to_vm(&mut vm, |_| HostState::InService);
        assert_eq!((vm.power, vm.host_ref), (Some(PowerState::On), on));
    }
}
