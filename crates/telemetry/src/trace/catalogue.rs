//! All spans, attributes and span events with their meaning, for the reference documentation.

use super::spans::Span;

macro_rules! described {
    ($(#[$doc:meta])* $LIST:ident { $($name:literal: $meaning:literal;)+ }) => {
        $(#[$doc])*
        pub const $LIST: &[(&str, &str)] = &[$(($name, $meaning)),+];
    };
}

described! {
    /// All spans, in the order of an episode.
    SPANS {
        "maintenance": "the root: the whole episode; sent last. Links to the previous episode on the same host";
        "announce": "sent first, without a duration, so that a trace can be found during its episode";
        "detect": "from the start of the task or the creation of the request until the begin of the episode";
        "queue": "the wait for a slot; links to the trace of the episode that held it";
        "drain": "from the cordon until no pod is left, or the drain ended otherwise";
        "cordon": "the PATCH that cordons the Node, a child of the phase that begins with it";
        "evict pod": "in `drain`: a pod, from the first eviction request until it is gone";
        "wait pdb": "in `evict pod`: while a PodDisruptionBudget blocked the eviction";
        "wait termination": "in `evict pod`: from the accepted eviction until the pod is gone";
        "evict pods": "in `drain`: the pods beyond 200, together";
        "drained": "the time in which a request keeps the node drained";
        "guest shutdown": "an error if the power had to be cut";
        "power off": "the hard power-off";
        "place": "the search for another host";
        "wait host exit": "the wait for the VM's own host";
        "relocate": "the relocation by vCenter";
        "power on": "the power-on by vCenter";
        "wait node ready": "from power-on until the node is Ready on another boot";
        "wait gpu allocatable": "from then until its GPUs are allocatable again";
        "parked": "the time in which the episode was parked; an error with the reason";
        "uncordon": "the PATCH that uncordons the Node at the end";
    }
}

described! {
    /// All span attributes.
    ATTRIBUTES {
        "haulout.episode": "on every span: the id of the episode, which is the trace id";
        "k8s.node.name": "on every span";
        "vcenter.host.name": "on every span: the ESXi host";
        "k8s.node.uid": "on `announce`, `detect` and the root";
        "vcenter.cluster.name": "on `announce`, `detect` and the root";
        "vcenter.vm.name": "on `announce`, `detect` and the root";
        "vcenter.vm.id": "on `announce`, `detect` and the root: the UUID of the VM";
        "haulout.trigger": "what began the episode: `task`, `request`, `stray`, `host_state` or `adopted`";
        "vcenter.task.id": "the vCenter task";
        "enduser.id": "the user of the maintenance task";
        "haulout.request": "the NodeMaintenance that requested it";
        "haulout.request.uid": "its UID";
        "haulout.result": "on the root: `succeeded`, `cancelled`, `vmotioned`, `failed` or `replaced`";
        "haulout.target.host": "the host that the VM was relocated to";
        "haulout.gpus.accepted": "on the root: the GPUs with which a person took the node back, if fewer than before";
        "haulout.pods.left_behind": "on the root: pods that were left when the drain timed out";
        "haulout.detection.source": "how the task was detected, as on `haulout_detection_latency_seconds`";
        "haulout.clock_skew_ms": "by how much vCenter's clock is ahead at least, if the task started in the future";
        "haulout.queue.position": "the first position in the queue";
        "haulout.queue.limit": "the limit that was reached";
        "haulout.queue.setting": "its setting";
        "haulout.drain.outcome": "`complete`, `timed out`, `interrupted`, `parked` or `cancelled`";
        "haulout.pods.total": "pods on the node";
        "haulout.pods.evicted": "pods that were evicted";
        "haulout.pods.ignored": "pods that a drain does not evict";
        "haulout.pods.count": "on `evict pods`: the number of its pods";
        "k8s.pdb.name": "the PodDisruptionBudgets that blocked evictions";
        "k8s.pod.name": "on spans of a pod";
        "k8s.pod.uid": "on spans of a pod";
        "k8s.namespace.name": "on spans of a pod";
        "haulout.evict.attempts": "eviction requests";
        "haulout.evict.blocked": "how many of them a PodDisruptionBudget refused";
        "haulout.pod.grace_period_s": "the grace period of the pod";
        "haulout.placement.strategy": "how a host was found: `relocate` or `drs`; otherwise `wait`";
        "haulout.parked.phase": "the phase that resumes";
        "k8s.resource.name": "the GPU resources that are waited for";
        "rpc.system.name": "`soap`, on calls to vCenter";
        "rpc.method": "the vCenter method";
        "server.address": "the vCenter";
        "error.type": "the kind of failure, as one word";
        "peer.service": "`vcenter` or `kube-apiserver`; Jaeger's dependency graph uses it";
        "service.peer.name": "the same, under the name in the semantic conventions";
    }
}

described! {
    /// The attributes of the resource, besides those of `OTEL_RESOURCE_ATTRIBUTES`, which take precedence.
    RESOURCE {
        "service.name": "`haulout`, unless `OTEL_SERVICE_NAME` is set";
        "service.version": "the version of Haulout";
        "k8s.namespace.name": "the namespace of its pod, from `POD_NAMESPACE`";
        "k8s.cluster.uid": "the UID of the namespace `kube-system` of the cluster with the nodes, if it can be read";
    }
}

described! {
    /// All span events.
    EVENTS {
        "controller.restarted": "on the root: another process continued the episode";
        "leader.changed": "on the root: `old` and `new` are the epochs of the leaders";
        "operator.cancelled": "on the root: the maintenance was cancelled";
        "eviction.blocked": "on `wait pdb`: each change of the `message` of the PodDisruptionBudget";
        "host.refused": "on `place`: `vcenter.host.name` and the `reason`, for each of up to 16 rejected hosts";
    }
}

/// The first name in `span` that is not in a list.
pub(super) fn unknown(span: &Span) -> Option<&str> {
    let is_in = |list: &[(&str, &str)], name: &str| list.iter().any(|(known, _)| *known == name);
    let mut attributes = span.attributes.iter().map(|attribute| attribute.key.as_str());
    let mut events = span.events.iter().map(|moment| moment.name);
    let span = (!is_in(SPANS, span.name)).then_some(span.name);
    span.or_else(|| attributes.find(|name| !is_in(ATTRIBUTES, name)))
        .or_else(|| events.find(|name| !is_in(EVENTS, name)))
}
