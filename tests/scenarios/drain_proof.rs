//! Power is cut only if the proof of the drain is current and the host is still leaving. Both are read again right
//! before.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT, container, is_cordoned};
use haulout_lab::kube::AuditEvent;
use haulout_lab::vcenter::{Down, EntryKind, FaultRule, FaultRuleKind, GuestPatch};
use haulout_lab::wait::until;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::assertions::{
    DOWN, clock, cordons, ensure_not_called, entries_during, journal_end, node_writes, wait_for_call,
    wait_for_entry, wait_for_fault, wait_for_guest_on_record,
};
use crate::fixture::{one_node, run, run_scenario};

/// What the log says when nothing is done any more until vCenter is back.
const VCENTER_LOST: &str = "vCenter connection lost; maintenance paused until it is back";

/// How late a binding in flight can arrive after the cordon.
const LOOK: Duration = Duration::from_millis(2);

async fn evicted(fixture: &Fixture<'_>, pod: &str) -> anyhow::Result<Option<Timestamp>> {
    let audit = fixture.audit().await?;
    let is_it = |it: &&AuditEvent| {
        it.subresource.as_deref() == Some("eviction") && it.name.as_deref() == Some(pod) && it.code == 201
    };
    Ok(audit.iter().find(is_it).map(|it| it.received))
}

/// When one of `methods` was first called.
async fn called(fixture: &Fixture<'_>, methods: &[&str]) -> anyhow::Result<Option<Timestamp>> {
    let journal = fixture.vcenter.journal().await?;
    let is_it = |it: &&haulout_lab::vcenter::Entry| methods.iter().any(|method| it.is_call(method));
    Ok(journal.iter().find(is_it).map(|it| it.time))
}

/// The pod is evicted before the VM is changed.
async fn evicted_first(fixture: &Fixture<'_>, pod: &str) -> anyhow::Result<()> {
    evicted_before(fixture, pod, &DOWN).await
}

/// The pod is evicted before one of `methods` is called.
async fn evicted_before(fixture: &Fixture<'_>, pod: &str, methods: &[&str]) -> anyhow::Result<()> {
    until(
        "the pod to be evicted, or the VM taken down",
        WAIT_TIMEOUT,
        async || {
            let (evicted, down) = (evicted(fixture, pod).await?, called(fixture, methods).await?);
            Ok((evicted.is_some() || down.is_some()).then_some(()))
        },
    )
    .await
    .with_context(|| fixture.log_text())?;
    let (evicted, down) = (evicted(fixture, pod).await?, called(fixture, methods).await?);
    ensure!(
        evicted.is_some_and(|evicted| down.is_none_or(|down| evicted < down)),
        "the VM was taken down at {down:?}, and {pod} was evicted at {evicted:?}; Haulout's log:\n{}",
        fixture.log_text()
    );
    Ok(())
}

/// Binds a pod, which tolerates these taints, to the Node like a scheduler that has not seen the cordon. Does not wait for the pod
/// to run.
pub async fn bind_pod(
    fixture: &Fixture<'_>,
    name: &str,
    node: &str,
    tolerated: &[&str],
) -> anyhow::Result<()> {
    let tolerations: Vec<Value> = tolerated
        .iter()
        .map(|taint| json!({"key": taint, "operator": "Exists"}))
        .collect();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {
            "name": name, "labels": {"app": name},
            "annotations": {haulout_lab::kubelet::EXITS_AFTER_MS: "100"},
        },
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 5,
            "tolerations": tolerations,
            "containers": [container()],
        },
    }))?;
    let pods: Api<Pod> = Api::namespaced(fixture.client(), fixture.name());
    pods.create(&PostParams::default(), &pod).await?;
    Ok(())
}

#[test]
fn pods_created_during_a_vcenter_outage_are_evicted_before_shutdown() {
    run_scenario(async {
        let fixture = one_node("proof-away").await?;
        let node = fixture.node_name("gpu1");
        // The guest is not asked: the call never reaches vCenter.
        let cut = FaultRule::new("ShutdownGuest", FaultRuleKind::Reset);
        fixture.vcenter.fault(&cut).await?;
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "shuttingDown").await?;
        wait_for_fault(&fixture, "ShutdownGuest").await?;

        let log_length = fixture.log_text().len();
        let away = fixture.vcenter.restart(Down::Refused, Duration::from_secs(8));
        let meanwhile = async {
            wait_for_entry(&fixture, "the restart", |it| {
                it.kind == EntryKind::Session && it.detail == "restart"
            })
            .await?;
            until("Haulout to notice", WAIT_TIMEOUT, async || {
                let log = fixture.log_text();
                let is_lost = log
                    .get(log_length..)
                    .is_some_and(|new| new.contains(VCENTER_LOST));
                Ok(is_lost.then_some(()))
            })
            .await?;
            fixture.person_cordons(&node, false).await?;
            fixture.add_pod("train", &node, &[]).await?;
            fixture.cordon_as("descheduler", &node, true).await?;
            fixture.vcenter.clear_faults().await
        };
        let (away, meanwhile) = tokio::join!(away, meanwhile);
        away?;
        meanwhile?;
        evicted_first(&fixture, "train").await?;
        fixture.wait_in_maintenance("esx1").await?;
        haulout.stop().await
    });
}

