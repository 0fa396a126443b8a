//! Events in vCenter: what the person who clicked sees of an episode, and that nothing waits for it.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, Haulout};
use haulout_lab::vcenter::{Entry, EntryKind, FaultRule, FaultRuleKind};
use tokio::time::Instant;

use crate::assertions::{wait_for_entry, wait_for_fault};
use crate::fixture::{one_node, run, run_scenario};
use crate::requests::annotate;

/// The deadline of a call, longer than an episode in the lab.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The pause between two events of one node, without some milliseconds for the way to vCenter.
const PAUSE: Duration = Duration::from_millis(2_900);

#[test]
fn vcenter_shows_a_blocked_drain_and_its_end_on_host_and_vm() {
    run_scenario(async {
        let fixture = one_node("in-vcenter").await?;
        let node = fixture.node_name("gpu1");
        let haulout = begin_held(&fixture, &[]).await?;
        for object in ["esx1", "gpu1"] {
            wait_for_text(&fixture, object, "held by PodDisruptionBudget held-budget").await?;
        }
        end_held(&fixture).await?;
        for object in ["esx1", "gpu1"] {
            wait_for_text(&fixture, object, "Back in service after").await?;
        }
        haulout.stop().await?;

        let on_host = entries(&fixture, "esx1").await?;
        let texts: Vec<&str> = on_host.iter().map(|it| it.detail.as_str()).collect();
        let on_vm = entries(&fixture, "gpu1").await?;
        let of_vm: Vec<&str> = on_vm.iter().map(|it| it.detail.as_str()).collect();
        ensure!(texts == of_vm, "{texts:#?} and {of_vm:#?}");
        let begins = format!("Haulout, node {node}");
        ensure!(texts.iter().all(|text| text.starts_with(&begins)), "{texts:#?}");
        let mut different = texts.clone();
        different.sort_unstable();
        different.dedup();
        ensure!(different.len() == texts.len(), "each is posted once: {texts:#?}");

        let first = texts.first().context("none")?;
        ensure!(
            first.contains("ESXi host esx1 is entering maintenance (task-"),
            "{texts:#?}"
        );
        let held: Vec<&&str> = texts.iter().filter(|text| text.contains("held-budget")).collect();
        let [held] = held.as_slice() else {
            anyhow::bail!("the same budget is one wait: {texts:#?}");
        };
        let waits = format!("{begins}, Draining: waits since ");
        ensure!(held.starts_with(&waits), "{held}");
        ensure!(held.contains("in-vcenter/held: held by"), "its namespace: {held}");
        let last = texts.last().context("none")?;
        ensure!(last.contains("Back in service after"), "{texts:#?}");
        for pair in on_host.windows(2) {
            let between = pair[1].time.duration_since(pair[0].time);
            ensure!(between.unsigned_abs() >= PAUSE, "{between} between {pair:#?}");
        }
        Ok(())
    });
}

#[test]
fn vcenter_names_the_node_that_skip_keeps_from_being_drained() {
    run_scenario(async {
        let fixture = one_node("skip-in-vcenter").await?;
        let node = fixture.node_name("gpu1");
        annotate(&fixture, &node, ("haulout.dev/skip", "true")).await?;
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        for object in ["esx1", "gpu1"] {
            let text = format!("Haulout, node {node}: waits for a person to remove haulout.dev/skip");
            wait_for_text(&fixture, object, &text).await?;
        }
        annotate(&fixture, &node, ("haulout.dev/skip", "false")).await?;
        fixture.wait_in_maintenance("esx1").await?;
        haulout.stop().await
    });
}

