//! Untrusted input affects its own node only: forged records and UUIDs, results of foreign tasks, a forbidden watch.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout::nodemaintenance::kind::{MaintenanceOrigin, NodeMaintenance};
use haulout_lab::fixture::{ANNOTATIONS, Fixture, Haulout, Member, annotation, is_cordoned};
use haulout_lab::kube::{KubeOptions, User};
use haulout_lab::vcenter::{GuestPatch, Spec, State, TaskResult};
use haulout_lab::wait::until;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::assertions::{clock, entries_during, journal_end, node_writes};
use crate::fixture::{a40, fixture, gpu_vm, hosts, kube, one_node, run, run_scenario, uuid};

/// How soon an honest node must be served beside a forged one.
const SOON: Duration = Duration::from_secs(60);

/// `liar` on `esx1`, `honest` on `esx2`.
fn two_nodes(name: &str) -> Spec {
    let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
    spec.vms = vec![gpu_vm(name, "a-liar", "esx1"), gpu_vm(name, "honest", "esx2")];
    spec
}

/// Annotates a Node as its own kubelet.
async fn as_kubelet(fixture: &Fixture<'_>, node: &str, annotations: &Value) -> anyhow::Result<()> {
    let client = fixture.kube.client_for(&User::kubelet(node))?;
    let nodes: Api<Node> = Api::all(client);
    let patch = json!({"metadata": {"annotations": annotations}});
    // The authorizer sees a Node with the delay of a watch.
    until("the kubelet to be known", SOON, async || {
        let written = nodes
            .patch(node, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        Ok(written.ok().map(|_| ()))
    })
    .await
}

fn record_key() -> String {
    format!("{ANNOTATIONS}/episode")
}

/// A valid record of the node on this VM.
async fn record(fixture: &Fixture<'_>, vm: &str, phase: &Value, since: &str) -> anyhow::Result<Value> {
    let node = fixture.node(&fixture.node_name(vm)).await?;
    let state = fixture.vcenter.state().await?;
    let found = state.vm(vm).context("no such VM")?;
    let host = state.host(&found.host).context("no such host")?;
    let id = "0123456789abcdef0123456789abcdef";
    Ok(json!({
        "version": 1, "id": id, "traceparent": format!("00-{id}-0123456789abcdef-01"),
        "trigger": {"task": null, "clickedAt": since, "user": null},
        "nodeUid": node.metadata.uid, "vmUuid": found.uuid,
        "host": {"moref": host.reference, "name": host.name},
        "begunAt": since, "cordon": "ours", "bootBefore": null, "movedTo": null,
        "epoch": 0, "phase": phase, "since": since,
    }))
}

fn text(time: Timestamp) -> String {
    format!("{time:.6}")
}

#[test]
fn record_with_a_bad_id_keeps_no_other_node_from_its_copy() {
    run_scenario(async {
        let fixture = fixture("bad-id", &two_nodes("bad-id")).await?;
        let (liar, honest) = (fixture.node_name("a-liar"), fixture.node_name("honest"));
        let mut forged = record(&fixture, "a-liar", &json!("draining"), &text(clock())).await?;
        forged["id"] = json!("!!!!!!!!");
        let annotations = json!({record_key(): forged.to_string(), "haulout.dev/skip": "true"});
        as_kubelet(&fixture, &liar, &annotations).await?;
        let haulout = run(&fixture, &[("MAX_CONCURRENT_DRAINS", "2")]).await?;

        fixture.vcenter.enter_maintenance("esx2").await?;
        fixture.wait_phase(&honest, "awaitingHost").await?;
        let objects: Api<NodeMaintenance> = Api::all(fixture.client());
        until("the honest node's episode to have its copy", SOON, async || {
            let all = objects.list(&ListParams::default()).await?.items;
            let copy = all.into_iter().find(|it| {
                it.spec.origin == MaintenanceOrigin::Episode
                    && it.spec.node_name == honest
                    && it.status.as_ref().is_some_and(|status| status.record.is_some())
            });
            Ok(copy)
        })
        .await
        .with_context(|| fixture.log_text())?;
        haulout.stop().await
    });
}

/// The honest node is drained within [`SOON`] of its maintenance.
async fn honest_is_served(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    fixture.vcenter.enter_maintenance("esx2").await?;
    let is_in = |it: &State| it.host("esx2").is_some_and(|host| host.in_maintenance);
    let served = fixture
        .vcenter
        .wait_until("esx2 is in maintenance", SOON, is_in)
        .await;
    served.with_context(|| {
        format!(
            "the honest node was not served; Haulout's log:\n{}",
            fixture.log_text()
        )
    })?;
    Ok(())
}

async fn beside_a_forged_drain(name: &str, is_skipped: bool) -> anyhow::Result<()> {
    let fixture = fixture(name, &two_nodes(name)).await?;
    let mut forged = record(&fixture, "a-liar", &json!("draining"), &text(clock())).await?;
    let mut annotations = json!({});
    if is_skipped {
        annotations["haulout.dev/skip"] = json!("true");
    } else {
        forged["nodeUid"] = json!("00000000-0000-4000-8000-000000000000");
        forged["vmUuid"] = json!(uuid(name, "no such VM"));
    }
    annotations[record_key()] = json!(forged.to_string());
    as_kubelet(&fixture, &fixture.node_name("a-liar"), &annotations).await?;
    let haulout = run(&fixture, &[]).await?;
    honest_is_served(&fixture).await?;
    haulout.stop().await
}

#[test]
fn forged_record_of_another_node_holds_no_drain_slot() {
    run_scenario(beside_a_forged_drain("forged-uid", false));
}

#[test]
fn forged_record_of_a_skipped_node_holds_no_drain_slot() {
    run_scenario(beside_a_forged_drain("forged-skip", true));
}

#[test]
fn node_whose_writes_are_refused_holds_up_no_other_node() {
    run_scenario(async {
        let fixture = fixture("full", &two_nodes("full")).await?;
        let liar = fixture.node_name("a-liar");
        // The limit for all annotations of an object is 256 KiB.
        let filler = "x".repeat(256 * 1024 - 400);
        as_kubelet(&fixture, &liar, &json!({"example.com/filler": filler})).await?;
        let haulout = run(&fixture, &[]).await?;

        let began = clock();
        fixture.vcenter.enter_maintenance("esx1").await?;
        until(
            "a write to be refused",
            haulout_lab::fixture::WAIT_TIMEOUT,
            async || {
                let writes = node_writes(&fixture, &liar, began).await?;
                Ok(writes.into_iter().find(|it| it.code == 422))
            },
        )
        .await
        .with_context(|| fixture.log_text())?;
        fixture.vcenter.enter_maintenance("esx2").await?;
        fixture.wait_in_maintenance("esx2").await?;
        haulout.stop().await
    });
}

/// A maintenance succeeds although another node reports its UUID.
async fn beside_a_wrong_uuid(name: &str, has_provider_id: bool) -> anyhow::Result<()> {
    let spec = two_nodes(name);
    let mut members: Vec<Member> = spec
        .vms
        .iter()
        .map(|vm| Member::new(name, &vm.name, &vm.uuid))
        .collect();
    if !has_provider_id {
        members[0].machine.provider_id = None;
    }
    let fixture = Fixture::create(kube().await, name, &spec, members, true).await?;
    let (liar, honest) = (fixture.node_name("a-liar"), fixture.node_name("honest"));
    let haulout = run(&fixture, &[]).await?;
    let victim = fixture.uuid("honest")?.to_owned();
    fixture.kubelet("a-liar")?.report_system_uuid(&victim);
    fixture
        .wait_node(&liar, "has the UUID of the other", |node| {
            let info = node.status.as_ref().and_then(|it| it.node_info.as_ref());
            info.is_some_and(|info| info.system_uuid == victim)
        })
        .await?;

    fixture.vcenter.enter_maintenance("esx2").await?;
    fixture.wait_in_maintenance("esx2").await?;
    fixture.vcenter.exit_maintenance("esx2").await?;
    fixture.wait_in_service(&honest).await?;
    ensure!(fixture.power_cycles("honest").await? == (1, 1));
    ensure!(fixture.power_cycles("a-liar").await? == (0, 0));
    haulout.stop().await
}

#[test]
fn uuid_reported_by_another_kubelet_does_not_park_its_node() {
    run_scenario(beside_a_wrong_uuid("wrong-uuid", true));
}

#[test]
fn uuid_reported_without_provider_id_does_not_park_its_node() {
    run_scenario(beside_a_wrong_uuid("wrong-uuid-bare", false));
}

/// The maximum of calls to vCenter, of writes to the Node, and of evictions in ten seconds, whatever time a record
/// has.
const BUDGET: u64 = 20;
/// Calls that set up the subscriptions after the first update set.
const START: u64 = 20;

/// Counts Haulout's requests in ten seconds.
async fn is_quiet(fixture: &Fixture<'_>, node: &str) -> anyhow::Result<()> {
    let (began, seq) = (clock(), journal_end(fixture).await?);
    let before = fixture.vcenter.traffic("haulout").await?.calls;
    let entries = entries_during(fixture, seq, Duration::from_secs(10)).await?;
    let calls = fixture.vcenter.traffic("haulout").await?.calls - before;
    let acts = entries
        .iter()
        .filter(|it| !it.session.is_empty() && !it.method.is_empty());
    let acts = acts.count();
    let writes = node_writes(fixture, node, began).await?.len() as u64;
    let audit = fixture.audit().await?;
    let evictions = audit
        .iter()
        .filter(|it| it.subresource.as_deref() == Some("eviction") && it.received >= began)
        .count() as u64;
    ensure!(
        calls <= START + BUDGET && writes <= BUDGET && evictions <= BUDGET,
        "{calls} calls to vCenter, {acts} of which act, {writes} writes to the Node, {evictions} evictions in 10 s; \
         Haulout's log:\n{}",
        fixture.log_text()
    );
    Ok(())
}

/// Settings without periodic actions within a scenario.
const SELDOM: [(&str, &str); 2] = [
    ("POLL_INTERVAL_SECONDS", "60"),
    ("TEST_TIMINGS", "retry_max=30,eviction_retry=5"),
];

/// Brings the Node to `phase` by a real maintenance, stops Haulout, and starts it again with a record dated a year
/// ahead.
async fn dated_ahead(fixture: &Fixture<'_>, phase: &str) -> anyhow::Result<Haulout> {
    let node = fixture.node_name("gpu1");
    let haulout = run(fixture, &SELDOM).await?;
    fixture.vcenter.enter_maintenance("esx1").await?;
    let there = fixture.wait_phase(&node, phase).await?;
    haulout.kill().await?;
    let mut forged: Value = serde_json::from_str(annotation(&there, "episode").context("no record")?)?;
    let year = jiff::SignedDuration::from_hours(365 * 24);
    forged["since"] = json!(text(clock() + year));
    as_kubelet(fixture, &node, &json!({record_key(): forged.to_string()})).await?;
    run(fixture, &SELDOM).await
}

#[test]
fn record_from_the_future_causes_no_busy_loop_while_draining() {
    run_scenario(async {
        let fixture = one_node("ahead-drain").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = dated_ahead(&fixture, "draining").await?;
        is_quiet(&fixture, &node).await?;
        haulout.stop().await
    });
}

#[test]
fn record_from_the_future_causes_no_busy_loop_while_shutting_down() {
    run_scenario(async {
        let fixture = one_node("ahead-down").await?;
        let deaf = GuestPatch {
            ignore_shutdown: Some(true),
            ..GuestPatch::default()
        };
        fixture.vcenter.patch_vm("gpu1", deaf).await?;
        let haulout = dated_ahead(&fixture, "shuttingDown").await?;
        is_quiet(&fixture, &fixture.node_name("gpu1")).await?;
        haulout.stop().await
    });
}

#[test]
fn record_from_the_future_causes_no_busy_loop_while_awaiting_its_host() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        spec.vms = vec![
            gpu_vm("ahead-wait", "gpu1", "esx1"),
            gpu_vm("ahead-wait", "stranger", "esx2"),
        ];
        let members = vec![Member::new("ahead-wait", "gpu1", &spec.vms[0].uuid)];
        let fixture = Fixture::create(kube().await, "ahead-wait", &spec, members, true).await?;
        let haulout = dated_ahead(&fixture, "awaitingHost").await?;
        is_quiet(&fixture, &fixture.node_name("gpu1")).await?;
        haulout.stop().await
    });
}

