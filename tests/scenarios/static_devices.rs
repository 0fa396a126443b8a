//! `STATIC_DEVICES=repoint`: a VM with a device at a fixed address gets the device of another host.

use anyhow::ensure;
use haulout_lab::fixture::Fixture;
use haulout_lab::vcenter::{FaultRule, Gpu, State, VmSpec};

use crate::assertions::wait_for_call;
use crate::crash_recovery::{Scenario, survives_a_kill_at_every_change};
use crate::fixture::{a40, fixture, gpu_vm, hosts, run, run_scenario, wait_described};
use crate::kubectl_plugin::types_with;

const REPOINT: (&str, &str) = ("STATIC_DEVICES", "repoint");

/// A VM with the device at `0000:<bus>:00.0` of its host.
pub fn static_vm(fixture: &str, name: &str, host: &str, bus: u8) -> VmSpec {
    VmSpec {
        gpu: Gpu::Static {
            id: format!("0000:{bus:02x}:00.0"),
        },
        ..gpu_vm(fixture, name, host)
    }
}

/// Waits until the VM runs on `host` with the device at `bus`, and its node is in service.
async fn runs_with(fixture: &Fixture<'_>, host: &str, bus: u8) -> anyhow::Result<()> {
    let address = format!("0000:{bus:02x}:00.0");
    let has = |state: &State| {
        let vm = state.vm("gpu1");
        vm.is_some_and(|vm| {
            vm.is_on() && vm.boots > 1 && vm.host == host && vm.device.as_ref() == Some(&address)
        })
    };
    let what = format!("gpu1 runs on {host} with the device at {address}");
    fixture.wait_vcenter(&what, has).await?;
    fixture.wait_in_service(&fixture.node_name("gpu1")).await?;
    Ok(())
}

#[test]
fn vm_with_a_fixed_device_moves_and_gets_a_device_of_the_other_host() {
    run_scenario(async {
        // On esx2 the device at the same address belongs to another VM.
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1), a40(3)])]);
        spec.vms = vec![
            static_vm("repoint", "gpu1", "esx1", 1),
            static_vm("repoint", "gpu2", "esx2", 1),
        ];
        let fixture = fixture("repoint", &spec).await?;
        let haulout = run(&fixture, &[REPOINT]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_for_log("its VM can move to esx2").await?;
        fixture.wait_in_maintenance("esx1").await?;
        runs_with(&fixture, "esx2", 3).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        ensure!(fixture.calls("ReconfigVM_Task", "gpu1").await? == 1);
        ensure!(fixture.power_cycles("gpu2").await? == (0, 0));
        haulout.stop().await
    });
}

#[test]
fn vm_with_a_fixed_device_gets_its_own_device_back_at_home() {
    run_scenario(async {
        // All hosts have devices at the same addresses, as in a rack of one model.
        let mut spec = hosts(&[("esx1", &[a40(1), a40(2)]), ("esx2", &[a40(1), a40(2)])]);
        spec.vms = vec![static_vm("repoint-home", "gpu1", "esx1", 2)];
        let fixture = fixture("repoint-home", &spec).await?;
        let node = fixture.node_name("gpu1");
        let refused = FaultRule::task("PowerOnVM_Task", "GenericVmConfigFault").to_host("esx2");
        fixture.vcenter.fault(&refused).await?;
        let haulout = run(&fixture, &[REPOINT]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.wait_for_log("PoweringOn -> AwaitingHost").await?;
        ensure!(fixture.calls("ReconfigVM_Task", "gpu1").await? == 1, "for esx2");
        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        runs_with(&fixture, "esx1", 2).await?;
        ensure!(fixture.calls("ReconfigVM_Task", "gpu1").await? == 2, "and back");
        haulout.stop().await
    });
}

#[test]
fn vm_waits_for_its_host_if_the_account_may_not_reconfigure_it() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)]), ("esx3", &[a40(1)])]);
        spec.vms = vec![static_vm("no-edit", "gpu1", "esx1", 1)];
        let fixture = fixture("no-edit", &spec).await?;
        let node = fixture.node_name("gpu1");
        let refused = FaultRule::soap("ReconfigVM_Task", "NoPermission");
        fixture.vcenter.fault(&refused).await?;
        let haulout = run(&fixture, &[REPOINT]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        wait_for_call(&fixture, "RelocateVM_Task", "gpu1").await?;
        let words = "tried to reconfigure the passthrough devices: ";
        fixture.wait_for_log(words).await?;
        wait_described(&fixture, &node, "NoPermission").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        runs_with(&fixture, "esx1", 1).await?;
        let moves = fixture.calls("RelocateVM_Task", "gpu1").await?;
        ensure!(moves == 2, "{moves} relocations: to one other host and back");
        haulout.stop().await
    });
}

#[test]
fn check_asks_for_the_right_to_repoint_devices_only_where_needed() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)])]);
        spec.vms = vec![static_vm("check-edit", "gpu1", "esx1", 1)];
        let fixture = fixture("check-edit", &spec).await?;
        let privilege = "VirtualMachine.Config.EditDevice";
        fixture.vcenter.withhold(&[(privilege, None)]).await?;
        let waits = types_with(&fixture, &["check"], &[]).await?;
        ensure!(waits.code == 0 && !waits.stdout.contains(privilege), "{waits}");
        let repoints = types_with(&fixture, &["check"], &[REPOINT]).await?;
        let missing = format!("× {privilege} is missing on gpu1");
        ensure!(
            repoints.code == 4 && repoints.stdout.contains(&missing),
            "{repoints}"
        );
        ensure!(
            repoints.stdout.contains("or set STATIC_DEVICES=wait"),
            "{repoints}"
        );
        Ok(())
    });
}

#[test]
fn kill_at_every_change_of_an_episode_that_repoints_a_device() {
    survives_a_kill_at_every_change(Scenario::Repoint, "kill-repoint");
}
