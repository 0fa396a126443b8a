//! Deadlines count elapsed time. A step of the wall clock, or a successor with another clock, neither shortens a drain
//! or a guest's shutdown nor removes a backoff.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::clock::WallClock;
use haulout_lab::fixture::{Fixture, Haulout, WAIT_TIMEOUT, episode};
use haulout_lab::vcenter::{Entry, GuestPatch};
use jiff::Timestamp;

use crate::assertions::{
    call_times, clock, entries_during, journal_end, wait_for_call, wait_for_guest_on_record,
};
use crate::fixture::{one_node, run, run_scenario};

const HOUR: i64 = 3600;

/// Settings with few periodic actions, so that a busy loop shows.
const SELDOM: [(&str, &str); 2] = [
    ("POLL_INTERVAL_SECONDS", "30"),
    ("TEST_TIMINGS", "retry_max=30,eviction_retry=5"),
];

/// Starts Haulout on this wall clock.
async fn run_on(fixture: &Fixture<'_>, wall: &WallClock, more: &[(&str, &str)]) -> anyhow::Result<Haulout> {
    let environment = wall.environment();
    let mut changes: Vec<(&str, &str)> = SELDOM.to_vec();
    changes.extend(environment.iter().map(|(name, value)| (*name, value.as_str())));
    changes.extend(more);
    run(fixture, &changes).await
}

fn wall(fixture: &Fixture<'_>) -> anyhow::Result<Option<WallClock>> {
    WallClock::new(fixture.kube.dir(), fixture.name())
}

/// The VM goes off and the host enters. Fails unless Haulout dated that on a clock `ahead` seconds ahead of the machine's: if
/// libfaketime had no effect, no clock would have stepped.
async fn ends_on_a_clock(fixture: &Fixture<'_>, ahead: i64) -> anyhow::Result<()> {
    fixture.wait_in_maintenance("esx1").await?;
    let node = fixture
        .wait_phase(&fixture.node_name("gpu1"), "awaitingHost")
        .await?;
    let record = episode(&node).context("no record")?;
    let since: Timestamp = record["since"].as_str().context("no time")?.parse()?;
    let is_ahead = since.duration_since(clock()).as_secs();
    ensure!(
        (is_ahead - ahead).abs() < HOUR / 10,
        "Haulout's clock is {is_ahead} s ahead, and not {ahead} s"
    );
    Ok(())
}

async fn deaf_guest(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let deaf = GuestPatch {
        ignore_shutdown: Some(true),
        ..GuestPatch::default()
    };
    fixture.vcenter.patch_vm("gpu1", deaf).await
}

async fn held_pod(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    fixture.add_pod("held", &fixture.node_name("gpu1"), &[]).await?;
    fixture.set_budget("held", 0).await
}

/// The number of calls to vCenter in these journal entries that change something. Events for people change nothing.
fn acts(entries: &[Entry]) -> usize {
    let is_act = |it: &&Entry| !it.session.is_empty() && !it.method.is_empty() && it.method != "LogUserEvent";
    entries.iter().filter(is_act).count()
}

