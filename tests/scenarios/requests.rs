//! Requests by NodeMaintenance, and the NodeMaintenance copy of every episode.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout::nodemaintenance::kind::{
    MaintenanceAction, MaintenanceOrigin, NodeMaintenance, NodeMaintenanceSpec, NodeMaintenanceStatus,
};
use haulout_lab::fixture::{Fixture, annotation, episode, is_cordoned, is_ready};
use haulout_lab::vcenter::Delays;
use haulout_lab::wait::until;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::fixture::{a40, fixture, gpu_vm, hosts, kubectl, one_node, run, run_scenario};

const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

fn objects(fixture: &Fixture<'_>) -> Api<NodeMaintenance> {
    Api::all(fixture.client())
}

/// Creates a NodeMaintenance that requests `action` on `node`.
pub async fn ask(
    fixture: &Fixture<'_>,
    name: &str,
    node: &str,
    action: MaintenanceAction,
) -> anyhow::Result<NodeMaintenance> {
    let request = NodeMaintenance {
        metadata: ObjectMeta {
            name: Some(format!("{}-{name}", fixture.name())),
            ..ObjectMeta::default()
        },
        spec: NodeMaintenanceSpec {
            node_name: node.to_owned(),
            reason: Some("a new power supply".to_owned()),
            action,
            ..NodeMaintenanceSpec::default()
        },
        status: None,
    };
    Ok(objects(fixture).create(&PostParams::default(), &request).await?)
}

/// Deletes a request.
pub async fn withdraw(fixture: &Fixture<'_>, name: &str) -> anyhow::Result<()> {
    let name = format!("{}-{name}", fixture.name());
    objects(fixture).delete(&name, &DeleteParams::default()).await?;
    Ok(())
}

pub fn episode_id(node: &Node) -> anyhow::Result<String> {
    let episode = episode(node).context("the Node has no episode")?;
    Ok(episode["id"]
        .as_str()
        .context("the episode has no id")?
        .to_owned())
}

/// Approves the drain of the episode on the Node, and returns its id.
pub async fn approve(fixture: &Fixture<'_>, node: &str, queued: &Node) -> anyhow::Result<String> {
    let id = episode_id(queued)?;
    annotate(fixture, node, ("haulout.dev/approved", &id)).await?;
    Ok(id)
}

/// Waits until `is` holds for the status of a request.
async fn wait_status(
    fixture: &Fixture<'_>,
    name: &str,
    what: &str,
    is: impl Fn(&NodeMaintenanceStatus) -> bool,
) -> anyhow::Result<NodeMaintenanceStatus> {
    let name = format!("{}-{name}", fixture.name());
    let api = objects(fixture);
    let seen = std::cell::RefCell::new(None);
    until(&format!("{name} {what}"), WAIT_TIMEOUT, async || {
        let status = api.get(&name).await?.status.unwrap_or_default();
        *seen.borrow_mut() = Some(status.clone());
        Ok(is(&status).then_some(status))
    })
    .await
    .with_context(|| format!("the status was {:#?}", seen.borrow()))
}

/// Haulout's NodeMaintenance copies for `node`, oldest first.
async fn episodes(fixture: &Fixture<'_>, node: &str) -> anyhow::Result<Vec<NodeMaintenance>> {
    let mut all = objects(fixture).list(&ListParams::default()).await?.items;
    all.retain(|object| object.spec.origin == MaintenanceOrigin::Episode && object.spec.node_name == node);
    all.sort_by_key(|object| (object.creation_timestamp().map(|time| time.0), object.name_any()));
    Ok(all)
}

/// The copies for `node` once all of them have ended.
pub async fn all_ended(fixture: &Fixture<'_>, node: &str) -> anyhow::Result<Vec<NodeMaintenance>> {
    until("the episodes to be history", WAIT_TIMEOUT, async || {
        let history = episodes(fixture, node).await?;
        let ended = |it: &NodeMaintenance| it.status.as_ref().is_some_and(|it| it.ended_at.is_some());
        Ok(history.iter().all(ended).then_some(history))
    })
    .await
}

