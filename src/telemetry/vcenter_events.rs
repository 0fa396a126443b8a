//! Events on the host and the VM of an episode, for people who look at vCenter.
//!
//! A change of phase and each different wait is one event. [`post`] sends them from a bounded queue, so
//! nothing waits for vCenter.

mod post;
mod queue;
pub(super) mod text;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::queue::{LoggedText, PostQueue};
use self::text::LastText;
use crate::ids::NodeName;
use crate::status::observer::{NodeEvent, Observer};
use crate::telemetry::link::Links;
pub(super) use post::EventPermit;
pub use post::{LeaderLog, PostOutcome, run};

/// Queues the events of actors.
#[derive(Debug)]
pub struct VcenterEvents {
    outbox: Outbox,
    links: Links,
    clock: fn() -> Timestamp,
    /// The last text of each node. A restart loses it.
    last: Mutex<BTreeMap<NodeName, LastText>>,
}

/// The queue, which the observer fills and [`run`] empties.
#[derive(Clone, Debug, Default)]
pub struct Outbox(Arc<OutboxState>);

#[derive(Debug, Default)]
struct OutboxState {
    queue: Mutex<PostQueue>,
    /// Something was queued.
    queued: Notify,
}

impl VcenterEvents {
    pub fn new(outbox: Outbox, links: Links, clock: fn() -> Timestamp) -> Self {
        Self {
            outbox,
            links,
            clock,
            last: Mutex::default(),
        }
    }
}

impl Observer for VcenterEvents {
    fn observe(&self, node: &NodeName, event: NodeEvent<'_>) {
        let mut last = self.last.lock();
        let post = text::of(node, event, &mut last, &self.links, (self.clock)());
        if let Some(post) = post {
            self.outbox.push(node, post);
        }
    }

    fn gone(&self, node: &NodeName) {
        let mut last = self.last.lock();
        last.remove(node);
    }
}

impl Outbox {
    fn push(&self, node: &NodeName, post: LoggedText) {
        self.with(|queue| queue.push(node, post, Instant::now()));
        self.0.queued.notify_one();
    }

    fn with<T>(&self, act: impl FnOnce(&mut PostQueue) -> T) -> T {
        act(&mut self.0.queue.lock())
    }
}
