//! Which pods block a shutdown, and which of them have to be evicted. Pure.
//!
//! The rules are those of `kubectl drain --ignore-daemonsets --delete-emptydir-data --force`, with two differences. A pod that has
//! ended by itself does not block: it does not run, and its log and exit code are kept. A pod of a DaemonSet is skipped even if its
//! DaemonSet was deleted, because the garbage collector removes such a pod.
//!
//! A pod that was evicted blocks until its kubelet has deleted it. The kubelet writes its terminal phase before that, when the
//! containers have ended; if it were stopped then, the Pod would stay Terminating, and its StatefulSet would make no other one.
//!
//! Pods with an `emptyDir` and pods without a controller are evicted: the shutdown would end them anyway, and the eviction gives
//! them time to terminate. Pods that are bound but do not run yet are evicted too.

use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

/// The kubelet's annotation on the mirror pod of a static pod.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// The pod's `namespace/name`.
pub fn full_name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

/// What a drain does with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodVerdict {
    /// It blocks and has to be evicted.
    Evict,
    /// It blocks and is terminating.
    Wait,
    /// It does not block.
    Skip(SkipReason),
}

/// Why a pod does not block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SkipReason {
    /// It has succeeded or failed, and its kubelet is done with it.
    Finished,
    /// The kubelet runs it from a file; its mirror pod cannot be evicted.
    Mirror,
    /// Its DaemonSet would recreate it at once, in spite of the cordon.
    DaemonSet,
    /// It came after its predecessors had been evicted: its successor would come as well.
    Returned,
    /// Its annotation, or that of its namespace, asks to leave it.
    Policy,
}

/// The taint that the node lifecycle controller gives a cordoned Node.
const CORDON_TAINT: &str = "node.kubernetes.io/unschedulable";

/// Whether a scheduler may bind the pod to a cordoned Node.
pub fn tolerates_cordon(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let mut tolerations = spec
        .and_then(|spec| spec.tolerations.as_ref())
        .into_iter()
        .flatten();
    tolerations.any(|toleration| {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let (key, effect) = (text(&toleration.key), text(&toleration.effect));
        let is_any = toleration.operator.as_deref() == Some("Exists");
        // The taint has no value.
        let matches_key = key == CORDON_TAINT && (is_any || text(&toleration.value).is_empty());
        (matches_key || key.is_empty() && is_any) && matches!(&*effect, "" | "NoSchedule")
    })
}

/// What creates the pod again after its eviction: its controller, or else somebody who gives each pod the same name, or names with
/// the same beginning.
pub fn owner(pod: &Pod) -> String {
    let metadata = &pod.metadata;
    let mut owners = metadata.owner_references.iter().flatten();
    if let Some(controller) = owners.find(|owner| owner.controller == Some(true)) {
        return controller.uid.clone();
    }
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let named = metadata.generate_name.as_ref().filter(|name| !name.is_empty());
    let named = named.cloned().unwrap_or_else(|| text(&metadata.name));
    format!("{}/{named}", text(&metadata.namespace))
}

/// The rules in their order: the first that applies decides; otherwise the pod is evicted.
const RULES: [fn(&Pod) -> Option<PodVerdict>; 4] = [finished, mirror, daemon_set, leaving];

/// What a drain of its Node does with `pod`. Lists and watches select the pods of one Node.
pub fn verdict(pod: &Pod) -> PodVerdict {
    let first = RULES.iter().find_map(|rule| rule(pod));
    first.unwrap_or(PodVerdict::Evict)
}

impl PodVerdict {
    /// Whether the pod blocks the shutdown.
    pub fn blocks_drain(self) -> bool {
        match self {
            Self::Evict | Self::Wait => true,
            Self::Skip(_) => false,
        }
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Finished => "finished",
            Self::Mirror => "static",
            Self::DaemonSet => "of a DaemonSet",
            Self::Returned => "returned",
            Self::Policy => "left by their annotation",
        })
    }
}

/// Whether the containers of the pod have ended, and do not start again.
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// A Pod with a terminal phase that is deleted gets a grace period of 0 from the kube-apiserver at once (`CheckGracefulDelete` in its
/// `pkg/registry/core/pod/strategy.go`), and so does one that only a finalizer keeps once its kubelet is done with it. Any other one is
/// still being cleaned up: its volumes are unmounted.
fn finished(pod: &Pod) -> Option<PodVerdict> {
    let metadata = &pod.metadata;
    let is_with_kubelet =
        metadata.deletion_timestamp.is_some() && metadata.deletion_grace_period_seconds != Some(0);
    (has_ended(pod) && !is_with_kubelet).then_some(PodVerdict::Skip(SkipReason::Finished))
}

fn mirror(pod: &Pod) -> Option<PodVerdict> {
    pod.metadata
        .annotations
        .as_ref()
        .is_some_and(|annotations| annotations.contains_key(MIRROR_ANNOTATION))
        .then_some(PodVerdict::Skip(SkipReason::Mirror))
}

/// The kind of the controlling owner decides, in every API group: OpenKruise has a `DaemonSet` of its own (`apps.kruise.io`), and
/// Datadog's `ExtendedDaemonSet` owns pods through an `ExtendedDaemonSetReplicaSet`. Anyone who may create pods may name such an owner
/// falsely; that pod alone is then not evicted, and ends with the VM.
fn daemon_set(pod: &Pod) -> Option<PodVerdict> {
    pod.metadata
        .owner_references
        .iter()
        .flatten()
        .any(|owner| owner.controller == Some(true) && owner.kind.contains("DaemonSet"))
        .then_some(PodVerdict::Skip(SkipReason::DaemonSet))
}

fn leaving(pod: &Pod) -> Option<PodVerdict> {
    pod.metadata.deletion_timestamp.as_ref()?;
    Some(PodVerdict::Wait)
}

#[cfg(test)]
mod tests;
