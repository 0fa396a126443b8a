//! The events of a node actor.

use jiff::Timestamp;

use crate::ids::NodeUid;
use crate::maintenance::decide::Transition;
use crate::maintenance::effect::Effect;
use crate::maintenance::episode::{Episode, Record};
use crate::maintenance::observed::{BoundVm, ObservedNode};
use crate::maintenance::placement::PlacementForecast;
use crate::maintenance::waiting::WaitingOn;

/// An event of a node actor. It contains the decision itself, so that all observers show the same.
#[derive(Clone, Copy, Debug)]
pub enum NodeEvent<'a> {
    /// A transition was written.
    Recorded {
        /// The Node on which it was decided; `None` if it was deleted, and the record is on its copy.
        node: Option<&'a ObservedNode>,
        vm: &'a BoundVm,
        /// The record before, with the ended phase in its history.
        before: &'a Record,
        transition: &'a Transition,
        /// When the write began and when it was accepted.
        wrote: (Timestamp, Timestamp),
    },
    /// The write of a transition failed.
    NotRecorded {
        /// The current record.
        before: &'a Record,
        transition: &'a Transition,
        /// The error, and what happens next.
        message: &'a str,
        /// How many writes failed in a row.
        attempts: u32,
    },
    /// An effect is started.
    Asks {
        /// The current record.
        record: &'a Record,
        effect: &'a Effect,
    },
    /// The node waits for something else than before.
    Waits {
        /// The Node; `None` if it was deleted.
        node: Option<&'a ObservedNode>,
        vm: &'a BoundVm,
        /// The current record.
        record: &'a Record,
        on: &'a WaitingOn,
    },
    /// Where the VM is likely to go once it is off, or that no other host can take it. It is told before the node is drained.
    Forecasts {
        /// The Node; `None` if it was deleted.
        node: Option<&'a ObservedNode>,
        /// The current record.
        record: &'a Record,
        placement: &'a PlacementForecast,
    },
}

impl<'a> NodeEvent<'a> {
    /// The episode that it is about, also if it has ended.
    pub fn episode(self) -> Option<&'a Episode> {
        match self {
            Self::Recorded {
                before, transition, ..
            }
            | Self::NotRecorded {
                before, transition, ..
            } => transition.record.episode().or(before.episode()),
            Self::Asks { record, .. } | Self::Waits { record, .. } | Self::Forecasts { record, .. } => {
                record.episode()
            }
        }
    }

    /// The Node of that name, or the one of the episode if it was deleted.
    pub fn node_uid(self) -> Option<&'a NodeUid> {
        let node = match self {
            Self::Recorded { node, .. } | Self::Waits { node, .. } | Self::Forecasts { node, .. } => node,
            Self::NotRecorded { .. } | Self::Asks { .. } => None,
        };
        let of_node = node.map(|node| &node.uid);
        of_node.or(self.episode().map(|episode| &episode.node_uid))
    }
}

named_enum! {
    /// The outcome of one reconciliation: a decision and at most one action.
    pub enum ReconcileOutcome {
        /// There is nothing to do for the node.
        Idle = "rested",
        /// The node waits.
        Waited = "waited",
        /// An effect was started.
        Acted = "acted",
        /// A transition was written.
        Recorded = "recorded",
        /// The Node had changed, so the transition is decided again.
        Outdated = "outdated",
        /// The write of a transition failed.
        Refused = "refused",
    }
}
