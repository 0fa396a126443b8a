//! Placement when hosts refuse the VM, cannot be read, or DRS prefers another host.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout::nodemaintenance::kind::{MaintenanceAction, NodeMaintenance, NodeMaintenanceSpec};
use haulout_lab::fixture::{Fixture, Member, WAIT_TIMEOUT};
use haulout_lab::vcenter::{
    DeviceSpec, DrsAutomation, Entry, FaultRule, Gpu, HostSpec, Readable, RuleSpec, Spec, State, VmSpec,
};
use haulout_lab::wait::until;
use kube::Api;
use kube::api::PostParams;
use kube::core::ObjectMeta;

use crate::assertions::{entries_during, wait_for_call, wait_for_entry, wait_for_fault};
use crate::fixture::{A40, a40, fixture, gpu_vm, hosts, kube, run, run_scenario, wait_described};

/// Hosts with one GPU each, the VM on `home`.
pub fn cluster(fixture: &str, names: &[&str], home: &str) -> Spec {
    let gpus = [a40(1)];
    let all: Vec<(&str, &[_])> = names.iter().map(|name| (*name, gpus.as_slice())).collect();
    let mut spec = hosts(&all);
    spec.vms = vec![gpu_vm(fixture, "gpu1", home)];
    spec
}

fn with_drs(mut spec: Spec) -> Spec {
    for cluster in &mut spec.clusters {
        cluster.drs.enabled = true;
        cluster.drs.behavior = DrsAutomation::FullyAutomated;
    }
    spec
}

/// Waits until the VM runs on `host` and its node is in service.
pub async fn runs_on(fixture: &Fixture<'_>, host: &str) -> anyhow::Result<()> {
    let there = |it: &State| {
        it.vm("gpu1")
            .is_some_and(|vm| vm.is_on() && vm.boots > 1 && vm.host == host)
    };
    fixture
        .wait_vcenter(&format!("gpu1 runs on {host}"), there)
        .await?;
    fixture.wait_in_service(&fixture.node_name("gpu1")).await?;
    Ok(())
}

/// Requests the relocation of `node` to `host`, or to any host.
async fn ask_to_move(fixture: &Fixture<'_>, node: &str, host: Option<&str>) -> anyhow::Result<()> {
    let request = NodeMaintenance {
        metadata: ObjectMeta {
            name: Some(format!("{}-move", fixture.name())),
            ..ObjectMeta::default()
        },
        spec: NodeMaintenanceSpec {
            node_name: node.to_owned(),
            action: MaintenanceAction::Relocate,
            target_host: host.map(str::to_owned),
            ..NodeMaintenanceSpec::default()
        },
        status: None,
    };
    let objects: Api<NodeMaintenance> = Api::all(fixture.client());
    objects.create(&PostParams::default(), &request).await?;
    Ok(())
}

#[test]
fn operator_learns_before_the_drain_where_the_vm_can_go() {
    run_scenario(async {
        for (name, hosts, words) in [
            (
                "goes-on",
                &["esx1", "esx2"][..],
                "its VM can move to esx2, if a device is free there",
            ),
            (
                "goes-home",
                &["esx1"],
                "no other host can take its VM, which will wait for esx1",
            ),
        ] {
            let fixture = fixture(name, &cluster(name, hosts, "esx1")).await?;
            let node = fixture.node_name("gpu1");
            fixture.add_pod("held", &node, &[]).await?;
            fixture.set_budget("held", 0).await?;
            let haulout = run(&fixture, &[]).await?;
            fixture.vcenter.enter_maintenance("esx1").await?;
            fixture.wait_for_log(words).await?;
            wait_described(&fixture, &node, words).await?;
            ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
            haulout.stop().await?;
        }
        Ok(())
    });
}

