//! The volumes that are attached to a node after its drain.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::clock::{Elapsed, Monotonic};

/// The maximum number of volumes that a report and a record name.
pub const MAX_VOLUMES: usize = 20;

/// The result of one list of the volumes that are attached to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeReport {
    /// When the list began.
    pub listed_at: Monotonic,
    /// The volumes that no pod on the node uses any more, at most [`MAX_VOLUMES`].
    pub attached: Vec<AttachedVolume>,
    /// There were some in this list or an earlier one.
    pub had_some: bool,
}

/// A volume that is attached to a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttachedVolume {
    /// The name of its PersistentVolume, or of its VolumeAttachment where it has none.
    pub name: String,
    /// Its claim as `namespace/name`, where it is known.
    pub claim: Option<String>,
}

/// The end of the wait for the volumes of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeWait {
    /// How long it took, from the beginning of the shutdown. The timeout of the guest begins afterwards.
    pub waited: Elapsed,
    /// The volumes that were still attached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
}

impl VolumeReport {
    /// Continues the report `before`.
    pub fn follow(&mut self, before: Option<&Self>) {
        self.had_some |= before.is_some_and(|before| before.had_some);
    }
}

impl fmt::Display for AttachedVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.claim {
            Some(claim) => write!(f, "{} (claim {claim})", self.name),
            None => f.write_str(&self.name),
        }
    }
}
