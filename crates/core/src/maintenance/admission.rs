//! Who may begin to drain: first come, first served, under the two limits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::clock::Monotonic;
use super::observed::{Admission, SlotLimit};
use crate::ids::NodeName;

/// How long a grant stands without the node's record showing that it is used. The record is written within milliseconds, or
/// within a few tries; a node whose writes are refused must not keep the place for ever. As long as the longest pause between
/// two tries is by default.
pub const GRANT_LASTS: Duration = Duration::from_secs(30);

/// How long a node that did not use its grant stands behind all others.
pub const DEFERRED_FOR: Duration = Duration::from_secs(300);

/// The configured limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// `MAX_CONCURRENT_DRAINS`: nodes from their cordon until their VM is off or away.
    pub concurrent_drains: u32,
    /// `MAX_UNAVAILABLE`, as a number of nodes: from their cordon until they are back.
    pub unavailable: Option<u32>,
}

/// A node that wants to drain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueuedNode {
    /// When its host's maintenance was asked for, on vCenter's clock: durable, and one clock for all.
    pub clicked_at: Timestamp,
    /// Its name, which breaks ties.
    pub node: NodeName,
}

/// Who holds places, and who waits for one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdmissionQueue {
    /// Nodes that hold a place among those being drained.
    pub draining: BTreeSet<NodeName>,
    /// Nodes that are unavailable; those draining are among them.
    pub unavailable: BTreeSet<NodeName>,
    /// Nodes that were granted a place and whose record does not show it yet, with the time of the grant.
    pub granted: BTreeMap<NodeName, Monotonic>,
    /// Nodes that did not use their grant, with the time until which the others come first.
    pub deferred: BTreeMap<NodeName, Monotonic>,
    /// Nodes that want a place, those granted one among them.
    pub applicants: BTreeSet<QueuedNode>,
}

impl AdmissionQueue {
    /// Grants free places in order, and remembers them: a place once granted stays granted until the node's record
    /// shows it, the node no longer applies, or the grant was not used in time. So two nodes can never be granted one place,
    /// however old the view that either acts on, and one that cannot begin holds nobody up.
    pub fn grant(&mut self, limits: AdmissionLimits, now: Monotonic) {
        let applying: BTreeSet<&NodeName> = self.applicants.iter().map(|applicant| &applicant.node).collect();
        self.granted.retain(|node, _| applying.contains(node));
        self.deferred
            .retain(|node, until| now < *until && applying.contains(node));
        let unused = |since: &Monotonic| now >= since.after(GRANT_LASTS);
        for (node, _) in self.granted.extract_if(.., |_, since| unused(since)) {
            self.deferred.insert(node, now.after(DEFERRED_FOR));
        }
        let (last, first): (Vec<&QueuedNode>, Vec<&QueuedNode>) = self
            .applicants
            .iter()
            .partition(|applicant| self.deferred.contains_key(&applicant.node));
        let in_turn: Vec<NodeName> = first.into_iter().chain(last).map(|it| it.node.clone()).collect();
        for node in in_turn {
            if self.full(limits).is_some() {
                // Nobody is let past the head of the queue.
                break;
            }
            self.granted.entry(node).or_insert(now);
        }
    }

    /// When the next grant lapses, or the next node is deferred no longer.
    pub fn next_lapse(&self) -> Option<Monotonic> {
        let lapses = self.granted.values().map(|since| since.after(GRANT_LASTS));
        lapses.chain(self.deferred.values().copied()).min()
    }

    /// What `node` is told.
    pub fn admission(&self, node: &NodeName, limits: AdmissionLimits) -> Admission {
        let applies = || self.applicants.iter().any(|applicant| applicant.node == *node);
        // Whoever drains has its place, and nobody is ahead of it; naming all others to each of many would take long.
        if self.granted.contains_key(node) || self.draining.contains(node) && !applies() {
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
            .applicants
            .iter()
            .map(|applicant| &applicant.node)
            .take_while(|name| *name != node);
        ahead.extend(before.filter(|name| !self.granted.contains_key(*name)).cloned());
        Admission::Behind { ahead, limit }
    }

    /// The limit that is full, if one is.
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
