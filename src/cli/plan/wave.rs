//! Shows the plan of several hosts and nodes.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use jiff::SignedDuration;

use super::counts;
use crate::cli::out::{Paint, Tone};
use crate::cli::table::Table;
use crate::kubernetes::answer::plain;
use crate::maintenance::waiting::few;
use crate::plan::wave::{WavePlan, WaveSummary};
use crate::status::Took;

/// Renders the summary and a line for each node; with `wide` each plan in full.
pub(super) fn render(plan: &WavePlan, wide: bool, paint: Paint) -> String {
    let names: Vec<String> = plan
        .plans
        .iter()
        .map(|plan| format!("{}/{}", plan.about, plain(&plan.name)))
        .collect();
    let mut text = format!("Maintenance of {} at once:\n\n", names.join(", "));
    rounds(&plan.wave, &mut text);
    for node in &plan.wave.not_begun {
        let words = format!("‼ {} is not drained: {}", plain(&node.node), plain(&node.why));
        let _ = writeln!(text, "{}", paint.apply(Tone::Bad, &words));
    }
    let (hosts, placed) = (plan.wave.hosts, plan.wave.hosts_placed);
    if hosts > 0 {
        let _ = writeln!(
            text,
            "Places: the VMs of {placed} of {hosts} hosts find another host if all of them leave at once"
        );
    }
    let missing = counts(&plan.wave.gpus_missing);
    if !missing.is_empty() {
        let _ = writeln!(text, "Missing meanwhile: {missing} at most");
    }
    let _ = match plan.wave.seconds {
        Some(seconds) => writeln!(
            text,
            "Duration: about {}, by the ended maintenances that are kept",
            took(seconds)
        ),
        None => writeln!(text, "Duration: unknown, no history is kept"),
    };
    for unknown in plan
        .plans
        .iter()
        .flat_map(|plan| &plan.not_checked)
        .collect::<BTreeSet<_>>()
    {
        let words = format!("‼ not known: {}", plain(unknown));
        let _ = writeln!(text, "{}", paint.apply(Tone::Bad, &words));
    }
    if wide {
        for plan in &plan.plans {
            let _ = write!(text, "\n{}", super::render(plan, wide, paint));
        }
        return text;
    }
    let _ = write!(text, "\n{}", nodes(plan, paint));
    text.push_str("\n-o wide shows each plan in full.\n");
    text
}

fn took(seconds: i64) -> Took {
    Took(SignedDuration::from_secs(seconds))
}

fn rounds(wave: &WaveSummary, text: &mut String) {
    if wave.rounds.is_empty() {
        text.push_str("No node is drained.\n");
        return;
    }
    let is_grouped = wave.rounds.iter().any(|round| round.group.is_some());
    let mut columns = vec!["ROUND", "BEGINS", "NODES", "MISSING GPUS", "TAKES"];
    if is_grouped {
        columns.push("LIMIT GROUP");
    }
    let mut table = Table::new(&columns);
    for round in &wave.rounds {
        let takes = round.seconds.map(|seconds| format!("~{}", took(seconds)));
        let mut cells = vec![
            round.round.to_string(),
            round.begins.words().to_owned(),
            round.nodes.join(", "),
            counts(&round.gpus_missing),
            takes.unwrap_or_else(|| "unknown".to_owned()),
        ];
        if is_grouped {
            cells.push(round.group.clone().unwrap_or_default());
        }
        table.row(cells);
    }
    let _ = writeln!(text, "{}", table.render(true));
}

/// A line for each node.
fn nodes(plan: &WavePlan, paint: Paint) -> String {
    let mut table = Table::new(&["NODE", "HOST", "GOES TO", "EVICTS", "BLOCKED BY"]);
    let mut blocked = Vec::new();
    for node in plan.nodes() {
        let held = node.evicts.iter().filter_map(|pod| {
            let held = pod.held.as_ref()?;
            Some(format!("{}: {held}", pod.pod))
        });
        let stops: Vec<String> = node.stops.iter().cloned().chain(held).collect();
        let place = node.place.target.as_ref().or(node.place.otherwise.as_ref());
        table.row(vec![
            node.node.clone(),
            node.host.clone().unwrap_or_default(),
            place.cloned().unwrap_or_default(),
            match node.evicts.len() {
                1 => "1 pod".to_owned(),
                pods => format!("{pods} pods"),
            },
            few(&stops),
        ]);
        blocked.push(!stops.is_empty());
    }
    let text = table.render(true);
    let mut lines = text.lines();
    let mut painted: Vec<String> = lines.next().map(str::to_owned).into_iter().collect();
    painted.extend(lines.zip(blocked).map(|(line, is_blocked)| {
        if is_blocked {
            paint.apply(Tone::Bad, line)
        } else {
            line.to_owned()
        }
    }));
    painted.join("\n") + "\n"
}

#[cfg(test)]
mod tests;
