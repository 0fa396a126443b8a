//! Checks of vCenter's journal and of the audit log: when a call was made, how often, and that it was not made.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{ANNOTATIONS, Fixture, WAIT_TIMEOUT};
use haulout_lab::kube::AuditEvent;
use haulout_lab::vcenter::{Entry, EntryKind};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use tokio::time::Instant;

/// The clock of the audit log and the journal.
#[expect(
    clippy::disallowed_methods,
    reason = "the times of the logs of other programs are compared with it"
)]
pub fn clock() -> Timestamp {
    Timestamp::now()
}

/// The calls that take a VM down.
pub const DOWN: [&str; 2] = ["ShutdownGuest", "PowerOffVM_Task"];

/// When `method` was called on the object of this name.
pub async fn call_times(fixture: &Fixture<'_>, method: &str, object: &str) -> anyhow::Result<Vec<Timestamp>> {
    let journal = fixture.vcenter.journal().await?;
    let calls = journal
        .iter()
        .filter(|it| it.is_call(method) && it.object == object);
    Ok(calls.map(|it| it.time).collect())
}

/// Waits for a journal entry. The error shows Haulout's log.
pub async fn wait_for_entry(
    fixture: &Fixture<'_>,
    what: &str,
    wanted: impl Fn(&Entry) -> bool,
) -> anyhow::Result<Entry> {
    let line = fixture.vcenter.wait_for_entry(what, WAIT_TIMEOUT, wanted).await;
    line.with_context(|| format!("Haulout's log:\n{}", fixture.log_text()))
}

/// Waits until `method` has been called on the object of this name.
pub async fn wait_for_call(fixture: &Fixture<'_>, method: &str, object: &str) -> anyhow::Result<Entry> {
    let is_it = |it: &Entry| it.is_call(method) && it.object == object;
    wait_for_entry(fixture, &format!("{method} on {object}"), is_it).await
}

/// Waits until the record on the Node has the guest shutdown.
pub async fn wait_for_guest_on_record(fixture: &Fixture<'_>, node: &str) -> anyhow::Result<()> {
    let is_noted = |node: &Node| {
        let record = haulout_lab::fixture::episode(node).unwrap_or_default();
        record.pointer("/inFlight/guestShutdown").is_some()
    };
    let seen = fixture
        .wait_node(node, "has it on record that the guest was asked", is_noted)
        .await;
    seen.map(|_| ()).with_context(|| fixture.log_text())
}

/// Waits until the VM has been powered off once.
pub async fn wait_for_power_off(fixture: &Fixture<'_>, vm: &str) -> anyhow::Result<Entry> {
    let is_it = |it: &Entry| it.kind == EntryKind::Power && it.object == vm && it.detail == "poweredOff";
    wait_for_entry(fixture, &format!("{vm} to go off"), is_it).await
}

/// Waits until a fault rule has applied to `method`.
pub async fn wait_for_fault(fixture: &Fixture<'_>, method: &str) -> anyhow::Result<Entry> {
    let is_it = |it: &Entry| it.kind == EntryKind::Fault && it.method == method;
    wait_for_entry(fixture, &format!("a rule to strike {method}"), is_it).await
}

/// The sequence number of the newest journal entry.
pub async fn journal_end(fixture: &Fixture<'_>) -> anyhow::Result<u64> {
    let journal = fixture.vcenter.journal().await?;
    Ok(journal.last().map_or(0, |it| it.seq))
}

/// The journal entries after `seq`, up to the end of `window`.
pub async fn entries_during(
    fixture: &Fixture<'_>,
    mut seq: u64,
    window: Duration,
) -> anyhow::Result<Vec<Entry>> {
    let end = Instant::now() + window;
    let mut all = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let more = fixture.vcenter.journal_after(seq, left).await?;
        seq = more.last().map_or(seq, |it| it.seq);
        all.extend(more);
        if left.is_zero() {
            return Ok(all);
        }
    }
}

/// Fails if one of `methods` is called on `vm` after `seq` and within `window`.
pub async fn ensure_not_called(
    fixture: &Fixture<'_>,
    methods: &[&str],
    vm: &str,
    seq: u64,
    window: Duration,
) -> anyhow::Result<()> {
    let entries = entries_during(fixture, seq, window).await?;
    let is_forbidden = |it: &&Entry| it.object == vm && methods.iter().any(|method| it.is_call(method));
    if let Some(call) = entries.iter().find(is_forbidden) {
        let log = fixture.log_text();
        anyhow::bail!(
            "{} was called at {}; Haulout's log:\n{log}",
            call.method,
            call.time
        );
    }
    Ok(())
}

/// The VM goes off once and is powered on once, and the node is in service.
pub async fn ensure_brought_back(fixture: &Fixture<'_>, vm: &str) -> anyhow::Result<()> {
    wait_for_power_off(fixture, vm).await?;
    let is_on =
        |it: &haulout_lab::vcenter::State| it.vm(vm).is_some_and(haulout_lab::vcenter::VmState::is_on);
    fixture.wait_vcenter(&format!("{vm} is on again"), is_on).await?;
    fixture.wait_in_service(&fixture.node_name(vm)).await?;
    let (off, on) = fixture.power_cycles(vm).await?;
    ensure!((off, on) == (1, 1), "off {off} times, on {on} times");
    Ok(())
}

/// The writes of this fixture's Haulout to the Node since then, refused ones included.
pub async fn node_writes(
    fixture: &Fixture<'_>,
    node: &str,
    since: Timestamp,
) -> anyhow::Result<Vec<AuditEvent>> {
    let mut audit = fixture.audit().await?;
    audit.retain(|it| {
        it.resource == "nodes"
            && it.subresource.is_none()
            && it.name.as_deref() == Some(node)
            && it.received >= since
    });
    Ok(audit)
}

/// The records in the accepted ones of these writes.
pub fn records(writes: &[AuditEvent]) -> Vec<serde_json::Value> {
    let key = format!("{ANNOTATIONS}/episode");
    let taken = writes.iter().filter(|it| (200..300).contains(&it.code));
    taken
        .filter_map(|it| {
            let text = it.object.as_ref()?["metadata"]["annotations"][&key].as_str()?;
            serde_json::from_str(text).ok()
        })
        .collect()
}

/// The cordons (`true`) and uncordons (`false`) among these writes, in order.
pub fn cordons(writes: &[AuditEvent]) -> Vec<bool> {
    let taken = writes.iter().filter(|it| (200..300).contains(&it.code));
    taken
        .filter_map(|it| {
            let spec = it.object.as_ref()?.get("spec")?.get("unschedulable")?;
            Some(spec.as_bool().unwrap_or(false))
        })
        .collect()
}
