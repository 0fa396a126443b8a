//! What Haulout shows of itself. Everything here renders what actors tell; nothing here decides.

pub mod events;
pub mod link;
pub mod log;
pub mod metrics;
pub mod objects;
pub mod trace;

#[cfg(test)]
mod stand_in;

use crate::actor::tell::{Tell, Told};
use crate::ids::NodeName;

/// Passes what is told on to all who listen, in order.
#[derive(Debug)]
pub struct Listeners(pub Vec<Box<dyn Tell>>);

impl Tell for Listeners {
    fn tell(&self, node: &NodeName, told: Told<'_>) {
        for listener in &self.0 {
            listener.tell(node, told);
        }
    }
}
