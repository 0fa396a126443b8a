//! Reads an object of another project. Each field is read by itself, because the objects are untrusted and a kind may differ from the
//! version that is known here.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::nodemaintenance::kind::NodeMaintenanceStatus;
use haulout_core::facts::foreign_maintenance::{
    ForeignApi, ForeignMaintenance, ForeignOrigin, ForeignStatus, Medik8sStatus, NvidiaDrain, NvidiaStatus,
};
use haulout_core::ids::{NodeName, RequestUid, is_object_name};
use haulout_core::keys::FIELD_MANAGER;
use haulout_kubernetes::facts::has_field;
use haulout_kubernetes::update::{
    NodeMaintenanceFacts, NodeMaintenanceRole, RequestAction, RequestedMaintenance,
};

/// The longest `spec.reason` that is kept, as for Haulout's own kind.
const REASON_CHARS_MAX: usize = 1_024;

/// The longest other text that is kept.
const TEXT_CHARS_MAX: usize = 4_096;

/// The maximum length of each list that is read, which is more than is written.
const LIST_MAX: usize = 100;

/// An object of another project.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading {
    Stands(NodeMaintenanceFacts),
    /// It is being deleted, and only a finalizer keeps it. Its operator ends the maintenance now, too.
    Withdrawn(NodeMaintenanceFacts),
}

impl Reading {
    pub(super) fn into_facts(self) -> NodeMaintenanceFacts {
        match self {
            Self::Stands(facts) | Self::Withdrawn(facts) => facts,
        }
    }
}

pub fn read_foreign(api: ForeignApi, object: &DynamicObject) -> Reading {
    let spec = object.data.get("spec").unwrap_or(&Value::Null);
    let node = spec.get("nodeName").and_then(Value::as_str).unwrap_or_default();
    let is_node = is_object_name(node);
    let asked = match api {
        _ if !is_node => Err("spec.nodeName is not the name of a Node".to_owned()),
        ForeignApi::Medik8s | ForeignApi::Kubevirt => Ok(drain(spec)),
        ForeignApi::Nvidia => match unsupported(spec).as_slice() {
            [] => Ok(drain(spec)),
            all => Err(format!("Haulout does not do it, because {}", all.join("; "))),
        },
    };
    let origin = ForeignOrigin {
        api,
        namespace: object.namespace(),
    };
    let current = object.data.get("status").unwrap_or(&Value::Null);
    let (status, own_status) = status(api, current);
    let foreign = ForeignMaintenance {
        name: object.name_any(),
        asked,
        has_operator: has_operator(api, object),
        has_failed_requestor: api == ForeignApi::Nvidia && is_true(current, "RequestorFailed"),
        status,
        origin,
    };
    let facts = NodeMaintenanceFacts {
        name: foreign.origin.display_name(&foreign.name),
        uid: RequestUid::new(object.uid().unwrap_or_default()),
        resource_version: object
            .resource_version()
            .and_then(|it| it.parse().ok())
            .unwrap_or(0),
        generation: object.metadata.generation.unwrap_or(0),
        created_at: object
            .creation_timestamp()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        node: NodeName::new(if is_node { node } else { "" }),
        role: NodeMaintenanceRole::Foreign(Box::new(foreign)),
        is_over: false,
        status: Box::new(own_status),
    };
    if object.metadata.deletion_timestamp.is_some() && !is_shared(api, spec) {
        Reading::Withdrawn(facts)
    } else {
        Reading::Stands(facts)
    }
}

fn drain(spec: &Value) -> RequestedMaintenance {
    let reason = spec.get("reason").and_then(Value::as_str).unwrap_or_default();
    RequestedMaintenance {
        requested_by: None,
        reason: reason.chars().take(REASON_CHARS_MAX).collect(),
        action: RequestAction::Drain,
        drain_timeout: None,
        hold_on_drain_timeout: None,
        guest_shutdown_timeout: None,
        not_before: None,
        window: None,
    }
}