/// A maintenance after a foreign task with this result is detected. A stream that the result breaks is broken again each time.
async fn after_a_result(name: &str, result: TaskResult) -> anyhow::Result<()> {
    let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[])]);
    spec.vms = vec![gpu_vm(name, "gpu1", "esx1")];
    let fixture = fixture(name, &spec).await?;
    let node = fixture.node_name("gpu1");
    let haulout = run(&fixture, &[]).await?;
    fixture.vcenter.run_host_task("esx2", result).await?;
    // The task has been read by then.
    entries_during(&fixture, journal_end(&fixture).await?, Duration::from_secs(1)).await?;

    let clicked = Instant::now();
    fixture.vcenter.enter_maintenance("esx1").await?;
    let nodes: Api<Node> = Api::all(fixture.client());
    until("the click to be seen", SOON, async || {
        Ok(is_cordoned(&nodes.get(&node).await?).then_some(()))
    })
    .await
    .with_context(|| {
        format!(
            "after {:?}; Haulout's log:\n{}",
            clicked.elapsed(),
            fixture.log_text()
        )
    })?;
    fixture.wait_in_maintenance("esx1").await?;
    haulout.stop().await
}

#[test]
fn large_result_of_a_foreign_task_does_not_hide_a_maintenance() {
    run_scenario(after_a_result(
        "large-result",
        TaskResult {
            bytes: 3 << 19,
            ..TaskResult::default()
        },
    ));
}

