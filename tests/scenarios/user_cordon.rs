//! A cordon that a person sets is kept.

use anyhow::ensure;
use haulout_lab::fixture::{annotation, is_cordoned, is_ready};

use crate::fixture::{one_node, run, run_scenario};

#[test]
fn persons_cordon_from_before_the_episode_stays() {
    run_scenario(async {
        let fixture = one_node("theirs").await?;
        let node = fixture.node_name("gpu1");
        fixture.person_cordons(&node, true).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        let back = fixture
            .wait_node(&node, "has no episode and is Ready", |node| {
                annotation(node, "episode").is_none() && is_ready(node)
            })
            .await?;
        ensure!(is_cordoned(&back), "the person's cordon stays");
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn persons_cordon_set_during_the_episode_stays() {
    run_scenario(async {
        let fixture = one_node("theirs-later").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        // Cordoning a cordoned node changes nothing in the API, so both writes are needed. Haulout is frozen, or it
        // would cordon in between.
        haulout.freeze()?;
        fixture.person_cordons(&node, false).await?;
        fixture.person_cordons(&node, true).await?;
        haulout.thaw()?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        let back = fixture
            .wait_node(&node, "has no episode and is Ready", |node| {
                annotation(node, "episode").is_none() && is_ready(node)
            })
            .await?;
        ensure!(is_cordoned(&back), "the person's cordon stays");
        haulout.stop().await
    });
}
