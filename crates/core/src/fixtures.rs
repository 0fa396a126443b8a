//! Facts, snapshots, records and settings for tests and benches.

#![allow(
    clippy::unwrap_used,
    reason = "a fixture that cannot be made fails its test, and the names say what each one is"
)]

mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::facts::gpu_resources::GpuResources;
use crate::facts::kubernetes::{KubernetesUpdate, NodeAnnotations, NodeFacts, ReadyCondition, RequestAction};
use crate::facts::node_guard::NodeGuard;
use crate::facts::vsphere::{
    AllowedDevice, DeviceRequirement, Host, HostConnection, Passthrough, PciDevice, PciIds, PowerState, Vm,
    VmKey, VsphereUpdate,
};
use crate::ids::{
    BootId, ComputeRef, DatastoreRef, EpisodeId, HostRef, NodeName, NodeUid, RequestUid, TaskRef, VmRef,
    VmUuid,
};
use crate::inventory::{Fact, InventorySettings};

use crate::maintenance::clock::{Deadline, Monotonic, Now};
use crate::maintenance::decide::Transition;
use crate::maintenance::drain::EvictionBackoff;
use crate::maintenance::episode::{
    CordonOwner, Detection, Episode, EpisodeOrigin, HostIdentity, Phase, PhaseStats, Record, Trigger,
};
use crate::maintenance::observed::{
    BoundVm, DrainReport, HostState, NodeSnapshot, Observed, ObservedNode, ObservedVm, PendingEviction,
    RecordAge, Snapshots,
};
use crate::maintenance::phase_stats::close;
use crate::maintenance::policy::{
    DrainTimeoutAction, GuardPolicy, HookTimeoutAction, Limit, MaintenanceTaint, NodeBinding, Policy,
    Releases, StaticDevices, VmotionGrace,
};
use crate::maintenance::request::{Request, RequestIdentity};
use crate::status::node_event::NodeEvent;
use crate::status::story::{Beat, NodeStory};

pub use waits::{pods_left, waits};

/// The PCI vendor and device of the GPUs, an NVIDIA A40.
pub const A40: (u16, u16) = (0x10de, 0x2235);

pub const GPU: &str = "nvidia.com/gpu";

pub const RELEASE: &str = "haulout/haulout";

/// The id of [`episode`] and of its trace.
pub const TRACE: &str = "00112233445566778899aabbccddeeff";

/// Closes the phase of `before` at `seconds`, as an actor does before it writes `transition`. Returns the closed record.
pub fn closed(before: &Record, transition: &mut Transition, seconds: i64) -> Record {
    let (stats, origin) = (PhaseStats::default(), EpisodeOrigin::default());
    close(before, transition, stats, &origin, at(-10), at(seconds))
}

/// What is told of `event` at `now`, by an actor that has told nothing before.
pub fn beat(event: NodeEvent<'_>, now: Timestamp) -> Beat<'_> {
    NodeStory::default().tell(event, now)
}

/// The wall clock at `seconds`, counted from a fixed time.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_795_000_000 + seconds)
}

/// Both clocks at `seconds`. The machine was started earlier.
pub fn moment(seconds: i64) -> Now {
    Now::at(at(seconds), u64::try_from(seconds + 1_000_000).unwrap())
}

pub fn releases() -> Releases {
    Releases {
        own: RELEASE.into(),
        adopted: Default::default(),
    }
}

/// Those of NVIDIA, as resources and as a driver.
pub fn gpu_resources() -> GpuResources {
    GpuResources::parse("nvidia.com/*,gpu.nvidia.com").unwrap()
}

pub fn policy(drain_timeout_action: DrainTimeoutAction) -> Policy {
    Policy {
        drain_timeout: Duration::from_secs(600),
        drain_wait_max: Duration::ZERO,
        drain_timeout_action,
        eviction_retry: Duration::from_secs(5),
        volume_detach_timeout: Duration::ZERO,
        guest_shutdown_timeout: Duration::from_secs(120),
        power_off_timeout: Duration::from_secs(300),
        relocate_timeout: Duration::from_secs(600),
        power_on_timeout: Duration::from_secs(300),
        survey_every: Duration::from_secs(30),
        node_monitor_grace: Duration::from_secs(60),
        maintenance_retry_grace: Duration::from_secs(10),
        vmotion_grace: vmotion_grace(),
        unanswered_for: Duration::from_secs(90),
        hook_timeout: Duration::from_secs(3600),
        hook_timeout_action: HookTimeoutAction::Hold,
        guards: GuardPolicy {
            maintenance_taint: MaintenanceTaint::UntilPowerOn,
            out_of_service_taint: true,
            enabled: NodeGuard::ALL.iter().copied().collect(),
            machines: false,
        },
        releases: releases(),
        gpu_resources: gpu_resources(),
        require_approval: false,
        retry_min: Duration::from_secs(1),
        retry_max: Duration::from_secs(30),
    }
}

