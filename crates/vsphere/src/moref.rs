//! Managed object references.

use std::borrow::Cow;
use std::sync::Arc;

use super::text::for_people;
use haulout_core::ids::{ComputeRef, DatastoreRef, HostRef, NetworkRef, TaskRef, VmRef};

/// A managed object reference with its type. The value is opaque.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moref {
    /// The managed object type, such as `HostSystem`.
    pub(crate) kind: Cow<'static, str>,
    /// The value, such as `host-21`; references of session objects contain brackets.
    pub(crate) value: Arc<str>,
}

/// Common types, kept without an allocation.
const KINDS: &[&str] = &[
    "HostSystem",
    "Task",
    "VirtualMachine",
    "Datastore",
    "Network",
    "DistributedVirtualPortgroup",
    "OpaqueNetwork",
    "ClusterComputeResource",
    "ComputeResource",
];

impl Moref {
    pub(crate) fn new(kind: impl Into<Cow<'static, str>>, value: impl Into<Arc<str>>) -> Self {
        Self {
            kind: kind.into(),
            value: value.into(),
        }
    }

    /// Decodes `<x type="HostSystem">host-21</x>`; `None` if type or value is empty.
    pub(super) fn of_wire(kind: &str, value: &str) -> Option<Self> {
        if kind.is_empty() || value.is_empty() {
            return None;
        }
        let known = KINDS.iter().find(|known| **known == kind);
        let kind = known.map_or_else(|| Cow::Owned(kind.to_owned()), |known| Cow::Borrowed(*known));
        Some(Self::new(kind, value))
    }

    /// The reference as a host id, if it is one; the same for the methods below.
    pub(crate) fn host(&self) -> Option<HostRef> {
        (self.kind == "HostSystem").then(|| HostRef::new(Arc::clone(&self.value)))
    }

    pub(crate) fn vm(&self) -> Option<VmRef> {
        (self.kind == "VirtualMachine").then(|| VmRef::new(Arc::clone(&self.value)))
    }

    pub(crate) fn task(&self) -> Option<TaskRef> {
        (self.kind == "Task").then(|| TaskRef::new(Arc::clone(&self.value)))
    }

    pub(crate) fn compute(&self) -> Option<ComputeRef> {
        matches!(&*self.kind, "ClusterComputeResource" | "ComputeResource")
            .then(|| ComputeRef::new(Arc::clone(&self.value)))
    }

    pub(crate) fn datastore(&self) -> Option<DatastoreRef> {
        (self.kind == "Datastore").then(|| DatastoreRef::new(Arc::clone(&self.value)))
    }

    pub(crate) fn network(&self) -> Option<NetworkRef> {
        matches!(
            &*self.kind,
            "Network" | "DistributedVirtualPortgroup" | "OpaqueNetwork"
        )
        .then(|| NetworkRef::new(Arc::clone(&self.value)))
    }

    /// Whether the object exists only within a session (`proto-notes/session.md`).
    pub(crate) fn is_of_session(&self) -> bool {
        self.value.starts_with("session[")
    }
}

impl std::fmt::Display for Moref {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&for_people(&self.value))
    }
}

impl From<&HostRef> for Moref {
    fn from(host: &HostRef) -> Self {
        Self::new("HostSystem", host.shared())
    }
}

impl From<&VmRef> for Moref {
    fn from(vm: &VmRef) -> Self {
        Self::new("VirtualMachine", vm.shared())
    }
}

impl From<&TaskRef> for Moref {
    fn from(task: &TaskRef) -> Self {
        Self::new("Task", task.shared())
    }
}
