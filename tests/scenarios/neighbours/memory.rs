//! What telemetry costs in memory.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, Haulout, WAIT_TIMEOUT};
use haulout_lab::wait::until;

use super::traces::jaeger;
use crate::fixture::{one_node, run_scenario, start};

/// The memory that telemetry may add to an idle program.
const TELEMETRY_KIB: u64 = 2048;

/// The private memory of a process in KiB, without mapped code.
fn own_memory(haulout: &Haulout) -> anyhow::Result<u64> {
    let pid = haulout.pid().context("it runs")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kib.context("no RssAnon in its status")?.parse()?)
}

/// The memory of a program with these settings after an episode, so that lazy initialisation is done.
async fn idle_memory(fixture: &Fixture<'_>, settings: &[(&str, &str)]) -> anyhow::Result<u64> {
    let node = fixture.node_name("gpu1");
    let begun = fixture.log_text().matches("-> InService").count();
    let haulout = run_again(fixture, settings).await?;
    fixture.vcenter.enter_maintenance("esx1").await?;
    fixture.wait_phase(&node, "awaitingHost").await?;
    fixture.wait_in_maintenance("esx1").await?;
    fixture.vcenter.exit_maintenance("esx1").await?;
    fixture.wait_in_service(&node).await?;
    until("the end of the episode to be logged", WAIT_TIMEOUT, async || {
        Ok((fixture.log_text().matches("-> InService").count() > begun).then_some(()))
    })
    .await?;
    if settings.iter().any(|(name, _)| *name == "METRICS_ADDRESS") {
        let metrics = crate::metrics::address(fixture, "metrics").await?;
        crate::metrics::ask(&format!("{metrics}/metrics"), "*/*").await?;
    }
    // Freed memory varies: the minimum of several readings counts.
    let mut looks = tokio::time::interval(Duration::from_millis(200));
    let mut least = u64::MAX;
    for _ in 0..15 {
        looks.tick().await;
        least = least.min(own_memory(&haulout)?);
    }
    haulout.stop().await?;
    Ok(least)
}

#[test]
fn all_telemetry_costs_an_idle_program_at_most_2_mib() {
    run_scenario(async {
        let fixture = one_node("memory").await?;
        let collector = jaeger().await.otlp_http();
        let telemetry = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.as_str()),
            ("METRICS_ADDRESS", "127.0.0.1:0"),
            ("HEALTH_ADDRESS", "127.0.0.1:0"),
        ];
        // How much the allocator keeps depends on what else the machine does: the least of a few rounds counts.
        let (mut without, mut with) = (u64::MAX, u64::MAX);
        for _ in 0..3 {
            without = without.min(idle_memory(&fixture, &[]).await?);
            with = with.min(idle_memory(&fixture, &telemetry).await?);
            if with <= without + TELEMETRY_KIB {
                break;
            }
        }
        ensure!(
            fixture.log_text().contains("traces go to"),
            "{}",
            fixture.log_text()
        );
        println!("idle: {without} KiB, {with} KiB with all telemetry");
        ensure!(
            with <= without + TELEMETRY_KIB,
            "{with} KiB with all telemetry, {without} KiB without"
        );
        Ok(())
    });
}

/// Starts another Haulout and waits until both sources are synced.
async fn run_again(fixture: &Fixture<'_>, changes: &[(&str, &str)]) -> anyhow::Result<Haulout> {
    let words = ["vCenter", "Kubernetes"].map(|half| format!("{half} synced"));
    let count = |fixture: &Fixture<'_>| {
        words
            .each_ref()
            .map(|words| fixture.log_text().matches(words).count())
    };
    let before = count(fixture);
    let haulout = start(fixture, changes)?;
    until("both sources to be synced", WAIT_TIMEOUT, async || {
        let is_synced = count(fixture).iter().zip(before).all(|(is, was)| *is > was);
        Ok(is_synced.then_some(()))
    })
    .await?;
    Ok(haulout)
}
