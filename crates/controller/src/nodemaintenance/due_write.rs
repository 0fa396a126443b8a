//! A due write of a NodeMaintenance object.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::kind::{NodeMaintenanceSpec, NodeMaintenanceStatus};
use haulout_core::facts::foreign_maintenance::{ForeignOrigin, ForeignStatus};
use haulout_core::ids::RequestUid;
use haulout_kubernetes::update::NodeMaintenanceFacts;

#[derive(Clone, Debug, PartialEq)]
pub enum ObjectWrite {
    /// The object of a new episode.
    Create {
        name: String,
        spec: Box<NodeMaintenanceSpec>,
    },
    Status {
        name: String,
        uid: RequestUid,
        /// The `resourceVersion` of the object from which the changes were computed.
        version: u64,
        /// A merge patch.
        changes: Value,
    },
    /// An ended episode that is no longer kept.
    Delete { name: String, uid: RequestUid },
    /// A changed status of an object of another project.
    Foreign(Box<ForeignWrite>),
}

/// The status of an object of another project.
#[derive(Clone, Debug, PartialEq)]
pub struct ForeignWrite {
    /// The name of the object among those of all kinds.
    pub(crate) key: String,
    pub(crate) origin: ForeignOrigin,
    pub(crate) name: String,
    pub(crate) uid: RequestUid,
    pub(crate) status: ForeignStatus,
    /// When it was computed.
    pub(crate) at: Timestamp,
}

impl ObjectWrite {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Create { name, .. } | Self::Status { name, .. } | Self::Delete { name, .. } => name,
            Self::Foreign(write) => &write.key,
        }
    }

    /// Its order among the due writes: copies of records come first, because an episode continues from the copy if its Node is
    /// deleted.
    pub(super) fn weight(&self) -> u8 {
        match self {
            Self::Status { changes, .. } if has_record(changes) => 0,
            Self::Create { .. } => 1,
            Self::Status { .. } | Self::Foreign(_) | Self::Delete { .. } => 2,
        }
    }
}

/// Whether a merge patch of a status has a copy of a record.
pub(super) fn has_record(changes: &Value) -> bool {
    changes.get("record").is_some_and(|it| !it.is_null())
}

/// The write that changes the status of an object to `wanted`; `None` if it is equal.
pub(super) fn status_of(
    object: &NodeMaintenanceFacts,
    wanted: &NodeMaintenanceStatus,
) -> Option<ObjectWrite> {
    Some(ObjectWrite::Status {
        name: object.name.clone(),
        uid: object.uid.clone(),
        version: object.resource_version,
        changes: difference(&object.status, wanted)?,
    })
}

/// The merge patch (RFC 7396) from `is` to `wanted`; `None` if they are equal.
fn difference(is: &NodeMaintenanceStatus, wanted: &NodeMaintenanceStatus) -> Option<Value> {
    if is == wanted {
        return None;
    }
    let fields = |status| match serde_json::to_value(status) {
        Ok(Value::Object(fields)) => fields,
        // Plain structs of strings and numbers are objects.
        Ok(_) | Err(_) => Map::new(),
    };
    let changes = changes(&fields(is), fields(wanted));
    (!changes.is_empty()).then_some(Value::Object(changes))
}

/// The fields to patch. A merge patch keeps each field that it does not name, also those of objects in it.
fn changes(is: &Map<String, Value>, wanted: Map<String, Value>) -> Map<String, Value> {
    let removed = is.keys().filter(|name| !wanted.contains_key(*name));
    let removed: Vec<_> = removed.map(|name| (name.clone(), Value::Null)).collect();
    let changed = wanted.into_iter().filter_map(|(name, value)| {
        let change = match (is.get(&name), value) {
            (Some(is), value) if *is == value => return None,
            (Some(Value::Object(is)), Value::Object(wanted)) => Value::Object(changes(is, wanted)),
            (_, value) => value,
        };
        Some((name, change))
    });
    changed.chain(removed).collect()
}
