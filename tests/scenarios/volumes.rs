//! Volumes that are still attached after the drain.

use anyhow::ensure;
use haulout_lab::fixture::{WAIT_TIMEOUT, episode};
use haulout_lab::kubelet::STUCK;
use haulout_lab::vcenter::VmState;
use haulout_lab::wait::until;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::fixture::{one_node, run, run_scenario};

#[test]
fn shutdown_waits_for_volumes_to_be_detached() {
    run_scenario(async {
        let fixture = one_node("volumes").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        fixture.attach_volume("volumes-data", &node, "data").await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("waiting for 1 volume to be detached until")
            .await?;
        let log = fixture.log_text();
        ensure!(log.contains("Z: volumes-data (claim volumes/data)"), "{log}");
        ensure!(fixture.pods_on(&node).await?.is_empty(), "the drain is over");
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        // Also across a restart.
        haulout.kill().await?;
        let haulout = run(&fixture, &[]).await?;
        until("the new process to wait as well", WAIT_TIMEOUT, async || {
            let waits = fixture
                .log_text()
                .matches("waiting for 1 volume to be detached")
                .count();
            Ok((waits == 2).then_some(()))
        })
        .await?;
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        fixture.detach_volume("volumes-data").await?;
        let off = fixture.wait_state(&node, Some("powered-off")).await?;
        let volumes = episode(&off).and_then(|it| it.get("volumes").cloned());
        ensure!(
            volumes.as_ref().is_some_and(|it| it.get("left").is_none()),
            "{volumes:?}"
        );
        haulout.stop().await
    });
}

#[test]
fn volume_that_stays_attached_is_given_up_and_named() {
    run_scenario(async {
        let fixture = one_node("volume-stays").await?;
        let node = fixture.node_name("gpu1");
        fixture.attach_volume("volume-stays-data", &node, "data").await?;
        let haulout = run(&fixture, &[("VOLUME_DETACH_TIMEOUT_SECONDS", "2")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        let named = "volume-stays-data (claim volume-stays/data)";
        fixture
            .wait_for_log(&format!(
                "The guest is being shut down with volumes still attached: {named}"
            ))
            .await?;
        let off = fixture.wait_state(&node, Some("powered-off")).await?;
        let left = episode(&off).and_then(|it| it.pointer("/volumes/left").cloned());
        ensure!(left == Some(json!([named])), "{left:?}");
        haulout.stop().await
    });
}

#[test]
fn volume_of_a_pod_that_stays_is_not_waited_for() {
    run_scenario(async {
        let fixture = one_node("volume-skip").await?;
        let node = fixture.node_name("gpu1");
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "agent", "annotations": {"haulout.dev/drain": "skip"}},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "main", "image": "lab.invalid/none"}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            },
        }))?;
        let pods: Api<Pod> = Api::namespaced(fixture.client(), fixture.name());
        pods.create(&PostParams::default(), &pod).await?;
        fixture.attach_volume("volume-skip-data", &node, "data").await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_state(&node, Some("powered-off")).await?;
        ensure!(
            !fixture.log_text().contains("to be detached"),
            "{}",
            fixture.log_text()
        );
        haulout.stop().await
    });
}

#[test]
fn node_is_out_of_service_while_its_vm_is_off_with_pods_left_behind() {
    run_scenario(async {
        let fixture = one_node("out-of-service").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("stuck", &node, &[(STUCK, "true")]).await?;
        let changes = [("DRAIN_TIMEOUT_SECONDS", "2"), ("OUT_OF_SERVICE_TAINT", "true")];
        let haulout = run(&fixture, &changes).await?;
        let taint = |node: &Node| {
            let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
            let taint = taints.find(|taint| taint.key == "node.kubernetes.io/out-of-service")?;
            Some((taint.value.clone().unwrap_or_default(), taint.effect.clone()))
        };

        fixture.vcenter.enter_maintenance("esx1").await?;
        let off = fixture.wait_phase(&node, "awaitingHost").await?;
        let expected = ("nodeshutdown".to_owned(), "NoExecute".to_owned());
        ensure!(taint(&off) == Some(expected), "{:?}", taint(&off));
        // Otherwise it would terminate until the VM is back.
        until("the pod to be deleted by force", WAIT_TIMEOUT, async || {
            Ok(fixture.pods_on(&node).await?.is_empty().then_some(()))
        })
        .await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 0));
        fixture.wait_in_maintenance("esx1").await?;
        fixture.kubelet("gpu1")?.hold_boot();
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture
            .wait_vcenter("gpu1 is on", |it| it.vm("gpu1").is_some_and(VmState::is_on))
            .await?;
        ensure!(taint(&fixture.node(&node).await?).is_none());
        fixture.kubelet("gpu1")?.release_boot();
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}
