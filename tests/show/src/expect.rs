//! The checks of the demo.

use anyhow::{Context as _, bail, ensure};
use haulout_lab::fixture::{annotation, gpus, is_cordoned, is_ready};
use haulout_lab::wait::until;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::DEADLINE;
use super::printer::seconds_between;
use super::show::Show;
use crate::say;

impl Show<'_> {
    /// Prints the duration of each phase from the Node's annotation.
    pub(super) async fn steps(&self, node: &str, clicked: Timestamp, awaiting: &str) -> anyhow::Result<()> {
        let seen = self.phases.of(node, clicked);
        let journal = self.fixture.vcenter.journal().await?;
        let click = journal
            .iter()
            .find(|entry| entry.method == "EnterMaintenanceMode_Task" && entry.time >= clicked)
            .map_or(clicked, |entry| entry.time);
        let end = match seen.last() {
            Some(last) if last.phase.is_none() => last.since,
            Some(_) | None => bail!("the annotations of {node} do not show how its episode ended"),
        };
        say("");
        say(&format!("  {:<48}{:>10}", "step", "took"));
        let row = |what: &str, seconds: f64| say(&format!("  {what:<48}{seconds:>8.3} s"));
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
        let (off, on) = self.fixture.power_cycles(vm).await?;
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
            let node = self.fixture.node(name).await?;
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
        wanted: impl Fn(&haulout_lab::vcenter::State) -> bool,
    ) -> anyhow::Result<haulout_lab::vcenter::State> {
        until(&format!("vCenter to show that {what}"), DEADLINE, async || {
            let state = self.fixture.vcenter.state().await?;
            Ok(wanted(&state).then_some(state))
        })
        .await
    }

    /// Creates a budget for the pod of this name and waits until it has effect.
    pub(super) async fn set_budget(&self, name: &str, app: &str, min_available: i32) -> anyhow::Result<()> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.fixture.client(), self.fixture.name());
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": name},
            "spec": {"minAvailable": min_available, "selector": {"matchLabels": {"app": app}}},
        });
        let params = PatchParams::apply("person").force();
        budgets
            .patch(name, &params, &Patch::Apply(&budget))
            .await
            .with_context(|| format!("writing the PodDisruptionBudget {name}"))?;
        let what = format!("the PodDisruptionBudget {name} to be counted");
        until(&what, DEADLINE, async || {
            let seen = budgets.get(name).await?;
            let counted = seen.status.as_ref().is_some_and(|status| {
                status.observed_generation == seen.metadata.generation
                    && (status.disruptions_allowed > Some(0)) == (min_available == 0)
            });
            Ok(counted.then_some(()))
        })
        .await
    }
}