/// Waits until the copy for `node` is in one of these phases.
pub async fn copy_says(fixture: &Fixture<'_>, node: &str, phases: &[&str]) -> anyhow::Result<()> {
    until(
        &format!("the copy to say {}", phases.join(" or ")),
        WAIT_TIMEOUT,
        async || {
            let episodes = episodes(fixture, node).await?;
            let record = episodes.first().and_then(|it| it.status.clone()?.record);
            let says = |record: &String| phases.iter().any(|phase| record.contains(phase));
            Ok(record.filter(says).map(|_| ()))
        },
    )
    .await
}

pub async fn annotate(fixture: &Fixture<'_>, node: &str, (key, value): (&str, &str)) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(fixture.client());
    let patch = json!({"metadata": {"annotations": {key: value}}});
    nodes
        .patch(node, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

fn condition<'a>(status: &'a NodeMaintenanceStatus, kind: &str) -> Option<&'a str> {
    let found = status.conditions.iter().find(|condition| condition.type_ == kind);
    found.map(|condition| condition.status.as_str())
}

#[test]
fn drain_request_keeps_the_node_drained_until_it_is_deleted() {
    run_scenario(async {
        let fixture = one_node("ask-drain").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        let haulout = run(&fixture, &[]).await?;

        ask(&fixture, "power-supply", &node, MaintenanceAction::Drain).await?;
        let drained = fixture.wait_phase(&node, "drained").await?;
        ensure!(is_cordoned(&drained));
        ensure!(fixture.pods_on(&node).await?.is_empty());
        let status = wait_status(&fixture, "power-supply", "has succeeded", |status| {
            condition(status, "Succeeded") == Some("True")
        })
        .await?;
        ensure!(status.phase.as_deref() == Some("Succeeded"), "{status:?}");
        ensure!(
            status.eviction_pods == Some(1) && status.drain_progress == Some(100),
            "{status:?}"
        );
        ensure!(status.ended_at.is_none(), "it stands: {status:?}");
        ensure!(condition(&status, "Reconciling") == Some("False"), "{status:?}");

        withdraw(&fixture, "power-supply").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(
            fixture.power_cycles("gpu1").await? == (0, 0),
            "its VM was left alone"
        );
        let history = all_ended(&fixture, &node).await?;
        ensure!(history.len() == 1, "{history:#?}");
        let status = history[0].status.clone().unwrap_or_default();
        let phases: Vec<&str> = status.phases.iter().map(|phase| phase.phase.as_str()).collect();
        ensure!(phases == ["Draining", "Drained"], "{phases:?}");
        ensure!(condition(&status, "Succeeded") == Some("True"), "{status:?}");
        haulout.stop().await
    });
}

