//! A Job validates a node on its way back, before it is uncordoned.

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT, annotation, is_cordoned, is_ready};
use haulout_lab::wait::until;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::fixture::{one_node, run, run_scenario};

const HOOK: &str = "pre-uncordon.hook.haulout.dev/haulout-validation";

/// The file with the Job of a fixture.
fn job_file(fixture: &Fixture<'_>) -> anyhow::Result<String> {
    let path = fixture
        .kube
        .dir()
        .join(format!("validation-{}.json", fixture.name()));
    let job = json!({
        "metadata": {"namespace": fixture.name()},
        "spec": {
            "backoffLimit": 0,
            "template": {"spec": {
                "restartPolicy": "Never",
                "containers": [{
                    "name": "cuda", "image": "registry.invalid/cuda", "resources": {"limits": {"nvidia.com/gpu": 1}},
                }],
            }},
        },
    });
    std::fs::write(&path, job.to_string())?;
    Ok(path.to_str().context("a path")?.to_owned())
}

fn jobs(fixture: &Fixture<'_>) -> Api<Job> {
    Api::namespaced(fixture.client(), fixture.name())
}

/// Waits until the pod of the only Job runs on the node, and ends it so.
async fn end_job(fixture: &Fixture<'_>, node: &str, phase: &str) -> anyhow::Result<String> {
    let pods: Api<Pod> = Api::namespaced(fixture.client(), fixture.name());
    let pod = until("the pod of the Job to run", WAIT_TIMEOUT, async || {
        let all = pods
            .list(&ListParams::default().labels("batch.kubernetes.io/job-name"))
            .await?;
        let is_on = |pod: &Pod| {
            let spec = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            let status = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            spec == Some(node) && status == Some("Running")
        };
        Ok(all.items.into_iter().find(is_on))
    })
    .await
    .with_context(|| fixture.log_text())?;
    ensure!(
        is_cordoned(&fixture.node(node).await?),
        "it is validated before it is uncordoned"
    );
    let job = jobs(fixture).list(&ListParams::default()).await?;
    let [job] = &job.items[..] else {
        anyhow::bail!("one Job is expected: {job:#?}");
    };
    let status = json!({"status": {"phase": phase}});
    pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(&status))
        .await?;
    Ok(job.name_any())
}

#[test]
fn node_is_uncordoned_once_its_validation_job_has_succeeded() {
    run_scenario(async {
        let fixture = one_node("validated").await?;
        let node = fixture.node_name("gpu1");
        let file = job_file(&fixture)?;
        let settings = [("VALIDATION_JOB_FILE", file.as_str())];
        let haulout = run(&fixture, &settings).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        let away = fixture.wait_phase(&node, "awaitingHost").await?;
        ensure!(away.annotations().get(HOOK).is_some_and(|by| by == "haulout"));
        ensure!(
            jobs(&fixture)
                .list(&ListParams::default())
                .await?
                .items
                .is_empty(),
            "the node is not back"
        );
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;

        // A Job that has failed holds the node, also for a new process, until it is repeated.
        let failed = end_job(&fixture, &node, "Failed").await?;
        fixture
            .wait_for_log(&format!("the validation of node {node} failed"))
            .await?;
        haulout.kill().await?;
        let haulout = run(&fixture, &settings).await?;
        let held = fixture.node(&node).await?;
        ensure!(is_cordoned(&held) && is_ready(&held) && annotation(&held, "episode").is_some());
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        jobs(&fixture).delete(&failed, &params).await?;
        let repeated = end_job(&fixture, &node, "Succeeded").await?;
        ensure!(repeated == failed, "it has the name of its episode and boot");
        let back = fixture.wait_in_service(&node).await?;
        ensure!(!back.annotations().contains_key(HOOK));
        haulout.stop().await
    });
}

#[test]
fn node_that_was_not_shut_down_is_not_validated() {
    run_scenario(async {
        let fixture = one_node("unvalidated").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let file = job_file(&fixture)?;
        let haulout = run(&fixture, &[("VALIDATION_JOB_FILE", &file)]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "draining").await?;
        fixture.vcenter.cancel_maintenance("esx1").await?;
        let back = fixture.wait_in_service(&node).await?;
        ensure!(!back.annotations().contains_key(HOOK));
        ensure!(
            jobs(&fixture)
                .list(&ListParams::default())
                .await?
                .items
                .is_empty()
        );
        haulout.stop().await
    });
}
