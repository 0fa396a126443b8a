//! The rights that Haulout needs in Kubernetes, and whether it has them, as the kube-apiserver itself tells.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;

use super::answer;
use super::reads::LookError;

/// For one review. The kube-apiserver answers within milliseconds or is in trouble.
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
    /// Nothing is drained without it; otherwise something that people see is missing.
    pub is_vital: bool,
}

/// What the ClusterRole in the README gives.
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
        why: "going on with a drain in the moment in which the budget that holds it allows",
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
        why: "telling how a request stands",
        is_vital: false,
    },
];

/// What the Role in the README gives where replicas take turns, in the namespace of the Lease.
pub const LEASES: Right = Right {
    group: "coordination.k8s.io",
    resource: "leases",
    verbs: &["get", "create", "update"],
    why: "agreeing with other replicas which one acts",
    is_vital: true,
};

/// The verbs of `right` that whoever `client` speaks for does not have, in `namespace` or for the whole cluster
/// (`SelfSubjectAccessReview`).
///
/// # Errors
/// When the kube-apiserver does not say.
pub async fn lacking(
    client: &kube::Client,
    right: &Right,
    namespace: Option<&str>,
) -> Result<Vec<&'static str>, LookError> {
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
        let answer = answer.map_err(|refusal| LookError::new("the rights", &refusal))?;
        if !answer.status.is_some_and(|status| status.allowed) {
            lacking.push(*verb);
        }
    }
    Ok(lacking)
}
