//! `DRY_RUN` changes nothing.

use anyhow::ensure;

use crate::fixture::{one_node, run, run_scenario};

#[test]
fn dry_run_goes_through_the_drain_and_changes_nothing() {
    run_scenario(async {
        let fixture = one_node("dry").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        let haulout = run(&fixture, &[("DRY_RUN", "true")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_for_log("InService -> Draining, cordoned").await?;
        fixture.wait_for_log("would evict 1 pod").await?;
        fixture.wait_for_log("would shut the guest down").await?;
        fixture.wait_for_log("-> AwaitingHost").await?;
        fixture.vcenter.cancel_maintenance("esx1").await?;
        fixture.wait_for_log("would power on").await?;
        fixture.wait_for_log("Rejoining -> InService, uncordoned").await?;
        ensure!(
            fixture
                .audit()
                .await?
                .iter()
                .all(|event| event.verb == "get" || event.verb == "list" || event.verb == "watch"),
            "no request that changes anything"
        );
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        ensure!(fixture.pods_on(&node).await? == ["train"]);
        haulout.stop().await
    });
}
