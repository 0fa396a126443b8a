//! Which replica acts, and how often it writes: a leader without vCenter, two releases, two vCenters, a deleted Lease,
//! a restored etcd.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout::nodemaintenance::kind::{MaintenanceOrigin, NodeMaintenance};
use haulout_lab::fault_proxy::{FaultProxy, Side};
use haulout_lab::fixture::{Fixture, Member, WAIT_TIMEOUT};
use haulout_lab::kube::{Kube, KubeOptions, User};
use haulout_lab::vcenter::State;
use haulout_lab::wait::until;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::assertions::{clock, entries_during, journal_end, node_writes, records};
use crate::crash_recovery::through_proxy;
use crate::fixture::{a40, gpu_vm, hosts, kube, one_node, run, run_scenario, start};
use crate::leader_election::{UNDEPOSED, replica_settings, wait_leader, wait_synced};

/// How long another replica may take to serve a maintenance that its leader cannot see.
const YIELDS: Duration = Duration::from_secs(75);

#[test]
fn leader_without_vcenter_yields_to_the_other_replica() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)])]);
        let vm = gpu_vm("yields", "gpu1", "esx1");
        let members = vec![Member::new("yields", "gpu1", &vm.uuid)];
        spec.vms = vec![vm];
        // The proxy reads the requests, so the vCenter behind it speaks plain HTTP.
        let fixture = Fixture::create(kube().await, "yields", &spec, members, false).await?;
        let behind = |name: &'static str, proxy: &FaultProxy, kubeconfig: &str| {
            let sdk = proxy.vcenter_sdk();
            let mut changes = vec![("VCENTER_HOST", sdk.as_str()), ("KUBECONFIG", kubeconfig)];
            changes.extend(replica_settings(&fixture, name));
            changes.extend(UNDEPOSED);
            // A vCenter that is cut off is silent: each call takes its whole deadline.
            changes.push(("TEST_TIMINGS", "vcenter_call=5"));
            start(&fixture, &changes)
        };
        let (proxy_a, kubeconfig_a) = through_proxy(&fixture, "-a").await?;
        let (proxy_b, kubeconfig_b) = through_proxy(&fixture, "-b").await?;
        let a = behind("a", &proxy_a, &kubeconfig_a)?;
        wait_leader(&fixture, "a").await?;
        wait_synced(&fixture, 1).await?;
        let b = behind("b", &proxy_b, &kubeconfig_b)?;

        proxy_a.cut(Side::Vcenter);
        fixture.vcenter.enter_maintenance("esx1").await?;
        let is_in = |it: &State| it.host("esx1").is_some_and(|host| host.in_maintenance);
        let served = fixture
            .vcenter
            .wait_until("esx1 is in maintenance", YIELDS, is_in)
            .await;
        served.with_context(|| fixture.log_text())?;
        a.kill().await?;
        b.kill().await
    });
}

/// How many writes a maintenance request may cost after a restore of etcd, where an undisturbed one costs three until the VM is off.
const AFTER_RESTORE: usize = 30;

