//! Shows the report before a patch night.

use std::fmt::Write as _;

use askama::Template;

use super::ReportArgs;
use super::out::{Output, PROBLEM_FOUND, json, node_names};
use super::table::Table;
use crate::kubernetes::answer::plain;
use crate::plan::REPORT_PATH;
use crate::plan::report::{MaintenanceVerdict, Reason, Report};

/// Asks for the report, and prints it.
pub(super) async fn perform(args: ReportArgs, out: Output) -> anyhow::Result<u8> {
    let leader = args.leader.find(out).await?;
    let report: Report = leader.ask(REPORT_PATH).await?;
    let text = match args.output {
        ReportFormat::Table => table(&report),
        ReportFormat::Md => markdown(&report),
        ReportFormat::Html => html(&report)?,
        ReportFormat::Json => json(&report)?,
        ReportFormat::Yaml => serde_saphyr::to_string(&report)?,
        ReportFormat::Name => node_names(report.nodes.iter().map(|node| &node.node)),
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

/// The counts, in one sentence.
fn summary(report: &Report) -> String {
    let count = |verdict| report.nodes.iter().filter(|node| node.verdict == verdict).count();
    format!(
        "Nodes: {} ready, {} costly, {} blocked. Hosts that could leave at the same time, with another host for each VM: {} of {}.",
        count(MaintenanceVerdict::Ready),
        count(MaintenanceVerdict::Costly),
        count(MaintenanceVerdict::Blocked),
        report.hosts_that_can_leave,
        report.hosts_in_service
    ) + &report
        .not_checked
        .iter()
        .map(|what| format!(" Not checked: {}.", plain(what)))
        .collect::<String>()
}

/// Node, host, verdict and reasons of each node as text.
fn rows(report: &Report) -> impl Iterator<Item = [String; 5]> {
    report.nodes.iter().map(|node| {
        let reasons: Vec<String> = node.reasons.iter().map(Reason::sentence).collect();
        [
            node.node.clone(),
            node.host.clone().unwrap_or_default(),
            format!("{} {}", node.verdict.sign(), node.verdict),
            node.moves_to.clone().unwrap_or_default(),
            reasons.join("; "),
        ]
    })
}

fn table(report: &Report) -> String {
    let mut table = Table::new(&["NODE", "HOST", "VERDICT", "MOVES TO", "REASONS"]);
    for row in rows(report) {
        table.row(row.to_vec());
    }
    format!("{}\n\n{}\n", table.render(true).trim_end(), summary(report))
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
        summary(report)
    );
    for row in rows(report) {
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
        summary: summary(report),
        rows: rows(report).map(|row| row.map(|text| plain(&text))).collect(),
    };
    page.render()
}

#[cfg(test)]
mod tests;
