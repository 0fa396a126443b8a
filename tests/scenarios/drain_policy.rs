//! Pods that a drain waits for, skips or gives up.

use anyhow::ensure;
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT, episode};
use haulout_lab::kube::AuditEvent;
use haulout_lab::kubelet::STUCK;
use haulout_lab::wait::until;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::fixture::{one_node, run, run_scenario};

const DRAIN: &str = "haulout.dev/drain";
const WAIT_SECONDS: &str = "haulout.dev/drain-wait-seconds";

/// The pods whose eviction was asked for, each as often as it was.
async fn evictions(fixture: &Fixture<'_>) -> anyhow::Result<Vec<String>> {
    let is_eviction = |event: &&AuditEvent| event.subresource.as_deref() == Some("eviction");
    let audit = fixture.audit().await?;
    let evicted = audit
        .iter()
        .filter(is_eviction)
        .filter_map(|event| event.name.clone());
    Ok(evicted.collect())
}

fn left_behind(node: &Node) -> serde_json::Value {
    let left = episode(node).and_then(|it| it.get("leftBehind").cloned());
    left.unwrap_or_default()
}

#[test]
fn pod_that_asks_to_be_waited_for_ends_by_itself() {
    run_scenario(async {
        let fixture = one_node("drain-waits").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[(DRAIN, "wait")]).await?;
        fixture.add_pod("web", &node, &[]).await?;
        // The wait extends the drain.
        let haulout = run(&fixture, &[("DRAIN_TIMEOUT_SECONDS", "1")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("1 pod to go; drain-waits/train: waits for it to end until")
            .await?;
        let told = tokio::time::Instant::now();
        until("more than the drain timeout to pass", WAIT_TIMEOUT, async || {
            Ok((told.elapsed().as_secs() >= 2).then_some(()))
        })
        .await?;
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        let pods: Api<Pod> = Api::namespaced(fixture.client(), fixture.name());
        let ended = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
        pods.patch_status("train", &PatchParams::default(), &ended)
            .await?;
        let off = fixture.wait_state(&node, Some("powered-off")).await?;
        ensure!(left_behind(&off).is_null(), "{:?}", left_behind(&off));
        ensure!(evictions(&fixture).await? == ["web"]);
        haulout.stop().await
    });
}

#[test]
fn pod_that_has_not_ended_in_its_time_is_evicted_with_its_grace_period() {
    run_scenario(async {
        let fixture = one_node("wait-ends").await?;
        let node = fixture.node_name("gpu1");
        // The second asks for more than the settings allow.
        let times = [("short", "2"), ("long", "7200")];
        for (name, seconds) in times {
            let annotations = [
                (DRAIN, "wait"),
                (WAIT_SECONDS, seconds),
                ("lab.haulout/exits-after-ms", "1500"),
            ];
            fixture.add_pod(name, &node, &annotations).await?;
        }
        let changes = [("DRAIN_TIMEOUT_SECONDS", "60"), ("DRAIN_WAIT_MAX_SECONDS", "4")];
        let haulout = run(&fixture, &changes).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        let off = fixture.wait_state(&node, Some("powered-off")).await?;
        ensure!(left_behind(&off).is_null(), "{:?}", left_behind(&off));
        ensure!(evictions(&fixture).await? == ["short", "long"]);
        haulout.stop().await
    });
}

#[test]
fn namespace_with_skip_leaves_its_pods_on_the_node_and_they_are_named() {
    run_scenario(async {
        let fixture = one_node("skips").await?;
        let node = fixture.node_name("gpu1");
        let namespaces: Api<Namespace> = Api::all(fixture.client());
        let skip = Patch::Merge(json!({"metadata": {"annotations": {DRAIN: "skip"}}}));
        namespaces
            .patch(fixture.name(), &PatchParams::default(), &skip)
            .await?;
        fixture.add_pod("stays", &node, &[]).await?;
        fixture.add_pod("goes", &node, &[(DRAIN, "evict")]).await?;
        fixture.add_pod("odd", &node, &[(DRAIN, "later")]).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("with 1 pod that did not hold the drain: skips/stays (haulout.dev/drain=skip)")
            .await?;
        let off = fixture.wait_state(&node, Some("powered-off")).await?;
        ensure!(left_behind(&off) == json!(["skips/stays (haulout.dev/drain=skip)"]));
        let mut evicted = evictions(&fixture).await?;
        evicted.sort();
        ensure!(evicted == ["goes", "odd"], "{evicted:?}");
        let log = fixture.log_text();
        let told = log
            .matches("haulout.dev/drain=\"later\" is not evict, wait or skip")
            .count();
        ensure!(told == 1, "told {told} times\n{log}");
        haulout.stop().await
    });
}

#[test]
fn pod_of_a_gone_kubelet_is_given_up_after_its_grace_period() {
    run_scenario(async {
        let fixture = one_node("kubelet-gone").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        fixture.kubelet("gpu1")?.stop();
        let is_unknown = |node: &Node| {
            let conditions = node.status.iter().flat_map(|it| it.conditions.iter().flatten());
            conditions
                .into_iter()
                .any(|it| it.type_ == "Ready" && it.status == "Unknown")
        };
        fixture
            .wait_node(&node, "its kubelet does not report", is_unknown)
            .await?;
        let haulout = run(&fixture, &[("DRAIN_TIMEOUT_ACTION", "hold")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        let off = fixture.wait_state(&node, Some("powered-off")).await?;
        ensure!(left_behind(&off) == json!(["kubelet-gone/train (its kubelet is gone)"]));
        haulout.stop().await
    });
}

#[test]
fn kubelet_that_comes_back_keeps_its_terminating_pods() {
    run_scenario(async {
        let fixture = one_node("kubelet-back").await?;
        let node = fixture.node_name("gpu1");
        // The kubelet is back within the grace period, also on a busy machine. The drain timeout is after it.
        let stuck = [(STUCK, "true")];
        fixture.add_pod_with_grace("stuck", &node, &stuck, 20).await?;
        let haulout = run(
            &fixture,
            &[("DRAIN_TIMEOUT_ACTION", "hold"), ("DRAIN_TIMEOUT_SECONDS", "30")],
        )
        .await?;
        let ready_is = |status: &'static str| {
            move |node: &Node| {
                let conditions = node.status.iter().flat_map(|it| it.conditions.iter().flatten());
                conditions
                    .into_iter()
                    .any(|it| it.type_ == "Ready" && it.status == status)
            }
        };

        fixture.kubelet("gpu1")?.stop();
        fixture.vcenter.enter_maintenance("esx1").await?;
        until("the eviction", WAIT_TIMEOUT, async || {
            Ok((!evictions(&fixture).await?.is_empty()).then_some(()))
        })
        .await?;
        fixture.kubelet("gpu1")?.resume();
        fixture
            .wait_node(&node, "its kubelet reports", ready_is("True"))
            .await?;
        fixture
            .wait_for_log("the drain timeout passed and DRAIN_TIMEOUT_ACTION is hold")
            .await?;
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}
