//! Attempts of effects, their outcomes, and what a refusal asks for.

use crate::ids::{HostRef, TaskRef};
use crate::maintenance::clock::Now;

/// One try of an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectAttempt {
    /// When it began.
    pub at: Now,
    /// The host it was about, for a relocate, and for a power-on that names one.
    pub host: Option<HostRef>,
    /// The task by which vCenter went about it, also when that has ended; for those who tell of it.
    pub task: Option<TaskRef>,
    /// How many tries in a row were refused, this one included.
    pub refusals: u32,
    /// How many tries of this kind there were in this episode, this one included.
    pub tries: u32,
    /// What became of it.
    pub outcome: AttemptOutcome,
}

/// What became of an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// It was asked for, and there is no task to follow; what it does shows on the VM.
    Asked,
    /// A task of vCenter is at work on it.
    Running(TaskRef),
    /// Its task ended well, or there was nothing to do.
    Done,
    /// It was refused, at the call or by the end of its task.
    Refused(EffectRefusal),
}

/// A refusal, with what it asks of us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectRefusal {
    /// What to do about it.
    pub advice: RetryAdvice,
    /// What was answered, for people.
    pub said: String,
}

/// What a refusal asks of us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetryAdvice {
    /// The same again, after a while: something else is at work, or nothing was sent at all.
    Retry,
    /// No usable answer: it may have been carried out.
    Unanswered,
    /// A fault that we do not know. It may well be about this host.
    Unknown,
    /// This host will not do; another may.
    OtherHost,
    /// Every host of the cluster would say the same; the same again, after a while.
    Cluster,
    /// The guest cannot be asked; cut its power instead.
    NoTools,
    /// A person must act first (a missing privilege, a configuration the host refuses): ask again, but slowly.
    Person,
}

impl RetryAdvice {
    /// Whether the host that refused is to be left for another one: it spoke against this VM itself, or nobody knows.
    pub fn speaks_against_host(self) -> bool {
        match self {
            Self::OtherHost | Self::Unknown | Self::Person => true,
            Self::Retry | Self::Unanswered | Self::Cluster | Self::NoTools => false,
        }
    }
}
