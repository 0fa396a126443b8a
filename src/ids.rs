//! The names of things, one type each, so that a host is never passed where a VM is meant.
//!
//! A managed object reference ("moref") is opaque: it is compared and sent back, never taken apart. A name is read once and
//! then stands in every picture of every node, so its copies share it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $type(Arc<str>);

        impl $type {
            /// Takes the name as it was read.
            pub fn new(name: impl Into<Arc<str>>) -> Self {
                Self(name.into())
            }

            /// The name as it was read.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The same, to be shared.
            pub fn shared(&self) -> Arc<str> {
                Arc::clone(&self.0)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// `metadata.name` of a Node.
    NodeName
);
name!(
    /// `metadata.uid` of a Node: a deleted and recreated Node is another one.
    NodeUid
);
name!(
    /// UID of a NodeMaintenance object: tells one request from another that is made later under the same name.
    RequestUid
);
name!(
    /// Moref of a `HostSystem`, such as `host-21`. A host that is removed and added again gets another one.
    HostRef
);
name!(
    /// Moref of a `ClusterComputeResource` or a standalone `ComputeResource`.
    ComputeRef
);
name!(
    /// Moref of a `VirtualMachine`, such as `vm-71`. It survives a relocate inside one vCenter.
    VmRef
);
name!(
    /// Moref of a `Task`, such as `task-81`.
    TaskRef
);
name!(
    /// Moref of a `Datastore`.
    DatastoreRef
);
name!(
    /// `status.nodeInfo.bootID`: the kernel draws another one at each boot.
    BootId
);
name!(
    /// The name of one episode: 16 bytes in lower-case hex, which are its trace id as well.
    EpisodeId
);

/// The BIOS UUID of a virtual machine, as a guest reads it from its DMI table.
///
/// Depending on the virtual hardware version the guest sees the first three fields in the other byte order, so two
/// UUIDs that differ only in that are one machine: compare with [`VmUuid::same_machine`], never with `==` alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VmUuid([u8; 16]);

impl VmUuid {
    /// Reads a UUID in any common notation: hyphens, braces and spaces are ignored, case too.
    ///
    /// Gives `None` for everything that is not 32 hex digits, and for the all-zero and all-one UUIDs, which mean
    /// "unset" in DMI tables and would bind every such node to one machine.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0_u8; 16];
        let mut digits = 0_usize;
        for c in text.chars() {
            if matches!(c, '-' | ' ' | '{' | '}') {
                continue;
            }
            let digit = u8::try_from(c.to_digit(16)?).ok()?;
            let byte = bytes.get_mut(digits / 2)?;
            *byte = (*byte << 4) | digit;
            digits += 1;
        }
        (digits == 32 && bytes != [0; 16] && bytes != [0xff; 16]).then_some(Self(bytes))
    }

    /// Reads `spec.providerID` of a Node, `vsphere://<uuid>` as the vSphere cloud provider writes it.
    pub fn from_provider_id(provider_id: &str) -> Option<Self> {
        Self::parse(provider_id.strip_prefix("vsphere://")?)
    }

    /// The same machine's UUID with the first three fields in the other byte order.
    pub fn swapped(self) -> Self {
        let [a, b, c, d, e, f, g, h, rest @ ..] = self.0;
        let mut bytes = [d, c, b, a, f, e, h, g, 0, 0, 0, 0, 0, 0, 0, 0];
        if let Some(tail) = bytes.get_mut(8..) {
            tail.copy_from_slice(&rest);
        }
        Self(bytes)
    }

    /// Whether both name one machine, in either byte order.
    pub fn same_machine(self, other: Self) -> bool {
        self == other || self.swapped() == other
    }
}

impl fmt::Display for VmUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for VmUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<VmUuid> for String {
    fn from(uuid: VmUuid) -> Self {
        uuid.to_string()
    }
}

impl TryFrom<String> for VmUuid {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("{text:?} is not a usable UUID"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRAIGHT: &str = "4215e1a2-7c3d-9e4f-0102-030405060708";
    const SWAPPED: &str = "a2e11542-3d7c-4f9e-0102-030405060708";

    #[test]
    fn a_uuid_is_read_in_every_common_notation() {
        let uuid = VmUuid::parse(STRAIGHT).unwrap();
        for text in [
            "4215E1A2-7C3D-9E4F-0102-030405060708",
            "4215e1a27c3d9e4f0102030405060708",
            "{4215e1a2-7c3d-9e4f-0102-030405060708}",
        ] {
            assert_eq!(VmUuid::parse(text), Some(uuid), "{text}");
        }
        assert_eq!(uuid.to_string(), STRAIGHT);
        assert_eq!(
            VmUuid::from_provider_id(&format!("vsphere://{STRAIGHT}")),
            Some(uuid)
        );
        assert_eq!(VmUuid::from_provider_id(&format!("aws:///{STRAIGHT}")), None);
    }

    #[test]
    fn both_byte_orders_are_one_machine() {
        let (straight, swapped) = (VmUuid::parse(STRAIGHT).unwrap(), VmUuid::parse(SWAPPED).unwrap());
        assert_ne!(straight, swapped);
        assert_eq!(straight.swapped(), swapped);
        assert!(
            straight.same_machine(swapped)
                && swapped.same_machine(straight)
                && straight.same_machine(straight)
        );
    }

    #[test]
    fn what_is_no_uuid_binds_nothing() {
        for text in [
            "",
            "gpu-1",
            "4215e1a2",
            "00000000-0000-0000-0000-000000000000",
            "ffffffff-ffff-ffff-ffff-ffffffffffff",
            "4215e1a2-7c3d-9e4f-0102-0304050607080",
            "zz15e1a2-7c3d-9e4f-0102-030405060708",
        ] {
            assert_eq!(VmUuid::parse(text), None, "{text}");
        }
    }
}
