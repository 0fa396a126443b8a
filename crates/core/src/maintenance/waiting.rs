//! What a node is waiting for: one typed value, with its sentence in [`sentences`] and its kind in [`crate::status`].

mod sentences;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::effect::EffectKind;
use super::observed::{PendingEviction, SlotLimit};
use super::placement::RejectedHost;
use super::request::RequestIdentity;
use crate::ids::NodeName;

pub use sentences::{BUDGET, few, few_by};

/// What a node is waiting for.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names of most fields say all")]
pub enum WaitingOn {
    /// vCenter's stream.
    Vcenter { why: String },
    /// The watch of Nodes.
    Kubernetes { why: String },
    /// The time to pass in which an effect of the leader before this one may still arrive.
    Takeover {
        /// When it is over.
        until: Timestamp,
    },
    /// The Node object, which is gone.
    NodeObject,
    /// The episode belongs to another release of Haulout.
    OtherRelease { release: String },
    /// The maintenance of its host, which failed, to be tried again.
    MaintenanceRetry {
        /// What vCenter said when it failed.
        said: String,
        /// When it is taken for given up.
        until: Timestamp,
    },
    /// The pace at which a node may be written and acted on at the most, which only a quarrel with somebody else reaches.
    WritePace { at: Timestamp },
    /// The next power-on of a VM that keeps going off.
    PowerOnPause { losses: u8, at: Timestamp },
    /// vCenter's answer to which VM the node is.
    VmLookup,
    /// A place under a limit.
    Slot { ahead: Vec<NodeName>, limit: SlotLimit },
    /// Pods that stand in the way of the drain.
    Pods(Vec<PendingEviction>),
    /// The first drain round, or one that repeats an outdated one.
    DrainRound,
    /// A person, because the drain timeout passed and `DRAIN_TIMEOUT_ACTION` is `hold`.
    DrainHeld(Vec<PendingEviction>),
    /// The guest to shut down.
    GuestShutdown {
        /// When its power will be cut.
        until: Timestamp,
    },
    /// The guest that was asked to shut down although the maintenance has been called off since: it cannot be un-asked.
    GuestShutdownAfterCancel {
        /// When it is taken for ignored.
        until: Timestamp,
    },
    /// A task of vCenter.
    Task(EffectKind),
    /// The next try after a refusal.
    Retry {
        effect: EffectKind,
        said: String,
        at: Timestamp,
    },
    /// A host to be known and reachable.
    HostVisible { host: String, state: &'static str },
    /// Its host to leave maintenance, because no other can take it.
    HostExit {
        host: String,
        state: &'static str,
        /// Why each other host will not do.
        refused: Vec<RejectedHost>,
    },
    /// A person to delete the request that keeps it so.
    Request {
        request: RequestIdentity,
        /// What it asks for, in words that follow "asks for it to be".
        asks: String,
    },
    /// A person to approve its drain.
    Approval,
    /// A person to take `haulout.dev/skip` off the Node.
    Skip,
    /// Its VM to be powered on, before a request can be gone about.
    PoweredOn { request: RequestIdentity },
    /// A person to delete a request that asks for what is so already.
    AlreadyThere { request: RequestIdentity, host: String },
    /// A host that can take the VM, which a request asks to be relocated.
    Place {
        request: RequestIdentity,
        /// Why each host of its cluster will not do.
        refused: Vec<RejectedHost>,
    },
    /// A reading of which devices of other hosts are free.
    Survey,
    /// A person to answer vCenter's question about the VM.
    Question(String),
    /// The VM's power state to be known.
    PowerState,
    /// The node to be Ready on another boot.
    NodeReady {
        /// What is missing.
        missing: &'static str,
    },
    /// GPUs to be allocatable again.
    Gpus { resource: String, have: u64, want: u64 },
    /// A reason to go away that a person can see.
    Parked(ParkReason),
}

/// Why an episode is parked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
#[expect(missing_docs, reason = "the names of most fields say all")]
pub enum ParkReason {
    /// What stands on the Node cannot be read.
    UnreadableRecord { why: String },
    /// The Node was deleted and recreated: the record is about another one.
    AnotherNode,
    /// vCenter knows no VM for the node.
    VmMissing,
    /// More than one VM answers for the node.
    VmAmbiguous { count: usize },
    /// Other Nodes answer to the same VM.
    VmShared { nodes: Vec<NodeName> },
    /// The Node tells no UUID.
    NoUuid,
    /// The VM is another one than the episode began with.
    VmReplaced {
        /// The VM that the episode is about.
        was: String,
        /// The VM that answers for the node.
        is: String,
    },
    /// The VM goes off again after each power-on.
    PowerLost { losses: u8 },
    /// The VM is suspended, and a passthrough VM cannot be resumed elsewhere.
    VmSuspended,
    /// The Node was uncordoned in mid-drain, again after it had been cordoned again: somebody means it.
    Uncordoned,
    /// Its VM was powered on although a request asks for it to be kept off.
    PoweredOn { request: String },
    /// A step took longer than its deadline.
    Overdue {
        phase: String,
        /// What it still waits for.
        waiting_on: String,
    },
}

#[cfg(test)]
mod tests;
