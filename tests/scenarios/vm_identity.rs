//! A Node is bound to its VM by UUID.

use anyhow::ensure;
use haulout_lab::fixture::{Fixture, Member};
use haulout_lab::vcenter::Gpu;

use crate::fixture::{a40, fixture, gpu_vm, hosts, in_maintenance, kube, run, run_scenario};

#[test]
fn of_two_vms_of_one_name_only_the_one_with_the_uuid_is_touched() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        let ours = gpu_vm("namesake", "gpu1", "esx1");
        let mut other = gpu_vm("namesake-other", "gpu1", "esx2");
        other.folder = "tenants".to_owned();
        let members = vec![Member::new("namesake", "gpu1", &ours.uuid)];
        let (ours_uuid, other_uuid) = (ours.uuid.clone(), other.uuid.clone());
        spec.vms = vec![ours, other];
        let fixture = Fixture::create(kube().await, "namesake", &spec, members, true).await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx2").await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        in_maintenance(&fixture, "esx1").await?;
        let state = fixture.vcenter.state().await?;
        ensure!(state.vm(&other_uuid).unwrap().is_on(), "the namesake still runs");
        ensure!(!state.vm(&ours_uuid).unwrap().is_on());
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(
            fixture.vcenter.state().await?.vm(&other_uuid).unwrap().boots
                == state.vm(&other_uuid).unwrap().boots
        );
        haulout.stop().await
    });
}

#[test]
fn vm_cloned_during_the_drain_is_noticed_before_power_off() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[])]);
        spec.vms = vec![gpu_vm("cloned", "gpu1", "esx1")];
        let fixture = fixture("cloned", &spec).await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        // No reread helps the scenario.
        let haulout = run(&fixture, &[("POLL_INTERVAL_SECONDS", "3600")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "draining").await?;
        fixture.wait_for_log("held").await?;
        let mut clone = gpu_vm("cloned", "gpu1", "esx2");
        "clone".clone_into(&mut clone.name);
        clone.gpu = Gpu::default();
        fixture.vcenter.add_vm(&clone).await?;
        fixture.set_budget("held", 1).await?;
        fixture
            .wait_for_log("2 VMs match this node; none is changed")
            .await?;
        ensure!(fixture.calls("ShutdownGuest", "gpu1").await? == 0);

        // The episode continues when the clone is gone.
        fixture.vcenter.remove_vm("clone").await?;
        in_maintenance(&fixture, "esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}
