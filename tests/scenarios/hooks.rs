//! Hooks: annotations of the Node that hold a step until they are removed.

use anyhow::ensure;
use haulout_lab::fixture::{Fixture, is_cordoned};
use haulout_lab::vcenter::VmState;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::fixture::{one_node, run, run_scenario};

async fn hook(fixture: &Fixture<'_>, node: &str, hook: &str, is_set: bool) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(fixture.client());
    let value = is_set.then_some("CHG-4711");
    let patch = json!({"metadata": {"annotations": {hook: value}}});
    nodes
        .patch(node, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

async fn is_on(fixture: &Fixture<'_>) -> anyhow::Result<bool> {
    let state = fixture.vcenter.state().await?;
    Ok(state.vm("gpu1").is_some_and(VmState::is_on))
}

#[test]
fn each_hook_holds_its_step_until_it_is_removed() {
    run_scenario(async {
        let fixture = one_node("hooks").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        let hooks = ["pre-drain", "pre-poweroff", "pre-uncordon"];
        let hooks = hooks.map(|point| format!("{point}.hook.haulout.dev/ticket"));
        let waits = |hook: &str| format!("hooks to be removed from the Node: {hook}");
        for name in &hooks {
            hook(&fixture, &node, name, true).await?;
        }
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;

        fixture.wait_for_log(&waits(&hooks[0])).await?;
        ensure!(
            fixture.pods_on(&node).await? == ["train"],
            "nothing is evicted before"
        );
        ensure!(is_cordoned(&fixture.node(&node).await?));
        hook(&fixture, &node, &hooks[0], false).await?;

        fixture.wait_for_log(&waits(&hooks[1])).await?;
        ensure!(fixture.pods_on(&node).await?.is_empty(), "it is drained by then");
        ensure!(is_on(&fixture).await?, "its power is not cut before");
        // Another process knows of the hook, too.
        haulout.kill().await?;
        let haulout = run(&fixture, &[]).await?;
        ensure!(is_on(&fixture).await?);
        hook(&fixture, &node, &hooks[1], false).await?;

        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_for_log(&waits(&hooks[2])).await?;
        ensure!(
            is_cordoned(&fixture.node(&node).await?),
            "it is not uncordoned before"
        );
        hook(&fixture, &node, &hooks[2], false).await?;
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn hook_that_nobody_removes_is_passed_over_where_that_is_set() {
    run_scenario(async {
        let fixture = one_node("hooks-proceed").await?;
        let node = fixture.node_name("gpu1");
        hook(&fixture, &node, "pre-drain.hook.haulout.dev/checkpoint", true).await?;
        let proceed = [("HOOK_TIMEOUT_SECONDS", "1"), ("HOOK_TIMEOUT_ACTION", "proceed")];
        let haulout = run(&fixture, &proceed).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_for_log("; it proceeds at ").await?;
        fixture.wait_in_maintenance("esx1").await?;
        haulout.stop().await
    });
}

#[test]
fn hook_that_nobody_removes_parks_the_node_and_a_cancel_ends_that() {
    run_scenario(async {
        let fixture = one_node("hooks-hold").await?;
        let node = fixture.node_name("gpu1");
        hook(&fixture, &node, "pre-poweroff.hook.haulout.dev/ticket", true).await?;
        let haulout = run(&fixture, &[("HOOK_TIMEOUT_SECONDS", "1")]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "parked").await?;
        fixture
            .wait_for_log("overdue, still waiting for hooks to be removed")
            .await?;
        fixture.vcenter.cancel_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}
