//! Identifiers, one type each, so that a host cannot be passed in place of a VM.
//!
//! A managed object reference ("moref") is opaque: it is compared and sent back, never parsed. Clones share the text, because each
//! snapshot holds many of them.

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};

/// The longest name that is read from a record, in bytes: that of a Kubernetes object or a DNS name. vCenter's names have
/// at most 80 characters.
pub const NAME_BYTES_MAX: usize = 253;

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $is_valid:path, $expected:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $type(Arc<str>);

        impl $type {
            /// Does not validate `name`.
            pub fn new(name: impl Into<Arc<str>>) -> Self {
                Self(name.into())
            }

            /// The name.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The shared text.
            pub fn shared(&self) -> Arc<str> {
                Arc::clone(&self.0)
            }
        }

        /// Validates the text, because everybody who may write a Node may write a record.
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                if $is_valid(&text) {
                    Ok(Self::new(text))
                } else {
                    let expected = $expected;
                    Err(D::Error::custom(format!("{} is no {expected}", quoted(&text))))
                }
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
    ($(#[$doc:meta])* $type:ident) => {
        name!(
            $(#[$doc])*
            $type, is_name, "name of at most 253 bytes without control characters"
        );
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
    /// `metadata.uid` of a NodeMaintenance object.
    RequestUid
);
name!(
    /// Moref of a `HostSystem`, such as `host-21`. A host that is removed and added again gets a new one.
    HostRef
);
name!(
    /// Moref of a `ClusterComputeResource` or a standalone `ComputeResource`.
    ComputeRef
);
name!(
    /// Moref of a `VirtualMachine`, such as `vm-71`. A relocation inside one vCenter does not change it.
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
    /// Moref of a `Network`, `DistributedVirtualPortgroup` or `OpaqueNetwork`.
    NetworkRef
);
name!(
    /// `status.nodeInfo.bootID`: a new random value at each boot.
    BootId
);
name!(
    /// The id of an episode: 16 bytes in lower-case hex, which are its trace id as well.
    EpisodeId, is_episode_id, "episode id: 32 lower-case hex digits, not all of them 0"
);

impl EpisodeId {
    /// Parses an untrusted id.
    pub fn parse(text: &str) -> Option<Self> {
        is_episode_id(text).then(|| Self::new(text))
    }
}

/// Whether `text` is a valid name in a record: of limited length, without control characters.
pub fn is_name(text: &str) -> bool {
    text.len() <= NAME_BYTES_MAX && !text.chars().any(char::is_control)
}

/// Whether `text` is a valid `metadata.name` of a Kubernetes object: a DNS subdomain as in RFC 1123.
pub fn is_object_name(text: &str) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().is_some_and(is_letter)
            && bytes.last().is_some_and(is_letter)
            && bytes.iter().all(|byte| is_letter(byte) || *byte == b'-')
    };
    text.len() <= NAME_BYTES_MAX && text.split('.').all(is_label)
}

/// Whether `text` is a traceparent of W3C Trace Context 1 (version `00`) with the trace id `id`.
pub fn is_traceparent_of(text: &str, id: &EpisodeId) -> bool {
    let mut parts = text.split('-');
    let (version, trace, parent, flags) = (parts.next(), parts.next(), parts.next(), parts.next());
    version == Some("00")
        && trace == Some(id.as_str())
        && is_episode_id(id.as_str())
        && parent.is_some_and(|parent| is_hex(parent, 16) && parent.bytes().any(|digit| digit != b'0'))
        && flags.is_some_and(|flags| is_hex(flags, 2))
        && parts.next().is_none()
}

/// W3C Trace Context does not allow a trace id of zeros.
fn is_episode_id(text: &str) -> bool {
    is_hex(text, 32) && text.bytes().any(|digit| digit != b'0')
}

fn is_hex(text: &str, digits: usize) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == digits && text.bytes().all(is_digit)
}

/// The beginning of `text`, for an error message.
fn quoted(text: &str) -> String {
    let shown: String = text.chars().take(64).collect();
    format!("{shown:?}")
}

/// The BIOS UUID of a virtual machine, as a guest reads it from its DMI table.
///
/// Depending on the virtual hardware version, the guest sees the first three fields in the other byte order. Compare with
/// [`VmUuid::same_machine`], not with `==`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VmUuid([u8; 16]);

impl VmUuid {
    /// Parses a UUID in any common notation: hyphens, braces, spaces and case are ignored.
    ///
    /// `None` for everything that is not 32 hex digits, and for the all-zero and all-one UUIDs, which mean "unset" in DMI tables.
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

    /// Whether both are the same machine, in either byte order.
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

    const TRACE: &str = "00112233445566778899aabbccddeeff";

    #[test]
    fn an_episode_id_is_32_lower_case_hex_digits() {
        assert_eq!(EpisodeId::parse(TRACE).unwrap().as_str(), TRACE);
        let read = |text: &str| serde_json::from_value::<EpisodeId>(serde_json::json!(text));
        assert_eq!(read(TRACE).unwrap(), EpisodeId::new(TRACE));
        for text in [
            "",
            "!!!!!!!!",
            "00112233445566778899AABBCCDDEEFF",
            "00112233445566778899aabbccddeef",
            "00112233445566778899aabbccddeeff0",
            "00000000000000000000000000000000",
            "../../namespaces/00112233445566778",
            "00112233445566778899aabbccddee/f",
        ] {
            assert_eq!(EpisodeId::parse(text), None, "{text}");
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("is no episode id"), "{error}");
        }
    }

    #[test]
    fn a_traceparent_has_the_shape_of_w3c_and_the_trace_of_its_episode() {
        let id = EpisodeId::new(TRACE);
        let of = |text: &str| is_traceparent_of(text, &id);
        assert!(of(&format!("00-{TRACE}-0123456789abcdef-01")));
        for text in [
            String::new(),
            format!("00-{TRACE}-0123456789abcdef"),
            format!("00-{TRACE}-0123456789abcdef-01-x"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{TRACE}-0123456789ABCDEF-01"),
            format!("00-{TRACE}-0123456789abcdef-1"),
            format!("ff-{TRACE}-0123456789abcdef-01"),
            "00-ffeeddccbbaa99887766554433221100-0123456789abcdef-01".to_owned(),
        ] {
            assert!(!of(&text), "{text}");
        }
        let zeros = "0".repeat(32);
        let text = format!("00-{zeros}-0123456789abcdef-01");
        assert!(!is_traceparent_of(&text, &EpisodeId::new(zeros)));
    }

    #[test]
    fn names_from_a_record_are_bounded() {
        let read = |text: &str| serde_json::from_value::<NodeName>(serde_json::json!(text));
        assert!(read(&"a".repeat(NAME_BYTES_MAX)).is_ok());
        let error = read(&"a".repeat(NAME_BYTES_MAX + 1)).unwrap_err().to_string();
        assert!(error.len() < 200, "{error}");
        assert!(read("a\u{1b}[31m").is_err());
    }

    #[test]
    fn an_object_name_is_a_dns_subdomain() {
        for name in ["gpu-1", "gpu-1.site.example", "1", &"a".repeat(253)] {
            assert!(is_object_name(name), "{name}");
        }
        for name in [
            "",
            ".",
            "a..b",
            "-a",
            "a-",
            "a.-b",
            "A",
            "a_b",
            "a/b",
            "a?b",
            "a b",
            "\u{e4}",
            &"a".repeat(254),
        ] {
            assert!(!is_object_name(name), "{name}");
        }
    }

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
    fn uuids_in_both_byte_orders_are_one_machine() {
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
    fn invalid_uuid_is_not_parsed() {
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
