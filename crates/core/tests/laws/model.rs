//! A model of vCenter, kube-apiserver, guests and kubelets, each with its own state. The program sees it only through
//! facts and changes it only through effects. A crash of the program or the end of an episode does not stop a request
//! in flight.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use haulout_core::facts::device_slice::DeviceSlice;
use haulout_core::facts::fault::{Fault, FaultKind};
use haulout_core::facts::hook::HookPoint;
use haulout_core::facts::kubernetes::{
    self as kubernetes, NodeAnnotations, NodeFacts, NodeMaintenanceFacts, NodeMaintenanceRole,
    NodeMaintenanceUpdate, ReadyCondition, StrandedNode,
};
use haulout_core::facts::node_guard::{GuardState, NodeGuard};
use haulout_core::facts::vsphere::{
    self as vsphere, Compute, DetectionSignal, EndOutcome, EnteringMaintenance, Host, HostConnection,
    MaintenanceEnd, Passthrough, PowerState, Task, TaskState, Vm, VmKey, WatchSet,
};
use haulout_core::facts::vsphere::{Claim, ClaimedDevice, HostReading, HostVgpus, VgpuProfile};
use haulout_core::ids::{
    BootId, ComputeRef, DatastoreRef, EpisodeId, NodeName, NodeUid, RequestUid, TaskRef, VmRef,
};
use haulout_core::inventory::{Fact, Inventory, InventorySettings};
use haulout_core::maintenance::clock::{Monotonic, Now, wall_after};
use haulout_core::maintenance::decide::{Decision, Transition, decide};
use haulout_core::maintenance::effect::{Effect, EffectKind, PowerOffCause, PowerOnTarget};
use haulout_core::maintenance::effect_report::{EffectReport, EffectResult};
use haulout_core::maintenance::episode::{DrainEnd, DrainLimit, Episode, Phase, Record};
use haulout_core::maintenance::machine_guard::{GuardedKind, GuardedObject, MachineGuardReport};
use haulout_core::maintenance::node_guard::GuardChanges;
use haulout_core::maintenance::observed::{
    Admission, AttemptOutcome, DrainReport, EffectRefusal, LeadershipEpoch, NodeSnapshot, PendingEviction,
    PendingReason, RetryAdvice, SlotLimit,
};
use haulout_core::maintenance::placement::HostSurvey;
use haulout_core::maintenance::policy::{HookTimeoutAction, Limit, Policy, StaticDevices};
use haulout_core::maintenance::record::{self, LastEpisode, read_last, write, write_last};
use haulout_core::maintenance::volumes::{AttachedVolume, VolumeReport};
use haulout_core::maintenance::waiting::{ParkReason, WaitingOn};
use jiff::Timestamp;

use crate::facts::{GPU, at, uuid, vm_ref};
use crate::settings::Settings;
pub use haulout_core::fixtures::{self, host_ref};
use haulout_core::fixtures::{drain_report, of_model, pci};

/// The PCI ids of the GPUs.
const GPU_IDS: (u16, u16) = (0x10de, 0x2235);

/// The driver of the nodes whose GPUs are in ResourceSlices alone.
const DRIVER: &str = "gpu.nvidia.com";

fn has_driver(index: usize) -> bool {
    index == 0
}

/// The profile of a vGPU, which takes a whole GPU.
const VGPU: &str = "grid_a40-48c";

/// The hosts: one for each node, and others with a device.
pub const HOSTS: [&str; 4] = ["home-0", "home-1", "spare-0", "spare-1"];

/// The number of nodes.
pub const NODES: usize = 2;

/// The address of the device of each host.
const DEVICE: &str = "0000:01:00.0";

/// Records have whole seconds.
const SLACK: Duration = Duration::from_secs(2);

/// The limit of effects except drain rounds for a node within ten minutes, besides one that is tried again and again. A whole episode
/// with a few refusals has ten; more is a busy loop.
const MOST_EFFECTS: u64 = 40;

/// The true state of a host.
#[derive(Clone, Debug, Default)]
pub struct HostTruth {
    pub entering: Option<(TaskRef, Timestamp)>,
    pub in_maintenance: bool,
    pub is_unreachable: bool,
    /// The end of the latest unsuccessful maintenance.
    pub last_end: Option<MaintenanceEnd>,
    /// The latest exit of a user.
    pub last_exit: Option<TaskRef>,
    /// Whether an unrelated VM holds its device.
    pub is_taken: bool,
    /// It refuses to power VMs on, with this fault.
    pub refuses_power_on: Option<FaultKind>,
}

impl HostTruth {
    pub fn takes_vms(&self) -> bool {
        self.entering.is_none() && !self.in_maintenance && !self.is_unreachable
    }
}

/// The kind of a task.
#[derive(Clone, Debug, PartialEq)]
enum Work {
    PowerOff,
    PowerOn(usize),
    Relocate(usize),
    Reconfigure(usize),
    /// A task of another client, such as a snapshot.
    Foreign,
}

/// The true state of a VM.
#[derive(Clone, Debug)]
pub struct VmTruth {
    pub power: PowerState,
    pub host: usize,
    pub exists: bool,
    boots: u32,
    /// The guest has a pending shutdown request.
    going_down: bool,
    /// The episode of the last guest shutdown.
    asked_in: Option<EpisodeId>,
    /// The episode that asked the guest last, and when.
    asked_at: Option<(EpisodeId, Duration)>,
    /// A backup holds its files until then.
    locked_until: Duration,
    /// Until when the guest of that shutdown has time by the settings with which it was asked.
    has_time_until: Duration,
    running: Option<(TaskRef, Work)>,
    /// The process looks up the VM by its UUID.
    is_asked_for: bool,
    tasks: Vec<Task>,
    /// A person powered it off outside of an episode, and it stays off.
    pub off_by_person: bool,
    /// It has a vGPU instead of a device that is chosen at power-on.
    pub is_vgpu: bool,
    /// It has a device at a fixed address of this host. All hosts have one at the same address.
    pub device_of: Option<usize>,
}

impl VmTruth {
    /// Whether its guest was asked to shut down since it was powered on.
    pub fn was_asked(&self) -> bool {
        self.asked_at.is_some()
    }
}

/// A Node object and its machine.
#[derive(Clone, Debug)]
pub struct NodeTruth {
    pub object: Option<NodeFacts>,
    pub is_selected: bool,
    /// The process watches it by name.
    is_followed: bool,
    pub pods: u32,
    /// A person cordoned it, and no person has uncordoned it since.
    pub cordoned_by_person: bool,
    /// A person added a hook for the power-off when the guest was being shut down.
    pub is_hooked_late: bool,
    /// Since when a hook for the drain that was there at the cordon holds the first eviction.
    drain_held_since: Option<Duration>,
    /// Since when hooks have held the power-off of this episode.
    power_off_held_since: Option<Duration>,
    /// Since when a change of its pods is not followed by a drain round, although its drain is under way.
    unserved_since: Option<Duration>,
    /// Its Machine has our guards. It is in another cluster, and outlives the Node.
    pub is_machine_guarded: bool,
    /// Its drain began with guards on Machines.
    is_drained_with_guards: bool,
    /// A process took over whose settings allow less time for drains: until when this one has time by them.
    has_notice_until: Duration,
    guards_of_person: BTreeSet<NodeGuard>,
    /// The boot on which the device plugin has registered its GPUs.
    plugin_boot: u32,
    /// The ResourceSlice of the GPU driver, and the boot on which the driver created it.
    slice: Option<(DeviceSlice, u32)>,
    registrations: u32,
}

/// Limits on how many nodes are in maintenance at once.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub concurrent_drains: u32,
    pub unavailable: Limit,
    pub unavailable_gpus: Limit,
    pub power_offs: Limit,
    /// Each node is in a group of its own, so that none waits for another.
    pub is_grouped: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            concurrent_drains: 1,
            unavailable: Limit::Unlimited,
            unavailable_gpus: Limit::Unlimited,
            power_offs: Limit::Unlimited,
            is_grouped: false,
        }
    }
}

/// One process of the program.
struct Process {
    inventory: Inventory,
    /// The latest snapshots, as its actors have them.
    snapshots: BTreeMap<NodeName, Arc<NodeSnapshot>>,
    followed: BTreeSet<NodeName>,
    watch_set: WatchSet,
    draining: BTreeSet<NodeName>,
    /// The offset of its wall clock from the true time.
    offset: jiff::SignedDuration,
}

/// The state of everything outside of the program, and one process.
pub struct Model {
    pub hosts: Vec<HostTruth>,
    /// Hosts with changes that are not pushed yet.
    unpushed: BTreeSet<usize>,
    pub vms: Vec<VmTruth>,
    pub nodes: Vec<NodeTruth>,
    pub requests: Vec<NodeMaintenanceFacts>,
    copies: BTreeMap<String, NodeMaintenanceFacts>,
    /// Changes of copies that are not written yet. A copy is created at once, and later changes are gathered.
    copies_due: BTreeMap<String, NodeMaintenanceFacts>,
    /// After how many more steps of the program another process takes over.
    pub crashes_after: Option<u32>,
    /// The settings of the process.
    pub settings: Settings,
    /// Those of the other replica, which has other ones during a rollout.
    other: Settings,
    /// Those with which the history began.
    usual: Settings,
    /// The program has rights on Machines.
    pub has_machine_rights: bool,
    /// Each node is in a limit group of its own.
    is_grouped: bool,
    process: Process,
    elapsed: Duration,
    tasks: u32,
    versions: u64,
    /// The ResourceSlices created so far, which is also the time of the last one.
    slices_made: i64,
    /// The replies to this many next calls are lost after they were executed.
    pub lose_replies: u32,
    pub vcenter_is_lost: bool,
    /// The program may not write the status of Nodes, or could not at some time.
    forbids_status: bool,
    has_forbidden_status: bool,
    /// The times of effects, by node.
    effects: Vec<Vec<Duration>>,
    /// The shortest of the longest pauses between attempts so far.
    shortest_pause: Duration,
    pub log: Vec<String>,
}

pub fn node_name(index: usize) -> NodeName {
    NodeName::new(format!("node-{index}"))
}

impl Process {
    fn new(settings: InventorySettings, began: Now, offset: jiff::SignedDuration) -> Self {
        let mut process = Self {
            inventory: Inventory::new(settings, began.wall),
            snapshots: BTreeMap::new(),
            followed: BTreeSet::new(),
            watch_set: WatchSet::default(),
            draining: BTreeSet::new(),
            offset,
        };
        process.advance([Fact::Leadership(Some(LeadershipEpoch::ALONE))], began);
        process
    }

