//! Takeover of the Python controller's episodes.

use anyhow::ensure;
use haulout_lab::fixture::{Fixture, PYTHON_ANNOTATIONS};
use kube::ResourceExt as _;

use crate::fixture::{a40, fixture, gpu_vm, hosts, one_node, run_scenario, start};

/// A transition time a few seconds ago in the format of Python's `isoformat()`.
#[expect(
    clippy::disallowed_methods,
    reason = "the controller that left it lived in real time"
)]
fn a_moment_ago() -> String {
    let time = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(5);
    format!("{time:.6}").replace('Z', "+00:00")
}

async fn leave(fixture: &Fixture<'_>, node: &str, annotations: &[(&str, &str)]) -> anyhow::Result<()> {
    let time = a_moment_ago();
    let mut all = annotations.to_vec();
    all.push(("transition-time", &time));
    fixture.annotate_under(PYTHON_ANNOTATIONS, node, &all).await
}

/// Waits until the node is in service, without annotations of either controller.
async fn ends(fixture: &Fixture<'_>, node: &str) -> anyhow::Result<()> {
    let node = fixture.wait_in_service(node).await?;
    let left = node
        .annotations()
        .keys()
        .find(|key| key.starts_with(PYTHON_ANNOTATIONS));
    ensure!(left.is_none(), "{left:?}");
    Ok(())
}

#[test]
fn adopted_drain_continues_on_a_node_not_yet_cordoned() {
    run_scenario(async {
        let fixture = one_node("py-drain").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        // It annotates before it cordons; here it was killed in between.
        leave(&fixture, &node, &[("state", "draining"), ("host", "esx1")]).await?;
        let haulout = start(&fixture, &[])?;
        fixture.wait_in_maintenance("esx1").await?;
        ensure!(fixture.pods_on(&node).await?.is_empty());
        fixture.vcenter.exit_maintenance("esx1").await?;
        ends(&fixture, &node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn adopted_vm_that_is_off_is_powered_on_when_its_host_is_back() {
    run_scenario(async {
        let fixture = one_node("py-off").await?;
        let node = fixture.node_name("gpu1");
        fixture.person_cordons(&node, true).await?;
        leave(&fixture, &node, &[("state", "powered-off"), ("host", "esx1")]).await?;
        fixture.vcenter.power_off("gpu1").await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        let haulout = start(&fixture, &[])?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        ends(&fixture, &node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn adopted_migration_with_a_running_vm_is_not_powered_off_again() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        spec.vms = vec![gpu_vm("py-moved", "gpu1", "esx2")];
        let fixture = fixture("py-moved", &spec).await?;
        let node = fixture.node_name("gpu1");
        fixture.person_cordons(&node, true).await?;
        let moved = [
            ("state", "migrated"),
            ("host", "esx1"),
            ("migrated-to-host", "esx2"),
        ];
        leave(&fixture, &node, &moved).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        let haulout = start(&fixture, &[])?;
        ends(&fixture, &node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}

#[test]
fn record_of_an_unknown_version_is_left_alone_and_reported() {
    run_scenario(async {
        let fixture = one_node("future").await?;
        let node = fixture.node_name("gpu1");
        fixture.annotate(&node, &[("episode", "{\"version\":7}")]).await?;
        let haulout = start(&fixture, &[])?;
        fixture
            .wait_for_log("the episode is of version 7, and this program reads version 1")
            .await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .vcenter
            .wait_for_entry("entering", haulout_lab::fixture::WAIT_TIMEOUT, |it| {
                it.detail == "entering"
            })
            .await?;
        let unchanged = fixture.node(&node).await?;
        ensure!(haulout_lab::fixture::annotation(&unchanged, "episode") == Some("{\"version\":7}"));
        ensure!(fixture.audit().await?.iter().all(|event| event.verb != "patch"));
        haulout.stop().await
    });
}
