//! The report before a patch night: would each node get through a maintenance by itself?

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::pin::pin;

use askama::Template;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde::Serialize;

use super::ReportArgs;
use super::check::machines::missing_rights;
use super::check::privileges::missing_on_vms;
use super::cluster_view::ClusterView;
use super::follow::full_name;
use super::out::{Output, json};
use super::plan::warnings::{of_kubelet, of_pod};
use super::subcommands::PROBLEM_FOUND;
use super::table::Table;
use crate::app::clock;
use crate::config::Config;
use crate::ids::VmRef;
use crate::inventory::Forecast;
use crate::kubernetes::answer::plain;
use crate::kubernetes::budgets::{BudgetHold, full_name as budget_name, hold, is_never_satisfied, selects};
use crate::kubernetes::client::connect_by;
use crate::kubernetes::drain::PodPolicy;
use crate::kubernetes::pods::{PodVerdict, verdict};
use crate::kubernetes::policy::DrainPolicy;
use crate::kubernetes::rights;
use crate::maintenance::waiting::few;
use crate::status::Obstacle;

/// The report of all nodes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// When it was made.
    made_at: Timestamp,
    /// The nodes, those that would stop first.
    nodes: Vec<ReportedNode>,
    /// How many hosts can enter maintenance at the same time, so that each of their VMs finds a place on a host that stays.
    hosts_that_can_leave: usize,
    /// The hosts in service that have VMs of nodes.
    hosts_in_service: usize,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReportedNode {
    node: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    verdict: MaintenanceVerdict,
    /// Where its VM would go.
    #[serde(skip_serializing_if = "Option::is_none")]
    moves_to: Option<String>,
    reasons: Vec<Reason>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Reason {
    /// As in the metric haulout_node_maintainable.
    kind: Obstacle,
    /// About what: pods, budgets, or why hosts are rejected.
    about: String,
}

/// Whether a node would get through a maintenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
enum MaintenanceVerdict {
    /// A person would have to act.
    Blocked,
    /// It would get through, at a cost.
    Costly,
    Ready,
}

impl MaintenanceVerdict {
    fn of(reasons: &[Reason]) -> Self {
        match reasons {
            [] => Self::Ready,
            reasons if reasons.iter().any(|reason| reason.kind.blocks()) => Self::Blocked,
            _ => Self::Costly,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::Costly => "costly",
            Self::Ready => "ready",
        }
    }

    /// The sign beside the word.
    fn sign(self) -> &'static str {
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

/// Makes and prints the report.
pub(super) async fn perform(args: ReportArgs, out: Output) -> anyhow::Result<u8> {
    let client = connect_by(&args.access).await?;
    let mut view = ClusterView::read(&args.settings, client).await?;
    let report = make(&mut view, &args.settings, out).await;
    view.close().await;
    let report = report?;
    let text = match args.output {
        ReportFormat::Table => table(&report),
        ReportFormat::Md => markdown(&report),
        ReportFormat::Html => html(&report)?,
        ReportFormat::Json => json(&report)?,
        ReportFormat::Yaml => serde_saphyr::to_string(&report)?,
        ReportFormat::Name => {
            let names = report
                .nodes
                .iter()
                .map(|node| format!("node/{}", plain(&node.node)));
            names.collect::<Vec<_>>().join("\n")
        }
    };
    out.result(&text)?;
    let is_blocked = report
        .nodes
        .iter()
        .any(|node| node.verdict == MaintenanceVerdict::Blocked);
    Ok(if is_blocked { PROBLEM_FOUND } else { 0 })
}

/// Output formats of the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ReportFormat {
    /// A table.
    #[default]
    Table,
    /// Markdown, for a ticket.
    Md,
    /// A page of HTML, for a mail.
    Html,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// Names only.
    Name,
}

/// Progress is printed after this many nodes: each costs a list of its pods.
const PROGRESS_EVERY: usize = 50;

/// How many nodes are read at the same time. One after the other, 2,500 nodes would take many minutes.
const READS: usize = 8;

/// What is read once for all nodes.
struct PoolFacts {
    budgets: Vec<PodDisruptionBudget>,
    /// The privileges that are missing on VMs.
    privileges: BTreeMap<VmRef, Vec<String>>,
    /// The rights on Machines that are missing.
    machine_rights: Vec<String>,
    /// The configuration of kubelets may be read.
    reads_kubelets: bool,
}

impl PoolFacts {
    async fn read(view: &ClusterView, config: &Config, out: Output) -> anyhow::Result<Self> {
        let privileges = missing_on_vms(view, config).await.unwrap_or_else(|error| {
            out.progress(&format!(
                "Privileges in vCenter are not checked: {}",
                error.chain()
            ));
            BTreeMap::new()
        });
        let machine_rights = if view.machines.nodes.is_empty() {
            Vec::new()
        } else {
            missing_rights(config, &view.client, &view.machines.namespaces).await
        };
        // Most people have no such right, and asking for each node takes time.
        let lacking = rights::lacking(&view.client, &rights::KUBELETS, None).await;
        Ok(Self {
            budgets: view.budgets().await?,
            privileges,
            machine_rights,
            reads_kubelets: lacking.is_ok_and(|lacking| lacking.is_empty()),
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

async fn make(view: &mut ClusterView, config: &Config, out: Output) -> anyhow::Result<Report> {
    let forecasts = view.forecast_each_host().await?;
    let leave = view.inventory.hosts_that_can_leave();
    let view: &ClusterView = view;
    let facts = PoolFacts::read(view, config, out).await?;
    let reads = forecasts.iter().map(|forecast| of_node(view, forecast, &facts));
    let mut reads = pin!(stream::iter(reads).buffer_unordered(READS));
    let mut nodes = Vec::new();
    while let Some(node) = reads.try_next().await? {
        nodes.push(node);
        if nodes.len() % PROGRESS_EVERY == 0 {
            out.progress(&format!("{} of {} nodes", nodes.len(), forecasts.len()));
        }
    }
    nodes.sort_by(|a, b| (a.verdict, &a.node).cmp(&(b.verdict, &b.node)));
    Ok(Report {
        made_at: clock(),
        hosts_that_can_leave: leave.hosts,
        hosts_in_service: leave.of,
        nodes,
    })
}

async fn of_node(view: &ClusterView, forecast: &Forecast, facts: &PoolFacts) -> anyhow::Result<ReportedNode> {
    let mut findings = Findings::default();
    let overrides = forecast.seen.as_ref().map(|node| &node.overrides);
    for obstacle in Obstacle::of(&forecast.vm, overrides) {
        findings.add(obstacle, "");
    }
    let moves_to = moves_to(forecast, &mut findings);
    let has_machine = view.machines.nodes.contains(&forecast.node);
    facts.of_rights(forecast, has_machine, &mut findings);
    if facts.reads_kubelets
        && let Ok(grace) = view.shutdown_grace(&forecast.node).await
        && let Some(text) = of_kubelet(grace, view.limits)
    {
        findings.add(Obstacle::LongKubeletShutdown, text);
    }
    let (pods, policies) = view.pods(&forecast.node).await?;
    for pod in &pods {
        let policy = policies.policy(pod);
        let is_left = policy == PodPolicy::Read(DrainPolicy::Skip);
        if is_left || verdict(pod, &forecast.node) != PodVerdict::Evict {
            continue;
        }
        held(pod, &facts.budgets, &mut findings);
        for warning in of_pod(pod, &policy, view.limits) {
            findings.add(warning.obstacle, full_name(pod));
        }
    }
    let reasons = findings.reasons();
    Ok(ReportedNode {
        node: forecast.node.to_string(),
        host: forecast.vm.found().map(|vm| vm.on_name.clone()),
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

impl Reason {
    fn sentence(&self) -> String {
        if self.about.is_empty() {
            self.kind.words().to_owned()
        } else {
            format!("{} ({})", self.kind.words(), self.about)
        }
    }
}

impl Report {
    /// The counts, in one sentence.
    fn summary(&self) -> String {
        let count = |verdict| self.nodes.iter().filter(|node| node.verdict == verdict).count();
        format!(
            "Nodes: {} ready, {} costly, {} blocked. Hosts that could leave at the same time, with another host for each VM: {} of {}.",
            count(MaintenanceVerdict::Ready),
            count(MaintenanceVerdict::Costly),
            count(MaintenanceVerdict::Blocked),
            self.hosts_that_can_leave,
            self.hosts_in_service
        )
    }

    /// Node, host, verdict and reasons of each node as text.
    fn rows(&self) -> impl Iterator<Item = [String; 5]> {
        self.nodes.iter().map(|node| {
            let reasons: Vec<String> = node.reasons.iter().map(Reason::sentence).collect();
            [
                node.node.clone(),
                node.host.clone().unwrap_or_default(),
                format!("{} {}", node.verdict.sign(), node.verdict.words()),
                node.moves_to.clone().unwrap_or_default(),
                reasons.join("; "),
            ]
        })
    }
}

fn table(report: &Report) -> String {
    let mut table = Table::new(&["NODE", "HOST", "VERDICT", "MOVES TO", "REASONS"]);
    for row in report.rows() {
        table.row(row.to_vec());
    }
    format!("{}\n\n{}\n", table.render(true).trim_end(), report.summary())
}

/// Text in a cell of a table in Markdown.
fn cell(text: &str) -> String {
    plain(text)
        .replace('\\', "\\\\")
        .replace('|', "\\|")
        .replace('<', "&lt;")
}

fn markdown(report: &Report) -> String {
    let mut text = format!(
        "# Maintenance report, {:.0}\n\n{}\n\n| node | host | verdict | moves to | reasons |\n|---|---|---|---|---|\n",
        report.made_at,
        report.summary()
    );
    for row in report.rows() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {} |", row.map(|text| cell(&text)).join(" | "));
    }
    text
}

/// A page for a mail: all of it in one file.
#[derive(Template)]
#[template(path = "report.html")]
struct ReportHtml {
    made_at: String,
    summary: String,
    rows: Vec<[String; 5]>,
}

fn html(report: &Report) -> Result<String, askama::Error> {
    let page = ReportHtml {
        made_at: format!("{:.0}", report.made_at),
        summary: report.summary(),
        rows: report.rows().map(|row| row.map(|text| plain(&text))).collect(),
    };
    page.render()
}

#[cfg(test)]
mod tests;
