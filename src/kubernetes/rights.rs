//! The rights that Haulout needs in Kubernetes, checked with `SelfSubjectAccessReview`.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;

use super::answer;
use super::reads::ReadError;

const DEADLINE: Duration = Duration::from_secs(10);

/// A right on one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// The API group; empty for the core's.
    pub group: &'static str,
    /// The resource in its plural, with its subresource behind a slash.
    pub resource: &'static str,
    /// The verbs.
    pub verbs: &'static [&'static str],
    /// What it is needed for.
    pub why: &'static str,
    /// No node can be drained without it.
    pub is_vital: bool,
}

/// The rights of the ClusterRole of the chart.
pub const NEEDED: &[Right] = &[
    Right {
        group: "",
        resource: "nodes",
        verbs: &["get", "list", "watch", "patch"],
        why: "following nodes, cordoning them, and keeping the record",
        is_vital: true,
    },
    Right {
        group: "",
        resource: "pods",
        verbs: &["list", "watch"],
        why: "seeing which pods stand in the way",
        is_vital: true,
    },
    Right {
        group: "",
        resource: "pods/eviction",
        verbs: &["create"],
        why: "draining",
        is_vital: true,
    },
    Right {
        group: "policy",
        resource: "poddisruptionbudgets",
        verbs: &["list", "watch"],
        why: "continuing a drain as soon as the budget that blocks it allows",
        is_vital: false,
    },
    Right {
        group: "events.k8s.io",
        resource: "events",
        verbs: &["create"],
        why: "telling what happens in `kubectl describe node`",
        is_vital: false,
    },
    Right {
        group: "",
        resource: "nodes/status",
        verbs: &["patch"],
        why: "NODE_CONDITIONS=well-known",
        is_vital: false,
    },
    Right {
        group: "haulout.dev",
        resource: "nodemaintenances",
        verbs: &["list", "watch", "create", "delete"],
        why: "requests of people, and the second copy of each record",
        is_vital: false,
    },
    Right {
        group: "haulout.dev",
        resource: "nodemaintenances/status",
        verbs: &["patch"],
        why: "showing the state of a request",
        is_vital: false,
    },
];

/// The right of the Role in the namespace of the Lease, for leader election.
pub const LEASES: Right = Right {
    group: "coordination.k8s.io",
    resource: "leases",
    verbs: &["get", "create", "update"],
    why: "agreeing with other replicas which one acts",
    is_vital: true,
};

/// The verbs of `right` that the user of `client` lacks, in `namespace` or in the whole cluster.
///
/// # Errors
/// When the kube-apiserver does not answer.
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
