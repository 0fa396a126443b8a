//! Reads the facts of a Node object. Pure.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use thiserror::Error;

use super::update::{NodeAnnotations, NodeFacts, ReadyCondition};
use crate::ids::{BootId, NodeName, NodeUid, VmUuid};
use crate::keys::{APPROVED, Keys, SKIP, STRATEGY};

/// Which resources of a Node are GPUs: exact names, and prefixes such as `nvidia.com/*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuResources(Vec<Pattern>);

/// One entry of [`GpuResources`].
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Exact(String),
    /// The first part of the name, with the slash.
    Prefix(String),
}

/// A list of GPU resources that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{entry:?} is no GPU resource: a comma-separated list of resource names (nvidia.com/gpu) or prefixes (nvidia.com/*) is expected"
)]
pub struct GpuResourcesError {
    /// The invalid entry.
    pub entry: String,
}

impl GpuResources {
    /// Reads a comma-separated list. Spaces around the entries are ignored.
    pub fn parse(list: &str) -> Result<Self, GpuResourcesError> {
        list.split(',')
            .map(|entry| Pattern::parse(entry.trim()))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether `resource` is a GPU.
    pub fn matches(&self, resource: &str) -> bool {
        self.0.iter().any(|pattern| match pattern {
            Pattern::Exact(name) => name == resource,
            Pattern::Prefix(prefix) => resource.len() > prefix.len() && resource.starts_with(prefix.as_str()),
        })
    }
}

impl fmt::Display for GpuResources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pattern) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match pattern {
                Pattern::Exact(name) => write!(f, "{comma}{name}")?,
                Pattern::Prefix(prefix) => write!(f, "{comma}{prefix}*")?,
            }
        }
        Ok(())
    }
}

impl Pattern {
    fn parse(entry: &str) -> Result<Self, GpuResourcesError> {
        let wrong = || GpuResourcesError {
            entry: entry.to_owned(),
        };
        let (domain, name) = entry.split_once('/').ok_or_else(wrong)?;
        let is_name = |text: &str| {
            !text.is_empty()
                && text
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        };
        if !is_name(domain) {
            return Err(wrong());
        }
        if name == "*" {
            return Ok(Self::Prefix(format!("{domain}/")));
        }
        if is_name(name) {
            return Ok(Self::Exact(entry.to_owned()));
        }
        Err(wrong())
    }
}

/// The facts of a Node.
///
/// A missing field gets the safe value: not Ready, schedulable, no GPU, no UUID. A `resourceVersion` that is not a number above 0 is
/// read as 0, which [`super::node::patch`] refuses.
pub fn node_facts(node: &core::Node, keys: &Keys, gpu_resources: &GpuResources) -> NodeFacts {
    let metadata = &node.metadata;
    let spec = node.spec.as_ref();
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    let unschedulable = spec.and_then(|spec| spec.unschedulable).unwrap_or(false);
    NodeFacts {
        name: NodeName::new(metadata.name.clone().unwrap_or_default()),
        uid: NodeUid::new(metadata.uid.clone().unwrap_or_default()),
        resource_version: metadata
            .resource_version
            .as_deref()
            .and_then(|version| version.parse().ok())
            .unwrap_or(0),
        created_at: metadata
            .creation_timestamp
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        provider_uuid: spec
            .and_then(|spec| spec.provider_id.as_deref())
            .and_then(VmUuid::from_provider_id),
        system_uuid: info.and_then(|info| VmUuid::parse(&info.system_uuid)),
        unschedulable,
        cordoned_by: unschedulable.then(|| cordoned_by(node)).flatten(),
        ready: ready(node),
        boot_id: info
            .filter(|info| !info.boot_id.is_empty())
            .map(|info| BootId::new(info.boot_id.clone())),
        gpus: gpus(node, gpu_resources).into(),
        annotations: annotations(node, keys),
    }
}

/// The field manager that wrote `spec.unschedulable` last.
fn cordoned_by(node: &core::Node) -> Option<String> {
    node.metadata
        .managed_fields
        .iter()
        .flatten()
        .filter(|entry| {
            entry.subresource.as_deref().is_none_or(str::is_empty)
                && entry
                    .fields_v1
                    .as_ref()
                    .is_some_and(|fields| fields.0.pointer("/f:spec/f:unschedulable").is_some())
        })
        .max_by_key(|entry| entry.time.as_ref().map(|time| time.0))
        .and_then(|entry| entry.manager.clone())
}

fn ready(node: &core::Node) -> ReadyCondition {
    let condition = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .find(|condition| condition.type_ == "Ready");
    ReadyCondition {
        is_true: condition.is_some_and(|condition| condition.status == "True"),
        heartbeat: condition.and_then(|condition| condition.last_heartbeat_time.as_ref().map(|time| time.0)),
        since: condition.and_then(|condition| condition.last_transition_time.as_ref().map(|time| time.0)),
    }
}

fn gpus(node: &core::Node, gpu_resources: &GpuResources) -> BTreeMap<String, u64> {
    node.status
        .iter()
        .flat_map(|status| status.allocatable.iter().flatten())
        .filter(|(resource, _)| gpu_resources.matches(resource))
        .filter_map(|(resource, quantity)| Some((resource.clone(), count(&quantity.0)?)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// A quantity that is a whole number. Kubernetes writes round numbers with a suffix: 1000 is `1k`.
fn count(quantity: &str) -> Option<u64> {
    let (digits, factor) = match quantity.strip_suffix(['k', 'M', 'G']) {
        Some(digits) if quantity.ends_with('k') => (digits, 1_000),
        Some(digits) if quantity.ends_with('M') => (digits, 1_000_000),
        Some(digits) => (digits, 1_000_000_000),
        None => (quantity, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

fn annotations(node: &core::Node, keys: &Keys) -> NodeAnnotations {
    let annotation = |key: &str| {
        node.metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(key))
            .cloned()
    };
    NodeAnnotations {
        state: annotation(&keys.state),
        host: annotation(&keys.host),
        migrated_to_host: annotation(&keys.migrated_to_host),
        transition_time: annotation(&keys.transition_time),
        episode: annotation(&keys.episode),
        last_episode: annotation(&keys.last_episode),
        keep_cordoned: annotation(&keys.keep_cordoned),
        fulfilled: annotation(&keys.fulfilled),
        skip: annotation(SKIP),
        approved: annotation(APPROVED),
        strategy: annotation(STRATEGY),
    }
}

#[cfg(test)]
mod tests;
