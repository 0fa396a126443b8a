//! Building blocks: a node, its VM, its host and an episode, each in the state a case asks for.

use std::collections::BTreeMap;
use std::time::Duration;

use haulout_core::ids::{BootId, EpisodeId, HostRef, NodeUid, RequestUid, TaskRef, VmRef};
use haulout_core::maintenance::clock::Now;
use haulout_core::maintenance::episode::{CordonOwner, Detection, Episode, HostIdentity, Phase, Trigger};
use haulout_core::maintenance::observed::{
    BoundVm, CordonedBy, HostState, Observed, ObservedNode, ObservedPower, ObservedVm, RecordAge,
};
use haulout_core::maintenance::policy::{DrainTimeoutAction, Policy, Releases};
use haulout_core::maintenance::request::{Request, RequestAction, RequestIdentity};
use jiff::{SignedDuration, Timestamp};

pub const GPU: &str = "nvidia.com/gpu";

/// Some moment after the beginning, in seconds.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_800_000_000 + seconds)
}

/// The same moment on both clocks. The machine was started some time before the beginning.
pub fn moment(seconds: i64) -> Now {
    Now::at(at(seconds), u64::try_from(seconds + 1_000_000).unwrap())
}

pub fn policy(drain_timeout_action: DrainTimeoutAction) -> Policy {
    Policy {
        drain_timeout: Duration::from_secs(600),
        drain_timeout_action,
        eviction_retry: Duration::from_secs(5),
        guest_shutdown_timeout: Duration::from_secs(120),
        power_off_timeout: Duration::from_secs(300),
        relocate_timeout: Duration::from_secs(600),
        power_on_timeout: Duration::from_secs(300),
        survey_every: Duration::from_secs(30),
        node_monitor_grace: Duration::from_secs(60),
        maintenance_retry_grace: Duration::from_secs(10),
        unanswered_for: Duration::from_secs(90),
        releases: releases(),
        require_approval: false,
        retry_min: Duration::from_secs(1),
        retry_max: Duration::from_secs(30),
    }
}

pub fn releases() -> Releases {
    Releases {
        own: "haulout/haulout".into(),
        adopted: Default::default(),
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

pub fn node() -> ObservedNode {
    ObservedNode {
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
        asked_guest: None,
    }
}

pub fn vm(power: ObservedPower, host: HostState) -> ObservedVm {
    ObservedVm {
        power,
        on: Some(home()),
        on_name: "esx-home".to_owned(),
        host,
        ..ObservedVm::unread(VmRef::new("vm-1"))
    }
}

/// A person's request.
pub fn request(action: RequestAction) -> Request {
    Request {
        mark: RequestIdentity {
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

/// What is known of a node since the beginning, by a process that has seen its phase begin.
pub fn observed(node: ObservedNode, vm: ObservedVm) -> Observed {
    Observed {
        record_seen: RecordAge {
            at: moment(0),
            phase_at: moment(0).monotonic,
            from_the_start: true,
        },
        home: vm.host.clone(),
        target: HostState::InService,
        is_record_on_node: true,
        ..Observed::of(Some(node), BoundVm::Found(vm), moment(0))
    }
}

pub fn episode(phase: Phase, cordon: CordonOwner, powered_off: bool) -> Episode {
    let trigger = Trigger {
        task: Some(TaskRef::new("task-1")),
        clicked_at: at(0),
        user: None,
        detection: Some(Detection::Pushed),
        request: None,
        stray_of: None,
    };
    let host = HostIdentity {
        moref: Some(home()),
        name: "esx-home".into(),
    };
    Episode {
        id: EpisodeId::new("00112233445566778899aabbccddeeff"),
        traceparent: "00-00112233445566778899aabbccddeeff-0011223344556677-01".into(),
        cordon,
        boot_before: Some(old_boot()),
        gpus_before: gpus(2).into(),
        powered_off,
        release: "haulout/haulout".into(),
        ..Episode::new(NodeUid::new("uid-1"), trigger, host, phase, at(0))
    }
}
