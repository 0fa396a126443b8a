//! The report before a patch night: would each node get through a maintenance by itself?

use std::collections::BTreeMap;
use std::fmt::Write as _;

use askama::Template;
use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde::Serialize;

use super::ReportArgs;
use super::cluster_view::ClusterView;
use super::follow::full_name;
use super::out::{Output, json};
use super::plan::warnings::{of_kubelet, of_pod};
use super::subcommands::PROBLEM_FOUND;
use super::table::Table;
use crate::app::clock;
use crate::inventory::Forecast;
use crate::kubernetes::answer::plain;
use crate::kubernetes::budgets::{full_name as budget_name, hold, is_never_satisfied, selects};
use crate::kubernetes::client::connect_by;
use crate::kubernetes::drain::PodPolicy;
use crate::kubernetes::pods::{PodVerdict, verdict};
use crate::kubernetes::policy::DrainPolicy;
use crate::maintenance::observed::Strategy;
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
    /// How many nodes could be moved to another host at the same time.
    can_move_at_once: usize,
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
    let report = make(&mut view, out).await;
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

async fn make(view: &mut ClusterView, out: Output) -> anyhow::Result<Report> {
    let forecasts = view.forecast_each_host().await?;
    let budgets = view.budgets().await?;
    let mut nodes = Vec::new();
    for (index, forecast) in forecasts.iter().enumerate() {
        if index > 0 && index % PROGRESS_EVERY == 0 {
            out.progress(&format!("{index} of {} nodes", forecasts.len()));
        }
        nodes.push(of_node(view, forecast, &budgets).await?);
    }
    nodes.sort_by(|a, b| (a.verdict, &a.node).cmp(&(b.verdict, &b.node)));
    Ok(Report {
        made_at: clock(),
        can_move_at_once: nodes.iter().filter(|node| node.moves_to.is_some()).count(),
        nodes,
    })
}

async fn of_node(
    view: &ClusterView,
    forecast: &Forecast,
    budgets: &[PodDisruptionBudget],
) -> anyhow::Result<ReportedNode> {
    let mut findings = Findings::default();
    let overrides = forecast.seen.as_ref().map(|node| &node.overrides);
    for obstacle in Obstacle::of(&forecast.vm, overrides) {
        findings.add(obstacle, "");
    }
    let moves_to = moves_to(forecast, &mut findings);
    if let Ok(grace) = view.shutdown_grace(&forecast.node).await
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
        let name = full_name(pod);
        let hopeless = budgets
            .iter()
            .find(|budget| is_never_satisfied(budget) && selects(budget, pod));
        if let Some(budget) = hopeless {
            let budget = budget_name(budget);
            findings.add(
                Obstacle::DisruptionBudget,
                format!("{name}: {budget} never allows one"),
            );
        } else if let Some(hold) = hold(pod, budgets) {
            findings.add(Obstacle::DisruptionBudget, format!("{name}: {hold}"));
        }
        for warning in of_pod(pod, &policy, view.limits) {
            findings.add(warning.obstacle, name.clone());
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

/// The host that the VM would be moved to.
fn moves_to(forecast: &Forecast, findings: &mut Findings) -> Option<String> {
    let vm = forecast.vm.found()?;
    if vm.drs || vm.is_left_to_vcenter {
        return None;
    }
    let waits = forecast
        .seen
        .as_ref()
        .is_some_and(|node| node.overrides.strategy == Strategy::Wait);
    let offer = forecast.offer.as_ref()?;
    match &offer.fits {
        Some((_, host)) if !waits => Some(host.clone()),
        Some(_) => None,
        None => {
            let refused: Vec<String> = offer.refused.iter().map(ToString::to_string).collect();
            findings.add(Obstacle::NoOtherHost, few(&refused));
            None
        }
    }
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
            "Nodes: {} ready, {} costly, {} blocked; {} could move to another host at the same time.",
            count(MaintenanceVerdict::Ready),
            count(MaintenanceVerdict::Costly),
            count(MaintenanceVerdict::Blocked),
            self.can_move_at_once
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
mod tests {
    use super::*;

    fn report() -> Report {
        let mut findings = Findings::default();
        findings.add(Obstacle::EmptyDir, "ml/<b>train|0");
        findings.add(
            Obstacle::DisruptionBudget,
            "ml/train-0: ml/train never allows one",
        );
        let reasons = findings.reasons();
        let node = |node: &str, reasons: Vec<Reason>, moves_to: Option<&str>| ReportedNode {
            node: node.to_owned(),
            host: Some("esx-1".to_owned()),
            verdict: MaintenanceVerdict::of(&reasons),
            moves_to: moves_to.map(str::to_owned),
            reasons,
        };
        Report {
            made_at: "2026-11-27T16:00:00Z".parse().unwrap(),
            nodes: vec![
                node("gpu-1", reasons, None),
                node("gpu-2", Vec::new(), Some("esx-9")),
            ],
            can_move_at_once: 1,
        }
    }

    #[test]
    fn table_says_which_nodes_stop_and_why() {
        assert_eq!(
            table(&report()),
            "NODE    HOST    VERDICT     MOVES TO   REASONS\n\
             gpu-1   esx-1   × blocked   <none>     a PodDisruptionBudget allows no disruption (ml/train-0: ml/train never allows \
             one); a pod loses the data in its emptyDir (ml/<b>train|0)\n\
             gpu-2   esx-1   √ ready     esx-9      <none>\n\n\
             Nodes: 1 ready, 0 costly, 1 blocked; 1 could move to another host at the same time.\n"
        );
    }

    #[test]
    fn names_become_no_markup() {
        let markdown = markdown(&report());
        assert!(markdown.contains("ml/&lt;b>train\\|0"), "{markdown}");
        let html = html(&report()).unwrap();
        assert!(
            html.contains("ml/&#60;b&#62;train|0") && !html.contains("<b>"),
            "{html}"
        );
        assert!(
            html.contains("<th>Verdict</th>") && html.ends_with("</html>"),
            "{html}"
        );
    }
}