#[test]
fn power_off_request_keeps_the_vm_off_until_it_is_deleted() {
    run_scenario(async {
        let fixture = one_node("ask-off").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;

        ask(&fixture, "off", &node, MaintenanceAction::PowerOff).await?;
        wait_status(&fixture, "off", "has succeeded", |status| {
            condition(status, "Succeeded") == Some("True")
        })
        .await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 0));
        fixture.wait_for_log("asks for it to be kept off").await?;
        withdraw(&fixture, "off").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn reboot_request_reboots_once_even_when_haulout_is_killed_at_its_end() {
    run_scenario(async {
        let fixture = one_node("ask-reboot").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;

        ask(&fixture, "reboot", &node, MaintenanceAction::Reboot).await?;
        let back = fixture
            .wait_node(&node, "is back, and its request fulfilled", |node| {
                annotation(node, "episode").is_none() && annotation(node, "fulfilled-request").is_some()
            })
            .await?;
        ensure!(is_ready(&back) && !is_cordoned(&back));
        // Its own status may not show it yet.
        haulout.kill().await?;
        let haulout = run(&fixture, &[]).await?;
        wait_status(&fixture, "reboot", "is over", |status| {
            status.ended_at.is_some() && condition(status, "Succeeded") == Some("True")
        })
        .await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn relocation_request_moves_the_vm_to_the_named_host() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)]), ("esx3", &[a40(1)])]);
        spec.vms = vec![gpu_vm("ask-move", "gpu1", "esx1")];
        let fixture = fixture("ask-move", &spec).await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;

        let request = NodeMaintenance {
            metadata: ObjectMeta {
                name: Some("ask-move-there".to_owned()),
                ..ObjectMeta::default()
            },
            spec: NodeMaintenanceSpec {
                node_name: node.clone(),
                action: MaintenanceAction::Relocate,
                target_host: Some("esx3".to_owned()),
                ..NodeMaintenanceSpec::default()
            },
            status: None,
        };
        objects(&fixture).create(&PostParams::default(), &request).await?;
        let status = wait_status(&fixture, "there", "is over", |status| status.ended_at.is_some()).await?;
        ensure!(condition(&status, "Succeeded") == Some("True"), "{status:?}");
        fixture.wait_in_service(&node).await?;
        let state = fixture.vcenter.state().await?;
        let vm = state.vm("gpu1").context("no VM")?;
        ensure!(vm.host == "esx3", "it stands on {}", vm.host);
        haulout.stop().await
    });
}

#[test]
fn relocation_without_a_suitable_host_fails_with_the_node_back() {
    run_scenario(async {
        let fixture = one_node("ask-nowhere").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        let haulout = run(&fixture, &[]).await?;

        ask(&fixture, "away", &node, MaintenanceAction::Relocate).await?;
        let status = wait_status(&fixture, "away", "is over", |status| status.ended_at.is_some()).await?;
        ensure!(status.phase.as_deref() == Some("Failed"), "{status:?}");
        ensure!(condition(&status, "Succeeded") == Some("False"), "{status:?}");
        fixture.wait_in_service(&node).await?;
        ensure!(
            fixture.pods_on(&node).await? == ["train"],
            "its pods were left alone"
        );
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0), "and its VM");
        let cordons = fixture.audit().await?.into_iter().filter(|event| {
            let object = event.object.as_ref();
            let cordon = object.and_then(|object| object.pointer("/spec/unschedulable"));
            event.resource == "nodes" && cordon.is_some()
        });
        ensure!(cordons.count() == 0, "it was never cordoned");
        haulout.stop().await
    });
}

#[test]
fn relocation_whose_target_is_taken_fails_before_the_vm_is_shut_down() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        spec.vms = vec![gpu_vm("ask-late", "gpu1", "esx1")];
        let fixture = fixture("ask-late", &spec).await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = run(&fixture, &[]).await?;

        ask(&fixture, "away", &node, MaintenanceAction::Relocate).await?;
        fixture.wait_phase(&node, "draining").await?;
        // An unrelated VM takes the only other device.
        let stranger = gpu_vm("ask-late", "stranger", "esx2");
        fixture.vcenter.add_vm(&stranger).await?;
        fixture.set_budget("held", 1).await?;
        let status = wait_status(&fixture, "away", "is over", |status| status.ended_at.is_some()).await?;
        ensure!(status.phase.as_deref() == Some("Failed"), "{status:?}");
        let why = status.last_error.clone().unwrap_or_default();
        ensure!(
            why.contains("esx2 has no matching device free"),
            "it says why: {status:#?}"
        );
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}