pub fn vmotion_grace() -> VmotionGrace {
    VmotionGrace::Limited(Duration::from_secs(300))
}

pub fn inventory_settings() -> InventorySettings {
    InventorySettings {
        releases: releases(),
        concurrent_drains: 1,
        unavailable: Limit::Unlimited,
        unavailable_gpus: Limit::Unlimited,
        power_offs: Limit::Unlimited,
        require_approval: false,
        device_slices: false,
        binding: NodeBinding::Uuid,
        node_maintenances: false,
        foreign_maintenances: BTreeSet::new(),
        drain_slot: Duration::from_secs(1800),
        static_devices: StaticDevices::Wait,
        host_settle: Duration::from_secs(60),
        vmotion_grace: vmotion_grace(),
    }
}

// Facts. The Node, the VM and the host of one number belong together.

pub fn name(n: usize) -> NodeName {
    NodeName::new(format!("gpu-{n}"))
}

pub fn uuid(n: usize) -> VmUuid {
    VmUuid::parse(&format!("4215e1a2-7c3d-9e4f-0102-{:012x}", 0x0304_0506_0700 + n)).unwrap()
}

pub fn vm_ref(n: usize) -> VmRef {
    VmRef::new(format!("vm-{n}"))
}

pub fn host_ref(n: usize) -> HostRef {
    HostRef::new(format!("host-{n}"))
}

/// A Node in service.
pub fn node_facts(n: usize) -> NodeFacts {
    NodeFacts {
        name: name(n),
        uid: NodeUid::new(format!("uid-{n}")),
        resource_version: 10,
        created_at: at(0),
        provider_uuid: Some(uuid(n)),
        system_uuid: Some(uuid(n).swapped()),
        unschedulable: false,
        cordoned_by: None,
        ready: ReadyCondition {
            is_true: true,
            is_unknown: false,
            heartbeat: None,
            since: None,
        },
        boot_id: None,
        gpus: Default::default(),
        gpu_capacity: Default::default(),
        accepted_gpus: Default::default(),
        annotations: NodeAnnotations::default(),
        limit_group: None,
        conditions: Default::default(),
        guards: Default::default(),
        hooks: Default::default(),
        taints: Default::default(),
    }
}

/// A host in service with one GPU.
pub fn host(n: usize) -> Host {
    Host {
        moref: host_ref(n),
        name: Some(format!("esx-{n}")),
        compute: Some(ComputeRef::new("c")),
        connection: Some(HostConnection::Connected),
        in_maintenance: Some(false),
        in_quarantine: Some(false),
        build: None,
        last_end: None,
        last_exit: None,
        entering: None,
        maintenance_asked_at: None,
        entering_standby: None,
        partial_maintenance: None,
        datastores: Arc::new(BTreeSet::from([DatastoreRef::new("ds")])),
        passthrough: Some(Arc::new([pci("0000:01:00.0", A40)])),
        sriov: Arc::default(),
    }
}

/// A device with these vendor and device ids.
pub fn pci(address: &str, (vendor, device): (u16, u16)) -> PciDevice {
    PciDevice {
        address: address.to_owned(),
        ids: PciIds {
            vendor,
            device,
            sub_vendor: 0,
            sub_device: 0,
        },
        label: None,
    }
}

/// The requirement of any device with these vendor and device ids.
pub fn of_model((vendor, device): (u16, u16)) -> DeviceRequirement {
    DeviceRequirement {
        allowed: vec![AllowedDevice {
            vendor,
            device,
            sub_vendor: None,
            sub_device: None,
        }],
        label: None,
    }
}

/// A running VM with one GPU.
pub fn vm_facts(n: usize) -> Vm {
    Vm {
        moref: vm_ref(n),
        name: Some(format!("gpu-{n}")),
        uuid: Some(uuid(n)),
        template: false,
        power: Some(PowerState::On),
        host: Some(host_ref(n)),
        tools_running: Some(true),
        question: None,
        datastores: Arc::new(BTreeSet::from([DatastoreRef::new("ds")])),
        datastore_states: Arc::default(),
        networks: Arc::default(),
        passthrough: Some(vec![Passthrough::Dynamic(of_model(A40))]),
        memory_mib: Some(65_536),
        hardware_version: None,
        evacuation_power_off: false,
    }
}

/// The VMs that vCenter finds by the UUID of VM `n`.
pub fn found(n: usize, vms: &[usize]) -> Fact {
    Fact::Vsphere(VsphereUpdate::Found {
        key: VmKey::Uuid(uuid(n)),
        vms: vms.iter().copied().map(vm_ref).collect(),
    })
}