#[test]
fn vm_is_not_moved_back_and_forth_when_no_other_host_starts_it() {
    run_scenario(async {
        let fixture = fixture(
            "to-and-fro",
            &cluster("to-and-fro", &["esx1", "esx2", "esx9"], "esx9"),
        )
        .await?;
        for host in ["esx1", "esx2"] {
            // vSphere's admission control applies to the cluster: while one host is away, each other one refuses.
            let refused =
                FaultRule::task("PowerOnVM_Task", "InsufficientFailoverResourcesFault").to_host(host);
            fixture.vcenter.fault(&refused).await?;
        }
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx9").await?;
        let first = wait_for_call(&fixture, "RelocateVM_Task", "gpu1").await?;
        let entries = entries_during(&fixture, first.seq - 1, Duration::from_secs(15)).await?;
        let moves = entries.iter().filter(|it| it.is_call("RelocateVM_Task")).count();
        ensure!(
            moves <= 2,
            "{moves} relocations in 15 s; Haulout's log:\n{}",
            fixture.log_text()
        );
        fixture.vcenter.exit_maintenance("esx9").await?;
        runs_on(&fixture, "esx9").await?;
        haulout.stop().await
    });
}

#[test]
fn vm_comes_home_when_its_device_does_not_start_elsewhere() {
    run_scenario(async {
        let fixture = fixture("comes-home", &cluster("comes-home", &["esx5", "esx6"], "esx5")).await?;
        let refused = FaultRule::task("PowerOnVM_Task", "GenericVmConfigFault").to_host("esx6");
        fixture.vcenter.fault(&refused).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx5").await?;
        wait_for_fault(&fixture, "PowerOnVM_Task").await?;
        fixture.wait_in_maintenance("esx5").await?;
        fixture.vcenter.exit_maintenance("esx5").await?;
        runs_on(&fixture, "esx5").await?;
        haulout.stop().await
    });
}

#[test]
fn third_host_is_tried_when_two_refuse_the_relocation() {
    run_scenario(async {
        let names = ["esx1", "esx2", "esx3", "esx9"];
        let fixture = fixture("third", &cluster("third", &names, "esx9")).await?;
        for host in ["esx1", "esx2"] {
            let refused =
                FaultRule::task("RelocateVM_Task", "VirtualHardwareVersionNotSupported").to_host(host);
            fixture.vcenter.fault(&refused).await?;
        }
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx9").await?;
        runs_on(&fixture, "esx3").await?;
        let tries = fixture.calls("RelocateVM_Task", "gpu1").await?;
        ensure!(tries <= 3, "{tries} relocations were tried");
        haulout.stop().await
    });
}

#[test]
fn vm_moves_only_to_a_device_with_its_hardware_label() {
    run_scenario(async {
        let label = |label: &str| {
            [DeviceSpec {
                label: label.to_owned(),
                ..a40(1)
            }]
        };
        let (a, b) = (label("pool-a"), label("pool-b"));
        let mut spec = hosts(&[("esx1", &a), ("esx2", &b)]);
        let ours = gpu_vm("label", "gpu1", "esx1");
        spec.vms = vec![VmSpec {
            gpu: Gpu::Dynamic {
                vendor: 0x10de,
                device: A40,
                sub_device: 0,
                label: "pool-a".to_owned(),
            },
            ..ours
        }];
        let fixture = fixture("label", &spec).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("back in service; elsewhere: esx2 has no matching passthrough device with the hardware label pool-a")
            .await?;
        ensure!(fixture.calls("RelocateVM_Task", "gpu1").await? == 0);
        let with_label = HostSpec {
            devices: a.to_vec(),
            ..spare_host("esx3")
        };
        fixture.vcenter.add_host("c1", &with_label).await?;
        runs_on(&fixture, "esx3").await?;
        haulout.stop().await
    });
}

/// A further host with a GPU.
fn spare_host(name: &str) -> HostSpec {
    HostSpec {
        name: name.to_owned(),
        devices: vec![a40(1)],
        datastores: vec!["ds1".to_owned()],
        ..HostSpec::default()
    }
}

#[test]
fn vm_moves_only_to_a_host_with_its_networks() {
    run_scenario(async {
        let networks = vec!["k8s".to_owned(), "dvs/storage".to_owned()];
        let mut spec = cluster("networks", &["esx1", "esx2", "esx3"], "esx1");
        for (host, has) in spec.clusters[0].hosts.iter_mut().zip([0..2, 0..1, 1..2]) {
            host.networks = networks[has].to_vec();
        }
        spec.vms[0].networks = networks.clone();
        let fixture = fixture("networks", &spec).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        for refused in ["esx2 lacks network dvs/storage", "esx3 lacks network k8s"] {
            fixture.wait_for_log(refused).await?;
        }
        ensure!(fixture.calls("RelocateVM_Task", "gpu1").await? == 0);
        let with_networks = HostSpec {
            networks,
            ..spare_host("esx4")
        };
        fixture.vcenter.add_host("c1", &with_networks).await?;
        runs_on(&fixture, "esx4").await?;
        haulout.stop().await
    });
}

