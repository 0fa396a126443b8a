//! Measures the time from a maintenance request to the cordon, and the memory.

use std::time::Duration;

use anyhow::Context as _;
use haulout_lab::figures::Samples;
use haulout_lab::fixture::{Fixture, is_cordoned};
use haulout_lab::kube::Kube;
use haulout_lab::vcenter::EntryKind;
use jiff::Timestamp;

use super::printer::seconds_between;

/// Starts Enter Maintenance Mode on `host` while a budget blocks the drain of `vm`, and cancels it after the cordon,
/// `clicks` times. Returns the milliseconds from the request in vCenter's journal to the response to Haulout's first
/// PATCH of the Node in the audit log. Both clocks are this machine's.
pub(crate) async fn latencies(
    fixture: &Fixture<'_>,
    kube: &Kube,
    host: &str,
    vm: &str,
    clicks: usize,
) -> anyhow::Result<Samples> {
    let node = fixture.node_name(vm);
    let begun = Timestamp::now();
    for _ in 0..clicks {
        fixture.vcenter.enter_maintenance(host).await?;
        fixture.wait_node(&node, "is cordoned", is_cordoned).await?;
        fixture.vcenter.cancel_maintenance(host).await?;
        fixture.wait_in_service(&node).await?;
    }
    let journal = fixture.vcenter.journal().await?;
    let clicked = journal.iter().filter(|entry| {
        entry.kind == EntryKind::Call
            && entry.method == "EnterMaintenanceMode_Task"
            && entry.object == host
            && entry.time >= begun
    });
    let user = fixture.user();
    let audit = kube.audit().await?;
    let accepted = |from: Timestamp| {
        let patches = audit.iter().filter(|event| {
            event.user == user.name()
                && event.verb == "patch"
                && event.resource == "nodes"
                && event.name.as_deref() == Some(node.as_str())
                && event.code == 200
                && event.received >= from
        });
        patches.map(|event| event.answered).min()
    };
    clicked
        .map(|entry| {
            let answered = accepted(entry.time).with_context(|| {
                format!(
                    "the audit log has no PATCH of {node} after the click at {}",
                    entry.time
                )
            })?;
            Ok(seconds_between(entry.time, answered) * 1000.0)
        })
        .collect()
}

/// Resident memory of a process, in MiB.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Memory {
    /// All.
    pub(crate) resident: f64,
    /// The part that is mapped from the program's file, which is large in a debug build and shared.
    pub(crate) code: f64,
}

/// The maximum of a process's resident memory in `window`.
pub(crate) async fn memory(pid: u32, window: Duration) -> anyhow::Result<Memory> {
    let end = tokio::time::Instant::now() + window;
    let mut most = Memory::default();
    loop {
        let seen = resident(pid).await?;
        if seen.resident > most.resident {
            most = seen;
        }
        if tokio::time::Instant::now() >= end {
            return Ok(most);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn resident(pid: u32) -> anyhow::Result<Memory> {
    let path = format!("/proc/{pid}/status");
    let text = tokio::fs::read_to_string(&path)
        .await
        .with_context(|| format!("reading {path}"))?;
    let mib = |name: &str| {
        let kib = text.lines().find_map(|line| {
            let value = line.strip_prefix(name)?.trim().strip_suffix("kB")?;
            value.trim().parse::<f64>().ok()
        });
        Ok::<_, anyhow::Error>(kib.with_context(|| format!("{path} has no {name}"))? / 1024.0)
    };
    Ok(Memory {
        resident: mib("VmRSS:")?,
        code: mib("RssFile:")?,
    })
}
