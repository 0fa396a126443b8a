//! The custom attribute `haulout` of the host and the VM of an episode: its present state, for people who look at lists in
//! vCenter. Values that an earlier process left are cleared.

mod leftovers;
mod set;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::leftovers::Leftovers;
use super::sink::{self, Keep, Outbox, Pace, SinkKey, Urgency};
use crate::vcenter_events::text::{objects_of, place, wait_text};
use haulout_controller::observer::Observer;
use haulout_core::ids::{HostRef, NodeName};
use haulout_core::inventory::Inventory;
use haulout_core::maintenance::waiting::WaitingOn;
use haulout_core::status::NodeStatuses;
use haulout_core::status::node_event::NodeEvent;
use haulout_core::status::story::Beat;
use haulout_vsphere::privileges::Entity;
pub use set::LeaderAttribute;

pub const ATTRIBUTE: &str = "haulout";

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

/// The values, which the story of each node changes and [`run`] sets.
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
    /// A status has had the episode since. An older one says nothing about it.
    was_seen: bool,
}

impl Observer for AttributeBoard {
    fn observe(&self, node: &NodeName, beat: &Beat<'_>) {
        match beat.event {
            NodeEvent::Recorded {
                before, transition, ..
            } => {
                let Some(episode) = transition.record.episode().filter(|_| transition.ended.is_none()) else {
                    let on = before.episode().map(objects_of).unwrap_or_default();
                    self.hide(node, on);
                    return;
                };
                if beat.is_new {
                    let text = place(node, episode);
                    self.set_text(node, text, objects_of(episode), Urgency::Change);
                }
            }
            // The record may be that of an episode that has ended, or is another release's to show.
            NodeEvent::Waits {
                on: WaitingOn::Kubernetes { .. } | WaitingOn::Vcenter { .. } | WaitingOn::OtherRelease { .. },
                ..
            } => {}
            NodeEvent::Waits { on, .. } => {
                if let Some(episode) = beat.episode().filter(|_| beat.is_new) {
                    let text = wait_text(node, episode, on, beat.at);
                    self.set_text(node, text, objects_of(episode), Urgency::Progress);
                }
            }
            NodeEvent::NotRecorded { .. } | NodeEvent::Asks { .. } | NodeEvent::Forecasts { .. } => {}
        }
    }

    fn built_by_leader(&self, statuses: &Arc<NodeStatuses>, inventory: &Inventory) {
        self.hide_gone(statuses);
        let hosts = || inventory.hosts_of_ours().into_keys().collect();
        self.look_for_leftovers(statuses, hosts);
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
        let was_seen = false;
        let before = shown.insert(node.clone(), ShownText { text, on, was_seen });
        self.push(&shown, before, touched, urgency);
    }

    /// Clears what `node` shows: its episode on the objects `on` ended. They may have a value of an earlier process.
    fn hide(&self, node: &NodeName, on: Vec<Entity>) {
        let mut shown = self.0.shown.lock();
        let before = shown.remove(node);
        self.push(&shown, before, on, Urgency::Change);
    }

    /// Clears what is shown of episodes that ended without a transition, as where a person has removed the record.
    fn hide_gone(&self, statuses: &NodeStatuses) {
        let mut gone = Vec::new();
        for (node, shown) in &mut *self.0.shown.lock() {
            let status = statuses.get(node);
            let has_episode = status.is_some_and(|status| status.record.episode().is_some());
            let is_known = status.is_none_or(|status| status.is_known);
            if shown.was_seen && !has_episode && is_known {
                gone.push(node.clone());
            }
            shown.was_seen |= has_episode;
        }
        for node in gone {
            self.hide(&node, Vec::new());
        }
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
