//! The limit on concurrent drains.

use anyhow::ensure;
use haulout_lab::stage::is_cordoned;

use crate::fixture::{a40, gpu_vm, hosts, in_maintenance, run, stage, tell};

#[test]
fn two_hosts_are_drained_one_after_the_other_in_order() {
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
