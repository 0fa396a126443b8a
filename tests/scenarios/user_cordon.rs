//! A cordon that a person sets is kept.

use anyhow::ensure;
use haulout_lab::stage::{annotation, is_cordoned, is_ready};

use crate::fixture::{in_maintenance, one_node, run, tell};

#[test]
fn persons_cordon_from_before_the_episode_stays() {
    tell(async {
        let stage = one_node("theirs").await?;
        let node = stage.node_name("gpu1");
        stage.person_cordons(&node, true).await?;
        let haulout = run(&stage, &[]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        in_maintenance(&stage, "esx1").await?;
        stage.vcenter.exit_maintenance("esx1").await?;
        let back = stage
            .wait_node(&node, "has no episode and is Ready", |node| {
                annotation(node, "episode").is_none() && is_ready(node)
            })
            .await?;
        ensure!(is_cordoned(&back), "the person's cordon stays");
        ensure!(stage.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn persons_cordon_set_during_the_episode_stays() {
    tell(async {
        let stage = one_node("theirs-later").await?;
        let node = stage.node_name("gpu1");
        let haulout = run(&stage, &[]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_phase(&node, "awaitingHost").await?;
        // A cordon of a cordoned node changes nothing that the API shows, so it takes both writes; and Haulout cordons again between
        // them unless it stands still.
        haulout.freeze()?;
        stage.person_cordons(&node, false).await?;
        stage.person_cordons(&node, true).await?;
        haulout.thaw()?;
        stage.vcenter.exit_maintenance("esx1").await?;
        let back = stage
            .wait_node(&node, "has no episode and is Ready", |node| {
                annotation(node, "episode").is_none() && is_ready(node)
            })
            .await?;
        ensure!(is_cordoned(&back), "the person's cordon stays");
        haulout.stop().await
    });
}
