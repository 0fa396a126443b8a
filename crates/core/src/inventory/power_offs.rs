//! How many VMs episodes have switched off in the last hour.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Inventory;
use crate::ids::{EpisodeId, NodeName};
use crate::maintenance::admission::AdmissionQueue;
use crate::maintenance::clock::Monotonic;
use crate::maintenance::episode::{Episode, Phase, Record};

/// How long a power-off counts.
const COUNTED: Duration = Duration::from_secs(3600);

/// The power-offs that are remembered of one node. Each takes a shutdown and a boot.
const MAX_PER_NODE: usize = 32;

/// The power-offs of one node in the last hour.
///
/// They are kept in memory alone: a new leader counts the nodes that it finds off, and not those that are back.
#[derive(Clone, Debug, Default)]
pub(super) struct PowerOffs {
    times: Vec<Monotonic>,
    /// The episode of the latest. It counts once, however long the VM stays off.
    latest: Option<EpisodeId>,
}

impl PowerOffs {
    fn note(&mut self, episode: &Episode, now: Monotonic) {
        self.times.retain(|at| now < at.after(COUNTED));
        let is_off = episode.powered_off || matches!(episode.phase.at_work(), Phase::ShuttingDown(_));
        if !is_off || self.latest.as_ref() == Some(&episode.id) {
            return;
        }
        self.latest = Some(episode.id.clone());
        if self.times.len() < MAX_PER_NODE {
            self.times.push(now);
        }
    }

    /// When each of them no longer counts.
    fn lapses(&self, now: Monotonic) -> impl Iterator<Item = Monotonic> {
        let lapses = self.times.iter().map(|at| at.after(COUNTED));
        lapses.filter(move |lapse| now < *lapse)
    }
}

impl Inventory {
    /// Notes the power-offs of episodes.
    pub(super) fn note_power_offs(&mut self, names: &BTreeSet<NodeName>) {
        for name in names {
            let Some(local) = self.node_states.get_mut(name) else {
                continue;
            };
            if let Some(Record::Episode(episode)) = &local.on_node {
                local.power_offs.note(episode, self.now.monotonic);
            }
        }
    }

    /// Counts those of a group, and returns when the first no longer counts.
    pub(super) fn count_power_offs(
        &self,
        group: Option<&str>,
        queue: &mut AdmissionQueue,
    ) -> Option<Monotonic> {
        let now = self.now.monotonic;
        let of_group = self
            .nodes
            .values()
            .filter(|node| node.limit_group.as_deref() == group);
        let states = of_group.filter_map(|node| Some((&node.name, self.node_states.get(&node.name)?)));
        let mut first: Option<Monotonic> = None;
        for (name, local) in states {
            let lapses: Vec<Monotonic> = local.power_offs.lapses(now).collect();
            if !lapses.is_empty() {
                queue.power_offs.insert(name.clone(), lapses.len());
            }
            first = lapses.into_iter().chain(first).min();
        }
        first
    }
}
