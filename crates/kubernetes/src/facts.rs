//! Reads the facts of a Node object. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;

pub use haulout_core::facts::gpu_resources::{GpuResources, GpuResourcesError};

use super::update::{NodeAnnotations, NodeFacts, NodeTaint, ReadyCondition};
use crate::hook;
use crate::ids::{BootId, NodeName, NodeUid, VmUuid};
use crate::keys::{
    self, ACCEPTED_GPUS, APPROVED, FIELD_MANAGER, GARDENER_MANAGED, NVSENTINEL, SKIP, STRATEGY,
};
use crate::node_condition::{FoundConditions, is_ours};
use crate::node_guard::{FoundGuards, GuardField, GuardState, NodeGuard};

/// The maximum number of accepted counts that are read; MIG profiles have one each.
const MAX_ACCEPTED: usize = 64;

/// The facts of a Node.
///
/// A missing field gets the safe value: not Ready, schedulable, no GPU, no UUID. A `resourceVersion` that is not a number above 0 is
/// read as 0, which [`super::node::patch`] refuses.
pub fn node_facts(node: &core::Node, limit_group: Option<&str>, gpu_resources: &GpuResources) -> NodeFacts {
    let metadata = &node.metadata;
    let spec = node.spec.as_ref();
    let status = node.status.as_ref();
    let info = status.and_then(|status| status.node_info.as_ref());
    let gpus = |of: Option<&BTreeMap<String, Quantity>>| counts(of, gpu_resources).into();
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
        gpus: gpus(status.and_then(|status| status.allocatable.as_ref())),
        gpu_capacity: gpus(status.and_then(|status| status.capacity.as_ref())),
        accepted_gpus: accepted_gpus(annotation(node, ACCEPTED_GPUS), gpu_resources).into(),
        annotations: annotations(node),
        limit_group: limit_group.and_then(|key| metadata.labels.as_ref()?.get(key).cloned()),
        conditions: conditions(node),
        guards: node_guards(node),
        hooks: hook::hooks(
            metadata
                .annotations
                .iter()
                .flat_map(|annotations| annotations.keys()),
        ),
        taints: taints(node),
    }
}

/// The guards on a Node. One without the annotation of Gardener's machine-controller-manager is not managed by it; one without a label
/// of NVSentinel's labeler is not by that.
fn node_guards(node: &core::Node) -> FoundGuards {
    let metadata = &node.metadata;
    let state = |found: Option<&String>, value: &str, fields: &str, key: &str| {
        let is_value = found? == value;
        Some(match owner(node, fields, key) {
            Some(FIELD_MANAGER) if is_value => GuardState::Ours,
            None if is_value => GuardState::Set,
            Some(_) | None => GuardState::Other,
        })
    };
    let of = |guard: NodeGuard| match guard.field() {
        GuardField::Taint { key, effect, .. } => {
            let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
            let mut same = taints.filter(|taint| taint.key == key && taint.effect == effect);
            same.next().map(|_| GuardState::Set)
        }
        GuardField::Label { key, value } => {
            let found = metadata.labels.as_ref().and_then(|labels| labels.get(key));
            state(found, value, "f:labels", key)
        }
        GuardField::Annotation { key, value } => {
            let found = annotation(node, key);
            state(found, value, "f:annotations", key)
        }
    };
    let has_label_of = |prefix| {
        let labels = metadata.labels.iter().flat_map(BTreeMap::keys);
        labels.into_iter().any(|key| key.starts_with(prefix))
    };
    let is_needed = |guard| match guard {
        NodeGuard::Gardener => annotation(node, GARDENER_MANAGED).is_some(),
        NodeGuard::Nvsentinel => has_label_of(NVSENTINEL),
        NodeGuard::MaintenanceTaint
        | NodeGuard::QueuedTaint
        | NodeGuard::OutOfServiceTaint
        | NodeGuard::ClusterAutoscaler
        | NodeGuard::Medik8s => true,
    };
    let guards = NodeGuard::ALL.iter().copied();
    let found = guards.filter_map(|guard| {
        let needless = (!is_needed(guard)).then_some(GuardState::NotNeeded);
        Some((guard, of(guard).or(needless)?))
    });
    found.collect()
}

/// The field manager that wrote this label or annotation last.
fn owner<'a>(node: &'a core::Node, fields: &str, key: &str) -> Option<&'a str> {
    let field = ["f:metadata", fields, &format!("f:{key}")];
    last_manager(node, |entry| has_field(entry, &field))
}

