//! Stand-ins that the tests of several listeners share: a moment, and a Node.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::ids::NodeUid;
use crate::maintenance::observed::{CordonedBy, NodeSeen};

/// Some moment after the beginning, in seconds.
pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_000_000 + seconds)
}

/// A Node in service.
pub(super) fn node() -> NodeSeen {
    NodeSeen {
        uid: NodeUid::new("uid-1"),
        resource_version: 1,
        unschedulable: false,
        cordoned_by: CordonedBy::Unknown,
        keep_cordoned: false,
        wishes: crate::maintenance::observed::Wishes::default(),
        ready: true,
        heartbeat: None,
        boot_id: None,
        gpus: BTreeMap::new(),
    }
}
