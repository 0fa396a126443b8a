//! Everything outside of the controller, and the queue of what happens there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use tokio::sync::{Notify, watch};

use crate::account::Account;
use crate::clock;
use crate::cluster::Workload;
use crate::cluster_faults::Manifest;
use crate::faults::{Fate, Fault, Faults};
use crate::garbled::GarbledReplies;
use crate::late::LateRequests;
use crate::oracle::{NodeMemory, Oracle};
use crate::outage::QuietOutage;
use crate::people::Deed;
use crate::plan::{Plan, Settings};
use crate::sentinels::RequiredReboot;
use crate::soap::{RefusedLogins, Sessions};
use crate::store::{Key, Snapshot, Store};
use crate::story::Story;
use crate::twin::MaintenancesInTurn;
use crate::vcenter::{Host, Vcenter, Vm};

/// The world, as the connections of the replicas share it.
pub type Shared = Arc<Mutex<World>>;

/// Locks the world. A panic in it ends the run anyway.
pub fn lock(world: &Shared) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What happens at a time.
#[derive(Clone, Debug)]
pub enum WorldEvent {
    /// A task of vCenter ends.
    TaskEnds(usize),
    /// A host without running VMs enters maintenance mode.
    HostEnters {
        host: usize,
        task: usize,
    },
    /// DRS moves VMs away.
    DrsEvacuates(usize),
    /// vSphere HA restarts a VM.
    HaRestarts(usize),
    /// A person answers the question of a VM.
    QuestionIsAnswered(usize),
    /// A guest has shut down.
    GuestIsOff {
        vm: usize,
        boots: u32,
    },
    /// A Node without a kubelet is not Ready.
    NodeUnknown {
        node: usize,
        /// The boot of its VM.
        boots: u32,
    },
    KubeletStarts {
        node: usize,
        /// The boot of its VM.
        boots: u32,
    },
    /// The GPU is allocatable.
    GpuIsBack {
        node: usize,
        /// The boot of its VM.
        boots: u32,
    },
    /// Pods are created and bound.
    Schedule,
    PodBound {
        pod: Key,
        node: usize,
    },
    PodRuns(Key),
    /// A kubelet writes its status, changed or not.
    StatusIsDue(usize),
    /// The containers of a pod end.
    PodEnds(Key),
    /// A kubelet is done with a pod.
    PodIsDone(Key),
    /// Nothing keeps a deleted Pod any more.
    FinalizerIsGone(Key),
    /// A person does something.
    Deed(Deed),
    /// A fault that does not concern one request.
    Fault(Fault),
    /// vCenter reaches a host again.
    HostResponds(usize),
    /// A late request arrives.
    RequestArrives(u64),
    /// A kubelet is Ready again.
    ReadyIsBack {
        node: usize,
        /// The boot of its VM.
        boots: u32,
    },
    /// The driver manager uncordons a node after its boot.
    DriverUncordons {
        node: usize,
        /// The boot of its VM.
        boots: u32,
    },
    /// A deleted Node is created again from its manifest.
    ManifestIsApplied,
    /// etcd is restored from the snapshot that was taken.
    EtcdIsRestored,
    /// A Node has its label again.
    LabelIsBack(usize),
    /// A kubelet registers its Node, if that is missing.
    NodeRegisters(usize),
    /// vCenter has to be used again after an outage.
    OutageIsOver(QuietOutage),
    /// The next step of maintenances one after the other.
    NextInTurn,
    /// The drains of a run without faults are looked at.
    LookAtDrains,
    /// Faults and deeds end.
    Calm,
}

/// What happens later.
#[derive(Debug)]
pub struct Queue {
    events: BTreeMap<(Duration, u64), WorldEvent>,
    added: u64,
    /// How many times faster than real ones peers work.
    speed: u32,
    /// Wakes the driver when there is an earlier event.
    pub wake: Arc<Notify>,
}

impl Queue {
    fn new(speed: u32) -> Self {
        Self {
            events: BTreeMap::new(),
            added: 0,
            speed,
            wake: Arc::default(),
        }
    }

    /// Adds an event.
    pub fn after(&mut self, after: Duration, event: WorldEvent) {
        self.added += 1;
        let at = clock::elapsed() + after / self.speed;
        self.events.insert((at, self.added), event);
        self.wake.notify_one();
    }

    /// When the next event is due.
    pub fn next(&self) -> Option<Duration> {
        self.events.keys().next().map(|(at, _)| *at)
    }

    /// Takes the next event, if it is due.
    pub fn take(&mut self) -> Option<WorldEvent> {
        let (at, _) = *self.events.keys().next()?;
        if at > clock::elapsed() {
            return None;
        }
        self.events.pop_first().map(|(_, event)| event)
    }
}

/// What a replica is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// The kube-apiserver.
    Kubernetes,
    /// vCenter.
    Vcenter,
}

/// Until when a replica reaches neither peer, or one of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct CutOff {
    /// The kube-apiserver.
    pub kubernetes_until: Duration,
    /// vCenter.
    pub vcenter_until: Duration,
}

