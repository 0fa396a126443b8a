//! Building blocks: a node, its VM, its host and an episode, each in the state a case asks for.

use std::collections::BTreeMap;
use std::time::Duration;

use haulout::ids::{BootId, EpisodeId, HostRef, NodeUid, RequestUid, TaskRef, VmRef};
use haulout::maintenance::episode::{Cordon, Detection, Episode, HostMark, Phase, Trigger};
use haulout::maintenance::observed::{
    Admission, CordonedBy, Hearing, HostState, Lead, NodeSeen, Observed, PowerSeen, VmFacts, VmSeen,
};
use haulout::maintenance::placement::Offer;
use haulout::maintenance::policy::{DrainTimeoutAction, Policy};
use haulout::maintenance::request::{Action, Request, RequestMark};
use jiff::{SignedDuration, Timestamp};

pub const GPU: &str = "nvidia.com/gpu";

/// Some moment after the beginning, in seconds.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_000_000 + seconds)
}

pub fn policy(drain_timeout_action: DrainTimeoutAction) -> Policy {
    Policy {
        drain_timeout: Duration::from_secs(600),
        drain_timeout_action,
        eviction_retry: Duration::from_secs(5),
        guest_shutdown_timeout: Duration::from_secs(120),
        relocate_timeout: Duration::from_secs(600),
        power_on_timeout: Duration::from_secs(300),
        survey_every: Duration::from_secs(30),
        require_approval: false,
        retry_min: Duration::from_secs(1),
        retry_max: Duration::from_secs(30),
    }
}

pub fn entering() -> HostState {
    HostState::Entering {
        task: TaskRef::new("task-1"),
        clicked_at: at(0),
        user: Some("operator".to_owned()),
        detection: Detection::Pushed,
    }
}

pub fn home() -> HostRef {
    HostRef::new("host-home")
}

pub fn spare() -> HostRef {
    HostRef::new("host-spare")
}

pub fn old_boot() -> BootId {
    BootId::new("boot-before")
}

pub fn gpus(count: u64) -> BTreeMap<String, u64> {
    BTreeMap::from([(GPU.to_owned(), count)])
}

pub fn node() -> NodeSeen {
    NodeSeen {
        uid: NodeUid::new("uid-1"),
        resource_version: 1,
        unschedulable: false,
        cordoned_by: CordonedBy::Unknown,
        keep_cordoned: false,
        wishes: Default::default(),
        ready: true,
        heartbeat: Some(at(0)),
        boot_id: Some(old_boot()),
        gpus: gpus(2).into(),
    }
}

pub fn vm(power: PowerSeen, host: HostState) -> VmFacts {
    VmFacts {
        moref: VmRef::new("vm-1"),
        uuid: None,
        power,
        on: Some(home()),
        on_name: "esx-home".to_owned(),
        host,
        drs: false,
        question: None,
    }
}

/// A person's request.
pub fn request(action: Action) -> Request {
    Request {
        mark: RequestMark {
            name: "by-hand".to_owned(),
            uid: RequestUid::new("request-1"),
        },
        asked_at: at(0),
        action,
        drain_timeout: None,
        drain_timeout_action: None,
        guest_shutdown_timeout: None,
    }
}

pub fn observed(node: NodeSeen, vm: VmFacts) -> Observed {
    Observed {
        stray_of: None,
        process_began: at(0),
        lead: Lead::ALONE,
        hearing: Hearing::Both,
        node: Some(node),
        has_copy: false,
        request: None,
        vm: VmSeen::Found(vm),
        admission: Admission::Granted,
        behind: None,
        origin: Default::default(),
        drain: None,
        pods_revision: 0,
        are_budgets_heard: false,
        attempts: BTreeMap::new(),
        offer: Offer::default(),
        target: HostState::InService,
    }
}

pub fn episode(phase: Phase, cordon: Cordon, powered_off: bool) -> Episode {
    Episode {
        id: EpisodeId::new("00112233445566778899aabbccddeeff"),
        traceparent: "00-00112233445566778899aabbccddeeff-0011223344556677-01".into(),
        trigger: Trigger {
            task: Some(TaskRef::new("task-1")),
            clicked_at: at(0),
            user: None,
            detection: Some(Detection::Pushed),
            request: None,
            stray_of: None,
        },
        node_uid: NodeUid::new("uid-1"),
        vm_uuid: None,
        host: HostMark {
            moref: Some(home()),
            name: "esx-home".into(),
        },
        begun_at: at(0),
        cordon,
        recordoned: 0,
        boot_before: Some(old_boot()),
        gpus_before: gpus(2).into(),
        powered_off,
        moved_to: None,
        gave_up: None,
        left_behind: Vec::new(),
        epoch: 0,
        trail: Default::default(),
        phase,
        since: at(0),
    }
}