#[test]
fn request_and_host_maintenance_are_one_episode_until_both_are_gone() {
    run_scenario(async {
        for request_first in [true, false] {
            let name = if request_first { "both-ask" } else { "both-click" };
            let fixture = one_node(name).await?;
            let node = fixture.node_name("gpu1");
            let haulout = run(&fixture, &[]).await?;

            if request_first {
                ask(&fixture, "hold", &node, MaintenanceAction::Drain).await?;
                fixture.wait_phase(&node, "drained").await?;
                fixture.vcenter.enter_maintenance("esx1").await?;
            } else {
                fixture.vcenter.enter_maintenance("esx1").await?;
                fixture.wait_phase(&node, "awaitingHost").await?;
                ask(&fixture, "hold", &node, MaintenanceAction::Drain).await?;
            }
            fixture.wait_in_maintenance("esx1").await?;
            fixture.vcenter.exit_maintenance("esx1").await?;
            let held = fixture.wait_phase(&node, "drained").await?;
            ensure!(is_cordoned(&held), "the request keeps it cordoned");
            withdraw(&fixture, "hold").await?;
            fixture.wait_in_service(&node).await?;
            ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
            ensure!(episodes(&fixture, &node).await?.len() == 1, "it was one episode");
            haulout.stop().await?;
        }
        Ok(())
    });
}

#[test]
fn episode_survives_deletion_of_its_node_while_the_vm_is_off() {
    run_scenario(async {
        let fixture = one_node("gone").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;
        let nodes: Api<Node> = Api::all(fixture.client());

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        copy_says(&fixture, &node, &["awaitingHost"]).await?;
        let before = nodes.get(&node).await?.uid();
        nodes.delete(&node, &DeleteParams::default()).await?;
        // By a process that has never seen the Node.
        haulout.kill().await?;
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        // The kubelet registers it again, and it returns to service.
        let back = fixture
            .wait_node(&node, "is registered again and in service", |node| {
                node.uid() != before && annotation(node, "episode").is_none() && is_ready(node)
            })
            .await?;
        ensure!(!is_cordoned(&back));
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        let history = all_ended(&fixture, &node).await?;
        ensure!(history.len() == 1, "one episode: {history:#?}");
        haulout.stop().await
    });
}

#[test]
fn episode_survives_a_node_that_an_etcd_restore_puts_back() {
    run_scenario(async {
        for is_killed in [false, true] {
            let name = if is_killed { "restored-killed" } else { "restored" };
            let fixture = one_node(name).await?;
            // Long enough for the copy to be written.
            let delays = Delays {
                power_on_ms: 1500,
                ..Delays::default()
            };
            fixture.vcenter.set_delays(delays).await?;
            let node = fixture.node_name("gpu1");
            let haulout = run(&fixture, &[]).await?;
            let nodes: Api<Node> = Api::all(fixture.client());

            fixture.vcenter.enter_maintenance("esx1").await?;
            fixture.wait_in_maintenance("esx1").await?;
            let off = fixture.wait_phase(&node, "awaitingHost").await?;
            copy_says(&fixture, &node, &["awaitingHost"]).await?;
            let backup = fixture.kube.back_up_node(&node).await?;
            nodes.delete(&node, &DeleteParams::default()).await?;
            // The kubelet would register a new one.
            fixture.kubelet("gpu1")?.hold_boot();
            fixture.vcenter.exit_maintenance("esx1").await?;
            copy_says(&fixture, &node, &["poweringOn", "rejoining"]).await?;
            ensure!(
                nodes.get_opt(&node).await?.is_none(),
                "it went on without its Node"
            );
            // The Node is older than its copy.
            let haulout = if is_killed {
                haulout.kill().await?;
                fixture.kube.restore_node(&backup).await?;
                run(&fixture, &[]).await?
            } else {
                fixture.kube.restore_node(&backup).await?;
                haulout
            };
            fixture.kubelet("gpu1")?.release_boot();

            let back = fixture.wait_in_service(&node).await?;
            ensure!(back.uid() == off.uid(), "it is the Node that was deleted");
            ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
            ensure!(fixture.calls("PowerOnVM_Task", "gpu1").await? == 1);
            let history = all_ended(&fixture, &node).await?;
            ensure!(history.len() == 1, "one episode: {history:#?}");
            let status = history[0].status.clone().unwrap_or_default();
            ensure!(condition(&status, "Succeeded") == Some("True"), "{status:#?}");
            haulout.stop().await?;
        }
        Ok(())
    });
}

