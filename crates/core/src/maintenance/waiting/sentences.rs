//! The sentences of waits and of the reasons for parking, as the log, Events, objects, page and command line all show them.

use std::fmt;

use super::{ParkReason, WaitingOn};
use crate::ids::NodeName;
use crate::keys::{APPROVED, SKIP};
use crate::maintenance::observed::{PendingEviction, PendingReason, SlotLimit};
use crate::maintenance::placement::RejectedHost;

/// The most pods, budgets, hosts or nodes that a sentence names: three fit a line of `kubectl describe`, the count tells the rest.
const NAMED: usize = 3;

/// How Kubernetes begins what it says of a budget that refuses an eviction; the budget's name and its counts follow.
pub const BUDGET: &str = "The disruption budget ";

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
fn write_refused(f: &mut fmt::Formatter<'_>, lead: &str, refused: &[RejectedHost]) -> fmt::Result {
    let mut reasons: Vec<(&RejectedHost, Vec<&str>)> = Vec::new();
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

/// Writes how many pods are left, then names the first that are held back. Pods on their way out are many and say little.
fn write_pods(f: &mut fmt::Formatter<'_>, pods: &[PendingEviction]) -> fmt::Result {
    let plural = if pods.len() == 1 { "" } else { "s" };
    write!(f, "{} pod{plural} to go", pods.len())?;
    let held = pods.iter().filter(|pod| pod.why != PendingReason::Leaving);
    held.take(NAMED)
        .try_for_each(|pod| write!(f, "; {}: {}", pod.name, pod.why))
}

impl fmt::Display for PendingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leaving => f.write_str("terminating"),
            Self::Budget { names, said } => write_budgets(f, names, said),
            Self::Migrating { said } => write!(f, "its VM is being migrated live: {said}"),
            Self::Refused { said } => write!(f, "eviction refused: {said}"),
            Self::NotReached => f.write_str("not asked yet"),
        }
    }
}

/// Names the budgets that hold a pod, and what one alone is short of: a wait is told again when the counts change, and
/// then it has to read differently.
fn write_budgets(f: &mut fmt::Formatter<'_>, names: &[String], said: &str) -> fmt::Result {
    match names {
        [] => f.write_str("held by a PodDisruptionBudget"),
        [name] => {
            write!(f, "held by PodDisruptionBudget {name}")?;
            let counts = said
                .strip_prefix(BUDGET)
                .and_then(|rest| rest.strip_prefix(name.as_str()));
            counts.map_or(Ok(()), |counts| {
                write!(f, ", which{}", counts.trim_end_matches('.'))
            })
        }
        names => write!(f, "held by PodDisruptionBudgets {}", names.join(", ")),
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

impl fmt::Display for SlotLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConcurrentDrains(limit) => write!(f, "at most {limit} drained at once"),
            Self::Unavailable(limit) => write!(f, "at most {limit} unavailable at once"),
        }
    }
}
