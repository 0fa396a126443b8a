//! A node is back when its GPUs are, even if another program uncordons it at boot. A person's cordon is kept.

use std::time::Duration;

use anyhow::ensure;
use haulout_lab::fixture::{Fixture, annotation, gpus, is_cordoned, is_ready};

use crate::fixture::{in_maintenance, one_node, run, run_scenario};

/// A program that uncordons a node after boot without checking its GPUs.
const DRIVER_MANAGER: &str = "k8s-driver-manager";

/// Runs a maintenance up to the boot, delays the GPUs there, and uncordons the node.
async fn uncordoned_at_boot(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let node = fixture.node_name("gpu1");
    fixture.kubelet("gpu1")?.set_gpus_after(Duration::from_secs(8));
    fixture.vcenter.enter_maintenance("esx1").await?;
    fixture.wait_phase(&node, "awaitingHost").await?;
    in_maintenance(fixture, "esx1").await?;
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
