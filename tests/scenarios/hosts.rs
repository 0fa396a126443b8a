//! Hosts that go away, come back, or were on their way before Haulout was.

use std::time::Duration;

use anyhow::ensure;
use haulout_lab::stage::is_cordoned;
use haulout_lab::vcenter::{Connection, HostSpec};

use crate::story::{a40, in_maintenance, one_node, run, start, tell};

#[test]
fn s13_started_while_the_host_is_entering() {
    tell(async {
        let stage = one_node("late").await?;
        let node = stage.node_name("gpu1");
        stage.vcenter.enter_maintenance("esx1").await?;
        let haulout = start(&stage, &[])?;
        in_maintenance(&stage, "esx1").await?;
        stage.vcenter.exit_maintenance("esx1").await?;
        stage.wait_in_service(&node).await?;
        ensure!(stage.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn s13_started_again_while_the_host_is_in_maintenance_and_after_it_has_left() {
    tell(async {
        let stage = one_node("later").await?;
        let node = stage.node_name("gpu1");
        let haulout = run(&stage, &[]).await?;
        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_phase(&node, "awaitingHost").await?;
        haulout.kill().await?;

        in_maintenance(&stage, "esx1").await?;
        let haulout = start(&stage, &[])?;
        stage
            .wait_said("waiting for host esx1, which is in maintenance mode")
            .await?;
        ensure!(is_cordoned(&stage.node(&node).await?));
        haulout.kill().await?;

        stage.vcenter.exit_maintenance("esx1").await?;
        stage
            .wait_vcenter("esx1 is out", |it| !it.host("esx1").unwrap().in_maintenance)
            .await?;
        let haulout = start(&stage, &[])?;
        stage.wait_in_service(&node).await?;
        ensure!(stage.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn s16_a_host_that_is_disconnected_while_its_vm_is_off_is_waited_for() {
    tell(async {
        let stage = one_node("gone-silent").await?;
        let node = stage.node_name("gpu1");
        let haulout = run(&stage, &[]).await?;
        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_phase(&node, "awaitingHost").await?;
        in_maintenance(&stage, "esx1").await?;

        stage
            .vcenter
            .set_connection("esx1", Connection::NotResponding)
            .await?;
        stage
            .wait_said("host esx1, which is not reachable for vCenter")
            .await?;
        ensure!(is_cordoned(&stage.node(&node).await?), "no wrong uncordon");
        ensure!(
            stage.power_cycles("gpu1").await? == (1, 0),
            "no power-on on a host nobody hears"
        );
        stage
            .vcenter
            .set_connection("esx1", Connection::Connected)
            .await?;
        stage.vcenter.exit_maintenance("esx1").await?;
        stage.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn s16_a_host_that_is_renamed_while_its_vm_is_off_is_the_same_host() {
    tell(async {
        let stage = one_node("renamed").await?;
        let node = stage.node_name("gpu1");
        let haulout = run(&stage, &[]).await?;
        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_phase(&node, "awaitingHost").await?;
        in_maintenance(&stage, "esx1").await?;

        stage.vcenter.rename_host("esx1", "esx-renamed").await?;
        stage.wait_said("waiting for host esx-renamed").await?;
        stage.vcenter.exit_maintenance("esx-renamed").await?;
        stage.wait_in_service(&node).await?;
        ensure!(stage.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn s16_a_host_that_is_removed_while_its_vm_is_off_parks_the_node_until_the_vm_is_back() {
    tell(async {
        let stage = one_node("removed").await?;
        let node = stage.node_name("gpu1");
        let haulout = run(&stage, &[]).await?;
        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_phase(&node, "awaitingHost").await?;
        in_maintenance(&stage, "esx1").await?;

        stage.vcenter.remove_host("esx1").await?;
        let parked = stage.wait_phase(&node, "parked").await?;
        ensure!(is_cordoned(&parked), "no wrong uncordon");
        stage.wait_said("vCenter knows no VM for this node").await?;
        // The host is added again, and its VM registered again: other morefs, the same UUID.
        let host = HostSpec {
            name: "esx1".to_owned(),
            devices: vec![a40(1)],
            datastores: vec!["ds1".to_owned()],
        };
        stage.vcenter.add_host("c1", &host).await?;
        let mut vm = crate::story::gpu_vm("removed", "gpu1", "esx1");
        vm.powered_on = false;
        stage.vcenter.add_vm(&vm).await?;
        stage.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn a_click_that_vcenter_does_not_push_is_found_by_reading_again() {
    tell(async {
        let stage = one_node("unpushed").await?;
        let node = stage.node_name("gpu1");
        stage.vcenter.push_recent_task(false).await?;
        let haulout = run(&stage, &[]).await?;
        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_phase(&node, "awaitingHost").await?;
        haulout.stop().await
    });
}

#[test]
fn a_maintenance_that_times_out_is_as_good_as_cancelled() {
    tell(async {
        let stage = one_node("timed-out").await?;
        let node = stage.node_name("gpu1");
        stage.add_pod("held", &node, &[]).await?;
        stage.set_budget("held", 0).await?;
        let haulout = run(&stage, &[]).await?;
        stage
            .vcenter
            .enter_maintenance_within("esx1", Duration::from_secs(2))
            .await?;
        stage.wait_said("held by PodDisruptionBudget held-budget").await?;
        stage.wait_in_service(&node).await?;
        ensure!(stage.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}