#[test]
fn vm_moves_only_to_a_host_that_can_access_its_datastore() {
    run_scenario(async {
        let fixture = fixture("datastore", &cluster("datastore", &["esx1", "esx2"], "esx1")).await?;
        fixture.vcenter.set_inaccessible("ds1", &["esx2"]).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_for_log("esx2 cannot access datastore ds1").await?;
        ensure!(fixture.calls("RelocateVM_Task", "gpu1").await? == 0);
        fixture.vcenter.set_inaccessible("ds1", &[]).await?;
        runs_on(&fixture, "esx2").await?;
        haulout.stop().await
    });
}

#[test]
fn vm_moves_only_where_the_cluster_allows_it() {
    run_scenario(async {
        let mut spec = cluster("allowed", &["esx1", "esx2", "esx3", "esx4"], "esx1");
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let rule = |name: &str, vms: &[&str], not_hosts: &[&str]| RuleSpec {
            name: name.to_owned(),
            vms: names(vms),
            not_hosts: names(not_hosts),
            ..RuleSpec::default()
        };
        let cluster = &mut spec.clusters[0];
        cluster.drs.enabled = true;
        cluster.failover_hosts = names(&["esx2"]);
        cluster.rules = vec![
            rule("licensed", &["gpu1"], &["esx3"]),
            rule("spread", &["gpu1", "other"], &[]),
        ];
        let ours = spec.vms[0].clone();
        spec.vms.push(VmSpec {
            name: "other".to_owned(),
            host: "esx4".to_owned(),
            ..VmSpec::default()
        });
        let members = vec![Member::new("allowed", "gpu1", &ours.uuid)];
        let fixture = Fixture::create(kube().await, "allowed", &spec, members, true).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        for refused in [
            "esx2 is a dedicated failover host of vSphere HA",
            "esx3 is excluded by the VM-Host rule licensed",
            "esx4 has a VM that the rule spread keeps apart from this one",
        ] {
            fixture.wait_for_log(refused).await?;
        }
        ensure!(fixture.calls("RelocateVM_Task", "gpu1").await? == 0);
        fixture.vcenter.power_off("other").await?;
        runs_on(&fixture, "esx4").await?;
        haulout.stop().await
    });
}

#[test]
fn vm_moves_only_to_a_host_with_enough_unreserved_memory() {
    run_scenario(async {
        let mut spec = cluster("reserved-memory", &["esx1", "esx2", "esx3"], "esx1");
        spec.clusters[0].hosts[1].memory_mb = 1_024;
        let ours = VmSpec {
            memory_mb: 2_048,
            ..spec.vms[0].clone()
        };
        let reserves = VmSpec {
            name: "other".to_owned(),
            host: "esx3".to_owned(),
            memory_mb: 3_072,
            reserved_mb: 3_072,
            ..VmSpec::default()
        };
        let members = vec![Member::new("reserved-memory", "gpu1", &ours.uuid)];
        spec.vms = vec![ours, reserves];
        let fixture = Fixture::create(kube().await, "reserved-memory", &spec, members, true).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("esx2 has less unreserved memory than the 2048 MiB that the VM reserves")
            .await?;
        ensure!(fixture.calls("RelocateVM_Task", "gpu1").await? == 0);
        fixture.vcenter.power_off("other").await?;
        runs_on(&fixture, "esx3").await?;
        haulout.stop().await
    });
}

#[test]
fn vm_moves_only_to_a_host_that_runs_its_hardware_version() {
    run_scenario(async {
        let mut spec = cluster("hardware", &["esx1", "esx2", "esx3"], "esx1");
        spec.vms[0].hardware_version = 21;
        for (host, version) in spec.clusters[0].hosts.iter_mut().zip([21, 19, 20]) {
            host.hardware_version = version;
        }
        let fixture = fixture("hardware", &spec).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("esx2 does not run the VM's hardware version vmx-21 (esx3 likewise)")
            .await?;
        ensure!(fixture.calls("RelocateVM_Task", "gpu1").await? == 0);
        let newer = HostSpec {
            name: "esx4".to_owned(),
            devices: vec![a40(1)],
            datastores: vec!["ds1".to_owned()],
            hardware_version: 21,
            ..HostSpec::default()
        };
        fixture.vcenter.add_host("c1", &newer).await?;
        runs_on(&fixture, "esx4").await?;
        haulout.stop().await
    });
}

