//! Every annotation key and field manager that Haulout uses; the only file with a domain name in it.

/// The annotations that show an episode to scripts, beside the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainKeys {
    /// `draining`, `powered-off` or `migrated`.
    pub state: &'static str,
    /// The host that triggered maintenance.
    pub host: &'static str,
    /// The host the VM was moved to.
    pub migrated_to_host: &'static str,
    /// When the last transition happened.
    pub transition_time: &'static str,
}

/// Haulout's.
pub const PLAIN: PlainKeys = PlainKeys {
    state: "haulout.dev/state",
    host: "haulout.dev/host",
    migrated_to_host: "haulout.dev/migrated-to-host",
    transition_time: "haulout.dev/transition-time",
};

/// Those of the Python controller, which is all that it keeps of an episode. Haulout adopts it, and removes them with its first write.
pub const PYTHON: PlainKeys = PlainKeys {
    state: "vsphere-maintenance.boeye.net/state",
    host: "vsphere-maintenance.boeye.net/host",
    migrated_to_host: "vsphere-maintenance.boeye.net/migrated-to-host",
    transition_time: "vsphere-maintenance.boeye.net/transition-time",
};

/// The annotation with the record: the versioned JSON of the episode.
pub const EPISODE: &str = "haulout.dev/episode";

/// The annotation with the versioned JSON of the episode that ended last.
pub const LAST_EPISODE: &str = "haulout.dev/last-episode";

/// The annotation with the UID of the latest fulfilled request. It is written with the end of the episode, so that a crash before the
/// update of the request's status does not start it again.
pub const FULFILLED: &str = "haulout.dev/fulfilled-request";

/// An annotation that people set on a Node: with `true`, it stays cordoned at the end of the episode.
pub const KEEP_CORDONED: &str = "haulout.dev/keep-cordoned";

/// The field manager of our PATCHes, by which `metadata.managedFields` distinguishes our cordon from others.
pub const FIELD_MANAGER: &str = "haulout";

/// The field manager of the command line, which must differ from that of the controller.
pub const CLI_MANAGER: &str = "kubectl-haulout";

/// The `reportingController` of our Events.
pub const REPORTING_CONTROLLER: &str = "haulout.dev/controller";

/// The label selector of GPU nodes unless another is configured: the Python controller's default.
pub const DEFAULT_NODE_SELECTOR: &str = "intel.feature.node.kubernetes.io/gpu=true";

/// An annotation that people set on a Node: with `true`, Haulout leaves it alone.
pub const SKIP: &str = "haulout.dev/skip";

/// An annotation that people set on a Node: the id of the episode, or the UID of the NodeMaintenance, whose drain may begin where
/// `REQUIRE_APPROVAL` is set. Haulout removes it when that drain begins.
pub const APPROVED: &str = "haulout.dev/approved";

/// An annotation that people set on a Node: the GPUs with which it counts as back, as in `nvidia.com/gpu=7`. Haulout removes it at the
/// end of the episode.
pub const ACCEPTED_GPUS: &str = "haulout.dev/accepted-gpus";

/// An annotation that people set on a Node: its sentinel asks for a reboot. With a boot id as its value, only on that boot.
pub const REBOOT_REQUIRED: &str = "haulout.dev/reboot-required";

/// The label of a NodeMaintenance that a program has created, with the program's name.
pub const REQUESTED_BY: &str = "haulout.dev/requested-by";

/// The value of [`REQUESTED_BY`] on the requests of sentinels, and their field manager.
pub const SENTINEL: &str = "haulout-sentinel";

/// An annotation that people set on a Node: `migrate` or `wait`.
pub const STRATEGY: &str = "haulout.dev/strategy";

/// The taint of a Node from its cordon until its VM is on again.
pub const MAINTENANCE_TAINT: &str = "haulout.dev/maintenance";

/// The taint of a Node that is queued.
pub const QUEUED_TAINT: &str = "haulout.dev/queued";

/// The taint that says that a Node is shut down for certain.
pub const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";

/// The annotation with which cluster-autoscaler does not remove a Node.
pub const AUTOSCALER_SCALE_DOWN_DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";

/// The label with which the remediators of medik8s skip a Node.
pub const MEDIK8S_EXCLUDE: &str = "remediation.medik8s.io/exclude-from-remediation";

/// The label with which NVSentinel leaves a Node alone.
pub const NVSENTINEL_MANAGED: &str = "nvsentinel.dgxc.nvidia.com/managed";

/// The first part of the labels that NVSentinel keeps on the GPU nodes that it looks after.
pub const NVSENTINEL: &str = "nvsentinel.dgxc.nvidia.com/";

/// The annotation with which Gardener's machine-controller-manager keeps the machine of a failed Node.
pub const GARDENER_PRESERVE: &str = "node.machine.sapcloud.io/preserve";

/// The annotation that Gardener's machine-controller-manager keeps on each Node that it manages.
pub const GARDENER_MANAGED: &str = "node.machine.sapcloud.io/last-applied-anno-labels-taints";

