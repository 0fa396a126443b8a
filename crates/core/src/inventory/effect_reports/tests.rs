use crate::facts::fault::{Fault, FaultKind};
use crate::facts::vsphere::{Task, TaskState, VsphereUpdate};
use crate::fixtures::{at, moment, name, trio};
use crate::ids::{HostRef, TaskRef, VmRef};
use crate::inventory::tests::{awaiting, inventory_with, snapshot_of, tried, vsphere};
use crate::inventory::{Fact, Inventory};
use crate::maintenance::effect::EffectKind;
use crate::maintenance::effect_report::{EffectReport, EffectResult};
use crate::maintenance::observed::{AttemptOutcome, EffectRefusal, RetryAdvice};

/// A failed task of the VM of node 1.
fn failed(task: &str, description_id: &str) -> Fact {
    vsphere(VsphereUpdate::Task(Task {
        moref: TaskRef::new(task),
        vm: Some(VmRef::new("vm-1")),
        description_id: description_id.to_owned(),
        state: TaskState::Error(Fault {
            kind: FaultKind::InsufficientResources,
            message: "no device".to_owned(),
        }),
        queued_at: at(0),
        by_us: false,
    }))
}

/// Node 1 has requested a power-on by DRS.
fn asked_drs() -> Inventory {
    let mut inventory = inventory_with(trio(1).into_iter().chain([awaiting(1)]));
    // A later complete set ends the attempts whose task is not in it.
    let outcome = AttemptOutcome::Running(TaskRef::new("drs-task"));
    inventory.apply(tried(1, EffectKind::PowerOn, 3, outcome));
    inventory
}

fn refusals(inventory: &mut Inventory) -> u32 {
    snapshot_of(inventory, 1).observed.attempts[&EffectKind::PowerOn].refusals
}

#[test]
fn a_failed_power_on_of_the_vm_itself_ends_the_attempt_by_drs() {
    let mut inventory = asked_drs();
    assert_eq!(refusals(&mut inventory), 0);
    inventory.apply(failed("vm-task", "VirtualMachine.powerOn"));
    assert_eq!(refusals(&mut inventory), 1);
    let outcome = snapshot_of(&mut inventory, 1).observed.attempts[&EffectKind::PowerOn]
        .outcome
        .clone();
    assert!(matches!(outcome, AttemptOutcome::Refused(_)), "{outcome:?}");
    // A repeated report of the same task is not another refusal.
    inventory.apply(failed("vm-task", "VirtualMachine.powerOn"));
    assert_eq!(refusals(&mut inventory), 1);
    // Neither is a report after the end of the attempt.
    inventory.apply(failed("late-task", "VirtualMachine.powerOn"));
    assert_eq!(refusals(&mut inventory), 1);
}

#[test]
fn a_failed_task_of_another_kind_says_nothing_about_the_power_on() {
    let mut inventory = asked_drs();
    inventory.apply(failed("vm-task", "VirtualMachine.powerOff"));
    assert_eq!(refusals(&mut inventory), 0);
}

#[test]
fn a_power_on_on_a_named_host_is_judged_by_its_own_task() {
    let mut inventory = inventory_with(trio(1).into_iter().chain([awaiting(1)]));
    let found = EffectResult::Tried {
        kind: EffectKind::PowerOn,
        at: moment(3),
        host: Some(HostRef::new("host-1")),
        outcome: AttemptOutcome::Running(TaskRef::new("our-task")),
    };
    inventory.apply(Fact::Effect(EffectReport { node: name(1), found }));
    inventory.apply(failed("vm-task", "VirtualMachine.powerOn"));
    assert_eq!(refusals(&mut inventory), 0);
    inventory.apply(failed("our-task", "VirtualMachine.powerOn"));
    assert_eq!(refusals(&mut inventory), 1);
}

#[test]
fn the_own_task_of_a_power_on_by_drs_counts_once() {
    let mut inventory = asked_drs();
    inventory.apply(failed("drs-task", "Drm.ExecuteVmPowerOnLRO"));
    assert_eq!(refusals(&mut inventory), 1);
}

#[test]
fn refusals_are_counted_for_each_host_and_each_kind_of_them_has_its_beginning() {
    let mut inventory = inventory_with(trio(1).into_iter().chain([awaiting(1)]));
    let mut seen = Vec::new();
    for (second, host, advice) in [
        (3, Some("host-1"), RetryAdvice::MayPass),
        (5, Some("host-1"), RetryAdvice::MayPass),
        (8, Some("host-1"), RetryAdvice::Unknown),
        (9, Some("host-2"), RetryAdvice::Unknown),
    ] {
        let refusal = EffectRefusal {
            advice,
            message: "no".to_owned(),
        };
        let found = EffectResult::Tried {
            kind: EffectKind::PowerOn,
            at: moment(second),
            host: host.map(HostRef::new),
            outcome: AttemptOutcome::Refused(refusal),
        };
        let node = name(1);
        inventory.apply(Fact::Effect(EffectReport { node, found }));
        let attempt = snapshot_of(&mut inventory, 1).observed.attempts[&EffectKind::PowerOn].clone();
        seen.push((attempt.refusals, attempt.refused_since, attempt.tries));
    }
    assert_eq!(
        seen,
        [
            (1, moment(3), 1),
            (2, moment(3), 2),
            (3, moment(8), 3),
            (1, moment(8), 4)
        ]
    );
}
