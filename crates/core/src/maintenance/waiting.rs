//! What a node is waiting for: one typed value that the log, the metric's label, the Event and the status all render.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::effect::EffectKind;
use super::observed::{Limit, PodLeft, PodLeftBecause};
use super::placement::Refused;
use super::request::RequestMark;
use crate::ids::NodeName;
use crate::keys::{APPROVED, SKIP};

/// The most pods, budgets, hosts or nodes that a sentence names: three fit a line of `kubectl describe`, the count tells the rest.
const NAMED: usize = 3;

/// What a node is waiting for.
#[derive(Clone, Debug, PartialEq)]
pub enum WaitingOn {
    /// vCenter's stream.
    Vcenter {
        /// Why it is down, as far as known.
        why: String,
    },
    /// The watch of Nodes.
    Kubernetes {
        /// Why it is down, as far as known.
        why: String,
    },
    /// The time to pass in which an effect of the leader before this one may still arrive.
    Takeover {
        /// When it is over.
        until: Timestamp,
    },
    /// The Node object, which is gone.
    NodeObject,
    /// The episode belongs to another release of Haulout.
    OtherRelease {
        /// Which.
        release: String,
    },
    /// The maintenance of its host, which failed, to be tried again.
    MaintenanceRetry {
        /// What vCenter said when it failed.
        said: String,
        /// When it is taken for given up.
        until: Timestamp,
    },
    /// The pace at which a node may be written and acted on at the most, which only a quarrel with somebody else reaches.
    WritePace {
        /// When it goes on.
        at: Timestamp,
    },
    /// The next power-on of a VM that keeps going off.
    PowerOnPause {
        /// How many times it went off.
        losses: u8,
        /// When.
        at: Timestamp,
    },
    /// vCenter's answer to which VM the node is.
    VmLookup,
    /// A place under a limit.
    Slot {
        /// Those before it.
        ahead: Vec<NodeName>,
        /// Which limit.
        limit: Limit,
    },
    /// Pods that stand in the way of the drain.
    Pods(Vec<PodLeft>),
    /// The first drain round, or one that repeats an outdated one.
    DrainRound,
    /// A person, because the drain timeout passed and `DRAIN_TIMEOUT_ACTION` is `hold`.
    DrainHeld(Vec<PodLeft>),
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
        /// Of what.
        effect: EffectKind,
        /// What was answered.
        said: String,
        /// When.
        at: Timestamp,
    },
    /// A host to be known and reachable.
    HostVisible {
        /// Its name.
        host: String,
        /// Its state, in words.
        state: &'static str,
    },
    /// Its host to leave maintenance, because no other can take it.
    HostExit {
        /// Its name.
        host: String,
        /// Its state, in words.
        state: &'static str,
        /// Why each other host will not do.
        refused: Vec<Refused>,
    },
    /// A person to delete the request that keeps it so.
    Request {
        /// Which.
        request: RequestMark,
        /// What it asks for, in words that follow "asks for it to be".
        asks: String,
    },
    /// A person to approve its drain.
    Approval,
    /// A person to take `haulout.dev/skip` off the Node.
    Skip,
    /// Its VM to be powered on, before a request can be gone about.
    PoweredOn {
        /// Which request.
        request: RequestMark,
    },
    /// A person to delete a request that asks for what is so already.
    AlreadyThere {
        /// Which request.
        request: RequestMark,
        /// The host.
        host: String,
    },
    /// A host that can take the VM, which a request asks to be relocated.
    Place {
        /// Which request.
        request: RequestMark,
        /// Why each host of its cluster will not do.
        refused: Vec<Refused>,
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
    Gpus {
        /// The resource.
        resource: String,
        /// How many there are.
        have: u64,
        /// How many there were.
        want: u64,
    },
    /// A reason to go away that a person can see.
    Parked(ParkReason),
}

