//! The plan of several hosts and nodes at once: rounds, missing GPUs, places and duration. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use jiff::SignedDuration;
use serde::Serialize;

use super::durations::EpisodeDurations;
use super::{NodePlan, Plan, counts};
use crate::cli::out::{Paint, Tone};
use crate::cli::table::Table;
use crate::ids::NodeName;
use crate::inventory::{Forecast, WaveGroup};
use crate::kubernetes::answer::plain;
use crate::maintenance::admission::RoundStart;
use crate::maintenance::observed::PowerState;
use crate::maintenance::waiting::few;
use crate::status::Took;

/// The plan of several hosts and nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WavePlan {
    pub(super) wave: WaveSummary,
    pub(super) plans: Vec<Plan>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WaveSummary {
    /// The rounds in which the nodes are taken out of service.
    rounds: Vec<PlannedRound>,
    /// The nodes for which nothing begins.
    not_begun: Vec<NodeNotBegun>,
    /// The hosts of the wave that have VMs of nodes.
    hosts: usize,
    /// Those of them whose VMs all find another host if all leave at once.
    hosts_placed: usize,
    /// GPUs that are missing at a time at most, by resource.
    gpus_missing: BTreeMap<String, u64>,
    /// How long it takes by the median of ended episodes; absent if none is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<i64>,
}

/// The nodes that are taken out of service at the same time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct PlannedRound {
    /// From 1, in its limit group.
    round: usize,
    /// The limit group, whose rounds do not wait for those of others.
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    begins: RoundStart,
    nodes: Vec<String>,
    /// GPUs that are missing then, also of the nodes of earlier rounds that are not back.
    gpus_missing: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeNotBegun {
    node: String,
    why: String,
}

/// What the summary is made of.
#[derive(Clone, Debug, Default)]
pub(super) struct WaveMembers {
    pub(super) groups: Vec<WaveGroup>,
    pub(super) hosts: Vec<Vec<NodeName>>,
    pub(super) forecasts: Vec<Forecast>,
}

impl WavePlan {
    pub(super) fn nodes(&self) -> impl Iterator<Item = &NodePlan> {
        self.plans.iter().flat_map(|plan| &plan.nodes)
    }

    /// Whether something would block it.
    pub(super) fn is_blocked(&self) -> bool {
        self.plans.iter().any(Plan::is_blocked)
    }
}

/// The summary of a wave. `gpus` sums the GPUs of nodes.
pub(super) fn summary(
    members: &WaveMembers,
    plans: &[Plan],
    gpus: impl Fn(&BTreeSet<NodeName>) -> BTreeMap<String, u64>,
    durations: &EpisodeDurations,
) -> WaveSummary {
    let mut summary = WaveSummary::default();
    let mut longest = None;
    for group in &members.groups {
        let mut most: BTreeMap<String, u64> = BTreeMap::new();
        let mut total = Some(SignedDuration::ZERO);
        for (index, round) in group.rounds.iter().enumerate() {
            let gpus_missing = gpus(&round.away);
            for (resource, count) in &gpus_missing {
                let so_far = most.entry(resource.clone()).or_default();
                *so_far = (*so_far).max(*count);
            }
            // The nodes of a round go side by side.
            let longest: Option<Vec<SignedDuration>> =
                round.nodes.iter().map(|node| durations.median(node)).collect();
            let took = longest.and_then(|all| all.into_iter().max());
            total = total.zip(took).map(|(total, took)| total.saturating_add(took));
            summary.rounds.push(PlannedRound {
                round: index + 1,
                group: group.group.clone(),
                begins: round.start,
                nodes: round.nodes.iter().map(ToString::to_string).collect(),
                gpus_missing,
                seconds: took.map(|took| took.as_secs()),
            });
        }
        if !group.rounds.is_empty() {
            longest = longest.max(total.map(|total| total.as_secs()));
        }
        // The groups go side by side, so the worst moments may coincide.
        for (resource, count) in most {
            let so_far = summary.gpus_missing.entry(resource).or_default();
            *so_far = so_far.saturating_add(count);
        }
    }
    summary.seconds = longest;
    summary.not_begun = not_begun(members, plans);
    let finds_host = |name: &NodeName| {
        let mut forecasts = members.forecasts.iter();
        let forecast = forecasts.find(|forecast| forecast.node == *name);
        forecast.is_some_and(|it| it.finds_host().is_some() || is_left_to_vcenter(it))
    };
    let hosts = || members.hosts.iter().filter(|nodes| !nodes.is_empty());
    summary.hosts = hosts().count();
    summary.hosts_placed = hosts().filter(|nodes| nodes.iter().all(finds_host)).count();
    summary
}

fn is_left_to_vcenter(forecast: &Forecast) -> bool {
    forecast.vm.found().is_some_and(|vm| vm.is_left_to_vcenter)
}

/// The nodes that are in no round, with the reason.
fn not_begun(members: &WaveMembers, plans: &[Plan]) -> Vec<NodeNotBegun> {
    let rounds = members.groups.iter().flat_map(|group| &group.rounds);
    let begun: BTreeSet<&NodeName> = rounds.flat_map(|round| &round.nodes).collect();
    let left: BTreeSet<&NodeName> = members.groups.iter().flat_map(|group| &group.left).collect();
    let stop = |node: &NodeName| {
        let mut nodes = plans.iter().flat_map(|plan| &plan.nodes);
        let plan = nodes.find(|plan| plan.node == node.as_str())?;
        plan.stops.first().cloned()
    };
    let why = |forecast: &Forecast| {
        if left.contains(&forecast.node) {
            return "the limits admit no node".to_owned();
        }
        let is_off = forecast
            .vm
            .found()
            .is_some_and(|vm| vm.power != Some(PowerState::On));
        stop(&forecast.node).unwrap_or_else(|| {
            let words = if is_left_to_vcenter(forecast) {
                "vCenter moves its VM (VMOTION_GRACE_SECONDS=unlimited)"
            } else if is_off {
                "its VM is not on"
            } else {
                "its present state does not allow it"
            };
            words.to_owned()
        })
    };
    let missing = members.forecasts.iter().filter(|it| !begun.contains(&it.node));
    missing
        .map(|forecast| NodeNotBegun {
            node: forecast.node.to_string(),
            why: why(forecast),
        })
        .collect()
}

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
