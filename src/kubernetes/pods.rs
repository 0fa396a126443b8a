//! Which pods stand in the way of a shutdown, and which of them have to be asked to leave. Pure.
//!
//! The chain is `kubectl drain --ignore-daemonsets --delete-emptydir-data --force`, with two differences. A finished pod
//! does not stand in the way: nothing of it runs, and its log and exit code are worth keeping. And a DaemonSet's pod is
//! let be without asking whether its DaemonSet still exists: if it does not, the garbage collector removes the pod.
//!
//! Pods with an `emptyDir` and pods that nobody manages are evicted: the shutdown that follows would take them anyway,
//! and an eviction at least tells them to finish. Pods that are bound but do not run yet are evicted too.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use crate::ids::NodeName;

/// The kubelet puts this annotation on the API's image of a static pod.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// What is to be done about one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodVerdict {
    /// It stands in the way and has to be evicted.
    Evict,
    /// It stands in the way, and is leaving already.
    Wait {
        /// When it was told to leave, as far as the object tells.
        since: Option<Timestamp>,
    },
    /// It does not stand in the way.
    Skip(SkipReason),
}

/// Why a pod does not stand in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SkipReason {
    /// It is bound to another Node, or to none.
    OtherNode,
    /// It has succeeded or failed: none of its containers runs or will run again.
    Finished,
    /// The kubelet runs it from a file; what the API shows is an image of it that cannot be evicted.
    Mirror,
    /// A DaemonSet would put it back at once, cordon or not.
    DaemonSet,
}

/// The links of the chain in their order: the first that has an answer decides, and who passes all is evicted.
const CHAIN: [fn(&Pod, &NodeName) -> Option<PodVerdict>; 5] =
    [other_node, finished, mirror, daemon_set, leaving];

/// What is to be done about `pod` so that `node` can be shut down.
pub fn verdict(pod: &Pod, node: &NodeName) -> PodVerdict {
    CHAIN
        .iter()
        .find_map(|link| link(pod, node))
        .unwrap_or(PodVerdict::Evict)
}

impl PodVerdict {
    /// Whether the pod stands in the way.
    pub fn stands_in_the_way(self) -> bool {
        match self {
            Self::Evict | Self::Wait { .. } => true,
            Self::Skip(_) => false,
        }
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherNode => "on another node",
            Self::Finished => "finished",
            Self::Mirror => "static",
            Self::DaemonSet => "of a DaemonSet",
        })
    }
}

/// The LIST asks for one Node's pods only; this holds even if a proxy or a cache drops the selector.
fn other_node(pod: &Pod, node: &NodeName) -> Option<PodVerdict> {
    let bound_to = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    (bound_to != Some(node.as_str())).then_some(PodVerdict::Skip(SkipReason::OtherNode))
}

fn finished(pod: &Pod, _: &NodeName) -> Option<PodVerdict> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed")).then_some(PodVerdict::Skip(SkipReason::Finished))
}

fn mirror(pod: &Pod, _: &NodeName) -> Option<PodVerdict> {
    pod.metadata
        .annotations
        .as_ref()
        .is_some_and(|annotations| annotations.contains_key(MIRROR_ANNOTATION))
        .then_some(PodVerdict::Skip(SkipReason::Mirror))
}

/// The controlling owner's kind decides, whatever its API version: `extensions/v1beta1` DaemonSets once had pods that
/// outlived the version.
fn daemon_set(pod: &Pod, _: &NodeName) -> Option<PodVerdict> {
    pod.metadata
        .owner_references
        .iter()
        .flatten()
        .any(|owner| {
            let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
            owner.controller == Some(true)
                && owner.kind == "DaemonSet"
                && matches!(group, "apps" | "extensions")
        })
        .then_some(PodVerdict::Skip(SkipReason::DaemonSet))
}

/// `deletionTimestamp` is when the grace ends; the pod was told to leave one grace earlier.
fn leaving(pod: &Pod, _: &NodeName) -> Option<PodVerdict> {
    let ends = pod.metadata.deletion_timestamp.as_ref()?.0;
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
    Some(PodVerdict::Wait {
        since: ends.checked_sub(grace).ok(),
    })
}

#[cfg(test)]
mod tests;