#[test]
fn maintenance_after_an_etcd_restore_is_served_with_few_writes() {
    run_scenario(async {
        let kube = Kube::start(&KubeOptions::default()).await?;
        let mut spec = hosts(&[("esx1", &[a40(1)])]);
        let vm = gpu_vm("etcd", "gpu1", "esx1");
        let members = vec![Member::new("etcd", "gpu1", &vm.uuid)];
        spec.vms = vec![vm];
        let fixture = Fixture::create(&kube, "etcd", &spec, members, true).await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;
        let snapshot = kube.snapshot_etcd().await?;
        // The Node changes so often that its resource versions after the restore stay lower throughout the scenario.
        let nodes: Api<Node> = Api::all(fixture.client());
        for value in 0..1000 {
            let patch =
                Patch::Merge(json!({"metadata": {"annotations": {"example.com/n": value.to_string()}}}));
            nodes.patch(&node, &PatchParams::default(), &patch).await?;
        }
        kube.restore_etcd(&snapshot).await?;

        let clicked = clock();
        fixture.vcenter.enter_maintenance("esx1").await?;
        let is_in = |it: &State| it.host("esx1").is_some_and(|host| host.in_maintenance);
        let served = fixture
            .vcenter
            .wait_until("esx1 is in maintenance", WAIT_TIMEOUT, is_in)
            .await;
        let writes = node_writes(&fixture, &node, clicked).await?.len();
        served.with_context(|| format!("after {writes} writes; Haulout's log:\n{}", fixture.log_text()))?;
        ensure!(writes <= AFTER_RESTORE, "{writes} writes");
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

/// The maximum of writes of two instances to a Node in the first 15 s of a maintenance.
const SHARED: usize = 25;

/// The maintenance is one episode with few writes.
async fn one_episode_and_few_writes(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let node = fixture.node_name("gpu1");
    let clicked = clock();
    fixture.vcenter.enter_maintenance("esx1").await?;
    entries_during(fixture, journal_end(fixture).await?, Duration::from_secs(15)).await?;
    let writes = node_writes(fixture, &node, clicked).await?;
    ensure!(
        writes.len() <= SHARED,
        "{} writes in 15 s, with these epochs: {:?}; Haulout's log:\n{}",
        writes.len(),
        records(&writes)
            .iter()
            .map(|it| it["epoch"].clone())
            .collect::<Vec<_>>(),
        fixture.log_text()
    );
    fixture.wait_in_maintenance("esx1").await?;
    fixture.vcenter.exit_maintenance("esx1").await?;
    fixture.wait_in_service(&node).await?;
    let cycles = fixture.power_cycles("gpu1").await?;
    ensure!(cycles == (1, 1), "off {} times, on {} times", cycles.0, cycles.1);
    let objects: Api<NodeMaintenance> = Api::all(fixture.client());
    let mut episodes = objects.list(&ListParams::default()).await?.items;
    episodes.retain(|it| it.spec.origin == MaintenanceOrigin::Episode && it.spec.node_name == node);
    ensure!(episodes.len() == 1, "{episodes:#?}");
    Ok(())
}

/// The settings of a separate release.
fn release<'a>(fixture: &'a Fixture<'_>, name: &'a str) -> Vec<(&'a str, &'a str)> {
    let mut changes = vec![
        ("LEADER_ELECTION", "true"),
        ("LEASE_NAME", name),
        ("LEASE_NAMESPACE", fixture.name()),
        ("POD_NAME", name),
    ];
    changes.extend(UNDEPOSED);
    changes
}

/// Waits until this Lease has a holder and at least `epoch` transitions.
async fn is_held(fixture: &Fixture<'_>, lease: &str, epoch: i32) -> anyhow::Result<()> {
    let leases: Api<Lease> = Api::namespaced(fixture.client(), fixture.name());
    until(
        &format!("the Lease {lease} to be held"),
        WAIT_TIMEOUT,
        async || {
            let spec = leases.get_opt(lease).await?.and_then(|it| it.spec);
            let held = spec.filter(|it| {
                it.holder_identity
                    .as_deref()
                    .is_some_and(|holder| !holder.is_empty())
            });
            Ok(held
                .filter(|it| it.lease_transitions.unwrap_or(0) >= epoch)
                .map(|_| ()))
        },
    )
    .await
    .with_context(|| fixture.log_text())
}

#[test]
fn two_releases_on_one_node_make_one_episode_with_few_writes() {
    run_scenario(async {
        let fixture = one_node("releases").await?;
        let first = start(&fixture, &release(&fixture, "one"))?;
        is_held(&fixture, "one", 0).await?;
        // The other release has a higher epoch because it has led before.
        let other = start(&fixture, &release(&fixture, "two"))?;
        is_held(&fixture, "two", 0).await?;
        wait_synced(&fixture, 2).await?;
        other.stop().await?;
        let other = start(&fixture, &release(&fixture, "two"))?;
        wait_synced(&fixture, 3).await?;
        is_held(&fixture, "two", 1).await?;
        one_episode_and_few_writes(&fixture).await?;
        first.stop().await?;
        other.stop().await
    });
}

#[test]
fn vcenter_that_does_not_know_the_vm_leaves_its_episode_alone() {
    run_scenario(async {
        let fixture = one_node("two-vcenters").await?;
        // Another vCenter, without this node's VM.
        let spec = hosts(&[("esx9", &[a40(1)])]);
        let elsewhere = Fixture::create(kube().await, "two-vcenters-other", &spec, Vec::new(), true).await?;
        let ours = start(&fixture, &release(&fixture, "one"))?;
        is_held(&fixture, "one", 0).await?;
        let mut changes = release(&fixture, "two");
        changes.push(("VCENTER_HOST", elsewhere.vcenter.sdk()));
        let other = start(&fixture, &changes)?;
        is_held(&fixture, "two", 0).await?;
        wait_synced(&fixture, 2).await?;
        one_episode_and_few_writes(&fixture).await?;
        ours.stop().await?;
        other.stop().await
    });
}

/// The epochs in the records that this user wrote.
async fn epochs(fixture: &Fixture<'_>, user: &User) -> anyhow::Result<BTreeSet<u64>> {
    let mut audit = fixture.kube.audit_of(user).await?;
    audit.retain(|it| it.resource == "nodes");
    Ok(records(&audit)
        .iter()
        .filter_map(|it| it["epoch"].as_u64())
        .collect())
}

#[test]
fn no_epoch_is_used_twice_when_the_lease_is_deleted() {
    run_scenario(async {
        let fixture = one_node("epochs").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let users = ["a", "b"].map(|name| User::haulout(format!("haulout-epochs-{name}")));
        let replica = |name: &'static str, user: &User| {
            let kubeconfig = fixture.kube.kubeconfig(user)?;
            let kubeconfig = kubeconfig.to_string_lossy().into_owned();
            let mut changes = replica_settings(&fixture, name).to_vec();
            changes.extend(UNDEPOSED);
            changes.push(("KUBECONFIG", &kubeconfig));
            start(&fixture, &changes)
        };
        let a = replica("a", &users[0])?;
        wait_leader(&fixture, "a").await?;
        wait_synced(&fixture, 1).await?;
        let b = replica("b", &users[1])?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "draining").await?;
        // The kube-apiserver logs a write after others may have seen it.
        until("a's record in the audit log", WAIT_TIMEOUT, async || {
            Ok((!epochs(&fixture, &users[0]).await?.is_empty()).then_some(()))
        })
        .await?;

        a.freeze()?;
        let leases: Api<Lease> = Api::namespaced(fixture.client(), fixture.name());
        leases.delete(fixture.name(), &DeleteParams::default()).await?;
        wait_leader(&fixture, "b").await?;
        fixture.set_budget("held", 1).await?;
        fixture.wait_in_maintenance("esx1").await?;
        a.thaw()?;
        let [of_a, of_b] = [
            epochs(&fixture, &users[0]).await?,
            epochs(&fixture, &users[1]).await?,
        ];
        ensure!(
            !of_b.is_empty() && of_a.is_disjoint(&of_b),
            "a wrote under the epochs {of_a:?}, b under {of_b:?}; Haulout's log:\n{}",
            fixture.log_text()
        );
        a.kill().await?;
        b.kill().await
    });
}