/// Why an episode is parked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum ParkReason {
    /// What stands on the Node cannot be read.
    UnreadableRecord {
        /// What is wrong with it.
        why: String,
    },
    /// The Node was deleted and recreated: the record is about another one.
    AnotherNode,
    /// vCenter knows no VM for the node.
    VmMissing,
    /// More than one VM answers for the node.
    VmAmbiguous {
        /// How many.
        count: usize,
    },
    /// Other Nodes answer to the same VM.
    VmShared {
        /// Their names.
        nodes: Vec<NodeName>,
    },
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
    PowerLost {
        /// How many times it did.
        losses: u8,
    },
    /// The VM is suspended, and a passthrough VM cannot be resumed elsewhere.
    VmSuspended,
    /// The Node was uncordoned in mid-drain, again after it had been cordoned again: somebody means it.
    Uncordoned,
    /// Its VM was powered on although a request asks for it to be kept off.
    PoweredOn {
        /// The name of the request.
        request: String,
    },
    /// A step took longer than its deadline.
    Overdue {
        /// Which phase.
        phase: String,
        /// What it still waits for.
        waiting_on: String,
    },
}

impl WaitingOn {
    /// A short name from a closed list, for a metric's label.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Vcenter { .. } => "vcenter",
            Self::Kubernetes { .. } => "kubernetes",
            Self::Takeover { .. } => "takeover",
            Self::NodeObject => "node-object",
            Self::OtherRelease { .. } => "other-release",
            Self::MaintenanceRetry { .. } => "maintenance-retry",
            Self::PowerOnPause { .. } => "power-on-pause",
            Self::WritePace { .. } => "write-pace",
            Self::VmLookup => "vm-lookup",
            Self::Slot { .. } => "slot",
            Self::Pods(pods)
                if pods
                    .iter()
                    .any(|pod| matches!(pod.why, PodLeftBecause::Budget { .. })) =>
            {
                "disruption-budget"
            }
            Self::Pods(_) => "pods",
            Self::DrainRound => "drain-round",
            Self::DrainHeld(_) => "drain-held",
            Self::GuestShutdown { .. } => "guest-shutdown",
            Self::GuestShutdownAfterCancel { .. } => "guest-shutdown-after-cancel",
            Self::Task(_) => "task",
            Self::Retry { .. } => "retry",
            Self::HostVisible { .. } => "host-visible",
            Self::HostExit { .. } => "host-exit",
            Self::Request { .. } => "request",
            Self::Approval => "approval",
            Self::Skip => "skip",
            Self::PoweredOn { .. } => "powered-on",
            Self::AlreadyThere { .. } => "already-there",
            Self::Place { .. } => "place",
            Self::Survey => "survey",
            Self::Question(_) => "question",
            Self::PowerState => "power-state",
            Self::NodeReady { .. } => "node-ready",
            Self::Gpus { .. } => "gpus",
            Self::Parked(_) => "parked",
        }
    }
}

