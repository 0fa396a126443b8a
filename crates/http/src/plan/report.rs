//! The report before a patch night: would each node get through a maintenance by itself?

use std::collections::BTreeMap;
use std::pin::pin;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use haulout_core::named_enum;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde::{Deserialize, Serialize};

use super::rights::missing_on_vms;
use super::view::{LeaderView, NodesWithMachine, PlanProgress, not_looked_up};
use super::warnings::of_pod;
use haulout_core::ids::VmRef;
use haulout_core::inventory::{Forecast, Inventory};
use haulout_core::maintenance::waiting::few;
use haulout_core::status::Obstacle;
use haulout_kubernetes::budgets::{BudgetHold, full_name as budget_name, hold, is_never_satisfied, selects};
use haulout_kubernetes::drain::PodPolicy;
use haulout_kubernetes::pods::{PodVerdict, full_name, verdict};
use haulout_kubernetes::policy::DrainPolicy;

/// The report of all nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// When it was made.
    pub made_at: Timestamp,
    /// The nodes, those that would stop first.
    pub nodes: Vec<ReportedNode>,
    /// How many hosts can enter maintenance at the same time, so that each of their VMs finds a place on a host that stays.
    pub hosts_that_can_leave: usize,
    /// The hosts in service that have VMs of nodes.
    pub hosts_in_service: usize,
    /// What could not be checked, for all nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_checked: Vec<String>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportedNode {
    pub node: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    pub verdict: MaintenanceVerdict,
    /// Where its VM would go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moves_to: Option<String>,
    pub reasons: Vec<Reason>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reason {
    /// As in the metric haulout_node_maintainable.
    pub kind: Obstacle,
    /// About what: pods, budgets, or why hosts are rejected.
    pub about: String,
}

impl Reason {
    /// Its words, and about what.
    pub fn sentence(&self) -> String {
        if self.about.is_empty() {
            self.kind.words().to_owned()
        } else {
            format!("{} ({})", self.kind.words(), self.about)
        }
    }
}

named_enum! {
    /// Whether a node would get through a maintenance.
    pub enum MaintenanceVerdict {
        /// A person would have to act.
        Blocked = "blocked",
        /// It would get through, at a cost.
        Costly = "costly",
        Ready = "ready",
    }
}

impl MaintenanceVerdict {
    pub fn of(reasons: &[Reason]) -> Self {
        match reasons {
            [] => Self::Ready,
            reasons if reasons.iter().any(|reason| reason.kind.blocks()) => Self::Blocked,
            _ => Self::Costly,
        }
    }

    /// The sign beside the word.
    pub fn sign(self) -> &'static str {
        match self {
            Self::Blocked => "×",
            Self::Costly => "‼",
            Self::Ready => "√",
        }
    }
}

/// What is found about one node, by kind.
#[derive(Debug, Default)]
struct Findings(BTreeMap<Obstacle, Vec<String>>);

impl Findings {
    fn add(&mut self, kind: Obstacle, about: impl Into<String>) {
        let all = self.0.entry(kind).or_default();
        let about = about.into();
        if !about.is_empty() && !all.contains(&about) {
            all.push(about);
        }
    }

    fn reasons(self) -> Vec<Reason> {
        let mut reasons: Vec<Reason> = self
            .0
            .into_iter()
            .map(|(kind, about)| Reason {
                kind,
                about: few(&about),
            })
            .collect();
        reasons.sort_by_key(|reason| !reason.kind.blocks());
        reasons
    }
}

/// Progress is told after this many nodes: each costs a list of its pods.
const PROGRESS_EVERY: usize = 50;

/// How many nodes are read at the same time: fewer than a drain uses, because both are this process.
const READS: usize = 4;

/// What is read once for all nodes.
struct PoolFacts {
    budgets: Vec<PodDisruptionBudget>,
    /// The privileges that are missing on VMs.
    privileges: BTreeMap<VmRef, Vec<String>>,
    /// The rights on Machines that are missing.
    machine_rights: Vec<String>,
    not_checked: Vec<String>,
}

impl PoolFacts {
    async fn read(view: &LeaderView, machines: &NodesWithMachine) -> anyhow::Result<Self> {
        let vms = view.inventory.vms_of_ours().into_keys().collect();
        let (vcenter, settings) = (&view.sources.vcenter, &view.sources.settings);
        let mut not_checked: Vec<String> = not_looked_up(view).into_iter().collect();
        let privileges = missing_on_vms(vcenter, &vms, settings.static_devices).await;
        let privileges = privileges.unwrap_or_else(|error| {
            not_checked.push(format!("privileges in vCenter: {}", error.chain()));
            BTreeMap::new()
        });
        Ok(Self {
            budgets: view.budgets().await?,
            privileges,
            machine_rights: view.missing_machine_rights(machines, &mut not_checked).await,
            not_checked,
        })
    }

