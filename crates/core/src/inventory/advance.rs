//! The entry of the inventory: applies facts and returns what they changed.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Fact, Inventory};
use crate::facts::kubernetes::Budget;
use crate::facts::vsphere::WatchSet;
use crate::ids::NodeName;
use crate::maintenance::clock::{Monotonic, Now};
use crate::maintenance::observed::Snapshots;

/// What [`Inventory::advance`] changed.
#[derive(Debug, Default)]
pub struct Changes {
    /// What the streams have to watch; `None` if that cannot have changed, and during the pause after a long build.
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
    pub snapshots: Snapshots,
    /// The nodes whose pods have to be watched.
    pub draining: BTreeSet<NodeName>,
    /// The PodDisruptionBudgets to watch.
    pub budgets: BTreeSet<Budget>,
    /// This replica is a standby: the snapshots are only displayed, and no actor gets them.
    pub is_standby: bool,
}

impl Inventory {
    /// Applies `facts` at the time `now`, and builds the snapshots if something has changed, or a minute has passed.
    ///
    /// They are not built while the rest of an incomplete set is awaited, nor during the pause after a long build.
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
        self.is_changed |= self.is_acting && self.schedule.is_build_due(now.monotonic);
        if !self.is_changed {
            self.schedule.end_wait_for_set();
            return changes;
        }
        // First, because it forgets Nodes whose episode has ended, which must not be in the watch set.
        let followed = self.nodes_to_follow();
        changes.requested = Some(Requested {
            followed,
            watch_set: self.update_watch_set(),
        });
        let is_incomplete = self.vcenter.is_set_incomplete();
        if self.schedule.waits_for_set(now.monotonic, is_incomplete) {
            return changes;
        }
        self.schedule.end_wait_for_set();
        changes.built = Some(self.build());
        changes
    }

    /// When [`Inventory::advance`] has to be called without a new fact.
    pub fn next_at(&self) -> Option<Monotonic> {
        let scheduled = self.schedule.next_at(self.is_changed, self.is_acting);
        scheduled
            .into_iter()
            .chain(self.next_timed_change)
            .chain(self.request_sources.ignored_from())
            .chain(self.vcenter.next_settled())
            .min()
    }

    /// Records how long the last build took, including the use of its snapshots. A pause follows a long one.
    pub fn record_build_time(&mut self, now: Now, took: Duration) {
        self.schedule.built(now.monotonic, took);
    }

    fn build(&mut self) -> Built {
        if !self.is_acting {
            return Built {
                snapshots: self.standby_snapshots(),
                draining: BTreeSet::new(),
                budgets: BTreeSet::new(),
                is_standby: true,
            };
        }
        // It also stores them; `nodes_with_watched_pods` reads the stored ones.
        let snapshots = self.build_snapshots();
        Built {
            snapshots,
            draining: self.nodes_with_watched_pods(),
            budgets: self.blocking_budgets(),
            is_standby: false,
        }
    }
}
