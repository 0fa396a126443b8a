//! How many VMs episodes have switched off in the last hour.

use std::time::Duration;

use super::Inventory;
use crate::ids::EpisodeId;
use crate::maintenance::admission::AdmissionQueue;
use crate::maintenance::clock::Monotonic;
use crate::maintenance::episode::{Episode, Phase};

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
    /// The episode of the latest, and whether its node has come back since. It counts once, however long the VM stays off.
    latest: Option<(EpisodeId, bool)>,
}

impl PowerOffs {
    /// Notes a record that is believed; `is_known` says that this process granted its drain, or found it when it began to act. An
    /// episode may switch its VM off again after the node came back.
    pub(super) fn record_episode(&mut self, episode: &Episode, is_known: bool, now: Monotonic) {
        self.times.retain(|at| now < at.after(COUNTED));
        let phase = episode.phase.at_work();
        let is_shut_down = matches!(phase, Phase::ShuttingDown(_));
        let is_back = *phase == Phase::Rejoining && episode.powered_off;
        let is_new = match &self.latest {
            // A person, or the guest itself, may switch it off as well.
            Some((id, came_back)) if *id == episode.id => *came_back && is_shut_down,
            Some(_) | None => is_shut_down || phase.vm_is_off() || is_back,
        };
        let is_new = is_new && is_known;
        if is_new && self.times.len() < MAX_PER_NODE {
            self.times.push(now);
        }
        if is_new || self.is_counted(episode) {
            self.latest = Some((episode.id.clone(), is_back));
        }
    }

    /// Whether the latest power-off of this episode is counted, and its node has not come back since.
    pub(super) fn is_counted(&self, episode: &Episode) -> bool {
        self.latest
            .as_ref()
            .is_some_and(|(id, came_back)| *id == episode.id && !came_back)
    }

    /// When each of them no longer counts.
    fn lapses(&self, now: Monotonic) -> impl Iterator<Item = Monotonic> {
        let lapses = self.times.iter().map(|at| at.after(COUNTED));
        lapses.filter(move |lapse| now < *lapse)
    }
}

impl Inventory {
    /// Counts those of a group, and returns when the first no longer counts.
    pub(super) fn count_power_offs(
        &self,
        group: Option<&str>,
        queue: &mut AdmissionQueue,
    ) -> Option<Monotonic> {
        let now = self.now.monotonic;
        let states = self.node_states.iter();
        let states = states.filter(|(name, _)| self.limit_group(name) == group);
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
