//! VMs that vCenter itself shuts down when their host enters maintenance, because of a mark in their configuration.

use std::collections::BTreeMap;

use anyhow::ensure;
use haulout::nodemaintenance::kind::MaintenanceAction;
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT, boot_id, episode, is_cordoned};
use haulout_lab::vcenter::{Delays, GuestPatch, PolicySpec, Power, Spec, State, VmSpec};
use haulout_lab::wait::until;
use k8s_openapi::api::core::v1::Node;

use crate::assertions::clock;
use crate::events::events_of_node;
use crate::fixture::{a40, fixture, gpu_vm, hosts, kubectl, run, run_scenario};
use crate::graceful_shutdown::says_that_it_shuts_down;
use crate::kubectl_plugin::types;
use crate::metrics::{SERVED, address, ask};
use crate::requests;

/// Two hosts with a GPU each, and one VM with the mark. vCenter shuts it down at the click and starts it elsewhere after
/// `remediation_ms`.
async fn marked_node(name: &str, remediation_ms: u32) -> anyhow::Result<Fixture<'static>> {
    let mut spec = two_hosts(remediation_ms);
    spec.vms = vec![marked_vm(name)];
    fixture(name, &spec).await
}

fn marked_vm(name: &str) -> VmSpec {
    let mark = ("maintenance.vm.evacuation.poweroff", "TRUE");
    VmSpec {
        extra_config: BTreeMap::from([(mark.0.to_owned(), mark.1.to_owned())]),
        ..gpu_vm(name, "gpu1", "esx1")
    }
}

fn two_hosts(remediation_ms: u32) -> Spec {
    let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
    spec.delays = Delays {
        remediation_ms,
        enter_ms: 5_000,
        ..spec.delays
    };
    spec
}

fn is_off(state: &State) -> bool {
    state.vm("gpu1").is_some_and(|vm| vm.power == Power::PoweredOff)
}

/// The node is back on `esx2`, after one power cycle.
async fn came_back(fixture: &Fixture<'_>, node: &str) -> anyhow::Result<()> {
    let back = fixture.wait_in_service(node).await?;
    ensure!(!is_cordoned(&back));
    let state = fixture.vcenter.state().await?;
    ensure!(state.vm("gpu1").is_some_and(|vm| vm.host == "esx2"), "{state:#?}");
    ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
    fixture.wait_in_maintenance("esx1").await
}

/// Waits for the Warning about the mark on the Node.
async fn wait_for_warning(fixture: &Fixture<'_>) -> anyhow::Result<String> {
    until("an Event EvacuationPolicy", WAIT_TIMEOUT, async || {
        let events = events_of_node(fixture).await?;
        let warning = events
            .into_iter()
            .find(|event| event.reason.as_deref() == Some("EvacuationPolicy"));
        Ok(warning.map(|event| format!("{:?} {:?}", event.type_, event.note)))
    })
    .await
}

#[test]
fn node_whose_vm_vcenter_shuts_down_itself_is_told_and_comes_back() {
    run_scenario(async {
        let fixture = marked_node("evacuated", 20_000).await?;
        let node = fixture.node_name("gpu1");
        // The drain does not end before the VM is off.
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = run(&fixture, &SERVED).await?;
        fixture
            .wait_for_log("vCenter itself shuts down the VMs of these nodes")
            .await?;
        let metrics = format!("{}/metrics", address(&fixture, "metrics").await?);
        until("the gauge to count the node", WAIT_TIMEOUT, async || {
            let (_, text) = ask(&metrics, "text/plain").await?;
            let counted = text
                .lines()
                .any(|line| line == "haulout_nodes_with_evacuation_policy 1.0");
            Ok(counted.then_some(()))
        })
        .await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        let warning = wait_for_warning(&fixture).await?;
        ensure!(
            warning.contains("Warning") && warning.contains("its pods"),
            "{warning}"
        );
        // On a busy machine the VM is off before the cordon.
        fixture.wait_for_log("-> AwaitingHost").await?;
        came_back(&fixture, &node).await?;
        ensure!(
            fixture
                .log_text()
                .matches("vCenter itself shuts down the VMs")
                .count()
                == 1,
            "it is told once"
        );
        haulout.stop().await
    });
}

#[test]
fn node_whose_vm_was_shut_down_before_haulout_saw_the_click_comes_back() {
    run_scenario(async {
        let fixture = marked_node("evacuated-unseen", 20_000).await?;
        let node = fixture.node_name("gpu1");
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_vcenter("the VM is off", is_off).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.wait_node(&node, "it is cordoned", is_cordoned).await?;
        let warning = wait_for_warning(&fixture).await?;
        ensure!(warning.contains("has shut down the VM"), "{warning}");
        came_back(&fixture, &node).await?;
        haulout.stop().await
    });
}

#[test]
fn node_that_shut_down_gracefully_for_vcenter_comes_back() {
    run_scenario(async {
        let fixture = marked_node("evacuated-graceful", 60_000).await?;
        let node = fixture.node_name("gpu1");
        fixture.kubelet("gpu1")?.shut_down_gracefully();
        let slow = GuestPatch {
            shutdown_ms: Some(2_500),
            ..GuestPatch::default()
        };
        fixture.vcenter.patch_vm("gpu1", slow).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        // Its Node is not Ready from the first moment on.
        fixture
            .wait_node(&node, "says that it shuts down", says_that_it_shuts_down)
            .await?;
        fixture.wait_in_maintenance("esx1").await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.wait_node(&node, "it is cordoned", is_cordoned).await?;
        came_back(&fixture, &node).await?;
        haulout.stop().await
    });
}