impl fmt::Display for WaitingOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vcenter { why } => write!(f, "vCenter to be heard again: {why}"),
            Self::Kubernetes { why } => write!(f, "Kubernetes to be heard again: {why}"),
            Self::Takeover { until } => write!(
                f,
                "{until:.0}, when nothing of the leader before can arrive any more"
            ),
            Self::NodeObject => f.write_str("the Node, which was deleted or is no longer selected"),
            Self::OtherRelease { release } => write!(
                f,
                "release {release} of Haulout, whose maintenance of this node is under way; if that release is gone, set \
                 ADOPT_RELEASES={release}"
            ),
            Self::MaintenanceRetry { said, until } => write!(
                f,
                "its host's maintenance, which failed, to be tried again; taken for given up at {until:.0}: {said}"
            ),
            Self::WritePace { at } => write!(
                f,
                "{at:.0}, because its state has changed too often in a short time; another controller may be writing to the Node"
            ),
            Self::PowerOnPause { losses, at } => write!(
                f,
                "{at:.0}, when its VM is powered on again: it went off {losses} times before the node was back"
            ),
            Self::VmLookup => f.write_str("vCenter's answer which VM this node is"),
            Self::Slot { ahead, limit } => {
                let names: Vec<&str> = ahead.iter().map(NodeName::as_str).collect();
                let come = if names.len() == 1 { "comes" } else { "come" };
                write!(f, "its turn: {limit}, and {} {come} first", few(&names))
            }
            Self::Pods(pods) => write_pods(f, pods),
            Self::DrainRound => f.write_str("the list of its pods"),
            Self::DrainHeld(pods) => {
                f.write_str("a person, for the drain timeout passed and its power is not cut on pods: ")?;
                write_pods(f, pods)
            }
            Self::GuestShutdown { until } => {
                write!(f, "the guest to shut down; its power is cut at {until:.0}")
            }
            Self::GuestShutdownAfterCancel { until } => write!(
                f,
                "the guest, which was asked to shut down before maintenance was called off; taken for ignored at {until:.0}"
            ),
            Self::Task(effect) => write!(f, "vCenter's task to {}", effect.words()),
            Self::Retry { effect, said, at } => {
                write!(
                    f,
                    "the next try to {} at {at:.0}; the last was refused: {said}",
                    effect.words()
                )
            }
            Self::HostVisible { host, state } => write!(f, "host {host}, which is {state}"),
            Self::HostExit { host, state, refused } => {
                write!(f, "host {host}, which is {state}, to be back in service")?;
                write_refused(f, "elsewhere", refused)
            }
            Self::Request { request, asks } => write!(
                f,
                "a person to delete NodeMaintenance {}, which asks for it to be {asks}",
                request.name
            ),
            Self::Approval => write!(
                f,
                "a person to approve its drain: annotate it with {APPROVED}=true"
            ),
            Self::Skip => write!(
                f,
                "a person to take {SKIP} off the Node; until then it is left alone"
            ),
            Self::PoweredOn { request } => write!(
                f,
                "its VM, which is off, to be powered on before NodeMaintenance {} can be gone about",
                request.name
            ),
            Self::AlreadyThere { request, host } => write!(
                f,
                "a person to delete NodeMaintenance {}: its VM is on {host} already",
                request.name
            ),
            Self::Place { request, refused } => {
                write!(
                    f,
                    "a host to relocate it to, as NodeMaintenance {} asks",
                    request.name
                )?;
                write_refused(f, "so far", refused)
            }
            Self::Survey => f.write_str("a reading of which passthrough devices of other hosts are free"),
            Self::Question(text) => write!(f, "a person to answer vCenter's question about the VM: {text}"),
            Self::PowerState => f.write_str("the VM's power state to be known"),
            Self::NodeReady { missing } => write!(f, "the node: {missing}"),
            Self::Gpus { resource, have, want } => {
                write!(f, "{resource} to be allocatable again: {have} of {want}")
            }
            Self::Parked(reason) => write!(f, "a person or a change: {reason}"),
        }
    }
}

/// Writes each reason once, with the first host that it speaks against, and the next few by name. Where dozens of hosts of one
/// cluster are in maintenance together, a word on each would be a page for every node that waits, at each change of one of them.
fn write_refused(f: &mut fmt::Formatter<'_>, lead: &str, refused: &[Refused]) -> fmt::Result {
    let mut reasons: Vec<(&Refused, Vec<&str>)> = Vec::new();
    for refusal in refused {
        match reasons.iter_mut().find(|(first, _)| first.why == refusal.why) {
            Some((_, others)) => others.push(&refusal.host),
            None => reasons.push((refusal, Vec::new())),
        }
    }
    for (index, (first, others)) in reasons.iter().enumerate() {
        match index {
            0 => write!(f, "; {lead}: {first}")?,
            _ => write!(f, ", {first}")?,
        }
        if !others.is_empty() {
            write!(f, " ({} likewise)", few(others))?;
        }
    }
    Ok(())
}

/// The first of `names`, and how many more there are.
pub fn few(names: &[impl AsRef<str>]) -> String {
    few_by(names, ", ")
}

/// The first of `words`, with `separator` between them, and how many more there are.
pub fn few_by(words: &[impl AsRef<str>], separator: &str) -> String {
    let rest = (words.len() > NAMED).then(|| format!("{} more", words.len().saturating_sub(NAMED)));
    let shown = words.iter().take(NAMED).map(AsRef::as_ref);
    shown.chain(rest.as_deref()).collect::<Vec<_>>().join(separator)
}