/// Node, host and VM of this number, all in service.
pub fn trio(n: usize) -> Vec<Fact> {
    vec![
        Fact::Kubernetes(KubernetesUpdate::Node(Box::new(node_facts(n)))),
        Fact::Vsphere(VsphereUpdate::Host(host(n).into())),
        Fact::Vsphere(VsphereUpdate::Vm(vm_facts(n))),
        found(n, &[n]),
    ]
}

/// `facts` as the complete first set of both sources.
pub fn synced(facts: impl IntoIterator<Item = Fact>) -> impl Iterator<Item = Fact> {
    let begin = [
        Fact::Vsphere(VsphereUpdate::Reset),
        Fact::Kubernetes(KubernetesUpdate::Reset),
    ];
    let end = [
        Fact::Vsphere(VsphereUpdate::Settled),
        Fact::Kubernetes(KubernetesUpdate::Settled),
    ];
    begin.into_iter().chain(facts).chain(end)
}

// Snapshots.

/// The host on which the VM of a snapshot is.
pub fn home() -> HostRef {
    host_ref(1)
}

pub fn old_boot() -> BootId {
    BootId::new("boot-before")
}

pub fn gpus(count: u64) -> BTreeMap<String, u64> {
    BTreeMap::from([(GPU.to_owned(), count)])
}

pub fn node() -> ObservedNode {
    ObservedNode {
        resource_version: 1,
        ready: true,
        ..ObservedNode::unread(NodeUid::new("uid-1"))
    }
}

pub fn vm(power: Option<PowerState>, host: HostState) -> ObservedVm {
    ObservedVm {
        power,
        host_ref: Some(home()),
        host_name: "esx1".to_owned(),
        host,
        ..ObservedVm::unread(vm_ref(1))
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

/// A host that is back by itself and may be used from second 60 on.
pub fn settling() -> HostState {
    HostState::Settling {
        until: Deadline {
            at: moment(60).monotonic,
            shown: at(60),
        },
    }
}

/// A node observed since second 0, by a process that has seen its phase begin. While its VM is off, its GPU counts are removed.
pub fn observed(mut node: ObservedNode, vm: ObservedVm) -> Observed {
    if vm.power == Some(PowerState::Off) {
        node.gpus = Default::default();
        node.gpu_capacity = Default::default();
    }
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

/// A node whose running VM is on a host in this state.
pub fn snapshot(record: Record, host: HostState) -> NodeSnapshot {
    let vm = BoundVm::Found(vm(Some(PowerState::On), host));
    NodeSnapshot {
        record,
        observed: Observed::of(Some(node()), vm, moment(0)),
    }
}

pub fn snapshots(of: impl IntoIterator<Item = (NodeName, NodeSnapshot)>) -> Snapshots {
    let of = of.into_iter();
    of.map(|(name, snapshot)| (name, Arc::new(snapshot))).collect()
}

pub fn drain_report(listed_at: Monotonic, left: Vec<PendingEviction>) -> DrainReport {
    DrainReport {
        listed_at,
        pods_revision: 0,
        listed: left.len(),
        ignored: 0,
        evicted: 0,
        left,
        backoff: EvictionBackoff::default(),
        known: Arc::default(),
        returned: Vec::new(),
        skipped: Vec::new(),
        terminating: BTreeMap::new(),
        longest_wait: Duration::ZERO,
    }
}

pub fn request(action: RequestAction) -> Request {
    Request {
        identity: RequestIdentity {
            name: "by-hand".to_owned(),
            uid: RequestUid::new("request-1"),
            foreign: None,
        },
        requested_by: None,
        asked_at: at(0),
        action,
        drain_timeout: None,
        drain_timeout_action: None,
        guest_shutdown_timeout: None,
        not_before: None,
        window: None,
    }
}

// Records.

/// A maintenance task of second 0.
pub fn trigger() -> Trigger {
    Trigger {
        task: Some(TaskRef::new("task-1")),
        detection: Some(Detection::Pushed),
        ..Trigger::new(at(0))
    }
}

/// The identity of a host by its name alone.
pub fn host_named(name: &str) -> HostIdentity {
    HostIdentity {
        moref: None,
        name: name.into(),
    }
}

/// An episode that began at second 1 with our cordon, in `phase` since second `since`.
pub fn episode(phase: Phase, since: i64) -> Episode {
    Episode {
        id: EpisodeId::new(TRACE),
        traceparent: format!("00-{TRACE}-0011223344556677-01").into(),
        cordon: CordonOwner::Ours,
        release: RELEASE.into(),
        since: at(since),
        ..Episode::new(NodeUid::new("uid-1"), trigger(), host_named("esx1"), phase, at(1))
    }
}

pub fn record(episode: Episode) -> Record {
    Record::Episode(Arc::new(episode))
}

/// A transition that writes `record` and nothing else.
pub fn transition(record: Record) -> Transition {
    Transition {
        record,
        unschedulable: None,
        ended: None,
        fulfilled: None,
    }
}
