//! The hosts of a cluster enter maintenance one after another.

use anyhow::ensure;
use haulout_lab::fixture::Fixture;
use haulout_lab::vcenter::State;

use crate::fixture::{a40, fixture, gpu_vm, hosts, run, run_scenario};

/// Puts `host` into maintenance and takes it out again when the node of `gpu1` is in service elsewhere.
async fn update(fixture: &Fixture<'_>, host: &str) -> anyhow::Result<()> {
    fixture.vcenter.enter_maintenance(host).await?;
    fixture.wait_in_maintenance(host).await?;
    let is_elsewhere = |state: &State| state.vm("gpu1").is_some_and(|vm| vm.is_on() && vm.host != host);
    fixture.wait_vcenter("gpu1 runs elsewhere", is_elsewhere).await?;
    fixture.wait_in_service(&fixture.node_name("gpu1")).await?;
    fixture.vcenter.exit_maintenance(host).await?;
    let is_out = |state: &State| state.host(host).is_some_and(|host| !host.in_maintenance);
    fixture
        .wait_vcenter(&format!("{host} is out of maintenance"), is_out)
        .await?;
    Ok(())
}

#[test]
fn update_of_four_hosts_in_turn_costs_a_node_two_power_cycles() {
    run_scenario(async {
        let gpus = [a40(1)];
        let names = ["esx4", "esx1", "esx2", "esx3"];
        let mut spec = hosts(&names.map(|name| (name, gpus.as_slice())));
        spec.vms = vec![gpu_vm("rolling", "gpu1", "esx4")];
        let fixture = fixture("rolling", &spec).await?;
        let haulout = run(&fixture, &[]).await?;
        for host in names {
            update(&fixture, host).await?;
        }
        let cycles = fixture.power_cycles("gpu1").await?;
        ensure!(
            cycles == (2, 2),
            "{cycles:?}; Haulout's log:\n{}",
            fixture.log_text()
        );
        haulout.stop().await
    });
}

#[test]
fn vm_moves_to_the_host_with_the_newer_build() {
    run_scenario(async {
        let gpus = [a40(1)];
        let names = ["esx1", "esx2", "esx3"];
        let mut spec = hosts(&names.map(|name| (name, gpus.as_slice())));
        for (host, build) in spec.clusters[0]
            .hosts
            .iter_mut()
            .zip(["24585291", "24585291", "24674464"])
        {
            host.build = build.to_owned();
        }
        spec.vms = vec![gpu_vm("builds", "gpu1", "esx1")];
        let fixture = fixture("builds", &spec).await?;
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        let is_there = |state: &State| state.vm("gpu1").is_some_and(|vm| vm.is_on() && vm.host == "esx3");
        fixture.wait_vcenter("gpu1 runs on esx3", is_there).await?;
        haulout.stop().await
    });
}
