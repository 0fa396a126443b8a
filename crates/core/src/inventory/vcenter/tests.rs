use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::facts::vsphere::{EndOutcome, Host, MaintenanceEnd, Task, TaskState, VsphereUpdate};
use crate::fixtures::{at, vm_ref};
use crate::inventory::tests::{
    apply_all, awaiting, entering, host, in_phase, inventory_with, moment, snapshot_of, tried, trio, vsphere,
};
use crate::maintenance::desired::DesiredState;
use crate::maintenance::effect::EffectKind;
use crate::maintenance::episode::Phase;
use crate::maintenance::observed::EffectAttempt;

fn host_changed(host: Host) -> crate::inventory::Fact {
    vsphere(VsphereUpdate::Host(host.into()))
}

/// Host 1, in service, after this task has ended with `outcome`.
fn after(task: &str, outcome: EndOutcome) -> Host {
    let task = TaskRef::new(task);
    Host {
        last_end: Some(MaintenanceEnd { task, outcome }),
        ..host(1)
    }
}

fn failed() -> EndOutcome {
    let message = "timed out".to_owned();
    EndOutcome::Failed { message }
}

fn interrupted(inventory: &mut Inventory) -> Option<FailedMaintenance> {
    let seen = snapshot_of(inventory, 1).observed;
    seen.vm.found().unwrap().interrupted.clone()
}

/// Node 1 is drained, and its host is entering maintenance.
fn draining() -> Inventory {
    let facts = [in_phase(1, Phase::Draining), host_changed(entering(1, 5))];
    inventory_with(trio(1).into_iter().chain(facts))
}

#[test]
fn a_failed_maintenance_keeps_the_node_as_it_is_for_a_while() {
    let mut inventory = draining();
    assert_eq!(interrupted(&mut inventory), None);
    inventory.set_time(moment(100));
    inventory.apply(host_changed(after("task-1", failed())));
    let at_100 = FailedMaintenance {
        at: moment(100),
        message: "timed out".to_owned(),
    };
    assert_eq!(interrupted(&mut inventory), Some(at_100.clone()));
    // Each change of the host reports the same task again.
    inventory.set_time(moment(105));
    inventory.apply(host_changed(Host {
        name: Some("renamed".to_owned()),
        ..after("task-1", failed())
    }));
    assert_eq!(interrupted(&mut inventory), Some(at_100));

    let seen = snapshot_of(&mut inventory, 1).observed;
    let vm = seen.vm.found().unwrap();
    let episode = crate::fixtures::episode(crate::maintenance::episode::Phase::Draining, 0);
    let desired =
        |seconds| DesiredState::in_episode(vm, &episode, None, Duration::from_secs(10), moment(seconds));
    assert!(
        matches!(
            desired(109),
            DesiredState::RetryExpected {
                message: "timed out",
                ..
            }
        ),
        "{:?}",
        desired(109)
    );
    assert_eq!(desired(110), DesiredState::InService);

    inventory.set_time(moment(200));
    inventory.apply(host_changed(after("task-2", failed())));
    assert_eq!(
        interrupted(&mut inventory).unwrap().at,
        moment(200),
        "a later one"
    );
}

#[test]
fn a_cancelled_maintenance_is_over_at_once() {
    let mut inventory = draining();
    inventory.apply(host_changed(after("task-1", EndOutcome::Cancelled)));
    assert_eq!(interrupted(&mut inventory), None);
    inventory.apply(host_changed(after("task-2", failed())));
    assert!(interrupted(&mut inventory).is_some());
    inventory.apply(host_changed(after("task-3", EndOutcome::Cancelled)));
    assert_eq!(interrupted(&mut inventory), None, "it was cancelled");
}

#[test]
fn a_failed_maintenance_is_forgotten_when_the_next_one_begins() {
    let next = [
        entering(1, 9),
        Host {
            in_maintenance: Some(true),
            ..host(1)
        },
    ];
    for next in next {
        let mut inventory = draining();
        inventory.apply(host_changed(after("task-1", failed())));
        inventory.apply(host_changed(next));
        assert_eq!(interrupted(&mut inventory), None);
        inventory.apply(host_changed(host(1)));
        assert_eq!(
            interrupted(&mut inventory),
            None,
            "it succeeded, or the host left maintenance"
        );
    }
}