#[test]
fn history_keeps_as_many_episodes_as_the_setting_says() {
    run_scenario(async {
        let fixture = one_node("history").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[("NODE_MAINTENANCE_HISTORY", "2")]).await?;
        for round in 0..4 {
            let name = format!("r{round}");
            ask(&fixture, &name, &node, MaintenanceAction::Drain).await?;
            fixture.wait_phase(&node, "drained").await?;
            // An episode that ends within the batch interval leaves no object.
            until("the episode to have its object", WAIT_TIMEOUT, async || {
                let is_open =
                    |it: &NodeMaintenance| it.status.as_ref().is_none_or(|it| it.ended_at.is_none());
                let episodes = episodes(&fixture, &node).await?;
                Ok(episodes.iter().any(is_open).then_some(()))
            })
            .await?;
            withdraw(&fixture, &name).await?;
            fixture.wait_in_service(&node).await?;
        }
        let seen = std::cell::RefCell::new(Vec::new());
        until("two to be left", WAIT_TIMEOUT, async || {
            let left = episodes(&fixture, &node).await?;
            seen.borrow_mut().clone_from(&left);
            let ended = left
                .iter()
                .all(|it| it.status.as_ref().is_some_and(|it| it.ended_at.is_some()));
            Ok((ended && left.len() == 2).then_some(()))
        })
        .await
        .with_context(|| format!("left are {:#?}\n{}", seen.borrow(), fixture.log_text()))?;
        haulout.stop().await
    });
}

#[test]
fn drain_that_needs_approval_waits_and_each_needs_its_own() {
    run_scenario(async {
        let fixture = one_node("approval").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[("REQUIRE_APPROVAL", "true")]).await?;

        ask(&fixture, "first", &node, MaintenanceAction::Drain).await?;
        let queued = fixture.wait_phase(&node, "queued").await?;
        ensure!(!is_cordoned(&queued));
        fixture.wait_for_log("to approve its drain").await?;
        let first = approve(&fixture, &node, &queued).await?;
        fixture.wait_phase(&node, "drained").await?;
        withdraw(&fixture, "first").await?;
        let back = fixture.wait_in_service(&node).await?;
        ensure!(
            !back.annotations().contains_key("haulout.dev/approved"),
            "the approval was for one drain"
        );

        // Somebody leaves the approval of the first drain on the Node, or approves whatever comes.
        for left in [first.as_str(), "true"] {
            annotate(&fixture, &node, ("haulout.dev/approved", left)).await?;
            ask(
                &fixture,
                &format!("after-{left}"),
                &node,
                MaintenanceAction::Drain,
            )
            .await?;
            let queued = fixture.wait_phase(&node, "queued").await?;
            let id = episode_id(&queued)?;
            fixture
                .wait_for_log(&format!(
                    "to approve its drain: annotate it with haulout.dev/approved={id}"
                ))
                .await?;
            ensure!(!is_cordoned(&fixture.node(&node).await?));
            withdraw(&fixture, &format!("after-{left}")).await?;
            fixture.wait_in_service(&node).await?;
        }
        haulout.stop().await
    });
}

#[test]
fn node_with_skip_is_left_alone_and_reported() {
    run_scenario(async {
        let fixture = one_node("skip").await?;
        let node = fixture.node_name("gpu1");
        annotate(&fixture, &node, ("haulout.dev/skip", "true")).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("to remove haulout.dev/skip from the Node")
            .await?;
        ensure!(!is_cordoned(&fixture.node(&node).await?));
        annotate(&fixture, &node, ("haulout.dev/skip", "false")).await?;
        fixture.wait_in_maintenance("esx1").await?;
        haulout.stop().await
    });
}

