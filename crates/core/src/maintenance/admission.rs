//! Which nodes may begin to drain: first come, first served, within two limits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::clock::Monotonic;
use crate::ids::NodeName;

pub use self::rounds::{AdmissionRound, RoundStart};

mod rounds;

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
        /// The other nodes that hold the slots or are earlier in the queue, each once. Empty where only the power-offs of the node
        /// itself reach the limit.
        ahead: Vec<NodeName>,
        /// Its position among the nodes that wait, from 1.
        position: usize,
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
    /// `MAX_UNAVAILABLE_GPUS`, as a number of GPUs.
    UnavailableGpus(u32),
    /// `MAX_POWER_OFFS_PER_HOUR`, as a number of power-offs.
    PowerOffs(u32),
}

impl SlotLimit {
    pub fn setting(self) -> &'static str {
        match self {
            Self::ConcurrentDrains(_) => "MAX_CONCURRENT_DRAINS",
            Self::Unavailable(_) => "MAX_UNAVAILABLE",
            Self::UnavailableGpus(_) => "MAX_UNAVAILABLE_GPUS",
            Self::PowerOffs(_) => "MAX_POWER_OFFS_PER_HOUR",
        }
    }

    pub fn value(self) -> u32 {
        match self {
            Self::ConcurrentDrains(limit)
            | Self::Unavailable(limit)
            | Self::UnavailableGpus(limit)
            | Self::PowerOffs(limit) => limit,
        }
    }
}

/// The configured limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// `MAX_CONCURRENT_DRAINS`: nodes from their cordon until their VM is off or away.
    pub concurrent_drains: u32,
    /// `MAX_UNAVAILABLE`, as a number of nodes: from their cordon until they are back.
    pub unavailable: Option<u32>,
    /// `MAX_UNAVAILABLE_GPUS`, as a number of GPUs: of the nodes that are unavailable.
    pub unavailable_gpus: Option<u32>,
    /// `MAX_POWER_OFFS_PER_HOUR`, as a number: begun in the last hour, or to follow on a drain.
    pub power_offs: Option<u32>,
}

/// A node that needs a slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueuedNode {
    /// When its maintenance was requested, on the clock of vCenter or the kube-apiserver, which is the same for all nodes; for a
    /// request not before the end of the last episode of its node.
    pub clicked_at: Timestamp,
    /// Its name, which breaks ties.
    pub node: NodeName,
}

/// The nodes that hold a slot and those that wait for one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdmissionQueue {
    pub draining: BTreeSet<NodeName>,
    /// Nodes that are unavailable, including those that are draining.
    pub unavailable: BTreeSet<NodeName>,
    /// Nodes with a granted slot that their record does not show yet, with the time of the grant.
    pub granted: BTreeMap<NodeName, Monotonic>,
    /// Nodes that did not use their slot, with the time until which the others come first.
    pub deferred: BTreeMap<NodeName, Monotonic>,
    /// Nodes that need a slot, including those in `granted`.
    pub queued: BTreeSet<QueuedNode>,
    /// The GPUs of these nodes.
    pub gpus: BTreeMap<NodeName, u32>,
    /// How often the VM of a node was switched off in the last hour.
    pub power_offs: BTreeMap<NodeName, usize>,
    /// The nodes in `draining` and `queued` whose drain no power-off follows that has still to be counted.
    pub drain_only: BTreeSet<NodeName>,
}

impl AdmissionQueue {
    /// A queue without nodes, with the grants of the one before.
    pub fn after(before: Option<Self>) -> Self {
        let before = before.unwrap_or_default();
        Self {
            granted: before.granted,
            deferred: before.deferred,
            ..Self::default()
        }
    }

    /// Grants free slots in order. A granted slot stays granted until the node's record shows it, the node no longer needs it, or
    /// it was not used in time. So no slot is granted twice, and a node that cannot begin blocks no other.
    ///
    /// While a node waits, those behind it wait as well, except nodes that are unavailable already: the one that waits may wait for
    /// them, and they take no further slot of `MAX_UNAVAILABLE`.
    pub fn grant(&mut self, limits: AdmissionLimits, now: Monotonic) {
        self.lapse(now);
        let queued: BTreeSet<&NodeName> = self.queued.iter().map(|it| &it.node).collect();
        self.granted.retain(|node, _| queued.contains(node));
        self.deferred.retain(|node, _| queued.contains(node));
        let in_turn: Vec<NodeName> = self.in_turn().cloned().collect();
        let mut does_one_wait = false;
        for node in in_turn {
            let may_begin = !does_one_wait || self.unavailable.contains(&node);
            if may_begin && self.full(&node, limits).is_none() {
                self.granted.entry(node).or_insert(now);
            } else {
                does_one_wait = true;
            }
        }
    }

    /// Takes back the slots that were not used in time, and ends deferrals. Needed also while no slot is granted: otherwise
    /// [`AdmissionQueue::next_lapse`] stays in the past.
    pub fn lapse(&mut self, now: Monotonic) {
        self.deferred.retain(|_, until| now < *until);
        let unused = |since: &Monotonic| now >= since.after(GRANT_LASTS);
        for (node, _) in self.granted.extract_if(.., |_, since| unused(since)) {
            self.deferred.insert(node, now.after(DEFERRED_FOR));
        }
    }