/// `gpu1` on `esx1`, `gpu2` on `esx3`, and on `esx2` an unreadable VM that is not a node.
async fn beside_an_unreadable_vm(name: &str, orphan: VmSpec) -> anyhow::Result<(Fixture<'static>, String)> {
    let mut spec = cluster(name, &["esx1", "esx2", "esx3"], "esx1");
    spec.vms.push(gpu_vm(name, "gpu2", "esx3"));
    let fixture = fixture(name, &spec).await?;
    let orphan = VmSpec {
        name: "orphan".to_owned(),
        host: "esx2".to_owned(),
        gpu: Gpu::None,
        ..orphan
    };
    let orphan = fixture.vcenter.add_vm(&orphan).await?;
    Ok((fixture, orphan))
}

/// A maintenance of `gpu2` is not delayed by the request for `gpu1`.
async fn another_node_is_served(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    fixture.vcenter.enter_maintenance("esx3").await?;
    fixture
        .wait_in_maintenance("esx3")
        .await
        .context("another node's maintenance was not served")
}

#[test]
fn host_with_an_inaccessible_vm_is_named_and_holds_up_no_other_node() {
    run_scenario(async {
        let inaccessible = VmSpec {
            readable: Readable::NoConfig,
            powered_on: false,
            ..VmSpec::default()
        };
        let (fixture, orphan) = beside_an_unreadable_vm("unreadable", inaccessible).await?;
        let haulout = run(&fixture, &[]).await?;

        ask_to_move(&fixture, &fixture.node_name("gpu1"), None).await?;
        let objects: Api<NodeMaintenance> = Api::all(fixture.client());
        let seen = std::cell::RefCell::new(String::new());
        until(
            "the request to name the host and the VM",
            WAIT_TIMEOUT,
            async || {
                let status = objects.get("unreadable-move").await?.status.unwrap_or_default();
                let status = serde_json::to_string(&status)?;
                seen.borrow_mut().clone_from(&status);
                let names_vm = status.contains("orphan") || status.contains(&orphan);
                Ok((status.contains("esx2") && names_vm).then_some(()))
            },
        )
        .await
        .with_context(|| {
            format!(
                "its status is {}; Haulout's log:\n{}",
                seen.borrow(),
                fixture.log_text()
            )
        })?;
        another_node_is_served(&fixture).await?;
        haulout.stop().await
    });
}

#[test]
fn vm_outside_the_role_that_holds_no_device_does_not_block_its_host() {
    run_scenario(async {
        let denied = VmSpec {
            readable: Readable::Denied,
            ..VmSpec::default()
        };
        let (fixture, _) = beside_an_unreadable_vm("denied", denied).await?;
        let haulout = run(&fixture, &[]).await?;

        ask_to_move(&fixture, &fixture.node_name("gpu1"), None).await?;
        runs_on(&fixture, "esx2").await?;
        another_node_is_served(&fixture).await?;
        haulout.stop().await
    });
}

#[test]
fn request_beside_an_unreadable_vm_does_not_hold_up_other_nodes() {
    run_scenario(async {
        let mut spec = cluster("unread-queue", &["esx1", "esx2", "esx3"], "esx1");
        spec.vms.push(gpu_vm("unread-queue", "gpu2", "esx3"));
        let fixture = fixture("unread-queue", &spec).await?;
        let orphan = VmSpec {
            name: "orphan".to_owned(),
            host: "esx2".to_owned(),
            readable: Readable::NoConfig,
            ..VmSpec::default()
        };
        fixture.vcenter.add_vm(&orphan).await?;
        let haulout = run(&fixture, &[]).await?;

        ask_to_move(&fixture, &fixture.node_name("gpu1"), None).await?;
        fixture
            .wait_node(&fixture.node_name("gpu1"), "has an episode", |node| {
                haulout_lab::fixture::episode(node).is_some()
            })
            .await?;
        fixture.vcenter.enter_maintenance("esx3").await?;
        fixture.wait_in_maintenance("esx3").await?;
        haulout.stop().await
    });
}