    /// Does what the event loop does.
    fn advance(&mut self, facts: impl IntoIterator<Item = Fact>, now: Now) {
        let changes = self.inventory.advance(facts, now);
        let next_at = self.inventory.next_at();
        assert!(
            next_at.is_none_or(|at| at > now.monotonic),
            "the event loop would run again at once: {next_at:?} at {now:?}"
        );
        if let Some(requested) = changes.requested {
            self.followed = requested.followed;
            self.watch_set = requested.watch_set;
        }
        let Some(built) = changes.built else { return };
        self.draining = built.draining;
        self.snapshots = built.snapshots;
    }
}

fn inventory_settings(policy: &Policy) -> InventorySettings {
    InventorySettings {
        require_approval: policy.require_approval,
        device_slices: true,
        node_maintenances: true,
        static_devices: StaticDevices::Repoint,
        ..fixtures::inventory_settings()
    }
}

impl Model {
    pub fn new(policy: Policy, cordoned: bool) -> Self {
        Self::with_limits(policy, cordoned, Limits::default())
    }

    /// With limits on how many nodes are in maintenance at once.
    pub fn with_limits(policy: Policy, cordoned: bool, limits: Limits) -> Self {
        let began = Now::at(at(0), 0);
        let inventory = InventorySettings {
            concurrent_drains: limits.concurrent_drains,
            unavailable: limits.unavailable,
            unavailable_gpus: limits.unavailable_gpus,
            power_offs: limits.power_offs,
            ..inventory_settings(&policy)
        };
        let settings = Settings { inventory, policy };
        let mut model = Self {
            hosts: vec![HostTruth::default(); HOSTS.len()],
            unpushed: BTreeSet::new(),
            vms: Vec::new(),
            nodes: Vec::new(),
            requests: Vec::new(),
            copies: BTreeMap::new(),
            copies_due: BTreeMap::new(),
            crashes_after: None,
            process: Process::new(settings.inventory.clone(), began, jiff::SignedDuration::ZERO),
            other: settings.clone(),
            usual: settings.clone(),
            settings,
            has_machine_rights: true,
            is_grouped: limits.is_grouped,
            elapsed: Duration::ZERO,
            tasks: 0,
            versions: 1,
            slices_made: 0,
            lose_replies: 0,
            vcenter_is_lost: false,
            forbids_status: false,
            has_forbidden_status: false,
            effects: vec![Vec::new(); NODES],
            shortest_pause: Duration::from_secs(600),
            log: Vec::new(),
        };
        model.hosts[2].is_taken = true;
        model.hosts[3].is_taken = true;
        for index in 0..NODES {
            model.vms.push(VmTruth {
                power: PowerState::On,
                host: index,
                exists: true,
                boots: 1,
                going_down: false,
                asked_in: None,
                asked_at: None,
                locked_until: Duration::ZERO,
                has_time_until: Duration::ZERO,
                running: None,
                is_asked_for: false,
                tasks: Vec::new(),
                off_by_person: false,
                is_vgpu: false,
                device_of: None,
            });
            model.nodes.push(NodeTruth {
                object: None,
                is_selected: true,
                is_followed: false,
                pods: 2,
                cordoned_by_person: false,
                is_hooked_late: false,
                drain_held_since: None,
                power_off_held_since: None,
                unserved_since: None,
                is_machine_guarded: false,
                is_drained_with_guards: false,
                has_notice_until: Duration::ZERO,
                guards_of_person: BTreeSet::new(),
                plugin_boot: 1,
                slice: None,
                registrations: 0,
            });
            model.register(index);
        }
        if cordoned {
            model.cordon(0, true);
        }
        model.push_all();
        model
    }

