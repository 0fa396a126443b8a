//! What people do to a node is theirs: a cordon, a VM of the same name, a setting.

use anyhow::ensure;
use haulout_lab::stage::{Member, Stage, annotation, is_cordoned, is_ready};
use haulout_lab::vcenter::Gpu;

use crate::story::{a40, gpu_vm, hosts, in_maintenance, kube, one_node, run, stage, tell};

#[test]
fn s06_a_persons_cordon_from_before_stays() {
    tell(async {
        let stage = one_node("theirs").await?;
        let node = stage.node_name("gpu1");
        stage.person_cordons(&node, true).await?;
        let haulout = run(&stage, &[]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        in_maintenance(&stage, "esx1").await?;
        stage.vcenter.exit_maintenance("esx1").await?;
        let back = stage
            .wait_node(&node, "has no episode and is Ready", |node| {
                annotation(node, "episode").is_none() && is_ready(node)
            })
            .await?;
        ensure!(is_cordoned(&back), "the person's cordon stays");
        ensure!(stage.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn a_persons_cordon_set_during_the_episode_stays() {
    tell(async {
        let stage = one_node("theirs-later").await?;
        let node = stage.node_name("gpu1");
        let haulout = run(&stage, &[]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_phase(&node, "awaitingHost").await?;
        // A cordon of a cordoned node changes nothing that the API shows, so it takes both writes; and Haulout cordons again between
        // them unless it stands still.
        haulout.freeze()?;
        stage.person_cordons(&node, false).await?;
        stage.person_cordons(&node, true).await?;
        haulout.thaw()?;
        stage.vcenter.exit_maintenance("esx1").await?;
        let back = stage
            .wait_node(&node, "has no episode and is Ready", |node| {
                annotation(node, "episode").is_none() && is_ready(node)
            })
            .await?;
        ensure!(is_cordoned(&back), "the person's cordon stays");
        haulout.stop().await
    });
}

#[test]
fn s07_two_hosts_at_once_are_drained_one_after_the_other_in_the_order_of_the_clicks() {
    tell(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        spec.vms = vec![gpu_vm("two", "gpu1", "esx1"), gpu_vm("two", "gpu2", "esx2")];
        let stage = stage("two", &spec).await?;
        let (first, second) = (stage.node_name("gpu2"), stage.node_name("gpu1"));
        stage.add_pod("held", &first, &[]).await?;
        stage.set_budget("held", 0).await?;
        let haulout = run(&stage, &[("MAX_CONCURRENT_DRAINS", "1")]).await?;

        stage.vcenter.enter_maintenance("esx2").await?;
        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_phase(&first, "draining").await?;
        let queued = stage.wait_phase(&second, "queued").await?;
        ensure!(!is_cordoned(&queued), "a queued node is left in service");
        stage
            .wait_said(&format!("at most 1 drained at once, and {first} comes first"))
            .await?;
        stage.set_budget("held", 1).await?;
        for host in ["esx1", "esx2"] {
            in_maintenance(&stage, host).await?;
        }
        stage.vcenter.exit_maintenance("esx1").await?;
        stage.vcenter.exit_maintenance("esx2").await?;
        stage.wait_in_service(&first).await?;
        stage.wait_in_service(&second).await?;

        // By the audit log, the second was cordoned only when the first no longer drained.
        let patches: Vec<(String, String)> = stage
            .audit()
            .await?
            .into_iter()
            .filter(|event| event.verb == "patch" && event.resource == "nodes" && event.code == 200)
            .filter_map(|event| {
                let state = event
                    .object?
                    .pointer("/metadata/annotations")?
                    .get("vsphere-maintenance.boeye.net/state")?
                    .as_str()
                    .map(str::to_owned);
                Some((event.name?, state.unwrap_or_default()))
            })
            .collect();
        let at = |node: &str, state: &str| patches.iter().position(|(name, it)| name == node && it == state);
        ensure!(at(&first, "powered-off") < at(&second, "draining"), "{patches:?}");
        haulout.stop().await
    });
}

#[test]
fn s17_of_two_vms_of_one_name_the_uuid_decides_and_the_other_is_never_touched() {
    tell(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        let ours = gpu_vm("namesake", "gpu1", "esx1");
        let mut other = gpu_vm("namesake-other", "gpu1", "esx2");
        other.folder = "tenants".to_owned();
        let members = vec![Member::new("namesake", "gpu1", &ours.uuid)];
        let (ours_uuid, other_uuid) = (ours.uuid.clone(), other.uuid.clone());
        spec.vms = vec![ours, other];
        let stage = Stage::set(kube().await, "namesake", &spec, members, true).await?;
        let node = stage.node_name("gpu1");
        let haulout = run(&stage, &[]).await?;

        stage.vcenter.enter_maintenance("esx2").await?;
        stage.vcenter.enter_maintenance("esx1").await?;
        in_maintenance(&stage, "esx1").await?;
        let state = stage.vcenter.state().await?;
        ensure!(state.vm(&other_uuid).unwrap().is_on(), "the namesake still runs");
        ensure!(!state.vm(&ours_uuid).unwrap().is_on());
        stage.vcenter.exit_maintenance("esx1").await?;
        stage.wait_in_service(&node).await?;
        ensure!(
            stage.vcenter.state().await?.vm(&other_uuid).unwrap().boots
                == state.vm(&other_uuid).unwrap().boots
        );
        haulout.stop().await
    });
}

#[test]
fn s17_a_vm_that_is_cloned_during_the_drain_is_seen_before_any_power_is_cut() {
    tell(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[])]);
        spec.vms = vec![gpu_vm("cloned", "gpu1", "esx1")];
        let stage = stage("cloned", &spec).await?;
        let node = stage.node_name("gpu1");
        stage.add_pod("held", &node, &[]).await?;
        stage.set_budget("held", 0).await?;
        // No re-read comes to the story's help.
        let haulout = run(&stage, &[("POLL_INTERVAL_SECONDS", "3600")]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_phase(&node, "draining").await?;
        stage.wait_said("held").await?;
        let mut clone = gpu_vm("cloned", "gpu1", "esx2");
        "clone".clone_into(&mut clone.name);
        clone.gpu = Gpu::default();
        stage.vcenter.add_vm(&clone).await?;
        stage.set_budget("held", 1).await?;
        stage
            .wait_said("2 VMs answer for this node; none is touched")
            .await?;
        ensure!(stage.calls("ShutdownGuest", "gpu1").await? == 0);

        // Without the clone the episode goes on by itself.
        stage.vcenter.remove_vm("clone").await?;
        in_maintenance(&stage, "esx1").await?;
        stage.vcenter.exit_maintenance("esx1").await?;
        stage.wait_in_service(&node).await?;
        ensure!(stage.power_cycles("gpu1").await? == (1, 1));
        haulout.stop().await
    });
}

#[test]
fn a_dry_run_walks_through_the_drain_and_changes_nothing() {
    tell(async {
        let stage = one_node("dry").await?;
        let node = stage.node_name("gpu1");
        stage.add_pod("train", &node, &[]).await?;
        let haulout = run(&stage, &[("DRY_RUN", "true")]).await?;

        stage.vcenter.enter_maintenance("esx1").await?;
        stage.wait_said("InService -> Draining, cordoned").await?;
        stage.wait_said("would evict 1 pod").await?;
        stage.wait_said("would shut the guest down").await?;
        stage.wait_said("-> AwaitingHost").await?;
        stage.vcenter.cancel_maintenance("esx1").await?;
        stage.wait_said("would power on").await?;
        stage.wait_said("Rejoining -> InService, uncordoned").await?;
        ensure!(
            stage
                .audit()
                .await?
                .iter()
                .all(|event| event.verb == "get" || event.verb == "list" || event.verb == "watch"),
            "no request that changes anything"
        );
        ensure!(stage.power_cycles("gpu1").await? == (0, 0));
        ensure!(stage.pods_on(&node).await? == ["train"]);
        haulout.stop().await
    });
}
