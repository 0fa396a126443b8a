//! The rights that Haulout needs in Kubernetes, checked with `SelfSubjectAccessReview`.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;

use super::answer;
use super::reads::ReadError;
use crate::foreign_maintenance::ForeignApi;

const DEADLINE: Duration = Duration::from_secs(10);

/// A right on one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// The API group; empty for the core's.
    pub group: &'static str,
    /// The resource in its plural, with its subresource behind a slash.
    pub resource: &'static str,
    pub verbs: &'static [&'static str],
    /// What it is needed for.
    pub why: &'static str,
    /// No node can be drained without it.
    pub is_vital: bool,
}

/// The rights of the ClusterRole of the chart.
pub const NEEDED: &[Right] = &[
    right(
        "",
        "nodes",
        &["get", "list", "watch", "patch"],
        "following nodes, cordoning them, and keeping the record",
    )
    .vital(),
    right(
        "",
        "pods",
        &["list", "watch"],
        "seeing which pods stand in the way",
    )
    .vital(),
    right("", "pods/eviction", &["create"], "draining").vital(),
    right(
        "",
        "namespaces",
        &["get"],
        "honouring the drain annotations of namespaces, and naming the cluster in traces",
    ),
    right(
        "storage.k8s.io",
        "volumeattachments",
        &["list"],
        "waiting for volumes to be detached after a drain",
    ),
    right(
        "",
        "persistentvolumes",
        &["get"],
        "telling the volumes of pods that stay from those to wait for",
    ),
    right(
        "resource.k8s.io",
        "resourceslices",
        &["list", "watch"],
        "waiting for GPUs of Dynamic Resource Allocation on the way back",
    ),
    right(
        "policy",
        "poddisruptionbudgets",
        &["list", "watch"],
        "continuing a drain as soon as the budget that blocks it allows",
    ),
    right(
        "events.k8s.io",
        "events",
        &["create"],
        "showing the maintenance in `kubectl describe node`",
    ),
    right(
        "",
        "nodes/status",
        &["patch"],
        "not taking the GPU count of the last boot for that of the next one, and showing an episode in conditions",
    ),
    right(
        "haulout.dev",
        "nodemaintenances",
        &["list", "watch", "create", "delete"],
        "requests of people, and the second copy of each record",
    ),
    right(
        "haulout.dev",
        "nodemaintenances/status",
        &["patch"],
        "showing the state of a request",
    ),
];

/// The right to read the configuration of kubelets, which `check` uses where a person has it.
pub const KUBELETS: Right = right(
    "",
    "nodes/proxy",
    &["get"],
    "reading how long a kubelet delays a shutdown",
);

/// The rights where Cluster API is installed.
pub const MACHINES: &[Right] = &[
    right(
        "cluster.x-k8s.io",
        "machines",
        &["get", "patch"],
        "keeping MachineHealthChecks away from a node in maintenance",
    ),
    right(
        "infrastructure.cluster.x-k8s.io",
        "vspherevms",
        &["get", "list", "patch"],
        "keeping the VM of a node in maintenance from being powered on",
    ),
];

/// The rights in OpenShift.
pub const OPENSHIFT: &[Right] = &[
    right(
        "machine.openshift.io",
        "machines",
        &["get"],
        "finding the MachineHealthChecks of a node",
    ),
    right(
        "machine.openshift.io",
        "machinehealthchecks",
        &["get", "list", "patch"],
        "pausing them while a node is in maintenance",
    ),
];

/// The rights for the NodeMaintenances of another project.
pub const fn foreign_maintenances(api: ForeignApi) -> [Right; 2] {
    [
        right(
            api.group(),
            "nodemaintenances",
            &["list", "watch"],
            "requests of this kind, which FOREIGN_NODE_MAINTENANCES names",
        ),
        right(
            api.group(),
            "nodemaintenances/status",
            &["patch"],
            "showing the state of a request of this kind",
        ),
    ]
}

/// The right of the Role in the namespace of the Lease, for leader election.
pub const LEASES: Right = right(
    "coordination.k8s.io",
    "leases",
    &["get", "create", "update"],
    "agreeing with other replicas which one acts",
)
.vital();

const fn right(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    why: &'static str,
) -> Right {
    Right {
        group,
        resource,
        verbs,
        why,
        is_vital: false,
    }
}

impl Right {
    const fn vital(self) -> Self {
        Self {
            is_vital: true,
            ..self
        }
    }
}

/// The verbs of `right` that the user of `client` lacks, in `namespace` or in the whole cluster.
pub async fn lacking(
    client: &kube::Client,
    right: &Right,
    namespace: Option<&str>,
) -> Result<Vec<&'static str>, ReadError> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let (resource, subresource) = match right.resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (right.resource, None),
    };
    let mut lacking = Vec::new();
    for verb in right.verbs {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    namespace: namespace.map(str::to_owned),
                    group: Some(right.group.to_owned()),
                    resource: Some(resource.to_owned()),
                    subresource: subresource.clone(),
                    verb: Some((*verb).to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let params = PostParams::default();
        let answer = answer::within(DEADLINE, reviews.create(&params, &review)).await;
        let answer = answer.map_err(|refusal| ReadError::new("the rights", &refusal))?;
        if !answer.status.is_some_and(|status| status.allowed) {
            lacking.push(*verb);
        }
    }
    Ok(lacking)
}
