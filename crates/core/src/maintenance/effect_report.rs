//! What an effect found: it goes back as a fact, on the same way as everything else that is known of a node.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::clock::Now;
use super::effect::{Effect, EffectKind};
use super::episode::Record;
use super::observed::{AttemptOutcome, DrainReport};
use super::placement::HostSurvey;
use crate::ids::{HostRef, NodeName, RequestUid};

/// Something found out on the way of performing an effect for one node.
#[derive(Clone, Debug, PartialEq)]
pub struct EffectReport {
    /// For which node.
    pub node: NodeName,
    /// What.
    pub found: EffectResult,
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub enum EffectResult {
    /// An effect was tried.
    Tried {
        /// Which kind.
        kind: EffectKind,
        /// When the try began.
        at: Now,
        /// The host it was about, for a relocate, and for a power-on that names one.
        host: Option<HostRef>,
        /// What became of it so far.
        outcome: AttemptOutcome,
    },
    /// A drain round asked for these evictions. Nothing is decided from it: what counts is in the report.
    Evictions(EvictionRound),
    /// A drain round came to its end.
    Drain(DrainReport),
    /// A host was surveyed.
    Surveyed {
        /// Which.
        host: HostRef,
        /// What was found there.
        reading: HostSurvey,
    },
    /// A dry run would have written this record.
    DryRunRecord {
        /// The record.
        record: Box<Record>,
        /// What `spec.unschedulable` would have become.
        unschedulable: Option<bool>,
        /// Which request would have been fulfilled.
        fulfilled: Option<RequestUid>,
    },
    /// A dry run would have performed this effect.
    DryRunEffect(Effect),
}

/// The evictions that one drain round asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionRound {
    /// When the round began; its list is no older.
    pub at: Timestamp,
    /// One for each pod that was to be evicted and whose turn came.
    pub asked: Vec<Eviction>,
    /// The UIDs of the pods that stood in the way when it ended.
    pub left: BTreeSet<String>,
}

/// One eviction that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// The time that the pod has to end by itself, in seconds, as far as its object tells.
    pub grace: Option<i64>,
    /// When it was asked for.
    pub asked_at: Timestamp,
    /// When it was answered, or given up.
    pub answered_at: Timestamp,
    /// What was answered.
    pub answer: EvictionAnswer,
}

/// What was answered to an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionAnswer {
    /// It was accepted, and the pod leaves; or it was gone already.
    Accepted,
    /// A PodDisruptionBudget allows no disruption.
    Blocked {
        /// The budgets, where the kube-apiserver names them.
        budgets: Vec<String>,
        /// Its words.
        said: String,
    },
    /// It was refused for another reason, or not answered.
    Refused,
}