    /// The latest log lines.
    pub fn recent_log(&self) -> String {
        let lines: Vec<&str> = self
            .log
            .iter()
            .map(String::as_str)
            .filter(|line| !line.contains(": Survey in"))
            .collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// The current time by the process's clocks.
    fn now(&self) -> Now {
        let wall = wall_after(at(0), self.elapsed)
            .saturating_add(self.process.offset)
            .unwrap();
        Now {
            wall,
            monotonic: Monotonic::since_boot(self.elapsed),
        }
    }

    /// vCenter's and the kube-apiserver's clock: the true time.
    fn true_time(&self) -> Timestamp {
        wall_after(at(0), self.elapsed)
    }

    pub fn node(&self, index: usize) -> Option<&NodeFacts> {
        self.nodes[index].object.as_ref()
    }

    pub fn is_cordoned(&self, index: usize) -> bool {
        self.node(index).is_some_and(|node| node.unschedulable)
    }

    /// The record on the Node, or on its copy if the Node is gone.
    pub fn record(&self, index: usize) -> Record {
        let annotations = |marks: &NodeAnnotations| NodeAnnotations {
            episode: marks.episode.clone(),
            ..NodeAnnotations::default()
        };
        match self.node(index) {
            Some(node) => record::read_record(&annotations(&node.annotations)),
            None => Record::InService,
        }
    }

    /// Whether an episode of the node is open, on the Node or on a copy.
    pub fn is_in_episode(&self, index: usize) -> bool {
        let is_open = |copy: &&NodeMaintenanceFacts| !copy.is_over && copy.node == node_name(index);
        self.record(index) != Record::InService || self.newest_copies().any(|copy| is_open(&copy))
    }

    /// The copies with their gathered changes.
    fn newest_copies(&self) -> impl Iterator<Item = &NodeMaintenanceFacts> {
        let copies = self.copies.iter();
        copies.map(|(name, copy)| self.copies_due.get(name).unwrap_or(copy))
    }

    pub fn episode(&self, index: usize) -> Option<Episode> {
        self.record(index).episode().cloned()
    }

    /// The episode that the program continues, from the copy if necessary.
    pub fn open_episode(&self, index: usize) -> Option<Episode> {
        self.episode(index).or_else(|| {
            let mut open = self
                .newest_copies()
                .filter(|copy| !copy.is_over && copy.node == node_name(index));
            let NodeMaintenanceRole::Episode { record } = &open.next()?.role else {
                return None;
            };
            let annotations = NodeAnnotations {
                episode: record.clone(),
                ..NodeAnnotations::default()
            };
            record::read_record(&annotations).episode().cloned()
        })
    }

    // Facts for the process.

    /// Pushes all facts, as at a start.
    pub fn push_all(&mut self) {
        let now = self.now();
        let of_maintenances = |update| Fact::Kubernetes(kubernetes::KubernetesUpdate::Maintenances(update));
        let mut facts = vec![
            Fact::Vsphere(vsphere::VsphereUpdate::Reset),
            Fact::Kubernetes(kubernetes::KubernetesUpdate::Reset),
        ];
        facts.push(of_maintenances(NodeMaintenanceUpdate::Reset));
        facts.extend(self.facts());
        facts.extend([
            Fact::Kubernetes(kubernetes::KubernetesUpdate::Settled),
            Fact::Kubernetes(kubernetes::KubernetesUpdate::DevicesListed),
        ]);
        facts.push(of_maintenances(NodeMaintenanceUpdate::Settled));
        facts.push(if self.vcenter_is_lost {
            Fact::Vsphere(vsphere::VsphereUpdate::Lost {
                why: "cut".to_owned(),
            })
        } else {
            Fact::Vsphere(vsphere::VsphereUpdate::Settled)
        });
        self.process.advance(facts, now);
    }

    fn facts(&self) -> Vec<Fact> {
        let mut facts = vec![Fact::Vsphere(vsphere::VsphereUpdate::Compute(Compute {
            moref: ComputeRef::new("cluster"),
            name: Some("cluster".to_owned()),
            drs: None,
            rules: Arc::default(),
        }))];
        facts.extend((0..HOSTS.len()).map(|index| self.host_fact(index)));
        for index in 0..NODES {
            facts.extend(self.vm_facts(index));
            facts.extend(self.node_fact(index));
            facts.push(self.devices_fact(index));
        }
        let objects = self.requests.iter().chain(self.copies.values());
        facts.extend(objects.map(|object| {
            let seen = NodeMaintenanceUpdate::Seen(Box::new(object.clone()));
            Fact::Kubernetes(kubernetes::KubernetesUpdate::Maintenances(seen))
        }));
        facts
    }

    fn devices_fact(&self, index: usize) -> Fact {
        let gpus = &self.settings.policy.gpu_resources;
        let slices = self.nodes[index].slice.iter();
        let slices = slices.filter(|(slice, _)| gpus.matches(&slice.driver));
        Fact::Kubernetes(kubernetes::KubernetesUpdate::Devices {
            node: node_name(index),
            slices: slices.map(|(slice, _)| slice.clone()).collect(),
        })
    }

    fn host_fact(&self, index: usize) -> Fact {
        let truth = &self.hosts[index];
        let device = pci(DEVICE, GPU_IDS);
        Fact::Vsphere(vsphere::VsphereUpdate::Host(Arc::new(Host {
            moref: host_ref(index),
            name: Some(HOSTS[index].to_owned()),
            compute: Some(ComputeRef::new("cluster")),
            connection: Some(if truth.is_unreachable {
                HostConnection::NotResponding
            } else {
                HostConnection::Connected
            }),
            in_maintenance: Some(truth.in_maintenance),
            in_quarantine: Some(false),
            build: None,
            maintenance_asked_at: None,
            entering_standby: None,
            partial_maintenance: None,
            last_end: truth.last_end.clone(),
            last_exit: truth.last_exit.clone(),
            entering: truth
                .entering
                .as_ref()
                .map(|(task, queued_at)| EnteringMaintenance {
                    task: task.clone(),
                    queued_at: *queued_at,
                    user: None,
                    signal: DetectionSignal::Push,
                }),
            datastores: Arc::new(BTreeSet::from([DatastoreRef::new("ds")])),
            passthrough: Some(Arc::new([device])),
            sriov: Arc::default(),
        })))
    }

    fn vm_facts(&self, index: usize) -> Vec<Fact> {
        let truth = &self.vms[index];
        if !truth.exists {
            return vec![
                Fact::Vsphere(vsphere::VsphereUpdate::VmGone(vm_ref(index))),
                self.answer(index),
            ];
        }
        let device = if truth.is_vgpu {
            Passthrough::Vgpu {
                profile: Some(VgpuProfile::new(VGPU)),
                migrates: None,
            }
        } else if truth.device_of.is_some() {
            Passthrough::Static {
                address: DEVICE.to_owned(),
                vendor: GPU_IDS.0,
                device: Some(GPU_IDS.1),
            }
        } else {
            Passthrough::Dynamic(of_model(GPU_IDS))
        };
        let vm = Vm {
            moref: vm_ref(index),
            name: Some(node_name(index).to_string()),
            uuid: Some(uuid(index)),
            template: false,
            power: Some(truth.power),
            host: Some(host_ref(truth.host)),
            tools_running: Some(truth.power == PowerState::On && !truth.going_down),
            question: None,
            datastores: Arc::new(BTreeSet::from([DatastoreRef::new("ds")])),
            datastore_states: Arc::default(),
            networks: Arc::default(),
            passthrough: Some(vec![device]),
            memory_mib: None,
            hardware_version: None,
            evacuation_power_off: false,
        };
        let tasks = truth.tasks.iter().cloned();
        let tasks = tasks.map(|task| Fact::Vsphere(vsphere::VsphereUpdate::Task(task)));
        let own = [Fact::Vsphere(vsphere::VsphereUpdate::Vm(vm)), self.answer(index)];
        own.into_iter().chain(tasks).collect()
    }

    fn answer(&self, index: usize) -> Fact {
        let vms = self.vms[index].exists.then(|| vm_ref(index));
        Fact::Vsphere(vsphere::VsphereUpdate::Found {
            key: VmKey::Uuid(uuid(index)),
            vms: vms.into_iter().collect(),
        })
    }

    fn node_fact(&self, index: usize) -> Option<Fact> {
        let truth = &self.nodes[index];
        let mut node = Box::new(truth.object.clone()?);
        let resources = &self.settings.policy.gpu_resources;
        if !node.gpus.keys().all(|resource| resources.matches(resource)) {
            Arc::make_mut(&mut node.gpus).retain(|resource, _| resources.matches(resource));
        }
        if truth.is_selected {
            Some(Fact::Kubernetes(kubernetes::KubernetesUpdate::Node(node)))
        } else if truth.is_followed {
            Some(Fact::Kubernetes(kubernetes::KubernetesUpdate::Followed(node)))
        } else {
            None
        }
    }

    /// Starts and stops watches of nodes by name.
    fn follow(&mut self) {
        let wanted = self.process.followed.clone();
        for index in 0..NODES {
            let is_wanted = wanted.contains(&node_name(index));
            if std::mem::replace(&mut self.nodes[index].is_followed, is_wanted) || !is_wanted {
                continue;
            }
            match self.node_fact(index) {
                Some(fact) => self.apply(fact),
                None => self.apply(Fact::Kubernetes(kubernetes::KubernetesUpdate::FollowedAbsent {
                    name: node_name(index),
                })),
            }
        }
    }

    /// The scan of all Nodes at a start.
    fn scan(&mut self) {
        let stranded = (0..NODES).filter_map(|index| {
            let node = self.node(index)?;
            let last = node.annotations.last_episode.as_deref().and_then(read_last);
            let is_late = last.is_some_and(|last| !last.episode.in_flight.is_empty());
            (is_late || node.annotations.episode.is_some()).then(|| StrandedNode {
                name: node.name.clone(),
                uid: node.uid.clone(),
                is_selected: self.nodes[index].is_selected,
            })
        });
        let stranded = stranded.collect();
        self.apply(Fact::Kubernetes(kubernetes::KubernetesUpdate::Scanned {
            stranded,
        }));
    }

    fn apply(&mut self, fact: Fact) {
        let now = self.now();
        // Each reply of vCenter is a complete set.
        let is_open =
            matches!(&fact, Fact::Vsphere(update) if !matches!(update, vsphere::VsphereUpdate::Lost { .. }));
        let end = is_open.then_some(Fact::Vsphere(vsphere::VsphereUpdate::Settled));
        self.process.advance(std::iter::once(fact).chain(end), now);
    }

    fn push_host(&mut self, index: usize) {
        if !self.vcenter_is_lost {
            let fact = self.host_fact(index);
            self.apply(fact);
        }
    }

    fn push_vm(&mut self, index: usize) {
        if !self.vcenter_is_lost {
            for fact in self.vm_facts(index) {
                self.apply(fact);
            }
        }
    }

    pub fn push_node(&mut self, index: usize) {
        if let Some(fact) = self.node_fact(index) {
            self.apply(fact);
        }
    }

    fn push_object(&mut self, object: NodeMaintenanceFacts) {
        let seen = NodeMaintenanceUpdate::Seen(Box::new(object));
        self.apply(Fact::Kubernetes(kubernetes::KubernetesUpdate::Maintenances(seen)));
    }

    // Events.

    pub fn enter(&mut self, host: usize) {
        let truth = &self.hosts[host];
        if truth.entering.is_none() && !truth.in_maintenance {
            self.tasks += 1;
            let task = (TaskRef::new(format!("enter-{}", self.tasks)), self.true_time());
            let held: Vec<usize> = (0..NODES)
                .filter(|index| self.vms[*index].host == host && self.is_held_for_a_request(*index))
                .collect();
            for index in held {
                let has_time = self.elapsed + self.settings.policy.drain_timeout;
                self.nodes[index].has_notice_until = has_time;
            }
            self.hosts[host].entering = Some(task);
            self.hosts[host].last_end = None;
            self.push_host(host);
        }
    }

    /// Whether a request to drain the node is all that is asked for, and it is being drained.
    fn is_held_for_a_request(&self, index: usize) -> bool {
        let is_asked = self.requests.iter().any(|it| {
            let is_drain = matches!(
                &it.role,
                NodeMaintenanceRole::Request(asked) if asked.action == kubernetes::RequestAction::Drain
            );
            it.node == node_name(index) && is_drain
        });
        let at_work = self.open_episode(index).map(|it| it.phase.at_work().clone());
        is_asked && at_work == Some(Phase::Draining)
    }

    /// The host is in maintenance when no VM on it is running.
    pub fn try_to_enter(&mut self, host: usize) {
        let is_empty = self
            .vms
            .iter()
            .all(|vm| vm.host != host || vm.power == PowerState::Off);
        if self.hosts[host].entering.is_some() && is_empty {
            self.hosts[host].entering = None;
            self.hosts[host].in_maintenance = true;
            self.hosts[host].last_end = None;
            self.push_host(host);
        }
    }

    pub fn leave(&mut self, host: usize) {
        self.end_entering(host, EndOutcome::Cancelled);
        if self.hosts[host].in_maintenance {
            self.tasks += 1;
            self.hosts[host].last_exit = Some(TaskRef::new(format!("exit-{}", self.tasks)));
        }
        self.hosts[host].in_maintenance = false;
        self.hosts[host].is_unreachable = false;
        self.push_host(host);
    }

    fn end_entering(&mut self, host: usize, outcome: EndOutcome) {
        if let Some((task, _)) = self.hosts[host].entering.take() {
            self.hosts[host].last_end = Some(MaintenanceEnd { task, outcome });
        }
    }

    /// The maintenance fails, which is different from a cancel.
    pub fn fail_entering(&mut self, host: usize) {
        let message = "Timedout: Operation timed out.".to_owned();
        self.end_entering(host, EndOutcome::Failed { message });
        self.push_host(host);
    }

    /// A cancel that vCenter has not pushed yet.
    pub fn cancel_unpushed(&mut self, host: usize) {
        if self.hosts[host].entering.is_some() && !self.vcenter_is_lost {
            self.end_entering(host, EndOutcome::Cancelled);
            self.unpushed.insert(host);
        }
    }

    fn push_pending(&mut self) {
        for host in std::mem::take(&mut self.unpushed) {
            self.push_host(host);
        }
    }

    pub fn set_host(&mut self, host: usize, change: impl FnOnce(&mut HostTruth)) {
        change(&mut self.hosts[host]);
        self.push_host(host);
    }

    fn powered_off(&mut self, index: usize) {
        let vm = &mut self.vms[index];
        vm.power = PowerState::Off;
        vm.going_down = false;
        // Its pods are lost; the Node still shows the old boot id and Ready.
        self.nodes[index].pods = 0;
        self.push_vm(index);
    }

    fn powered_on(&mut self, index: usize) {
        let vm = &mut self.vms[index];
        vm.power = PowerState::On;
        vm.boots += 1;
        vm.asked_at = None;
        vm.off_by_person = false;
        self.push_vm(index);
    }

    /// Guest shutdowns of episodes that ended long ago no longer take effect.
    pub fn guests_give_up(&mut self) {
        for index in 0..self.vms.len() {
            if !self.is_in_episode(index) {
                self.vms[index].going_down = false;
            }
        }
    }

    /// The guest shuts down as requested.
    pub fn guest_stops(&mut self, index: usize) {
        if self.vms[index].power == PowerState::On && self.vms[index].going_down {
            self.log.push(format!("guest {index} stops"));
            self.powered_off(index);
        }
    }

    /// The guest reboots instead of shutting down.
    pub fn guest_reboots(&mut self, index: usize) {
        let vm = &mut self.vms[index];
        if vm.power == PowerState::On && vm.going_down {
            vm.going_down = false;
            vm.boots += 1;
            self.push_vm(index);
            self.kubelet_reports(index, true);
        }
    }

    /// The VM goes off without a request.
    pub fn vm_dies(&mut self, index: usize) {
        if self.vms[index].power == PowerState::On && self.has_begun(index) {
            self.log.push(format!("VM {index} dies"));
            self.powered_off(index);
        }
    }

    /// Whether an episode of the node is open that is more than queued.
    fn has_begun(&self, index: usize) -> bool {
        let phase = self.open_episode(index).map(|episode| episode.phase);
        let is_queued = phase.is_some_and(|phase| *phase.at_work() == Phase::Queued);
        self.is_in_episode(index) && !is_queued
    }

    pub fn person_powers_off(&mut self, index: usize) {
        if self.vms[index].power == PowerState::On && self.vms[index].running.is_none() {
            self.vms[index].off_by_person = !self.has_begun(index);
            self.push_task(index, "VirtualMachine.powerOff", TaskState::Success, false);
            self.powered_off(index);
        }
    }

    pub fn person_powers_on(&mut self, index: usize) {
        let vm = &self.vms[index];
        if vm.power == PowerState::Off && vm.running.is_none() && self.hosts[vm.host].takes_vms() {
            self.push_task(index, "VirtualMachine.powerOn", TaskState::Success, false);
            self.powered_on(index);
        }
    }

    /// The right to write the status of Nodes is taken away, or given again.
    pub fn forbid_status(&mut self, is_forbidden: bool) {
        self.forbids_status = is_forbidden;
        self.has_forbidden_status |= is_forbidden;
    }

    /// The VM gets a vGPU. Its configuration is changed while it is off, or it was so from the start.
    pub fn has_vgpu(&mut self, index: usize) {
        self.vms[index].is_vgpu = true;
        self.vms[index].device_of = None;
        self.push_vm(index);
    }

    /// The VM gets a device at a fixed address of its host, or had it from the start.
    pub fn has_static_device(&mut self, index: usize) {
        let vm = &mut self.vms[index];
        vm.is_vgpu = false;
        vm.device_of.get_or_insert(vm.host);
        self.push_vm(index);
    }

    /// vCenter moves the running VM to `host`, if it has a vGPU.
    pub fn vmotion(&mut self, index: usize, host: usize) {
        let vm = &self.vms[index];
        let can_move = vm.is_vgpu && vm.exists && vm.power == PowerState::On && vm.running.is_none();
        if can_move && vm.host != host && self.hosts[host].takes_vms() && !self.hosts[host].is_taken {
            self.push_task(index, "Drm.ExecuteVMotionLRO", TaskState::Success, false);
            self.vms[index].host = host;
            self.push_vm(index);
        }
    }

    /// Another client starts a task on the VM, which refuses other operations until it ends.
    pub fn foreign_task_starts(&mut self, index: usize) {
        if self.vms[index].running.is_none() && self.vms[index].exists {
            let task = self.push_task(index, "VirtualMachine.createSnapshot", TaskState::Running, false);
            self.vms[index].running = Some((task, Work::Foreign));
            self.push_vm(index);
        }
    }

    /// A backup or another host holds the VM's files for this long.
    pub fn lock_files(&mut self, index: usize, span: Duration) {
        self.vms[index].locked_until = self.elapsed + span;
    }

    fn push_task(&mut self, index: usize, what: &str, state: TaskState, by_us: bool) -> TaskRef {
        self.tasks += 1;
        let moref = TaskRef::new(format!("task-{}", self.tasks));
        let task = Task {
            moref: moref.clone(),
            vm: Some(vm_ref(index)),
            description_id: what.to_owned(),
            state,
            queued_at: self.true_time(),
            by_us,
        };
        self.vms[index].tasks.push(task);
        moref
    }

    /// The task on the VM ends, successfully if possible, or with `failure`.
    pub fn task_ends(&mut self, index: usize, failure: Option<FaultKind>) {
        let Some((moref, work)) = self.vms[index].running.take() else {
            return;
        };
        let fault = failure.or_else(|| self.impossible(index, &work));
        let state = match &fault {
            Some(kind) => TaskState::Error(Fault {
                kind: kind.clone(),
                message: "no".to_owned(),
            }),
            None => TaskState::Success,
        };
        let known = self.vms[index].tasks.iter_mut().find(|task| task.moref == moref);
        known.unwrap().state = state;
        self.log.push(format!("{work:?} of vm {index} ends: {fault:?}"));
        match (&work, fault) {
            (_, Some(_)) | (Work::Foreign, None) => self.push_vm(index),
            (Work::PowerOff, None) => self.powered_off(index),
            (Work::PowerOn(_), None) => self.powered_on(index),
            (Work::Relocate(host), None) => {
                self.vms[index].host = *host;
                self.push_vm(index);
            }
            (Work::Reconfigure(host), None) => {
                self.vms[index].device_of = Some(*host);
                self.push_vm(index);
            }
        }
    }

    fn impossible(&self, index: usize, work: &Work) -> Option<FaultKind> {
        let device_is_taken = |host: usize| {
            let other =
                |vm: &(usize, &VmTruth)| vm.0 != index && vm.1.host == host && vm.1.power == PowerState::On;
            self.hosts[host].is_taken || self.vms.iter().enumerate().any(|vm| other(&vm))
        };
        match work {
            Work::PowerOff => {
                (self.vms[index].power == PowerState::Off).then_some(FaultKind::InvalidPowerState)
            }
            Work::PowerOn(host) if !self.hosts[*host].takes_vms() => Some(FaultKind::InvalidHostState),
            Work::PowerOn(_) if self.elapsed < self.vms[index].locked_until => Some(FaultKind::FileLocked),
            Work::PowerOn(host) if self.hosts[*host].refuses_power_on.is_some() => {
                self.hosts[*host].refuses_power_on.clone()
            }
            Work::PowerOn(host) if device_is_taken(*host) => Some(FaultKind::InsufficientResources),
            Work::PowerOn(host) if self.vms[index].device_of.is_some_and(|of| of != *host) => {
                Some(FaultKind::VmConfig)
            }
            Work::Relocate(host) | Work::Reconfigure(host) if !self.hosts[*host].takes_vms() => {
                Some(FaultKind::InvalidHostState)
            }
            Work::Reconfigure(_) if self.vms[index].power != PowerState::Off => {
                Some(FaultKind::InvalidPowerState)
            }
            // Its configuration was changed meanwhile.
            Work::Reconfigure(_) if self.vms[index].device_of.is_none() => Some(FaultKind::ConcurrentAccess),
            Work::PowerOn(_) | Work::Relocate(_) | Work::Reconfigure(_) | Work::Foreign => None,
        }
    }

    // Events of Node objects.

    fn boot_id(&self, index: usize) -> BootId {
        BootId::new(format!("boot-{index}-{}", self.vms[index].boots))
    }

    /// A starting kubelet registers its Node if there is none.
    fn register(&mut self, index: usize) {
        let group = self.is_grouped.then(|| format!("group-{index}"));
        let truth = &mut self.nodes[index];
        truth.registrations += 1;
        let has_counts = truth.registrations == 1 && !has_driver(index);
        let counts: Arc<BTreeMap<String, u64>> = match has_counts {
            true => BTreeMap::from([(GPU.to_owned(), 2)]).into(),
            false => Arc::default(),
        };
        self.versions += 1;
        let node = NodeFacts {
            name: node_name(index),
            uid: NodeUid::new(format!("uid-{index}-{}", truth.registrations)),
            resource_version: self.versions,
            created_at: at(0),
            provider_uuid: Some(uuid(index)),
            system_uuid: Some(uuid(index)),
            unschedulable: false,
            cordoned_by: None,
            // A kubelet that registers a Node anew is not Ready at first.
            ready: ReadyCondition {
                is_true: truth.registrations == 1,
                is_unknown: false,
                heartbeat: None,
                since: None,
            },
            boot_id: None,
            gpus: Arc::clone(&counts),
            gpu_capacity: counts,
            accepted_gpus: Default::default(),
            annotations: NodeAnnotations::default(),
            limit_group: group,
            conditions: Default::default(),
            guards: Default::default(),
            hooks: Default::default(),
            taints: Default::default(),
        };
        truth.object = Some(node);
        truth.is_selected = true;
        truth.cordoned_by_person = false;
        truth.drain_held_since = None;
        truth.guards_of_person.clear();
        let boot_id = self.boot_id(index);
        self.publish_devices(index);
        self.change_node(index, |node| node.boot_id = Some(boot_id));
        let devices = self.devices_fact(index);
        self.apply(devices);
    }

    fn change_node(&mut self, index: usize, change: impl FnOnce(&mut NodeFacts)) {
        self.versions += 1;
        let version = self.versions;
        if let Some(node) = &mut self.nodes[index].object {
            change(node);
            node.resource_version = version;
        }
        self.push_node(index);
    }

    /// The kubelet of a running VM reports its boot id, and its GPUs if they are available.
    pub fn kubelet_reports(&mut self, index: usize, with_gpus: bool) {
        self.kubelet_starts(index, with_gpus, true);
    }

    /// The kubelet has lost its checkpoint of device plugins: it leaves the GPU counts on its Node as they are.
    pub fn kubelet_reports_without_checkpoint(&mut self, index: usize) {
        self.kubelet_starts(index, false, false);
    }

    /// The kubelet ends with the guest, and says so first.
    pub fn kubelet_shuts_down(&mut self, index: usize) {
        if self.vms[index].power == PowerState::On && self.vms[index].going_down {
            self.change_node(index, |node| node.ready.is_true = false);
        }
    }

    fn kubelet_starts(&mut self, index: usize, with_gpus: bool, knows_gpus: bool) {
        let vm = &self.vms[index];
        if vm.power != PowerState::On || !vm.exists || vm.going_down {
            return;
        }
        let boot_id = self.boot_id(index);
        let is_restart = self.node(index).and_then(|node| node.boot_id.clone()) != Some(boot_id.clone());
        if self.node(index).is_none() {
            // A kubelet registers its Node only at its start.
            if !is_restart {
                return;
            }
            self.register(index);
        }
        let gpus = if with_gpus && !has_driver(index) { 2 } else { 0 };
        if with_gpus {
            self.nodes[index].plugin_boot = self.vms[index].boots;
        }
        self.change_node(index, |node| {
            node.boot_id = Some(boot_id);
            node.ready.is_true = true;
            if knows_gpus {
                let counts = BTreeMap::from([(GPU.to_owned(), gpus)]).into_iter();
                let counts = counts.filter(|(_, count)| *count > 0);
                node.gpus = counts.collect::<BTreeMap<_, _>>().into();
                node.gpu_capacity = Arc::clone(&node.gpus);
            }
        });
        // A kubelet deletes the slices when it starts and when the driver is gone. Ready may be seen before.
        let is_stale = self.nodes[index]
            .slice
            .as_ref()
            .is_some_and(|(_, boot)| *boot != self.vms[index].boots);
        if is_stale == with_gpus {
            self.nodes[index].slice = None;
        }
        if with_gpus {
            self.publish_devices(index);
        }
        let devices = self.devices_fact(index);
        self.apply(devices);
    }

    /// The driver creates its slice, unless it is there.
    fn publish_devices(&mut self, index: usize) {
        if !has_driver(index) {
            return;
        }
        let boots = self.vms[index].boots;
        self.slices_made += 1;
        let slice = DeviceSlice {
            driver: DRIVER.to_owned(),
            created_at: at(self.slices_made),
            devices: 2,
        };
        self.nodes[index].slice.get_or_insert((slice, boots));
    }

    /// The node controller notices that the kubelet has stopped.
    pub fn kubelet_is_missed(&mut self, index: usize) {
        if self.vms[index].power == PowerState::Off {
            self.change_node(index, |node| node.ready.is_true = false);
        }
    }

    pub fn delete_node(&mut self, index: usize) {
        let Some(node) = self.nodes[index].object.take() else {
            return;
        };
        self.nodes[index].pods = 0;
        // Its Node owns it.
        self.nodes[index].slice = None;
        let devices = self.devices_fact(index);
        self.apply(devices);
        self.nodes[index].cordoned_by_person = false;
        if !self.is_in_episode(index) {
            // The end of an episode is marked on the Node alone. Its guest is taken to have answered before.
            self.vms[index].going_down = false;
        }
        let (name, uid) = (node.name, node.uid);
        self.apply(Fact::Kubernetes(if self.nodes[index].is_selected {
            kubernetes::KubernetesUpdate::NodeGone { name, uid }
        } else {
            kubernetes::KubernetesUpdate::FollowedGone { name, uid }
        }));
    }

    /// A cordon or uncordon by a person. kubectl does not write an unchanged Node.
    pub fn cordon(&mut self, index: usize, cordons: bool) {
        if self.node(index).is_none_or(|node| node.unschedulable == cordons) {
            return;
        }
        self.nodes[index].cordoned_by_person = cordons;
        self.change_node(index, |node| {
            node.unschedulable = cordons;
            node.cordoned_by = cordons.then(|| "kubectl-cordon".to_owned());
        });
    }

    /// A controller that uncordons at boot, which is no person's wish.
    pub fn driver_uncordons(&mut self, index: usize) {
        self.change_node(index, |node| {
            node.unschedulable = false;
            node.cordoned_by = None;
        });
    }

    /// The label is removed or added.
    pub fn select(&mut self, index: usize, is_selected: bool) {
        if self.nodes[index].is_selected == is_selected {
            return;
        }
        self.versions += 1;
        let version = self.versions;
        self.nodes[index].is_selected = is_selected;
        let Some(node) = &mut self.nodes[index].object else {
            return;
        };
        node.resource_version = version;
        if is_selected {
            self.push_node(index);
        } else {
            let (name, uid) = (node.name.clone(), node.uid.clone());
            self.apply(Fact::Kubernetes(kubernetes::KubernetesUpdate::NodeGone {
                name,
                uid,
            }));
        }
    }

    /// A person adds or removes a hook.
    pub fn hook(&mut self, index: usize, point: HookPoint, is_added: bool) {
        let at_work = self
            .open_episode(index)
            .map(|episode| episode.phase.at_work().clone());
        let is_late = matches!(at_work, Some(Phase::ShuttingDown(_)));
        let truth = &mut self.nodes[index];
        if point == HookPoint::PreDrain && !is_added {
            truth.drain_held_since = None;
        }
        if point == HookPoint::PrePowerOff {
            truth.is_hooked_late = is_added && (is_late || truth.is_hooked_late);
        }
        self.change_node(index, |node| {
            match is_added {
                true => node.hooks.entry(point).or_default().insert("ticket".to_owned()),
                false => node.hooks.remove(&point).is_some(),
            };
        });
    }

    /// A person approves the episode of a node.
    pub fn person_approves(&mut self, index: usize) {
        let id = self.open_episode(index).map(|episode| episode.id.to_string());
        self.mark(index, |marks| marks.approved = id);
    }

    /// A person sets a guard, unless the Node has it.
    pub fn person_guards(&mut self, index: usize, guard: NodeGuard) {
        if self
            .node(index)
            .is_none_or(|node| node.guards.contains_key(&guard))
        {
            return;
        }
        self.nodes[index].guards_of_person.insert(guard);
        self.change_node(index, |node| {
            node.guards.insert(guard, GuardState::Other);
        });
    }

    /// A person removes a guard, also one of ours.
    pub fn person_unguards(&mut self, index: usize, guard: NodeGuard) {
        self.nodes[index].guards_of_person.remove(&guard);
        self.change_node(index, |node| {
            node.guards.remove(&guard);
        });
    }

    pub fn wipe_annotations(&mut self, index: usize) {
        self.change_node(index, |node| node.annotations.episode = None);
    }

    pub fn mark(&mut self, index: usize, change: impl FnOnce(&mut NodeAnnotations)) {
        self.change_node(index, |node| change(&mut node.annotations));
    }

    pub fn pod_comes(&mut self, index: usize) {
        if self.node(index).is_some() && self.vms[index].power == PowerState::On {
            self.nodes[index].pods += 1;
            self.pods_changed(index);
        }
    }

    pub fn pod_goes(&mut self, index: usize) {
        if self.nodes[index].pods > 0 {
            self.nodes[index].pods -= 1;
            self.pods_changed(index);
        }
    }

    /// Only the pods of nodes that are being drained are watched.
    fn pods_changed(&mut self, index: usize) {
        self.nodes[index].unserved_since.get_or_insert(self.elapsed);
        if self.process.draining.contains(&node_name(index)) {
            self.apply(Fact::Kubernetes(kubernetes::KubernetesUpdate::PodsChanged(
                node_name(index),
            )));
        }
    }

    pub fn ask(&mut self, index: usize, action: kubernetes::RequestAction) {
        self.ask_in(index, action, None);
    }

    /// A request that may begin in this window only.
    pub fn ask_in(&mut self, index: usize, action: kubernetes::RequestAction, window: Option<&str>) {
        if self.requests.iter().any(|it| it.node == node_name(index)) {
            return;
        }
        self.versions += 1;
        let object = NodeMaintenanceFacts {
            name: format!("request-{}", self.versions),
            uid: RequestUid::new(format!("request-{}", self.versions)),
            resource_version: self.versions,
            generation: 1,
            created_at: self.true_time(),
            node: node_name(index),
            role: NodeMaintenanceRole::Request(kubernetes::RequestedMaintenance {
                requested_by: None,
                reason: String::new(),
                action,
                drain_timeout: None,
                hold_on_drain_timeout: None,
                guest_shutdown_timeout: None,
                not_before: None,
                window: window.map(str::parse),
            }),
            is_over: false,
            status: Box::default(),
        };
        self.requests.push(object.clone());
        self.push_object(object);
    }

    pub fn delete_requests(&mut self, index: usize) {
        let (gone, stay) = self
            .requests
            .drain(..)
            .partition(|it: &NodeMaintenanceFacts| it.node == node_name(index));
        self.requests = stay;
        for object in gone {
            let gone = NodeMaintenanceUpdate::Gone {
                name: object.name,
                uid: object.uid,
            };
            self.apply(Fact::Kubernetes(kubernetes::KubernetesUpdate::Maintenances(gone)));
        }
    }

    pub fn set_vm_exists(&mut self, index: usize, exists: bool) {
        self.vms[index].exists = exists;
        self.push_vm(index);
    }

    pub fn lose_vcenter(&mut self) {
        self.vcenter_is_lost = true;
        self.apply(Fact::Vsphere(vsphere::VsphereUpdate::Lost {
            why: "cut".to_owned(),
        }));
    }

    pub fn vcenter_is_back(&mut self) {
        self.vcenter_is_lost = false;
        // A new stream does not report a maintenance that has ended.
        self.hosts.iter_mut().for_each(|host| host.last_end = None);
        self.unpushed.clear();
        self.push_all();
    }

    /// The other replica takes over, after `change` of its settings. The one before it keeps its own.
    pub fn other_leads(&mut self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.other);
        for index in 0..NODES {
            let Some(episode) = self.open_episode(index) else {
                continue;
            };
            // What a process has recorded counts. One that has written nothing has promised nothing.
            let recorded = match episode.drain_limit {
                Some(DrainLimit::After(limit)) => limit.span(),
                Some(DrainLimit::Hold) => Duration::MAX,
                None => self.settings.drain_limit(),
            };
            // It may have had its whole time before, and was held by something else.
            let took = episode.drained_for.plus(episode.elapsed.span()).span();
            let is_shortened = self.other.drain_limit() < recorded && took < recorded;
            if *episode.phase.at_work() == Phase::Draining && is_shortened {
                self.nodes[index].has_notice_until = self.elapsed + self.other.policy.drain_timeout;
            }
        }
        std::mem::swap(&mut self.settings, &mut self.other);
        self.restart(self.process.offset);
    }