#[test]
fn deep_result_of_a_foreign_task_does_not_hide_a_maintenance() {
    run_scenario(after_a_result(
        "deep-result",
        TaskResult {
            levels: 70,
            ..TaskResult::default()
        },
    ));
}

#[test]
fn host_maintenance_goes_on_when_node_maintenances_are_forbidden() {
    run_scenario(async {
        let fixture = one_node("forbidden").await?;
        let narrow = User::stranger("haulout-forbidden-narrow");
        let mut rules = KubeOptions::default().haulout_rules;
        rules.retain(|rule| {
            let resources = rule.resources.iter().flatten();
            !resources.clone().any(|it| it.starts_with("nodemaintenances"))
        });
        fixture.kube.grant(&narrow, rules).await?;
        let kubeconfig = fixture.kube.kubeconfig(&narrow)?;
        let kubeconfig = kubeconfig.to_string_lossy();
        let haulout = run(&fixture, &[("KUBECONFIG", kubeconfig.as_ref())]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        let is_in = |it: &State| it.host("esx1").is_some_and(|host| host.in_maintenance);
        let served = fixture
            .vcenter
            .wait_until("esx1 is in maintenance", Duration::from_secs(45), is_in)
            .await;
        served.with_context(|| fixture.log_text())?;
        haulout.stop().await
    });
}
