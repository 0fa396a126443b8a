//! An operator ends an episode by hand, with the steps of the runbook `HauloutNodeParked`.

use anyhow::ensure;
use haulout::nodemaintenance::kind::{MaintenanceOrigin, NodeMaintenance};
use haulout_lab::fixture::{ANNOTATIONS, Fixture, annotation, is_cordoned, is_ready};
use haulout_lab::vcenter::VmState;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::fixture::{one_node, run, run_scenario};
use crate::requests::copy_says;

/// What step 2 of the runbook removes.
const RECORD: [&str; 5] = ["state", "host", "migrated-to-host", "transition-time", "episode"];

async fn annotate(fixture: &Fixture<'_>, node: &str, annotations: &Value) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(fixture.client());
    let patch = json!({"metadata": {"annotations": annotations}});
    nodes
        .patch(node, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

/// Sets or removes the annotation `skip`.
pub async fn skip(fixture: &Fixture<'_>, node: &str, value: Option<&str>) -> anyhow::Result<()> {
    annotate(fixture, node, &json!({"haulout.dev/skip": value})).await
}

/// Steps 1 to 3.
async fn end_by_hand(fixture: &Fixture<'_>, node: &str) -> anyhow::Result<()> {
    skip(fixture, node, Some("true")).await?;
    let removed = RECORD.map(|key| (format!("{ANNOTATIONS}/{key}"), Value::Null));
    annotate(fixture, node, &Value::Object(removed.into_iter().collect())).await?;
    let objects: Api<NodeMaintenance> = Api::all(fixture.client());
    for object in objects.list(&ListParams::default()).await? {
        if object.spec.node_name == node && object.spec.origin == MaintenanceOrigin::Episode {
            objects
                .delete(&object.name_any(), &DeleteParams::default())
                .await?;
        }
    }
    Ok(())
}

#[test]
fn episode_ended_by_hand_leaves_node_and_vm_to_the_operator() {
    run_scenario(async {
        let fixture = one_node("by-hand").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        copy_says(&fixture, &node, &["awaitingHost"]).await?;
        fixture.wait_in_maintenance("esx1").await?;

        end_by_hand(&fixture, &node).await?;
        fixture
            .wait_for_log("to remove haulout.dev/skip from the Node")
            .await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.vcenter.power_on("gpu1").await?;
        fixture.wait_node(&node, "is Ready", is_ready).await?;
        let left = fixture.node(&node).await?;
        ensure!(is_cordoned(&left), "the operator uncordons it");
        ensure!(annotation(&left, "episode").is_none(), "the record came back");
        fixture.person_cordons(&node, false).await?;
        skip(&fixture, &node, None).await?;
        ensure!(fixture.calls("PowerOnVM_Task", "gpu1").await? == 0);

        // The next maintenance is served as if nothing had happened.
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn unreadable_record_is_ended_by_hand_and_a_new_episode_begins() {
    run_scenario(async {
        let fixture = one_node("by-hand-unreadable").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "draining").await?;
        copy_says(&fixture, &node, &["draining"]).await?;
        fixture
            .annotate(&node, &[("episode", r#"{"version":99}"#)])
            .await?;
        fixture.wait_for_log("cannot be read").await?;
        let is_on = fixture
            .vcenter
            .state()
            .await?
            .vm("gpu1")
            .is_some_and(VmState::is_on);
        ensure!(is_on, "nothing is done to the VM");

        end_by_hand(&fixture, &node).await?;
        fixture.person_cordons(&node, false).await?;
        fixture.set_budget("held", 1).await?;
        skip(&fixture, &node, None).await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}
