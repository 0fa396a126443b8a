//! Single reads from Kubernetes, without a watch: for the subcommands, and for traces.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde::de::DeserializeOwned;
use serde_json::json;
use thiserror::Error;
use tracing::debug;

use super::answer::{self, ApiRefusal};
use super::devices::SliceIndex;
use super::facts::GpuResources;
use crate::device_slice::DeviceSlice;
use crate::ids::NodeName;
use crate::keys::CLI_MANAGER;

/// The deadline for one page or object.
const DEADLINE: Duration = Duration::from_secs(15);

/// The page size of kubectl.
const PAGE: u32 = 500;

/// The maximum number of pages of one list: half a million objects.
const PAGES_MAX: usize = 1_000;

/// The label of all objects of the chart, which none of its values changes.
const PART_OF: &str = "app.kubernetes.io/part-of=haulout";

/// Why a read has no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The object or its kind does not exist.
    #[error("{what}: {message}")]
    Absent { what: String, message: String },
    /// The user may not read it, or is not known.
    #[error("{what}: the read failed: {message}")]
    Denied { what: String, message: String },
    /// Anything else. It may pass.
    #[error("{what}: the read failed: {message}")]
    Refused {
        what: String,
        /// The message of Kubernetes, or that it did not answer.
        message: String,
    },
}

/// The namespace whose UID identifies a cluster: every cluster has it, and it lives as long as the cluster.
const KUBE_SYSTEM: &str = "kube-system";

/// The UID of the cluster, if it can be read. It is asked for once.
pub async fn cluster_uid(client: kube::Client) -> Option<String> {
    let namespaces: Api<Namespace> = Api::all(client);
    match answer::within(DEADLINE, namespaces.get(KUBE_SYSTEM)).await {
        Ok(namespace) => namespace.metadata.uid,
        Err(refusal) => {
            debug!(
                "the namespace {KUBE_SYSTEM} cannot be read, so traces do not name the cluster: {refusal}"
            );
            None
        }
    }
}

impl ReadError {
    pub fn new(what: &str, refusal: &ApiRefusal) -> Self {
        let (what, message) = (what.to_owned(), refusal.to_string());
        match refusal.code() {
            Some(404) => Self::Absent { what, message },
            Some(401 | 403) => Self::Denied { what, message },
            Some(_) | None => Self::Refused { what, message },
        }
    }

    /// Whether the object or its kind does not exist.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent { .. })
    }

    /// Whether the same read may succeed later.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }
}

/// The kube-apiserver's version.
pub async fn version(client: &kube::Client) -> Result<String, ReadError> {
    let answer = answer::within(DEADLINE, client.apiserver_version()).await;
    let info = answer.map_err(|refusal| ReadError::new("the version of the kube-apiserver", &refusal))?;
    Ok(info.git_version)
}

/// The Nodes that `selector` matches.
pub async fn nodes(client: &kube::Client, selector: &str) -> Result<Vec<Node>, ReadError> {
    list(
        Api::all(client.clone()),
        ListParams::default().labels(selector),
        "the Nodes",
    )
    .await
}

/// The ConfigMaps of the controllers that the chart installs.
pub async fn controllers(client: &kube::Client) -> Result<Vec<ConfigMap>, ReadError> {
    list(
        Api::all(client.clone()),
        ListParams::default().labels(PART_OF),
        "the ConfigMaps of controllers",
    )
    .await
}

/// The pods of the controllers that the chart installs, in one namespace or in all.
pub async fn controller_pods(client: &kube::Client, namespace: Option<&str>) -> Result<Vec<Pod>, ReadError> {
    let pods = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    list(
        pods,
        ListParams::default().labels(PART_OF),
        "the pods of controllers",
    )
    .await
}

/// One Node.
pub async fn node(client: &kube::Client, name: &str) -> Result<Node, ReadError> {
    get(Api::all(client.clone()), name, &format!("node/{name}")).await
}

/// All PodDisruptionBudgets.
pub async fn budgets(client: &kube::Client) -> Result<Vec<PodDisruptionBudget>, ReadError> {
    list(
        Api::all(client.clone()),
        ListParams::default(),
        "the PodDisruptionBudgets",
    )
    .await
}

