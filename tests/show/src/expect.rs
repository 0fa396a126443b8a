//! The checks of the demo.

use anyhow::{bail, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::node::{annotation, gpus, is_cordoned, is_ready};
use crate::peers::{Inventory, Peers};
use crate::printer::{say, seconds_between};
use crate::show::{DEADLINE, Show};
use crate::wait::until;

impl<P: Peers> Show<'_, P> {
    /// Prints the duration of each phase from the Node's annotation.
    pub(super) async fn steps(&self, node: &str, clicked: Timestamp, awaiting: &str) -> anyhow::Result<()> {
        let seen = self.phases.of(node, clicked);
        let journal = self.peers.journal_after(0).await?;
        let click = journal
            .iter()
            .find(|entry| entry.entered.is_some() && entry.at >= clicked)
            .map_or(clicked, |entry| entry.at);
        let end = match seen.last() {
            Some(last) if last.phase.is_none() => last.since,
            Some(_) | None => bail!("the annotations of {node} do not show how its episode ended"),
        };
        say("");
        say(&format!("  {:<50}{:>10}", "step", "took"));
        let row = |what: &str, seconds: f64| say(&format!("  {what:<50}{seconds:>8.3} s"));
        let mut since = click;
        let mut what = "notice the task, cordon the node".to_owned();
        for step in &seen {
            row(&what, seconds_between(since, step.since));
            since = step.since;
            what = match step.phase.as_deref() {
                Some("draining") => "drain: evict the pods, wait until they are gone".to_owned(),
                Some("shuttingDown") => "shut the guest down, until the VM is off".to_owned(),
                Some("awaitingHost") => awaiting.to_owned(),
                Some("relocating") => "relocate the VM".to_owned(),
                Some("poweringOn") => "power the VM on".to_owned(),
                Some("rejoining") => "boot, until the node is Ready with its GPU".to_owned(),
                Some(other) => other.to_owned(),
                None => String::new(),
            };
        }
        row(
            "from Enter Maintenance Mode until back in service",
            seconds_between(click, end),
        );
        Ok(())
    }

    pub(super) async fn once_off_once_on(&self, vm: &str) -> anyhow::Result<()> {
        let (off, on) = self.peers.power_cycles(vm).await?;
        ensure!(
            (off, on) == (1, 1),
            "{vm} was to be powered off once and on once; vCenter's journal has {off} and {on}"
        );
        Ok(())
    }

    pub(super) async fn expect_node(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&Node) -> bool,
    ) -> anyhow::Result<Node> {
        until(&format!("{name} to be {what}"), DEADLINE, async || {
            let node = self.node(name).await?;
            Ok(wanted(&node).then_some(node))
        })
        .await
    }

    pub(super) async fn expect_in_service(&self, name: &str) -> anyhow::Result<Node> {
        let back = |node: &Node| {
            annotation(node, "state").is_none() && !is_cordoned(node) && is_ready(node) && gpus(node) > 0
        };
        self.expect_node(name, "back in service", back).await
    }

    pub(super) async fn expect_vcenter(
        &self,
        what: &str,
        wanted: impl Fn(&Inventory) -> bool,
    ) -> anyhow::Result<Inventory> {
        until(&format!("vCenter to show that {what}"), DEADLINE, async || {
            let inventory = self.peers.inventory().await?;
            Ok(wanted(&inventory).then_some(inventory))
        })
        .await
    }

    pub(super) async fn node(&self, name: &str) -> anyhow::Result<Node> {
        Ok(Api::all(self.peers.client()).get(name).await?)
    }

    /// The pods of the demo on a node.
    pub(super) async fn pods_on(&self, node: &str) -> anyhow::Result<Vec<String>> {
        let pods: Api<Pod> = Api::namespaced(self.peers.client(), &self.peers.cast().namespace);
        let listed = pods
            .list(&ListParams::default().fields(&format!("spec.nodeName={node}")))
            .await?;
        let is_of_daemon = |pod: &Pod| {
            pod.owner_references()
                .iter()
                .any(|owner| owner.kind == "DaemonSet")
        };
        let pods = listed.items.iter().filter(|pod| !is_of_daemon(pod));
        Ok(pods.map(ResourceExt::name_any).collect())
    }

    pub(super) async fn wait_for_log(&self, words: &str) -> anyhow::Result<()> {
        until(
            &format!("the log of Haulout to contain {words:?}"),
            DEADLINE,
            async || Ok(self.program.log_text().contains(words).then_some(())),
        )
        .await
    }
}
