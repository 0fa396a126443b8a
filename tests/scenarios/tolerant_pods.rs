//! Pods that tolerate the cordon, and that kube-scheduler puts straight back onto the cordoned Node.

use anyhow::ensure;
use haulout_lab::fixture::{WAIT_TIMEOUT, label};
use haulout_lab::kubelet::EXITS_AFTER_MS;
use haulout_lab::wait::until;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::PostParams;
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
                        "containers": [{"name": "main", "image": "lab.invalid/none"}],
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
            .wait_for_log("2 pods do not hold the drain and end with the VM: put-back/agent-")
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
