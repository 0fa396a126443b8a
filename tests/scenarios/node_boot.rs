//! A node is back when its GPUs are, even if another program uncordons it at boot; a person's cordon outlives that.

use std::time::Duration;

use anyhow::ensure;
use haulout_lab::stage::{Stage, annotation, gpus, is_cordoned, is_ready};

use crate::fixture::{in_maintenance, one_node, run, tell};

/// Who uncordons a node when it has booted, without a look at its GPUs.
const DRIVER_MANAGER: &str = "k8s-driver-manager";

/// Takes the node through its host's maintenance up to the boot, in which its GPUs take their time, and uncordons it there.
async fn uncordoned_at_boot(stage: &Stage<'_>) -> anyhow::Result<()> {
    let node = stage.node_name("gpu1");
    stage.kubelet("gpu1")?.set_gpus_after(Duration::from_secs(8));
    stage.vcenter.enter_maintenance("esx1").await?;
    stage.wait_phase(&node, "awaitingHost").await?;
    in_maintenance(stage, "esx1").await?;
    stage.vcenter.exit_maintenance("esx1").await?;
    stage.wait_phase(&node, "rejoining").await?;
    stage
        .wait_node(&node, "is Ready without its GPUs", |node| {
            is_ready(node) && gpus(node) == 0
        })
        .await?;
    stage.cordon_as(DRIVER_MANAGER, &node, false).await
}

#[test]
fn node_uncordoned_at_boot_is_cordoned_until_its_gpus_are_back() {
    tell(async {
        let stage = one_node("boot-uncordon").await?;
        let node = stage.node_name("gpu1");
        let haulout = run(&stage, &[]).await?;
        uncordoned_at_boot(&stage).await?;
        let again = stage
            .wait_node(&node, "is cordoned again, or has its GPUs", |node| {
                is_cordoned(node) || gpus(node) > 0
            })
            .await?;
        ensure!(
            is_cordoned(&again) && gpus(&again) == 0,
            "it was left uncordoned without its GPUs; Haulout said:\n{}",
            stage.said()
        );
        stage.wait_in_service(&node).await?;
        ensure!(stage.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn persons_cordon_outlives_an_uncordon_at_boot() {
    tell(async {
        let stage = one_node("boot-person").await?;
        let node = stage.node_name("gpu1");
        stage.person_cordons(&node, true).await?;
        let haulout = run(&stage, &[]).await?;
        uncordoned_at_boot(&stage).await?;
        let back = stage
            .wait_node(&node, "has no episode and its GPUs", |node| {
                annotation(node, "episode").is_none() && is_ready(node) && gpus(node) > 0
            })
            .await?;
        ensure!(
            is_cordoned(&back),
            "the person's cordon was lifted by another; Haulout said:\n{}",
            stage.said()
        );
        haulout.stop().await
    });
}
