//! All spans, attributes and span events with their meaning, for the reference documentation.

use super::spans::Span;

/// All spans, in the order of an episode.
pub const SPANS: &[(&str, &str)] = &[
    (
        "maintenance",
        "the root: the whole episode; sent last. Links to the episode before on the same host",
    ),
    (
        "announce",
        "sent first and a moment long, so that a trace can be found while its episode goes on",
    ),
    (
        "detect",
        "from the click, or the request, to the begin of the episode",
    ),
    (
        "queue",
        "the wait for a slot; links to the trace of the episode that had it",
    ),
    (
        "drain",
        "from the cordon until no pod is left, or the drain ended otherwise",
    ),
    (
        "cordon",
        "part of the phase that begins with it; as long as its PATCH",
    ),
    (
        "evict pod",
        "in `drain`: a pod, from the first eviction request until it is gone",
    ),
    (
        "wait pdb",
        "in `evict pod`: the time in which a PodDisruptionBudget held the pod",
    ),
    (
        "wait termination",
        "in `evict pod`: how long the pod took to leave",
    ),
    ("evict pods", "in `drain`: the pods beyond 200, together"),
    ("drained", "the time that a person wants the node kept drained"),
    ("guest shutdown", "an error where the guest had to be cut off"),
    (
        "power off",
        "the power-off, or the wait for the guest that was asked",
    ),
    ("place", "the search for another host"),
    ("wait host exit", "the wait for the VM's own host"),
    ("relocate", "the work of vCenter"),
    ("power on", "the work of vCenter"),
    (
        "wait node ready",
        "from power-on until the node is Ready on another boot",
    ),
    (
        "wait gpu allocatable",
        "from then until its GPUs are allocatable again",
    ),
    (
        "parked",
        "the time in which a person had to look at it; an error with the reason",
    ),
    ("uncordon", "the end; as long as its PATCH"),
];

/// All span attributes.
pub const ATTRIBUTES: &[(&str, &str)] = &[
    (
        "haulout.episode",
        "on every span: the id of the episode, which is the trace id",
    ),
    ("k8s.node.name", "on every span"),
    ("vcenter.host.name", "on every span: the ESXi host"),
    ("k8s.node.uid", "on `announce`, `detect` and the root"),
    ("vcenter.cluster.name", "on `announce`, `detect` and the root"),
    ("vcenter.vm.name", "on `announce`, `detect` and the root"),
    (
        "vcenter.vm.id",
        "on `announce`, `detect` and the root: the UUID of the VM",
    ),
    (
        "haulout.trigger",
        "what began the episode: `task`, `request`, `stray`, `host_state` or `adopted`",
    ),
    ("vcenter.task.id", "the task of vCenter"),
    ("enduser.id", "who clicked"),
    ("haulout.request", "the NodeMaintenance that asked for it"),
    ("haulout.request.uid", "its UID"),
    (
        "haulout.result",
        "on the root: `succeeded`, `cancelled`, `failed` or `replaced`",
    ),
    ("haulout.target.host", "the host the VM was moved to"),
    (
        "haulout.pods.left_behind",
        "on the root: pods that were left when the drain timed out",
    ),
    (
        "haulout.detection.source",
        "how the click was noticed, as on `haulout_detection_latency_seconds`",
    ),
    (
        "haulout.clock_skew_ms",
        "by how much vCenter's clock is ahead, at least, where the click lies in the future",
    ),
    ("haulout.queue.position", "the position at first"),
    ("haulout.queue.limit", "the limit that was full"),
    ("haulout.queue.setting", "its setting"),
    (
        "haulout.drain.outcome",
        "`complete`, `timed out`, `interrupted`, `parked` or `called off`",
    ),
    ("haulout.pods.total", "pods on the node"),
    ("haulout.pods.evicted", "pods that were evicted"),
    ("haulout.pods.ignored", "pods that were left alone"),
    (
        "haulout.pods.count",
        "on `evict pods`: how many pods it stands for",
    ),
    ("k8s.pdb.name", "the PodDisruptionBudgets that held pods back"),
    ("k8s.pod.name", "on spans of a pod"),
    ("k8s.pod.uid", "on spans of a pod"),
    ("k8s.namespace.name", "on spans of a pod"),
    ("haulout.evict.attempts", "eviction requests"),
    (
        "haulout.evict.blocked",
        "how many of them a PodDisruptionBudget refused",
    ),
    ("haulout.pod.grace_period_s", "the grace period of the pod"),
    ("haulout.placement.strategy", "how a host was found, or `wait`"),
    ("haulout.parked.phase", "the phase that resumes"),
    ("k8s.resource.name", "the resources that are waited for"),
    ("rpc.method", "the method of vCenter"),
    ("server.address", "the vCenter"),
    ("error.type", "the kind of failure, as one word"),
    (
        "peer.service",
        "`vcenter` or `kube-apiserver`; Jaeger draws its arrows by it",
    ),
    (
        "service.peer.name",
        "the same, under the name in the semantic conventions",
    ),
];

/// All span events.
pub const EVENTS: &[(&str, &str)] = &[
    (
        "controller.restarted",
        "on the root: another process went on with the episode",
    ),
    (
        "leader.changed",
        "on the root: `old` and `new` are the epochs of the leaders",
    ),
    (
        "operator.cancelled",
        "on the root: the maintenance was called off",
    ),
    (
        "eviction.blocked",
        "on `wait pdb`: each change of the `message` of the PodDisruptionBudget",
    ),
    (
        "host.refused",
        "on `place`: `vcenter.host.name` and the `reason` for each of up to 16 hosts that will not do",
    ),
];

/// The first name in `span` that is not in a list.
pub(super) fn unknown(span: &Span) -> Option<&str> {
    let is_in = |list: &[(&str, &str)], name: &str| list.iter().any(|(known, _)| *known == name);
    let mut attributes = span.attributes.iter().map(|attribute| attribute.key.as_str());
    let mut events = span.events.iter().map(|moment| moment.name);
    let span = (!is_in(SPANS, span.name)).then_some(span.name);
    span.or_else(|| attributes.find(|name| !is_in(ATTRIBUTES, name)))
        .or_else(|| events.find(|name| !is_in(EVENTS, name)))
}
