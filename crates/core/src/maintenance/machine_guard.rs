//! Guards on the objects of Cluster API: the Machine of a node, and the object by which its infrastructure provider keeps the VM.
//!
//! Without them, a MachineHealthCheck deletes the Machine of a node that is not Ready, and the provider powers on a VM that is off.
//! They may be in another cluster than the Node, so they are set and removed by effects.

use serde::{Deserialize, Deserializer, Serialize};

use super::clock::Monotonic;
use crate::ids::is_object_name;
use crate::keys::{CLUSTER_API, CLUSTER_API_INFRASTRUCTURE, OPENSHIFT_MACHINES, PAUSED, SKIP_REMEDIATION};

/// The maximum number of guarded objects of a node; it has two.
pub const MAX_GUARDED: usize = 8;

named_enum! {
    /// The kind of a guarded object.
    pub enum GuardedKind {
        /// A Machine of Cluster API.
        Machine = "machine",
        /// A VSphereVM of Cluster API's provider for vSphere (CAPV).
        VsphereVm = "vsphereVm",
        /// A Machine of OpenShift, which is only read.
        OpenshiftMachine = "openshiftMachine",
        /// A MachineHealthCheck of OpenShift.
        HealthCheck = "machineHealthCheck",
    }
}

/// An object with a guard of an episode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct GuardedObject {
    pub kind: GuardedKind,
    pub namespace: String,
    pub name: String,
}

impl GuardedObject {
    /// The command that removes the guard; `None` for an object that has none.
    fn removal(&self) -> Option<String> {
        let (resource, key) = match self.kind {
            GuardedKind::Machine => (format!("machines.{CLUSTER_API}"), SKIP_REMEDIATION),
            GuardedKind::VsphereVm => (format!("vspherevms.{CLUSTER_API_INFRASTRUCTURE}"), PAUSED),
            GuardedKind::HealthCheck => (format!("machinehealthchecks.{OPENSHIFT_MACHINES}"), PAUSED),
            GuardedKind::OpenshiftMachine => return None,
        };
        let Self { namespace, name, .. } = self;
        Some(format!(
            "kubectl annotate -n {namespace} {resource} {name} {key}-"
        ))
    }
}

/// The guards of an episode on objects of Cluster API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineGuards {
    /// They are still to be set, or it is not recorded which were set.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_due: bool,
    /// Those that were set.
    #[serde(
        default,
        deserialize_with = "read_guarded_objects",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub objects: Vec<GuardedObject>,
    /// Others may have one as well: a right was missing when they were set.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_be_more: bool,
    /// Why those of `objects` are left at the end: they could not be removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<String>,
}

/// Reads the objects of a record. Those of a kind of a newer version are dropped, because nothing is known about their guards.
fn read_guarded_objects<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<GuardedObject>, D::Error> {
    #[derive(Deserialize)]
    struct Named {
        kind: String,
        namespace: String,
        name: String,
    }
    let objects = Vec::<Named>::deserialize(deserializer)?.into_iter();
    let known = objects.filter_map(|object| {
        Some(GuardedObject {
            kind: object.kind.parse().ok()?,
            namespace: object.namespace,
            name: object.name,
        })
    });
    Ok(known.collect())
}

/// The objects on which an effect set guards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineGuardReport {
    /// When the effect began.
    pub at: Monotonic,
    /// The objects, none if the node has no Machine; `None` where a right was missing. Some may have a guard nevertheless, also one
    /// that was requested before, whose reply was lost.
    pub objects: Option<Vec<GuardedObject>>,
}

impl MachineGuards {
    /// What is left on which objects, why, and how a person removes it; `None` where nothing is left.
    pub fn left_behind(&self) -> Option<String> {
        let why = self.left.as_ref()?;
        if self.objects.is_empty() {
            return Some(format!(
                "it is not known whether guards are left on the Machine of the node, because Haulout could not look: {why}"
            ));
        }
        let name = |object: &GuardedObject| format!("{} {}/{}", object.kind, object.namespace, object.name);
        let names: Vec<String> = self.objects.iter().map(name).collect();
        let commands: Vec<String> = self.objects.iter().filter_map(GuardedObject::removal).collect();
        Some(format!(
            "the guards on {} are left, because they could not be removed: {why}; to remove them: {}",
            names.join(", "),
            commands.join("; ")
        ))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the names and the number of objects are valid.
    pub fn is_sound(&self) -> bool {
        let is_named =
            |object: &GuardedObject| is_object_name(&object.namespace) && is_object_name(&object.name);
        self.objects.len() <= MAX_GUARDED && self.objects.iter().all(is_named)
    }

    /// The guards after `report`: those that were known, and those that were set now.
    #[must_use]
    pub fn with(&self, report: &MachineGuardReport) -> Self {
        let set = report.objects.iter().flatten();
        let mut objects: Vec<GuardedObject> = self.objects.iter().chain(set).cloned().collect();
        objects.sort();
        objects.dedup();
        objects.truncate(MAX_GUARDED);
        Self {
            is_due: false,
            objects,
            may_be_more: report.objects.is_none(),
            left: None,
        }
    }
}
