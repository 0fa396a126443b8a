//! The limit on concurrent drains.

use anyhow::ensure;
use haulout::nodemaintenance::kind::MaintenanceAction;
use haulout_lab::fixture::is_cordoned;
use haulout_lab::vcenter::{Connection, State};

use crate::assertions::{clock, cordons, node_writes};
use crate::fixture::{a40, fixture, gpu_vm, hosts, run, run_scenario};
use crate::requests::{ask, withdraw};

#[test]
fn two_hosts_are_drained_one_after_the_other_in_order() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        spec.vms = vec![gpu_vm("two", "gpu1", "esx1"), gpu_vm("two", "gpu2", "esx2")];
        let fixture = fixture("two", &spec).await?;
        let (first, second) = (fixture.node_name("gpu2"), fixture.node_name("gpu1"));
        fixture.add_pod("held", &first, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let haulout = run(&fixture, &[("MAX_CONCURRENT_DRAINS", "1")]).await?;

        fixture.vcenter.enter_maintenance("esx2").await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&first, "draining").await?;
        let queued = fixture.wait_phase(&second, "queued").await?;
        ensure!(!is_cordoned(&queued), "a queued node is left in service");
        fixture
            .wait_for_log(&format!("at most 1 drained at once, and {first} comes first"))
            .await?;
        fixture.set_budget("held", 1).await?;
        for host in ["esx1", "esx2"] {
            fixture.wait_in_maintenance(host).await?;
        }
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx2").await?;
        fixture.wait_in_service(&first).await?;
        fixture.wait_in_service(&second).await?;

        // By the audit log, the second was cordoned only when the first no longer drained.
        let patches: Vec<(String, String)> = fixture
            .audit()
            .await?
            .into_iter()
            .filter(|event| event.verb == "patch" && event.resource == "nodes" && event.code == 200)
            .filter_map(|event| {
                let state = event
                    .object?
                    .pointer("/metadata/annotations")?
                    .get("haulout.dev/state")?
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
fn drain_on_a_lost_host_does_not_hold_up_the_next_host() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        spec.vms = vec![
            gpu_vm("lost-slot", "gpu1", "esx1"),
            gpu_vm("lost-slot", "gpu2", "esx2"),
        ];
        let fixture = fixture("lost-slot", &spec).await?;
        let (first, second) = (fixture.node_name("gpu1"), fixture.node_name("gpu2"));
        fixture.add_pod("held", &first, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let began = clock();
        // A drain holds its slot for three times its timeout.
        let limits = [
            ("MAX_CONCURRENT_DRAINS", "1"),
            ("DRAIN_TIMEOUT_SECONDS", "4"),
            ("DRAIN_TIMEOUT_ACTION", "hold"),
        ];
        let haulout = run(&fixture, &limits).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&first, "draining").await?;
        fixture
            .wait_for_log("held by PodDisruptionBudget held-budget")
            .await?;
        fixture
            .vcenter
            .set_connection("esx1", Connection::NotResponding)
            .await?;
        fixture
            .wait_for_log("host esx1, which is not reachable for vCenter")
            .await?;
        fixture.vcenter.enter_maintenance("esx2").await?;
        fixture.wait_in_maintenance("esx2").await?;
        fixture.wait_phase(&second, "awaitingHost").await?;

        ensure!(is_cordoned(&fixture.node(&first).await?));
        let writes = node_writes(&fixture, &first, began).await?;
        ensure!(cordons(&writes) == [true], "{:?}", cordons(&writes));
        ensure!(fixture.power_cycles("gpu1").await? == (0, 0));
        haulout.stop().await
    });
}

#[test]
fn drained_node_whose_host_is_clicked_does_not_wait_for_its_own_slot() {
    run_scenario(async {
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        spec.vms = vec![
            gpu_vm("own-slot", "gpu1", "esx1"),
            gpu_vm("own-slot", "gpu2", "esx2"),
        ];
        let fixture = fixture("own-slot", &spec).await?;
        let (first, second) = (fixture.node_name("gpu1"), fixture.node_name("gpu2"));
        let haulout = run(&fixture, &[("MAX_UNAVAILABLE", "1")]).await?;
        ask(&fixture, "power-supply", &first, MaintenanceAction::Drain).await?;
        fixture.wait_phase(&first, "drained").await?;
        fixture.vcenter.enter_maintenance("esx2").await?;
        fixture
            .wait_for_log(&format!("at most 1 unavailable at once, and {first} comes first"))
            .await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        ensure!(
            !is_cordoned(&fixture.node(&second).await?),
            "the other one waits for its turn"
        );
        withdraw(&fixture, "power-supply").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&first).await?;
        fixture.wait_in_maintenance("esx2").await?;
        fixture.vcenter.exit_maintenance("esx2").await?;
        fixture.wait_in_service(&second).await?;
        for vm in ["gpu1", "gpu2"] {
            ensure!(fixture.power_cycles(vm).await? == (1, 1), "{vm}");
        }
        haulout.stop().await
    });
}

#[test]
fn node_on_its_way_back_whose_new_host_is_clicked_does_not_wait_for_its_own_slot() {
    run_scenario(async {
        let gpus = [a40(1)];
        let mut spec = hosts(&[("esx1", &gpus), ("esx2", &gpus)]);
        spec.vms = vec![gpu_vm("own-slot-back", "gpu1", "esx1")];
        let fixture = fixture("own-slot-back", &spec).await?;
        let node = fixture.node_name("gpu1");
        let haulout = run(&fixture, &[("MAX_UNAVAILABLE", "1")]).await?;
        // A rolling upgrade goes on as soon as the first host is in maintenance.
        fixture.kubelet("gpu1")?.hold_boot();
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "rejoining").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        let is_back = |state: &State| state.host("esx1").is_some_and(|host| !host.in_maintenance);
        fixture.wait_vcenter("esx1 is back", is_back).await?;
        fixture.vcenter.enter_maintenance("esx2").await?;
        fixture.wait_in_maintenance("esx2").await?;
        fixture.kubelet("gpu1")?.release_boot();
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (2, 2));
        haulout.stop().await
    });
}
