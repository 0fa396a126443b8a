//! Modes of a host that Haulout does not react to are told.

use std::time::Duration;

use anyhow::ensure;
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT};
use haulout_lab::wait::until;

use crate::assertions::{clock, node_writes};
use crate::events::events_of_node;
use crate::fixture::{one_node, run, run_scenario};

/// Waits for an Event with this reason on the Node, and checks that it is one Warning with these words.
async fn is_told_once(fixture: &Fixture<'_>, reason: &str, words: &str) -> anyhow::Result<()> {
    fixture.wait_for_log(words).await?;
    let of_reason = || async {
        let events = events_of_node(fixture).await?.into_iter();
        let told: Vec<_> = events
            .filter(|event| event.reason.as_deref() == Some(reason))
            .collect();
        anyhow::Ok(told)
    };
    until(&format!("an Event {reason}"), WAIT_TIMEOUT, async || {
        Ok((!of_reason().await?.is_empty()).then_some(()))
    })
    .await?;
    let told = of_reason().await?;
    ensure!(told.len() == 1, "{told:#?}");
    ensure!(told[0].type_.as_deref() == Some("Warning"), "{told:#?}");
    let note = told[0].note.clone().unwrap_or_default();
    ensure!(note.contains(words), "{note}");
    Ok(())
}

#[test]
fn host_that_is_to_enter_standby_mode_is_told_and_its_node_stays() {
    run_scenario(async {
        let fixture = one_node("enter-standby").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;
        let began = clock();
        fixture
            .vcenter
            .enter_standby("esx1", Duration::from_secs(600))
            .await?;
        is_told_once(
            &fixture,
            "HostStandbyRequested",
            "ESXi host esx1 is to enter standby mode",
        )
        .await?;

        fixture
            .vcenter
            .set_partial_maintenance("esx1", "quickPatchPartialMM", "enteringPartialMM")
            .await?;
        let words = "ESXi host esx1 is in the partial maintenance mode quickPatchPartialMM";
        is_told_once(&fixture, "HostPartialMaintenance", words).await?;
        let lines = fixture.log_text();
        ensure!(
            lines.matches("is to enter standby mode").count() == 1 && lines.matches(words).count() == 1,
            "each is told once:\n{lines}"
        );
        let writes = node_writes(&fixture, &node, began).await?;
        ensure!(writes.is_empty(), "{writes:?}");
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));

        // Maintenance mode is served all the same.
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_state(&node, Some("powered-off")).await?;
        haulout.stop().await
    });
}