/// Why a request of NVIDIA's kind is not a drain as Haulout does it. All are about pods that the requestor wants to keep.
fn unsupported(spec: &Value) -> Vec<&'static str> {
    let is = |value: Option<&Value>| value.and_then(Value::as_bool) == Some(true);
    let has_entries = |value: Option<&Value>| {
        value.is_some_and(|it| it.as_array().is_some_and(|list| !list.is_empty()))
            || value.is_some_and(|it| it.as_str().is_some_and(|text| !text.is_empty()))
    };
    let of = |drain: &Value| {
        let field = |name: &str| drain.get(name);
        [
            (
                !is(field("force")),
                "drainSpec.force is not true, and it evicts pods without a controller",
            ),
            (
                !is(field("deleteEmptyDir")),
                "drainSpec.deleteEmptyDir is not true, and it evicts pods with an emptyDir",
            ),
            (
                has_entries(field("podSelector")),
                "drainSpec.podSelector is set, and it evicts all pods",
            ),
            (
                has_entries(field("podEvictionFilters")),
                "drainSpec.podEvictionFilters is set, and it evicts all pods",
            ),
        ]
    };
    let drain = spec.get("drainSpec").filter(|drain| drain.is_object());
    let is_cordoned = spec.get("cordon").is_none_or(|it| it.as_bool() == Some(true));
    let waits = spec.get("waitForPodCompletion").is_some_and(|it| !it.is_null());
    let all = [
        (
            !is_cordoned,
            "cordon is false, and it cordons every node that it drains",
        ),
        (
            waits,
            "waitForPodCompletion is set, and it waits for pods by their annotations only",
        ),
        (
            drain.is_none(),
            "drainSpec is absent, and it does not cordon without a drain",
        ),
    ];
    let all = all.into_iter().chain(drain.map(of).into_iter().flatten());
    all.filter(|(is_so, _)| *is_so).map(|(_, why)| why).collect()
}

/// Whether other requestors still use the object, so that its deletion has to wait for them.
fn is_shared(api: ForeignApi, spec: &Value) -> bool {
    let others = spec.get("additionalRequestors").and_then(Value::as_array);
    match api {
        ForeignApi::Nvidia => others.is_some_and(|others| !others.is_empty()),
        ForeignApi::Medik8s | ForeignApi::Kubevirt => false,
    }
}

/// The status as far as Haulout writes it, and what is kept of it in Haulout's own form: the numbers of pods when the drain began.
fn status(api: ForeignApi, current: &Value) -> (ForeignStatus, NodeMaintenanceStatus) {
    match api {
        ForeignApi::Medik8s | ForeignApi::Kubevirt => {
            let mut status: Medik8sStatus = lenient(Some(current));
            status.pending_pods.truncate(LIST_MAX);
            status.pending_pods_refs.truncate(LIST_MAX);
            for text in [&mut status.phase, &mut status.last_error].into_iter().flatten() {
                *text = text.chars().take(TEXT_CHARS_MAX).collect();
            }
            let own = NodeMaintenanceStatus {
                phase: status.phase.clone(),
                total_pods: (status.total_pods > 0).then_some(status.total_pods),
                eviction_pods: (status.eviction_pods > 0).then_some(status.eviction_pods),
                ..NodeMaintenanceStatus::default()
            };
            (ForeignStatus::Medik8s(status), own)
        }
        ForeignApi::Nvidia => {
            let ready =
                condition(current, "Ready").and_then(|ready| serde_json::from_value(ready.clone()).ok());
            let drain: Option<NvidiaDrain> = current.get("drain").map(|drain| lenient(Some(drain)));
            let drain = drain.map(|mut drain| {
                drain.wait_for_eviction.truncate(LIST_MAX);
                drain
            });
            let own = NodeMaintenanceStatus {
                phase: ready.is_some().then(|| "Running".to_owned()),
                total_pods: drain.as_ref().map(|drain| drain.total_pods),
                eviction_pods: drain.as_ref().map(|drain| drain.eviction_pods),
                ..NodeMaintenanceStatus::default()
            };
            let conditions = ready.into_iter().collect();
            (ForeignStatus::Nvidia(NvidiaStatus { conditions, drain }), own)
        }
    }
}

fn lenient<T: DeserializeOwned + Default>(value: Option<&Value>) -> T {
    value
        .and_then(|value| T::deserialize(value).ok())
        .unwrap_or_default()
}

fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = status.get("conditions")?.as_array()?;
    conditions
        .iter()
        .take(LIST_MAX)
        .find(|it| it.get("type").and_then(Value::as_str) == Some(kind))
}

fn is_true(status: &Value, kind: &str) -> bool {
    let found = condition(status, kind).and_then(|it| it.get("status"));
    found.and_then(Value::as_str) == Some("True")
}

/// Whether the operator of its project handles the object: it has the finalizer that the operator sets first, or somebody else has
/// written the field of its status that shows the phase.
fn has_operator(api: ForeignApi, object: &DynamicObject) -> bool {
    let (finalizer, phase): (_, &[&str]) = match api {
        ForeignApi::Medik8s | ForeignApi::Kubevirt => {
            ("foregroundDeleteNodeMaintenance", &["f:status", "f:phase"])
        }
        ForeignApi::Nvidia => (
            "maintenance.nvidia.com/finalizer",
            &["f:status", "f:conditions", "k:{\"type\":\"Ready\"}"],
        ),
    };
    let has_written = |entry: &ManagedFieldsEntry| {
        has_field(entry, phase) && entry.manager.as_deref() != Some(FIELD_MANAGER)
    };
    let mut managers = object.metadata.managed_fields.iter().flatten();
    object.finalizers().iter().any(|it| it == finalizer) || managers.any(has_written)
}