/// The first list that may prove a drain begins this long after the cordon.
const BINDING_SETTLE: SignedDuration = SignedDuration::from_secs(1);

/// How long after it has seen the cordon the scenario binds a pod.
const LATE: Duration = Duration::from_millis(100);

/// How many nodes are tried.
const ATTEMPTS: usize = 10;

/// A pod whose binding arrives when a list that began at the cordon has ended. On a busy machine the binding may take longer than the
/// first list waits for it; then another node is tried. The simulation binds pods later than this.
async fn bound_late(name: &str) -> anyhow::Result<()> {
    for attempt in 1..=ATTEMPTS {
        let fixture = one_node(&format!("{name}-{attempt}")).await?;
        if is_bound_in_time(&fixture).await? {
            return Ok(());
        }
    }
    anyhow::bail!("{ATTEMPTS} times the pod was bound later than {BINDING_SETTLE} after the cordon")
}

async fn is_bound_in_time(fixture: &Fixture<'_>) -> anyhow::Result<bool> {
    let node = fixture.node_name("gpu1");
    let haulout = run(fixture, &[]).await?;
    let nodes: Api<Node> = Api::all(fixture.client());
    fixture.vcenter.enter_maintenance("esx1").await?;
    let cordoned = tokio::time::timeout(WAIT_TIMEOUT, async {
        while !is_cordoned(&nodes.get(&node).await?) {
            tokio::time::sleep(LOOK).await;
        }
        anyhow::Ok(())
    });
    cordoned.await.context("the Node was never cordoned")??;
    tokio::time::sleep(LATE).await;
    bind_pod(fixture, "late", &node, &[]).await?;
    // The kube-apiserver logs a write after others may have seen it.
    let (bound, cordon) = until("cordon and pod in the audit log", WAIT_TIMEOUT, async || {
        let events = fixture.kube.audit().await?;
        let bound = events.iter().find(|event| {
            event.resource == "pods"
                && event.namespace.as_deref() == Some(fixture.name())
                && event.verb == "create"
        });
        let cordon = events.iter().find(|event| {
            let object = event.object.as_ref();
            let is_cordon =
                object.and_then(|object| object.pointer("/spec/unschedulable")) == Some(&json!(true));
            event.name.as_deref() == Some(&node) && is_cordon
        });
        Ok(bound.cloned().zip(cordon.cloned()))
    })
    .await?;
    // Haulout counts from when it knows of the cordon.
    let in_time = bound.answered.duration_since(cordon.answered) < BINDING_SETTLE;
    if in_time {
        evicted_first(fixture, "late").await?;
        fixture.wait_in_maintenance("esx1").await?;
    }
    haulout.stop().await?;
    Ok(in_time)
}

#[test]
fn pod_bound_after_the_cordon_is_evicted_before_shutdown() {
    run_scenario(bound_late("bound-late"));
}

#[test]
fn tolerating_pod_bound_in_shutdown_is_evicted_before_power_off() {
    run_scenario(async {
        let fixture = one_node("bound-shutdown").await?;
        let deaf = GuestPatch {
            ignore_shutdown: Some(true),
            ..GuestPatch::default()
        };
        fixture.vcenter.patch_vm("gpu1", deaf).await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "8")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        wait_for_guest_on_record(&fixture, &node).await?;
        fixture.wait_phase(&node, "shuttingDown").await?;
        let cordon = "node.kubernetes.io/unschedulable";
        bind_pod(&fixture, "late", &node, &[cordon]).await?;
        ensure!(fixture.calls("PowerOffVM_Task", "gpu1").await? == 0);
        evicted_before(&fixture, "late", &["PowerOffVM_Task"]).await?;
        wait_for_call(&fixture, "PowerOffVM_Task", "gpu1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        ensure!(fixture.pods_on(&node).await?.is_empty());
        haulout.stop().await
    });
}

