//! The parts of the sentences of waits that are more than a template.

use std::fmt::{self, Write as _};

use jiff::Timestamp;

use crate::ids::NodeName;
use crate::keys::HOOK_SUFFIX;
use crate::maintenance::admission::SlotLimit;
use crate::maintenance::drain::{PendingEviction, PendingReason};
use crate::maintenance::hook::HookPoint;
use crate::maintenance::placement::RejectedHost;
use crate::maintenance::volumes::AttachedVolume;

/// The maximum number of pods, budgets, hosts or nodes that a sentence names, so that it fits a line of `kubectl describe`.
const NAMED: usize = 3;

/// The first words of the message with which Kubernetes refuses an eviction. The name of the budget and its counts follow.
pub const BUDGET: &str = "The disruption budget ";

pub(super) fn list(nodes: &[NodeName]) -> String {
    nodes.iter().map(NodeName::as_str).collect::<Vec<_>>().join(", ")
}

pub(super) fn held_by_dead_node(node: &NodeName, is_deleted: bool) -> String {
    if is_deleted {
        return format!(
            "its VM belongs to the maintenance of Node {node}, which was deleted; if that was an earlier name of this machine, delete \
             the NodeMaintenance of {node}"
        );
    }
    format!(
        "its VM belongs to Node {node}, which is not Ready although the VM is on; if that is an earlier name of this machine, delete \
         Node {node}"
    )
}

pub(super) fn turn(ahead: &[NodeName], position: usize, limit: SlotLimit) -> String {
    let names: Vec<&str> = ahead.iter().map(NodeName::as_str).collect();
    let queue = match position {
        1 => String::new(),
        position => format!(", as number {position} in the queue"),
    };
    let first = match (names.as_slice(), limit) {
        ([_], _) => format!(", and {} comes first", few(&names)),
        ([_, ..], _) => format!(", and {} come first", few(&names)),
        ([], SlotLimit::PowerOffs(_)) => ", which its own power-offs of the last hour reach".to_owned(),
        ([], SlotLimit::ConcurrentDrains(_) | SlotLimit::Unavailable(_) | SlotLimit::UnavailableGpus(_)) => {
            String::new()
        }
    };
    format!("a slot{queue}: {limit}{first}")
}

/// The hooks that hold a step, by the annotations to remove.
pub(super) fn hooks(point: HookPoint, names: &[String], until: Option<Timestamp>) -> String {
    let annotation = |name: &String| format!("{point}{HOOK_SUFFIX}/{name}");
    let annotations: Vec<String> = names.iter().map(annotation).collect();
    let mut text = format!("hooks to be removed from the Node: {}", few(&annotations));
    if let Some(until) = until {
        // Writing to a String cannot fail.
        let _ = write!(text, "; it proceeds at {until:.0}");
    }
    text
}

/// Each reason once, with the first host that has it and the names of the next few. A cluster has up to 96 hosts.
pub(in crate::maintenance) fn rejected(lead: &str, hosts: &[RejectedHost]) -> String {
    let mut reasons: Vec<(&RejectedHost, Vec<&str>)> = Vec::new();
    for host in hosts {
        match reasons.iter_mut().find(|(first, _)| first.why == host.why) {
            Some((_, others)) => others.push(&host.host),
            None => reasons.push((host, Vec::new())),
        }
    }
    let with_others = |(first, others): &(&RejectedHost, Vec<&str>)| match others.as_slice() {
        [] => first.to_string(),
        others => format!("{first} ({} likewise)", few(others)),
    };
    let reasons: Vec<String> = reasons.iter().map(with_others).collect();
    if reasons.is_empty() {
        return String::new();
    }
    format!("; {lead}: {}", reasons.join(", "))
}

/// The first of `names`, with the number of the others.
pub fn few(names: &[impl AsRef<str>]) -> String {
    few_by(names, ", ")
}

/// The first of `words`, joined by `separator`, with the number of the others.
pub fn few_by(words: &[impl AsRef<str>], separator: &str) -> String {
    let rest = (words.len() > NAMED).then(|| format!("{} more", words.len().saturating_sub(NAMED)));
    let shown = words.iter().take(NAMED).map(AsRef::as_ref);
    shown.chain(rest.as_deref()).collect::<Vec<_>>().join(separator)
}

/// How many pods are left, and the names of the first that are not terminating.
pub(super) fn pods_left(pods: &[PendingEviction]) -> String {
    let plural = if pods.len() == 1 { "" } else { "s" };
    let mut text = format!("{} pod{plural} to go", pods.len());
    let held = pods.iter().filter(|pod| pod.why != PendingReason::Leaving);
    for pod in held.take(NAMED) {
        // Writing to a String cannot fail.
        let _ = write!(text, "; {}: {}", pod.name, pod.why);
    }
    text
}

/// How many volumes are attached, and the names of the first.
pub(super) fn volumes_left(volumes: &[AttachedVolume], until: Timestamp) -> String {
    if volumes.is_empty() {
        return "the list of its volumes".to_owned();
    }
    let plural = if volumes.len() == 1 { "" } else { "s" };
    let names: Vec<String> = volumes.iter().map(ToString::to_string).collect();
    format!(
        "{} volume{plural} to be detached until {until:.0}: {}",
        volumes.len(),
        few(&names)
    )
}

impl fmt::Display for PendingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leaving => f.write_str("terminating"),
            Self::Budget { names, message } => write_budgets(f, names, message),
            Self::Migrating { message } => write!(f, "its VM is being migrated live: {message}"),
            Self::Refused { message } => write!(f, "eviction refused: {message}"),
            Self::NotReached => f.write_str("eviction not requested yet"),
            Self::Last => f.write_str("evicted when the others are gone"),
            Self::Waits { until } => write!(f, "waits for it to end until {:.0}", until.shown),
        }
    }
}

/// Names the budgets that block a pod. A single budget is shown with its counts, so that the sentence changes when they do.
fn write_budgets(f: &mut fmt::Formatter<'_>, names: &[String], message: &str) -> fmt::Result {
    match names {
        [] => f.write_str("held by a PodDisruptionBudget"),
        [name] => {
            write!(f, "held by PodDisruptionBudget {name}")?;
            let counts = message
                .strip_prefix(BUDGET)
                .and_then(|rest| rest.strip_prefix(name.as_str()));
            counts.map_or(Ok(()), |counts| {
                write!(f, ", which{}", counts.trim_end_matches('.'))
            })
        }
        names => write!(f, "held by PodDisruptionBudgets {}", names.join(", ")),
    }
}

impl fmt::Display for SlotLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConcurrentDrains(limit) => write!(f, "at most {limit} drained at once"),
            Self::Unavailable(limit) => write!(f, "at most {limit} unavailable at once"),
            Self::PowerOffs(limit) => write!(f, "at most {limit} powered off in an hour"),
            Self::UnavailableGpus(limit) => write!(f, "at most {limit} GPUs unavailable at once"),
        }
    }
}