/// The end of the first part of the annotations that are hooks, behind the step.
pub const HOOK_SUFFIX: &str = ".hook.haulout.dev";

/// The hooks of the first step, with any name, for documents.
const HOOKS: &str = "pre-drain.hook.haulout.dev/…";

/// The API group of Cluster API.
pub const CLUSTER_API: &str = "cluster.x-k8s.io";

/// The API group of OpenShift's Machines and MachineHealthChecks.
pub const OPENSHIFT_MACHINES: &str = "machine.openshift.io";

/// The API group of Cluster API's infrastructure providers.
pub const CLUSTER_API_INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// The label of Cluster API's objects with the name of their cluster.
pub const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";

/// The annotation with which Cluster API names the Machine of a Node.
pub const NODE_MACHINE: &str = "cluster.x-k8s.io/machine";

/// The annotation with which Cluster API names the namespace of the Machine of a Node.
pub const NODE_CLUSTER_NAMESPACE: &str = "cluster.x-k8s.io/cluster-namespace";

/// The annotation with which no MachineHealthCheck remediates a Machine.
pub const SKIP_REMEDIATION: &str = "cluster.x-k8s.io/skip-remediation";

/// The annotation with which the controllers of Cluster API leave an object alone.
pub const PAUSED: &str = "cluster.x-k8s.io/paused";

/// An annotation that people set on a pod or its namespace: `evict`, `wait` or `skip`.
pub const DRAIN: &str = "haulout.dev/drain";

/// An annotation that people set on a pod or its namespace: how many seconds after the beginning of a drain the pod may still end by
/// itself, with `wait` in [`DRAIN`]. In seconds as the settings and the grace period of a pod.
pub const DRAIN_WAIT_SECONDS: &str = "haulout.dev/drain-wait-seconds";

/// The annotations that people set on pods and namespaces, each with its meaning.
pub const ON_PODS: &[(&str, &str)] = &[
    (
        DRAIN,
        "yours: what a drain does with the pod: `evict` (the default), `wait` until it has ended by itself, or `skip`; that of the \
         pod goes before that of its namespace",
    ),
    (
        DRAIN_WAIT_SECONDS,
        "yours: with `wait`, how many seconds after the cordon the pod is evicted; at most `DRAIN_WAIT_MAX_SECONDS`, which is also \
         the default",
    ),
];

/// The annotation on the Lease of the leader election: with `true`, the leader lets another replica take the Lease.
pub const YIELDS: &str = "haulout.dev/yields";

/// The annotation on the Lease that notes a login that vCenter refused: time and user.
pub const LOGIN_REFUSED: &str = "haulout.dev/login-refused";

/// The annotations on a Node, each with its meaning.
pub const ON_NODES: &[(&str, &str)] = &[
    (
        PLAIN.state,
        "`draining`, `powered-off` or `migrated`; absent while queued",
    ),
    (PLAIN.host, "the ESXi host whose maintenance it is about"),
    (
        PLAIN.migrated_to_host,
        "the host the VM was moved to, with `migrated`",
    ),
    (PLAIN.transition_time, "when that began, ISO 8601"),
    (
        EPISODE,
        "the record that a restart goes on from, as versioned JSON: the exact phase and since when, who clicked, whose \
         the cordon is, UUID and moref of the VM, boot id and GPU count before, what was requested of vCenter, which \
         hosts refused the VM, pods left behind",
    ),
    (
        FULFILLED,
        "the UID of the last NodeMaintenance that was fulfilled on this node; it stays",
    ),
    (
        LAST_EPISODE,
        "the episode that ended last, until the next one begins; by it a VM that goes off too late is brought back",
    ),
    (
        KEEP_CORDONED,
        "yours: `true` keeps the node cordoned at the end of the episode",
    ),
    (
        SKIP,
        "yours: while it is `true`, Haulout leaves the node alone, and says so",
    ),
    (
        APPROVED,
        "yours: the id of the episode, or the UID of the NodeMaintenance, whose drain may begin where `REQUIRE_APPROVAL` is \
         set; `kubectl haulout approve NODE` sets it, and it is removed when that drain begins",
    ),
    (
        ACCEPTED_GPUS,
        "yours: the GPUs with which the node counts as back in this episode, as in `nvidia.com/gpu=7`; `kubectl haulout \
         accept NODE` sets it, and it is removed at the end",
    ),
    (
        REBOOT_REQUIRED,
        "yours: the [sentinel](../how-to/reboot-sentinel.md) of the node asks for a reboot; a boot id as its value counts on \
         that boot only",
    ),
    (
        HOOKS,
        "yours: hold the drain until they are removed; `pre-poweroff.…` and `pre-uncordon.…` hold the power-off and the \
         uncordon",
    ),
    (
        STRATEGY,
        "yours: `migrate` (the default) moves the VM where another host can take it, `wait` keeps it for its own host",
    ),
];