#[test]
fn request_with_a_target_ends_although_drs_prefers_another_host() {
    run_scenario(async {
        let mut spec = with_drs(cluster("drs-prefers", &["esx1", "esx2", "esx3"], "esx2"));
        spec.drs_keeps_host = Some(false);
        let fixture = fixture("drs-prefers", &spec).await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;

        ask_to_move(&fixture, &node, Some("esx3")).await?;
        let objects: Api<NodeMaintenance> = Api::all(fixture.client());
        let ended = until("the request to end", WAIT_TIMEOUT, async || {
            let status = objects.get("drs-prefers-move").await?.status;
            Ok(status.filter(|status| status.ended_at.is_some()))
        })
        .await;
        let (off, on) = fixture.power_cycles("gpu1").await?;
        let status =
            ended.with_context(|| format!("off {off} times, on {on} times; {}", fixture.log_text()))?;
        fixture.wait_in_service(&node).await?;
        let (off, on) = fixture.power_cycles("gpu1").await?;
        ensure!(
            off == on && off <= 2,
            "off {off} times, on {on} times; Haulout's log:\n{}",
            fixture.log_text()
        );
        let state = fixture.vcenter.state().await?;
        let host = state.vm("gpu1").context("no VM")?.host.clone();
        let succeeded = status.phase.as_deref() == Some("Succeeded");
        ensure!(
            succeeded == (host == "esx3"),
            "the VM is on {host}, and the request says {:?}",
            status.phase
        );
        haulout.stop().await
    });
}

#[test]
fn wait_says_why_a_power_on_by_drs_failed() {
    run_scenario(async {
        let fixture = fixture(
            "drs-why",
            &with_drs(cluster("drs-why", &["esx1", "esx2"], "esx1")),
        )
        .await?;
        let refused = FaultRule::task("PowerOnVM_Task", "GenericVmConfigFault").on("gpu1");
        fixture.vcenter.fault(&refused).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        let is_multi = |it: &Entry| it.is_call("PowerOnMultiVM_Task");
        wait_for_entry(&fixture, "DRS to be asked", is_multi).await?;
        let words = "Module 'DevicePowerOn' power on failed";
        until("a wait to give the reason", WAIT_TIMEOUT, async || {
            let log = fixture.log_text();
            let is_logged = log
                .lines()
                .any(|line| line.contains("waiting for") && line.contains(words));
            Ok(is_logged.then_some(()))
        })
        .await
        .with_context(|| fixture.log_text())?;
        haulout.stop().await
    });
}

#[test]
fn vm_that_is_on_no_host_is_placed_in_its_cluster() {
    run_scenario(async {
        let mut spec = cluster("no-host", &["esx1", "esx2"], "esx1");
        // The other host is taken at first.
        spec.vms.push(VmSpec {
            name: "other".to_owned(),
            host: "esx2".to_owned(),
            gpu: Gpu::nvidia(A40),
            ..VmSpec::default()
        });
        let members = vec![Member::new("no-host", "gpu1", &spec.vms[0].uuid)];
        let fixture = Fixture::create(kube().await, "no-host", &spec, members, true).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("elsewhere: esx2 has no matching device free")
            .await?;
        fixture.vcenter.unassign_vm("gpu1").await?;
        fixture.vcenter.remove_vm("other").await?;
        runs_on(&fixture, "esx2").await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn static_vm_registered_on_another_host_by_a_person_comes_home() {
    run_scenario(async {
        // The address of its device is not there on the other host.
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(2)])]);
        spec.vms = vec![VmSpec {
            gpu: Gpu::Static {
                id: "0000:01:00.0".to_owned(),
            },
            ..gpu_vm("static-foreign", "gpu1", "esx1")
        }];
        let fixture = fixture("static-foreign", &spec).await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.move_vm("gpu1", "esx2").await?;
        fixture.wait_for_log("PoweringOn -> AwaitingHost").await?;

        fixture.vcenter.exit_maintenance("esx1").await?;
        runs_on(&fixture, "esx1").await?;
        let tries = fixture.calls("PowerOnVM_Task", "gpu1").await?;
        // There its device address is that of another host, so only the own host is asked.
        ensure!(tries == 1, "{tries} power-ons");
        haulout.stop().await
    });
}