/// The GPUs in ResourceSlices, by Node; those of one Node with `only`. None where the kind does not exist.
pub async fn device_slices(
    client: &kube::Client,
    gpus: &GpuResources,
    only: Option<&str>,
) -> Result<BTreeMap<NodeName, Arc<[DeviceSlice]>>, ReadError> {
    if !gpus.has_drivers() {
        return Ok(BTreeMap::new());
    }
    let mut params = ListParams::default();
    if let Some(node) = only {
        params = params.fields(&format!("spec.nodeName={node}"));
    }
    let slices = match list(Api::all(client.clone()), params, "the ResourceSlices").await {
        Ok(slices) => slices,
        Err(error) if error.is_absent() => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let mut index = SliceIndex::new(gpus.clone());
    for slice in &slices {
        index.seen(slice);
    }
    let nodes = index.nodes();
    Ok(nodes.map(|node| (node.clone(), index.slices_of(node))).collect())
}

/// Whether the label selector matches this Node.
pub async fn is_selected(client: &kube::Client, node: &str, selector: &str) -> Result<bool, ReadError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let params = ListParams::default()
        .labels(selector)
        .fields(&format!("metadata.name={node}"));
    let found = answer::within(DEADLINE, nodes.list_metadata(&params)).await;
    let found = found.map_err(|refusal| ReadError::new("nodes", &refusal))?;
    Ok(!found.items.is_empty())
}

/// The name of the user as which `client` acts (`SelfSubjectReview`, which every authenticated user may create).
///
/// # Errors
/// When the kube-apiserver refuses it, or knows no such review (before 1.28).
pub async fn user(client: &kube::Client) -> Result<String, ReadError> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let (params, review) = (PostParams::default(), SelfSubjectReview::default());
    let what = "the name of the user";
    let answer = answer::within(DEADLINE, reviews.create(&params, &review)).await;
    let review = answer.map_err(|refusal| ReadError::new(what, &refusal))?;
    let user = review.status.and_then(|status| status.user_info?.username);
    user.filter(|name| !name.is_empty())
        .ok_or_else(|| ReadError::Absent {
            what: what.to_owned(),
            message: "the review has none".to_owned(),
        })
}

/// Sets an annotation of a Node for a person at the command line; `None` removes it.
pub async fn annotate(
    client: &kube::Client,
    node: &str,
    key: &str,
    value: Option<&str>,
) -> Result<(), ReadError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let params = PatchParams::apply(CLI_MANAGER);
    let patch = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
    answer::within(DEADLINE, nodes.patch(node, &params, &patch))
        .await
        .map(|_| ())
        .map_err(|refusal| ReadError::new(&format!("node/{node}"), &refusal))
}

pub async fn get<K>(api: Api<K>, name: &str, what: &str) -> Result<K, ReadError>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    answer::within(DEADLINE, api.get(name))
        .await
        .map_err(|refusal| ReadError::new(what, &refusal))
}

pub async fn list<K>(api: Api<K>, params: ListParams, what: &str) -> Result<Vec<K>, ReadError>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut all = Vec::new();
    let list = async |params| api.list(&params).await;
    answer::pages(params.limit(PAGE), PAGES_MAX, DEADLINE, list, |object| {
        all.push(object)
    })
    .await
    .map_err(|refusal| ReadError::new(what, &refusal))?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_is_repeated_only_where_it_may_succeed_later() {
        for (code, may_pass) in [
            (401, false),
            (403, false),
            (404, false),
            (429, true),
            (500, true),
            (503, true),
        ] {
            let status = kube::core::Status::failure("text", "Reason").with_code(code);
            let error = ReadError::new("nodes", &ApiRefusal::Status(Box::new(status)));
            assert_eq!(error.may_pass(), may_pass, "{code}");
            assert_eq!(error.is_absent(), code == 404, "{code}");
        }
        let silent = ApiRefusal::Unreachable("no answer".to_owned());
        assert!(ReadError::new("nodes", &silent).may_pass());
    }
}
