//! Hosts that go away, come back, or were on their way before Haulout was.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use haulout_lab::stage::{PATIENCE, Stage, is_cordoned};
use haulout_lab::vcenter::{Connection, Fault, FaultKind, HostSpec};
use haulout_lab::wait::until;

use crate::metrics::{address, ask};
use crate::fixture::{a40, gpu_vm, hosts, in_maintenance, one_node, run, stage, start, tell};

#[test]
fn start_while_the_host_is_entering() {
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
fn restart_while_the_host_is_in_maintenance_and_after_it_left() {
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
fn host_disconnected_while_its_vm_is_off_is_waited_for() {
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
fn host_renamed_while_its_vm_is_off_is_the_same_host() {
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
fn host_removed_while_its_vm_is_off_parks_the_node_until_the_vm_is_back() {
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
        let mut vm = crate::fixture::gpu_vm("removed", "gpu1", "esx1");
        vm.powered_on = false;
        stage.vcenter.add_vm(&vm).await?;
        stage.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn maintenance_that_vcenter_does_not_push_is_found_by_the_reread() {
    tell(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[])]);
        spec.vms = vec![gpu_vm("unpushed", "gpu1", "esx1")];
        let stage = stage("unpushed", &spec).await?;
        let node = stage.node_name("gpu1");
        // A host that pushes its tasks lets the task history rest.
        stage.vcenter.push_recent_task(false).await?;
        let haulout = run(&stage, &[("METRICS_ADDRESS", "127.0.0.1:0")]).await?;
        // Both long polls answer once more, to a click that concerns nobody, and never again.
        let rule = Fault::new("WaitForUpdatesEx", FaultKind::Hang);
        let rule = stage.vcenter.fault(&rule).await?;
        stage.vcenter.enter_maintenance("esx2").await?;
        until("both long polls to hang", PATIENCE, async || {
            let rules = stage.vcenter.faults().await?;
            let hangs = rules.iter().find(|it| it.id == rule);
            Ok(hangs.is_some_and(|it| it.hits == 2).then_some(()))
        })
        .await?;
        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_phase(&node, "awaitingHost").await?;
        ensure!(
            heard_by(&stage).await? == ["poll"],
            "{:?}",
            heard_by(&stage).await?
        );
        haulout.stop().await
    });
}

#[test]
fn maintenance_that_the_host_does_not_push_is_in_the_task_history() {
    tell(async {
        let stage = one_node("unpushed-task").await?;
        let node = stage.node_name("gpu1");
        stage.vcenter.push_recent_task(false).await?;
        // The re-read does not come before the story is over.
        let changes = [
            ("METRICS_ADDRESS", "127.0.0.1:0"),
            ("POLL_INTERVAL_SECONDS", "300"),
        ];
        let haulout = run(&stage, &changes).await?;
        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_phase(&node, "awaitingHost").await?;
        ensure!(heard_by(&stage).await? == ["property_collector"]);
        haulout.stop().await
    });
}

#[test]
fn vcenter_that_stops_pushing_is_detected_by_the_reread() {
    tell(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[])]);
        spec.vms = vec![gpu_vm("pushed-once", "gpu1", "esx1")];
        let stage = stage("pushed-once", &spec).await?;
        let node = stage.node_name("gpu1");
        let changes = [("METRICS_ADDRESS", "127.0.0.1:0"), ("POLL_INTERVAL_SECONDS", "4")];
        let haulout = run(&stage, &changes).await?;
        // A click that concerns nobody is pushed, and so the history rests.
        stage.vcenter.enter_maintenance("esx2").await?;
        in_maintenance(&stage, "esx2").await?;
        stage.vcenter.rests("haulout").await?;

        stage.vcenter.push_recent_task(false).await?;
        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_phase(&node, "awaitingHost").await?;
        ensure!(
            heard_by(&stage).await? == ["poll"],
            "{:?}",
            heard_by(&stage).await?
        );
        // A reading may come first by chance, but not each time.
        for _ in 0..5 {
            in_maintenance(&stage, "esx1").await?;
            stage.vcenter.exit_maintenance("esx1").await?;
            stage.wait_in_service(&node).await?;
            stage.vcenter.enter_maintenance("esx1").await?;
            stage.wait_phase(&node, "awaitingHost").await?;
            if heard_by(&stage)
                .await?
                .iter()
                .any(|by| by == "property_collector")
            {
                return haulout.stop().await;
            }
        }
        bail!("the task history rests: {:?}", heard_by(&stage).await?)
    });
}

/// What told of each click, by the program's own count.
async fn heard_by(stage: &Stage<'_>) -> anyhow::Result<Vec<String>> {
    let metrics = format!("{}/metrics", address(stage, "metrics").await?);
    let (_, shown) = ask(&metrics, "text/plain").await?;
    let mut heard = Vec::new();
    for line in shown.lines() {
        let Some(rest) = line.strip_prefix("haulout_detection_latency_seconds_count{source=\"") else {
            continue;
        };
        let (source, count) = rest.split_once("\"} ").context("a sample has a value")?;
        heard.extend(std::iter::repeat_n(source.to_owned(), count.parse()?));
    }
    Ok(heard)
}

#[test]
fn maintenance_that_times_out_counts_as_cancelled() {
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
