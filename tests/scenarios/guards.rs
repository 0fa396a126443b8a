//! Guards: taints, labels and annotations that keep the scheduler and other controllers away from a node in maintenance.

use std::time::Duration;

use anyhow::ensure;
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT};
use haulout_lab::wait::until;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::fixture::{a40, fixture, gpu_vm, hosts, one_node, run, run_scenario};

const AUTOSCALER: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
const NVSENTINEL: &str = "nvsentinel.dgxc.nvidia.com/managed";
const GARDENER: &str = "node.machine.sapcloud.io/preserve";
const GARDENER_MANAGED: &str = "node.machine.sapcloud.io/last-applied-anno-labels-taints";

/// The taints of `node` that are not of Kubernetes itself.
fn taints(node: &Node) -> Vec<String> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let others = taints.filter(|taint| !taint.key.starts_with("node.kubernetes.io/"));
    others
        .map(|taint| format!("{}:{}", taint.key, taint.effect))
        .collect()
}

async fn edit(fixture: &Fixture<'_>, node: &str, change: &Value) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(fixture.client());
    let params = PatchParams {
        field_manager: Some("kubectl-edit".to_owned()),
        ..PatchParams::default()
    };
    nodes.patch(node, &params, &Patch::Merge(change)).await?;
    Ok(())
}

#[test]
fn guards_are_on_the_node_during_its_maintenance_and_gone_after() {
    run_scenario(async {
        let fixture = one_node("guards").await?;
        let node = fixture.node_name("gpu1");
        let own = json!({"spec": {"taints": [{"key": "example.com/rack", "value": "7", "effect": "PreferNoSchedule"}]}, "metadata": {
            "annotations": {GARDENER_MANAGED: "{}"},
            "labels": {"nvsentinel.dgxc.nvidia.com/driver.installed": "true"},
        }});
        edit(&fixture, &node, &own).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        let away = fixture.wait_phase(&node, "awaitingHost").await?;
        let expected = [
            "example.com/rack:PreferNoSchedule",
            "haulout.dev/maintenance:NoSchedule",
        ];
        ensure!(taints(&away) == expected, "{:?}", taints(&away));
        ensure!(away.annotations().get(AUTOSCALER).is_some_and(|it| it == "true"));
        ensure!(
            away.annotations()
                .get(GARDENER)
                .is_some_and(|it| it == "when-failed")
        );
        ensure!(away.labels().get(NVSENTINEL).is_some_and(|it| it == "false"));

        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        let back = fixture.wait_in_service(&node).await?;
        ensure!(taints(&back) == expected[..1], "{:?}", taints(&back));
        for key in [AUTOSCALER, GARDENER] {
            ensure!(!back.annotations().contains_key(key), "{key} is left");
        }
        ensure!(!back.labels().contains_key(NVSENTINEL), "{NVSENTINEL} is left");
        haulout.stop().await
    });
}

#[test]
fn guard_that_a_person_set_stays_at_the_end() {
    run_scenario(async {
        let fixture = one_node("guards-own").await?;
        let node = fixture.node_name("gpu1");
        edit(
            &fixture,
            &node,
            &json!({"metadata": {"annotations": {AUTOSCALER: "true"}}}),
        )
        .await?;
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        let back = fixture.wait_in_service(&node).await?;
        ensure!(back.annotations().get(AUTOSCALER).is_some_and(|it| it == "true"));
        haulout.stop().await
    });
}

#[test]
fn guards_of_a_cancelled_drain_are_removed_by_another_process() {
    run_scenario(async {
        let fixture = one_node("guards-crash").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        let draining = fixture.wait_phase(&node, "draining").await?;
        ensure!(taints(&draining) == ["haulout.dev/maintenance:NoSchedule"]);
        haulout.kill().await?;
        fixture.vcenter.cancel_maintenance("esx1").await?;
        let haulout = run(&fixture, &[]).await?;
        let back = fixture.wait_in_service(&node).await?;
        ensure!(taints(&back).is_empty(), "{:?}", taints(&back));
        ensure!(!back.annotations().contains_key(AUTOSCALER));
        haulout.stop().await
    });
}

#[test]
fn queued_node_repels_pods_and_is_tainted_in_full_when_its_turn_comes() {
    run_scenario(async {
        let name = "guards-queue";
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        spec.vms = vec![gpu_vm(name, "gpu1", "esx1"), gpu_vm(name, "gpu2", "esx2")];
        let fixture = fixture(name, &spec).await?;
        let [first, second] = ["gpu1", "gpu2"].map(|vm| fixture.node_name(vm));
        fixture.add_pod("held", &first, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&first, "draining").await?;
        fixture.vcenter.enter_maintenance("esx2").await?;
        let queued = fixture.wait_phase(&second, "queued").await?;
        ensure!(taints(&queued) == ["haulout.dev/queued:PreferNoSchedule"]);
        ensure!(!queued.annotations().contains_key(AUTOSCALER), "it is in service");

        fixture.set_budget("held", 1).await?;
        let away = fixture.wait_phase(&second, "awaitingHost").await?;
        ensure!(taints(&away) == ["haulout.dev/maintenance:NoSchedule"]);
        fixture.vcenter.cancel_maintenance("esx2").await.ok();
        haulout.stop().await
    });
}

/// GPU drivers and device plugins are DaemonSets that tolerate the cordon alone.
#[test]
fn daemon_set_pod_is_created_again_while_the_node_comes_back() {
    run_scenario(async {
        let name = "guards-daemon";
        let fixture = one_node(name).await?;
        let node = fixture.node_name("gpu1");
        let sets: Api<DaemonSet> = Api::namespaced(fixture.client(), name);
        let labels = json!({"app": "device-plugin"});
        let set: DaemonSet = serde_json::from_value(json!({
            "metadata": {"name": "device-plugin"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "nodeSelector": {"kubernetes.io/hostname": node},
                        "containers": [{"name": "plugin", "image": "registry.invalid/plugin"}],
                    },
                },
            },
        }))?;
        edit(
            &fixture,
            &node,
            &json!({"metadata": {"labels": {"kubernetes.io/hostname": node}}}),
        )
        .await?;
        sets.create(&PostParams::default(), &set).await?;
        let pods: Api<Pod> = Api::namespaced(fixture.client(), name);
        let count = async || {
            let list = pods
                .list(&ListParams::default().labels("app=device-plugin"))
                .await?;
            anyhow::Ok(
                list.items
                    .into_iter()
                    .map(|pod| pod.name_any())
                    .collect::<Vec<_>>(),
            )
        };
        let haulout = run(&fixture, &[("GPU_RESOURCES", "nvidia.com/*")]).await?;
        until("a pod of the DaemonSet", WAIT_TIMEOUT, async || {
            Ok((count().await?.len() == 1).then_some(()))
        })
        .await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        for pod in count().await? {
            let now = DeleteParams::default().grace_period(0);
            pods.delete(&pod, &now).await?;
        }
        fixture.kubelet("gpu1")?.set_gpus_after(Duration::from_hours(1));
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_for_log("to be allocatable again").await?;
        until("another pod of the DaemonSet", WAIT_TIMEOUT, async || {
            Ok((count().await?.len() == 1).then_some(()))
        })
        .await?;
        haulout.stop().await
    });
}