#[test]
fn failed_maintenance_is_kept_when_the_stream_is_rebuilt() {
    let mut inventory = draining();
    inventory.apply(host_changed(after("task-1", failed())));
    // A rebuilt stream does not report tasks that ended before.
    let anew = || trio(1).into_iter().chain([in_phase(1, Phase::Draining)]);
    apply_all(&mut inventory, anew());
    assert!(interrupted(&mut inventory).is_some());
    inventory.apply(vsphere(VsphereUpdate::HostGone(host(1).moref)));
    inventory.apply(host_changed(host(1)));
    assert_eq!(interrupted(&mut inventory), None);
}

#[test]
fn a_failed_maintenance_counts_only_on_a_host_in_service() {
    let mut inventory = draining();
    inventory.apply(host_changed(Host {
        in_quarantine: Some(true),
        ..after("task-1", failed())
    }));
    assert_eq!(interrupted(&mut inventory), None);
}

fn power_on(inventory: &mut Inventory) -> EffectAttempt {
    let mut attempts = snapshot_of(inventory, 1).observed.attempts;
    attempts.remove(&EffectKind::PowerOn).unwrap()
}

#[test]
fn attempt_whose_task_vcenter_forgot_is_done() {
    let forgotten = TaskRef::new("task-9");
    let running = AttemptOutcome::Running(forgotten.clone());
    let mut inventory = inventory_with(trio(1).into_iter().chain([awaiting(1)]));
    inventory.apply(tried(1, EffectKind::PowerOn, 5, running.clone()));
    assert_eq!(
        inventory.update_watch_set().tasks,
        BTreeSet::from([forgotten.clone()])
    );
    inventory.all_snapshots();
    inventory.apply(vsphere(VsphereUpdate::TaskGone(TaskRef::new("task-8"))));
    assert_eq!(
        power_on(&mut inventory).outcome,
        running,
        "the task of another user"
    );
    inventory.apply(vsphere(VsphereUpdate::TaskGone(forgotten)));
    assert!(inventory.is_changed, "there is something to decide");
    assert_eq!(power_on(&mut inventory).outcome, AttemptOutcome::Done);
    assert_eq!(inventory.update_watch_set().tasks, BTreeSet::new());
}

/// A vCenter that restarts forgets the task; the host itself may go on entering.
#[test]
fn maintenance_that_a_rebuilt_stream_does_not_report_counts_as_failed() {
    let mut inventory = draining();
    inventory.set_time(moment(100));
    for update in [VsphereUpdate::Reset, VsphereUpdate::Host(host(1).into())] {
        inventory.apply(vsphere(update));
    }
    let lost = interrupted(&mut inventory).unwrap();
    assert_eq!(lost.at, moment(100));
    assert!(
        lost.message.contains("does not list its task"),
        "{}",
        lost.message
    );
    // It enters after all.
    inventory.apply(host_changed(Host {
        in_maintenance: Some(true),
        ..host(1)
    }));
    assert_eq!(interrupted(&mut inventory), None);
    inventory.apply(host_changed(host(1)));
    assert_eq!(interrupted(&mut inventory), None, "it left maintenance regularly");
}

/// Backups of a VM, in a session of vCenter that lasts for years.
#[test]
fn ended_tasks_of_a_long_session_are_forgotten() {
    let task = |number: i64, state: TaskState| Task {
        moref: TaskRef::new(format!("task-{number}")),
        vm: Some(vm_ref(1)),
        description_id: "VirtualMachine.createSnapshot".to_owned(),
        state,
        queued_at: at(number),
        by_us: false,
    };
    let mut inventory = inventory_with(trio(1));
    let running = task(0, TaskState::Running);
    inventory.apply(vsphere(VsphereUpdate::Task(running.clone())));
    let backups = 1..=1_000;
    for number in backups.clone() {
        for state in [TaskState::Queued, TaskState::Success] {
            inventory.apply(vsphere(VsphereUpdate::Task(task(number, state))));
            inventory.apply(vsphere(VsphereUpdate::Settled));
        }
    }
    let vcenter = &inventory.vcenter;
    assert!(vcenter.tasks.len() <= 2 * TASKS_PER_VM, "{}", vcenter.tasks.len());
    assert!(vcenter.task(&running.moref).is_some());
    let last = task(*backups.end(), TaskState::Success);
    assert_eq!(vcenter.task(&last.moref), Some(&last));
    assert!(vcenter.source.seen.is_empty(), "no whole list is received");
}
