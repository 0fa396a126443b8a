//! A maintenance of the host: the VM waits for it, moves to another host, or is placed by DRS.

use anyhow::ensure;
use haulout_lab::fixture::{annotation, boot_id, is_cordoned};
use haulout_lab::vcenter::{ClusterSpec, DeviceSpec, DrsAutomation, DrsSpec, Gpu, VmSpec};

use crate::fixture::{A40, a40, fixture, gpu_vm, hosts, kube, kubectl, one_node, run, run_scenario};
use haulout_lab::fixture::{Fixture, Member};

#[test]
fn node_without_another_host_waits_for_its_own() {
    run_scenario(async {
        let fixture = one_node("waits").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        let boot_before = boot_id(&fixture.node(&node).await?);
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        let drained = fixture.wait_state(&node, Some("draining")).await?;
        ensure!(is_cordoned(&drained), "cordon and begin are one write");
        ensure!(annotation(&drained, "host") == Some("esx1"));

        let off = fixture.wait_state(&node, Some("powered-off")).await?;
        ensure!(is_cordoned(&off));
        ensure!(
            fixture.pods_on(&node).await?.is_empty(),
            "the pod was evicted before the power-off"
        );
        fixture.wait_in_maintenance("esx1").await?;
        fixture
            .wait_for_log("waiting for host esx1, which is in maintenance mode, to be back in service")
            .await?;

        fixture.vcenter.exit_maintenance("esx1").await?;
        let back = fixture.wait_in_service(&node).await?;
        ensure!(boot_id(&back) != boot_before, "back on another boot");
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        ensure!(fixture.calls("PowerOnVM_Task", "gpu1").await? == 1, "asked once");
        for method in ["EnterMaintenanceMode_Task", "ExitMaintenanceMode_Task"] {
            ensure!(fixture.calls(method, "esx1").await? == 0, "it called {method}");
        }
        haulout.stop().await
    });
}

#[test]
fn node_moves_only_to_the_host_with_a_free_matching_device() {
    run_scenario(async {
        let flex = DeviceSpec {
            vendor: 0x8086,
            device: 0x56c0,
            ..a40(1)
        };
        let mut spec = hosts(&[
            ("esx1", &[a40(1)]),
            ("esx-taken", &[a40(1)]),
            ("esx-other-vendor", &[flex]),
            ("esx-free", &[a40(1)]),
        ]);
        let foreign = VmSpec {
            name: "somebody-elses".to_owned(),
            host: "esx-taken".to_owned(),
            gpu: Gpu::nvidia(A40),
            ..VmSpec::default()
        };
        let ours = gpu_vm("moves", "gpu1", "esx1");
        let members = vec![Member::new("moves", "gpu1", &ours.uuid)];
        spec.vms = vec![ours, foreign];
        let fixture = Fixture::create(kube().await, "moves", &spec, members, true).await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        let migrated = fixture.wait_state(&node, Some("migrated")).await?;
        ensure!(annotation(&migrated, "migrated-to-host") == Some("esx-free"));
        fixture.wait_in_service(&node).await?;
        let state = fixture.vcenter.state().await?;
        ensure!(state.vm("gpu1").unwrap().host == "esx-free");
        ensure!(
            state.host("esx1").unwrap().in_maintenance,
            "its host got its maintenance"
        );
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        ensure!(fixture.calls("RelocateVM_Task", "gpu1").await? == 1);
        ensure!(
            fixture.power_cycles("somebody-elses").await? == (0, 0),
            "nobody else was touched"
        );
        haulout.stop().await
    });
}

#[test]
fn fully_automated_drs_places_the_vm() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        spec.clusters[0].drs = DrsSpec {
            enabled: true,
            behavior: DrsAutomation::FullyAutomated,
            ..DrsSpec::default()
        };
        spec.vms = vec![gpu_vm("drs", "gpu1", "esx1")];
        let fixture = fixture("drs", &spec).await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_for_log("-> PoweringOn").await?;
        fixture.wait_in_service(&node).await?;
        let state = fixture.vcenter.state().await?;
        ensure!(
            state.vm("gpu1").unwrap().host == "esx2",
            "DRS placed it on the other host"
        );
        ensure!(
            fixture.calls("RelocateVM_Task", "gpu1").await? == 0,
            "Haulout did not move it itself"
        );
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn vm_moved_into_a_fully_automated_cluster_is_placed_by_drs() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)])]);
        let automated = hosts(&[("esx2", &[a40(1)]), ("esx3", &[a40(1)])]);
        spec.clusters
            .extend(automated.clusters.into_iter().map(|cluster| ClusterSpec {
                name: "c2".to_owned(),
                drs: DrsSpec {
                    enabled: true,
                    behavior: DrsAutomation::FullyAutomated,
                    ..DrsSpec::default()
                },
                ..cluster
            }));
        spec.vms = vec![gpu_vm("came", "gpu1", "esx1")];
        let fixture = fixture("came", &spec).await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.move_vm("gpu1", "esx2").await?;
        fixture.vcenter.enter_maintenance("esx2").await?;
        fixture.wait_for_log("-> PoweringOn").await?;
        fixture.wait_in_service(&node).await?;
        let state = fixture.vcenter.state().await?;
        ensure!(
            state.vm("gpu1").unwrap().host == "esx3",
            "DRS placed it on the other host of its cluster"
        );
        ensure!(fixture.calls("RelocateVM_Task", "gpu1").await? == 0);
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn vm_with_a_device_at_a_fixed_address_stays_on_its_host() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        let fixed = Gpu::Static {
            id: "0000:01:00.0".to_owned(),
        };
        spec.vms = vec![VmSpec {
            gpu: fixed,
            ..gpu_vm("static", "gpu1", "esx1")
        }];
        let fixture = fixture("static", &spec).await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log(
                "to be back in service; elsewhere: esx2 would need the VM's fixed device address re-pointed",
            )
            .await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.calls("RelocateVM_Task", "gpu1").await? == 0);
        haulout.stop().await
    });
}

