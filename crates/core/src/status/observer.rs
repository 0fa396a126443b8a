//! What an actor tells of its node while it works, and who listens: the log, and whatever else shows it to people.

use std::time::Duration;

use jiff::Timestamp;

use crate::ids::NodeName;
use crate::maintenance::decide::Transition;
use crate::maintenance::effect::Effect;
use crate::maintenance::episode::Record;
use crate::maintenance::observed::ObservedNode;
use crate::maintenance::waiting::WaitingOn;

/// One thing to tell of a node. It is the decision itself, so that no two listeners can disagree about what happened.
#[derive(Clone, Copy, Debug)]
pub enum NodeEvent<'a> {
    /// A change of record stands on the Node.
    Recorded {
        /// The Node as it was decided on; `None` when it is gone, and the record stands on its copy.
        node: Option<&'a ObservedNode>,
        /// What stood there before, with what the change ends in its history.
        before: &'a Record,
        /// What stands there, and what became of the cordon.
        transition: &'a Transition,
        /// When the write began and when it was accepted.
        wrote: (Timestamp, Timestamp),
    },
    /// A change of record was not accepted.
    NotRecorded {
        /// What stands there.
        before: &'a Record,
        /// What was to stand there.
        transition: &'a Transition,
        /// What was said, and what happens next.
        said: &'a str,
    },
    /// An effect is asked for.
    Asks {
        /// What stands on the Node.
        record: &'a Record,
        /// Which.
        effect: &'a Effect,
    },
    /// The node waits, and for something else than before.
    Waits {
        /// The Node, `None` when the object is gone.
        node: Option<&'a ObservedNode>,
        /// What stands on the Node.
        record: &'a Record,
        /// For what.
        on: &'a WaitingOn,
    },
}

/// What one turn of an actor came to: it looked, decided, and did at most one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileOutcome {
    /// There is nothing to do for the node.
    Rested,
    /// The node waits for something.
    Waited,
    /// An effect was asked for; what comes of it is a fact like any other.
    Acted,
    /// A change of record stands on the Node.
    Recorded,
    /// The Node had changed since it was looked at, so the change of record is decided anew.
    Outdated,
    /// A change of record was not accepted.
    Refused,
}

/// Listens. It is called between two steps of an actor, so it must not wait: whoever has something slow to do hands it
/// on, and lets go of it rather than hold the actor up.
pub trait Observer: std::fmt::Debug + Send + Sync + 'static {
    /// Takes what is told of `node`.
    fn observe(&self, node: &NodeName, told: NodeEvent<'_>);

    /// Takes what a turn of an actor came to, and how long it took.
    fn turned(&self, _turn: ReconcileOutcome, _took: Duration) {}

    /// The actor of `node` has ended: nothing more is told of it until another one begins.
    fn gone(&self, _node: &NodeName) {}
}

impl<T: Observer> Observer for std::sync::Arc<T> {
    fn observe(&self, node: &NodeName, told: NodeEvent<'_>) {
        self.as_ref().observe(node, told);
    }

    fn turned(&self, turn: ReconcileOutcome, took: Duration) {
        self.as_ref().turned(turn, took);
    }

    fn gone(&self, node: &NodeName) {
        self.as_ref().gone(node);
    }
}
