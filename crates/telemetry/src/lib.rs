//! Telemetry. It formats the events of actors and the status of nodes, and decides nothing.

// A test may list many cases.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

pub mod client;
pub mod events;
pub mod link;
pub mod log;
pub mod metrics;
pub mod misconfigured;
pub mod notify;
pub mod silences;
pub mod sink;
pub mod trace;
mod url_file;
pub mod vcenter_attribute;
pub mod vcenter_events;

use std::time::Duration;

use haulout_core::ids::NodeName;
use haulout_core::status::observer::{NodeEvent, Observer, ReconcileOutcome};

/// Passes each event to all observers, in order.
#[derive(Debug)]
pub struct ObserverList(pub Vec<Box<dyn Observer>>);

impl Observer for ObserverList {
    fn observe(&self, node: &NodeName, event: NodeEvent<'_>) {
        for listener in &self.0 {
            listener.observe(node, event);
        }
    }

    fn reconciled(&self, outcome: ReconcileOutcome, took: Duration) {
        for listener in &self.0 {
            listener.reconciled(outcome, took);
        }
    }

    fn actor_ended(&self, node: &NodeName) {
        for listener in &self.0 {
            listener.actor_ended(node);
        }
    }
}
