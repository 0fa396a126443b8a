//! A volume that CSI's external-attacher detaches.

use anyhow::ensure;
use haulout_lab::volumes::Volumes;

use crate::fixture::{one_node, run, run_scenario};

#[test]
fn shutdown_waits_until_the_csi_driver_has_detached_the_volume() {
    run_scenario(async {
        let fixture = one_node("volume-csi").await?;
        let node = fixture.node_name("gpu1");
        let volumes = Volumes::start(&fixture, &["gpu1"]).await?;
        volumes.add_volume("data").await?;
        volumes.add_pod("train", &node, "data").await?;
        fixture
            .wait_node(&node, "names the volume as attached", |node| {
                let attached = node
                    .status
                    .as_ref()
                    .and_then(|status| status.volumes_attached.as_ref());
                attached.is_some_and(|volumes| volumes.len() == 1)
            })
            .await?;
        volumes.hold_detachments().await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        volumes.wait_detaching("data").await?;
        fixture
            .wait_for_log("waiting for 1 volume to be detached until")
            .await?;
        ensure!(fixture.pods_on(&node).await?.is_empty(), "the pod is gone");
        ensure!(volumes.attachments(&node).await?.len() == 1);
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        volumes.release_detachments().await?;
        volumes.wait_detached(&node).await?;
        fixture.wait_state(&node, Some("powered-off")).await?;
        ensure!(volumes.calls().await?.iter().all(|call| call.done));
        haulout.stop().await
    });
}