/// The guest is asked once and powered off at its deadline, although the process was restarted in between with a clock
/// that is `ahead` seconds ahead.
async fn successor_in_shutdown(name: &str, ahead: i64) -> anyhow::Result<()> {
    let fixture = one_node(name).await?;
    let Some(wall) = wall(&fixture)? else {
        return Ok(());
    };
    deaf_guest(&fixture).await?;
    let timeout = [("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "8")];
    let haulout = run_on(&fixture, &wall, &timeout).await?;
    fixture.vcenter.enter_maintenance("esx1").await?;
    wait_for_guest_on_record(&fixture, &fixture.node_name("gpu1")).await?;
    haulout.kill().await?;
    wall.set(ahead)?;
    let haulout = run_on(&fixture, &wall, &timeout).await?;

    let cut = wait_for_call(&fixture, "PowerOffVM_Task", "gpu1").await?;
    let questions = call_times(&fixture, "ShutdownGuest", "gpu1").await?;
    let after = cut.time.duration_since(questions[0]).as_secs_f64();
    ensure!(
        questions.len() == 1 && (7.5..25.0).contains(&after),
        "the guest was asked {} times, and its power cut {after} s after the first; Haulout's log:\n{}",
        questions.len(),
        fixture.log_text()
    );
    ends_on_a_clock(&fixture, ahead).await?;
    haulout.stop().await
}

#[test]
fn successor_with_a_clock_ahead_leaves_the_guest_its_time() {
    run_scenario(successor_in_shutdown("down-ahead", HOUR / 2));
}

#[test]
fn successor_with_a_clock_behind_asks_the_guest_once() {
    run_scenario(successor_in_shutdown("down-behind", -HOUR / 2));
}

/// A blocked drain takes its whole timeout, although the process was restarted in between with a clock that is `ahead`
/// seconds ahead.
async fn successor_in_drain(name: &str, ahead: i64) -> anyhow::Result<()> {
    let fixture = one_node(name).await?;
    let Some(wall) = wall(&fixture)? else {
        return Ok(());
    };
    let node = fixture.node_name("gpu1");
    held_pod(&fixture).await?;
    let timeout = [("DRAIN_TIMEOUT_SECONDS", "10")];
    let haulout = run_on(&fixture, &wall, &timeout).await?;
    fixture.vcenter.enter_maintenance("esx1").await?;
    fixture.wait_phase(&node, "draining").await?;
    let began = clock();
    fixture
        .wait_for_log("held by PodDisruptionBudget held-budget")
        .await?;
    haulout.kill().await?;
    wall.set(ahead)?;
    let haulout = run_on(&fixture, &wall, &timeout).await?;

    let down = wait_for_call(&fixture, "ShutdownGuest", "gpu1").await?;
    let after = down.time.duration_since(began).as_secs_f64();
    ensure!(
        (9.0..30.0).contains(&after),
        "the guest was asked {after} s after the drain began; Haulout's log:\n{}",
        fixture.log_text()
    );
    ends_on_a_clock(&fixture, ahead).await?;
    haulout.stop().await
}

#[test]
fn successor_with_a_clock_ahead_does_not_cut_a_drain_short() {
    run_scenario(successor_in_drain("drain-ahead", HOUR / 2));
}

#[test]
fn successor_with_a_clock_behind_does_not_prolong_a_drain() {
    run_scenario(successor_in_drain("drain-behind", -HOUR / 2));
}

/// The deadlines of the drain and of the guest hold although the clock steps by `step` seconds in each, and nothing is
/// done more often.
async fn steps(name: &str, step: i64) -> anyhow::Result<()> {
    let fixture = one_node(name).await?;
    let Some(wall) = wall(&fixture)? else {
        return Ok(());
    };
    let node = fixture.node_name("gpu1");
    held_pod(&fixture).await?;
    deaf_guest(&fixture).await?;
    let timeouts = [
        ("DRAIN_TIMEOUT_SECONDS", "8"),
        ("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "8"),
    ];
    let haulout = run_on(&fixture, &wall, &timeouts).await?;
    fixture.vcenter.enter_maintenance("esx1").await?;
    fixture.wait_phase(&node, "draining").await?;
    let began = clock();
    fixture
        .wait_for_log("held by PodDisruptionBudget held-budget")
        .await?;
    wall.set(step)?;

    let down = wait_for_call(&fixture, "ShutdownGuest", "gpu1").await?;
    let drained = down.time.duration_since(began).as_secs_f64();
    ensure!(
        (7.0..16.0).contains(&drained),
        "the guest was asked {drained} s after the drain began; Haulout's log:\n{}",
        fixture.log_text()
    );
    let evictions = fixture
        .audit()
        .await?
        .iter()
        .filter(|it| it.subresource.as_deref() == Some("eviction"))
        .count();
    ensure!(evictions <= 20, "{evictions} evictions were asked for");

    let calls = fixture.vcenter.traffic("haulout").await?.calls;
    wall.set(2 * step)?;
    // Long enough for a busy loop to show, and shorter than the guest's shutdown.
    let entries = entries_during(&fixture, journal_end(&fixture).await?, Duration::from_secs(5)).await?;
    let calls = fixture.vcenter.traffic("haulout").await?.calls - calls;
    ensure!(
        calls <= 20 && acts(&entries) == 0,
        "{calls} calls to vCenter in 5 s, {} of which act; Haulout's log:\n{}",
        acts(&entries),
        fixture.log_text()
    );
    let is_cut = |it: &Entry| it.is_call("PowerOffVM_Task");
    let cut = fixture
        .vcenter
        .wait_for_entry("the power to be cut", WAIT_TIMEOUT, is_cut)
        .await;
    let cut = cut.with_context(|| fixture.log_text())?.time;
    let guest = cut.duration_since(down.time).as_secs_f64();
    ensure!(
        (7.0..16.0).contains(&guest),
        "its power was cut {guest} s after it was asked"
    );
    ensure!(call_times(&fixture, "ShutdownGuest", "gpu1").await?.len() == 1);
    ends_on_a_clock(&fixture, 2 * step).await?;
    haulout.stop().await
}

#[test]
fn deadlines_hold_when_the_clock_steps_forward() {
    run_scenario(steps("step-forward", HOUR));
}

#[test]
fn deadlines_hold_when_the_clock_steps_back() {
    run_scenario(steps("step-back", -HOUR));
}
