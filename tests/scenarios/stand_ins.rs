//! Other controllers that act on a Node in maintenance, with and without the guards against them.

use std::time::Duration;

use anyhow::ensure;
use haulout_lab::fixture::{Fixture, Member, WAIT_TIMEOUT};
use haulout_lab::kube::{Kube, KubeOptions};
use haulout_lab::stand_ins::{
    FENCE_AGENT, StandIn, start_autoscaler, start_driver_manager, start_node_health_check,
};
use haulout_lab::wait::until;
use k8s_openapi::api::core::v1::Node;
use kube::Api;

use crate::fixture::{a40, gpu_vm, hosts, one_node, run, run_scenario};

/// Waits until the stand-in would act on the Node of the fixture if it were not excluded.
async fn excluded(stand_in: &StandIn) -> anyhow::Result<()> {
    until("the Node to be excluded", WAIT_TIMEOUT, async || {
        Ok((stand_in.decisions().excluded > 0).then_some(()))
    })
    .await
}

/// How often the fence agent asked vCenter for something.
async fn fencings(fixture: &Fixture<'_>) -> anyhow::Result<usize> {
    let journal = fixture.vcenter.journal().await?;
    Ok(journal.iter().filter(|entry| entry.user == FENCE_AGENT).count())
}

#[test]
fn autoscaler_removes_a_drained_node_without_the_guard() {
    run_scenario(async {
        let fixture = one_node("scale-down").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        let _autoscaler = start_autoscaler(&fixture, Duration::from_secs(2));
        let haulout = run(&fixture, &[("GUARDS", "none")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        let nodes: Api<Node> = Api::all(fixture.client());
        until("the Node to be removed", WAIT_TIMEOUT, async || {
            Ok(nodes.get_opt(&node).await?.is_none().then_some(()))
        })
        .await?;
        haulout.stop().await
    });
}

#[test]
fn autoscaler_leaves_a_guarded_node_in_maintenance_alone() {
    run_scenario(async {
        let fixture = one_node("scale-keep").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        let autoscaler = start_autoscaler(&fixture, Duration::from_secs(2));
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        excluded(&autoscaler).await?;
        fixture.wait_in_maintenance("esx1").await?;
        drop(autoscaler);
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn health_check_of_medik8s_leaves_a_guarded_node_alone() {
    run_scenario(async {
        let kube = Kube::start(&KubeOptions::default()).await?;
        let name = "medik8s";
        let mut spec = hosts(&[("esx1", &[a40(1)])]);
        spec.vms = vec![gpu_vm(name, "gpu1", "esx1")];
        let members = vec![Member::new(name, "gpu1", &spec.vms[0].uuid)];
        let fixture = Fixture::create(&kube, name, &spec, members, true).await?;
        let node = fixture.node_name("gpu1");
        let check = start_node_health_check(&fixture, Duration::from_secs(2)).await?;
        let haulout = run(&fixture, &[("GUARDS", "none")]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        until(
            "the VM to be fenced without the guard",
            WAIT_TIMEOUT,
            async || Ok((fencings(&fixture).await? > 0).then_some(())),
        )
        .await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        haulout.stop().await?;

        let haulout = run(&fixture, &[]).await?;
        let before = fencings(&fixture).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        excluded(&check).await?;
        fixture.wait_in_maintenance("esx1").await?;
        ensure!(fencings(&fixture).await? == before);
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn node_that_the_driver_manager_uncordons_comes_back_with_its_gpus() {
    run_scenario(async {
        let fixture = one_node("driver-manager").await?;
        let node = fixture.node_name("gpu1");
        let manager = start_driver_manager(&fixture);
        let haulout = run(&fixture, &[]).await?;

        fixture.kubelet("gpu1")?.set_gpus_after(Duration::from_secs(4));
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(
            manager.decisions().acted == 1,
            "it uncordoned the Node after the boot"
        );
        haulout.stop().await
    });
}
