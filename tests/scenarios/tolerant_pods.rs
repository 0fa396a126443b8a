//! Pods that a cordon does not keep away: kube-scheduler or their controller puts them straight back onto the cordoned Node.

use anyhow::ensure;
use haulout_lab::fixture::{WAIT_TIMEOUT, container, label};
use haulout_lab::kubelet::EXITS_AFTER_MS;
use haulout_lab::wait::until;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;

use crate::fixture::{one_node, run, run_scenario};

#[test]
fn drain_ends_if_the_scheduler_puts_a_tolerant_pod_back() {
    run_scenario(async {
        let fixture = one_node("put-back").await?;
        let node = fixture.node_name("gpu1");
        let deployment: Deployment = serde_json::from_value(json!({
            "metadata": {"name": "agent"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": "agent"}},
                "template": {
                    "metadata": {"labels": {"app": "agent"}, "annotations": {EXITS_AFTER_MS: "100"}},
                    "spec": {
                        "nodeSelector": {label(fixture.name()): "true"},
                        "tolerations": [{"operator": "Exists"}],
                        "containers": [container()],
                    },
                },
            },
        }))?;
        let deployments: Api<Deployment> = Api::namespaced(fixture.client(), fixture.name());
        deployments.create(&PostParams::default(), &deployment).await?;
        until("the Deployment to be available", WAIT_TIMEOUT, async || {
            let status = deployments.get("agent").await?.status.unwrap_or_default();
            Ok((status.available_replicas == Some(2)).then_some(()))
        })
        .await?;
        ensure!(fixture.pods_on(&node).await?.len() == 2);
        let haulout = run(&fixture, &[("DRAIN_TIMEOUT_SECONDS", "600")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("with 2 pods that did not hold the drain: put-back/agent-")
            .await?;
        fixture.wait_state(&node, Some("powered-off")).await?;
        let bound = fixture.kube.audit().await?;
        let bound = bound
            .iter()
            .filter(|it| it.subresource.as_deref() == Some("binding") && it.user == "kube-scheduler")
            .filter(|it| it.namespace.as_deref() == Some(fixture.name()))
            .count();
        ensure!(
            bound >= 4,
            "{bound} pods bound: two at first, and their successors"
        );
        ensure!(fixture.power_cycles("gpu1").await? == (1, 0));
        haulout.stop().await
    });
}

/// A controller that keeps one pod on `node`, by `spec.nodeName`. As a ReplicaSet, it replaces a pod that is terminating.
async fn keep_pinned(pods: Api<Pod>, node: &str) -> anyhow::Result<()> {
    loop {
        let there = pods.list(&ListParams::default().labels("app=pinned")).await?;
        if there.iter().all(|pod| pod.metadata.deletion_timestamp.is_some()) {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {
                    "generateName": "pinned-", "labels": {"app": "pinned"}, "annotations": {EXITS_AFTER_MS: "2000"},
                },
                "spec": {"nodeName": node, "containers": [container()]},
            }))?;
            pods.create(&PostParams::default(), &pod).await?;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[test]
fn drain_ends_with_few_evictions_if_a_controller_puts_its_pod_back_by_node_name() {
    run_scenario(async {
        let fixture = one_node("pinned").await?;
        let node = fixture.node_name("gpu1");
        let pods: Api<Pod> = Api::namespaced(fixture.client(), fixture.name());
        let scenario = async {
            until("the pod to be there", WAIT_TIMEOUT, async || {
                Ok((fixture.pods_on(&node).await?.len() == 1).then_some(()))
            })
            .await?;
            let haulout = run(&fixture, &[("DRAIN_TIMEOUT_ACTION", "hold")]).await?;
            fixture.vcenter.enter_maintenance("esx1").await?;
            fixture.wait_for_log("(came back after its eviction)").await?;
            fixture.wait_state(&node, Some("powered-off")).await?;
            let evictions = fixture.audit().await?;
            let evictions = evictions
                .iter()
                .filter(|it| it.subresource.as_deref() == Some("eviction"))
                .filter(|it| it.namespace.as_deref() == Some(fixture.name()))
                .count();
            ensure!((1..=4).contains(&evictions), "{evictions} evictions");
            haulout.stop().await
        };
        tokio::select! {
            biased;
            done = scenario => done,
            ended = keep_pinned(pods.clone(), &node) => ended,
        }
    });
}