    /// When the next grant expires, or the next node is no longer deferred.
    pub fn next_lapse(&self) -> Option<Monotonic> {
        let lapses = self.granted.values().map(|since| since.after(GRANT_LASTS));
        lapses.chain(self.deferred.values().copied()).min()
    }

    pub fn admission(&self, node: &NodeName, limits: AdmissionLimits) -> Admission {
        let is_queued = || self.queued.iter().any(|it| it.node == *node);
        // A draining node has its slot, so the list of the others is not computed.
        if self.granted.contains_key(node) || self.draining.contains(node) && !is_queued() {
            return Admission::Granted;
        }
        let before: Vec<&NodeName> = self.in_turn().take_while(|name| *name != node).collect();
        let before = before
            .into_iter()
            .filter(|name| !self.granted.contains_key(*name));
        let before: Vec<&NodeName> = before.collect();
        // A node that no limit keeps from a slot waits for the same as the first before it.
        let limit = self.full(node, limits);
        let limit = limit.or_else(|| before.iter().find_map(|name| self.full(name, limits)));
        let limit = limit.unwrap_or(SlotLimit::ConcurrentDrains(limits.concurrent_drains));
        let switched_off = || {
            let is_due = |name: &&NodeName| !self.drain_only.contains(*name);
            let due = self.draining.iter().filter(is_due);
            self.power_offs.keys().chain(due).cloned().collect()
        };
        let holders = match limit {
            SlotLimit::PowerOffs(_) => &switched_off(),
            SlotLimit::ConcurrentDrains(_) => &self.draining,
            SlotLimit::Unavailable(_) | SlotLimit::UnavailableGpus(_) => &self.unavailable,
        };
        let holders: BTreeSet<&NodeName> = holders.iter().chain(self.granted.keys()).collect();
        let is_behind = |name: &&&NodeName| !holders.contains(**name);
        let ahead = holders.iter().chain(before.iter().filter(is_behind));
        Admission::Queued {
            ahead: ahead
                .filter(|name| **name != node)
                .map(|name| (*name).clone())
                .collect(),
            position: before.len() + 1,
            limit,
        }
    }

    /// The queued nodes in their order: those that did not use a slot come last.
    fn in_turn(&self) -> impl Iterator<Item = &NodeName> {
        let queued = || self.queued.iter().map(|it| &it.node);
        let first = queued().filter(|node| !self.deferred.contains_key(*node));
        first.chain(queued().filter(|node| self.deferred.contains_key(*node)))
    }

    /// The limit that keeps `node` from a slot. A node that holds a slot of a limit already needs no other one of it.
    pub fn full(&self, node: &NodeName, limits: AdmissionLimits) -> Option<SlotLimit> {
        let is_full = |holders: &BTreeSet<NodeName>, limit: u32| {
            let others = self.and_granted(holders).filter(|name| *name != node);
            !holders.contains(node) && u32::try_from(others.count()).unwrap_or(u32::MAX) >= limit
        };
        if is_full(&self.draining, limits.concurrent_drains) {
            return Some(SlotLimit::ConcurrentDrains(limits.concurrent_drains));
        }
        let nodes = limits
            .unavailable
            .filter(|limit| is_full(&self.unavailable, *limit))
            .map(SlotLimit::Unavailable);
        let gpus = || {
            let limit = limits
                .unavailable_gpus
                .filter(|_| !self.unavailable.contains(node))?;
            let others = self.gpus_away(node);
            // A node with more GPUs than the limit has its turn when no other is away.
            let is_over = others > 0 && others.saturating_add(self.gpus_of(node)) > limit;
            is_over.then_some(SlotLimit::UnavailableGpus(limit))
        };
        let power_offs = || {
            limits
                .power_offs
                .filter(|limit| !self.drain_only.contains(node) && self.power_offs_of(node) >= *limit)
        };
        nodes
            .or_else(gpus)
            .or_else(|| power_offs().map(SlotLimit::PowerOffs))
    }

    /// The GPUs of the nodes other than `node` that are unavailable or about to be.
    fn gpus_away(&self, node: &NodeName) -> u32 {
        let away = self.and_granted(&self.unavailable);
        let others = away.filter(|name| *name != node);
        others.fold(0, |sum, name| sum.saturating_add(self.gpus_of(name)))
    }

    /// The power-offs of the last hour, and those that follow on the drains of nodes other than `node`.
    fn power_offs_of(&self, node: &NodeName) -> u32 {
        // The drain slot is held until the VM is off.
        let due = self.and_granted(&self.draining).filter(|name| *name != node);
        let due = due.filter(|name| !self.drain_only.contains(*name)).count();
        let made: usize = self.power_offs.values().sum();
        u32::try_from(made + due).unwrap_or(u32::MAX)
    }

    /// `holders`, and the nodes with a granted slot that are not among them.
    fn and_granted<'a>(&'a self, holders: &'a BTreeSet<NodeName>) -> impl Iterator<Item = &'a NodeName> {
        let granted = self.granted.keys().filter(|name| !holders.contains(*name));
        holders.iter().chain(granted)
    }

    /// A node whose GPUs are not known counts as one.
    fn gpus_of(&self, node: &NodeName) -> u32 {
        self.gpus.get(node).copied().unwrap_or(0).max(1)
    }
}

#[cfg(test)]
mod tests;
