//! Stand-ins that the tests of several listeners share: a moment, a Node, and an episode.

use jiff::{SignedDuration, Timestamp};

use crate::ids::{EpisodeId, NodeUid, TaskRef};
use crate::maintenance::episode::{CordonOwner, Detection, Episode, HostIdentity, Phase, Trigger};
use crate::maintenance::observed::{CordonedBy, ObservedNode};

/// Some moment after the beginning, in seconds.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_000_000 + seconds)
}

/// A Node in service.
pub(crate) fn node() -> ObservedNode {
    ObservedNode {
        uid: NodeUid::new("uid-1"),
        resource_version: 1,
        unschedulable: false,
        cordoned_by: CordonedBy::Unknown,
        keep_cordoned: false,
        wishes: crate::maintenance::observed::NodeOverrides::default(),
        ready: true,
        heartbeat: None,
        boot_id: None,
        gpus: Default::default(),
        asked_guest: None,
    }
}

/// The id of [`episode`], and of its trace.
pub(crate) const TRACE: &str = "00112233445566778899aabbccddeeff";

/// An episode of that Node that began at 1 s, on host `esx1`, and is in `phase` since `since`.
pub(crate) fn episode(phase: Phase, since: i64) -> Episode {
    let trigger = Trigger {
        task: Some(TaskRef::new("task-1")),
        clicked_at: at(0),
        user: None,
        detection: Some(Detection::Pushed),
        request: None,
        stray_of: None,
    };
    let host = HostIdentity {
        moref: None,
        name: "esx1".into(),
    };
    Episode {
        id: EpisodeId::new(TRACE),
        traceparent: format!("00-{TRACE}-0011223344556677-01").into(),
        cordon: CordonOwner::Ours,
        since: at(since),
        ..Episode::new(NodeUid::new("uid-1"), trigger, host, phase, at(1))
    }
}
