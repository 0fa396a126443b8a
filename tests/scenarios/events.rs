//! The Events of an episode, and how many writes an episode costs.

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT};
use haulout_lab::kube::AuditEvent;
use haulout_lab::vcenter::GuestPatch;
use haulout_lab::wait::until;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{ListParams, PostParams};
use kube::core::ObjectMeta;

use crate::fixture::{kubectl, one_node, run_scenario, start};

/// The Events in `kubectl describe node` of an episode whose drain a budget blocks for a while. Times, task, user and
/// trace are masked.
const EXPECTED_EVENTS: &str = "\
Normal HostMaintenanceDetected ESXi host esx1 is entering maintenance (TASK); detected after TIME; cordoned, pods are being evicted; trace ID
Normal NoOtherHostExpected After the drain: no other host can take its VM, which will wait for esx1
Warning EvictionBlocked Cannot evict pod as it would violate the pod's disruption budget. The disruption budget held-budget needs 1 healthy pods and has 1 currently: events/held
Normal DrainSucceeded Drained in TIME; the guest is being shut down
Normal VMPoweredOff The VM is powered off after TIME
Normal WaitingForHost Waiting for ESXi host esx1 to be back in service
Normal VMPoweredOn The VM is powered on, on ESXi host esx1
Normal MaintenanceSucceeded Back in service after TIME (drain TIME, host TIME, boot TIME); uncordoned; trace ID";

/// Events of waits, in addition to those of transitions.
const OF_WAITS: [&str; 3] = ["NoOtherHostExpected", "EvictionBlocked", "WaitingForHost"];

const CONDITIONS: [&str; 4] = [
    "MaintenancePlanned",
    "DrainInProgress",
    "Drained",
    "MaintenanceInProgress",
];

#[test]
fn events_show_the_episode_in_order_with_one_event_per_transition() {
    run_scenario(async {
        let fixture = one_node("events").await?;
        held_for_a_while(&fixture, &[]).await?;

        let node = fixture.node_name("gpu1");
        let events = wait_events(&fixture, "MaintenanceSucceeded").await?;
        let listed: Vec<String> = events
            .iter()
            .map(|event| {
                let part = |part: &Option<String>| part.clone().unwrap_or_default();
                let note = masked(&part(&event.note));
                format!("{} {} {note}", part(&event.type_), part(&event.reason))
            })
            .collect();
        ensure!(listed.join("\n") == EXPECTED_EVENTS, "{}", listed.join("\n"));
        let shown = described(&fixture, &node).await?;
        ensure!(shown == EXPECTED_EVENTS, "kubectl shows:\n{shown}");
        // With more than twelve, the order of `kubectl describe` is arbitrary.
        add_events(&fixture, 12).await?;
        let shown = listed_by_kubectl(&fixture, &node).await?;
        ensure!(shown == reasons(), "kubectl events shows: {shown:?}");

        let audit = writes(&fixture).await?;
        let on_nodes = one_patch_and_one_event_a_change(&fixture, &audit)?;
        let regarding = |kind: &'static str| {
            audit.iter().filter(move |it| {
                let regards = it.object.as_ref().map(|object| &object["regarding"]["kind"]);
                it.resource == "events" && regards.is_some_and(|regards| regards == kind)
            })
        };
        let reasons: Vec<String> = regarding("Node")
            .filter_map(|it| Some(it.object.as_ref()?["reason"].as_str()?.to_owned()))
            .collect();
        ensure!(reasons.len() == events.len(), "each is sent once: {reasons:?}");
        let of_changes = reasons
            .iter()
            .filter(|reason| !OF_WAITS.contains(&reason.as_str()));
        ensure!(
            of_changes.count() <= on_nodes,
            "{on_nodes} PATCHes, and {reasons:?}"
        );
        ensure!(regarding("Pod").count() == 1, "one Event for the evicted pod");
        Ok(())
    });
}

/// The writes without those to NodeMaintenances, which are batched, and without those of conditions, which are made up for.
pub async fn writes(fixture: &Fixture<'_>) -> anyhow::Result<Vec<AuditEvent>> {
    let has_conditions = |it: &AuditEvent| {
        let object = it.object.as_ref();
        it.subresource.is_some() && object.is_some_and(|it| it["status"]["conditions"].is_array())
    };
    let mut audit = fixture.audit().await?;
    audit.retain(|it| it.resource != "nodemaintenances" && !has_conditions(it));
    Ok(audit)
}