#[test]
fn cancel_that_is_not_pushed_is_noticed_before_guest_shutdown() {
    run_scenario(async {
        let fixture = one_node("unpushed-cancel").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        fixture.vcenter.push_recent_task(false).await?;
        fixture.vcenter.push_task_end(false).await?;
        let haulout = run(&fixture, &[("POLL_INTERVAL_SECONDS", "30")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "draining").await?;
        fixture
            .wait_for_log("held by PodDisruptionBudget held-budget")
            .await?;
        let before = journal_end(&fixture).await?;
        fixture.vcenter.cancel_maintenance("esx1").await?;
        fixture.set_budget("held", 1).await?;
        ensure_not_called(&fixture, &DOWN, "gpu1", before, Duration::from_secs(8)).await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}

/// How long the cordon stays after a failed maintenance.
const GRACE: (&str, &str) = ("MAINTENANCE_RETRY_GRACE_SECONDS", "10");

/// Waits until the Enter Maintenance Mode task on `esx1` has failed after `seq`, and returns when.
async fn timed_out(fixture: &Fixture<'_>, seq: u64) -> anyhow::Result<haulout_lab::vcenter::Entry> {
    wait_for_entry(fixture, "the maintenance to time out", |it| {
        it.seq > seq && it.detail.starts_with("not entered: Timedout")
    })
    .await
}

#[test]
fn node_stays_cordoned_while_a_failed_maintenance_is_retried() {
    run_scenario(async {
        let fixture = one_node("retried").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        fixture.add_pod("goes", &node, &[]).await?;
        let haulout = run(&fixture, &[GRACE]).await?;
        let began = clock();

        let timeout = Duration::from_secs(5);
        fixture.vcenter.enter_maintenance_within("esx1", timeout).await?;
        fixture.wait_phase(&node, "draining").await?;
        until("the other pod to be evicted", WAIT_TIMEOUT, async || {
            Ok((fixture.pods_on(&node).await? == ["held"]).then_some(()))
        })
        .await?;
        let first = timed_out(&fixture, 0).await?;
        // The remediation retries.
        entries_during(&fixture, first.seq, Duration::from_secs(2)).await?;
        fixture.vcenter.enter_maintenance_within("esx1", timeout).await?;
        let second = timed_out(&fixture, first.seq).await?;
        let writes = node_writes(&fixture, &node, began).await?;
        let until_then: Vec<AuditEvent> = writes
            .into_iter()
            .filter(|it| it.received < second.time)
            .collect();
        ensure!(
            !cordons(&until_then).contains(&false),
            "it was uncordoned between two tries; Haulout's log:\n{}",
            fixture.log_text()
        );
        ensure!(fixture.pods_on(&node).await? == ["held"]);

        // There is no third attempt.
        fixture.wait_in_service(&node).await?;
        let writes = node_writes(&fixture, &node, began).await?;
        let uncordoned = writes.iter().rfind(|it| {
            let spec = it.object.as_ref().and_then(|object| object.get("spec"));
            spec.is_some() && (200..300).contains(&it.code)
        });
        let kept = uncordoned
            .context("nobody uncordoned it")?
            .received
            .duration_since(second.time)
            .as_secs_f64();
        ensure!(kept > 8.0, "the cordon was kept for {kept} s after the failure");
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}

#[test]
fn vm_that_is_off_stays_off_while_a_failed_maintenance_is_retried() {
    run_scenario(async {
        let fixture = one_node("retried-off").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[("MAINTENANCE_RETRY_GRACE_SECONDS", "60")]).await?;

        // Where no host takes a VM that is off, the host never ends to enter.
        fixture.vcenter.enter_maintenance_moving_stopped("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.vcenter.fail_maintenance("esx1", "Timedout").await?;
        fixture
            .wait_for_log("a retry of its host's maintenance, which failed")
            .await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture
            .wait_for_log("waiting for host esx1, which is in maintenance mode, to be back in service")
            .await?;
        let cycles = fixture.power_cycles("gpu1").await?;
        ensure!(cycles == (1, 0), "off {} times, on {} times", cycles.0, cycles.1);

        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        let cycles = fixture.power_cycles("gpu1").await?;
        ensure!(cycles == (1, 1), "off {} times, on {} times", cycles.0, cycles.1);
        haulout.stop().await
    });
}

#[test]
fn cancelled_maintenance_ends_the_episode_at_once() {
    run_scenario(async {
        let fixture = one_node("taken-back").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = run(&fixture, &[("MAINTENANCE_RETRY_GRACE_SECONDS", "60")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "draining").await?;
        let cancelled = tokio::time::Instant::now();
        fixture.vcenter.cancel_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        let took = cancelled.elapsed();
        // One that failed would be waited for during the grace period.
        ensure!(took < Duration::from_secs(30), "it took {took:?}");
        haulout.stop().await
    });
}
