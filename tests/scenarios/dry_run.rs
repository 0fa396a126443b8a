//! `DRY_RUN` changes nothing.

use anyhow::ensure;

use crate::fixture::{one_node, run, tell};

#[test]
fn dry_run_goes_through_the_drain_and_changes_nothing() {
    tell(async {
        let stage = one_node("dry").await?;
        let node = stage.node_name("gpu1");
        stage.add_pod("train", &node, &[]).await?;
        let haulout = run(&stage, &[("DRY_RUN", "true")]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_said("InService -> Draining, cordoned").await?;
        stage.wait_said("would evict 1 pod").await?;
        stage.wait_said("would shut the guest down").await?;
        stage.wait_said("-> AwaitingHost").await?;
        stage.vcenter.cancel_maintenance("esx1").await?;
        stage.wait_said("would power on").await?;
        stage.wait_said("Rejoining -> InService, uncordoned").await?;
        ensure!(
            stage
                .audit()
                .await?
                .iter()
                .all(|event| event.verb == "get" || event.verb == "list" || event.verb == "watch"),
            "no request that changes anything"
        );
        ensure!(stage.power_cycles("gpu1").await? == (0, 0));
        ensure!(stage.pods_on(&node).await? == ["train"]);
        haulout.stop().await
    });
}
