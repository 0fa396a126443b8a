//! What Haulout shows of itself. Everything here renders what actors tell; nothing here decides.

pub mod events;
pub mod link;
pub mod log;
pub mod metrics;
pub mod trace;

use std::time::Duration;

use crate::ids::NodeName;
use crate::status::observer::{NodeEvent, Observer, ReconcileOutcome};

/// Passes what is told on to all who listen, in order.
#[derive(Debug)]
pub struct ObserverList(pub Vec<Box<dyn Observer>>);

impl Observer for ObserverList {
    fn observe(&self, node: &NodeName, told: NodeEvent<'_>) {
        for listener in &self.0 {
            listener.observe(node, told);
        }
    }

    fn turned(&self, turn: ReconcileOutcome, took: Duration) {
        for listener in &self.0 {
            listener.turned(turn, took);
        }
    }

    fn gone(&self, node: &NodeName) {
        for listener in &self.0 {
            listener.gone(node);
        }
    }
}
