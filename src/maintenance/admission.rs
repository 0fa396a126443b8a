//! Who may begin to drain: first come, first served, under the two limits.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::observed::{Admission, Limit};
use crate::ids::NodeName;

/// The configured limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `MAX_CONCURRENT_DRAINS`: nodes from their cordon until their VM is off or away.
    pub concurrent_drains: u32,
    /// `MAX_UNAVAILABLE`, as a number of nodes: from their cordon until they are back.
    pub unavailable: Option<u32>,
}

/// A node that wants to drain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Applicant {
    /// When its host's maintenance was asked for, on vCenter's clock: durable, and one clock for all.
    pub clicked_at: Timestamp,
    /// Its name, which breaks ties.
    pub node: NodeName,
}

/// Who holds places, and who waits for one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Nodes whose record says that they are being drained.
    pub draining: BTreeSet<NodeName>,
    /// Nodes whose record says that they are unavailable; those draining are among them.
    pub unavailable: BTreeSet<NodeName>,
    /// Nodes that were granted a place and whose record does not show it yet.
    pub granted: BTreeSet<NodeName>,
    /// Nodes that want a place, those granted one among them.
    pub applicants: BTreeSet<Applicant>,
}

impl Ledger {
    /// Grants free places in order, and remembers them: a place once granted stays granted until the node's record
    /// shows it or the node no longer applies. So two nodes can never be granted one place, however old the view that
    /// either acts on.
    pub fn grant(&mut self, limits: Limits) {
        let applying: BTreeSet<&NodeName> = self.applicants.iter().map(|applicant| &applicant.node).collect();
        self.granted.retain(|node| applying.contains(node));
        for applicant in &self.applicants {
            if self.full(limits).is_some() {
                // Nobody is let past the head of the queue.
                break;
            }
            self.granted.insert(applicant.node.clone());
        }
    }

    /// What `node` is told.
    pub fn admission(&self, node: &NodeName, limits: Limits) -> Admission {
        let applies = || self.applicants.iter().any(|applicant| applicant.node == *node);
        // Whoever drains has its place, and nobody is ahead of it; naming all others to each of many would take long.
        if self.granted.contains(node) || self.draining.contains(node) && !applies() {
            return Admission::Granted;
        }
        let limit = self
            .full(limits)
            .unwrap_or(Limit::ConcurrentDrains(limits.concurrent_drains));
        let holders = match limit {
            Limit::ConcurrentDrains(_) => &self.draining,
            Limit::Unavailable(_) => &self.unavailable,
        };
        let mut ahead: Vec<NodeName> = holders
            .union(&self.granted)
            .filter(|name| *name != node)
            .cloned()
            .collect();
        let before = self
            .applicants
            .iter()
            .map(|applicant| &applicant.node)
            .take_while(|name| *name != node);
        ahead.extend(before.filter(|name| !self.granted.contains(*name)).cloned());
        Admission::Behind { ahead, limit }
    }

    /// The limit that is full, if one is.
    pub fn full(&self, limits: Limits) -> Option<Limit> {
        let count = |holders: &BTreeSet<NodeName>| {
            u32::try_from(holders.union(&self.granted).count()).unwrap_or(u32::MAX)
        };
        if count(&self.draining) >= limits.concurrent_drains {
            return Some(Limit::ConcurrentDrains(limits.concurrent_drains));
        }
        limits
            .unavailable
            .filter(|limit| count(&self.unavailable) >= *limit)
            .map(Limit::Unavailable)
    }
}

#[cfg(test)]
mod tests;