/// The field manager of the last entry that `wrote` accepts.
fn last_manager(node: &core::Node, wrote: impl Fn(&ManagedFieldsEntry) -> bool) -> Option<&str> {
    let entries = node.metadata.managed_fields.iter().flatten();
    let last = entries
        .filter(|entry| wrote(entry))
        .max_by_key(|entry| entry.time.as_ref().map(|time| time.0));
    last?.manager.as_deref()
}

/// Whether the manager of the entry has written this field.
pub fn has_field(entry: &ManagedFieldsEntry, path: &[&str]) -> bool {
    let all = entry.fields_v1.as_ref().map(|fields| &fields.0);
    let field = all.and_then(|all| path.iter().try_fold(all, |fields, key| fields.get(*key)));
    field.is_some()
}

fn taints(node: &core::Node) -> Arc<[NodeTaint]> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let taint = |taint: &core::Taint| NodeTaint {
        key: taint.key.clone(),
        value: taint.value.clone(),
        effect: taint.effect.clone(),
        time_added: taint.time_added.as_ref().map(|time| time.0),
    };
    taints.map(taint).collect()
}

/// The field manager that wrote `spec.unschedulable` last.
fn cordoned_by(node: &core::Node) -> Option<String> {
    let wrote = |entry: &ManagedFieldsEntry| {
        entry.subresource.as_deref().is_none_or(str::is_empty)
            && has_field(entry, &["f:spec", "f:unschedulable"])
    };
    last_manager(node, wrote).map(str::to_owned)
}

fn ready(node: &core::Node) -> ReadyCondition {
    let condition = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .find(|condition| condition.type_ == "Ready");
    ReadyCondition {
        is_true: condition.is_some_and(|condition| condition.status == "True"),
        is_unknown: condition.is_some_and(|condition| condition.status == "Unknown"),
        heartbeat: condition.and_then(|condition| condition.last_heartbeat_time.as_ref().map(|time| time.0)),
        since: condition.and_then(|condition| condition.last_transition_time.as_ref().map(|time| time.0)),
    }
}

/// The conditions of Haulout. Its message tells one from the same condition of another controller.
fn conditions(node: &core::Node) -> FoundConditions {
    let all = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let ours = all.filter(|condition| condition.message.as_deref().is_some_and(is_ours));
    ours.filter_map(|condition| Some((condition.type_.parse().ok()?, condition.status == "True")))
        .collect()
}

/// The count of each GPU resource that is not 0.
fn counts(of: Option<&BTreeMap<String, Quantity>>, gpu_resources: &GpuResources) -> BTreeMap<String, u64> {
    of.into_iter()
        .flatten()
        .filter(|(resource, _)| gpu_resources.matches(resource))
        .filter_map(|(resource, quantity)| Some((resource.clone(), count(&quantity.0)?)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// The counts in a list such as `nvidia.com/gpu=7,nvidia.com/mig-1g.5gb=0`. What cannot be read accepts nothing.
fn accepted_gpus(list: Option<&String>, gpu_resources: &GpuResources) -> BTreeMap<String, u64> {
    let entries = list.iter().flat_map(|list| list.split(',')).take(MAX_ACCEPTED);
    let counts = entries.filter_map(|entry| {
        let (resource, count) = entry.trim().split_once('=')?;
        Some((resource.to_owned(), count.parse().ok()?))
    });
    counts
        .filter(|(resource, _)| gpu_resources.matches(resource))
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

fn annotation<'a>(node: &'a core::Node, key: &str) -> Option<&'a String> {
    node.metadata.annotations.as_ref()?.get(key)
}

/// The annotations of an episode. Those of the Python controller count until there is one of Haulout.
fn annotations(node: &core::Node) -> NodeAnnotations {
    let annotation = |key: &str| annotation(node, key).cloned();
    let is_ours = [keys::EPISODE, keys::PLAIN.state]
        .iter()
        .any(|key| annotation(key).is_some());
    let plain = if is_ours { keys::PLAIN } else { keys::PYTHON };
    NodeAnnotations {
        state: annotation(plain.state),
        host: annotation(plain.host),
        migrated_to_host: annotation(plain.migrated_to_host),
        transition_time: annotation(plain.transition_time),
        episode: annotation(keys::EPISODE),
        last_episode: annotation(keys::LAST_EPISODE),
        keep_cordoned: annotation(keys::KEEP_CORDONED),
        fulfilled: annotation(keys::FULFILLED),
        skip: annotation(SKIP),
        approved: annotation(APPROVED),
        strategy: annotation(STRATEGY),
    }
}

#[cfg(test)]
mod tests;
