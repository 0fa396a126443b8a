//! A Node is bound to its VM by UUID.

use std::time::Duration;

use anyhow::ensure;
use haulout_lab::fixture::{Fixture, Member, episode, is_ready};
use haulout_lab::vcenter::{EntryKind, Gpu};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::DeleteParams;

use crate::assertions::{entries_during, journal_end, wait_for_power_off};
use crate::fixture::{a40, fixture, gpu_vm, hosts, kube, run, run_scenario};
use crate::kubectl_plugin::types_with;

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
        fixture.wait_in_maintenance("esx1").await?;
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
fn vm_outside_the_scope_does_not_exist_for_haulout() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        let mut ours = gpu_vm("scoped", "gpu1", "esx1");
        let mut foreign = gpu_vm("scoped", "gpu2", "esx2");
        ours.folder = "tenant-a".to_owned();
        foreign.folder = "tenant-b".to_owned();
        let members = vec![
            Member::new("scoped", "gpu1", &ours.uuid),
            Member::new("scoped", "gpu2", &foreign.uuid),
        ];
        let foreign_uuid = foreign.uuid.clone();
        spec.vms = vec![ours, foreign];
        let fixture = Fixture::create(kube().await, "scoped", &spec, members, true).await?;
        let node = fixture.node_name("gpu1");
        let scope = [("VCENTER_SCOPE", "/DC0/vm/tenant-a,/DC0/vm/no-such-folder")];
        let haulout = run(&fixture, &scope).await?;

        fixture.vcenter.enter_maintenance("esx2").await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.wait_for_log("its VM is outside VCENTER_SCOPE").await?;
        let state = fixture.vcenter.state().await?;
        ensure!(
            state.vm(&foreign_uuid).unwrap().is_on(),
            "the VM of another tenant still runs"
        );
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        let checked = types_with(&fixture, &["check"], &scope).await?;
        ensure!(
            checked.stdout.contains("its VM is outside VCENTER_SCOPE"),
            "{checked}"
        );
        haulout.stop().await
    });
}

#[test]
fn vm_without_the_attribute_of_its_cluster_does_not_exist_for_haulout() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        spec.vms = vec![gpu_vm("marked", "gpu1", "esx1"), gpu_vm("marked", "gpu2", "esx2")];
        let fixture = fixture("marked", &spec).await?;
        fixture
            .vcenter
            .give_attribute("k8s cluster", "gpu1", "tenant-a")
            .await?;
        let haulout = run(&fixture, &[("VCENTER_SCOPE", "k8s cluster=tenant-a")]).await?;

        fixture.vcenter.enter_maintenance("esx2").await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.wait_for_log("its VM is outside VCENTER_SCOPE").await?;
        ensure!(
            fixture.vcenter.state().await?.vm("gpu2").unwrap().is_on(),
            "the VM without the attribute still runs"
        );
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&fixture.node_name("gpu1")).await?;
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
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn node_whose_uuid_turns_to_another_vm_is_parked_and_neither_vm_stops() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1), a40(2)])]);
        let ours = gpu_vm("replaced", "gpu1", "esx1");
        let other = gpu_vm("replaced", "other", "esx1");
        let mut member = Member::new("replaced", "gpu1", &ours.uuid);
        // It would outweigh the UUID that the kubelet reports.
        member.machine.provider_id = None;
        let (ours_uuid, other_uuid) = (ours.uuid.clone(), other.uuid.clone());
        spec.vms = vec![ours, other];
        let fixture = Fixture::create(kube().await, "replaced", &spec, vec![member], true).await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "draining").await?;
        fixture
            .wait_for_log("held by PodDisruptionBudget held-budget")
            .await?;
        fixture.kubelet("gpu1")?.report_system_uuid(&other_uuid);
        let parked = episode(&fixture.wait_phase(&node, "parked").await?).unwrap_or_default();
        let reason = parked.pointer("/phase/parked/reason/kind");
        ensure!(reason == Some(&serde_json::json!("vmReplaced")), "{parked:#}");
        // From now on only the identity keeps the drain and the shutdown from going on.
        let end = journal_end(&fixture).await?;
        fixture.set_budget("held", 1).await?;
        let entries = entries_during(&fixture, end, Duration::from_secs(5)).await?;
        let call = entries
            .iter()
            .find(|it| it.kind == EntryKind::Call && ["gpu1", "other"].contains(&it.object.as_str()));
        ensure!(call.is_none(), "{call:#?}");

        fixture.kubelet("gpu1")?.report_system_uuid(&ours_uuid);
        wait_for_power_off(&fixture, "gpu1").await?;
        // The other VM keeps the host from entering.
        fixture.vcenter.cancel_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        let journal = fixture.vcenter.journal().await?;
        let on_other = journal
            .iter()
            .find(|it| it.kind == EntryKind::Call && it.object == "other");
        ensure!(on_other.is_none(), "{on_other:#?}");
        haulout.stop().await
    });
}

#[test]
fn guest_is_not_shut_down_under_the_ready_node_of_a_machine_that_was_renamed() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)])]);
        let vm = gpu_vm("renamed-node", "gpu1", "esx1");
        let mut renamed = Member::new("renamed-node", "gpu1-fqdn", &vm.uuid);
        // The first Node has the VM, whichever is registered first.
        renamed.machine.provider_id = None;
        let members = vec![Member::new("renamed-node", "gpu1", &vm.uuid), renamed];
        spec.vms = vec![vm];
        let fixture = Fixture::create(kube().await, "renamed-node", &spec, members, true).await?;
        let (dead, alive) = (fixture.node_name("gpu1"), fixture.node_name("gpu1-fqdn"));
        fixture.kubelet("gpu1")?.stop();
        fixture
            .wait_node(&dead, "is not Ready", |node| !is_ready(node))
            .await?;
        fixture.add_pod("held", &alive, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log(&format!("and {alive} has the same VM, which is not stopped"))
            .await?;
        fixture
            .wait_for_log(&format!(
                "if that is an earlier name of this machine, delete Node {dead}"
            ))
            .await?;
        ensure!(fixture.calls("ShutdownGuest", "gpu1").await? == 0);

        let nodes: Api<Node> = Api::all(fixture.client());
        nodes.delete(&dead, &DeleteParams::default()).await?;
        fixture
            .wait_for_log("held by PodDisruptionBudget held-budget")
            .await?;
        ensure!(fixture.calls("ShutdownGuest", "gpu1").await? == 0);
        fixture.set_budget("held", 1).await?;
        fixture.wait_in_maintenance("esx1").await?;
        haulout.stop().await
    });
}
