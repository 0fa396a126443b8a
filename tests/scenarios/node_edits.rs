//! The Node is restored from a manifest, or its annotations change, while the VM is off.

use anyhow::ensure;
use haulout_lab::fixture::{ANNOTATIONS, Fixture, annotation, is_cordoned, is_ready, phase};
use haulout_lab::vcenter::{GuestPatch, State, VmState};
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::assertions::{ensure_brought_back, wait_for_call};
use crate::fixture::{one_node, run, run_scenario};
use crate::requests::copy_says;

/// The annotations of an episode, by their names behind the prefix.
const RECORD: [&str; 4] = ["state", "host", "transition-time", "episode"];

/// Takes the Node to maintenance, until its VM is off, its host is in maintenance, and the copy shows it.
async fn is_taken_off(fixture: &Fixture<'_>) -> anyhow::Result<Node> {
    let node = fixture.node_name("gpu1");
    fixture.vcenter.enter_maintenance("esx1").await?;
    fixture.wait_in_maintenance("esx1").await?;
    let off = fixture.wait_phase(&node, "awaitingHost").await?;
    copy_says(fixture, &node, &["awaitingHost"]).await?;
    Ok(off)
}

/// The host exits, and the VM is powered on once.
async fn is_powered_on(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    fixture.vcenter.exit_maintenance("esx1").await?;
    let on = |it: &State| it.vm("gpu1").is_some_and(VmState::is_on);
    fixture.wait_vcenter("gpu1 is on again", on).await?;
    Ok(())
}

#[test]
fn node_restored_from_its_manifest_while_away_is_uncordoned_at_the_end() {
    run_scenario(async {
        let fixture = one_node("manifest").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;
        let mut manifest = is_taken_off(&fixture).await?;
        let before = manifest.uid();
        ensure!(is_cordoned(&manifest) && annotation(&manifest, "episode").is_some());

        let nodes: Api<Node> = Api::all(fixture.client());
        nodes.delete(&node, &DeleteParams::default()).await?;
        manifest.metadata.uid = None;
        manifest.metadata.resource_version = None;
        manifest.metadata.creation_timestamp = None;
        manifest.metadata.managed_fields = None;
        let params = PostParams {
            field_manager: Some("kubectl-replace".to_owned()),
            ..PostParams::default()
        };
        let restored = nodes.create(&params, &manifest).await?;
        ensure!(restored.uid() != before && is_cordoned(&restored));
        ensure!(phase(&restored).as_deref() == Some("awaitingHost"));

        is_powered_on(&fixture).await?;
        let back = fixture.wait_in_service(&node).await?;
        ensure!(back.uid() == restored.uid());
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

/// Removes these annotations from the Node.
async fn remove(fixture: &Fixture<'_>, keys: &[&str]) -> anyhow::Result<()> {
    let removed = keys
        .iter()
        .map(|key| (format!("{ANNOTATIONS}/{key}"), Value::Null))
        .collect();
    let patch = json!({"metadata": {"annotations": Value::Object(removed)}});
    let nodes: Api<Node> = Api::all(fixture.client());
    nodes
        .patch(
            &fixture.node_name("gpu1"),
            &PatchParams::default(),
            &Patch::Merge(&patch),
        )
        .await?;
    Ok(())
}

/// The VM is brought back although these annotations were removed while it was off.
async fn survives_removal(name: &str, removed: &[&str]) -> anyhow::Result<()> {
    let fixture = one_node(name).await?;
    let node = fixture.node_name("gpu1");
    let haulout = run(&fixture, &[]).await?;
    is_taken_off(&fixture).await?;
    remove(&fixture, removed).await?;
    is_powered_on(&fixture).await?;
    fixture.wait_in_service(&node).await?;
    ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
    haulout.stop().await
}

#[test]
fn vm_comes_back_when_its_episode_annotation_is_removed_while_off() {
    run_scenario(survives_removal("unrecorded", &["episode"]));
}

#[test]
fn vm_comes_back_when_all_its_annotations_are_removed_while_off() {
    run_scenario(survives_removal("unannotated", &RECORD));
}

#[test]
fn persons_cordon_stays_when_the_episode_annotation_is_removed() {
    run_scenario(async {
        let fixture = one_node("unrecorded-cordon").await?;
        let node = fixture.node_name("gpu1");
        fixture.person_cordons(&node, true).await?;
        let haulout = run(&fixture, &[]).await?;
        is_taken_off(&fixture).await?;
        remove(&fixture, &["episode"]).await?;
        is_powered_on(&fixture).await?;
        let back = fixture
            .wait_node(&node, "has no episode and is Ready", |node| {
                annotation(node, "state").is_none() && annotation(node, "episode").is_none() && is_ready(node)
            })
            .await?;
        ensure!(
            is_cordoned(&back),
            "the person's cordon was removed; Haulout's log:\n{}",
            fixture.log_text()
        );
        haulout.stop().await
    });
}

#[test]
fn vm_comes_back_when_unrecorded_and_cancelled_during_guest_shutdown() {
    run_scenario(async {
        let fixture = one_node("unrecorded-cancel").await?;
        let slow = GuestPatch {
            shutdown_ms: Some(6_000),
            ..GuestPatch::default()
        };
        fixture.vcenter.patch_vm("gpu1", slow).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        wait_for_call(&fixture, "ShutdownGuest", "gpu1").await?;
        copy_says(&fixture, &fixture.node_name("gpu1"), &["guestShutdown"]).await?;
        // It sees both at once, or the end of the episode would hide that the record is gone.
        haulout.freeze()?;
        remove(&fixture, &["episode"]).await?;
        fixture.vcenter.cancel_maintenance("esx1").await?;
        haulout.thaw()?;
        ensure_brought_back(&fixture, "gpu1").await?;
        haulout.stop().await
    });
}