    /// A process takes over with the settings with which the history began.
    pub fn usual_settings(&mut self) {
        let usual = self.usual.clone();
        self.other_leads(|settings| *settings = usual);
    }

    /// Another process takes over, with a wall clock that differs by `offset` from the true time.
    pub fn restart(&mut self, offset: jiff::SignedDuration) {
        self.log.push(format!("another process, {offset:#}"));
        self.process.offset = offset;
        let now = self.now();
        self.process = Process::new(self.settings.inventory.clone(), now, offset);
        self.nodes.iter_mut().for_each(|node| node.is_followed = false);
        self.vms.iter_mut().for_each(|vm| vm.is_asked_for = false);
        self.hosts.iter_mut().for_each(|host| host.last_end = None);
        self.unpushed.clear();
        self.write_missing_copies();
        self.push_all();
        self.scan();
    }

    /// The process's wall clock is stepped.
    pub fn step_clock(&mut self, by: jiff::SignedDuration) {
        self.process.offset = self.process.offset.checked_add(by).unwrap();
    }

    // The program.

    /// Time passes, and the program decides whenever it is due.
    pub fn pass(&mut self, span: Duration) {
        let end = self.elapsed + span;
        self.write_copies();
        self.settle();
        self.push_pending();
        loop {
            let recheck = self.settle();
            let next = recheck.map_or(end, |at| {
                at.uptime().max(self.elapsed + Duration::from_millis(20))
            });
            if next >= end {
                break;
            }
            self.elapsed = next;
            self.write_copies();
            self.drains_go_on();
        }
        self.elapsed = self.elapsed.max(end);
        self.settle();
        self.drains_go_on();
    }

