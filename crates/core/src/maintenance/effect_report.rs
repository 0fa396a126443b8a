//! The reports of effects. They enter the inventory as facts.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::clock::Now;
use super::drain::DrainReport;
use super::effect::{Effect, EffectKind};
use super::episode::Record;
use super::machine_guard::MachineGuardReport;
use super::observed::AttemptOutcome;
use super::placement::HostSurvey;
use super::volumes::VolumeReport;
use crate::ids::{HostRef, NodeName, RequestUid};

/// A report of an effect for one node.
#[derive(Clone, Debug, PartialEq)]
pub struct EffectReport {
    pub node: NodeName,
    pub found: EffectResult,
}

#[derive(Clone, Debug, PartialEq)]
pub enum EffectResult {
    /// An effect was attempted.
    Tried {
        kind: EffectKind,
        /// When the attempt began.
        at: Now,
        /// The target host of a relocation, or of a power-on that names one.
        host: Option<HostRef>,
        /// The outcome so far.
        outcome: AttemptOutcome,
    },
    /// The evictions of a drain round, for telemetry only.
    Evictions(EvictionRound),
    /// A drain round ended.
    Drain(DrainReport),
    /// The attached volumes were listed.
    Volumes(VolumeReport),
    /// A host was surveyed.
    Surveyed {
        host: HostRef,
        /// The devices that are held there.
        reading: HostSurvey,
    },
    /// Guards were set on the Machine of the node.
    MachineGuarded(MachineGuardReport),
    /// A dry run would have written this record.
    DryRunRecord {
        record: Box<Record>,
        /// The new `spec.unschedulable`.
        unschedulable: Option<bool>,
        fulfilled: Option<RequestUid>,
    },
    /// A dry run would have run this effect.
    DryRunEffect(Effect),
}

/// The evictions that one drain round requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionRound {
    /// When the round began; its list is no older.
    pub at: Timestamp,
    /// One for each requested eviction.
    pub asked: Vec<Eviction>,
    /// The UIDs of the pods that blocked at its end.
    pub left: BTreeSet<String>,
}

/// One requested eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    pub namespace: String,
    pub pod: String,
    pub uid: String,
    /// The pod's grace period in seconds.
    pub grace: Option<i64>,
    /// When it was requested.
    pub asked_at: Timestamp,
    /// When it was answered or aborted.
    pub answered_at: Timestamp,
    pub answer: EvictionAnswer,
}

/// The reply to an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionAnswer {
    /// It was accepted, or the pod was gone already.
    Accepted,
    /// A PodDisruptionBudget allows no disruption.
    Blocked {
        /// The budgets, where the kube-apiserver names them.
        budgets: Vec<String>,
        /// The message of the kube-apiserver.
        message: String,
    },
    /// It was refused for another reason, or there was no reply.
    Refused,
}
