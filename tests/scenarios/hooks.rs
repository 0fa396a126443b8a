//! Hooks: annotations of the Node that hold a step until they are removed.

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT, is_cordoned};
use haulout_lab::vcenter::VmState;
use haulout_lab::wait::until;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::fixture::{kubectl, one_node, run, run_scenario};

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

#[test]
fn uncordon_while_a_hook_holds_the_drain_evicts_nothing() {
    run_scenario(async {
        let fixture = one_node("hooks-uncordon").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        let name = "pre-drain.hook.haulout.dev/checkpoint";
        hook(&fixture, &node, name, true).await?;
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_for_log("hooks to be removed from the Node").await?;
        fixture.person_cordons(&node, false).await?;
        fixture
            .wait_node(&node, "to be cordoned again", is_cordoned)
            .await?;
        // Another process decides from the record alone.
        haulout.kill().await?;
        let waits = || {
            fixture
                .log_text()
                .matches("hooks to be removed from the Node")
                .count()
        };
        let before = waits();
        let haulout = run(&fixture, &[]).await?;
        until("the hook to be waited for again", WAIT_TIMEOUT, async || {
            Ok((waits() > before).then_some(()))
        })
        .await
        .with_context(|| fixture.log_text())?;
        ensure!(fixture.pods_on(&node).await? == ["train"]);
        hook(&fixture, &node, name, false).await?;
        fixture.wait_in_maintenance("esx1").await?;
        haulout.stop().await
    });
}

#[test]
fn drain_goes_on_while_a_hook_holds_the_shutdown() {
    run_scenario(async {
        let fixture = one_node("hooks-drain").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        fixture.set_budget("train", 0).await?;
        let name = "pre-poweroff.hook.haulout.dev/ticket";
        hook(&fixture, &node, name, true).await?;
        let haulout = run(&fixture, &[("DRAIN_TIMEOUT_SECONDS", "1")]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_for_log("hooks to be removed from the Node").await?;
        ensure!(fixture.pods_on(&node).await? == ["train"], "its budget keeps it");
        fixture.set_budget("train", 1).await?;
        until("the pod to be evicted under the hook", WAIT_TIMEOUT, async || {
            Ok(fixture.pods_on(&node).await?.is_empty().then_some(()))
        })
        .await
        .with_context(|| fixture.log_text())?;
        ensure!(is_on(&fixture).await?, "the hook holds the shutdown");
        hook(&fixture, &node, name, false).await?;
        fixture.wait_in_maintenance("esx1").await?;
        haulout.stop().await
    });
}

/// The documents in the manifests of the how-to, for `node`: what is applied once, and the Job.
fn manifests_of_the_how_to(node: &str) -> anyhow::Result<(String, String)> {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/how-to/hooks.md"))?;
    let (_, text) = text
        .split_once("## A validation Job on the way back")
        .context("the how-to has the section")?;
    let mut blocks = text
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next());
    let (Some(once), Some(job), None) = (blocks.next(), blocks.next(), blocks.next()) else {
        anyhow::bail!("the how-to has two manifests");
    };
    Ok((once.to_owned(), job.replace("gpu-7", node)))
}

/// Runs kubectl as the pod of the Job.
async fn as_the_job(
    fixture: &Fixture<'_>,
    namespace: &str,
    args: &[String],
) -> anyhow::Result<(bool, String)> {
    let accounts: Api<ServiceAccount> = Api::namespaced(fixture.client(), namespace);
    let request: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": []}}))?;
    let answer = accounts
        .create_token_request("gpu-validation", &PostParams::default(), &request)
        .await?;
    let token = answer.status.and_then(|status| status.token).context("a token")?;
    let ran = tokio::process::Command::new(fixture.kube.kubectl())
        .args(["--server", &fixture.kube.url(), "--token", &token])
        .arg("--certificate-authority")
        .arg(fixture.kube.authority())
        .args(args)
        .env_remove("KUBECONFIG")
        .env("HOME", fixture.kube.dir())
        .envs(["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"].map(|name| (name, "")))
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(WAIT_TIMEOUT, ran).await??;
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok((output.status.success(), said))
}

#[test]
fn job_of_the_how_to_removes_its_hook_and_may_do_nothing_else() {
    run_scenario(async {
        let fixture = one_node("hooks-job").await?;
        let node = fixture.node_name("gpu1");
        let (once, job) = manifests_of_the_how_to(&node)?;
        let files = [("once", once), ("job", job)]
            .map(|(name, text)| (fixture.kube.dir().join(format!("hook-{name}.yaml")), text));
        for (path, text) in &files {
            std::fs::write(path, text)?;
        }
        let [once, job] = files.map(|(path, _)| path.display().to_string());
        kubectl(&fixture, &["apply", "--validate=strict", "-f", &once]).await?;
        let name = "pre-uncordon.hook.haulout.dev/validation";
        hook(&fixture, &node, name, true).await?;
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture
            .wait_for_log(&format!("hooks to be removed from the Node: {name}"))
            .await?;

        // Its pod is scheduled onto the cordoned node. No container runs here, so the test runs the command of the last one.
        kubectl(&fixture, &["create", "--validate=strict", "-f", &job]).await?;
        let namespace = "gpu-validation";
        let pods: Api<Pod> = Api::namespaced(fixture.client(), namespace);
        let pod = until("the pod of the Job to be on the node", WAIT_TIMEOUT, async || {
            let all = pods.list(&ListParams::default()).await?;
            let is_on = |pod: &Pod| {
                let on = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                on == Some(node.as_str())
            };
            Ok(all.items.into_iter().find(is_on))
        })
        .await
        .with_context(|| fixture.log_text())?;
        ensure!(is_cordoned(&fixture.node(&node).await?), "{}", pod.name_any());
        let jobs: Api<Job> = Api::namespaced(fixture.client(), namespace);
        let made = jobs.list(&ListParams::default()).await?;
        let template = made
            .items
            .first()
            .and_then(|job| job.spec.as_ref())
            .context("a Job")?;
        let release = template
            .template
            .spec
            .as_ref()
            .and_then(|pod| pod.containers.first());
        let command = release.and_then(|it| it.command.clone()).context("a command")?;
        // A policy works some time after it was created.
        let forbidden: Vec<String> = ["annotate", "node", &node, "--overwrite", "haulout.dev/skip=true"]
            .map(str::to_owned)
            .into();
        until(
            "the policy to refuse another annotation",
            WAIT_TIMEOUT,
            async || {
                let (is_done, said) = as_the_job(&fixture, namespace, &forbidden).await?;
                Ok((!is_done && said.contains("may only remove its own hook")).then_some(()))
            },
        )
        .await?;
        kubectl(&fixture, &["annotate", "node", &node, "haulout.dev/skip-"]).await?;
        for other in [
            vec!["label", "node", &node, "pool=gold"],
            vec!["uncordon", &node],
            vec!["delete", "node", &node],
        ] {
            let args: Vec<String> = other.into_iter().map(str::to_owned).collect();
            // `kubectl uncordon` ends with 0 although it was refused.
            let (_, said) = as_the_job(&fixture, namespace, &args).await?;
            ensure!(said.contains("orbidden"), "{args:?}: {said}");
        }
        let (is_done, said) = as_the_job(&fixture, namespace, &command[1..]).await?;
        ensure!(is_done, "{said}");
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}
