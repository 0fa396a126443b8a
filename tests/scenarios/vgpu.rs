//! VMs with a vGPU where DRS does not place them: Haulout moves them by the profiles of the hosts.

use anyhow::ensure;
use haulout_lab::fixture::{Fixture, Member};
use haulout_lab::vcenter::{Gpu, HostSpec, State, VmSpec};

use crate::fixture::{gpu_vm, hosts, kube, run, run_scenario, wait_described};

/// No VM is moved by vMotion here.
const AT_ONCE: (&str, &str) = ("VMOTION_GRACE_SECONDS", "0");

fn vgpu(gib: u32) -> Gpu {
    Gpu::Vgpu {
        profile: format!("grid_a40-{gib}c"),
    }
}

/// The VM of a node with a whole GPU on `esx1`; `esx2` offers smaller vGPUs only, and the GPU of `esx3` has a VM of somebody else.
/// Each of `more` has a free GPU.
async fn vgpu_node(name: &str, more: &[&str]) -> anyhow::Result<Fixture<'static>> {
    let names: Vec<&str> = ["esx1", "esx2", "esx3"].iter().chain(more).copied().collect();
    let all: Vec<(&str, &[_])> = names.iter().map(|name| (*name, &[][..])).collect();
    let mut spec = hosts(&all);
    for host in &mut spec.clusters[0].hosts {
        let offers: &[u32] = if host.name == "esx2" { &[8, 24] } else { &[24, 48] };
        let profiles = offers.iter().map(|gib| format!("grid_a40-{gib}c"));
        *host = HostSpec {
            vgpus: 1,
            vgpu_profiles: profiles.collect(),
            ..host.clone()
        };
    }
    let ours = VmSpec {
        gpu: vgpu(48),
        ..gpu_vm(name, "gpu1", "esx1")
    };
    let other = VmSpec {
        name: "other".to_owned(),
        host: "esx3".to_owned(),
        gpu: vgpu(24),
        ..VmSpec::default()
    };
    let members = vec![Member::new(name, "gpu1", &ours.uuid)];
    spec.vms = vec![ours, other];
    Fixture::create(kube().await, name, &spec, members, true).await
}

fn runs_on(host: &str) -> impl Fn(&State) -> bool {
    move |state| {
        state
            .vm("gpu1")
            .is_some_and(|vm| vm.is_on() && vm.boots > 1 && vm.host == host)
    }
}

#[test]
fn vgpu_vm_is_moved_to_a_host_with_its_profile_free() {
    run_scenario(async {
        let fixture = vgpu_node("vgpu-placed", &["esx4"]).await?;
        let haulout = run(&fixture, &[AT_ONCE]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_vcenter("gpu1 runs on esx4", runs_on("esx4")).await?;
        fixture.wait_in_service(&fixture.node_name("gpu1")).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        ensure!(fixture.calls("RelocateVM_Task", "gpu1").await? == 1);
        haulout.stop().await
    });
}

#[test]
fn wait_names_the_vgpu_profile_that_no_other_host_has_free() {
    run_scenario(async {
        let fixture = vgpu_node("vgpu-waits", &[]).await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[AT_ONCE]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        let reasons = [
            "esx2 has no vGPU profile grid_a40-48c",
            "esx3 has no vGPU grid_a40-48c free",
        ];
        for reason in reasons {
            fixture.wait_for_log(reason).await?;
        }
        fixture.wait_for_log("-> AwaitingHost").await?;
        for reason in reasons {
            wait_described(&fixture, &node, reason).await?;
        }
        ensure!(fixture.calls("RelocateVM_Task", "gpu1").await? == 0);
        fixture.vcenter.remove_vm("other").await?;
        fixture.wait_vcenter("gpu1 runs on esx3", runs_on("esx3")).await?;
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}