/// How the life of a replica is changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// How many times it was killed.
    pub kills: u64,
    /// How many times it was asked to stop.
    pub stops: u64,
}

/// Everything outside of the controller.
#[derive(Debug)]
pub struct World {
    /// What the seed has decided.
    pub plan: Plan,
    /// The random numbers of the world.
    pub rng: Rng,
    /// What happens later.
    pub queue: Queue,
    /// vCenter.
    pub vcenter: Vcenter,
    /// The sessions of vCenter.
    pub sessions: Sessions,
    /// The number of logins.
    pub logins: usize,
    /// The objects of Kubernetes.
    pub kube: Store,
    pub workloads: Vec<Workload>,
    /// Pods are going to be bound.
    pub is_scheduling: bool,
    /// The number of requests of people.
    pub requests: usize,
    pub faults: Faults,
    /// The rules.
    pub oracle: Oracle,
    /// What happened.
    pub story: Story,
    /// How often.
    pub account: Account,
    /// Which replicas are cut off.
    pub cut_off: Vec<CutOff>,
    /// Requests that arrive late.
    pub late: LateRequests,
    /// Replies that were garbled.
    pub garbled: GarbledReplies,
    /// When the requests of people may begin, by name.
    pub requests_from: BTreeMap<String, Duration>,
    /// The reboot that the sentinel asked for.
    pub sentinel: Option<RequiredReboot>,
    pub manifests: Vec<Manifest>,
    /// The logins that vCenter refuses.
    pub refused_logins: RefusedLogins,
    /// The snapshot of etcd, with what the rules remembered then.
    pub snapshot: Option<(Snapshot, Vec<NodeMemory>)>,
    /// The maintenances that are compared with those of a run without faults.
    pub in_turn: MaintenancesInTurn,
    /// The orders to each replica.
    pub orders: Vec<watch::Sender<Orders>>,
    /// Whether a replica has listed the NodeMaintenances since it started.
    pub has_listed: Vec<bool>,
    /// Whether the next process of each replica has the other settings.
    pub has_other_settings: Vec<bool>,
    /// Whether its present process has them.
    pub runs_other_settings: Vec<bool>,
}

impl World {
    /// The world of a plan.
    pub fn new(plan: Plan, rng: Rng, story: Story) -> Self {
        let mut world = Self {
            faults: plan.faults.clone(),
            rng,
            queue: Queue::new(plan.speed),
            vcenter: Vcenter::new(),
            sessions: Sessions::new(),
            logins: 0,
            kube: Store::default(),
            workloads: Vec::new(),
            is_scheduling: false,
            requests: 0,
            oracle: Oracle::default(),
            story,
            account: Account::default(),
            cut_off: vec![CutOff::default(); plan.replicas],
            late: LateRequests::default(),
            garbled: GarbledReplies::default(),
            requests_from: BTreeMap::new(),
            sentinel: None,
            manifests: Vec::new(),
            refused_logins: RefusedLogins::default(),
            snapshot: None,
            in_turn: MaintenancesInTurn::default(),
            orders: (0..plan.replicas).map(|_| watch::Sender::default()).collect(),
            has_listed: vec![false; plan.replicas],
            has_other_settings: vec![false; plan.replicas],
            runs_other_settings: vec![false; plan.replicas],
            plan,
        };
        world.populate();
        world.plan_workloads();
        world.plan_deeds();
        world.plan_statuses();
        world.plan_holds();
        world.plan_sentinel();
        world.plan_overrides();
        world.plan_incidents();
        world.plan_in_turn();
        world.queue.after(world.plan.active, WorldEvent::Calm);
        world
    }

    fn populate(&mut self) {
        let Plan {
            nodes,
            spares,
            others,
            has_vgpus,
            ..
        } = self.plan;
        self.vcenter.has_vgpus = has_vgpus;
        for host in 0..nodes + spares {
            self.vcenter.hosts.push(Host {
                name: format!("esx-{host}.example.com"),
                connected: true,
                in_maintenance: false,
                entering: None,
                tasks: Vec::new(),
            });
        }
        for index in 0..nodes + others {
            let is_ours = index < nodes;
            let name = if is_ours {
                format!("gpu-{index}")
            } else {
                format!("other-{index}")
            };
            let host = if is_ours {
                index
            } else {
                self.rng.usize(0..nodes + spares)
            };
            self.vcenter.vms.push(Vm {
                name,
                uuid: format!("42000000-0000-4000-8000-{index:012}"),
                host,
                on: true,
                boots: 1,
                off_since: Duration::ZERO,
                off_by_person: false,
                locked_until: std::time::Duration::ZERO,
                kubelet: 1,
                plugin: 1,
                is_ours,
                has_gpu: is_ours,
                crashed: false,
                asks: false,
                going_down: false,
                tools_stopped: false,
                tasks: Vec::new(),
            });
        }
        self.oracle.nodes = vec![NodeMemory::default(); nodes];
        for node in 0..nodes {
            self.add_node(node);
        }
    }

