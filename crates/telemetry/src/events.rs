//! The Events and conditions of a Node, as `kubectl describe node` shows them.
//!
//! A transition creates at most one Event, and so does a wait that matters to a person. Only the begin of a maintenance in
//! which vCenter itself shuts the VM down creates a second one. The sentences are those of the log. An Event is not
//! repeated within [`REPEAT_AFTER`].

mod conditions;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;

use self::conditions::NodeConditions;
use crate::link::Links;
use haulout_controller::observer::Observer;
use haulout_core::ids::{NodeName, NodeUid};
use haulout_core::inventory::{Inventory, UnhandledHost, UnhandledMode, UnhandledModes};
use haulout_core::status::NodeStatuses;
use haulout_core::status::node_event::NodeEvent;
use haulout_core::status::story::{Beat, Reason, Told};
use haulout_kubernetes::events::{Event, Publisher, Regarding};

/// An identical Event is suppressed for this time. Kubernetes keeps Events for an hour, and a wait
/// whose details keep changing is one fact.
const REPEAT_AFTER: SignedDuration = SignedDuration::from_secs(10 * 60);

/// Passes the story of each node to the publisher, as Events and conditions.
#[derive(Debug)]
pub struct Events {
    publisher: Publisher,
    links: Links,
    clock: fn() -> Timestamp,
    memory: Mutex<EventMemory>,
    conditions: Mutex<NodeConditions>,
    modes: Mutex<UnhandledModes>,
}

/// What was sent, by node and by what it said.
#[derive(Debug, Default)]
struct EventMemory {
    sent: BTreeMap<NodeName, BTreeMap<String, Timestamp>>,
    last_at: Option<Timestamp>,
}

impl Events {
    pub fn new(publisher: Publisher, links: Links, clock: fn() -> Timestamp) -> Self {
        Self {
            publisher,
            links,
            clock,
            memory: Mutex::default(),
            conditions: Mutex::default(),
            modes: Mutex::default(),
        }
    }

    fn write_conditions(&self) {
        for conditions in self.conditions.lock().take_due(Instant::now()) {
            self.publisher.conditions(conditions);
        }
    }

    /// Creates an Event on each node of a host that is asked for something that Haulout does not react to.
    fn unhandled(&self, host: &UnhandledHost) {
        let reason = match host.mode {
            UnhandledMode::Standby { .. } => Reason::HostStandbyRequested,
            UnhandledMode::PartialMaintenance { .. } => Reason::HostPartialMaintenance,
        };
        for (node, uid) in &host.nodes {
            self.publish(node, uid, reason, host.sentence());
        }
    }

    /// Returns whether the Event was queued.
    fn publish(&self, node: &NodeName, uid: &NodeUid, reason: Reason, note: String) -> bool {
        let at = self.memory.lock().moment((self.clock)());
        self.publisher.event(Event {
            regarding: Regarding::Node {
                name: node.clone(),
                uid: uid.clone(),
            },
            at,
            severity: reason.severity(),
            reason: reason.name(),
            action: reason.action(),
            note,
        })
    }
}

impl Observer for Events {
    fn observe(&self, node: &NodeName, beat: &Beat<'_>) {
        let now = (self.clock)();
        let due = self.memory.lock().due(node, beat, now);
        if let (Some(told), Some(uid)) = (due, beat.event.node_uid()) {
            let note = self.links.note(beat, told);
            if !self.publish(node, uid, told.reason, note) {
                self.memory.lock().forget(node, &told.key);
            }
        }
        if let (Some(told), Some(uid)) = (beat.evacuation(), beat.event.node_uid()) {
            self.publish(node, uid, told.reason, told.sentence);
        }
    }

    fn built_by_leader(&self, statuses: &Arc<NodeStatuses>, _inventory: &Inventory) {
        let now = ((self.clock)(), Instant::now());
        self.conditions.lock().update_statuses(statuses, &self.links, now);
        self.write_conditions();
        self.memory
            .lock()
            .sent
            .retain(|name, _| statuses.contains_key(name));
    }

    fn leader_tick(&self, inventory: &Inventory) {
        self.write_conditions();
        let Some(hosts) = inventory.unhandled_hosts() else {
            return;
        };
        for warning in self.modes.lock().take_new(hosts) {
            self.unhandled(&warning.of);
        }
    }
}

impl EventMemory {
    /// What is due as an Event; `None` if there is nothing, or it is a repetition.
    fn due<'a>(&mut self, node: &NodeName, beat: &'a Beat<'_>, now: Timestamp) -> Option<&'a Told> {
        let told = beat.told.as_ref()?;
        if matches!(beat.event, NodeEvent::Recorded { transition, .. } if transition.ended.is_some()) {
            self.sent.remove(node);
            return Some(told);
        }
        let sent = self.sent.entry(node.clone()).or_default();
        sent.retain(|_, at| now.duration_since(*at).abs() < REPEAT_AFTER);
        if sent.contains_key(&told.key) {
            return None;
        }
        sent.insert(told.key.clone(), now);
        Some(told)
    }

    fn forget(&mut self, node: &NodeName, key: &str) {
        if let Some(sent) = self.sent.get_mut(node) {
            sent.remove(key);
        }
    }

    /// `now` in microseconds, the resolution of Events, and later than every time returned before.
    fn moment(&mut self, now: Timestamp) -> Timestamp {
        let now = Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now);
        let moment = match self.last_at {
            Some(last) if now <= last => last.checked_add(SignedDuration::from_micros(1)).unwrap_or(last),
            Some(_) | None => now,
        };
        self.last_at = Some(moment);
        moment
    }
}

#[cfg(test)]
mod tests;
