//! The custom attribute `haulout` of the host and the VM of an episode: its present state, for people who look at lists in
//! vCenter.
//!
//! Unlike an event, a value replaces the one before. So nothing is queued: [`run`] compares what an object should have with what
//! it has, and sets it within bounds. It also clears values that an earlier process left.

mod post;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::values::AttributeValues;
use crate::ids::{HostRef, NodeName};
use crate::maintenance::episode::Record;
use crate::status::observer::{NodeEvent, Observer};
use crate::status::{NodeStatus, NodeStatuses};
use crate::telemetry::vcenter_events::text::{LastText, new_wait, objects_of};
use crate::vsphere::privileges::Entity;
pub use post::{LeaderAttribute, run};

pub const ATTRIBUTE: &str = "haulout";

/// What each value begins with, before the name of the node. By it a value is known to be Haulout's.
const BEGINS: &str = "Haulout, node ";

/// Shows the events of actors.
#[derive(Debug)]
pub struct VcenterAttribute {
    board: AttributeBoard,
    clock: fn() -> Timestamp,
    /// The last wait of each node.
    last: Mutex<BTreeMap<NodeName, LastText>>,
}

/// The values, which the observer changes and [`run`] sets.
#[derive(Clone, Debug, Default)]
pub struct AttributeBoard(Arc<BoardState>);

#[derive(Debug, Default)]
struct BoardState {
    values: Mutex<AttributeValues>,
    leftovers: Mutex<Leftovers>,
    /// Something changed.
    changed: Notify,
}

/// Objects that may have a value of an episode that ended while nobody could clear it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leftovers {
    /// The nodes that were looked at. A value is ours if it names one of them: other releases have others.
    nodes: BTreeSet<NodeName>,
    /// The objects that have to be read.
    entities: BTreeSet<Entity>,
}

impl VcenterAttribute {
    pub fn new(board: AttributeBoard, clock: fn() -> Timestamp) -> Self {
        Self {
            board,
            clock,
            last: Mutex::default(),
        }
    }
}

impl Observer for VcenterAttribute {
    fn observe(&self, node: &NodeName, event: NodeEvent<'_>) {
        let mut last = self.last.lock();
        match event {
            NodeEvent::Recorded {
                before, transition, ..
            } => {
                let Some(episode) = transition.record.episode().filter(|_| transition.ended.is_none()) else {
                    last.remove(node);
                    let on = before.episode().map(objects_of).unwrap_or_default();
                    self.board.change(|values, now| values.hide(node, on, now));
                    return;
                };
                if transition.is_bookkeeping(before) {
                    return;
                }
                last.insert(node.clone(), LastText::default());
                let phase = episode.phase.kind();
                let target = episode.phase.target().map(|host| format!(" to {host}"));
                let text = format!("{BEGINS}{node}, {phase}{}", target.unwrap_or_default());
                let on = objects_of(episode);
                self.board
                    .change(|values, now| values.show(node, text, on, true, now));
            }
            NodeEvent::Waits { record, on, .. } => {
                let Some(episode) = record.episode() else { return };
                let last = last.entry(node.clone()).or_default();
                let Some(text) = new_wait(node, episode, on, last, (self.clock)()) else {
                    return;
                };
                let on = objects_of(episode);
                self.board
                    .change(|values, now| values.show(node, text, on, false, now));
            }
            NodeEvent::NotRecorded { .. } | NodeEvent::Asks { .. } | NodeEvent::Forecasts { .. } => {}
        }
    }

    /// The value stays: an actor also ends at a stop, while its episode goes on.
    fn gone(&self, node: &NodeName) {
        let mut last = self.last.lock();
        last.remove(node);
    }
}

impl AttributeBoard {
    fn change(&self, act: impl FnOnce(&mut AttributeValues, Instant)) {
        self.with(|values| act(values, Instant::now()));
        self.0.changed.notify_one();
    }

    fn with<T>(&self, act: impl FnOnce(&mut AttributeValues) -> T) -> T {
        act(&mut self.0.values.lock())
    }

    /// Has values cleared that an earlier process left. Each node is looked at once, as soon as its VM is known.
    pub(crate) fn look_for_leftovers(&self, statuses: &NodeStatuses, hosts: impl FnOnce() -> Vec<HostRef>) {
        let mut leftovers = self.0.leftovers.lock();
        if leftovers.take(statuses, hosts) {
            drop(leftovers);
            self.0.changed.notify_one();
        }
    }

    /// The objects to be read, and how their values are known to be ours.
    fn take_leftovers(&self) -> Option<Leftovers> {
        let mut leftovers = self.0.leftovers.lock();
        let entities = std::mem::take(&mut leftovers.entities);
        let nodes = leftovers.nodes.clone();
        (!entities.is_empty()).then_some(Leftovers { nodes, entities })
    }
}

impl Leftovers {
    /// Adds the nodes of these statuses that were not looked at before. Returns whether there are any.
    fn take(&mut self, statuses: &NodeStatuses, hosts: impl FnOnce() -> Vec<HostRef>) -> bool {
        let is_new = |node: &NodeName, status: &NodeStatus| {
            status.is_known && status.vm.found().is_some() && !self.nodes.contains(node)
        };
        let new: Vec<(&NodeName, &NodeStatus)> = statuses
            .iter()
            .map(|(node, status)| (node, &**status))
            .filter(|(node, status)| is_new(node, status))
            .collect();
        if new.is_empty() {
            return false;
        }
        let vms = new.iter().filter_map(|(_, status)| status.vm.found());
        self.entities.extend(vms.map(|vm| Entity::Vm(vm.moref.clone())));
        self.entities.extend(hosts().into_iter().map(Entity::Host));
        self.nodes.extend(new.into_iter().map(|(node, _)| node.clone()));
        let records = statuses.values().map(|status| &status.record);
        for entity in records.filter_map(Record::episode).flat_map(objects_of) {
            self.entities.remove(&entity);
        }
        true
    }

    /// Whether `value` is one that Haulout set for one of these nodes.
    fn is_ours(&self, value: &str) -> bool {
        let node = value.strip_prefix(BEGINS).and_then(|rest| rest.split(',').next());
        node.is_some_and(|node| self.nodes.contains(&NodeName::new(node)))
    }
}

#[cfg(test)]
mod tests;