    /// Lets the program decide until nothing is left to do now. Returns when it is due next.
    pub fn settle(&mut self) -> Option<Monotonic> {
        for _ in 0..200 {
            // No two events have the same time.
            self.elapsed += Duration::from_millis(1);
            let now = self.now();
            self.process.advance([], now);
            self.look_up_watch_set();
            self.follow();
            let snapshots = self.process.snapshots.clone();
            let mut recheck: Option<Monotonic> = None;
            let mut has_done = false;
            for (name, snapshot) in snapshots {
                let Some(index) = (0..NODES).find(|index| node_name(*index) == name) else {
                    continue;
                };
                self.queue_is_right(&name, &snapshot);
                match decide(&snapshot.record, &snapshot.observed, &self.settings.policy, now) {
                    Decision::Write(transition) => {
                        self.write(index, &snapshot, &transition);
                        has_done = true;
                    }
                    Decision::Act { effect, .. } => {
                        self.perform(index, &snapshot, &effect);
                        has_done = true;
                    }
                    Decision::Wait {
                        recheck: at,
                        waiting_on,
                    } => {
                        self.slot_is_missing(&name, &waiting_on);
                        recheck = [recheck, at].into_iter().flatten().min();
                    }
                    Decision::Idle => {}
                }
                if has_done {
                    // The next node is decided on with its result.
                    break;
                }
            }
            if has_done && let Some(left) = self.crashes_after {
                self.crashes_after = left.checked_sub(1);
                if left == 0 {
                    self.restart(jiff::SignedDuration::ZERO);
                }
            }
            if !has_done {
                return recheck.into_iter().chain(self.process.inventory.next_at()).min();
            }
        }
        let phases: Vec<Record> = (0..NODES).map(|index| self.record(index)).collect();
        panic!("no rest: {phases:#?}\n{}", self.recent_log());
    }

