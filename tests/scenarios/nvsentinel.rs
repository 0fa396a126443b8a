//! NVSentinel as a source of requests, with the templates of docs/how-to/nvsentinel.md.
//!
//! NVSentinel does not run here. Its fault-remediation renders a Go template, makes the Node the owner of the object, creates it, and reads
//! one condition of it (NVIDIA/NVSentinel, `fault-remediation/pkg/remediation/remediation.go` at 18590486 and `pkg/crstatus/checker.go` at 2f0f6fba).
//! The templates have plain fields only, so putting the values in their places is all that Go's template would do.

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT, annotation, is_cordoned, is_ready};
use haulout_lab::wait::until;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::fixture::{one_node, run, run_scenario};

const PAGE: &str = include_str!("../../docs/how-to/nvsentinel.md");

/// What fault-remediation makes of the condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CrState {
    InProgress,
    Succeeded,
    Failed,
}

/// The values of NVSentinel's chart that the documentation gives.
fn values() -> anyhow::Result<Value> {
    let blocks = PAGE.split("```yaml\n").skip(1);
    let block = blocks.filter_map(|rest| rest.split("```").next());
    let values = block
        .into_iter()
        .find(|block| block.starts_with("fault-remediation:"))
        .context("the page has no values")?;
    let values: Value = serde_saphyr::from_str(values)?;
    Ok(values["fault-remediation"]["maintenance"].clone())
}

/// Creates the object of a recommended action, and returns its API and its name.
async fn remediate(fixture: &Fixture<'_>, action: &str) -> anyhow::Result<(Api<DynamicObject>, String)> {
    let values = values()?;
    let action = &values["actions"][action];
    let text = |field: &str| {
        action[field]
            .as_str()
            .with_context(|| format!("{field} is missing"))
    };
    ensure!(text("scope")? == "Cluster" && text("completeConditionType")? == "Succeeded");
    let (group, version, kind) = (text("apiGroup")?, text("version")?, text("kind")?);
    let node: Api<Node> = Api::all(fixture.client());
    let node = node.get(&fixture.node_name("gpu1")).await?;
    let template = values["templates"][text("templateFileName")?]
        .as_str()
        .context("there is no such template")?;
    let rendered = template
        .replace("{{ .ApiGroup }}", group)
        .replace("{{ .Version }}", version)
        .replace("{{ .HealthEvent.NodeName }}", &node.name_any())
        .replace("{{ .HealthEventID }}", fixture.name());
    ensure!(!rendered.contains("{{"), "{rendered}");
    let mut object: Value = serde_saphyr::from_str(&rendered)?;
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "Node", "name": node.name_any(), "uid": node.uid(),
        "controller": false, "blockOwnerDeletion": false,
    }]);
    let object: DynamicObject = serde_json::from_value(object)?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api = Api::all_with(fixture.client(), &resource);
    api.create(&PostParams::default(), &object).await?;
    Ok((api, object.name_any()))
}

fn state(object: &DynamicObject) -> CrState {
    let conditions = object
        .data
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    let complete = conditions.find(|condition| condition["type"] == "Succeeded");
    match complete.and_then(|condition| condition["status"].as_str()) {
        Some("True") => CrState::Succeeded,
        Some("False") => CrState::Failed,
        Some(_) | None => CrState::InProgress,
    }
}

/// The state once it is no longer in progress.
async fn end_of(api: &Api<DynamicObject>, name: &str) -> anyhow::Result<CrState> {
    until("the object to be done or failed", WAIT_TIMEOUT, async || {
        let state = state(&api.get(name).await?);
        Ok((state != CrState::InProgress).then_some(state))
    })
    .await
}

/// NVSentinel looks after the Node, and has cordoned it because of a fault.
async fn quarantine(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(fixture.client());
    let params = PatchParams {
        field_manager: Some("fault-quarantine".to_owned()),
        ..PatchParams::default()
    };
    let cordon = json!({
        "metadata": {"labels": {"nvsentinel.dgxc.nvidia.com/driver.installed": "true"}},
        "spec": {"unschedulable": true},
    });
    nodes
        .patch(&fixture.node_name("gpu1"), &params, &Patch::Merge(&cordon))
        .await?;
    Ok(())
}

#[test]
fn restart_for_nvsentinel_is_done_also_if_nobody_saw_its_end_and_the_cordon_stays() {
    run_scenario(async {
        let fixture = one_node("nvsentinel-restart").await?;
        let node = fixture.node_name("gpu1");
        quarantine(&fixture).await?;
        let haulout = run(&fixture, &[]).await?;

        let (api, name) = remediate(&fixture, "RESTART_VM").await?;
        ensure!(state(&api.get(&name).await?) == CrState::InProgress);
        fixture
            .wait_node(&node, "is back, and its request fulfilled", |node| {
                annotation(node, "episode").is_none() && annotation(node, "fulfilled-request").is_some()
            })
            .await?;
        // The object may not show it yet.
        haulout.kill().await?;
        let haulout = run(&fixture, &[]).await?;
        ensure!(end_of(&api, &name).await? == CrState::Succeeded);
        let back = fixture.node(&node).await?;
        ensure!(
            is_ready(&back) && is_cordoned(&back),
            "NVSentinel takes its cordon away itself"
        );
        let managed = back.labels().get("nvsentinel.dgxc.nvidia.com/managed");
        ensure!(managed.is_none(), "NVSentinel would never look at it again");
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn replacement_for_nvsentinel_that_no_host_can_take_has_failed() {
    run_scenario(async {
        let fixture = one_node("nvsentinel-replace").await?;
        quarantine(&fixture).await?;
        let haulout = run(&fixture, &[]).await?;

        let (api, name) = remediate(&fixture, "REPLACE_VM").await?;
        ensure!(end_of(&api, &name).await? == CrState::Failed);
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}
