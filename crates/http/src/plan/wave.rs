//! The plan of several hosts and nodes at once: rounds, missing GPUs, places and duration.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use super::durations::EpisodeDurations;
use super::{NodePlan, Plan};
use haulout_core::ids::NodeName;
use haulout_core::inventory::{Forecast, WaveGroup};
use haulout_core::maintenance::admission::RoundStart;
use haulout_core::maintenance::observed::PowerState;

/// The plan of several hosts and nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WavePlan {
    pub wave: WaveSummary,
    pub plans: Vec<Plan>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaveSummary {
    /// The rounds in which the nodes are taken out of service.
    pub rounds: Vec<PlannedRound>,
    /// The nodes for which nothing begins.
    pub not_begun: Vec<NodeNotBegun>,
    /// The hosts of the wave that have VMs of nodes.
    pub hosts: usize,
    /// Those of them whose VMs all find another host if all leave at once.
    pub hosts_placed: usize,
    /// GPUs that are missing at a time at most, by resource.
    pub gpus_missing: BTreeMap<String, u64>,
    /// How long it takes by the median of ended episodes; absent if none is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<i64>,
}

/// The nodes that are taken out of service at the same time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedRound {
    /// From 1, in its limit group.
    pub round: usize,
    /// The limit group, whose rounds do not wait for those of others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    pub begins: RoundStart,
    pub nodes: Vec<String>,
    /// GPUs that are missing then, also of the nodes of earlier rounds that are not back.
    pub gpus_missing: BTreeMap<String, u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeNotBegun {
    pub node: String,
    pub why: String,
}

/// What the summary is made of.
#[derive(Clone, Debug, Default)]
pub(super) struct WaveMembers {
    pub(super) groups: Vec<WaveGroup>,
    pub(super) hosts: Vec<Vec<NodeName>>,
    pub(super) forecasts: Vec<Forecast>,
}

impl WavePlan {
    pub fn nodes(&self) -> impl Iterator<Item = &NodePlan> {
        self.plans.iter().flat_map(|plan| &plan.nodes)
    }

    /// Whether something would block it.
    pub fn is_blocked(&self) -> bool {
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

#[cfg(test)]
mod tests;
