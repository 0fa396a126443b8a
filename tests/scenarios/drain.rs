//! Drains that are blocked or time out, and guests that do not shut down.

use std::time::Duration;

use anyhow::ensure;
use haulout_lab::fixture::{WAIT_TIMEOUT, container, episode, is_cordoned};
use haulout_lab::kube::AuditEvent;
use haulout_lab::kubelet::{EXITS_AFTER_MS, STUCK};
use haulout_lab::vcenter::GuestPatch;
use haulout_lab::wait::until;
use k8s_openapi::api::apps::v1::ReplicaSet;
use kube::Api;
use kube::api::PostParams;

use crate::fixture::{one_node, run, run_scenario};

fn is_accepted_eviction(event: &AuditEvent) -> bool {
    event.subresource.as_deref() == Some("eviction") && (200..300).contains(&event.code)
}

#[test]
fn blocking_budget_is_named_and_the_drain_continues_when_it_allows() {
    run_scenario(async {
        let fixture = one_node("budget").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("budget/held: held by PodDisruptionBudget held-budget")
            .await?;
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        ensure!(!fixture.audit().await?.iter().any(is_accepted_eviction));
        fixture.set_budget("held", 1).await?;
        fixture.wait_state(&node, Some("powered-off")).await?;
        fixture.vcenter.exit_maintenance("esx1").await.ok();
        fixture
            .wait_vcenter("esx1 is in maintenance or out", |it| {
                it.host("esx1").unwrap().entering.is_none()
            })
            .await?;
        fixture.vcenter.exit_maintenance("esx1").await.ok();
        fixture.wait_in_service(&node).await?;
        let mut of_pods = fixture.audit().await?;
        of_pods.retain(|it| it.resource == "pods");
        ensure!(of_pods.iter().any(is_accepted_eviction));
        let other = of_pods
            .iter()
            .find(|it| it.subresource.as_deref() != Some("eviction"));
        ensure!(
            other.is_none(),
            "it did more to a pod than ask for its eviction: {other:#?}"
        );
        haulout.stop().await
    });
}

