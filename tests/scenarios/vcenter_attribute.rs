//! The custom attribute in vCenter: the present state of an episode, and that it is cleared.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT};
use haulout_lab::vcenter::{Entry, EntryKind, FaultRule, FaultRuleKind};
use haulout_lab::wait;

use crate::assertions::wait_for_fault;
use crate::fixture::{one_node, run, run_scenario};
use crate::vcenter_events::{begin_held, end_held};

const ON: (&str, &str) = ("VCENTER_REPORT", "events,attribute");

/// The pause between two values of one object, without some milliseconds for the way to vCenter.
const PAUSE: Duration = Duration::from_millis(2_900);

/// The objects that show the episode.
const OBJECTS: [&str; 2] = ["esx1", "gpu1"];

/// The values that the object of this name got, the newest last.
async fn values(fixture: &Fixture<'_>, object: &str) -> anyhow::Result<Vec<Entry>> {
    let mut journal = fixture.vcenter.journal().await?;
    journal.retain(|it| it.kind == EntryKind::Attribute && it.object == object);
    Ok(journal)
}

/// Waits until the value of this object is so.
async fn wait_for_value(
    fixture: &Fixture<'_>,
    object: &str,
    what: &str,
    is: impl Fn(&str) -> bool,
) -> anyhow::Result<()> {
    let what = format!("{object} to have {what}");
    let had = wait::until(&what, WAIT_TIMEOUT, async || {
        let values = values(fixture, object).await?;
        let found = values.last().is_some_and(|value| is(&value.detail));
        Ok(found.then_some(()))
    });
    had.await
        .with_context(|| format!("Haulout's log:\n{}", fixture.log_text()))
}

async fn wait_for_held(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    for object in OBJECTS {
        wait_for_value(fixture, object, "the budget", |value| {
            value.contains("held-budget")
        })
        .await?;
    }
    Ok(())
}

async fn wait_for_cleared(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    for object in OBJECTS {
        wait_for_value(fixture, object, "no value", str::is_empty).await?;
    }
    Ok(())
}

/// Calls of `method`, on any object.
async fn count(fixture: &Fixture<'_>, method: &str) -> anyhow::Result<usize> {
    let journal = fixture.vcenter.journal().await?;
    Ok(journal.iter().filter(|it| it.is_call(method)).count())
}

/// The warnings about the attribute.
fn warnings(fixture: &Fixture<'_>) -> Vec<String> {
    let log = fixture.log_text();
    let warnings = log
        .lines()
        .filter(|line| line.contains("WARN") && line.contains("attribute"));
    warnings.map(str::to_owned).collect()
}

#[test]
fn attribute_shows_the_present_state_and_is_cleared_at_the_end() {
    run_scenario(async {
        let fixture = one_node("attribute").await?;
        let node = fixture.node_name("gpu1");
        let haulout = begin_held(&fixture, &[ON]).await?;
        wait_for_held(&fixture).await?;
        fixture.set_budget("held", 1).await?;
        fixture.wait_in_maintenance("esx1").await?;
        for object in OBJECTS {
            let is_awaiting = |value: &str| value.contains(", AwaitingHost");
            wait_for_value(&fixture, object, "AwaitingHost", is_awaiting).await?;
        }
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        wait_for_cleared(&fixture).await?;
        haulout.stop().await?;

        ensure!(
            count(&fixture, "AddCustomFieldDef").await? == 1,
            "it is defined once"
        );
        for object in OBJECTS {
            let values = values(&fixture, object).await?;
            let texts: Vec<&str> = values.iter().map(|it| it.detail.as_str()).collect();
            let (last, shown) = texts.split_last().unwrap_or((&"none", &[]));
            ensure!(
                last.is_empty() && !shown.contains(&""),
                "cleared once, at the end: {texts:#?}"
            );
            let begins = format!("Haulout, node {node}, ");
            ensure!(shown.iter().all(|text| text.starts_with(&begins)), "{texts:#?}");
            ensure!(texts.iter().all(|text| text.chars().count() <= 200), "{texts:#?}");
            ensure!(
                shown.iter().any(|text| text.contains(", Draining: waits since ")),
                "{texts:#?}"
            );
            ensure!(
                shown.iter().any(|text| text.contains(", AwaitingHost")),
                "{texts:#?}"
            );
            ensure!(values.iter().all(|it| it.cause == "haulout"), "{values:#?}");
            for pair in values.windows(2) {
                let between = pair[1].time.duration_since(pair[0].time);
                ensure!(between.unsigned_abs() >= PAUSE, "{between} between {pair:#?}");
            }
        }
        Ok(())
    });
}

