//! The Events and conditions of a Node, as `kubectl describe node` shows them.
//!
//! A transition creates at most one Event, and so does a wait that matters to a person. Only the begin of a maintenance in
//! which vCenter itself shuts the VM down creates a second one. Event texts use the same values as the log. An Event is not
//! repeated within [`REPEAT_AFTER`].

mod conditions;
mod parts;
mod reasons;
mod repair;
mod waits;
mod words;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::link::Links;
use haulout_controller::observer::Observer;
use haulout_core::ids::{NodeName, NodeUid};
use haulout_core::inventory::{Inventory, UnhandledHost, UnhandledMode, UnhandledModes};
use haulout_core::maintenance::episode::Episode;
use haulout_core::maintenance::waiting::WaitingOn;
use haulout_core::status::NodeStatuses;
use haulout_core::status::node_event::NodeEvent;
use haulout_kubernetes::events::{Event, Publisher, Regarding};
pub use reasons::Reason;
use repair::ConditionRepairs;

/// An identical Event is suppressed for this time. Kubernetes keeps Events for an hour, and a wait
/// whose details keep changing is one fact.
const REPEAT_AFTER: SignedDuration = SignedDuration::from_secs(10 * 60);

/// Passes events of actors to the publisher, as Events and conditions.
#[derive(Debug)]
pub struct Events {
    publisher: Publisher,
    clock: fn() -> Timestamp,
    memory: Mutex<EventMemory>,
    repairs: Mutex<ConditionRepairs>,
    modes: Mutex<UnhandledModes>,
}

/// The content of an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventText {
    uid: NodeUid,
    reason: Reason,
    pub(super) note: String,
    /// Events with the same key are the same.
    pub(super) key: String,
}

#[derive(Debug, Default)]
struct EventMemory {
    links: Links,
    nodes: BTreeMap<NodeName, EventsOfNode>,
    last_at: Option<Timestamp>,
}

/// State of a node during its episode. It is used for texts only; a restart loses it.
#[derive(Debug, Default)]
struct EventsOfNode {
    /// The deadline of the guest shutdown.
    guest_until: Option<Timestamp>,
    sent: BTreeMap<String, Timestamp>,
}

impl Events {
    pub fn new(publisher: Publisher, links: Links, clock: fn() -> Timestamp) -> Self {
        Self {
            publisher,
            clock,
            memory: Mutex::new(EventMemory {
                links,
                ..EventMemory::default()
            }),
            repairs: Mutex::default(),
            modes: Mutex::default(),
        }
    }

    /// Writes conditions again that still differ.
    fn repair_conditions(&self) {
        let mut repairs = self.repairs.lock();
        for conditions in repairs.take_due(Instant::now()) {
            self.publisher.conditions(conditions);
        }
    }

    /// Creates an Event on each node of a host that is asked for something that Haulout does not react to.
    fn unhandled(&self, host: &UnhandledHost) {
        let reason = match host.mode {
            UnhandledMode::Standby { .. } => Reason::HostStandbyRequested,
            UnhandledMode::PartialMaintenance { .. } => Reason::HostPartialMaintenance,
        };
        let mut memory = self.memory.lock();
        for (node, uid) in &host.nodes {
            let said = EventText {
                uid: uid.clone(),
                reason,
                note: host.sentence(),
                key: String::new(),
            };
            let (event, _) = memory.create(node, said, (self.clock)());
            self.publisher.event(event);
        }
    }
}

/// The Event for a transition, or for one that was not written.
pub(super) fn of_change(event: NodeEvent<'_>, links: &Links, now: Timestamp) -> Option<EventText> {
    words::event_text(event, &EventsOfNode::default(), links, now)
}

/// What distinguishes a wait from others for a person: details that keep changing are not in it.
pub(super) fn key_of_wait(episode: &Episode, on: &WaitingOn, now: Timestamp) -> String {
    let said = waits::wait_event(episode, on, &EventsOfNode::default(), now);
    said.map_or_else(
        || on.kind().name().to_owned(),
        |(reason, _, detail)| format!("{} {detail}", reason.name()),
    )
}

