//! Requests in flight that cannot be recalled: a guest shutdown, a power-off.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, Haulout, WAIT_TIMEOUT, is_cordoned, label};
use haulout_lab::vcenter::{Delays, EntryKind, FaultRule, FaultRuleKind, GuestPatch, State, VmState};
use haulout_lab::wait::until;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::assertions::{
    call_times, clock, ensure_brought_back, ensure_not_called, entries_during, journal_end, node_writes,
    wait_for_call, wait_for_fault, wait_for_guest_on_record, wait_for_power_off,
};
use crate::fixture::{one_node, run, run_scenario};
use crate::requests::copy_says;

/// Runs Haulout with a guest that ignores the shutdown, and with a power-off that takes seconds.
async fn run_with_slow_power_off(fixture: &Fixture<'_>) -> anyhow::Result<Haulout> {
    guest(fixture, deaf()).await?;
    let delays = Delays {
        power_off_ms: 4_000,
        ..Delays::default()
    };
    fixture.vcenter.set_delays(delays).await?;
    run(fixture, &[("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "1")]).await
}

/// The shutdown time of a slow guest.
const SLOW: u32 = 4_000;

async fn guest(fixture: &Fixture<'_>, manners: GuestPatch) -> anyhow::Result<()> {
    fixture.vcenter.patch_vm("gpu1", manners).await
}

fn slow(shutdown_ms: u32) -> GuestPatch {
    GuestPatch {
        shutdown_ms: Some(shutdown_ms),
        ..GuestPatch::default()
    }
}

fn deaf() -> GuestPatch {
    GuestPatch {
        ignore_shutdown: Some(true),
        ..GuestPatch::default()
    }
}

async fn is_on(fixture: &Fixture<'_>) -> anyhow::Result<bool> {
    Ok(fixture
        .vcenter
        .state()
        .await?
        .vm("gpu1")
        .is_some_and(VmState::is_on))
}

/// The host comes out of maintenance, and the VM is powered on.
async fn comes_back(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    fixture.wait_in_maintenance("esx1").await?;
    fixture.vcenter.exit_maintenance("esx1").await?;
    let on = |it: &State| it.vm("gpu1").is_some_and(VmState::is_on);
    fixture.wait_vcenter("gpu1 is on again", on).await?;
    Ok(())
}

/// Sets or removes the label that selects the Node.
async fn select(fixture: &Fixture<'_>, node: &str, is_selected: bool) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(fixture.client());
    let value = is_selected.then_some("true");
    let patch = json!({"metadata": {"labels": {label(fixture.name()): value}}});
    nodes
        .patch(node, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

#[test]
fn vm_comes_back_when_its_label_goes_during_guest_shutdown() {
    run_scenario(async {
        let fixture = one_node("label-gone").await?;
        let node = fixture.node_name("gpu1");
        guest(&fixture, slow(SLOW)).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        wait_for_call(&fixture, "ShutdownGuest", "gpu1").await?;
        copy_says(&fixture, &node, &["shuttingDown"]).await?;
        // Node Feature Discovery does so when the pod of its worker ends.
        select(&fixture, &node, false).await?;
        ensure!(
            is_on(&fixture).await?,
            "the guest was too quick for this scenario"
        );
        comes_back(&fixture).await?;
        // Its worker is back.
        select(&fixture, &node, true).await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn vm_comes_back_when_its_node_is_deleted_during_guest_shutdown() {
    run_scenario(async {
        let fixture = one_node("node-gone").await?;
        let node = fixture.node_name("gpu1");
        guest(&fixture, slow(SLOW)).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        wait_for_call(&fixture, "ShutdownGuest", "gpu1").await?;
        copy_says(&fixture, &node, &["shuttingDown"]).await?;
        let nodes: Api<Node> = Api::all(fixture.client());
        nodes.delete(&node, &DeleteParams::default()).await?;
        ensure!(
            is_on(&fixture).await?,
            "the guest was too quick for this scenario"
        );
        comes_back(&fixture).await?;
        // Its kubelet registers it again.
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn vm_is_brought_back_when_cancelled_during_hard_power_off() {
    run_scenario(async {
        let fixture = one_node("cancel-cut").await?;
        let haulout = run_with_slow_power_off(&fixture).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        wait_for_call(&fixture, "PowerOffVM_Task", "gpu1").await?;
        fixture.vcenter.cancel_maintenance("esx1").await?;
        ensure_brought_back(&fixture, "gpu1").await?;
        haulout.stop().await
    });
}

#[test]
fn vm_is_brought_back_when_guest_stops_after_cancel_and_deadline() {
    run_scenario(async {
        let fixture = one_node("cancel-slow").await?;
        guest(&fixture, slow(6_000)).await?;
        let haulout = run(&fixture, &[("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "2")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        wait_for_call(&fixture, "ShutdownGuest", "gpu1").await?;
        fixture.vcenter.cancel_maintenance("esx1").await?;
        ensure_brought_back(&fixture, "gpu1").await?;
        ensure!(
            fixture.calls("PowerOffVM_Task", "gpu1").await? == 0,
            "nobody wanted it off any more"
        );
        haulout.stop().await
    });
}

#[test]
fn vm_is_brought_back_when_uncordoned_and_cancelled_during_shutdown() {
    run_scenario(async {
        let fixture = one_node("uncordon-cancel").await?;
        let node = fixture.node_name("gpu1");
        guest(&fixture, slow(10_000)).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        wait_for_call(&fixture, "ShutdownGuest", "gpu1").await?;
        let before = clock();
        // An uncordoned node gets pods, and this one does not end by itself.
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        fixture.person_cordons(&node, false).await?;
        until("Haulout to answer the uncordon", WAIT_TIMEOUT, async || {
            Ok((!node_writes(&fixture, &node, before).await?.is_empty()).then_some(()))
        })
        .await
        .with_context(|| fixture.log_text())?;
        fixture.vcenter.cancel_maintenance("esx1").await?;
        ensure!(
            is_on(&fixture).await?,
            "the guest was too quick for this scenario"
        );
        ensure_brought_back(&fixture, "gpu1").await?;
        haulout.stop().await
    });
}

#[test]
fn guest_without_tools_keeps_its_shutdown_time_after_a_restart() {
    run_scenario(async {
        let fixture = one_node("tools-early").await?;
        let manners = GuestPatch {
            shutdown_ms: Some(7_000),
            tools_stop_ms: Some(200),
            ..GuestPatch::default()
        };
        guest(&fixture, manners).await?;
        let haulout = run(&fixture, &[("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "20")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        wait_for_guest_on_record(&fixture, &fixture.node_name("gpu1")).await?;
        haulout.kill().await?;
        let haulout = run(&fixture, &[("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "20")]).await?;
        ensure!(
            is_on(&fixture).await?,
            "the guest was too quick for this scenario"
        );
        let off = wait_for_power_off(&fixture, "gpu1").await?;
        ensure!(
            off.cause == "ShutdownGuest" && fixture.calls("PowerOffVM_Task", "gpu1").await? == 0,
            "its power was cut in mid-shutdown; Haulout's log:\n{}",
            fixture.log_text()
        );
        let asked = fixture.calls("ShutdownGuest", "gpu1").await?;
        ensure!(asked == 1, "the guest was asked {asked} times");
        haulout.stop().await
    });
}

#[test]
fn guest_that_reboots_when_asked_is_powered_off_at_the_first_deadline() {
    run_scenario(async {
        let fixture = one_node("reboots").await?;
        let manners = GuestPatch {
            shutdown_ms: Some(500),
            reboots: Some(true),
            ..GuestPatch::default()
        };
        guest(&fixture, manners).await?;
        let haulout = run(&fixture, &[("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "5")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        let questions = call_times(&fixture, "ShutdownGuest", "gpu1").await?;
        ensure!(
            questions.len() <= 2,
            "the guest was asked {} times",
            questions.len()
        );
        let cut = call_times(&fixture, "PowerOffVM_Task", "gpu1").await?;
        let first = *cut.first().context("nobody cut its power")?;
        let after = first.duration_since(questions[0]).as_secs_f64();
        ensure!((4.5..12.0).contains(&after), "its power was cut after {after} s");
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&fixture.node_name("gpu1")).await?;
        haulout.stop().await
    });
}

#[test]
fn vm_that_dies_after_each_power_on_is_tried_slowly_and_parked() {
    run_scenario(async {
        let fixture = one_node("dies").await?;
        let node = fixture.node_name("gpu1");
        let manners = GuestPatch {
            dies_after_ms: Some(300),
            ..GuestPatch::default()
        };
        guest(&fixture, manners).await?;
        let changes = [
            ("TEST_TIMINGS", "retry_max=30"),
            ("POWER_ON_TIMEOUT_SECONDS", "15"),
        ];
        let haulout = run(&fixture, &changes).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        let first = wait_for_call(&fixture, "PowerOnVM_Task", "gpu1").await?;
        let entries = entries_during(&fixture, first.seq - 1, Duration::from_secs(20)).await?;
        let ons = entries.iter().filter(|it| it.is_call("PowerOnVM_Task")).count();
        ensure!(
            ons <= 8,
            "{ons} power-ons in 20 s; Haulout's log:\n{}",
            fixture.log_text()
        );
        let parked = fixture.wait_phase(&node, "parked").await?;
        ensure!(is_cordoned(&parked));
        haulout.stop().await
    });
}

#[test]
fn power_off_is_not_repeated_in_a_new_session_after_a_cancel() {
    run_scenario(async {
        let fixture = one_node("new-session").await?;
        let node = fixture.node_name("gpu1");
        guest(&fixture, deaf()).await?;
        let haulout = run(&fixture, &[("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "1")]).await?;
        // The session ends between reading the VM and the power-off, and the login is slow.
        let ended = FaultRule::soap("PowerOffVM_Task", "NotAuthenticated").times(1);
        fixture.vcenter.fault(&ended).await?;
        let login = FaultRule::new("Login", FaultRuleKind::Delay).delayed(4_000);
        fixture.vcenter.fault(&login).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        wait_for_fault(&fixture, "PowerOffVM_Task").await?;
        fixture.vcenter.kill_sessions().await?;
        wait_for_fault(&fixture, "Login").await?;
        fixture.vcenter.cancel_maintenance("esx1").await?;
        let cancelled = journal_end(&fixture).await?;
        let is_login = |it: &haulout_lab::vcenter::Entry| it.seq > cancelled && it.detail == "login";
        crate::assertions::wait_for_entry(&fixture, "the login after the cancel", is_login).await?;
        ensure_not_called(
            &fixture,
            &["PowerOffVM_Task"],
            "gpu1",
            cancelled,
            Duration::from_secs(5),
        )
        .await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}

#[test]
fn vm_is_brought_back_when_cancelled_after_a_lost_power_off_reply() {
    run_scenario(async {
        let fixture = one_node("lost-reply").await?;
        let haulout = run_with_slow_power_off(&fixture).await?;
        let lost = FaultRule::new("PowerOffVM_Task", FaultRuleKind::LoseReply).times(1);
        fixture.vcenter.fault(&lost).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        let rule = wait_for_fault(&fixture, "PowerOffVM_Task").await?;
        ensure!(rule.kind == EntryKind::Fault);
        wait_for_call(&fixture, "PowerOffVM_Task", "gpu1").await?;
        fixture.vcenter.cancel_maintenance("esx1").await?;
        ensure_brought_back(&fixture, "gpu1").await?;
        haulout.stop().await
    });
}
