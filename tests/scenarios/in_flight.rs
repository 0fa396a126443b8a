//! What was set in motion and cannot be recalled: a guest that was asked to shut down, a power-off under way.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::stage::{PATIENCE, Stage, is_cordoned, label};
use haulout_lab::vcenter::{Delays, EntryKind, Fault, FaultKind, GuestPatch, State, VmState};
use haulout_lab::wait::until;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::assertions::{
    asked, brought_back, clock, during, first_asked, guest_on_record, node_writes, none_asked, now, struck,
    went_off,
};
use crate::requests::copy_says;
use crate::fixture::{in_maintenance, one_node, run, tell};

/// How long a slow guest here takes to shut down.
const SLOW: u32 = 4_000;

async fn guest(stage: &Stage<'_>, manners: GuestPatch) -> anyhow::Result<()> {
    stage.vcenter.patch_vm("gpu1", manners).await
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

async fn is_on(stage: &Stage<'_>) -> anyhow::Result<bool> {
    Ok(stage
        .vcenter
        .state()
        .await?
        .vm("gpu1")
        .is_some_and(VmState::is_on))
}

/// The host comes out of maintenance, and the VM is powered on.
async fn comes_back(stage: &Stage<'_>) -> anyhow::Result<()> {
    in_maintenance(stage, "esx1").await?;
    stage.vcenter.exit_maintenance("esx1").await?;
    let on = |it: &State| it.vm("gpu1").is_some_and(VmState::is_on);
    stage.wait_vcenter("gpu1 is on again", on).await?;
    Ok(())
}

/// Sets or removes the label by which Haulout selects the Node.
async fn select(stage: &Stage<'_>, node: &str, is_selected: bool) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(stage.client());
    let value = is_selected.then_some("true");
    let patch = json!({"metadata": {"labels": {label(stage.name()): value}}});
    nodes
        .patch(node, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

#[test]
fn vm_comes_back_when_its_label_goes_during_guest_shutdown() {
    tell(async {
        let stage = one_node("label-gone").await?;
        let node = stage.node_name("gpu1");
        guest(&stage, slow(SLOW)).await?;
        let haulout = run(&stage, &[]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        first_asked(&stage, "ShutdownGuest", "gpu1").await?;
        copy_says(&stage, &node, &["shuttingDown"]).await?;
        // As Node Feature Discovery does when the pod of its worker ends.
        select(&stage, &node, false).await?;
        ensure!(is_on(&stage).await?, "the guest was too quick for this scenario");
        comes_back(&stage).await?;
        // Its worker runs again.
        select(&stage, &node, true).await?;
        stage.wait_in_service(&node).await?;
        ensure!(stage.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn vm_comes_back_when_its_node_is_deleted_during_guest_shutdown() {
    tell(async {
        let stage = one_node("node-gone").await?;
        let node = stage.node_name("gpu1");
        guest(&stage, slow(SLOW)).await?;
        let haulout = run(&stage, &[]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        first_asked(&stage, "ShutdownGuest", "gpu1").await?;
        copy_says(&stage, &node, &["shuttingDown"]).await?;
        let nodes: Api<Node> = Api::all(stage.client());
        nodes.delete(&node, &DeleteParams::default()).await?;
        ensure!(is_on(&stage).await?, "the guest was too quick for this scenario");
        comes_back(&stage).await?;
        // Its kubelet registers it again.
        stage.wait_in_service(&node).await?;
        ensure!(stage.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn vm_is_brought_back_when_cancelled_during_hard_power_off() {
    tell(async {
        let stage = one_node("cancel-cut").await?;
        guest(&stage, deaf()).await?;
        let delays = Delays {
            power_off_ms: 4_000,
            ..Delays::default()
        };
        stage.vcenter.set_delays(delays).await?;
        let haulout = run(&stage, &[("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "1")]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        first_asked(&stage, "PowerOffVM_Task", "gpu1").await?;
        stage.vcenter.cancel_maintenance("esx1").await?;
        brought_back(&stage, "gpu1").await?;
        haulout.stop().await
    });
}

#[test]
fn vm_is_brought_back_when_guest_stops_after_cancel_and_deadline() {
    tell(async {
        let stage = one_node("cancel-slow").await?;
        guest(&stage, slow(6_000)).await?;
        let haulout = run(&stage, &[("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "2")]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        first_asked(&stage, "ShutdownGuest", "gpu1").await?;
        stage.vcenter.cancel_maintenance("esx1").await?;
        brought_back(&stage, "gpu1").await?;
        ensure!(
            stage.calls("PowerOffVM_Task", "gpu1").await? == 0,
            "nobody wanted it off any more"
        );
        haulout.stop().await
    });
}

#[test]
fn vm_is_brought_back_when_uncordoned_and_cancelled_during_shutdown() {
    tell(async {
        let stage = one_node("uncordon-cancel").await?;
        let node = stage.node_name("gpu1");
        guest(&stage, slow(10_000)).await?;
        let haulout = run(&stage, &[]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        first_asked(&stage, "ShutdownGuest", "gpu1").await?;
        let before = clock();
        // A node that is uncordoned gets pods, and this one does not go by itself.
        stage.add_pod("held", &node, &[]).await?;
        stage.set_budget("held", 0).await?;
        stage.person_cordons(&node, false).await?;
        until("Haulout to answer the uncordon", PATIENCE, async || {
            Ok((!node_writes(&stage, &node, before).await?.is_empty()).then_some(()))
        })
        .await
        .with_context(|| stage.said())?;
        stage.vcenter.cancel_maintenance("esx1").await?;
        ensure!(is_on(&stage).await?, "the guest was too quick for this scenario");
        brought_back(&stage, "gpu1").await?;
        haulout.stop().await
    });
}

#[test]
fn guest_without_tools_keeps_its_shutdown_time_after_a_restart() {
    tell(async {
        let stage = one_node("tools-early").await?;
        let manners = GuestPatch {
            shutdown_ms: Some(7_000),
            tools_stop_ms: Some(200),
            ..GuestPatch::default()
        };
        guest(&stage, manners).await?;
        let haulout = run(&stage, &[("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "20")]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        guest_on_record(&stage, &stage.node_name("gpu1")).await?;
        haulout.kill().await?;
        let haulout = run(&stage, &[("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "20")]).await?;
        ensure!(is_on(&stage).await?, "the guest was too quick for this scenario");
        let off = went_off(&stage, "gpu1").await?;
        ensure!(
            off.cause == "ShutdownGuest" && stage.calls("PowerOffVM_Task", "gpu1").await? == 0,
            "its power was cut in mid-shutdown; Haulout said:\n{}",
            stage.said()
        );
        let asked = stage.calls("ShutdownGuest", "gpu1").await?;
        ensure!(asked == 1, "the guest was asked {asked} times");
        haulout.stop().await
    });
}

#[test]
fn guest_that_reboots_when_asked_is_powered_off_at_the_first_deadline() {
    tell(async {
        let stage = one_node("reboots").await?;
        let manners = GuestPatch {
            shutdown_ms: Some(500),
            reboots: Some(true),
            ..GuestPatch::default()
        };
        guest(&stage, manners).await?;
        let haulout = run(&stage, &[("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "5")]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        in_maintenance(&stage, "esx1").await?;
        let questions = asked(&stage, "ShutdownGuest", "gpu1").await?;
        ensure!(
            questions.len() <= 2,
            "the guest was asked {} times",
            questions.len()
        );
        let cut = asked(&stage, "PowerOffVM_Task", "gpu1").await?;
        let first = *cut.first().context("nobody cut its power")?;
        let after = first.duration_since(questions[0]).as_secs_f64();
        ensure!((4.5..12.0).contains(&after), "its power was cut after {after} s");
        stage.vcenter.exit_maintenance("esx1").await?;
        stage.wait_in_service(&stage.node_name("gpu1")).await?;
        haulout.stop().await
    });
}

#[test]
fn vm_that_dies_after_each_power_on_is_tried_slowly_and_parked() {
    tell(async {
        let stage = one_node("dies").await?;
        let node = stage.node_name("gpu1");
        let manners = GuestPatch {
            dies_after_ms: Some(300),
            ..GuestPatch::default()
        };
        guest(&stage, manners).await?;
        let changes = [("RETRY_MAX_SECONDS", "30"), ("POWER_ON_TIMEOUT_SECONDS", "15")];
        let haulout = run(&stage, &changes).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_phase(&node, "awaitingHost").await?;
        in_maintenance(&stage, "esx1").await?;
        stage.vcenter.exit_maintenance("esx1").await?;
        let first = first_asked(&stage, "PowerOnVM_Task", "gpu1").await?;
        let told = during(&stage, first.seq - 1, Duration::from_secs(20)).await?;
        let ons = told.iter().filter(|it| it.is_call("PowerOnVM_Task")).count();
        ensure!(
            ons <= 8,
            "{ons} power-ons in 20 s; Haulout said:\n{}",
            stage.said()
        );
        let parked = stage.wait_phase(&node, "parked").await?;
        ensure!(is_cordoned(&parked));
        haulout.stop().await
    });
}

#[test]
fn power_off_is_not_repeated_in_a_new_session_after_a_cancel() {
    tell(async {
        let stage = one_node("new-session").await?;
        let node = stage.node_name("gpu1");
        guest(&stage, deaf()).await?;
        let haulout = run(&stage, &[("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "1")]).await?;
        // The session ends between the look at the VM and the power-off, and the login takes its time.
        let ended = Fault::soap("PowerOffVM_Task", "NotAuthenticated").times(1);
        stage.vcenter.fault(&ended).await?;
        let login = Fault::new("Login", FaultKind::Delay).delayed(4_000);
        stage.vcenter.fault(&login).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        struck(&stage, "PowerOffVM_Task").await?;
        stage.vcenter.kill_sessions().await?;
        struck(&stage, "Login").await?;
        stage.vcenter.cancel_maintenance("esx1").await?;
        let cancelled = now(&stage).await?;
        let is_login = |it: &haulout_lab::vcenter::Entry| it.seq > cancelled && it.detail == "login";
        crate::assertions::line(&stage, "the login after the cancel", is_login).await?;
        none_asked(
            &stage,
            &["PowerOffVM_Task"],
            "gpu1",
            cancelled,
            Duration::from_secs(5),
        )
        .await?;
        stage.wait_in_service(&node).await?;
        ensure!(stage.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}

#[test]
fn vm_is_brought_back_when_cancelled_after_a_lost_power_off_reply() {
    tell(async {
        let stage = one_node("lost-reply").await?;
        guest(&stage, deaf()).await?;
        let delays = Delays {
            power_off_ms: 4_000,
            ..Delays::default()
        };
        stage.vcenter.set_delays(delays).await?;
        let haulout = run(&stage, &[("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "1")]).await?;
        let lost = Fault::new("PowerOffVM_Task", FaultKind::LoseReply).times(1);
        stage.vcenter.fault(&lost).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        let rule = struck(&stage, "PowerOffVM_Task").await?;
        ensure!(rule.kind == EntryKind::Fault);
        first_asked(&stage, "PowerOffVM_Task", "gpu1").await?;
        stage.vcenter.cancel_maintenance("esx1").await?;
        brought_back(&stage, "gpu1").await?;
        haulout.stop().await
    });
}
