//! The entry of the inventory: applies facts and returns what they changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{Dirty, Fact, Inventory};
use crate::facts::kubernetes::Budget;
use crate::facts::vsphere::WatchSet;
use crate::ids::NodeName;
use crate::maintenance::clock::{Monotonic, Now};
use crate::maintenance::observed::{NodeSnapshot, SnapshotBatch};

/// What [`Inventory::advance`] changed.
#[derive(Debug, Default)]
pub struct Changes {
    /// What the streams have to watch; `None` if that cannot have changed.
    pub requested: Option<Requested>,
    /// The snapshots that were built; `None` if nothing changed, or the rest of an incomplete set is awaited.
    pub built: Option<Built>,
}

/// What the streams have to watch. It is known before snapshots are built.
#[derive(Debug)]
pub struct Requested {
    /// The Nodes to watch by name.
    pub followed: BTreeSet<NodeName>,
    /// The objects of vCenter to watch.
    pub watch_set: WatchSet,
}

/// New snapshots, and the watches that follow from them.
#[derive(Debug)]
pub struct Built {
    /// The snapshots that may have changed.
    pub snapshots: SnapshotBatch,
    /// The nodes whose pods have to be watched.
    pub draining: BTreeSet<NodeName>,
    /// The PodDisruptionBudgets to watch.
    pub budgets: BTreeSet<Budget>,
    /// The nodes whose snapshot changed in a rebuild of all snapshots. Each is a bug in [`super::dirty`].
    pub outdated: Vec<NodeName>,
    /// This replica is a standby: the snapshots are only displayed, and no actor gets them.
    pub is_standby: bool,
}

impl Inventory {
    /// Applies `facts` at the time `now`, and builds the snapshots that they can change.
    ///
    /// Snapshots are not built while the rest of an incomplete set is awaited, nor during the pause after a long build.
    /// [`Inventory::next_at`] returns when to call it again without a new fact.
    pub fn advance(&mut self, facts: impl IntoIterator<Item = Fact>, now: Now) -> Changes {
        self.set_time(now);
        for fact in facts {
            self.apply(fact);
        }
        let mut changes = Changes::default();
        if self.schedule.is_paused(now.monotonic) {
            return changes;
        }
        let is_rebuild = self.is_acting && self.schedule.is_rebuild_due(now.monotonic);
        if self.dirty.is_none() && !is_rebuild {
            self.schedule.end_wait_for_set();
            return changes;
        }
        // This comes first, because it removes Nodes that are no longer followed.
        let followed = self.nodes_to_follow();
        changes.requested = Some(Requested {
            followed,
            watch_set: self.watch_set(),
        });
        let is_incomplete = self.is_set_incomplete();
        if self.schedule.waits_for_set(now.monotonic, is_incomplete) {
            return changes;
        }
        self.schedule.end_wait_for_set();
        changes.built = Some(self.build(is_rebuild));
        changes
    }

    /// When [`Inventory::advance`] has to be called without a new fact.
    pub fn next_at(&self) -> Option<Monotonic> {
        let scheduled = self.schedule.next_at(self.dirty.is_some(), self.is_acting);
        scheduled
            .into_iter()
            .chain(self.next_lapse)
            .chain(self.request_sources.continues_without_at())
            .chain(self.next_settled())
            .min()
    }

    /// Records how long the last call of [`Inventory::advance`] took, including the use of its snapshots.
    pub fn spent(&mut self, now: Now, took: Duration) {
        self.schedule.built(now.monotonic, took);
    }

    fn build(&mut self, is_rebuild: bool) -> Built {
        if !self.is_acting {
            let snapshots = self.standby_snapshots();
            self.dirty = None;
            return Built {
                snapshots: SnapshotBatch::all(snapshots),
                draining: self.draining(),
                budgets: BTreeSet::new(),
                outdated: Vec::new(),
                is_standby: true,
            };
        }
        let mut snapshots = self.build_snapshots();
        let mut outdated = Vec::new();
        if is_rebuild {
            let incremental = self.snapshots.clone();
            self.dirty = Some(Dirty::All);
            snapshots = self.build_snapshots();
            outdated = differences(&incremental, &self.snapshots);
        }
        Built {
            draining: self.draining(),
            budgets: self.blocking_budgets(),
            snapshots,
            outdated,
            is_standby: false,
        }
    }
}

type Snapshots = BTreeMap<NodeName, Arc<NodeSnapshot>>;

/// The nodes whose snapshots differ.
pub(super) fn differences(incremental: &Snapshots, rebuilt: &Snapshots) -> Vec<NodeName> {
    let names: BTreeSet<&NodeName> = incremental.keys().chain(rebuilt.keys()).collect();
    let differs = |name: &&NodeName| match (incremental.get(*name), rebuilt.get(*name)) {
        (Some(before), Some(after)) => before != after && !is_same_idle(before, after),
        (None, None) => false,
        (Some(_), None) | (None, Some(_)) => true,
    };
    names.into_iter().filter(differs).cloned().collect()
}

/// Whether two snapshots of an idle node differ only in values that are not updated while it is idle, such as heartbeats. No
/// decision depends on them before the next snapshot.
fn is_same_idle(before: &NodeSnapshot, after: &NodeSnapshot) -> bool {
    let refreshed = |snapshot: &NodeSnapshot| {
        let mut snapshot = snapshot.clone();
        if let Some(node) = &mut snapshot.observed.node {
            (node.resource_version, node.heartbeat) = (0, None);
            // Remembered GPUs are forgotten after an hour.
            node.expected_gpus = Arc::default();
        }
        snapshot.observed.attempts.clear();
        snapshot.observed.drain = None;
        snapshot
    };
    before.is_idle() && after.is_idle() && refreshed(before) == refreshed(after)
}
