//! The report of a probe, which a user can attach to an issue: it has no names.

use std::path::Path;

use serde::Serialize;

use super::answers::{Finding, ProbeAnswer};
use crate::cli::out::{Paint, Tone, json};
use crate::cli::probes::{ALL, Means};

/// The answers, and the questions that a reading cannot answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct ProbeReport {
    haulout: &'static str,
    answers: Vec<Finding>,
    needs_a_change: Vec<&'static str>,
}

impl ProbeReport {
    pub(super) fn new(answers: Vec<Finding>) -> Self {
        let changes = ALL.iter().filter(|probe| probe.means == Means::Change);
        Self {
            haulout: env!("CARGO_PKG_VERSION"),
            answers,
            needs_a_change: changes.map(|probe| probe.id).collect(),
        }
    }
}

/// The content of the report file.
pub(super) fn text(report: &ProbeReport, path: &Path) -> anyhow::Result<String> {
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    if is_json {
        return Ok(json(report)? + "\n");
    }
    Ok(markdown(report))
}

fn markdown(report: &ProbeReport) -> String {
    let mut text = format!(
        "# Probe of a vCenter by haulout {}\n\n| probe | question | answer | observed |\n|---|---|---|---|\n",
        report.haulout
    );
    for finding in &report.answers {
        let (question, observed) = (cell(finding.question), cell(&finding.observed));
        let answer = finding.answer.word();
        text.push_str(&format!(
            "| `{}` | {question} | {answer} | {observed} |\n",
            finding.id
        ));
    }
    let ids: Vec<String> = report.needs_a_change.iter().map(|id| format!("`{id}`")).collect();
    text.push_str(&format!(
        "\nNot answered, because it needs a change: {}\n",
        ids.join(", ")
    ));
    text
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// The answers for a terminal.
pub(in crate::cli) fn render(report: &ProbeReport, paint: Paint) -> String {
    let mut text = "Probe\n".to_owned();
    for finding in &report.answers {
        let tone = match finding.answer {
            ProbeAnswer::Yes => Tone::Good,
            ProbeAnswer::No => Tone::Busy,
            ProbeAnswer::NotSeen => Tone::Faint,
        };
        let answer = paint.apply(tone, &format!("{:<8}", finding.answer.word()));
        let Finding {
            id,
            question,
            observed,
            ..
        } = finding;
        text.push_str(&format!("{answer}  {question} ({id})\n          {observed}\n"));
    }
    let left = report.needs_a_change.len();
    text.push_str(&format!(
        "\n{left} more questions need a change, so they are not asked: see the reference of probes\n"
    ));
    text
}