/// One PATCH for each transition, and at most one Event between two of them. Returns the number of transitions.
pub fn one_patch_and_one_event_a_change(
    fixture: &Fixture<'_>,
    audit: &[AuditEvent],
) -> anyhow::Result<usize> {
    let changes = fixture
        .log_text()
        .lines()
        .filter(|line| line.contains(" -> "))
        .count();
    let patches = audit.iter().filter(|it| it.verb == "patch" && it.code == 200);
    let on_nodes = patches.clone().filter(|it| it.subresource.is_none()).count();
    // The GPU count of the last boot is removed once.
    ensure!(
        patches.count() == on_nodes + 1,
        "nothing but the record and the GPU count is patched"
    );
    // The guest shutdown is recorded as well, without an Event.
    ensure!(
        on_nodes == changes + 1,
        "{on_nodes} PATCHes for {changes} changes of phase and one request to the guest"
    );
    let mut since_patch = Vec::new();
    let mut by_time: Vec<_> = audit.iter().collect();
    by_time.sort_by_key(|it| it.received);
    for it in by_time {
        let reason = it.object.as_ref().and_then(|object| object["reason"].as_str());
        match reason.filter(|reason| it.resource == "events" && !OF_WAITS.contains(reason)) {
            Some("Evicted") => {}
            Some(reason) => since_patch.push(reason),
            None if it.verb == "patch" => since_patch.clear(),
            None => {}
        }
        ensure!(
            since_patch.len() <= 1,
            "one change has the Events {since_patch:?}"
        );
    }
    Ok(on_nodes)
}

#[test]
fn conditions_are_removed_at_the_end_and_kubelet_conditions_stay() {
    run_scenario(async {
        let fixture = one_node("conditions").await?;
        let node = fixture.node_name("gpu1");
        let haulout = start(&fixture, &[])?;
        fixture.wait_for_log("vCenter synced").await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_node(&node, "is drained and in maintenance", |node| {
                let of = |kind| condition(node, kind);
                of("MaintenanceInProgress") == Some("True")
                    && of("Drained") == Some("True")
                    && of("DrainInProgress") == Some("False")
                    && of("Ready").is_some()
            })
            .await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        fixture
            .wait_node(&node, "has the kubelet's conditions alone", |node| {
                CONDITIONS.iter().all(|kind| condition(node, kind).is_none())
                    && condition(node, "Ready") == Some("True")
            })
            .await?;
        haulout.stop().await
    });
}

#[test]
fn dry_run_sends_no_event() {
    run_scenario(async {
        let fixture = one_node("events-dry-run").await?;
        fixture.add_pod("train", &fixture.node_name("gpu1"), &[]).await?;
        let haulout = start(&fixture, &[("DRY_RUN", "true")])?;
        fixture.wait_for_log("vCenter synced").await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_for_log("-> AwaitingHost").await?;
        fixture.vcenter.cancel_maintenance("esx1").await?;
        fixture.wait_for_log("Rejoining -> InService, uncordoned").await?;
        haulout.stop().await?;
        let audit = fixture.audit().await?;
        ensure!(audit.is_empty(), "{audit:#?}");
        ensure!(events_of_node(&fixture).await?.is_empty());
        Ok(())
    });
}

/// A budget blocks the node's pod until it is changed. Then the host enters maintenance and exits it.
pub async fn held_for_a_while(fixture: &Fixture<'_>, changes: &[(&str, &str)]) -> anyhow::Result<()> {
    let node = fixture.node_name("gpu1");
    // A guest that stops before the request to it is recorded costs one PATCH less.
    let slow = GuestPatch {
        shutdown_ms: Some(2000),
        ..GuestPatch::default()
    };
    fixture.vcenter.patch_vm("gpu1", slow).await?;
    fixture.add_pod("held", &node, &[]).await?;
    fixture.set_budget("held", 0).await?;
    let haulout = start(fixture, changes)?;
    fixture.wait_for_log("vCenter synced").await?;
    fixture.vcenter.enter_maintenance("esx1").await?;
    fixture
        .wait_for_log("held by PodDisruptionBudget held-budget")
        .await?;
    fixture.set_budget("held", 1).await?;
    fixture.wait_in_maintenance("esx1").await?;
    fixture
        .wait_for_log("waiting for host esx1, which is in maintenance mode, to be back in service")
        .await?;
    fixture.vcenter.exit_maintenance("esx1").await?;
    fixture.wait_in_service(&node).await?;
    // A process that is stopped while a write is not answered tells nothing of it.
    fixture.wait_for_log("Rejoining -> InService").await?;
    haulout.stop().await
}

