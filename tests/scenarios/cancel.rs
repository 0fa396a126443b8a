//! Cancels of a maintenance.

use anyhow::ensure;
use haulout_lab::fixture::boot_id;

use crate::fixture::{in_maintenance, one_node, run, run_scenario};

#[test]
fn cancel_while_draining_leaves_the_node_as_it_was() {
    run_scenario(async {
        let fixture = one_node("cancel-drain").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let boot = boot_id(&fixture.node(&node).await?);
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("held by PodDisruptionBudget held-budget")
            .await?;
        fixture.vcenter.cancel_maintenance("esx1").await?;
        let back = fixture.wait_in_service(&node).await?;
        ensure!(boot_id(&back) == boot, "it never went down");
        ensure!(
            fixture.pods_on(&node).await? == ["held"],
            "the pod is still there"
        );
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}

#[test]
fn cancel_while_powered_off_brings_the_node_back_at_once() {
    run_scenario(async {
        // Another VM without a device, which the simulator does not evacuate, keeps the host entering.
        let mut spec = crate::fixture::hosts(&[("esx1", &[crate::fixture::a40(1), crate::fixture::a40(2)])]);
        let ours = crate::fixture::gpu_vm("cancel-off", "gpu1", "esx1");
        let hanging = crate::fixture::gpu_vm("cancel-off", "hanging", "esx1");
        let members = vec![haulout_lab::fixture::Member::new(
            "cancel-off",
            "gpu1",
            &ours.uuid,
        )];
        spec.vms = vec![ours, hanging];
        let fixture = haulout_lab::fixture::Fixture::create(
            crate::fixture::kube().await,
            "cancel-off",
            &spec,
            members,
            true,
        )
        .await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.vcenter.cancel_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        ensure!(
            fixture.power_cycles("hanging").await? == (0, 0),
            "the other VM is not ours to touch"
        );
        haulout.stop().await
    });
}

#[test]
fn host_that_enters_again_right_after_a_cancel_is_served_again() {
    run_scenario(async {
        let fixture = one_node("again").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_state(&node, Some("draining")).await?;
        fixture.vcenter.cancel_maintenance("esx1").await.ok();
        fixture.vcenter.exit_maintenance("esx1").await.ok();
        fixture.wait_in_service(&node).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        in_maintenance(&fixture, "esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        let (off, on) = fixture.power_cycles("gpu1").await?;
        ensure!(off == on && off <= 2, "off {off} times, on {on} times");
        haulout.stop().await
    });
}
