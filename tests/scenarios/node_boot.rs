//! A node is back when its GPUs are, even if another program uncordons it at boot. A person's cordon is kept.

use std::time::Duration;

use anyhow::ensure;
use haulout_lab::fixture::{Fixture, annotation, boot_id, gpus, is_cordoned, is_ready};
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use kube::ResourceExt as _;

use crate::assertions::{clock, cordons, node_writes};
use crate::fixture::{one_node, run, run_scenario};
use crate::kubectl_plugin::types;

/// A program that uncordons a node after boot without checking its GPUs.
const DRIVER_MANAGER: &str = "driver-manager";

/// Runs a maintenance up to the boot, delays the GPUs there, and uncordons the node.
async fn uncordoned_at_boot(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let node = fixture.node_name("gpu1");
    fixture.kubelet("gpu1")?.set_gpus_after(Duration::from_secs(8));
    fixture.vcenter.enter_maintenance("esx1").await?;
    fixture.wait_phase(&node, "awaitingHost").await?;
    fixture.wait_in_maintenance("esx1").await?;
    fixture.vcenter.exit_maintenance("esx1").await?;
    fixture.wait_phase(&node, "rejoining").await?;
    fixture
        .wait_node(&node, "is Ready without its GPUs", |node| {
            is_ready(node) && gpus(node) == 0
        })
        .await?;
    fixture.cordon_as(DRIVER_MANAGER, &node, false).await
}