    /// A node is not ahead of itself, and nobody is ahead of it twice.
    fn queue_is_right(&self, name: &NodeName, snapshot: &NodeSnapshot) {
        if let Admission::Queued { ahead, .. } = &snapshot.observed.admission {
            let each: BTreeSet<&NodeName> = ahead.iter().collect();
            assert!(
                !each.contains(name) && each.len() == ahead.len(),
                "{name} waits for {ahead:?}\n{}",
                self.recent_log()
            );
        }
    }

    /// A node that waits for a slot waits for another one, or until the power-offs of its own VM no longer count.
    fn slot_is_missing(&self, name: &NodeName, waiting_on: &WaitingOn) {
        if let WaitingOn::Slot { ahead, limit, .. } = waiting_on {
            assert!(
                !ahead.is_empty() || matches!(limit, SlotLimit::PowerOffs(_)),
                "{name} waits for nobody: {waiting_on}\n{}",
                self.recent_log()
            );
        }
    }

    /// Whether the node waits for a slot that another node holds.
    pub fn waits_for_other(&self, index: usize) -> bool {
        let snapshot = self.process.snapshots.get(&node_name(index));
        let decision = snapshot.map(|it| decide(&it.record, &it.observed, &self.settings.policy, self.now()));
        let is_slot = matches!(
            decision,
            Some(Decision::Wait {
                waiting_on: WaitingOn::Slot { .. },
                ..
            })
        );
        let is_away = |other: &usize| {
            let phase = self.open_episode(*other).map(|episode| episode.phase);
            phase.is_some_and(|phase| phase.is_unavailable())
        };
        is_slot
            && !self.is_grouped
            && (0..NODES)
                .filter(|other| *other != index)
                .any(|other| is_away(&other))
    }

    /// Whether power-offs of the last hour may hold up a node.
    pub fn counts_power_offs(&self) -> bool {
        self.settings.inventory.power_offs != Limit::Unlimited
    }

    /// vCenter looks up the VMs that are new in the watch set, and the urgent ones.
    fn look_up_watch_set(&mut self) {
        let watch_set = self.process.watch_set.clone();
        if self.vcenter_is_lost {
            return;
        }
        for index in 0..NODES {
            let key = VmKey::Uuid(uuid(index));
            let is_asked = watch_set.vms.contains(&key);
            let was_asked = std::mem::replace(&mut self.vms[index].is_asked_for, is_asked);
            if watch_set.urgent.contains_key(&key) || (is_asked && !was_asked) {
                let answer = self.answer(index);
                self.apply(answer);
            }
        }
    }

    fn write(&mut self, index: usize, snapshot: &NodeSnapshot, transition: &Transition) {
        let name = node_name(index);
        let phase = transition.record.phase_name();
        self.log
            .push(format!("{name}: {} -> {phase}", snapshot.record.phase_name()));
        self.end_is_right(index, snapshot, transition);
        if let Some(Phase::Draining) = transition.record.phase()
            && snapshot.record.phase().map(Phase::at_work) != Some(&Phase::Draining)
        {
            self.nodes[index].is_drained_with_guards = self.settings.policy.guards.machines;
        }
        self.drain_begins(index, snapshot, transition);
        let episode = transition.record.episode();
        let held = episode.and_then(|episode| episode.held);
        let truth = &mut self.nodes[index];
        if held.is_some_and(|held| held.point == HookPoint::PrePowerOff) {
            truth.power_off_held_since.get_or_insert(self.elapsed);
        } else if episode.is_none_or(|episode| !matches!(episode.phase.at_work(), Phase::ShuttingDown(_))) {
            truth.power_off_held_since = None;
        }
        let json = write(&transition.record, self.now().wall).episode;
        let last = LastEpisode::of(
            &snapshot.record,
            &transition.record,
            transition.ended,
            self.now().wall,
        );
        let last = last.map(|last| write_last(&last));
        if let Some(NodeMaintenanceRole::Request(_)) = transition.fulfilled.as_ref().and_then(|mark| {
            let object = self.requests.iter().find(|it| it.uid == mark.uid)?;
            Some(object.role.clone())
        }) {
            self.delete_requests(index);
        }
        if let Some(node) = self.node(index) {
            assert_eq!(
                snapshot.observed.node.as_ref().map(|node| node.resource_version),
                Some(node.resource_version),
                "decided on another version of the Node than the current one"
            );
            let unschedulable = transition.unschedulable;
            let guards = self.guard_changes(index, snapshot, transition);
            self.change_node(index, |node| {
                for (guard, is_set) in guards.all() {
                    match is_set {
                        true => node.guards.insert(guard, GuardState::Ours),
                        false => node.guards.remove(&guard),
                    };
                }
                node.annotations.episode.clone_from(&json);
                node.annotations.last_episode.clone_from(&last);
                if let Some(unschedulable) = unschedulable {
                    node.unschedulable = unschedulable;
                    node.cordoned_by = unschedulable.then(|| "haulout".to_owned());
                }
            });
        } else {
            assert!(snapshot.observed.has_copy, "a record is written nowhere");
        }
        self.copy(index, snapshot.record.episode(), transition, json);
    }

    /// Notes at a write whether hooks hold the drain that it begins, and checks that it is approved.
    fn drain_begins(&mut self, index: usize, snapshot: &NodeSnapshot, transition: &Transition) {
        let at_work = |record: &Record| record.phase().map(|phase| phase.at_work().clone());
        let (before, after) = (at_work(&snapshot.record), at_work(&transition.record));
        if after != Some(Phase::Draining) {
            self.nodes[index].drain_held_since = None;
            return;
        }
        let begins = match &before {
            None | Some(Phase::Queued | Phase::Rejoining) => true,
            Some(Phase::Drained) => transition.unschedulable.is_none(),
            Some(_) => false,
        };
        if !begins {
            let held = transition.record.episode().and_then(|episode| episode.held);
            let is_held = held.is_some_and(|held| held.point == HookPoint::PreDrain);
            if let Some(since) = self.nodes[index].drain_held_since.filter(|_| !is_held) {
                let policy = &self.settings.policy;
                let proceeds = policy.hook_timeout_action == HookTimeoutAction::Proceed
                    && self.elapsed >= since + policy.hook_timeout;
                assert!(proceeds, "a hold is forgotten\n{}", self.recent_log());
                self.nodes[index].drain_held_since = None;
            }
            return;
        }
        let hooks = self.node(index).map(|node| &node.hooks);
        let is_held = hooks.is_some_and(|hooks| hooks.contains_key(&HookPoint::PreDrain));
        self.nodes[index].drain_held_since = is_held.then_some(self.elapsed);
        let approved = self
            .node(index)
            .and_then(|node| node.annotations.approved.clone());
        let is_approved = transition
            .record
            .episode()
            .is_some_and(|episode| approved.as_deref() == Some(episode.id.as_str()));
        assert!(
            is_approved || !self.settings.policy.require_approval,
            "a drain begins without an approval\n{}",
            self.recent_log()
        );
    }

    /// A drain goes on, whatever holds the step after it: the pods that have changed are looked at.
    fn drains_go_on(&mut self) {
        let retry = self.settings.policy.retry_max + Duration::from_secs(5);
        for index in 0..NODES {
            if !self.is_drain_under_way(index) {
                self.nodes[index].unserved_since = None;
            }
            let since = self.nodes[index].unserved_since;
            assert!(
                since.is_none_or(|since| self.elapsed < since + retry),
                "no drain round since the pods changed at {since:?}\n{}",
                self.recent_log()
            );
        }
    }

    /// Whether nothing but a hold of the shutdown keeps the program from draining the node.
    fn is_drain_under_way(&self, index: usize) -> bool {
        let (truth, vm) = (&self.nodes[index], &self.vms[index]);
        let Some(episode) = self.episode(index) else {
            return false;
        };
        let is_parked_for_another = match &episode.phase {
            Phase::Parked { reason, .. } => !matches!(reason, ParkReason::Overdue { .. }),
            _ => false,
        };
        let Some(node) = self.node(index).filter(|node| node.unschedulable) else {
            return false;
        };
        let host = &self.hosts[vm.host];
        *episode.phase.at_work() == Phase::Draining
            && !is_parked_for_another
            && truth.drain_held_since.is_none()
            && self.process.draining.contains(&node_name(index))
            && node.annotations.skip.is_none()
            && node.uid == episode.node_uid
            && vm.exists
            && vm.power == PowerState::On
            && (host.entering.is_some() || host.in_maintenance)
            && !host.is_unreachable
            && !self.vcenter_is_lost
            && self.unpushed.is_empty()
    }

    /// The guards that the write changes. None that a person has set is removed, and none of ours is left at the end.
    fn guard_changes(&self, index: usize, snapshot: &NodeSnapshot, transition: &Transition) -> GuardChanges {
        let seen = snapshot.observed.node.as_ref().expect("the Node is there");
        let guards = GuardChanges::of(&snapshot.record, &transition.record, seen);
        let by_person = &self.nodes[index].guards_of_person;
        let is_taken = guards.remove.iter().any(|guard| by_person.contains(guard));
        assert!(!is_taken, "a person's guard was removed\n{}", self.recent_log());
        if transition.record == Record::InService {
            let left = seen.guards.keys().find(|guard| {
                let stays = !guards.remove.contains(guard);
                stays && !by_person.contains(guard)
            });
            assert_eq!(left, None, "a guard is left at the end\n{}", self.recent_log());
        }
        guards
    }

