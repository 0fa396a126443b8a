//! The Events of a Node, and its conditions: what `kubectl describe node` tells of an episode.
//!
//! A change of phase tells at most one Event, and so does a wait that somebody has to know of. Each states what has
//! happened, in words made from the same values as the log's. What is told again within [`REPEAT_AFTER`] is not sent.

mod conditions;
mod meanings;
mod parts;
mod reasons;
mod waits;
mod words;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};

use crate::config::NodeConditions;
use crate::ids::{NodeName, NodeUid};
use crate::kubernetes::events::{Event, Publisher, Regarding};
use crate::maintenance::waiting::WaitingOn;
use crate::status::observer::{NodeEvent, Observer};
use crate::telemetry::link::Links;
use parts::Parts;
pub use reasons::Reason;

/// How long something that was told is taken for known. Whoever looks sees an hour of Events, and a wait that goes on
/// changing its details all the while is one thing to know, not hundreds.
const REPEAT_AFTER: SignedDuration = SignedDuration::from_secs(10 * 60);

/// Hands what actors tell to the publisher, as Events and conditions.
#[derive(Debug)]
pub struct Events {
    publisher: Publisher,
    conditions: NodeConditions,
    clock: fn() -> Timestamp,
    memory: Mutex<EventMemory>,
}

/// What one Event says, before it is one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EventText {
    uid: NodeUid,
    reason: Reason,
    note: String,
    /// What makes it the same as one told before.
    key: String,
}

#[derive(Debug, Default)]
struct EventMemory {
    links: Links,
    nodes: BTreeMap<NodeName, EventsOfNode>,
    last_at: Option<Timestamp>,
}

/// What is kept of a node while its episode lasts. Nothing is decided from it: a restart loses it, and some words.
#[derive(Debug, Default)]
struct EventsOfNode {
    parts: Parts,
    /// When the power is cut on a guest that was asked to shut down.
    guest_until: Option<Timestamp>,
    sent: BTreeMap<String, Timestamp>,
}

impl Events {
    /// Tells by `publisher`, with these links to traces, and writes conditions if they are wanted.
    pub fn new(
        publisher: Publisher,
        conditions: NodeConditions,
        links: Links,
        clock: fn() -> Timestamp,
    ) -> Self {
        Self {
            publisher,
            conditions,
            clock,
            memory: Mutex::new(EventMemory {
                links,
                ..EventMemory::default()
            }),
        }
    }
}

impl Observer for Events {
    fn observe(&self, node: &NodeName, told: NodeEvent<'_>) {
        // Nothing under the lock can leave it half changed, so one that is poisoned is as good as any.
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let now = (self.clock)();
        if let Some(event) = memory.event(node, told, now)
            && !self.publisher.event(event.0)
        {
            memory.forget(node, &event.1);
        }
        if self.conditions == NodeConditions::WellKnown
            && let Some(conditions) = conditions::changed(node, told, &memory.links, now)
        {
            self.publisher.conditions(conditions);
        }
    }
}

impl EventMemory {
    /// The Event that `told` makes, and its key; none where nobody has to know, or where it is known.
    fn event(&mut self, node: &NodeName, told: NodeEvent<'_>, now: Timestamp) -> Option<(Event, String)> {
        self.note(node, told);
        let unknown = EventsOfNode::default();
        let of_node = self.nodes.get(node).unwrap_or(&unknown);
        let said = words::of(told, of_node, &self.links, now)?;
        let has_ended = matches!(told, NodeEvent::Recorded { transition, .. } if transition.ended.is_some());
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
        Some((event, said.key))
    }

    fn forget(&mut self, node: &NodeName, key: &str) {
        if let Some(of_node) = self.nodes.get_mut(node) {
            of_node.sent.remove(key);
        }
    }

    fn note(&mut self, node: &NodeName, told: NodeEvent<'_>) {
        match told {
            NodeEvent::Recorded {
                before,
                transition,
                wrote,
                ..
            } => {
                if transition.is_bookkeeping(before) {
                    return;
                }
                let of_node = self.nodes.entry(node.clone()).or_default();
                of_node.parts.add(before, wrote.0);
                let phase = transition.record.phase_name();
                if phase != before.phase_name() {
                    of_node.guest_until = None;
                }
            }
            NodeEvent::Waits {
                on: WaitingOn::GuestShutdown { until },
                ..
            } => self.nodes.entry(node.clone()).or_default().guest_until = Some(*until),
            NodeEvent::Waits { .. } | NodeEvent::NotRecorded { .. } | NodeEvent::Asks { .. } => {}
        }
    }

    /// `now` to the microsecond, which is what an Event can hold, and later than every moment given before.
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
