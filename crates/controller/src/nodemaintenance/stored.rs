//! What the kube-apiserver makes of the writes, for tests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use jiff::Timestamp;
use serde_json::Value;

use haulout_core::ids::{NodeName, RequestUid};
use haulout_kubernetes::update::{NodeMaintenanceFacts, NodeMaintenanceRole};

/// A new object.
pub fn created(name: &str, node: &str, at: Timestamp, role: NodeMaintenanceRole) -> NodeMaintenanceFacts {
    NodeMaintenanceFacts {
        name: name.to_owned(),
        uid: RequestUid::new(format!("uid-of-{name}")),
        resource_version: 1,
        generation: 1,
        created_at: at,
        node: NodeName::new(node),
        role,
        is_over: false,
        status: Box::default(),
    }
}

/// Applies a merge patch to the status of an object, and what follows from it.
pub fn patch_status(object: &mut NodeMaintenanceFacts, changes: &Value) {
    let mut status = serde_json::to_value(&object.status).unwrap();
    json_patch::merge(&mut status, changes);
    object.status = serde_json::from_value(status).unwrap();
    object.is_over = object.status.ended_at.is_some();
    if let NodeMaintenanceRole::Episode { record } = &mut object.role {
        record.clone_from(&object.status.record);
    }
}
