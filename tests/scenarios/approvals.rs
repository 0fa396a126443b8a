//! Approvals that a person gives before the request begins.

use anyhow::{Context as _, ensure};
use haulout::nodemaintenance::kind::{MaintenanceAction, NodeMaintenance, NodeMaintenanceSpec};
use haulout_lab::fixture::{Fixture, is_cordoned};
use kube::api::PostParams;
use kube::core::ObjectMeta;
use kube::{Api, ResourceExt as _};

use crate::assertions::clock;
use crate::fixture::{a40, fixture, gpu_vm, hosts, run, run_scenario};
use crate::kubectl_plugin::types;
use crate::requests::{approve, ask, episode_id};
use crate::windows::{change, closed_at, says, window};

const REQUEST: &str = "approve-early-tonight";
/// The status of a request outside its window.
const CLOSED: &str = "when the window of NodeMaintenance approve-early-tonight opens";

/// Requests that `node` is drained within a window that is closed.
async fn ask_for_tonight(fixture: &Fixture<'_>, node: &str) -> anyhow::Result<NodeMaintenance> {
    let request = NodeMaintenance {
        metadata: ObjectMeta {
            name: Some(REQUEST.to_owned()),
            ..ObjectMeta::default()
        },
        spec: NodeMaintenanceSpec {
            node_name: node.to_owned(),
            action: MaintenanceAction::Drain,
            window: Some(window(&closed_at(clock()))?),
            ..NodeMaintenanceSpec::default()
        },
        status: None,
    };
    let objects: Api<NodeMaintenance> = Api::all(fixture.client());
    let request = objects.create(&PostParams::default(), &request).await?;
    says(fixture, REQUEST, CLOSED).await?;
    Ok(request)
}

async fn approval(fixture: &Fixture<'_>, node: &str) -> anyhow::Result<Option<String>> {
    let node = fixture.node(node).await?;
    Ok(node.annotations().get("haulout.dev/approved").cloned())
}

/// Drains another node, whose drain is approved when it waits for that.
async fn drain_with_approval(fixture: &Fixture<'_>, vm: &str) -> anyhow::Result<String> {
    let node = fixture.node_name(vm);
    ask(fixture, vm, &node, MaintenanceAction::Drain).await?;
    let queued = fixture.wait_phase(&node, "queued").await?;
    approve(fixture, &node, &queued).await?;
    Ok(node)
}

#[test]
fn approval_in_advance_survives_the_window_and_is_not_asked_for_again() {
    run_scenario(async {
        let name = "approve-early";
        let gpus = [a40(1)];
        let mut spec = hosts(&[("esx1", &gpus), ("esx2", &gpus), ("esx3", &gpus)]);
        spec.vms = ["1", "2", "3"]
            .map(|number| gpu_vm(name, &format!("gpu{number}"), &format!("esx{number}")))
            .to_vec();
        let fixture = fixture(name, &spec).await?;
        let node = fixture.node_name("gpu1");
        let limits = [("REQUIRE_APPROVAL", "true"), ("MAX_CONCURRENT_DRAINS", "1")];
        let haulout = run(&fixture, &limits).await?;
        let request = ask_for_tonight(&fixture, &node).await?;
        let uid = request.uid().context("the request has no UID")?;
        let approved = types(&fixture, &["approve", &node]).await?;
        ensure!(
            approved.stdout == format!("node/{node} approved: NodeMaintenance {REQUEST}, when it begins\n"),
            "{approved}"
        );

        // The window opens while another node has the only slot, and closes before it is free.
        fixture.add_pod("held", &fixture.node_name("gpu2"), &[]).await?;
        fixture.set_budget("held", 0).await?;
        let other = drain_with_approval(&fixture, "gpu2").await?;
        fixture.wait_phase(&other, "draining").await?;
        change(&fixture, REQUEST, &window("00:00-00:00")?).await?;
        let queued = fixture.wait_phase(&node, "queued").await?;
        says(&fixture, REQUEST, &format!("and {other} comes first")).await?;
        change(&fixture, REQUEST, &window(&closed_at(clock()))?).await?;
        says(&fixture, REQUEST, CLOSED).await?;
        ensure!(approval(&fixture, &node).await? == Some(uid), "it is kept");
        fixture.set_budget("held", 1).await?;
        fixture.wait_phase(&other, "drained").await?;
        // The slot is not kept for a request that may not begin.
        let third = drain_with_approval(&fixture, "gpu3").await?;
        fixture.wait_phase(&third, "drained").await?;
        let still = fixture.wait_phase(&node, "queued").await?;
        ensure!(!is_cordoned(&still) && episode_id(&still)? == episode_id(&queued)?);

        change(&fixture, REQUEST, &window("00:00-00:00")?).await?;
        let drained = fixture.wait_phase(&node, "drained").await?;
        ensure!(
            episode_id(&drained)? == episode_id(&queued)?,
            "it is the same episode"
        );
        ensure!(
            approval(&fixture, &node).await?.is_none(),
            "the approval was for one drain"
        );
        let log = fixture.log_text();
        let asked = log
            .lines()
            .find(|line| line.contains(&node) && line.contains("to approve its drain"));
        ensure!(asked.is_none(), "it was asked for: {asked:?}");
        haulout.stop().await
    });
}
