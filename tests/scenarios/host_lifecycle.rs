//! Hosts that disconnect, are renamed or removed, or entered maintenance before Haulout started; maintenance that is
//! not pushed.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use haulout_lab::fixture::{Fixture, Haulout, WAIT_TIMEOUT, is_cordoned};
use haulout_lab::vcenter::{Connection, FaultRule, FaultRuleKind, HostSpec};
use haulout_lab::wait::until;

use crate::fixture::{a40, fixture, gpu_vm, hosts, one_node, run, run_scenario, start};
use crate::metrics::{address, ask};

/// A fixture with the Node `gpu1`, whose VM is off because its host is in maintenance mode, and Haulout.
async fn node_away(name: &str) -> anyhow::Result<(Fixture<'static>, String, Haulout)> {
    let fixture = one_node(name).await?;
    let node = fixture.node_name("gpu1");
    let haulout = run(&fixture, &[]).await?;
    fixture.vcenter.enter_maintenance("esx1").await?;
    fixture.wait_phase(&node, "awaitingHost").await?;
    fixture.wait_in_maintenance("esx1").await?;
    Ok((fixture, node, haulout))
}

/// A technician restarts the host several times; between two starts vCenter sees it out of maintenance.
#[test]
fn host_that_came_back_by_itself_is_used_after_it_has_stayed() {
    run_scenario(async {
        let fixture = one_node("settling").await?;
        let node = fixture.node_name("gpu1");
        let settle = Duration::from_secs(6);
        let haulout = run(&fixture, &[("HOST_SETTLE_SECONDS", "6")]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.wait_in_maintenance("esx1").await?;
        let is_lost = async |times: usize| {
            let lost = Connection::NotResponding;
            fixture.vcenter.set_connection("esx1", lost).await?;
            until("the loss to be logged", WAIT_TIMEOUT, async || {
                let log = fixture.log_text();
                let losses = log.matches("host esx1, which is not reachable for vCenter");
                Ok((losses.count() >= times).then_some(()))
            })
            .await
        };
        is_lost(1).await?;
        fixture.vcenter.return_out_of_maintenance("esx1").await?;
        fixture.wait_for_log("it came back by itself").await?;
        is_lost(2).await?;
        let returned = tokio::time::Instant::now();
        fixture.vcenter.return_out_of_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(returned.elapsed() >= settle, "after {:?}", returned.elapsed());
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn host_that_a_user_takes_out_of_maintenance_is_used_at_once() {
    run_scenario(async {
        let fixture = one_node("exited").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[("HOST_SETTLE_SECONDS", "600")]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.wait_in_maintenance("esx1").await?;
        for state in [Connection::NotResponding, Connection::Connected] {
            fixture.vcenter.set_connection("esx1", state).await?;
        }
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn start_while_the_host_is_entering() {
    run_scenario(async {
        let fixture = one_node("late").await?;
        let node = fixture.node_name("gpu1");
        fixture.vcenter.enter_maintenance("esx1").await?;
        let haulout = start(&fixture, &[])?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn restart_while_the_host_is_in_maintenance_and_after_it_left() {
    run_scenario(async {
        let fixture = one_node("later").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        haulout.kill().await?;

        fixture.wait_in_maintenance("esx1").await?;
        let haulout = start(&fixture, &[])?;
        fixture
            .wait_for_log("waiting for host esx1, which is in maintenance mode")
            .await?;
        ensure!(is_cordoned(&fixture.node(&node).await?));
        haulout.kill().await?;

        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture
            .wait_vcenter("esx1 is out", |it| !it.host("esx1").unwrap().in_maintenance)
            .await?;
        let haulout = start(&fixture, &[])?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn host_disconnected_while_its_vm_is_off_is_waited_for() {
    run_scenario(async {
        let (fixture, node, haulout) = node_away("disconnected").await?;

        fixture
            .vcenter
            .set_connection("esx1", Connection::NotResponding)
            .await?;
        fixture
            .wait_for_log("host esx1, which is not reachable for vCenter")
            .await?;
        ensure!(is_cordoned(&fixture.node(&node).await?), "no wrong uncordon");
        ensure!(
            fixture.power_cycles("gpu1").await? == (1, 0),
            "no power-on on a disconnected host"
        );
        fixture
            .vcenter
            .set_connection("esx1", Connection::Connected)
            .await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn host_renamed_while_its_vm_is_off_is_the_same_host() {
    run_scenario(async {
        let (fixture, node, haulout) = node_away("renamed").await?;

        fixture.vcenter.rename_host("esx1", "esx-renamed").await?;
        fixture.wait_for_log("waiting for host esx-renamed").await?;
        fixture.vcenter.exit_maintenance("esx-renamed").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn host_removed_while_its_vm_is_off_parks_the_node_until_the_vm_is_back() {
    run_scenario(async {
        let (fixture, node, haulout) = node_away("removed").await?;

        fixture.vcenter.remove_host("esx1").await?;
        let parked = fixture.wait_phase(&node, "parked").await?;
        ensure!(is_cordoned(&parked), "no wrong uncordon");
        fixture.wait_for_log("vCenter knows no VM for this node").await?;
        // Host and VM are registered again: other morefs, the same UUID.
        let host = HostSpec {
            name: "esx1".to_owned(),
            devices: vec![a40(1)],
            datastores: vec!["ds1".to_owned()],
            ..HostSpec::default()
        };
        fixture.vcenter.add_host("c1", &host).await?;
        let mut vm = crate::fixture::gpu_vm("removed", "gpu1", "esx1");
        vm.powered_on = false;
        fixture.vcenter.add_vm(&vm).await?;
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn maintenance_that_vcenter_does_not_push_is_found_by_the_reread() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[])]);
        spec.vms = vec![gpu_vm("unpushed", "gpu1", "esx1")];
        let fixture = fixture("unpushed", &spec).await?;
        let node = fixture.node_name("gpu1");
        // While hosts push their tasks, the task history is not read.
        fixture.vcenter.push_recent_task(false).await?;
        let haulout = run(&fixture, &[("METRICS_ADDRESS", "127.0.0.1:0")]).await?;
        // Both long polls respond once more, to an unrelated maintenance, and then no more.
        let rule = FaultRule::new("WaitForUpdatesEx", FaultRuleKind::Hang);
        let rule = fixture.vcenter.fault(&rule).await?;
        fixture.vcenter.enter_maintenance("esx2").await?;
        until("both long polls to hang", WAIT_TIMEOUT, async || {
            let rules = fixture.vcenter.faults().await?;
            let hangs = rules.iter().find(|it| it.id == rule);
            Ok(hangs.is_some_and(|it| it.hits == 2).then_some(()))
        })
        .await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        ensure!(
            detected_by(&fixture).await? == ["poll"],
            "{:?}",
            detected_by(&fixture).await?
        );
        haulout.stop().await
    });
}

#[test]
fn maintenance_that_the_host_does_not_push_is_in_the_task_history() {
    run_scenario(async {
        let fixture = one_node("unpushed-task").await?;
        let node = fixture.node_name("gpu1");
        fixture.vcenter.push_recent_task(false).await?;
        // The reread is not due within the scenario.
        let changes = [
            ("METRICS_ADDRESS", "127.0.0.1:0"),
            ("POLL_INTERVAL_SECONDS", "300"),
        ];
        let haulout = run(&fixture, &changes).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        ensure!(detected_by(&fixture).await? == ["property_collector"]);
        haulout.stop().await
    });
}

#[test]
fn vcenter_that_stops_pushing_is_detected_by_the_reread() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[])]);
        spec.vms = vec![gpu_vm("pushed-once", "gpu1", "esx1")];
        let fixture = fixture("pushed-once", &spec).await?;
        let node = fixture.node_name("gpu1");
        let changes = [("METRICS_ADDRESS", "127.0.0.1:0"), ("POLL_INTERVAL_SECONDS", "4")];
        let haulout = run(&fixture, &changes).await?;
        // An unrelated maintenance is pushed, so the history is not read.
        fixture.vcenter.enter_maintenance("esx2").await?;
        fixture.wait_in_maintenance("esx2").await?;
        fixture.vcenter.rests("haulout").await?;

        fixture.vcenter.push_recent_task(false).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        ensure!(
            detected_by(&fixture).await? == ["poll"],
            "{:?}",
            detected_by(&fixture).await?
        );
        // A reread may be first by chance, but not each time.
        for _ in 0..5 {
            fixture.wait_in_maintenance("esx1").await?;
            fixture.vcenter.exit_maintenance("esx1").await?;
            fixture.wait_in_service(&node).await?;
            fixture.vcenter.enter_maintenance("esx1").await?;
            fixture.wait_phase(&node, "awaitingHost").await?;
            if detected_by(&fixture)
                .await?
                .iter()
                .any(|by| by == "property_collector")
            {
                return haulout.stop().await;
            }
        }
        bail!("the task history rests: {:?}", detected_by(&fixture).await?)
    });
}

/// The detections by source, from the metrics.
async fn detected_by(fixture: &Fixture<'_>) -> anyhow::Result<Vec<String>> {
    let metrics = format!("{}/metrics", address(fixture, "metrics").await?);
    let (_, shown) = ask(&metrics, "text/plain").await?;
    let mut sources = Vec::new();
    for line in shown.lines() {
        let Some(rest) = line.strip_prefix("haulout_detection_latency_seconds_count{source=\"") else {
            continue;
        };
        let (source, count) = rest.split_once("\"} ").context("a sample has a value")?;
        sources.extend(std::iter::repeat_n(source.to_owned(), count.parse()?));
    }
    Ok(sources)
}

#[test]
fn maintenance_that_times_out_counts_as_cancelled() {
    run_scenario(async {
        let fixture = one_node("timed-out").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("held by PodDisruptionBudget held-budget")
            .await?;
        fixture.vcenter.fail_maintenance("esx1", "Timedout").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}
