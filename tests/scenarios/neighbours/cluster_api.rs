//! Nodes that are Machines of Cluster API: what its controllers do to a Machine whose VM is off for host maintenance.
//!
//! Each scenario has a cluster of its own, because the kinds of Cluster API name the webhooks of one manager.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout::kubernetes::rights::MACHINES;
use haulout_lab::cluster_api::{ClusterApi, INFRASTRUCTURE_USER, Kind};
use haulout_lab::fixture::{Fixture, Member, WAIT_TIMEOUT, is_ready};
use haulout_lab::kube::{Kube, KubeOptions};
use haulout_lab::vcenter::{Entry, EntryKind};
use haulout_lab::wait::until;

use crate::fixture::{a40, gpu_vm, hosts, run, run_scenario};

/// A node on the only host, in a cluster of its own.
async fn one_node<'a>(kube: &'a Kube, name: &str) -> anyhow::Result<Fixture<'a>> {
    let mut spec = hosts(&[("esx1", &[a40(1)])]);
    spec.vms = vec![gpu_vm(name, "gpu1", "esx1")];
    let members = vec![Member::new(name, "gpu1", &spec.vms[0].uuid)];
    Fixture::create(kube, name, &spec, members, true).await
}

#[test]
fn health_check_deletes_the_machine_of_a_node_in_maintenance() {
    run_scenario(async {
        let kube = Kube::start(&KubeOptions::default()).await?;
        let fixture = one_node(&kube, "capi-unguarded").await?;
        let node = fixture.node_name("gpu1");
        let capi = ClusterApi::start(&fixture, Duration::from_secs(3)).await?;
        capi.add_machine(&fixture, "gpu1").await?;
        ensure!(capi.power_on_calls(&fixture, "gpu1").await? == 0);
        let haulout = run(&fixture, &[("GUARDS", "none")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_state(&node, Some("powered-off")).await?;
        capi.wait_machine_deleted("gpu1").await?;
        fixture
            .wait_vcenter("the VM is destroyed", |state| state.vm("gpu1").is_none())
            .await?;
        ensure!(
            capi.power_on_calls(&fixture, "gpu1").await? > 0,
            "before that, the provider tries to power it on, which the host in maintenance mode refuses"
        );
        until("another Machine instead", WAIT_TIMEOUT, async || {
            let machines = capi.machines().await?;
            Ok(machines.iter().any(|machine| machine != "gpu1").then_some(()))
        })
        .await
        .with_context(|| capi.log_text())?;
        haulout.stop().await
    });
}

/// The annotation of an object, as a line.
async fn guards(capi: &ClusterApi) -> anyhow::Result<[Option<String>; 2]> {
    Ok([
        capi.annotation(Kind::VSphereVm, "gpu1", "cluster.x-k8s.io/paused")
            .await?,
        capi.annotation(Kind::Machine, "gpu1", "cluster.x-k8s.io/skip-remediation")
            .await?,
    ])
}

#[test]
fn guarded_machine_survives_a_maintenance_and_its_vm_stays_off() {
    run_scenario(async {
        let options = KubeOptions {
            audit_reads: true,
            ..KubeOptions::default()
        };
        let kube = Kube::start(&options).await?;
        let fixture = one_node(&kube, "capi-guarded").await?;
        let node = fixture.node_name("gpu1");
        let capi = ClusterApi::start(&fixture, Duration::from_secs(3)).await?;
        capi.add_machine(&fixture, "gpu1").await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_state(&node, Some("powered-off")).await?;
        let set = guards(&capi).await?;
        ensure!(
            set.iter()
                .all(|guard| guard.as_ref().is_some_and(|it| it.starts_with("haulout:"))),
            "{set:?}"
        );
        fixture.wait_in_maintenance("esx1").await?;
        fixture
            .wait_node(&node, "is not Ready", |node| !is_ready(node))
            .await?;
        // The health check looks every 15 s, and its timeout is 3 s: the second look would remediate.
        let looks = || -> BTreeSet<String> {
            let log = capi.log_text();
            let lines = log.lines().filter(|line| line.contains("Skipping remediation"));
            lines.map(str::to_owned).collect()
        };
        let before = looks();
        let mut later = BTreeSet::new();
        until("two looks of the health check", WAIT_TIMEOUT, async || {
            later.extend(looks().difference(&before).cloned());
            Ok((later.len() >= 2).then_some(()))
        })
        .await?;
        haulout.kill().await?;

        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(guards(&capi).await? == [None, None], "both guards are gone");
        ensure!(!capi.is_machine_deleted("gpu1").await?);
        ensure!(
            capi.power_on_calls(&fixture, "gpu1").await? == 0,
            "CAPV left the VM alone"
        );
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await?;
        uses_exactly_its_rights(&fixture).await
    });
}

/// Whether Haulout asked for all that `rights::MACHINES` lists, and for nothing else.
async fn uses_exactly_its_rights(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let listed: BTreeSet<(String, String, String)> = MACHINES
        .iter()
        .flat_map(|right| {
            let of = |verb: &&str| {
                (
                    right.group.to_owned(),
                    right.resource.to_owned(),
                    (*verb).to_owned(),
                )
            };
            right.verbs.iter().map(of)
        })
        .collect();
    let name = format!("haulout-{}", fixture.name());
    let requests = fixture.kube.requests().await?;
    let used = requests
        .into_iter()
        .filter(|event| event.user == name && event.group.ends_with("cluster.x-k8s.io"));
    let used: BTreeSet<_> = used
        .filter(|event| !event.resource.is_empty())
        .map(|event| (event.group, event.resource, event.verb))
        .collect();
    ensure!(used == listed, "used: {used:?}; listed: {listed:?}");
    Ok(())
}

#[test]
fn pause_of_a_person_and_a_cancelled_drain_leave_a_machine_as_it_was() {
    run_scenario(async {
        let kube = Kube::start(&KubeOptions::default()).await?;
        let fixture = one_node(&kube, "capi-cancel").await?;
        let node = fixture.node_name("gpu1");
        let capi = ClusterApi::start(&fixture, Duration::from_secs(600)).await?;
        capi.add_machine(&fixture, "gpu1").await?;
        capi.pause(Kind::VSphereVm, "gpu1", true).await?;
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_for_log("held by PodDisruptionBudget").await?;
        let [paused, skipped] = guards(&capi).await?;
        ensure!(
            paused.as_deref() == Some("true") && skipped.is_some(),
            "{paused:?} {skipped:?}"
        );
        fixture.vcenter.cancel_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        let [paused, skipped] = guards(&capi).await?;
        ensure!(
            paused.as_deref() == Some("true") && skipped.is_none(),
            "{paused:?} {skipped:?}"
        );
        haulout.stop().await
    });
}

#[test]
fn infrastructure_provider_powers_on_a_vm_that_is_off() {
    run_scenario(async {
        let kube = Kube::start(&KubeOptions::default()).await?;
        let fixture = one_node(&kube, "capi-power").await?;
        let capi = ClusterApi::start(&fixture, Duration::from_secs(600)).await?;
        capi.add_machine(&fixture, "gpu1").await?;

        fixture.vcenter.power_off("gpu1").await?;
        let is_started = |entry: &Entry| {
            entry.kind == EntryKind::Power && entry.user == INFRASTRUCTURE_USER && entry.detail == "poweredOn"
        };
        fixture
            .vcenter
            .wait_for_entry("the provider powers on the VM", WAIT_TIMEOUT, is_started)
            .await?;
        let node = fixture.node_name("gpu1");
        fixture.wait_in_service(&node).await?;

        capi.pause(Kind::VSphereMachine, "gpu1", true).await?;
        let before = capi.power_on_calls(&fixture, "gpu1").await?;
        fixture.vcenter.power_off("gpu1").await?;
        fixture
            .wait_vcenter("the VM is on", |state| {
                state.vm("gpu1").is_some_and(|vm| vm.is_on())
            })
            .await?;
        ensure!(
            capi.power_on_calls(&fixture, "gpu1").await? > before,
            "a pause of the VSphereMachine does not reach the VSphereVM"
        );

        capi.pause(Kind::VSphereVm, "gpu1", true).await?;
        let before = capi.power_on_calls(&fixture, "gpu1").await?;
        fixture.vcenter.power_off("gpu1").await?;
        fixture
            .wait_node(&node, "is not Ready", |node| !is_ready(node))
            .await?;
        ensure!(capi.power_on_calls(&fixture, "gpu1").await? == before);
        capi.pause(Kind::VSphereVm, "gpu1", false).await?;
        fixture.wait_in_service(&node).await?;
        ensure!(!capi.is_machine_deleted("gpu1").await?);
        Ok(())
    });
}
