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
        /// The nodes that hold the slots or are earlier in the queue.
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
    /// The name of the setting.
    pub fn setting(self) -> &'static str {
        match self {
            Self::ConcurrentDrains(_) => "MAX_CONCURRENT_DRAINS",
            Self::Unavailable(_) => "MAX_UNAVAILABLE",
            Self::UnavailableGpus(_) => "MAX_UNAVAILABLE_GPUS",
            Self::PowerOffs(_) => "MAX_POWER_OFFS_PER_HOUR",
        }
    }

    /// Its value.
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
    /// The GPUs of these nodes.
    pub gpus: BTreeMap<NodeName, u32>,
    /// How often the VM of a node was switched off in the last hour.
    pub power_offs: BTreeMap<NodeName, usize>,
}

impl AdmissionQueue {
    /// A queue without nodes.
    pub const fn new() -> Self {
        Self {
            draining: BTreeSet::new(),
            unavailable: BTreeSet::new(),
            granted: BTreeMap::new(),
            deferred: BTreeMap::new(),
            queued: BTreeSet::new(),
            gpus: BTreeMap::new(),
            power_offs: BTreeMap::new(),
        }
    }

    /// Grants free slots in order. A granted slot stays granted until the node's record shows it, the node no longer needs it, or
    /// it was not used in time. So no slot is granted twice, and a node that cannot begin blocks no other.
    pub fn grant(&mut self, limits: AdmissionLimits, now: Monotonic) {
        self.lapse(now);
        let queued: BTreeSet<&NodeName> = self.queued.iter().map(|it| &it.node).collect();
        self.granted.retain(|node, _| queued.contains(node));
        self.deferred.retain(|node, _| queued.contains(node));
        let in_turn: Vec<NodeName> = self.in_turn().cloned().collect();
        for node in in_turn {
            if self.full(&node, limits).is_some() {
                break;
            }
            self.granted.entry(node).or_insert(now);
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

    /// The admission of `node`.
    pub fn admission(&self, node: &NodeName, limits: AdmissionLimits) -> Admission {
        let is_queued = || self.queued.iter().any(|it| it.node == *node);
        // A draining node has its slot, so the list of the others is not computed.
        if self.granted.contains_key(node) || self.draining.contains(node) && !is_queued() {
            return Admission::Granted;
        }
        let limit = self
            .full(node, limits)
            .unwrap_or(SlotLimit::ConcurrentDrains(limits.concurrent_drains));
        let switched_off = || self.power_offs.keys().chain(&self.draining).cloned().collect();
        let holders = match limit {
            SlotLimit::PowerOffs(_) => &switched_off(),
            SlotLimit::ConcurrentDrains(_) => &self.draining,
            SlotLimit::Unavailable(_) | SlotLimit::UnavailableGpus(_) => &self.unavailable,
        };
        let granted = self.granted.keys().filter(|name| !holders.contains(*name));
        let mut ahead: Vec<NodeName> = holders
            .iter()
            .chain(granted)
            .filter(|name| *name != node)
            .cloned()
            .collect();
        ahead.sort();
        let before = self.in_turn().take_while(|name| *name != node);
        let before: Vec<NodeName> = before
            .filter(|name| !self.granted.contains_key(*name))
            .cloned()
            .collect();
        let position = before.len() + 1;
        ahead.extend(before);
        Admission::Queued {
            ahead,
            position,
            limit,
        }
    }

    /// The queued nodes in their order: those that did not use a slot come last.
    fn in_turn(&self) -> impl Iterator<Item = &NodeName> {
        let queued = || self.queued.iter().map(|it| &it.node);
        let first = queued().filter(|node| !self.deferred.contains_key(*node));
        first.chain(queued().filter(|node| self.deferred.contains_key(*node)))
    }

    /// The limit that keeps `node` from a slot.
    pub fn full(&self, node: &NodeName, limits: AdmissionLimits) -> Option<SlotLimit> {
        let count = |holders: &BTreeSet<NodeName>| {
            let granted = self.granted.keys().filter(|name| !holders.contains(*name));
            u32::try_from(holders.len() + granted.count()).unwrap_or(u32::MAX)
        };
        if count(&self.draining) >= limits.concurrent_drains {
            return Some(SlotLimit::ConcurrentDrains(limits.concurrent_drains));
        }
        let nodes = limits
            .unavailable
            .filter(|limit| count(&self.unavailable) >= *limit)
            .map(SlotLimit::Unavailable);
        let gpus = || {
            let limit = limits.unavailable_gpus?;
            let others = self.gpus_away(node);
            // A node with more GPUs than the limit has its turn when no other is away.
            let is_over = others > 0 && others.saturating_add(self.gpus_of(node)) > limit;
            is_over.then_some(SlotLimit::UnavailableGpus(limit))
        };
        let power_offs = || {
            limits
                .power_offs
                .filter(|limit| self.power_offs_of(node) >= *limit)
        };
        nodes
            .or_else(gpus)
            .or_else(|| power_offs().map(SlotLimit::PowerOffs))
    }

    /// The GPUs of the nodes other than `node` that are unavailable or about to be.
    fn gpus_away(&self, node: &NodeName) -> u32 {
        let granted = self
            .granted
            .keys()
            .filter(|name| !self.unavailable.contains(*name));
        let away = self
            .unavailable
            .iter()
            .chain(granted)
            .filter(|name| *name != node);
        away.fold(0, |sum, name| sum.saturating_add(self.gpus_of(name)))
    }

    /// The power-offs of the last hour, and those that follow on the drains of nodes other than `node`.
    fn power_offs_of(&self, node: &NodeName) -> u32 {
        let granted = self.granted.keys().filter(|name| !self.draining.contains(*name));
        // The drain slot is held until the VM is off.
        let due = self.draining.iter().chain(granted).filter(|name| *name != node);
        let due = due.filter(|name| !self.power_offs.contains_key(*name)).count();
        let made: usize = self.power_offs.values().sum();
        u32::try_from(made + due).unwrap_or(u32::MAX)
    }

    /// A node whose GPUs are not known counts as one.
    fn gpus_of(&self, node: &NodeName) -> u32 {
        self.gpus.get(node).copied().unwrap_or(0).max(1)
    }
}

#[cfg(test)]
mod tests;