#[test]
fn blocked_eviction_is_retried_at_once_when_the_budget_allows() {
    run_scenario(async {
        let fixture = one_node("allows").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        // Longer than the test waits: the drain continues because of the watch on the budget.
        let haulout = run(&fixture, &[("TEST_TIMINGS", "eviction_retry=600")]).await?;
        let asked = async || -> anyhow::Result<usize> {
            let audit = fixture.audit().await?;
            let is_eviction = |event: &&AuditEvent| event.subresource.as_deref() == Some("eviction");
            Ok(audit.iter().filter(is_eviction).count())
        };

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("allows/held: held by PodDisruptionBudget held-budget")
            .await?;
        // Until the watch of the budget is established, evictions are retried.
        let mut before = asked().await?;
        until("nobody to ask for a second", WAIT_TIMEOUT, async || {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let is_quiet = std::mem::replace(&mut before, asked().await?) == before;
            Ok(is_quiet.then_some(()))
        })
        .await?;
        fixture.set_budget("held", 1).await?;
        fixture.wait_state(&node, Some("powered-off")).await?;
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
    run_scenario(async {
        let fixture = one_node("timeout").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("stuck", &node, &[(STUCK, "true")]).await?;
        fixture.add_pod("goes", &node, &[]).await?;
        let haulout = run(&fixture, &[("DRAIN_TIMEOUT_SECONDS", "30")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        let off = fixture.wait_state(&node, Some("powered-off")).await?;
        let left = episode(&off).and_then(|it| it.get("leftBehind").cloned());
        ensure!(left == Some(serde_json::json!(["timeout/stuck"])), "{left:?}");
        fixture
            .wait_for_log("the guest is being shut down with 1 pod left: timeout/stuck")
            .await?;
        haulout.stop().await
    });
}

#[test]
fn drain_timeout_with_hold_does_not_power_off() {
    run_scenario(async {
        let fixture = one_node("hold").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("stuck", &node, &[(STUCK, "true")]).await?;
        let changes = [("DRAIN_TIMEOUT_SECONDS", "1"), ("DRAIN_TIMEOUT_ACTION", "hold")];
        let haulout = run(&fixture, &changes).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("the drain timeout passed and DRAIN_TIMEOUT_ACTION is hold")
            .await?;
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        let held = fixture.node(&node).await?;
        ensure!(is_cordoned(&held));
        fixture.vcenter.cancel_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}

#[test]
fn guest_that_ignores_shutdown_is_powered_off_after_its_deadline() {
    run_scenario(async {
        let fixture = one_node("ignores").await?;
        let node = fixture.node_name("gpu1");
        let deaf = GuestPatch {
            ignore_shutdown: Some(true),
            ..GuestPatch::default()
        };
        fixture.vcenter.patch_vm("gpu1", deaf).await?;
        let haulout = run(&fixture, &[("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "2")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_state(&node, Some("powered-off")).await?;
        ensure!(fixture.calls("ShutdownGuest", "gpu1").await? == 1);
        ensure!(fixture.calls("PowerOffVM_Task", "gpu1").await? == 1);
        let journal = fixture.vcenter.journal().await?;
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
    run_scenario(async {
        let fixture = one_node("no-tools").await?;
        let node = fixture.node_name("gpu1");
        let mute = GuestPatch {
            tools: Some(false),
            ..GuestPatch::default()
        };
        fixture.vcenter.patch_vm("gpu1", mute).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_state(&node, Some("powered-off")).await?;
        ensure!(fixture.calls("PowerOffVM_Task", "gpu1").await? == 1);
        haulout.stop().await
    });
}

#[test]
fn stale_ready_does_not_bring_the_node_back() {
    run_scenario(async {
        let fixture = one_node("lies").await?;
        let node = fixture.node_name("gpu1");
        // The Node stays Ready=True, with heartbeats, through the whole power cycle.
        fixture
            .kubelet("gpu1")?
            .set_lies(std::time::Duration::from_secs(30));
        let haulout = run(&fixture, &[]).await?;
        let boot_before = haulout_lab::fixture::boot_id(&fixture.node(&node).await?);

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.wait_in_maintenance("esx1").await?;
        ensure!(
            haulout_lab::fixture::is_ready(&fixture.node(&node).await?),
            "it lies"
        );
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture
            .wait_for_log("its Ready is from before the power cycle")
            .await?;
        let back = fixture.wait_in_service(&node).await?;
        ensure!(
            haulout_lab::fixture::boot_id(&back) != boot_before,
            "only the other boot counts"
        );
        haulout.stop().await
    });
}

#[test]
fn pod_that_tolerates_the_cordon_and_comes_back_does_not_hold_the_drain() {
    run_scenario(async {
        let fixture = one_node("comes-back").await?;
        let node = fixture.node_name("gpu1");
        // Its template names the node, so each new pod is there at once, as if a scheduler had bound it.
        let set: ReplicaSet = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "agent"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": "agent"}},
                "template": {
                    "metadata": {"labels": {"app": "agent"}, "annotations": {EXITS_AFTER_MS: "100"}},
                    "spec": {
                        "nodeName": node,
                        "tolerations": [{"operator": "Exists"}],
                        "containers": [container()],
                    },
                },
            },
        }))?;
        let sets: Api<ReplicaSet> = Api::namespaced(fixture.client(), fixture.name());
        sets.create(&PostParams::default(), &set).await?;
        until("the pod of the ReplicaSet", WAIT_TIMEOUT, async || {
            Ok((fixture.pods_on(&node).await?.len() == 1).then_some(()))
        })
        .await?;
        let haulout = run(&fixture, &[("DRAIN_TIMEOUT_SECONDS", "600")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("with 1 pod that did not hold the drain: comes-back/agent-")
            .await?;
        fixture.wait_state(&node, Some("powered-off")).await?;
        let audit = fixture.audit().await?;
        let evictions = audit
            .iter()
            .filter(|it| it.subresource.as_deref() == Some("eviction"));
        let evictions = evictions.count();
        // Of the first pod, of its successor at the shutdown, and on a slow machine of one more for each list that was too old. A
        // drain that evicts each successor makes one in each round.
        ensure!((1..=5).contains(&evictions), "{evictions} evictions");
        haulout.stop().await
    });
}