    /// What Haulout lacks for this node.
    fn of_rights(&self, forecast: &Forecast, has_machine: bool, findings: &mut Findings) {
        let vm = forecast.vm.found();
        for privilege in vm
            .and_then(|vm| self.privileges.get(&vm.moref))
            .into_iter()
            .flatten()
        {
            findings.add(Obstacle::VcenterPrivilege, privilege.as_str());
        }
        for right in self.machine_rights.iter().filter(|_| has_machine) {
            findings.add(Obstacle::MachineGuard, right.as_str());
        }
    }
}

impl LeaderView {
    /// The report of all nodes.
    ///
    /// # Errors
    /// If something cannot be read.
    pub(crate) async fn report(self, progress: &PlanProgress) -> anyhow::Result<Report> {
        let (view, forecasts) = self.forecast(Inventory::forecast_each_host).await?;
        let (view, leave) = view.compute(|inventory| inventory.hosts_that_can_leave()).await?;
        let view = &view;
        let machines = view.machines().await?;
        let facts = PoolFacts::read(view, &machines).await?;
        let has_machine = |forecast: &Forecast| machines.nodes.contains(&forecast.node);
        // Collected, because the compiler cannot prove otherwise that the future may change threads.
        let reads: Vec<_> = forecasts
            .iter()
            .map(|forecast| of_node(view, forecast, has_machine(forecast), &facts))
            .collect();
        let mut reads = pin!(stream::iter(reads).buffer_unordered(READS));
        let mut nodes = Vec::new();
        while let Some(node) = reads.try_next().await? {
            nodes.push(node);
            if nodes.len() % PROGRESS_EVERY == 0 {
                progress.tell(format!("{} of {} nodes", nodes.len(), forecasts.len()));
            }
        }
        nodes.sort_by(|a, b| (a.verdict, &a.node).cmp(&(b.verdict, &b.node)));
        Ok(Report {
            made_at: view.now.wall,
            hosts_that_can_leave: leave.hosts,
            hosts_in_service: leave.of,
            nodes,
            not_checked: facts.not_checked.clone(),
        })
    }
}

async fn of_node(
    view: &LeaderView,
    forecast: &Forecast,
    has_machine: bool,
    facts: &PoolFacts,
) -> anyhow::Result<ReportedNode> {
    let mut findings = Findings::default();
    let overrides = forecast.seen.as_ref().map(|node| &node.overrides);
    for obstacle in Obstacle::of(&forecast.vm, overrides) {
        findings.add(obstacle, "");
    }
    let moves_to = moves_to(forecast, &mut findings);
    facts.of_rights(forecast, has_machine, &mut findings);
    let (pods, policies) = view.pods(&forecast.node).await?;
    for pod in &pods {
        let policy = policies.policy(pod);
        let is_left = policy == PodPolicy::Read(DrainPolicy::Skip);
        if is_left || verdict(pod) != PodVerdict::Evict {
            continue;
        }
        held(pod, &facts.budgets, &mut findings);
        for warning in of_pod(pod, &policy, view.sources.settings.limits) {
            findings.add(warning.obstacle, full_name(pod));
        }
    }
    let reasons = findings.reasons();
    Ok(ReportedNode {
        node: forecast.node.to_string(),
        host: forecast.vm.found().map(|vm| vm.host_name.clone()),
        verdict: MaintenanceVerdict::of(&reasons),
        moves_to,
        reasons,
    })
}

/// What PodDisruptionBudgets hold the pod.
fn held(pod: &Pod, budgets: &[PodDisruptionBudget], findings: &mut Findings) {
    let name = full_name(pod);
    let hold = hold(pod, budgets);
    if let Some(BudgetHold::Several(names)) = &hold {
        findings.add(Obstacle::SeveralBudgets, format!("{name}: {}", names.join(", ")));
        return;
    }
    let hopeless = budgets
        .iter()
        .find(|budget| is_never_satisfied(budget) && selects(budget, pod));
    if let Some(budget) = hopeless {
        let budget = budget_name(budget);
        findings.add(
            Obstacle::DisruptionBudget,
            format!("{name}: {budget} never allows one"),
        );
    } else if let Some(hold) = hold {
        findings.add(Obstacle::DisruptionBudget, format!("{name}: {hold}"));
    }
}

/// The host that the VM would be moved to.
fn moves_to(forecast: &Forecast, findings: &mut Findings) -> Option<String> {
    let vm = forecast.vm.found()?;
    if vm.drs || vm.is_left_to_vcenter {
        return None;
    }
    let offer = forecast.offer.as_ref()?;
    if offer.fits.is_none() {
        let refused: Vec<String> = offer.refused.iter().map(ToString::to_string).collect();
        findings.add(Obstacle::NoOtherHost, few(&refused));
    }
    forecast.finds_host().map(str::to_owned)
}

#[cfg(test)]
mod tests;
