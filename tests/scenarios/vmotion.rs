//! VMs that vCenter can move to another host while they run: with a vGPU, or without a passthrough device.

use std::time::Duration;

use anyhow::ensure;
use haulout_lab::fixture::{Fixture, is_cordoned};
use haulout_lab::vcenter::{Delays, DrsAutomation, Gpu, State};

use crate::assertions::{clock, cordons, node_writes};
use crate::fixture::{a40, fixture, gpu_vm, hosts, run, run_scenario};
use crate::kubectl_plugin::{asks, types_with};
use crate::status_page::SERVED;

/// Two hosts with room for one VM with a vGPU each, and one such VM. DRS vMotions it after `vmotion_ms`, or not at all.
async fn vgpu_node(name: &str, vmotion_ms: u32) -> anyhow::Result<Fixture<'static>> {
    let mut spec = hosts(&[("esx1", &[]), ("esx2", &[])]);
    let cluster = &mut spec.clusters[0];
    cluster.drs.enabled = true;
    cluster.drs.behavior = DrsAutomation::FullyAutomated;
    for host in &mut cluster.hosts {
        host.vgpus = 1;
        host.vgpu_profiles = vec!["grid_a40-48c".to_owned()];
    }
    spec.delays = Delays {
        vmotion_ms,
        relocate_ms: 4_000,
        ..spec.delays
    };
    let mut vm = gpu_vm(name, "gpu1", "esx1");
    vm.gpu = Gpu::Vgpu {
        profile: "grid_a40-48c".to_owned(),
    };
    spec.vms = vec![vm];
    fixture(name, &spec).await
}

fn is_on(host: &str) -> impl Fn(&State) -> bool {
    move |state| state.vm("gpu1").is_some_and(|vm| vm.host == host)
}

#[test]
fn node_is_left_alone_while_vcenter_moves_its_vgpu_vm() {
    run_scenario(async {
        let fixture = vgpu_node("vgpu-moves", 1_000).await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[("VMOTION_GRACE_SECONDS", "3")]).await?;
        let began = clock();
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "queued").await?;
        // The vMotion ends after the grace, and is awaited because it is under way.
        fixture.wait_vcenter("the VM is on esx2", is_on("esx2")).await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        fixture
            .wait_for_log("vCenter moved the VM to another host by vMotion")
            .await?;
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        let writes = node_writes(&fixture, &node, began).await?;
        ensure!(cordons(&writes).is_empty(), "{writes:?}");
        haulout.stop().await
    });
}

#[test]
fn vgpu_node_is_drained_if_vcenter_does_not_move_its_vm() {
    run_scenario(async {
        let fixture = vgpu_node("vgpu-stays", 0).await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[("VMOTION_GRACE_SECONDS", "3"), SERVED]).await?;
        let plan = asks(&fixture, &["plan", "esx1"]).await?;
        let note = "it has a vGPU: vCenter may move it by vMotion";
        ensure!(plan.stdout.contains(note), "{plan}");
        let clicked = tokio::time::Instant::now();
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("vCenter to move its VM, which has a vGPU, by vMotion")
            .await?;
        fixture.wait_node(&node, "it is cordoned", is_cordoned).await?;
        ensure!(
            clicked.elapsed() >= Duration::from_secs(3),
            "{:?}",
            clicked.elapsed()
        );
        fixture.wait_vcenter("the VM is on esx2", is_on("esx2")).await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn node_without_a_passthrough_device_is_left_to_vcenter_if_so_set() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[])]);
        spec.clusters[0].drs.enabled = true;
        spec.clusters[0].drs.behavior = DrsAutomation::FullyAutomated;
        let mut plain = gpu_vm("unpinned", "cpu1", "esx1");
        plain.gpu = Gpu::None;
        spec.vms = vec![gpu_vm("unpinned", "gpu1", "esx1"), plain];
        let fixture = fixture("unpinned", &spec).await?;
        let node = fixture.node_name("cpu1");
        let setting = [("VMOTION_GRACE_SECONDS", "unlimited")];
        let haulout = run(&fixture, &[setting[0], SERVED]).await?;
        let plan = asks(&fixture, &["plan", "esx1"]).await?;
        let note = "maintenance of its host leaves it to vCenter";
        ensure!(plan.stdout.matches(note).count() == 1, "{plan}");

        let began = clock();
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        let moved = |state: &State| state.vm("cpu1").is_some_and(|vm| vm.host == "esx2");
        ensure!(moved(&fixture.vcenter.state().await?), "vCenter moved the VM");
        ensure!(fixture.power_cycles("cpu1").await? == (0, 0));
        ensure!(node_writes(&fixture, &node, began).await?.is_empty());
        ensure!(fixture.calls("ShutdownGuest", "gpu1").await? == 1);

        types_with(&fixture, &["drain", &node, "--wait=false"], &setting).await?;
        fixture
            .wait_node(&node, "a request cordons it", is_cordoned)
            .await?;
        haulout.stop().await
    });
}