    fn plan_workloads(&mut self) {
        let nodes = self.plan.nodes;
        if !self.plan.has_workloads {
            return;
        }
        for index in 0..self.rng.usize(1..=nodes) {
            let replicas = self.rng.usize(1..=4);
            let has_budget = self.rng.u32(0..10) < 4 && replicas > 1;
            // A node that is drained because a tenant asks for it could make pods of another one wait for their budget.
            let budget = (has_budget && self.plan.in_turn.is_empty()).then(|| replicas - 1);
            self.add_workload(Workload::new(format!("app-{index}"), replicas, budget));
        }
        if self.plan.has_pinned_pod {
            let mut workload = Workload::new("pinned".to_owned(), 1, None);
            workload.pinned = Some(self.rng.usize(0..nodes));
            self.add_workload(workload);
        }
    }

    /// The time of a request or a reply on the network.
    pub fn latency(&mut self) -> Duration {
        Duration::from_micros(self.rng.u64(200..4_000))
    }

    /// Adds a line to the story.
    pub fn tell(&mut self, who: impl AsRef<str>, what: impl AsRef<str>) {
        self.story.tell(clock::elapsed(), who.as_ref(), what.as_ref());
    }

    /// Whether a replica does not reach a peer.
    pub fn is_cut_off(&self, replica: usize, peer: Peer) -> bool {
        let until = match peer {
            Peer::Kubernetes => self.cut_off[replica].kubernetes_until,
            Peer::Vcenter => self.cut_off[replica].vcenter_until,
        };
        clock::elapsed() < until
    }

    /// The settings of the plan, or the other ones.
    pub fn settings_of(&self, is_other: bool) -> &Settings {
        if is_other {
            &self.plan.other_settings
        } else {
            &self.plan.settings
        }
    }

    /// Whether faults and deeds have ended.
    pub fn faults_are_over(&self) -> bool {
        clock::elapsed() >= self.plan.active
    }

    /// A replica has sent a request.
    pub fn asked(&mut self, replica: usize, whom: &str, line: &str, fate: Fate) {
        self.count_request(replica);
        let (at, who) = (clock::elapsed(), format!("replica-{replica}"));
        if fate == Fate::Answered {
            self.has_listed[replica] |= line.starts_with("GET nodemaintenances");
            self.story.request(at, &who, &format!("asks {whom}: {line}"));
        } else {
            self.story
                .tell(at, &who, &format!("asks {whom}: {line}: {fate:?}"));
        }
    }

    pub fn happens(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::TaskEnds(task) => self.task_ends(task),
            WorldEvent::HostEnters { host, task } => self.host_enters(host, task),
            WorldEvent::DrsEvacuates(host) => self.drs_evacuates(host),
            WorldEvent::HaRestarts(vm) => self.ha_restarts(vm),
            WorldEvent::QuestionIsAnswered(vm) => self.question_is_answered(vm),
            WorldEvent::GuestIsOff { vm, boots } => self.guest_is_off(vm, boots),
            WorldEvent::NodeUnknown { node, boots } => self.node_unknown(node, boots),
            WorldEvent::KubeletStarts { node, boots } => self.kubelet_starts(node, boots),
            WorldEvent::GpuIsBack { node, boots } => self.gpu_is_back(node, boots),
            WorldEvent::StatusIsDue(node) => self.status_is_due(node),
            WorldEvent::Schedule => self.schedule(),
            WorldEvent::PodBound { pod, node } => self.pod_bound(&pod, node),
            WorldEvent::PodRuns(pod) => self.pod_runs(&pod),
            WorldEvent::PodEnds(pod) => self.pod_ends(&pod),
            WorldEvent::PodIsDone(pod) => self.pod_is_done(&pod),
            WorldEvent::FinalizerIsGone(pod) => self.finalizer_is_gone(&pod),
            WorldEvent::Deed(deed) => self.deed(deed),
            WorldEvent::Fault(fault) => self.fault(fault),
            WorldEvent::HostResponds(host) => self.host_responds(host),
            WorldEvent::RequestArrives(request) => self.request_arrives(request),
            WorldEvent::ReadyIsBack { node, boots } => self.ready_is_back(node, boots),
            WorldEvent::DriverUncordons { node, boots } => self.driver_uncordons(node, boots),
            WorldEvent::ManifestIsApplied => self.manifest_is_applied(),
            WorldEvent::EtcdIsRestored => self.etcd_is_restored(),
            WorldEvent::LabelIsBack(node) => self.set_label(node, true),
            WorldEvent::NodeRegisters(node) => {
                self.register_node(node);
            }
            WorldEvent::OutageIsOver(outage) => self.check_outage(outage),
            WorldEvent::NextInTurn => self.next_in_turn(),
            WorldEvent::LookAtDrains => self.look_at_drains(),
            WorldEvent::Calm => {
                self.tell("world", "faults and deeds end");
                self.faults.is_calm = true;
                self.repair();
                self.people_rest();
            }
        }
    }
}
