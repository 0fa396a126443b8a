//! A VM that is busy: a task of somebody else runs on it, or one of its files is locked.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT};
use haulout_lab::vcenter::{FaultRule, GuestPatch};
use haulout_lab::wait::until;

use crate::assertions::{call_times, clock, node_writes, records, wait_for_call, wait_for_power_off};
use crate::fixture::{fixture, one_node, run, run_scenario};
use crate::placement::{cluster, runs_on};

/// Waits until the rule has applied this often.
async fn wait_for_hits(fixture: &Fixture<'_>, rule: u32, hits: u32) -> anyhow::Result<()> {
    let what = format!("rule {rule} to apply {hits} times");
    until(&what, WAIT_TIMEOUT, async || {
        let rules = fixture.vcenter.faults().await?;
        let rule = rules.iter().find(|it| it.id == rule);
        Ok(rule.is_some_and(|rule| rule.hits >= hits).then_some(()))
    })
    .await
    .with_context(|| fixture.log_text())
}

#[test]
fn guest_is_asked_when_the_snapshot_of_its_vm_is_done() {
    run_scenario(async {
        let fixture = one_node("busy-snapshot").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = run(&fixture, &[("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "2")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("held by PodDisruptionBudget held-budget")
            .await?;
        // A backup begins during the drain, and takes longer than the guest may take.
        let backup = Duration::from_secs(12);
        fixture
            .vcenter
            .occupy_vm("gpu1", "CreateSnapshot_Task", backup)
            .await?;
        fixture.set_budget("held", 1).await?;
        fixture.wait_for_log("vCenter refused: TaskInProgress: ").await?;
        let off = wait_for_power_off(&fixture, "gpu1").await?;
        ensure!(
            off.cause == "ShutdownGuest" && fixture.calls("PowerOffVM_Task", "gpu1").await? == 0,
            "its power was cut; Haulout's log:\n{}",
            fixture.log_text()
        );
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn guest_that_vcenter_could_not_ask_for_a_while_has_its_whole_time_then() {
    run_scenario(async {
        let fixture = one_node("busy-refused").await?;
        let deaf = GuestPatch {
            ignore_shutdown: Some(true),
            ..GuestPatch::default()
        };
        fixture.vcenter.patch_vm("gpu1", deaf).await?;
        let busy = FaultRule::soap("ShutdownGuest", "TaskInProgress");
        let busy = fixture.vcenter.fault(&busy).await?;
        let haulout = run(&fixture, &[("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "3")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        // It is asked once a second, so this is longer than the guest may take.
        wait_for_hits(&fixture, busy, 6).await?;
        ensure!(
            fixture.calls("PowerOffVM_Task", "gpu1").await? == 0,
            "its power was cut before it was asked; Haulout's log:\n{}",
            fixture.log_text()
        );
        fixture.vcenter.remove_fault(busy).await?;
        let asked = wait_for_call(&fixture, "ShutdownGuest", "gpu1").await?;
        let cut = wait_for_call(&fixture, "PowerOffVM_Task", "gpu1").await?;
        let time = cut.time.duration_since(asked.time).as_secs_f64();
        ensure!(time > 2.5, "the guest had {time} s");
        ensure!(
            call_times(&fixture, "ShutdownGuest", "gpu1").await?.len() == 1,
            "it was asked once"
        );
        fixture.wait_in_maintenance("esx1").await?;
        haulout.stop().await
    });
}

#[test]
fn locked_file_is_waited_for_on_the_host_to_which_the_vm_was_moved() {
    run_scenario(async {
        let fixture = fixture("busy-locked", &cluster("busy-locked", &["esx1", "esx2"], "esx1")).await?;
        let node = fixture.node_name("gpu1");
        let locked = FaultRule::task("PowerOnVM_Task", "FileLocked").to_host("esx2");
        let locked = fixture.vcenter.fault(&locked).await?;
        let began = clock();
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        wait_for_hits(&fixture, locked, 3).await?;
        fixture.vcenter.remove_fault(locked).await?;
        runs_on(&fixture, "esx2").await?;
        let moves = fixture.calls("RelocateVM_Task", "gpu1").await?;
        ensure!(moves == 1, "{moves} relocations");
        let writes = node_writes(&fixture, &node, began).await?;
        let barred = records(&writes)
            .into_iter()
            .find(|record| record.get("refusals").is_some());
        ensure!(barred.is_none(), "a host is barred: {barred:?}");
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn vm_whose_file_is_locked_for_long_starts_without_another_move() {
    run_scenario(async {
        let fixture = fixture("busy-long", &cluster("busy-long", &["esx1", "esx2"], "esx1")).await?;
        let locked = FaultRule::task("PowerOnVM_Task", "FileLocked").to_host("esx2");
        let locked = fixture.vcenter.fault(&locked).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("esx2 could not power the VM on and is tried again: ")
            .await?;
        let rules = fixture.vcenter.faults().await?;
        let tries = rules.iter().find(|it| it.id == locked).map_or(0, |it| it.hits);
        wait_for_hits(&fixture, locked, tries + 1).await?;
        fixture.vcenter.remove_fault(locked).await?;
        runs_on(&fixture, "esx2").await?;
        let moves = fixture.calls("RelocateVM_Task", "gpu1").await?;
        ensure!(moves == 1, "{moves} relocations");
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}