#[test]
fn node_that_a_person_shut_down_before_the_maintenance_stays_off() {
    run_scenario(async {
        let name = "evacuated-before";
        let mut spec = two_hosts(60_000);
        spec.vms = vec![marked_vm(name), gpu_vm(name, "gpu2", "esx2")];
        let fixture = fixture(name, &spec).await?;
        let node = fixture.node_name("gpu1");
        fixture.kubelet("gpu1")?.shut_down_gracefully();
        fixture.vcenter.shutdown_guest("gpu1").await?;
        let missed_since = |node: &Node| {
            let mut conditions = node.status.iter().flat_map(|it| it.conditions.iter().flatten());
            let ready = conditions.find(|it| it.type_ == "Ready" && it.status == "Unknown")?;
            Some(ready.last_transition_time.as_ref()?.0.as_second())
        };
        let missed = fixture
            .wait_node(&node, "is missed", |node| missed_since(node).is_some())
            .await?;
        // Kubernetes writes whole seconds.
        until("the next second", WAIT_TIMEOUT, async || {
            Ok((Some(clock().as_second()) > missed_since(&missed)).then_some(()))
        })
        .await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        let haulout = run(&fixture, &[]).await?;

        // By then all that was there at the start is decided.
        let other = fixture.node_name("gpu2");
        requests::ask(&fixture, "other", &other, MaintenanceAction::Drain).await?;
        fixture.wait_phase(&other, "drained").await?;
        let left = fixture.node(&node).await?;
        ensure!(episode(&left).is_none() && !is_cordoned(&left));
        ensure!(fixture.power_cycles("gpu1").await? == (1, 0));
        haulout.stop().await
    });
}

#[test]
fn vm_that_vcenter_shut_down_and_started_elsewhere_is_accepted_there() {
    run_scenario(async {
        let fixture = marked_node("evacuated-restarted", 3_000).await?;
        // vCenter does not find a place for the VM before Haulout has seen that it is off.
        fixture.vcenter.remove_device("esx2", &a40(1).id).await?;
        let node = fixture.node_name("gpu1");
        // Haulout leaves the start to vCenter.
        kubectl(
            &fixture,
            &["annotate", "node", &node, "haulout.dev/strategy=wait"],
        )
        .await?;
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.vcenter.add_device("esx2", &a40(1)).await?;
        fixture.wait_for_log("AwaitingHost -> Rejoining").await?;
        came_back(&fixture, &node).await?;
        for method in ["RelocateVM_Task", "PowerOnVM_Task"] {
            ensure!(fixture.calls(method, "gpu1").await? == 0, "it called {method}");
        }
        haulout.stop().await
    });
}

#[test]
fn node_whose_vm_was_restarted_elsewhere_unseen_is_back_on_another_boot() {
    run_scenario(async {
        let fixture = marked_node("evacuated-away", 3_000).await?;
        let node = fixture.node_name("gpu1");
        let hangs = |ignores| GuestPatch {
            ignore_shutdown: Some(ignores),
            ..GuestPatch::default()
        };
        fixture.vcenter.patch_vm("gpu1", hangs(true)).await?;
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let boot_before = boot_id(&fixture.node(&node).await?);
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "draining").await?;
        haulout.kill().await?;
        fixture.vcenter.patch_vm("gpu1", hangs(false)).await?;
        fixture.vcenter.shutdown_guest("gpu1").await?;
        let is_restarted = |state: &State| state.vm("gpu1").is_some_and(|vm| vm.is_on() && vm.boots == 2);
        fixture.wait_vcenter("the VM runs again", is_restarted).await?;
        fixture
            .wait_node(&node, "its kubelet reports the new boot", |node| {
                boot_id(node) != boot_before
            })
            .await?;

        let haulout = run(&fixture, &[]).await?;
        fixture.wait_for_log("Draining -> Rejoining").await?;
        came_back(&fixture, &node).await?;
        haulout.stop().await
    });
}

#[test]
fn node_whose_vm_a_compute_policy_shuts_down_is_told_and_comes_back() {
    run_scenario(async {
        let mut spec = two_hosts(20_000);
        let policy = |name: &str, capability: &str, vm: &str| PolicySpec {
            name: name.to_owned(),
            capability: format!("com.vmware.vcenter.compute.policies.capabilities.{capability}"),
            vms: vec![vm.to_owned()],
        };
        spec.policies = vec![
            policy("keep apart", "vm_vm_anti_affinity", "gpu2"),
            policy("restart elsewhere", "vm.evacuation.best_effort_restart", "gpu1"),
        ];
        spec.vms = vec![
            gpu_vm("by-policy", "gpu1", "esx1"),
            gpu_vm("by-policy", "gpu2", "esx2"),
        ];
        let fixture = fixture("by-policy", &spec).await?;
        let node = fixture.node_name("gpu1");
        let checked = types(&fixture, &["check"]).await?;
        let words = |vm: &str| format!("vCenter itself powers VM {vm} off when its host enters maintenance");
        ensure!(
            checked.stdout.contains(&words("gpu1")) && !checked.stdout.contains(&words("gpu2")),
            "{checked}"
        );
        let haulout = run(&fixture, &[]).await?;
        fixture
            .wait_for_log("a compute policy makes vCenter shut VMs down")
            .await?;
        fixture
            .wait_for_log("vCenter itself shuts down the VMs of these nodes")
            .await?;
        fixture.vcenter.remove_vm("gpu2").await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        let warning = wait_for_warning(&fixture).await?;
        ensure!(warning.contains("a compute policy says so"), "{warning}");
        came_back(&fixture, &node).await?;
        haulout.stop().await
    });
}