#[test]
fn missing_log_event_privilege_is_one_warning_for_each_kind_and_no_event() {
    run_scenario(async {
        let fixture = one_node("unseen-in-vcenter").await?;
        let refuse = FaultRule::soap("LogUserEvent", "NoPermission");
        fixture.vcenter.fault(&refuse).await?;
        let haulout = begin_held(&fixture, &[]).await?;
        wait_for_fault(&fixture, "LogUserEvent").await?;
        end_held(&fixture).await?;
        haulout.stop().await?;
        ensure!(entries(&fixture, "esx1").await?.is_empty());
        let log = fixture.log_text();
        let warnings = log.lines().filter(|line| line.contains("WARN"));
        let about_events: Vec<&str> = warnings.filter(|line| line.contains("vent")).collect();
        let are_named = about_events.iter().all(|it| it.contains("Global.LogEvent"));
        ensure!(about_events.len() == 2 && are_named, "{about_events:#?}");
        let journal = fixture.vcenter.journal().await?;
        let refused = journal
            .iter()
            .filter(|it| it.kind == EntryKind::Fault && it.method == "LogUserEvent");
        ensure!(refused.count() == 2, "one for the host and one for the VM");
        Ok(())
    });
}

#[test]
fn vcenter_that_never_answers_an_event_does_not_delay_the_episode() {
    run_scenario(async {
        let fixture = one_node("mute-events").await?;
        let hang = FaultRule::new("LogUserEvent", FaultRuleKind::Hang);
        fixture.vcenter.fault(&hang).await?;
        let began = Instant::now();
        let haulout = begin_held(&fixture, &[]).await?;
        wait_for_fault(&fixture, "LogUserEvent").await?;
        end_held(&fixture).await?;
        ensure!(
            began.elapsed() < CALL_TIMEOUT,
            "{:?}, so something waited for the event",
            began.elapsed()
        );
        // The call still hangs.
        haulout.stop().await?;
        let log = fixture.log_text();
        ensure!(!log.contains("requests were not answered"), "{log}");
        Ok(())
    });
}

#[test]
fn no_event_is_logged_in_a_dry_run_or_when_switched_off() {
    run_scenario(async {
        for (name, change) in [
            ("dry-events", ("DRY_RUN", "true")),
            ("no-events", ("VCENTER_REPORT", "none")),
        ] {
            let fixture = one_node(name).await?;
            let haulout = run(&fixture, &[change]).await?;
            fixture.vcenter.enter_maintenance("esx1").await?;
            fixture.wait_for_log("-> AwaitingHost").await?;
            haulout.stop().await?;
            ensure!(entries(&fixture, "esx1").await?.is_empty(), "{name}");
        }
        Ok(())
    });
}

/// A budget blocks the node's pod, and its host enters maintenance.
pub async fn begin_held(fixture: &Fixture<'_>, changes: &[(&str, &str)]) -> anyhow::Result<Haulout> {
    let node = fixture.node_name("gpu1");
    fixture.add_pod("held", &node, &[]).await?;
    fixture.set_budget("held", 0).await?;
    let haulout = run(fixture, changes).await?;
    fixture.vcenter.enter_maintenance("esx1").await?;
    fixture
        .wait_for_log("held by PodDisruptionBudget held-budget")
        .await?;
    Ok(haulout)
}

/// The budget allows the eviction, and the host leaves maintenance once it is in it.
pub async fn end_held(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    fixture.set_budget("held", 1).await?;
    fixture.wait_in_maintenance("esx1").await?;
    fixture
        .wait_for_log("waiting for host esx1, which is in maintenance mode, to be back in service")
        .await?;
    fixture.vcenter.exit_maintenance("esx1").await?;
    fixture.wait_in_service(&fixture.node_name("gpu1")).await?;
    Ok(())
}

async fn wait_for_text(fixture: &Fixture<'_>, object: &str, words: &str) -> anyhow::Result<Entry> {
    let is_it = |it: &Entry| it.kind == EntryKind::Event && it.object == object && it.detail.contains(words);
    wait_for_entry(fixture, &format!("an event on {object} with {words:?}"), is_it).await
}

/// The events on the object of this name.
async fn entries(fixture: &Fixture<'_>, object: &str) -> anyhow::Result<Vec<Entry>> {
    let mut journal = fixture.vcenter.journal().await?;
    journal.retain(|it| it.kind == EntryKind::Event && it.object == object);
    Ok(journal)
}
