//! Pods whose containers have ended, and whose kubelet still unmounts their volumes.

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT, container, episode, label};
use haulout_lab::kube::AuditEvent;
use haulout_lab::kubelet::{EXITS_AFTER_MS, UNMOUNTS_AFTER_MS};
use haulout_lab::wait::until;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::assertions::call_times;
use crate::fixture::{one_node, run, run_scenario};

fn pods(fixture: &Fixture<'_>) -> Api<Pod> {
    Api::namespaced(fixture.client(), fixture.name())
}

/// A StatefulSet of one pod, `db-0`, on the nodes of the fixture. Its kubelet needs seconds to clean it up.
async fn add_stateful_set(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let set: StatefulSet = serde_json::from_value(json!({
        "metadata": {"name": "db"},
        "spec": {
            "replicas": 1, "serviceName": "db",
            "selector": {"matchLabels": {"app": "db"}},
            "template": {
                "metadata": {
                    "labels": {"app": "db"},
                    "annotations": {EXITS_AFTER_MS: "100", UNMOUNTS_AFTER_MS: "3000"},
                },
                "spec": {
                    "nodeSelector": {label(fixture.name()): "true"}, "terminationGracePeriodSeconds": 5,
                    "containers": [container()],
                },
            },
        },
    }))?;
    let sets: Api<StatefulSet> = Api::namespaced(fixture.client(), fixture.name());
    sets.create(&PostParams::default(), &set).await?;
    Ok(())
}

/// Waits until `wanted` holds for the pod.
async fn wait_pod(
    fixture: &Fixture<'_>,
    name: &str,
    what: &str,
    wanted: impl Fn(&Pod) -> bool,
) -> anyhow::Result<Pod> {
    let pods = pods(fixture);
    until(&format!("the pod {name} {what}"), WAIT_TIMEOUT, async || {
        Ok(pods.get_opt(name).await?.filter(|pod| wanted(pod)))
    })
    .await
    .with_context(|| fixture.log_text())
}

fn runs_on(pod: &Pod, node: &str) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let bound_to = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    phase == Some("Running") && bound_to == Some(node)
}

/// Whether its containers have ended and its kubelet has not deleted it.
fn is_in_cleanup(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Succeeded") && pod.metadata.deletion_timestamp.is_some()
}

/// Checks that the guest was asked to shut down only after the kubelet was done with the pod.
async fn ensure_asked_after_cleanup(fixture: &Fixture<'_>, pod: &str) -> anyhow::Result<()> {
    let audit = fixture.kube.audit().await?;
    let is_deletion = |it: &&AuditEvent| {
        it.verb == "delete"
            && it.resource == "pods"
            && it.namespace.as_deref() == Some(fixture.name())
            && it.name.as_deref() == Some(pod)
            && it.code == 200
    };
    let deleted: Option<Timestamp> = audit.iter().find(is_deletion).map(|it| it.answered);
    let asked = call_times(fixture, "ShutdownGuest", "gpu1").await?;
    let first = asked.first().context("the guest was not asked")?;
    ensure!(
        deleted.is_some_and(|deleted| deleted < *first),
        "the guest was asked at {first}, and the kubelet deleted {pod} at {deleted:?}; Haulout's log:\n{}",
        fixture.log_text()
    );
    Ok(())
}

fn left_behind(node: &Node) -> Option<serde_json::Value> {
    episode(node)?.get("leftBehind").cloned()
}

#[test]
fn guest_is_asked_when_the_kubelet_has_deleted_the_last_pod() {
    run_scenario(async {
        let fixture = one_node("cleanup").await?;
        let node = fixture.node_name("gpu1");
        add_stateful_set(&fixture).await?;
        let first = wait_pod(&fixture, "db-0", "runs", |pod| runs_on(pod, &node)).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        let off = fixture.wait_phase(&node, "awaitingHost").await?;
        ensure_asked_after_cleanup(&fixture, "db-0").await?;
        ensure!(left_behind(&off).is_none(), "{:?}", left_behind(&off));
        // Its StatefulSet does not wait until the node is back.
        let is_next = |pod: &Pod| pod.uid() != first.uid() && pod.metadata.deletion_timestamp.is_none();
        wait_pod(&fixture, "db-0", "is replaced", is_next).await?;
        ensure!(
            fixture.power_cycles("gpu1").await? == (1, 0),
            "while the VM is off"
        );
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        wait_pod(&fixture, "db-0", "runs again", |pod| {
            is_next(pod) && runs_on(pod, &node)
        })
        .await?;
        haulout.stop().await
    });
}

#[test]
fn pod_that_only_a_finalizer_keeps_does_not_hold_the_drain() {
    run_scenario(async {
        let fixture = one_node("cleanup-finalizer").await?;
        let node = fixture.node_name("gpu1");
        let slow = [(UNMOUNTS_AFTER_MS, "1500")];
        fixture.add_pod("train", &node, &slow).await?;
        let keep = json!({"metadata": {"finalizers": ["lab.haulout/keep"]}});
        pods(&fixture)
            .patch("train", &PatchParams::default(), &Patch::Merge(&keep))
            .await?;
        // Longer than the test waits.
        let haulout = run(&fixture, &[("DRAIN_TIMEOUT_SECONDS", "600")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        let off = fixture.wait_phase(&node, "awaitingHost").await?;
        ensure_asked_after_cleanup(&fixture, "train").await?;
        ensure!(left_behind(&off).is_none(), "{:?}", left_behind(&off));
        let kept = pods(&fixture).get("train").await?;
        ensure!(is_in_cleanup(&kept) && kept.metadata.deletion_grace_period_seconds == Some(0));
        haulout.stop().await
    });
}

#[test]
fn pod_in_cleanup_is_left_behind_if_its_vm_is_powered_off_meanwhile() {
    run_scenario(async {
        let fixture = one_node("cleanup-cut").await?;
        let node = fixture.node_name("gpu1");
        // Longer than the test waits.
        fixture
            .add_pod("train", &node, &[(UNMOUNTS_AFTER_MS, "600000")])
            .await?;
        let changes = [("DRAIN_TIMEOUT_SECONDS", "600"), ("OUT_OF_SERVICE_TAINT", "true")];
        let haulout = run(&fixture, &changes).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        wait_pod(&fixture, "train", "has ended", is_in_cleanup).await?;
        fixture
            .wait_for_log("1 pod to go")
            .await
            .context("the drain waits for it")?;
        fixture.vcenter.power_off("gpu1").await?;
        let off = fixture.wait_phase(&node, "awaitingHost").await?;
        let left = left_behind(&off).unwrap_or_default();
        let is_named = left[0]
            .as_str()
            .is_some_and(|pod| pod.starts_with("cleanup-cut/train"));
        ensure!(is_named, "{left}");
        until("the pod to be deleted by force", WAIT_TIMEOUT, async || {
            Ok(fixture.pods_on(&node).await?.is_empty().then_some(()))
        })
        .await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 0));
        haulout.stop().await
    });
}
