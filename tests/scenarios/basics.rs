//! The main job: wait for the own host, or move.

use anyhow::ensure;
use haulout_lab::stage::{annotation, boot_id, is_cordoned};

use crate::story::{one_node, start, tell};

#[test]
fn s01_a_node_whose_vm_can_go_nowhere_waits_for_its_own_host() {
    tell(async {
        let stage = one_node("waits").await?;
        let node = stage.node_name("gpu1");
        stage.add_pod("train", &node, &[]).await?;
        let boot_before = boot_id(&stage.node(&node).await?);
        let haulout = start(&stage, &[])?;
        stage.wait_said("vCenter has told its complete set").await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        let drained = stage.wait_state(&node, Some("draining")).await?;
        ensure!(is_cordoned(&drained), "cordon and begin are one write");
        ensure!(annotation(&drained, "host") == Some("esx1"));

        let off = stage.wait_state(&node, Some("powered-off")).await?;
        ensure!(is_cordoned(&off));
        ensure!(
            stage.pods_on(&node).await?.is_empty(),
            "the pod was evicted before the power-off"
        );
        stage
            .wait_vcenter("esx1 is in maintenance", |it| {
                it.host("esx1").unwrap().in_maintenance
            })
            .await?;
        stage.wait_said("waiting for host esx1").await?;

        stage.vcenter.exit_maintenance("esx1").await?;
        let back = stage.wait_in_service(&node).await?;
        ensure!(boot_id(&back) != boot_before, "back on another boot");
        println!(
            "{}\n{:#?}",
            stage.said(),
            stage
                .vcenter
                .journal()
                .await?
                .iter()
                .map(|e| format!(
                    "{:?} {} {} {} {} {}",
                    e.kind, e.method, e.object, e.detail, e.cause, e.user
                ))
                .collect::<Vec<_>>()
        );
        ensure!(stage.power_cycles("gpu1").await? == (1, 1));
        ensure!(stage.calls("PowerOnVM_Task", "gpu1").await? == 1, "asked once");
        haulout.stop().await
    });
}