    /// The second copy of the record, in a NodeMaintenance.
    fn copy(
        &mut self,
        index: usize,
        before: Option<&Episode>,
        transition: &Transition,
        json: Option<String>,
    ) {
        let is_crash = self.crashes_after == Some(0);
        let Some(episode) = transition.record.episode().or(before).filter(|_| !is_crash) else {
            return;
        };
        self.versions += 1;
        let name = format!("{}-{}", node_name(index), episode.id);
        let object = NodeMaintenanceFacts {
            uid: RequestUid::new(name.clone()),
            name: name.clone(),
            resource_version: self.versions,
            generation: 1,
            created_at: self
                .copies
                .get(&name)
                .map_or(self.true_time(), |copy| copy.created_at),
            node: node_name(index),
            is_over: json.is_none(),
            role: NodeMaintenanceRole::Episode { record: json },
            status: Box::default(),
        };
        if self.copies.contains_key(&name) && self.node(index).is_some() {
            self.copies_due.insert(name, object);
        } else {
            self.copies_due.remove(&name);
            self.copies.insert(name, object.clone());
            self.push_object(object);
        }
    }

    /// The gathered changes of copies are written.
    fn write_copies(&mut self) {
        for (name, object) in std::mem::take(&mut self.copies_due) {
            self.copies.insert(name, object.clone());
            self.push_object(object);
        }
    }

    /// A process that begins writes the copies that the one before it left undone.
    fn write_missing_copies(&mut self) {
        self.write_copies();
        for index in 0..NODES {
            let last = self
                .node(index)
                .and_then(|node| node.annotations.last_episode.clone());
            let ended = last.as_deref().and_then(record::read_last);
            if let Some(ended) = ended {
                let name = format!("{}-{}", node_name(index), ended.episode.id);
                if let Some(copy) = self.copies.get_mut(&name) {
                    copy.is_over = true;
                    copy.role = NodeMaintenanceRole::Episode { record: None };
                }
            }
            let record = self.node(index).map(|_| self.record(index));
            if let Some(record @ Record::Episode(_)) = record {
                let json = write(&record, self.now().wall).episode;
                let transition = Transition {
                    record,
                    unschedulable: None,
                    ended: None,
                    fulfilled: None,
                };
                self.copy(index, None, &transition, json);
            }
        }
        self.write_copies();
    }

    /// Checks at the end of an episode and at an uncordon.
    fn end_is_right(&self, index: usize, snapshot: &NodeSnapshot, transition: &Transition) {
        let log = || self.recent_log();
        if transition.unschedulable == Some(false) {
            assert!(
                !self.nodes[index].cordoned_by_person,
                "a person's cordon was taken away\n{}",
                log()
            );
        }
        let (Some(before), Record::InService) = (snapshot.record.episode(), &transition.record) else {
            return;
        };
        assert!(
            !self.nodes[index].is_machine_guarded || !self.has_machine_rights,
            "a guard is left on the Machine\n{}",
            log()
        );
        let vm = &self.vms[index];
        let is_left_off = *before.phase.at_work() == Phase::Queued && vm.off_by_person;
        assert!(
            vm.power == PowerState::On || is_left_off,
            "an episode ended with the VM off\n{}",
            log()
        );
        if before.powered_off {
            let node = self.node(index).expect("an episode ended without a Node");
            assert!(node.ready.is_true, "back without being Ready\n{}", log());
            assert_ne!(
                node.boot_id,
                before.boot_before,
                "back on the boot before\n{}",
                log()
            );
            let resources = &self.settings.policy.gpu_resources;
            let gpus = before.gpus_before.get(GPU).filter(|_| resources.matches(GPU));
            let gpus = gpus.copied().unwrap_or(0);
            assert!(
                node.gpus.get(GPU).copied().unwrap_or(0) >= gpus,
                "back without its GPUs\n{}",
                log()
            );
            let plugin = BootId::new(format!("boot-{index}-{}", self.nodes[index].plugin_boot));
            assert!(
                gpus == 0 || self.has_forbidden_status || node.boot_id == Some(plugin.clone()),
                "back with the GPU count of {plugin:?} on {:?}\n{}",
                node.boot_id,
                log()
            );
            let driver_boot = self.nodes[index].slice.as_ref().map(|(_, boot)| *boot);
            assert!(
                !before.gpus_before.contains_key(DRIVER)
                    || !resources.matches(DRIVER)
                    || driver_boot == Some(self.vms[index].boots),
                "back before its driver: slice of boot {driver_boot:?}\n{}",
                log()
            );
        }
    }

    fn perform(&mut self, index: usize, snapshot: &NodeSnapshot, effect: &Effect) {
        let name = node_name(index);
        let at = self.now();
        self.log.push(format!(
            "{name}: {:?} in {}",
            effect.kind(),
            snapshot.record.phase_name()
        ));
        if !matches!(effect.kind(), EffectKind::DrainRound | EffectKind::ListVolumes) {
            let effects = &mut self.effects[index];
            effects.push(self.elapsed);
            let recent = effects
                .iter()
                .filter(|at| self.elapsed - **at < Duration::from_secs(600));
            let recent = recent.count() as u64;
            self.shortest_pause = self.shortest_pause.min(self.settings.policy.retry_max);
            assert!(
                recent <= MOST_EFFECTS + 600 / self.shortest_pause.as_secs(),
                "{recent} effects within ten minutes\n{}",
                self.recent_log()
            );
        }
        let is_lost = effect.kind() != EffectKind::DrainRound && self.lose_replies > 0;
        let mut outcome = self.act(index, snapshot, effect);
        if is_lost && effect.changes_something() {
            self.lose_replies -= 1;
            outcome = AttemptOutcome::Refused(EffectRefusal {
                advice: RetryAdvice::Unanswered,
                message: "the connection was lost".to_owned(),
            });
        }
        let host = effect.host().cloned();
        let found = EffectResult::Tried {
            kind: effect.kind(),
            at,
            host,
            outcome,
        };
        self.apply(Fact::Effect(EffectReport { node: name, found }));
        self.push_vm(index);
    }