#[test]
fn attribute_left_by_an_episode_that_ended_is_cleared_after_a_restart() {
    run_scenario(async {
        let fixture = one_node("attribute-left").await?;
        fixture.vcenter.define_attribute("haulout").await?;
        let haulout = begin_held(&fixture, &[ON]).await?;
        wait_for_held(&fixture).await?;
        // A stop clears nothing: the episode goes on.
        haulout.stop().await?;
        let blind = run(&fixture, &[]).await?;
        end_held(&fixture).await?;
        blind.stop().await?;
        for object in OBJECTS {
            wait_for_value(&fixture, object, "the budget", |value| {
                value.contains("held-budget")
            })
            .await?;
        }
        let haulout = run(&fixture, &[ON]).await?;
        wait_for_cleared(&fixture).await?;
        haulout.stop().await?;
        ensure!(
            count(&fixture, "AddCustomFieldDef").await? == 0,
            "it was defined by a person"
        );
        Ok(())
    });
}

#[test]
fn attribute_without_a_privilege_is_one_warning_for_each_kind_and_left_out() {
    run_scenario(async {
        for (name, method, is_defined) in [
            ("attribute-refused", "SetField", true),
            ("attribute-undefined", "AddCustomFieldDef", false),
        ] {
            let fixture = one_node(name).await?;
            if is_defined {
                fixture.vcenter.define_attribute("haulout").await?;
            }
            let refuse = FaultRule::soap(method, "NoPermission");
            fixture.vcenter.fault(&refuse).await?;
            let haulout = begin_held(&fixture, &[ON]).await?;
            wait_for_fault(&fixture, method).await?;
            end_held(&fixture).await?;
            haulout.stop().await?;
            for object in OBJECTS {
                ensure!(values(&fixture, object).await?.is_empty(), "{name}");
            }
            let warnings = warnings(&fixture);
            let are_named = warnings.iter().all(|it| it.contains("Global.SetCustomField"));
            ensure!(
                warnings.len() == OBJECTS.len() && are_named,
                "{name}: {warnings:#?}"
            );
            let journal = fixture.vcenter.journal().await?;
            let refused = journal
                .iter()
                .filter(|it| it.kind == EntryKind::Fault && it.method == method);
            let refused = refused.count();
            ensure!(
                (1..=OBJECTS.len()).contains(&refused),
                "{name}: {refused} calls of {method}"
            );
        }
        Ok(())
    });
}

#[test]
fn vcenter_that_never_sets_an_attribute_does_not_delay_the_episode() {
    run_scenario(async {
        let fixture = one_node("attribute-mute").await?;
        let hang = FaultRule::new("SetField", FaultRuleKind::Hang);
        fixture.vcenter.fault(&hang).await?;
        let haulout = begin_held(&fixture, &[ON]).await?;
        wait_for_fault(&fixture, "SetField").await?;
        end_held(&fixture).await?;
        // The call still hangs.
        haulout.stop().await?;
        let log = fixture.log_text();
        ensure!(!log.contains("requests were not answered"), "{log}");
        Ok(())
    });
}

#[test]
fn no_attribute_is_set_in_a_dry_run_or_unless_switched_on() {
    run_scenario(async {
        for (name, changes) in [
            ("attribute-dry", &[("DRY_RUN", "true"), ON][..]),
            ("attribute-off", &[]),
        ] {
            let fixture = one_node(name).await?;
            let haulout = run(&fixture, changes).await?;
            fixture.vcenter.enter_maintenance("esx1").await?;
            fixture.wait_for_log("-> AwaitingHost").await?;
            haulout.stop().await?;
            for method in ["SetField", "AddCustomFieldDef"] {
                ensure!(count(&fixture, method).await? == 0, "{name}: {method}");
            }
        }
        Ok(())
    });
}
