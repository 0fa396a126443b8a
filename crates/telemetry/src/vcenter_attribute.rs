//! The custom attribute `haulout` of the host and the VM of an episode: its present state, for people who look at lists in
//! vCenter. Values that an earlier process left are cleared.

mod leftovers;
mod set;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::leftovers::Leftovers;
use super::sink::{self, Keep, Outbox, Pace, SinkKey, Urgency};
use crate::vcenter_events::text::{LastText, new_wait, objects_of};
use haulout_controller::observer::Observer;
use haulout_core::ids::{HostRef, NodeName};
use haulout_core::inventory::Inventory;
use haulout_core::maintenance::waiting::WaitingOn;
use haulout_core::status::NodeStatuses;
use haulout_core::status::node_event::NodeEvent;
use haulout_vsphere::privileges::Entity;
pub use set::LeaderAttribute;

pub const ATTRIBUTE: &str = "haulout";

/// What each value begins with, before the name of the node. By it a value is known to be Haulout's.
const BEGINS: &str = "Haulout, node ";

/// Characters of a value: what a column of a list shows, with some more in its tooltip. The longest that vCenter keeps is not known.
const CHARACTERS_MAX: usize = 200;

/// vCenter logs an event for each value.
const PACE: Pace = Pace {
    at_once: 4,
    pause_min: Duration::from_secs(3),
    pause_max: Duration::from_secs(60),
    keep: Keep::Newest,
};

impl SinkKey for Entity {
    fn group(&self) -> &'static str {
        self.kind_words()
    }
}

/// Shows the events of actors.
#[derive(Debug)]
pub struct VcenterAttribute {
    board: AttributeBoard,
    clock: fn() -> Timestamp,
    /// The last wait of each node.
    last: Mutex<BTreeMap<NodeName, LastText>>,
}

/// The values, which the observer changes and [`run`] sets.
#[derive(Clone, Debug)]
pub struct AttributeBoard(Arc<BoardState>);

#[derive(Debug)]
struct BoardState {
    shown: Mutex<BTreeMap<NodeName, ShownText>>,
    outbox: Outbox<Entity, String>,
    leftovers: Mutex<Leftovers>,
    /// There are new leftovers.
    are_found: Notify,
}

#[derive(Debug)]
struct ShownText {
    text: String,
    on: Vec<Entity>,
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
                    self.board.hide(node, on);
                    return;
                };
                if transition.is_bookkeeping(before) {
                    return;
                }
                last.insert(node.clone(), LastText::default());
                let phase = episode.phase.kind();
                let target = episode.phase.target().map(|host| format!(" to {host}"));
                let text = format!("{BEGINS}{node}, {phase}{}", target.unwrap_or_default());
                self.board
                    .set_text(node, text, objects_of(episode), Urgency::Change);
            }
            NodeEvent::Waits { record, on, .. } => {
                let Some(episode) = record.episode() else { return };
                // The record may be that of an episode that has ended, and then nothing would clear the value.
                if matches!(on, WaitingOn::Kubernetes { .. } | WaitingOn::Vcenter { .. }) {
                    return;
                }
                let last = last.entry(node.clone()).or_default();
                if let Some(text) = new_wait(node, episode, on, last, (self.clock)()) {
                    self.board
                        .set_text(node, text, objects_of(episode), Urgency::Progress);
                }
            }
            NodeEvent::NotRecorded { .. } | NodeEvent::Asks { .. } | NodeEvent::Forecasts { .. } => {}
        }
    }

    /// The value stays: an actor also ends at a stop, while its episode goes on.
    fn actor_ended(&self, node: &NodeName) {
        let mut last = self.last.lock();
        last.remove(node);
    }

    fn built_by_leader(&self, statuses: &Arc<NodeStatuses>, inventory: &Inventory) {
        let hosts = || inventory.hosts_of_ours().into_keys().collect();
        self.board.look_for_leftovers(statuses, hosts);
    }
}

impl Default for AttributeBoard {
    fn default() -> Self {
        Self(Arc::new(BoardState {
            shown: Mutex::default(),
            outbox: Outbox::new(PACE),
            leftovers: Mutex::default(),
            are_found: Notify::new(),
        }))
    }
}

impl AttributeBoard {
    /// Shows `text` of `node` on these objects, in place of what it showed before.
    fn set_text(&self, node: &NodeName, text: String, on: Vec<Entity>, urgency: Urgency) {
        let mut shown = self.0.shown.lock();
        let touched = on.clone();
        let before = shown.insert(node.clone(), ShownText { text, on });
        self.push(&shown, before, touched, urgency);
    }

    /// Clears what `node` shows: its episode on the objects `on` ended. They may have a value of an earlier process.
    fn hide(&self, node: &NodeName, on: Vec<Entity>) {
        let mut shown = self.0.shown.lock();
        let before = shown.remove(node);
        self.push(&shown, before, on, Urgency::Change);
    }

    /// Has the objects of what was shown `before`, and these, show the texts of all nodes.
    fn push(
        &self,
        shown: &BTreeMap<NodeName, ShownText>,
        before: Option<ShownText>,
        on: Vec<Entity>,
        urgency: Urgency,
    ) {
        let before = before.into_iter().flat_map(|before| before.on);
        let objects: BTreeSet<Entity> = before.chain(on).collect();
        for entity in objects {
            let texts = shown.values().filter(|shown| shown.on.contains(&entity));
            let texts: Vec<&str> = texts.map(|shown| shown.text.as_str()).collect();
            let value = cut(&texts.join(" | "));
            self.0.outbox.push(entity, value, urgency);
        }
    }

    /// Has values cleared that an earlier process left. Each node is looked at once, as soon as its VM is known.
    fn look_for_leftovers(&self, statuses: &NodeStatuses, hosts: impl FnOnce() -> Vec<HostRef>) {
        let mut leftovers = self.0.leftovers.lock();
        if leftovers.add(statuses, hosts) {
            self.0.are_found.notify_one();
        }
    }
}

/// Sets what `board` shows until `stop`.
pub async fn run(port: LeaderAttribute, board: AttributeBoard, stop: CancellationToken) {
    let outbox = board.0.outbox.clone();
    // A value is tried until it is there, so none is lost.
    let setting = sink::run(&port, outbox, Counter::default(), stop);
    tokio::select! {
        biased;
        () = setting => {}
        () = leftovers::clear(&port, &board) => {}
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some(_) => text.chars().take(CHARACTERS_MAX - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
