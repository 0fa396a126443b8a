//! The complete list of a Node's pods.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;

use super::{DrainError, DrainSettings, PAGE};
use crate::answer;
use crate::ids::NodeName;

/// The maximum number of attempts. A continue token expires at the next compaction of etcd (every 5 minutes).
const LISTS_MAX: usize = 3;

/// Lists the Node's pods completely: no `resourceVersion`, so that the read is consistent, page by page.
pub async fn list(
    client: &kube::Client,
    node: &NodeName,
    settings: &DrainSettings,
) -> Result<Vec<Pod>, DrainError> {
    let unlisted = |message| DrainError::Unlisted {
        node: node.clone(),
        message,
    };
    let complete = async {
        for _ in 0..LISTS_MAX {
            if let Some(pods) = list_pages(client, node, settings).await? {
                return Ok(pods);
            }
        }
        Err(unlisted(format!(
            "its continue token expired in each of {LISTS_MAX} tries"
        )))
    };
    let listed = settings.in_slot(complete).await;
    listed.unwrap_or_else(|late| Err(unlisted(late)))
}

/// One attempt at a complete list; `None` if its continue token expired.
async fn list_pages(
    client: &kube::Client,
    node: &NodeName,
    settings: &DrainSettings,
) -> Result<Option<Vec<Pod>>, DrainError> {
    let api: Api<Pod> = Api::all(client.clone());
    let params = ListParams::default()
        .fields(&format!("spec.nodeName={node}"))
        .limit(PAGE);
    let mut pods = Vec::new();
    let list = async |params| answer::of_kind(api.list(&params).await?, "PodList");
    match answer::pages(params, usize::MAX, settings.list_deadline, list, |pod| {
        pods.push(pod)
    })
    .await
    {
        Ok(()) if pods.iter().any(|pod| !is_on(pod, node)) => Err(DrainError::Unlisted {
            node: node.clone(),
            message: "the list holds a pod of another node".to_owned(),
        }),
        Ok(()) => Ok(Some(pods)),
        Err(refusal) if refusal.code() == Some(410) => Ok(None),
        Err(refusal) => Err(DrainError::new(node, &refusal)),
    }
}

/// Whether a pod is one that was asked for: the reply to a request for another node must not be taken for this one's.
fn is_on(pod: &Pod, node: &NodeName) -> bool {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.node_name.as_deref()) == Some(node.as_str())
}
