//! Which nodes may begin to drain: first come, first served, within two limits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::clock::Monotonic;
use crate::ids::NodeName;

/// How long a granted slot stays valid before the node's record shows that it is used. A node whose writes are refused must not keep
/// a slot. It is the default of the longest retry interval.
pub const GRANT_LASTS: Duration = Duration::from_secs(30);

/// How long a node that did not use its slot comes after all others.
pub const DEFERRED_FOR: Duration = Duration::from_secs(300);

/// Whether a node may begin to drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It has a slot.
    Granted,
    /// It waits for a slot.
    Queued {
        /// The nodes that hold the slots or are earlier in the queue.
        ahead: Vec<NodeName>,
        /// Which limit is full.
        limit: SlotLimit,
    },
}

/// A limit on how many nodes may be in maintenance at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotLimit {
    /// `MAX_CONCURRENT_DRAINS`.
    ConcurrentDrains(u32),
    /// `MAX_UNAVAILABLE`, as a number of nodes.
    Unavailable(u32),
}

/// The configured limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// `MAX_CONCURRENT_DRAINS`: nodes from their cordon until their VM is off or away.
    pub concurrent_drains: u32,
    /// `MAX_UNAVAILABLE`, as a number of nodes: from their cordon until they are back.
    pub unavailable: Option<u32>,
}

/// A node that needs a slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueuedNode {
    /// When the maintenance of its host was requested, on vCenter's clock, which is the same for all nodes.
    pub clicked_at: Timestamp,
    /// Its name, which breaks ties.
    pub node: NodeName,
}

/// The nodes that hold a slot and those that wait for one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdmissionQueue {
    /// Nodes that are draining.
    pub draining: BTreeSet<NodeName>,
    /// Nodes that are unavailable, including those that are draining.
    pub unavailable: BTreeSet<NodeName>,
    /// Nodes with a granted slot that their record does not show yet, with the time of the grant.
    pub granted: BTreeMap<NodeName, Monotonic>,
    /// Nodes that did not use their slot, with the time until which the others come first.
    pub deferred: BTreeMap<NodeName, Monotonic>,
    /// Nodes that need a slot, including those in `granted`.
    pub queued: BTreeSet<QueuedNode>,
}

impl AdmissionQueue {
    /// Grants free slots in order. A granted slot stays granted until the node's record shows it, the node no longer needs it, or
    /// it was not used in time. So no slot is granted twice, and a node that cannot begin blocks no other.
    pub fn grant(&mut self, limits: AdmissionLimits, now: Monotonic) {
        let queued: BTreeSet<&NodeName> = self.queued.iter().map(|it| &it.node).collect();
        self.granted.retain(|node, _| queued.contains(node));
        self.deferred
            .retain(|node, until| now < *until && queued.contains(node));
        let unused = |since: &Monotonic| now >= since.after(GRANT_LASTS);
        for (node, _) in self.granted.extract_if(.., |_, since| unused(since)) {
            self.deferred.insert(node, now.after(DEFERRED_FOR));
        }
        let (last, first): (Vec<&QueuedNode>, Vec<&QueuedNode>) = self
            .queued
            .iter()
            .partition(|it| self.deferred.contains_key(&it.node));
        let in_turn: Vec<NodeName> = first.into_iter().chain(last).map(|it| it.node.clone()).collect();
        for node in in_turn {
            if self.full(limits).is_some() {
                break;
            }
            self.granted.entry(node).or_insert(now);
        }
    }

    /// When the next grant expires, or the next node is no longer deferred.
    pub fn next_lapse(&self) -> Option<Monotonic> {
        let lapses = self.granted.values().map(|since| since.after(GRANT_LASTS));
        lapses.chain(self.deferred.values().copied()).min()
    }

    /// The admission of `node`.
    pub fn admission(&self, node: &NodeName, limits: AdmissionLimits) -> Admission {
        let is_queued = || self.queued.iter().any(|it| it.node == *node);
        // A draining node has its slot, so the list of the others is not computed.
        if self.granted.contains_key(node) || self.draining.contains(node) && !is_queued() {
            return Admission::Granted;
        }
        let limit = self
            .full(limits)
            .unwrap_or(SlotLimit::ConcurrentDrains(limits.concurrent_drains));
        let holders = match limit {
            SlotLimit::ConcurrentDrains(_) => &self.draining,
            SlotLimit::Unavailable(_) => &self.unavailable,
        };
        let granted = self.granted.keys().filter(|name| !holders.contains(*name));
        let mut ahead: Vec<NodeName> = holders
            .iter()
            .chain(granted)
            .filter(|name| *name != node)
            .cloned()
            .collect();
        ahead.sort();
        let before = self
            .queued
            .iter()
            .map(|it| &it.node)
            .take_while(|name| *name != node);
        ahead.extend(before.filter(|name| !self.granted.contains_key(*name)).cloned());
        Admission::Queued { ahead, limit }
    }

    /// The limit that is reached.
    pub fn full(&self, limits: AdmissionLimits) -> Option<SlotLimit> {
        let count = |holders: &BTreeSet<NodeName>| {
            let granted = self.granted.keys().filter(|name| !holders.contains(*name));
            u32::try_from(holders.len() + granted.count()).unwrap_or(u32::MAX)
        };
        if count(&self.draining) >= limits.concurrent_drains {
            return Some(SlotLimit::ConcurrentDrains(limits.concurrent_drains));
        }
        limits
            .unavailable
            .filter(|limit| count(&self.unavailable) >= *limit)
            .map(SlotLimit::Unavailable)
    }
}

#[cfg(test)]
mod tests;
