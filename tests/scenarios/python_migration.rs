//! Episodes that the Python controller left behind.

use anyhow::ensure;
use haulout_lab::stage::Stage;

use crate::fixture::{a40, gpu_vm, hosts, in_maintenance, one_node, stage, start, tell};

/// A transition time as Python's `isoformat()` writes it, a few seconds ago.
#[expect(
    clippy::disallowed_methods,
    reason = "the controller that left it lived in real time"
)]
fn a_moment_ago() -> String {
    let time = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(5);
    format!("{time:.6}").replace('Z', "+00:00")
}

async fn leave(stage: &Stage<'_>, node: &str, annotations: &[(&str, &str)]) -> anyhow::Result<()> {
    let time = a_moment_ago();
    let mut all = annotations.to_vec();
    all.push(("transition-time", &time));
    stage.annotate(node, &all).await
}

#[test]
fn adopted_drain_continues_on_a_node_not_yet_cordoned() {
    tell(async {
        let stage = one_node("py-drain").await?;
        let node = stage.node_name("gpu1");
        stage.add_pod("train", &node, &[]).await?;
        stage.vcenter.enter_maintenance("esx1").await?;
        // It annotates first and cordons afterwards; here it was killed between the two.
        leave(&stage, &node, &[("state", "draining"), ("host", "esx1")]).await?;
        let haulout = start(&stage, &[])?;
        in_maintenance(&stage, "esx1").await?;
        ensure!(stage.pods_on(&node).await?.is_empty());
        stage.vcenter.exit_maintenance("esx1").await?;
        stage.wait_in_service(&node).await?;
        ensure!(stage.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn adopted_vm_that_is_off_is_powered_on_when_its_host_is_back() {
    tell(async {
        let stage = one_node("py-off").await?;
        let node = stage.node_name("gpu1");
        stage.person_cordons(&node, true).await?;
        stage.annotate(&node, &[]).await?;
        leave(&stage, &node, &[("state", "powered-off"), ("host", "esx1")]).await?;
        stage.vcenter.power_off("gpu1").await?;
        stage.vcenter.enter_maintenance("esx1").await?;
        in_maintenance(&stage, "esx1").await?;
        let haulout = start(&stage, &[])?;
        stage.wait_phase(&node, "awaitingHost").await?;
        stage.vcenter.exit_maintenance("esx1").await?;
        stage.wait_in_service(&node).await?;
        ensure!(stage.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn adopted_migration_with_a_running_vm_is_not_powered_off_again() {
    tell(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        spec.vms = vec![gpu_vm("py-moved", "gpu1", "esx2")];
        let stage = stage("py-moved", &spec).await?;
        let node = stage.node_name("gpu1");
        stage.person_cordons(&node, true).await?;
        let moved = [
            ("state", "migrated"),
            ("host", "esx1"),
            ("migrated-to-host", "esx2"),
        ];
        leave(&stage, &node, &moved).await?;
        stage.vcenter.enter_maintenance("esx1").await?;
        let haulout = start(&stage, &[])?;
        stage.wait_in_service(&node).await?;
        ensure!(stage.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}

#[test]
fn record_of_an_unknown_version_is_left_alone_and_reported() {
    tell(async {
        let stage = one_node("future").await?;
        let node = stage.node_name("gpu1");
        stage.annotate(&node, &[("episode", "{\"version\":7}")]).await?;
        let haulout = start(&stage, &[])?;
        stage
            .wait_said("the episode is of version 7, and this program reads version 1")
            .await?;
        stage.vcenter.enter_maintenance("esx1").await?;
        stage
            .vcenter
            .wait_for_entry("entering", haulout_lab::stage::PATIENCE, |it| {
                it.detail == "entering"
            })
            .await?;
        let standing = stage.node(&node).await?;
        ensure!(haulout_lab::stage::annotation(&standing, "episode") == Some("{\"version\":7}"));
        ensure!(stage.audit().await?.iter().all(|event| event.verb != "patch"));
        haulout.stop().await
    });
}