#[test]
fn vm_with_an_sriov_network_card_moves_only_where_sriov_is_active() {
    run_scenario(async {
        let card = DeviceSpec::sriov;
        let mut spec = hosts(&[
            ("esx1", &[a40(1), card("0000:17:00.0")]),
            ("esx2", &[a40(1)]),
            ("esx3", &[a40(1), card("0000:18:00.0")]),
        ]);
        spec.vms = vec![VmSpec {
            sriov_card: "automatic".to_owned(),
            ..gpu_vm("sriov", "gpu1", "esx1")
        }];
        let fixture = fixture("sriov", &spec).await?;
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        runs_on(&fixture, "esx3").await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await?;

        // The card of the VM is on a function that no other host has.
        spec.vms = vec![VmSpec {
            sriov_card: "0000:17:00.0".to_owned(),
            ..gpu_vm("sriov-fixed", "gpu1", "esx1")
        }];
        let fixture = crate::fixture::fixture("sriov-fixed", &spec).await?;
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        let words =
            "esx2 has no network card with active SR-IOV at 0000:17:00.0, which the VM names (esx3 likewise)";
        fixture.wait_for_log(words).await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        runs_on(&fixture, "esx1").await?;
        ensure!(fixture.calls("RelocateVM_Task", "gpu1").await? == 0);
        haulout.stop().await
    });
}

#[test]
fn host_that_the_check_of_a_relocation_refuses_is_not_tried() {
    run_scenario(async {
        let spec = cluster("checked", &["esx1", "esx2", "esx3"], "esx1");
        let fixture = fixture("checked", &spec).await?;
        let refused = FaultRule::check_error("CannotAccessNetwork").to_host("esx2");
        fixture.vcenter.fault(&refused).await?;
        let warned = FaultRule::check_warning("CannotAccessVmDevice").to_host("esx3");
        fixture.vcenter.fault(&warned).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_for_log("tried to relocate: ").await?;
        fixture.wait_for_log("vCenter warns of the relocation: ").await?;
        runs_on(&fixture, "esx3").await?;
        let moves = fixture.calls("RelocateVM_Task", "gpu1").await?;
        ensure!(moves == 1, "{moves} relocations; none to esx2");
        let log = fixture.log_text();
        let told = log.lines().find(|line| line.contains("tried to relocate: "));
        ensure!(
            told.is_some_and(|line| line.contains("CannotAccessNetwork")),
            "{log}"
        );
        haulout.stop().await
    });
}

#[test]
fn relocation_goes_on_without_its_check_where_that_is_not_possible() {
    run_scenario(async {
        for (name, rule) in [
            (
                "uncheckable",
                FaultRule::soap("CheckRelocate_Task", "NoPermission"),
            ),
            (
                "check-fails",
                FaultRule::soap("CheckRelocate_Task", "MethodNotFound"),
            ),
        ] {
            let fixture = fixture(name, &cluster(name, &["esx1", "esx2"], "esx1")).await?;
            fixture.vcenter.fault(&rule).await?;
            let haulout = run(&fixture, &[]).await?;
            fixture.vcenter.enter_maintenance("esx1").await?;
            runs_on(&fixture, "esx2").await?;
            let told = "relocations are not checked before they begin: CheckRelocate_Task";
            ensure!(
                fixture.log_text().matches(told).count() == 1,
                "{}",
                fixture.log_text()
            );
            haulout.stop().await?;
        }
        Ok(())
    });
}

#[test]
fn cluster_agents_of_vcenter_hold_up_no_host_and_no_placement() {
    run_scenario(async {
        let names = ["esx1", "esx2"];
        let fixture = fixture("agents", &cluster("agents", &names, "esx1")).await?;
        for (number, host) in names.iter().enumerate() {
            let agent = VmSpec {
                name: format!("vCLS-{number}"),
                host: (*host).to_owned(),
                gpu: Gpu::None,
                readable: Readable::Denied,
                cluster_agent: true,
                ..VmSpec::default()
            };
            fixture.vcenter.add_vm(&agent).await?;
        }
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        runs_on(&fixture, "esx2").await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}
