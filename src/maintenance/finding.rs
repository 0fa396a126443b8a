//! What an effect found: it goes back as a fact, on the same way as everything else that is known of a node.

use jiff::Timestamp;

use super::effect::{Effect, EffectKind};
use super::episode::Record;
use super::observed::{DrainReport, Outcome};
use super::placement::Hold;
use crate::ids::{HostRef, NodeName, RequestUid};

/// Something found out on the way of performing an effect for one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// For which node.
    pub node: NodeName,
    /// What.
    pub found: Found,
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// An effect was tried.
    Tried {
        /// Which kind.
        kind: EffectKind,
        /// When the try began.
        at: Timestamp,
        /// The host it was about, for a relocate.
        host: Option<HostRef>,
        /// What became of it so far.
        outcome: Outcome,
    },
    /// A drain round came to its end.
    Drain(DrainReport),
    /// A host was surveyed.
    Holds {
        /// Which.
        host: HostRef,
        /// Who holds its devices.
        holds: Vec<Hold>,
    },
    /// A dry run would have written this record.
    PaperRecord {
        /// The record.
        record: Box<Record>,
        /// What `spec.unschedulable` would have become.
        unschedulable: Option<bool>,
        /// Which request would have been fulfilled.
        fulfilled: Option<RequestUid>,
    },
    /// A dry run would have performed this effect.
    PaperEffect(Effect),
}
