//! Kubelets with a shutdown grace period: the Node says at once that it shuts down, and its pods end or are rejected.

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, Haulout, WAIT_TIMEOUT, container, is_cordoned, label};
use haulout_lab::kubelet::EXITS_AFTER_MS;
use haulout_lab::vcenter::{GuestPatch, VmState};
use haulout_lab::wait::until;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;

use crate::assertions::{ensure_brought_back, wait_for_call};
use crate::fixture::{one_node, run, run_scenario};

/// Whether the kubelet has reported that its node shuts down.
pub fn says_that_it_shuts_down(node: &Node) -> bool {
    let status = node.status.as_ref();
    let mut conditions = status.iter().flat_map(|it| it.conditions.iter().flatten());
    conditions.any(|it| {
        let message = it.message.as_deref();
        it.type_ == "Ready" && it.status == "False" && message == Some("node is shutting down")
    })
}

/// Waits until all pods of the DaemonSet are Ready.
async fn wait_daemons_ready(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let sets: Api<DaemonSet> = Api::namespaced(fixture.client(), fixture.name());
    until("the pod of the DaemonSet to be Ready", WAIT_TIMEOUT, async || {
        let status = sets.get("agent").await?.status.unwrap_or_default();
        let is_ready = status.desired_number_scheduled == 1 && status.number_ready == 1;
        Ok(is_ready.then_some(()))
    })
    .await
}

/// A DaemonSet on the only node of the fixture.
async fn add_daemons(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let set: DaemonSet = serde_json::from_value(json!({
        "metadata": {"name": "agent"},
        "spec": {
            "selector": {"matchLabels": {"app": "agent"}},
            "template": {
                "metadata": {"labels": {"app": "agent"}, "annotations": {EXITS_AFTER_MS: "100"}},
                "spec": {
                    "nodeSelector": {label(fixture.name()): "true"}, "tolerations": [{"operator": "Exists"}],
                    "containers": [container()],
                },
            },
        },
    }))?;
    let sets: Api<DaemonSet> = Api::namespaced(fixture.client(), fixture.name());
    sets.create(&PostParams::default(), &set).await?;
    wait_daemons_ready(fixture).await
}

/// Starts a maintenance of a node that takes `shutdown_ms` for its graceful shutdown. Returns in the middle of that, when a new pod of a
/// DaemonSet was rejected.
async fn shut_down_gracefully(fixture: &Fixture<'_>, shutdown_ms: u32) -> anyhow::Result<Haulout> {
    let node = fixture.node_name("gpu1");
    add_daemons(fixture).await?;
    fixture.kubelet("gpu1")?.shut_down_gracefully();
    let slow = GuestPatch {
        shutdown_ms: Some(shutdown_ms),
        ..GuestPatch::default()
    };
    fixture.vcenter.patch_vm("gpu1", slow).await?;
    let haulout = run(fixture, &[]).await?;

    fixture.vcenter.enter_maintenance("esx1").await?;
    wait_for_call(fixture, "ShutdownGuest", "gpu1").await?;
    fixture
        .wait_node(&node, "says that it shuts down", says_that_it_shuts_down)
        .await?;
    let pods: Api<Pod> = Api::namespaced(fixture.client(), fixture.name());
    until(
        "a pod of the DaemonSet to be rejected",
        WAIT_TIMEOUT,
        async || {
            let all = pods.list(&ListParams::default()).await?;
            let mut reasons = all
                .iter()
                .filter_map(|pod| pod.status.as_ref()?.reason.as_deref());
            Ok(reasons.any(|reason| reason == "NodeShutdown").then_some(()))
        },
    )
    .await
    .with_context(|| fixture.log_text())?;
    Ok(haulout)
}

#[test]
fn node_with_a_shutdown_grace_period_is_off_once_and_comes_back() {
    run_scenario(async {
        let fixture = one_node("graceful").await?;
        let node = fixture.node_name("gpu1");
        let haulout = shut_down_gracefully(&fixture, 6_000).await?;

        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.wait_in_maintenance("esx1").await?;
        ensure!(fixture.calls("ShutdownGuest", "gpu1").await? == 1);
        ensure!(
            fixture.calls("PowerOffVM_Task", "gpu1").await? == 0,
            "it had its time"
        );
        fixture.vcenter.exit_maintenance("esx1").await?;
        ensure_brought_back(&fixture, "gpu1").await?;
        wait_daemons_ready(&fixture).await?;
        haulout.stop().await
    });
}

/// Cancels the maintenance. The node stays cordoned while its guest stops.
pub async fn cancel_while_its_guest_stops(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let node = fixture.node_name("gpu1");
    fixture.vcenter.cancel_maintenance("esx1").await?;
    fixture.wait_phase(&node, "rejoining").await?;
    let state = fixture.vcenter.state().await?;
    ensure!(
        state.vm("gpu1").is_some_and(VmState::is_on),
        "the guest was too quick for this scenario"
    );
    ensure!(
        is_cordoned(&fixture.node(&node).await?),
        "its guest still stops, so no pod may start there"
    );
    Ok(())
}

#[test]
fn cancel_during_a_graceful_shutdown_brings_the_node_back_after_one_power_cycle() {
    run_scenario(async {
        let fixture = one_node("graceful-cancel").await?;
        let haulout = shut_down_gracefully(&fixture, 10_000).await?;

        cancel_while_its_guest_stops(&fixture).await?;
        ensure_brought_back(&fixture, "gpu1").await?;
        wait_daemons_ready(&fixture).await?;
        let log = fixture.log_text();
        ensure!(!log.contains("-> Parked"), "nobody is needed for that: {log}");
        haulout.stop().await
    });
}