impl Observer for Events {
    fn observe(&self, node: &NodeName, event: NodeEvent<'_>) {
        let mut memory = self.memory.lock();
        let now = (self.clock)();
        let begun = memory.event(node, event, now);
        for (created, key) in begun.into_iter().chain(memory.evacuation(node, event, now)) {
            if !self.publisher.event(created) {
                memory.forget(node, &key);
            }
        }
        if let Some(conditions) = conditions::changed(node, event, &memory.links, now) {
            self.publisher.conditions(conditions);
        }
    }

    /// Compares the conditions on the Nodes with their records.
    fn built_by_leader(&self, statuses: &Arc<NodeStatuses>, _inventory: &Inventory) {
        let memory = self.memory.lock();
        let mut repairs = self.repairs.lock();
        let now = ((self.clock)(), Instant::now());
        repairs.update_statuses(statuses, &memory.links, now);
    }

    fn leader_tick(&self, inventory: &Inventory) {
        self.repair_conditions();
        let Some(hosts) = inventory.unhandled_hosts() else {
            return;
        };
        for warning in self.modes.lock().take_new(hosts) {
            self.unhandled(&warning.of);
        }
    }
}

impl EventMemory {
    /// The Event for `event`, and its key; `None` if there is none, or it is a repetition.
    fn event(&mut self, node: &NodeName, event: NodeEvent<'_>, now: Timestamp) -> Option<(Event, String)> {
        self.note_event(node, event);
        let unknown = EventsOfNode::default();
        let of_node = self.nodes.get(node).unwrap_or(&unknown);
        let said = words::event_text(event, of_node, &self.links, now)?;
        let has_ended = matches!(event, NodeEvent::Recorded { transition, .. } if transition.ended.is_some());
        if has_ended {
            self.nodes.remove(node);
        } else {
            let sent = &mut self.nodes.entry(node.clone()).or_default().sent;
            sent.retain(|_, at| now.duration_since(*at) < REPEAT_AFTER);
            if sent.contains_key(&said.key) {
                return None;
            }
            sent.insert(said.key.clone(), now);
        }
        Some(self.create(node, said, now))
    }

    /// The Event for the begin of a maintenance in which vCenter itself shuts the VM down.
    fn evacuation(
        &mut self,
        node: &NodeName,
        event: NodeEvent<'_>,
        now: Timestamp,
    ) -> Option<(Event, String)> {
        let said = words::evacuation(event)?;
        Some(self.create(node, said, now))
    }

    fn create(&mut self, node: &NodeName, said: EventText, now: Timestamp) -> (Event, String) {
        let at = self.moment(now);
        let event = Event {
            regarding: Regarding::Node {
                name: node.clone(),
                uid: said.uid,
            },
            at,
            severity: said.reason.severity(),
            reason: said.reason.name(),
            action: said.reason.action(),
            note: said.note,
        };
        (event, said.key)
    }

    fn forget(&mut self, node: &NodeName, key: &str) {
        if let Some(of_node) = self.nodes.get_mut(node) {
            of_node.sent.remove(key);
        }
    }

    fn note_event(&mut self, node: &NodeName, event: NodeEvent<'_>) {
        match event {
            NodeEvent::Recorded {
                before, transition, ..
            } => {
                if transition.record.phase_name() != before.phase_name() {
                    self.nodes.entry(node.clone()).or_default().guest_until = None;
                }
            }
            NodeEvent::Waits {
                on: WaitingOn::GuestShutdown { until },
                ..
            } => self.nodes.entry(node.clone()).or_default().guest_until = Some(*until),
            NodeEvent::Waits { .. }
            | NodeEvent::Forecasts { .. }
            | NodeEvent::NotRecorded { .. }
            | NodeEvent::Asks { .. } => {}
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