#[test]
fn node_uncordoned_at_boot_is_cordoned_until_its_gpus_are_back() {
    run_scenario(async {
        let fixture = one_node("boot-uncordon").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;
        uncordoned_at_boot(&fixture).await?;
        let again = fixture
            .wait_node(&node, "is cordoned again, or has its GPUs", |node| {
                is_cordoned(node) || gpus(node) > 0
            })
            .await?;
        ensure!(
            is_cordoned(&again) && gpus(&again) == 0,
            "it was left uncordoned without its GPUs; Haulout's log:\n{}",
            fixture.log_text()
        );
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn persons_cordon_outlives_an_uncordon_at_boot() {
    run_scenario(async {
        let fixture = one_node("boot-person").await?;
        let node = fixture.node_name("gpu1");
        fixture.person_cordons(&node, true).await?;
        let haulout = run(&fixture, &[]).await?;
        uncordoned_at_boot(&fixture).await?;
        let back = fixture
            .wait_node(&node, "has no episode and its GPUs", |node| {
                annotation(node, "episode").is_none() && is_ready(node) && gpus(node) > 0
            })
            .await?;
        ensure!(
            is_cordoned(&back),
            "the person's cordon was lifted by another; Haulout's log:\n{}",
            fixture.log_text()
        );
        haulout.stop().await
    });
}

#[test]
fn node_with_fewer_gpus_is_back_when_a_person_accepts_it() {
    run_scenario(async {
        let fixture = one_node("boot-accept").await?;
        let node = fixture.node_name("gpu1");
        let early = types(&fixture, &["accept", &node]).await?;
        ensure!(
            early.code == 1 && early.stderr.contains("not in maintenance"),
            "{early}"
        );
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.kubelet("gpu1")?.set_gpus(1);
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture
            .wait_for_log("nvidia.com/gpu to be allocatable again: 1 of 2")
            .await?;
        ensure!(is_cordoned(&fixture.node(&node).await?));

        let accepted = types(&fixture, &["accept", &node]).await?;
        let expected = format!("node/{node} accepted with nvidia.com/gpu 1 of 2\n");
        ensure!(accepted.stdout == expected, "{accepted}");
        let back = fixture.wait_in_service(&node).await?;
        ensure!(
            !back.annotations().contains_key("haulout.dev/accepted-gpus"),
            "it counts once"
        );
        fixture
            .wait_for_log("a person accepted it with fewer GPUs: nvidia.com/gpu 1 of 2")
            .await?;
        haulout.stop().await
    });
}

#[test]
fn gpus_of_a_device_plugin_that_is_down_at_the_click_are_awaited() {
    run_scenario(async {
        let fixture = one_node("boot-plugin").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;
        let kubelet = fixture.kubelet("gpu1")?;
        kubelet.set_gpus(0);
        fixture
            .wait_node(&node, "has no GPUs", |node| gpus(node) == 0)
            .await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture
            .wait_for_log("nvidia.com/gpu to be allocatable again: 0 of 2")
            .await?;
        kubelet.set_gpus(2);
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn gpus_of_the_last_boot_do_not_count_for_a_kubelet_that_lost_its_checkpoint() {
    run_scenario(async {
        let fixture = one_node("boot-checkpoint").await?;
        let node = fixture.node_name("gpu1");
        let kubelet = fixture.kubelet("gpu1")?;
        kubelet.lose_checkpoint();
        kubelet.set_gpus_after(Duration::from_secs(8));
        let boot_before = boot_id(&fixture.node(&node).await?);
        let began = clock();
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture
            .wait_node(&node, "has no GPUs of the last boot", |node| gpus(node) == 0)
            .await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        let booted = fixture
            .wait_node(&node, "is Ready on another boot", |node| {
                is_ready(node) && boot_id(node) != boot_before
            })
            .await?;
        ensure!(
            gpus(&booted) == 0 && is_cordoned(&booted),
            "the plugin offers its GPUs later; Haulout's log:\n{}",
            fixture.log_text()
        );
        fixture
            .wait_for_log("nvidia.com/gpu to be allocatable again: 0 of 2")
            .await?;
        fixture.wait_in_service(&node).await?;
        let writes = node_writes(&fixture, &node, began).await?;
        ensure!(cordons(&writes) == [true, false], "{:?}", cordons(&writes));
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

/// Creates a ResourceSlice as a DRA driver on the node does.
async fn publish_devices(fixture: &Fixture<'_>, name: &str, devices: usize) -> anyhow::Result<()> {
    let node = fixture.node_name("gpu1");
    let devices: Vec<_> = (0..devices)
        .map(|number| json!({"name": format!("gpu-{number}")}))
        .collect();
    let slice: ResourceSlice = serde_json::from_value(json!({
        "metadata": {"name": format!("{node}-{name}")},
        "spec": {
            "driver": "gpu.nvidia.com", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        },
    }))?;
    let slices: Api<ResourceSlice> = Api::all(fixture.client());
    slices.create(&PostParams::default(), &slice).await?;
    Ok(())
}

#[test]
fn gpus_in_resource_slices_are_awaited_from_the_driver_of_this_boot() {
    run_scenario(async {
        let fixture = one_node("boot-dra").await?;
        let node = fixture.node_name("gpu1");
        // Without a device plugin, a boot shows none, not even in the capacity.
        let boot_before = boot_id(&fixture.node(&node).await?);
        fixture.kubelet("gpu1")?.set_gpus(0);
        fixture.vcenter.reset_vm("gpu1").await?;
        fixture
            .wait_node(&node, "has no GPUs in its status", |node| {
                boot_id(node) != boot_before && is_ready(node) && gpus(node) == 0
            })
            .await?;
        publish_devices(&fixture, "before", 2).await?;
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        // The node is Ready, and its kubelet has not deleted the slice from before yet.
        fixture
            .wait_for_log("gpu.nvidia.com to be allocatable again: 0 of 2")
            .await?;
        let slices: Api<ResourceSlice> = Api::all(fixture.client());
        slices
            .delete(&format!("{node}-before"), &DeleteParams::default())
            .await?;
        publish_devices(&fixture, "after", 1).await?;
        fixture
            .wait_for_log("gpu.nvidia.com to be allocatable again: 1 of 2")
            .await?;
        ensure!(is_cordoned(&fixture.node(&node).await?));

        let accepted = types(&fixture, &["accept", &node]).await?;
        let expected = format!("node/{node} accepted with gpu.nvidia.com 1 of 2\n");
        ensure!(accepted.stdout == expected, "{accepted}");
        fixture
            .wait_node(&node, "is in service", |node| {
                annotation(node, "episode").is_none() && !is_cordoned(node)
            })
            .await?;
        haulout.stop().await
    });
}