#[test]
fn request_for_an_unknown_node_says_so() {
    run_scenario(async {
        let fixture = one_node("nobody").await?;
        let haulout = run(&fixture, &[]).await?;
        ask(&fixture, "typo", "no-such-node", MaintenanceAction::Drain).await?;
        let status = wait_status(&fixture, "typo", "is stalled", |status| {
            condition(status, "Stalled") == Some("True")
        })
        .await?;
        ensure!(
            status.last_error.as_deref() == Some("no Node no-such-node is among those that Haulout watches"),
            "{status:?}"
        );
        withdraw(&fixture, "typo").await?;
        haulout.stop().await
    });
}

/// `kubectl get nm -o wide` with single spaces, ages and trace ids masked.
const SHOWN: &str = "NAME NODE HOST ACTION STATE RESULT DRAINED AGE TARGET REASON REQUESTED BY WAITING FOR TRACE
wide-power-supply wide-gpu1 esx1 Drain Drained 100 AGE a new power supply a person to delete NodeMaintenance wide-power-supply, which asks for it to be drained TRACE";

#[test]
fn kubectl_waits_for_a_request_and_lists_it() {
    run_scenario(async {
        let fixture = one_node("wide").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        let haulout = run(&fixture, &[]).await?;
        ask(&fixture, "power-supply", &node, MaintenanceAction::Drain).await?;
        let wait = [
            "wait",
            "--for=condition=Succeeded",
            "--timeout=60s",
            "nm/wide-power-supply",
        ];
        let waited = kubectl(&fixture, &wait).await?;
        ensure!(waited.contains("condition met"), "{waited}");
        let get = ["get", "nm", "wide-power-supply", "-o", "wide"];
        let shown = until("the line to be whole", WAIT_TIMEOUT, async || {
            let shown = kubectl(&fixture, &get).await?;
            Ok((shown.contains("which asks for it to be drained")).then_some(shown))
        })
        .await?;
        let lines: Vec<String> = shown
            .lines()
            .map(|line| {
                let is_age =
                    |word: &str| word.ends_with('s') && word.starts_with(|c: char| c.is_ascii_digit());
                let is_trace = |word: &str| word.len() == 32 && word.chars().all(|c| c.is_ascii_hexdigit());
                let masked = line.split_whitespace().map(|word| match word {
                    age if is_age(age) => "AGE",
                    trace if is_trace(trace) => "TRACE",
                    word => word,
                });
                masked.collect::<Vec<_>>().join(" ")
            })
            .collect();
        ensure!(lines.join("\n") == SHOWN, "{}", lines.join("\n"));
        haulout.stop().await
    });
}

#[test]
fn invalid_request_is_rejected_by_the_kube_apiserver() {
    run_scenario(async {
        let fixture = one_node("cannot-be-meant").await?;
        let node = fixture.node_name("gpu1");
        let request = ask(&fixture, "fixed", &node, MaintenanceAction::Drain).await?;
        let api = objects(&fixture);
        let refused = async |change: &dyn Fn(&mut NodeMaintenanceSpec)| -> anyhow::Result<String> {
            let mut changed = api.get(&request.name_any()).await?;
            change(&mut changed.spec);
            let answer = api
                .replace(&request.name_any(), &PostParams::default(), &changed)
                .await;
            Ok(answer.err().context("it was taken")?.to_string())
        };
        let error = refused(&|spec| spec.node_name = "another".to_owned()).await?;
        ensure!(error.contains("spec.nodeName cannot be changed"), "{error}");
        let error = refused(&|spec| spec.action = MaintenanceAction::Reboot).await?;
        ensure!(error.contains("spec.action cannot be changed"), "{error}");
        let error = refused(&|spec| spec.target_host = Some("esx2".to_owned())).await?;
        ensure!(error.contains("is allowed with action Relocate only"), "{error}");
        let error = refused(&|spec| spec.drain_timeout_seconds = Some(0)).await?;
        ensure!(error.contains("drainTimeoutSeconds"), "{error}");
        withdraw(&fixture, "fixed").await?;
        Ok(())
    });
}
