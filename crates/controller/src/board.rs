//! The one board of all nodes, which the objects and the page read.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};

use super::observer::Observer;
use haulout_core::ids::NodeName;
use haulout_core::status::story::Beat;
use haulout_core::status::{NodeStatuses, StatusBoard};

/// It is an observer before those that read it, so that they find what they are told.
#[derive(Clone, Debug)]
pub struct NodeBoard {
    board: Arc<Mutex<StatusBoard>>,
    clock: fn() -> Timestamp,
}

impl NodeBoard {
    pub fn new(clock: fn() -> Timestamp) -> Self {
        Self {
            board: Arc::default(),
            clock,
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, StatusBoard> {
        self.board.lock()
    }
}

impl Observer for NodeBoard {
    fn observe(&self, node: &NodeName, beat: &Beat<'_>) {
        self.lock().tell(node, beat, (self.clock)());
    }

    fn built(&self, statuses: &NodeStatuses) {
        self.lock().update_statuses(statuses, (self.clock)());
    }
}
