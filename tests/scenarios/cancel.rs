//! Cancels of a maintenance.

use std::time::Duration;

use anyhow::ensure;
use haulout_lab::fixture::{boot_id, gpus, is_cordoned, is_ready};

use crate::assertions::{clock, cordons, node_writes};
use crate::drain_proof::bind_pod;
use crate::fixture::{a40, fixture, gpu_vm, hosts, one_node, run, run_scenario};

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
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        let (off, on) = fixture.power_cycles("gpu1").await?;
        ensure!(off == on && off <= 2, "off {off} times, on {on} times");
        haulout.stop().await
    });
}

#[test]
fn node_cancelled_in_a_second_drain_is_uncordoned_when_it_has_booted() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        spec.vms = vec![gpu_vm("again-booting", "gpu1", "esx1")];
        let fixture = fixture("again-booting", &spec).await?;
        let node = fixture.node_name("gpu1");
        let boot_before = boot_id(&fixture.node(&node).await?);
        let began = clock();
        let haulout = run(&fixture, &[]).await?;

        fixture.kubelet("gpu1")?.hold_boot();
        fixture.kubelet("gpu1")?.set_gpus_after(Duration::from_secs(5));
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "rejoining").await?;
        fixture.wait_in_maintenance("esx1").await?;
        // Without its kubelet this pod terminates until the boot, which holds the second drain.
        bind_pod(&fixture, "late", &node, &[]).await?;
        fixture.vcenter.enter_maintenance("esx2").await?;
        fixture.wait_phase(&node, "draining").await?;
        fixture.vcenter.cancel_maintenance("esx2").await?;
        fixture.wait_phase(&node, "rejoining").await?;

        fixture.kubelet("gpu1")?.release_boot();
        let booted = fixture
            .wait_node(&node, "is Ready on another boot, or uncordoned", |node| {
                is_ready(node) && boot_id(node) != boot_before || !is_cordoned(node)
            })
            .await?;
        let without_gpus = clock();
        ensure!(
            is_cordoned(&booted) && gpus(&booted) == 0,
            "it was uncordoned without its GPUs; Haulout's log:\n{}",
            fixture.log_text()
        );
        fixture.wait_in_service(&node).await?;
        let mut writes = node_writes(&fixture, &node, began).await?;
        ensure!(cordons(&writes) == [true, false], "{:?}", cordons(&writes));
        writes.retain(|it| it.received < without_gpus);
        ensure!(cordons(&writes) == [true], "{:?}", cordons(&writes));
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        ensure!(fixture.calls("ShutdownGuest", "gpu1").await? == 1);
        haulout.stop().await
    });
}