#[test]
fn waiting_node_takes_a_device_that_becomes_free_elsewhere() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        let ours = gpu_vm("frees", "gpu1", "esx1");
        let foreign = VmSpec {
            name: "somebody-elses".to_owned(),
            host: "esx2".to_owned(),
            gpu: Gpu::nvidia(A40),
            ..VmSpec::default()
        };
        let members = vec![Member::new("frees", "gpu1", &ours.uuid)];
        spec.vms = vec![ours, foreign];
        let fixture = Fixture::create(kube().await, "frees", &spec, members, true).await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("elsewhere: esx2 has no matching device free")
            .await?;
        fixture.vcenter.remove_vm("somebody-elses").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.vcenter.state().await?.vm("gpu1").unwrap().host == "esx2");
        haulout.stop().await
    });
}

#[test]
fn node_whose_new_host_has_no_room_goes_to_another() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)]), ("esx3", &[a40(1)])]);
        spec.vms = vec![gpu_vm("no-room", "gpu1", "esx1")];
        let fixture = fixture("no-room", &spec).await?;
        let node = fixture.node_name("gpu1");
        let full = haulout_lab::vcenter::FaultRule::task("PowerOnVM_Task", "InsufficientResourcesFault");
        // It may pass, so the host is tried for some time first.
        fixture.vcenter.fault(&full.times(6)).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_for_log("PoweringOn -> AwaitingHost").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(
            fixture.calls("RelocateVM_Task", "gpu1").await? == 2,
            "to the first, and on to the second"
        );
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn device_that_a_waiting_node_will_need_is_not_free_for_another() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        spec.vms = vec![
            gpu_vm("wants-back", "gpu1", "esx1"),
            gpu_vm("wants-back", "gpu2", "esx2"),
        ];
        let fixture = fixture("wants-back", &spec).await?;
        let (first, second) = (fixture.node_name("gpu1"), fixture.node_name("gpu2"));
        let haulout = run(&fixture, &[("MAX_CONCURRENT_DRAINS", "2")]).await?;

        for host in ["esx1", "esx2"] {
            fixture.vcenter.enter_maintenance(host).await?;
        }
        for host in ["esx1", "esx2"] {
            fixture.wait_in_maintenance(host).await?;
        }
        fixture.wait_phase(&first, "awaitingHost").await?;
        fixture.wait_phase(&second, "awaitingHost").await?;
        // The host that is back first is not given to the other waiting VM.
        fixture.vcenter.exit_maintenance("esx2").await?;
        fixture.wait_in_service(&second).await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&first).await?;
        let state = fixture.vcenter.state().await?;
        ensure!(state.vm("gpu1").unwrap().host == "esx1" && state.vm("gpu2").unwrap().host == "esx2");
        haulout.stop().await
    });
}

#[test]
fn host_that_stays_entering_although_the_vm_is_off_is_reported() {
    run_scenario(async {
        let fixture = one_node("stays-entering").await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[("TEST_TIMINGS", "power_off=5")]).await?;
        fixture.vcenter.enter_maintenance_moving_stopped("esx1").await?;
        fixture.wait_state(&node, Some("powered-off")).await?;
        fixture
            .wait_for_log("host esx1 to enter maintenance mode, although its VM is off")
            .await?;
        fixture.wait_for_log("Move powered-off VMs").await?;

        // The advice of the message.
        fixture.vcenter.cancel_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn vm_that_vcenter_moved_while_it_was_off_is_brought_home() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        spec.clusters[0].drs = DrsSpec {
            enabled: true,
            behavior: DrsAutomation::FullyAutomated,
            ..DrsSpec::default()
        };
        spec.vms = vec![gpu_vm("moved-while-off", "gpu1", "esx1")];
        let fixture = fixture("moved-while-off", &spec).await?;
        let node = fixture.node_name("gpu1");
        kubectl(
            &fixture,
            &["annotate", "node", &node, "haulout.dev/strategy=wait"],
        )
        .await?;
        let haulout = run(&fixture, &[]).await?;
        fixture.vcenter.enter_maintenance_moving_stopped("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture
            .wait_for_log("waiting for host esx1, which is in maintenance mode, to be back in service")
            .await?;
        let moved = fixture.vcenter.state().await?;
        ensure!(
            moved.vm("gpu1").unwrap().host == "esx2",
            "DRS has registered it there"
        );

        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        let back = fixture.vcenter.state().await?;
        ensure!(back.vm("gpu1").unwrap().host == "esx1");
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}
