//! Nodes with the label that are no VMs, beside one that is.

use anyhow::ensure;
use haulout_lab::fixture::label;
use haulout_lab::kubelet::{Kubelet, Machine, VmFacts};

use crate::fixture::{one_node, run, run_scenario, uuid};
use crate::kubectl_plugin::types;
use crate::metrics::{address, scrape};

#[test]
fn physical_nodes_are_left_alone_and_told_once() {
    run_scenario(async {
        let fixture = one_node("physical").await?;
        let node = fixture.node_name("gpu1");
        let (_power, facts) = tokio::sync::watch::channel(VmFacts::ON);
        let physical = ["metal-1", "metal-2", "metal-3"].map(|name| {
            let machine = Machine {
                provider_id: None,
                ..Machine::new(format!("physical-{name}"), &uuid("physical", name), 4)
            };
            let machine = machine.label(label("physical"), "true");
            Kubelet::start(fixture.client(), machine, facts.clone())
        });
        for kubelet in &physical {
            fixture.wait_node(kubelet.name(), "there", |_| true).await?;
        }
        let haulout = run(&fixture, &[("METRICS_ADDRESS", "127.0.0.1:0")]).await?;
        let metrics = format!("{}/metrics", address(&fixture, "metrics").await?);
        let told = "nothing says that they are VMs of vSphere: they are left alone";
        fixture.wait_for_log(told).await?;

        // The maintenance of the VM beside them goes on.
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;

        let log = fixture.log_text();
        let named = |it: &&str| it.contains("physical-metal-");
        ensure!(log.lines().filter(named).count() == 1, "{log}");
        for (series, value) in scrape(&metrics).await? {
            let is_alerted =
                series.starts_with("haulout_waiting_on") || series.starts_with("haulout_node_maintainable");
            ensure!(
                !(is_alerted && series.contains("physical-metal-")),
                "{series} {value}"
            );
        }
        let checked = types(&fixture, &["check"]).await?;
        ensure!(
            checked.code == 0
                && checked
                    .stdout
                    .contains("‼ no VM that vCenter knows, and left alone (3): physical-metal-1, physical-metal-2, physical-metal-3\n    hint: "),
            "{checked}"
        );
        haulout.stop().await
    });
}
