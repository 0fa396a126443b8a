//! Two releases in one cluster, each with nodes and a vCenter of its own.

use std::collections::BTreeSet;

use anyhow::ensure;
use haulout_lab::scenario::run_scenario;

use crate::release::{Release, fixture};

#[test]
fn two_releases_with_two_vcenters_work_side_by_side() {
    run_scenario(async {
        let (east, west) = tokio::try_join!(
            fixture("east", "aa000000-0000-4000-8000-000000000051", &["esx1"]),
            fixture("west", "aa000000-0000-4000-8000-000000000052", &["esx1"]),
        )?;
        let first = Release::prepare(&east).await?;
        first.upgrade(&[]);
        let second = Release::prepare(&west).await?;
        // As docs/install/several-releases.md says. Nothing that the first release owns is taken over.
        second.upgrade_with(&[], &["crds.enabled=false"]);
        let (mut of_east, mut of_west) = tokio::try_join!(first.start(), second.start())?;
        tokio::try_join!(of_east.wait_ready(), of_west.wait_ready())?;

        for fixture in [&east, &west] {
            fixture.vcenter.enter_maintenance("esx1").await?;
        }
        for fixture in [&east, &west] {
            fixture.wait_in_maintenance("esx1").await?;
            fixture.vcenter.exit_maintenance("esx1").await?;
        }
        for (fixture, release) in [(&east, &first), (&west, &second)] {
            let node = fixture.node_name("gpu1");
            fixture.wait_in_service(&node).await?;
            ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
            let audit = release.audit().await?;
            let refused: Vec<_> = audit.iter().filter(|event| event.code == 403).collect();
            ensure!(refused.is_empty(), "refused: {refused:#?}");
            let changed: BTreeSet<&str> = audit
                .iter()
                .filter(|event| event.resource == "nodes" && event.verb == "patch")
                .filter_map(|event| event.name.as_deref())
                .collect();
            ensure!(changed == BTreeSet::from([node.as_str()]), "{changed:?}");
        }
        of_east.stop().await?;
        of_west.stop().await
    });
}