    /// Executes an effect and checks that it is allowed.
    fn act(&mut self, index: usize, snapshot: &NodeSnapshot, effect: &Effect) -> AttemptOutcome {
        let log = |model: &Self| model.recent_log();
        let refused = |advice, message: &str| {
            AttemptOutcome::Refused(EffectRefusal {
                advice,
                message: message.to_owned(),
            })
        };
        match effect {
            Effect::DrainRound { pods_revision, .. } => {
                assert!(
                    self.nodes[index].drain_held_since.is_none(),
                    "pods are evicted although a hook holds the drain\n{}",
                    log(self)
                );
                self.nodes[index].unserved_since = None;
                let left = (0..self.nodes[index].pods).map(|pod| PendingEviction {
                    name: format!("ml/{pod}"),
                    why: PendingReason::Leaving,
                });
                let report = DrainReport {
                    pods_revision: *pods_revision,
                    ..drain_report(self.now().monotonic, left.collect())
                };
                let found = EffectResult::Drain(report);
                let node = node_name(index);
                self.apply(Fact::Effect(EffectReport { node, found }));
                AttemptOutcome::Done
            }
            Effect::ListVolumes => {
                let volume = AttachedVolume {
                    name: "pvc-1".to_owned(),
                    claim: None,
                };
                // Sometimes one is attached.
                let is_attached = self.elapsed.as_secs().is_multiple_of(3);
                let report = VolumeReport {
                    listed_at: self.now().monotonic,
                    attached: is_attached.then_some(volume).into_iter().collect(),
                    had_some: is_attached,
                };
                let (node, found) = (node_name(index), EffectResult::Volumes(report));
                self.apply(Fact::Effect(EffectReport { node, found }));
                AttemptOutcome::Done
            }
            Effect::Survey { hosts } => {
                for host in 0..HOSTS.len() {
                    if hosts.contains(&host_ref(host)) {
                        let reading = HostReading {
                            claims: self.holds(host),
                            vgpus: Some(Arc::new(HostVgpus {
                                profiles: [VgpuProfile::new(VGPU)].into(),
                                gpus_gib: vec![48],
                            })),
                            ..HostReading::default()
                        };
                        let found = EffectResult::Surveyed {
                            host: host_ref(host),
                            reading: HostSurvey::Read(reading),
                        };
                        let node = node_name(index);
                        self.apply(Fact::Effect(EffectReport { node, found }));
                    }
                }
                AttemptOutcome::Done
            }
            Effect::ShutdownGuest { asked_by, .. } | Effect::PowerOff { asked_by, .. }
                if !self.still_asks(asked_by) =>
            {
                refused(RetryAdvice::Retry, "it is not leaving any more")
            }
            Effect::ShutdownGuest { .. } if self.vms[index].running.is_some() => {
                refused(RetryAdvice::Retry, "another task is at work on it")
            }
            Effect::ShutdownGuest { .. } => {
                self.may_go_down(index, snapshot);
                let episode = snapshot.record.episode().map(|episode| episode.id.clone());
                let (now, timeout) = (self.elapsed, self.settings.policy.guest_shutdown_timeout);
                let vm = &mut self.vms[index];
                // In another shutdown of the episode, one whose time is over is asked again.
                let had_time = |(_, at): &(EpisodeId, Duration)| now >= *at + timeout;
                let had_time = vm.asked_at.as_ref().is_some_and(had_time);
                let is_again = vm.going_down && vm.asked_in == episode && !had_time;
                vm.asked_at = episode.clone().map(|episode| (episode, now));
                // Nobody knows of a request whose process crashed before it was recorded, or whose reply was lost: it is made again,
                // because a guest that is not asked at all loses its power without a shutdown.
                let is_known = self.crashes_after != Some(0) && self.lose_replies == 0;
                vm.asked_in = episode.filter(|_| is_known);
                vm.going_down |= vm.power == PowerState::On;
                if vm.asked_in.is_some() {
                    vm.has_time_until = self.elapsed + self.settings.policy.guest_shutdown_timeout;
                }
                assert!(!is_again, "a guest on its way down is asked again\n{}", log(self));
                AttemptOutcome::Asked
            }
            Effect::PowerOff { .. } => {
                self.may_go_down(index, snapshot);
                self.guest_had_its_time(index, snapshot);
                let vm = &self.vms[index];
                // A record that was removed knows nothing of the request.
                let is_asked = snapshot.record.episode().map(|it| &it.id) == vm.asked_in.as_ref();
                assert!(
                    !vm.going_down || !is_asked || self.elapsed + SLACK >= vm.has_time_until,
                    "power cut before the guest had its time\n{}",
                    log(self)
                );
                self.start(index, "VirtualMachine.powerOff", Work::PowerOff)
            }
            Effect::Relocate { to, .. } => {
                assert_eq!(self.vms[index].power, PowerState::Off, "a VM that runs is moved");
                let to = (0..HOSTS.len()).find(|host| host_ref(*host) == *to).unwrap();
                let is_refused = snapshot.record.episode().is_some_and(|episode| {
                    let has_refused = episode
                        .refusals
                        .iter()
                        .any(|refusal| refusal.host == host_ref(to));
                    has_refused && episode.host.moref != Some(host_ref(to))
                });
                assert!(!is_refused, "moved to a host that has refused it\n{}", log(self));
                self.start(index, "VirtualMachine.relocate", Work::Relocate(to))
            }
            Effect::Reconfigure { host, devices, .. } => {
                let here = self.vms[index].host;
                assert_eq!(*host, host_ref(here), "reconfigured for another host");
                assert!(devices.len() == 1 && devices[0].to == DEVICE, "{devices:?}");
                let episode = snapshot.record.episode().expect("an effect without an episode");
                assert!(
                    !episode.home_devices.is_empty(),
                    "reconfigured before its own devices were recorded\n{}",
                    log(self)
                );
                match self.vms[index].device_of {
                    None => panic!("the devices of a VM without fixed devices are changed"),
                    Some(of) if of == here => AttemptOutcome::Done,
                    Some(_) => self.start(index, "VirtualMachine.reconfigure", Work::Reconfigure(here)),
                }
            }
            Effect::SetMachineGuards { .. } => {
                self.nodes[index].is_machine_guarded |= self.has_machine_rights;
                // Without the right, the maintenance goes on without guards.
                self.nodes[index].is_drained_with_guards &= self.has_machine_rights;
                if self.lose_replies == 0 {
                    let object = GuardedObject {
                        kind: GuardedKind::Machine,
                        namespace: "capi".to_owned(),
                        name: format!("machine-{index}"),
                    };
                    let report = MachineGuardReport {
                        at: self.now().monotonic,
                        objects: self.has_machine_rights.then(|| vec![object]),
                    };
                    let found = EffectResult::MachineGuarded(report);
                    let node = node_name(index);
                    self.apply(Fact::Effect(EffectReport { node, found }));
                }
                AttemptOutcome::Done
            }
            Effect::RemoveMachineGuards { guards, .. } => {
                assert!(!guards.is_empty(), "no guards are removed\n{}", log(self));
                if !self.has_machine_rights && !guards.objects.is_empty() {
                    return refused(RetryAdvice::Person, "HTTP 403");
                }
                self.nodes[index].is_machine_guarded &= !self.has_machine_rights;
                AttemptOutcome::Done
            }
            Effect::ClearGpus {
                node,
                boot,
                resources,
                ..
            } => {
                let episode = snapshot.record.episode().expect("an effect without an episode");
                assert!(
                    episode.powered_off,
                    "GPU counts are cleared before the VM was off\n{}",
                    log(self)
                );
                assert_eq!(*resources, BTreeSet::from([GPU.to_owned()]), "{}", log(self));
                let is_it = |seen: &NodeFacts| seen.uid == *node && seen.boot_id == *boot;
                if self.forbids_status {
                    refused(RetryAdvice::Person, "nodes/status is forbidden")
                } else if self.node(index).is_none_or(|seen| !is_it(seen)) {
                    refused(RetryAdvice::Retry, "the Node has changed")
                } else {
                    self.change_node(index, |node| {
                        node.gpus = Arc::default();
                        node.gpu_capacity = Arc::default();
                    });
                    AttemptOutcome::Done
                }
            }
            Effect::PowerOn { place, .. } => {
                let keeps_off = self.requests.iter().any(|it| {
                    let asks_off = matches!(
                        &it.role,
                        NodeMaintenanceRole::Request(asked) if asked.action == kubernetes::RequestAction::PowerOff
                    );
                    it.node == node_name(index) && asks_off
                });
                assert!(
                    !keeps_off,
                    "powered on although a request keeps it off\n{}",
                    log(self)
                );
                let taint = self
                    .node(index)
                    .and_then(|node| node.guards.get(&NodeGuard::OutOfServiceTaint));
                assert!(
                    taint != Some(&GuardState::Ours),
                    "powered on under the out-of-service taint\n{}",
                    log(self)
                );
                match (place, self.vms[index].power) {
                    (_, PowerState::On | PowerState::Suspended) => AttemptOutcome::Done,
                    (PowerOnTarget::Drs, PowerState::Off) => {
                        refused(RetryAdvice::OtherHost, "there is no DRS here")
                    }
                    (PowerOnTarget::Host(host), PowerState::Off) => {
                        let here = self.vms[index].host;
                        assert_eq!(*host, host_ref(here), "powered on where it does not stand");
                        // Without a record nothing can be done but this.
                        let is_recorded = snapshot.observed.has_copy || snapshot.observed.node.is_some();
                        let device_of = self.vms[index].device_of.filter(|_| is_recorded);
                        assert!(
                            device_of.is_none_or(|of| of == here),
                            "powered on with the device address of another host\n{}",
                            log(self)
                        );
                        self.start(index, "VirtualMachine.powerOn", Work::PowerOn(here))
                    }
                }
            }
        }
    }

    /// The last read before the call: vCenter's state, pushed or not.
    fn still_asks(&self, asked_by: &PowerOffCause) -> bool {
        let PowerOffCause::Host { host, task } = asked_by else {
            return true;
        };
        let index = (0..HOSTS.len()).find(|index| host_ref(*index) == *host).unwrap();
        let truth = &self.hosts[index];
        let is_it = |entering: &(TaskRef, Timestamp)| task.as_ref().is_none_or(|task| *task == entering.0);
        truth.in_maintenance || truth.entering.as_ref().is_some_and(is_it)
    }

    /// The GPU of a host, as a device and as a vGPU, by each VM that holds it.
    fn holds(&self, host: usize) -> Vec<Claim> {
        let of_ours = self.vms.iter().enumerate().filter(|(_, vm)| vm.host == host);
        let ours = of_ours.map(|(index, vm)| {
            let device = match vm.device_of {
                Some(_) => ClaimedDevice::Address(DEVICE.to_owned()),
                None => ClaimedDevice::AnyOf(of_model(GPU_IDS)),
            };
            (vm_ref(index), device)
        });
        let address = ClaimedDevice::Address(DEVICE.to_owned());
        let other = self.hosts[host]
            .is_taken
            .then(|| (VmRef::new("vm-of-another"), address));
        let holders = ours.chain(other);
        let both = holders.flat_map(|(vm, device)| {
            let vgpu = ClaimedDevice::Vgpu(VgpuProfile::new(VGPU));
            [device, vgpu].map(|device| Claim {
                vm: vm.clone(),
                device,
            })
        });
        both.collect()
    }

    /// A VM may be shut down only if that is requested, on a cordoned node without unknown pods.
    fn may_go_down(&self, index: usize, snapshot: &NodeSnapshot) {
        let log = || self.recent_log();
        assert!(
            self.is_cordoned(index),
            "power cut on a schedulable node\n{}",
            log()
        );
        let host = &self.hosts[self.vms[index].host];
        let is_asked = self.requests.iter().any(|it| it.node == node_name(index));
        assert!(
            host.entering.is_some() || host.in_maintenance || is_asked,
            "power cut although nothing asks for it\n{}",
            log()
        );
        assert!(
            self.nodes[index].is_machine_guarded
                || !self.settings.policy.guards.machines
                || !self.nodes[index].is_drained_with_guards
                || !self.has_machine_rights,
            "power cut without guards on the Machine\n{}",
            log()
        );
        let hooks = self.node(index).map(|node| &node.hooks);
        let policy = &self.settings.policy;
        let held_since = self.nodes[index].power_off_held_since;
        let proceeds = policy.hook_timeout_action == HookTimeoutAction::Proceed
            && held_since.is_some_and(|since| self.elapsed >= since + policy.hook_timeout);
        assert!(
            hooks.is_none_or(|hooks| !hooks.contains_key(&HookPoint::PrePowerOff))
                || self.nodes[index].is_hooked_late
                || proceeds
                || self.was_asked(index, snapshot),
            "power cut although a hook holds it\n{}",
            log()
        );
        let timed_out = snapshot
            .record
            .phase()
            .is_some_and(|phase| *phase.at_work() == Phase::ShuttingDown(DrainEnd::TimedOut));
        let has_notice = self.elapsed + SLACK >= self.nodes[index].has_notice_until;
        assert!(
            self.nodes[index].pods == 0 || has_notice,
            "power cut on pods as soon as other settings allowed it\n{}",
            log()
        );
        assert!(
            self.nodes[index].pods == 0 || timed_out,
            "power cut on {} pods\n{}",
            self.nodes[index].pods,
            log()
        );
    }

    /// Whether the guest was asked in this episode before. The step was made then, also under settings that let it through.
    fn was_asked(&self, index: usize, snapshot: &NodeSnapshot) -> bool {
        let episode = snapshot.record.episode().map(|episode| &episode.id);
        let asked = self.vms[index].asked_at.as_ref();
        asked.is_some_and(|(asked_in, _)| Some(asked_in) == episode)
    }

    /// Power may be cut only if the guest had its whole time since it was really asked in this episode: it always can be here.
    fn guest_had_its_time(&self, index: usize, snapshot: &NodeSnapshot) {
        let episode = snapshot.record.episode().map(|episode| &episode.id);
        let asked_at = self.vms[index].asked_at.as_ref();
        let asked_at = asked_at.filter(|(asked_in, _)| Some(asked_in) == episode);
        let had = asked_at.map(|(_, at)| self.elapsed - *at);
        assert!(
            self.vms[index].power == PowerState::Off
                || had.is_some_and(|had| had >= self.settings.policy.guest_shutdown_timeout),
            "power cut {had:?} after the guest was asked\n{}",
            self.recent_log()
        );
    }

    /// Starts a task, unless the VM has one.
    fn start(&mut self, index: usize, what: &str, work: Work) -> AttemptOutcome {
        if let Some((running, other)) = &self.vms[index].running {
            return if std::mem::discriminant(other) == std::mem::discriminant(&work) {
                AttemptOutcome::Running(running.clone())
            } else {
                AttemptOutcome::Refused(EffectRefusal {
                    advice: RetryAdvice::Retry,
                    message: "another task is at work on it".to_owned(),
                })
            };
        }
        let task = self.push_task(index, what, TaskState::Running, true);
        self.vms[index].running = Some((task.clone(), work));
        AttemptOutcome::Running(task)
    }
}
