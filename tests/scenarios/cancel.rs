//! The operator changes their mind.

use anyhow::ensure;
use haulout_lab::stage::boot_id;

use crate::fixture::{in_maintenance, one_node, run, tell};

#[test]
fn cancel_while_draining_leaves_the_node_as_it_was() {
    tell(async {
        let stage = one_node("cancel-drain").await?;
        let node = stage.node_name("gpu1");
        stage.add_pod("held", &node, &[]).await?;
        stage.set_budget("held", 0).await?;
        let boot = boot_id(&stage.node(&node).await?);
        let haulout = run(&stage, &[]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_said("held by PodDisruptionBudget held-budget").await?;
        stage.vcenter.cancel_maintenance("esx1").await?;
        let back = stage.wait_in_service(&node).await?;
        ensure!(boot_id(&back) == boot, "it never went down");
        ensure!(stage.pods_on(&node).await? == ["held"], "the pod is still there");
        ensure!(stage.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}

#[test]
fn cancel_while_powered_off_brings_the_node_back_at_once() {
    tell(async {
        // Another VM without a device, which the stand-in does not evacuate, keeps the host entering.
        let mut spec = crate::fixture::hosts(&[("esx1", &[crate::fixture::a40(1), crate::fixture::a40(2)])]);
        let ours = crate::fixture::gpu_vm("cancel-off", "gpu1", "esx1");
        let hanging = crate::fixture::gpu_vm("cancel-off", "hanging", "esx1");
        let members = vec![haulout_lab::stage::Member::new("cancel-off", "gpu1", &ours.uuid)];
        spec.vms = vec![ours, hanging];
        let stage =
            haulout_lab::stage::Stage::set(crate::fixture::kube().await, "cancel-off", &spec, members, true)
                .await?;
        let node = stage.node_name("gpu1");
        let haulout = run(&stage, &[]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_phase(&node, "awaitingHost").await?;
        stage.vcenter.cancel_maintenance("esx1").await?;
        stage.wait_in_service(&node).await?;
        ensure!(stage.power_cycles("gpu1").await? == (1, 1));
        ensure!(
            stage.power_cycles("hanging").await? == (0, 0),
            "the other VM is not ours to touch"
        );
        haulout.stop().await
    });
}

#[test]
fn host_that_enters_again_right_after_a_cancel_is_served_again() {
    tell(async {
        let stage = one_node("again").await?;
        let node = stage.node_name("gpu1");
        let haulout = run(&stage, &[]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_state(&node, Some("draining")).await?;
        stage.vcenter.cancel_maintenance("esx1").await.ok();
        stage.vcenter.exit_maintenance("esx1").await.ok();
        stage.wait_in_service(&node).await?;
        stage.vcenter.enter_maintenance("esx1").await?;
        in_maintenance(&stage, "esx1").await?;
        stage.vcenter.exit_maintenance("esx1").await?;
        stage.wait_in_service(&node).await?;
        let (off, on) = stage.power_cycles("gpu1").await?;
        ensure!(off == on && off <= 2, "off {off} times, on {on} times");
        haulout.stop().await
    });
}
