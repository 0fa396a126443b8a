//! Pods that do not go, and guests that do not stop.

use std::time::Duration;

use anyhow::ensure;
use haulout_lab::kube::AuditEvent;
use haulout_lab::kubelet::STUCK;
use haulout_lab::stage::{PATIENCE, episode, is_cordoned};
use haulout_lab::vcenter::GuestPatch;
use haulout_lab::wait::until;

use crate::fixture::{in_maintenance, one_node, run, tell};

#[test]
fn blocking_budget_is_named_and_the_drain_continues_when_it_allows() {
    tell(async {
        let stage = one_node("budget").await?;
        let node = stage.node_name("gpu1");
        stage.add_pod("held", &node, &[]).await?;
        stage.set_budget("held", 0).await?;
        let haulout = run(&stage, &[]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        stage
            .wait_said("budget/held: held by PodDisruptionBudget held-budget")
            .await?;
        ensure!(stage.power_cycles("gpu1").await? == (0, 0));
        stage.set_budget("held", 1).await?;
        stage.wait_state(&node, Some("powered-off")).await?;
        stage.vcenter.exit_maintenance("esx1").await.ok();
        stage
            .wait_vcenter("esx1 is in maintenance or out", |it| {
                it.host("esx1").unwrap().entering.is_none()
            })
            .await?;
        stage.vcenter.exit_maintenance("esx1").await.ok();
        stage.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn blocked_eviction_is_retried_at_once_when_the_budget_allows() {
    tell(async {
        let stage = one_node("allows").await?;
        let node = stage.node_name("gpu1");
        stage.add_pod("held", &node, &[]).await?;
        stage.set_budget("held", 0).await?;
        // Nobody waits that long: what goes on, goes on because the budget was heard.
        let haulout = run(&stage, &[("EVICTION_RETRY_SECONDS", "600")]).await?;
        let asked = async || -> anyhow::Result<usize> {
            let audit = stage.audit().await?;
            let is_eviction = |event: &&AuditEvent| event.subresource.as_deref() == Some("eviction");
            Ok(audit.iter().filter(is_eviction).count())
        };

        stage.vcenter.enter_maintenance("esx1").await?;
        stage
            .wait_said("allows/held: held by PodDisruptionBudget held-budget")
            .await?;
        // It is heard once its watch stands; until then it was asked.
        let mut before = asked().await?;
        until("nobody to ask for a second", PATIENCE, async || {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let is_quiet = std::mem::replace(&mut before, asked().await?) == before;
            Ok(is_quiet.then_some(()))
        })
        .await?;
        stage.set_budget("held", 1).await?;
        stage.wait_state(&node, Some("powered-off")).await?;
        let more = asked().await? - before;
        ensure!(
            more <= 3,
            "{more} evictions were asked for after the budget allowed one"
        );
        haulout.stop().await
    });
}

#[test]
fn drain_timeout_powers_off_and_names_the_remaining_pods() {
    tell(async {
        let stage = one_node("timeout").await?;
        let node = stage.node_name("gpu1");
        stage.add_pod("stuck", &node, &[(STUCK, "true")]).await?;
        stage.add_pod("goes", &node, &[]).await?;
        let haulout = run(&stage, &[("DRAIN_TIMEOUT_SECONDS", "3")]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        let off = stage.wait_state(&node, Some("powered-off")).await?;
        let left = episode(&off).and_then(|it| it.get("leftBehind").cloned());
        ensure!(left == Some(serde_json::json!(["timeout/stuck"])), "{left:?}");
        stage.wait_said("1 pods are left behind: timeout/stuck").await?;
        haulout.stop().await
    });
}

#[test]
fn drain_timeout_with_hold_does_not_power_off() {
    tell(async {
        let stage = one_node("hold").await?;
        let node = stage.node_name("gpu1");
        stage.add_pod("stuck", &node, &[(STUCK, "true")]).await?;
        let changes = [("DRAIN_TIMEOUT_SECONDS", "1"), ("DRAIN_TIMEOUT_ACTION", "hold")];
        let haulout = run(&stage, &changes).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        stage
            .wait_said("the drain timeout passed and its power is not cut on pods")
            .await?;
        ensure!(stage.power_cycles("gpu1").await? == (0, 0));
        let held = stage.node(&node).await?;
        ensure!(is_cordoned(&held));
        stage.vcenter.cancel_maintenance("esx1").await?;
        stage.wait_in_service(&node).await?;
        ensure!(stage.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}

#[test]
fn guest_that_ignores_shutdown_is_powered_off_after_its_deadline() {
    tell(async {
        let stage = one_node("ignores").await?;
        let node = stage.node_name("gpu1");
        let deaf = GuestPatch {
            ignore_shutdown: Some(true),
            ..GuestPatch::default()
        };
        stage.vcenter.patch_vm("gpu1", deaf).await?;
        let haulout = run(&stage, &[("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "2")]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_state(&node, Some("powered-off")).await?;
        ensure!(stage.calls("ShutdownGuest", "gpu1").await? == 1);
        ensure!(stage.calls("PowerOffVM_Task", "gpu1").await? == 1);
        let journal = stage.vcenter.journal().await?;
        let asked = journal
            .iter()
            .find(|it| it.is_call("ShutdownGuest"))
            .unwrap()
            .time;
        let cut = journal
            .iter()
            .find(|it| it.is_call("PowerOffVM_Task"))
            .unwrap()
            .time;
        ensure!(
            cut.duration_since(asked).as_secs_f64() > 1.5,
            "not before its deadline"
        );
        haulout.stop().await
    });
}

#[test]
fn guest_without_tools_is_powered_off_at_once() {
    tell(async {
        let stage = one_node("no-tools").await?;
        let node = stage.node_name("gpu1");
        let mute = GuestPatch {
            tools: Some(false),
            ..GuestPatch::default()
        };
        stage.vcenter.patch_vm("gpu1", mute).await?;
        let haulout = run(&stage, &[]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_state(&node, Some("powered-off")).await?;
        ensure!(stage.calls("PowerOffVM_Task", "gpu1").await? == 1);
        haulout.stop().await
    });
}

#[test]
fn stale_ready_does_not_bring_the_node_back() {
    tell(async {
        let stage = one_node("lies").await?;
        let node = stage.node_name("gpu1");
        // The Node stays Ready=True, with its heartbeats, through the whole power cycle.
        stage
            .kubelet("gpu1")?
            .set_lies(std::time::Duration::from_secs(30));
        let haulout = run(&stage, &[]).await?;
        let boot_before = haulout_lab::stage::boot_id(&stage.node(&node).await?);

        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_phase(&node, "awaitingHost").await?;
        in_maintenance(&stage, "esx1").await?;
        ensure!(haulout_lab::stage::is_ready(&stage.node(&node).await?), "it lies");
        stage.vcenter.exit_maintenance("esx1").await?;
        stage
            .wait_said("its Ready is from before the power cycle")
            .await?;
        let back = stage.wait_in_service(&node).await?;
        ensure!(
            haulout_lab::stage::boot_id(&back) != boot_before,
            "only the other boot counts"
        );
        haulout.stop().await
    });
}
