//! Attempts of effects, their outcomes, and how a refusal is handled.

use crate::ids::{HostRef, TaskRef};
use crate::maintenance::clock::Now;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectAttempt {
    /// When it began.
    pub at: Now,
    /// The target host of a relocation, or of a power-on that names one.
    pub host: Option<HostRef>,
    /// Its vCenter task, also after the end of the task. Only for display.
    pub task: Option<TaskRef>,
    /// The number of refused attempts in a row for the same host, including this one.
    pub refusals: u32,
    /// When the first of the attempts in a row that were refused with the same advice began.
    pub refused_since: Now,
    /// The number of attempts of this kind in this episode, including this one.
    pub tries: u32,
    /// The outcome so far.
    pub outcome: AttemptOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// It was requested, and has no task; its result shows on the VM.
    Asked,
    /// Its vCenter task is running.
    Running(TaskRef),
    /// Its task succeeded, or there was nothing to do.
    Done,
    /// The call was refused, or its task failed.
    Refused(EffectRefusal),
}

impl AttemptOutcome {
    /// The refusal, if it was refused.
    pub fn refusal(&self) -> Option<&EffectRefusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Asked | Self::Running(_) | Self::Done => None,
        }
    }

    /// The vCenter task, while it is running.
    pub fn running_task(&self) -> Option<&TaskRef> {
        match self {
            Self::Running(task) => Some(task),
            Self::Asked | Self::Done | Self::Refused(_) => None,
        }
    }
}

/// A refusal and how to handle it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectRefusal {
    pub advice: RetryAdvice,
    /// The error message.
    pub message: String,
}

/// How to handle a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetryAdvice {
    /// Retry later: another operation is running, or nothing was sent.
    Retry,
    /// No usable reply: it may have been carried out.
    Unanswered,
    /// An unknown fault, which may concern this host.
    Unknown,
    /// The fault may concern this host, and often passes: a file of the VM is locked, or a resource is taken for a moment.
    MayPass,
    /// The fault concerns this host; try another one.
    OtherHost,
    /// The fault concerns the whole cluster; retry later.
    Cluster,
    /// The guest cannot be shut down; cut its power.
    NoTools,
    /// A person must act first, for example because a privilege is missing: retry slowly.
    Person,
}

impl RetryAdvice {
    /// Whether another host has to be tried: the fault concerns this VM on this host, or is unknown.
    pub fn speaks_against_host(self) -> bool {
        match self {
            Self::OtherHost | Self::MayPass | Self::Unknown | Self::Person => true,
            Self::Retry | Self::Unanswered | Self::Cluster | Self::NoTools => false,
        }
    }

    /// Whether it speaks against the host for now only, as far as known: the host may take the VM a little later.
    pub fn may_pass(self) -> bool {
        match self {
            Self::MayPass | Self::Unknown => true,
            Self::OtherHost
            | Self::Person
            | Self::Retry
            | Self::Unanswered
            | Self::Cluster
            | Self::NoTools => false,
        }
    }
}