/// Writes how many pods are left, then names the first that are held back; names of pods on their way out are many and
/// say little, so none is given.
fn write_pods(f: &mut fmt::Formatter<'_>, pods: &[PodLeft]) -> fmt::Result {
    write!(
        f,
        "{} pod{} to go",
        pods.len(),
        if pods.len() == 1 { "" } else { "s" }
    )?;
    let held: Vec<&PodLeft> = pods
        .iter()
        .filter(|pod| pod.why != PodLeftBecause::Leaving)
        .take(NAMED)
        .collect();
    for pod in held {
        match &pod.why {
            PodLeftBecause::Leaving => {}
            PodLeftBecause::Budget { names, said } => write_budgets(f, &pod.name, names, said)?,
            PodLeftBecause::Migrating { said } => {
                write!(f, "; {}: its VM is being migrated live: {said}", pod.name)?;
            }
            PodLeftBecause::Refused { said } => write!(f, "; {}: eviction refused: {said}", pod.name)?,
            PodLeftBecause::NotReached => write!(f, "; {}: not asked yet", pod.name)?,
        }
    }
    Ok(())
}

/// Names the budgets that hold a pod, and what one alone is short of: a wait is told again when the counts change, and
/// then it has to read differently.
fn write_budgets(f: &mut fmt::Formatter<'_>, pod: &str, names: &[String], said: &str) -> fmt::Result {
    match names {
        [] => write!(f, "; {pod}: held by a PodDisruptionBudget"),
        [name] => {
            write!(f, "; {pod}: held by PodDisruptionBudget {name}")?;
            let counts = said
                .strip_prefix("The disruption budget ")
                .and_then(|rest| rest.strip_prefix(name.as_str()));
            match counts {
                Some(counts) => write!(f, ", which{}", counts.trim_end_matches('.')),
                None => Ok(()),
            }
        }
        names => write!(f, "; {pod}: held by PodDisruptionBudgets {}", names.join(", ")),
    }
}

impl fmt::Display for ParkReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnreadableRecord { why } => {
                write!(
                    f,
                    "the episode on the Node cannot be read and is left alone: {why}"
                )
            }
            Self::AnotherNode => {
                f.write_str("the Node was deleted and recreated; its record is about another one")
            }
            Self::VmMissing => f.write_str("vCenter knows no VM for this node"),
            Self::VmAmbiguous { count } => write!(f, "{count} VMs answer for this node; none is touched"),
            Self::VmShared { nodes } => {
                let names: Vec<&str> = nodes.iter().map(NodeName::as_str).collect();
                write!(
                    f,
                    "its VM is also that of {}; it is not touched",
                    names.join(", ")
                )
            }
            Self::NoUuid => f.write_str(
                "the Node tells no UUID of its VM (spec.providerID, status.nodeInfo.systemUUID); BIND_BY_NAME=true finds \
                 VMs by name",
            ),
            Self::VmReplaced { was, is } => write!(
                f,
                "{is} answers for this node, and its maintenance began with {was}; neither is touched"
            ),
            Self::PowerLost { losses } => write!(
                f,
                "the VM went off again {losses} times before the node was back; find out why and power it on in vCenter"
            ),
            Self::VmSuspended => f.write_str("the VM is suspended"),
            Self::Uncordoned => {
                f.write_str("somebody keeps uncordoning the Node; cordon it to let the drain go on")
            }
            Self::PoweredOn { request } => write!(
                f,
                "its VM was powered on although NodeMaintenance {request} asks for it to be kept off; delete the request or power it off"
            ),
            Self::Overdue { phase, waiting_on } => {
                write!(f, "{phase} is overdue, still waiting for {waiting_on}")
            }
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConcurrentDrains(limit) => write!(f, "at most {limit} drained at once"),
            Self::Unavailable(limit) => write!(f, "at most {limit} unavailable at once"),
        }
    }
}

#[cfg(test)]
mod tests;
