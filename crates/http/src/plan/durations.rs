//! How long a maintenance takes, by the episodes that are kept.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use haulout_controller::nodemaintenance::kind::{MaintenanceOrigin, NodeMaintenance};
use haulout_core::ids::NodeName;
use haulout_core::status::{EpisodeOutcome, PhaseKind};

/// How long the ended, successful episodes took, without the time in the queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct EpisodeDurations {
    of_nodes: BTreeMap<NodeName, Vec<SignedDuration>>,
}

impl EpisodeDurations {
    pub(super) fn of<'a>(objects: impl IntoIterator<Item = &'a NodeMaintenance>) -> Self {
        let mut of_nodes: BTreeMap<NodeName, Vec<SignedDuration>> = BTreeMap::new();
        for object in objects {
            if let Some(took) = took(object) {
                let node = NodeName::new(object.spec.node_name.clone());
                of_nodes.entry(node).or_default().push(took);
            }
        }
        Self { of_nodes }
    }

    /// The median of the episodes of `node`, or else of all nodes; `None` if no episode is kept.
    pub(super) fn median(&self, node: &NodeName) -> Option<SignedDuration> {
        let all = || self.of_nodes.values().flatten().copied().collect();
        median(self.of_nodes.get(node).cloned().unwrap_or_else(all))
    }
}

fn median(mut durations: Vec<SignedDuration>) -> Option<SignedDuration> {
    durations.sort();
    durations.get(durations.len().checked_sub(1)? / 2).copied()
}

/// How long a successful episode took. `None` for a request, and for an episode that goes on or failed.
fn took(object: &NodeMaintenance) -> Option<SignedDuration> {
    let status = object.status.as_ref()?;
    let at = |text: &str| text.parse::<Timestamp>().ok();
    let has_succeeded = status.result.as_deref() == Some(EpisodeOutcome::Succeeded.name());
    if object.spec.origin != MaintenanceOrigin::Episode || !has_succeeded {
        return None;
    }
    let began = at(status.started_at.as_deref()?)?;
    let ended = at(status.ended_at.as_deref()?)?;
    let queued = status
        .phases
        .iter()
        .filter(|phase| phase.phase.parse() == Ok(PhaseKind::Queued))
        .filter_map(|phase| Some(at(phase.ended_at.as_deref()?)?.duration_since(at(&phase.started_at)?)))
        .fold(SignedDuration::ZERO, SignedDuration::saturating_add);
    let took = ended.duration_since(began).saturating_sub(queued);
    // Somebody may have edited the object.
    (took > SignedDuration::ZERO).then_some(took)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn episode(node: &str, minutes: i64, result: &str) -> NodeMaintenance {
        let began = Timestamp::UNIX_EPOCH;
        let at = |minutes| (began + SignedDuration::from_mins(minutes)).to_string();
        let object = json!({
            "apiVersion": "haulout.dev/v1alpha1",
            "kind": "NodeMaintenance",
            "metadata": {"name": "it"},
            "spec": {"nodeName": node, "origin": "Episode"},
            "status": {
                "startedAt": at(0),
                "endedAt": at(minutes + 5),
                "phases": [
                    {"phase": "Queued", "startedAt": at(0), "endedAt": at(5)},
                    {"phase": "Draining", "startedAt": at(5), "endedAt": at(minutes + 5)},
                ],
                "result": result,
            },
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn duration_is_the_median_of_the_node_or_else_of_all() {
        let objects = [
            episode("a", 10, "Succeeded"),
            episode("a", 30, "Succeeded"),
            episode("a", 12, "Succeeded"),
            episode("b", 50, "Succeeded"),
            episode("b", 2, "Failed"),
        ];
        let durations = EpisodeDurations::of(&objects);
        let median = |node: &str| durations.median(&NodeName::new(node));
        for (node, minutes) in [("a", 12), ("b", 50), ("c", 12)] {
            assert_eq!(median(node), Some(SignedDuration::from_mins(minutes)), "{node}");
        }
        assert_eq!(EpisodeDurations::default().median(&NodeName::new("a")), None);
    }
}