/// Haulout's Events about the fixture's node, in order, once one has `reason`.
async fn wait_events(fixture: &Fixture<'_>, reason: &str) -> anyhow::Result<Vec<Event>> {
    until(&format!("an Event {reason}"), WAIT_TIMEOUT, async || {
        let events = events_of_node(fixture).await?;
        let is_there = events.iter().any(|event| event.reason.as_deref() == Some(reason));
        Ok(is_there.then_some(events))
    })
    .await
}

/// Haulout's Events about `gpu1`, in order.
pub async fn events_of_node(fixture: &Fixture<'_>) -> anyhow::Result<Vec<Event>> {
    let node = fixture.node(&fixture.node_name("gpu1")).await?;
    let all: Api<Event> = Api::namespaced(fixture.client(), "default");
    let listed = all.list(&ListParams::default()).await.context("listing Events")?;
    let is_ours = |event: &Event| {
        let regarding = event.regarding.as_ref();
        regarding.is_some_and(|regarding| regarding.uid == node.metadata.uid)
            && event.reporting_controller.as_deref() == Some("haulout.dev/controller")
    };
    let mut events: Vec<Event> = listed.items.into_iter().filter(is_ours).collect();
    events.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
    Ok(events)
}

/// Haulout's Events in `kubectl describe node`, masked.
async fn described(fixture: &Fixture<'_>, node: &str) -> anyhow::Result<String> {
    let text = kubectl(fixture, &["describe", "node", node]).await?;
    let (_, events) = text.split_once("\nEvents:").context("no Events are shown")?;
    let ours = events
        .lines()
        .filter(|line| line.contains("haulout.dev/controller"));
    // Type, reason, age, from, message.
    let lines = ours.map(|line| {
        let mut words = line.split_whitespace();
        let (kind, reason) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let message = line
            .split_once("haulout.dev/controller")
            .map_or("", |(_, rest)| rest);
        format!("{kind} {reason} {}", masked(message.trim()))
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// Adds Events of another controller to the Node.
async fn add_events(fixture: &Fixture<'_>, count: usize) -> anyhow::Result<()> {
    let events: Api<Event> = Api::namespaced(fixture.client(), "default");
    let ours = wait_events(fixture, "MaintenanceSucceeded").await?;
    let first = ours.first().context("there are some")?;
    for n in 0..count {
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("{}-of-others-{n}", fixture.name())),
                ..ObjectMeta::default()
            },
            reason: Some("OfOthers".to_owned()),
            ..first.clone()
        };
        events.create(&PostParams::default(), &event).await?;
    }
    Ok(())
}

/// The reasons of our Events, as `kubectl events` lists them.
async fn listed_by_kubectl(fixture: &Fixture<'_>, node: &str) -> anyhow::Result<Vec<String>> {
    let object = format!("node/{node}");
    let text = kubectl(
        fixture,
        &["events", "-n", "default", "--for", &object, "--no-headers"],
    )
    .await?;
    let known = reasons();
    let reasons = text.lines().flat_map(|line| line.split_whitespace());
    let reasons = reasons.filter(|word| known.iter().any(|reason| reason == word));
    Ok(reasons.map(str::to_owned).collect())
}

/// The expected reasons, in order.
fn reasons() -> Vec<String> {
    let reasons = EXPECTED_EVENTS
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1));
    reasons.map(str::to_owned).collect()
}

/// The note with its varying parts masked.
fn masked(note: &str) -> String {
    let is_span = |word: &str| {
        word.ends_with(['s', 'm', 'h'])
            && word.starts_with(|c: char| c.is_ascii_digit())
            && word.chars().all(|c| c.is_ascii_digit() || ".smh".contains(c))
    };
    let note = match (note.find('('), note.find(')')) {
        (Some(open), Some(close)) if note[open..].starts_with("(task") => {
            format!("{}(TASK{}", &note[..open], &note[close..])
        }
        _ => note.to_owned(),
    };
    let mut trace_follows = false;
    let words = note.split(' ').map(|word| {
        let bare = word.trim_end_matches([';', ',', ')']);
        let end = &word[bare.len()..];
        let shown = if std::mem::take(&mut trace_follows) {
            "ID"
        } else if is_span(bare) {
            "TIME"
        } else {
            bare
        };
        trace_follows = bare == "trace";
        format!("{shown}{end}")
    });
    words.collect::<Vec<_>>().join(" ")
}

fn condition<'n>(node: &'n k8s_openapi::api::core::v1::Node, kind: &str) -> Option<&'n str> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == kind)
        .map(|condition| condition.status.as_str())
}
