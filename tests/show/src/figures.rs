//! Measures the time from a maintenance request to the cordon, and the memory.

use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;

use crate::node::is_cordoned;
use crate::peers::{Click, Member, Peers};
use crate::printer::seconds_between;
use crate::show::Show;

impl<P: Peers> Show<'_, P> {
    /// Starts Enter Maintenance Mode on the host of `member` while a budget blocks the drain, and cancels it after the cordon,
    /// `clicks` times. Returns the sorted milliseconds from the request in vCenter's journal to the response to Haulout's first PATCH
    /// of the Node. Both clocks are this machine's.
    pub(crate) async fn latencies(&self, member: &Member, clicks: usize) -> anyhow::Result<Vec<f64>> {
        let (node, host) = (&member.node, &member.home);
        let begun = Timestamp::now();
        for _ in 0..clicks {
            self.peers.click(Click::Enter, host).await?;
            self.expect_node(node, "cordoned", is_cordoned).await?;
            self.peers.click(Click::Cancel, host).await?;
            self.expect_in_service(node).await?;
        }
        let mut latencies = Vec::new();
        for entry in self.peers.journal_after(0).await? {
            if entry.at >= begun && entry.entered.as_ref() == Some(host) {
                let answered = self.peers.patched(node, entry.at).await?;
                let answered = answered
                    .with_context(|| format!("no PATCH of {node} after the click at {}", entry.at))?;
                latencies.push(seconds_between(entry.at, answered) * 1000.0);
            }
        }
        latencies.sort_by(f64::total_cmp);
        Ok(latencies)
    }
}

/// Resident memory of a process, in MiB.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Memory {
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
