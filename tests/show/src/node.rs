//! What a Node says: Haulout's annotations, and its state.

use k8s_openapi::api::core::v1::Node;

/// The prefix of Haulout's annotations.
pub const ANNOTATIONS: &str = "haulout.dev";

/// The resource of the GPUs.
pub const GPU: &str = "nvidia.com/gpu";

/// One of Haulout's annotations on a Node, by its name behind the prefix.
pub fn annotation<'n>(node: &'n Node, name: &str) -> Option<&'n str> {
    node.metadata
        .annotations
        .as_ref()?
        .get(&format!("{ANNOTATIONS}/{name}"))
        .map(String::as_str)
}

/// The episode's JSON on a Node.
pub fn episode(node: &Node) -> Option<serde_json::Value> {
    serde_json::from_str(annotation(node, "episode")?).ok()
}

/// The phase of the episode on a Node, as its JSON names it.
pub fn phase(node: &Node) -> Option<String> {
    let episode = episode(node)?;
    let phase = episode.get("phase")?;
    let with_data = || phase.as_object()?.keys().next().map(String::as_str);
    phase.as_str().or_else(with_data).map(str::to_owned)
}

pub fn is_cordoned(node: &Node) -> bool {
    node.spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or(false)
}

pub fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .clone()
        .any(|it| it.type_ == "Ready" && it.status == "True")
}

/// How many GPUs a Node has allocatable.
pub fn gpus(node: &Node) -> u32 {
    let allocatable = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.as_ref());
    allocatable
        .and_then(|all| all.get(GPU)?.0.parse().ok())
        .unwrap_or(0)
}

/// A Node's boot id.
pub fn boot_id(node: &Node) -> Option<String> {
    Some(node.status.as_ref()?.node_info.as_ref()?.boot_id.clone())
}
