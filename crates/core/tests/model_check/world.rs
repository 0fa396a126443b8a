//! The world of the model check: hosts, VMs, kubelets, pods and Node objects, two replicas, and the requests between them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use haulout_core::facts::kubernetes::{KubernetesUpdate, NodeFacts};
use haulout_core::facts::node_guard::GuardState;
use haulout_core::facts::vsphere::{
    DetectionSignal, EnteringMaintenance, LookupUrgency, MaintenanceEnd, PowerState, Task, TaskState, VmKey,
    VsphereUpdate,
};
use haulout_core::fixtures::{
    at, found, host, host_ref, inventory_settings, name, node_facts, synced, uuid, vm_facts, vm_ref,
};
use haulout_core::ids::{BootId, NodeName, TaskRef};
use haulout_core::inventory::{Fact, Inventory};
use haulout_core::maintenance::clock::{Deadline, Monotonic, Now, wall_after};
use haulout_core::maintenance::effect::{EffectKind, PowerOffCause};
use haulout_core::maintenance::effect_report::{EffectReport, EffectResult};
use haulout_core::maintenance::episode::Record;
use haulout_core::maintenance::node_guard::GuardChanges;
use haulout_core::maintenance::observed::{AttemptOutcome, LeadershipEpoch, NodeSnapshot};
use jiff::{SignedDuration, Timestamp};

use crate::{Controls, Limits};

pub const NODES: usize = 2;

/// How long after a takeover a request of the previous leader may still arrive. A new leader waits as long before its first effect.
pub const IN_TRANSIT_MAX: Duration = Duration::from_secs(5);

/// The time at which a search begins. It is not 0, so that times are written in seconds from the start.
const BEGAN: Duration = Duration::from_secs(1_000);

/// vCenter keeps the recent tasks of a VM only.
const RECENT_TASKS: usize = 4;

/// The kind of a task on a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    PowerOff,
    PowerOn,
}

/// A node: its Node object, its pods, its VM and its host.
#[derive(Clone)]
pub struct NodeTruth {
    pub object: NodeFacts,
    pub record: Record,
    /// Pods that have to be drained before the power may be cut.
    pub pods: u8,
    /// Pods that came when a power cut was on its way already, because a person had uncordoned the Node or their binding was in
    /// flight. No check before the cut can know of them.
    pub late_pods: u8,
    /// How many of them were evicted and are terminating.
    pub leaving: u8,
    /// A person cordoned it, and no person has uncordoned it since.
    pub is_cordoned_by_person: bool,
    /// The latest uncordon was a person's.
    pub is_uncordoned_by_person: bool,
    pub entering: Option<(TaskRef, Timestamp)>,
    pub in_maintenance: bool,
    pub last_end: Option<MaintenanceEnd>,
    pub last_exit: Option<TaskRef>,
    pub is_on: bool,
    pub boots: u8,
    /// When the guest accepted a shutdown that has not ended yet.
    pub going_down: Option<Duration>,
    /// The power cut that the VM is subject to follows a drain timeout, which allows pods.
    pub may_have_pods: bool,
    pub running: Option<(TaskRef, Work)>,
    pub tasks: Vec<Task>,
    tasks_made: u8,
}

/// A request of a replica that has not arrived yet.
#[derive(Clone)]
pub struct Sent {
    pub replica: usize,
    /// The process that gets the reply, if it still runs.
    pub process: u8,
    pub node: usize,
    pub at: Now,
    pub request: Request,
}

#[derive(Clone)]
pub enum Request {
    Patch(Arc<Patch>),
    Cut { kind: EffectKind, may_have_pods: bool },
    PowerOn,
}

/// A PATCH of a Node.
pub struct Patch {
    pub resource_version: u64,
    pub record: Record,
    pub episode: Option<String>,
    pub last_episode: Option<String>,
    pub unschedulable: Option<bool>,
    pub guards: GuardChanges,
}

/// One replica: what its process knows.
#[derive(Clone)]
pub struct Replica {
    pub process: u8,
    inventory: Arc<Inventory>,
    pub snapshots: BTreeMap<NodeName, Arc<NodeSnapshot>>,
    looked_up: BTreeMap<VmKey, LookupUrgency>,
    /// There are changes of Nodes, or of vCenter, that it has not seen.
    pub nodes_behind: bool,
    pub vcenter_behind: bool,
    /// Such a change was lost: it is not delivered before the next one.
    pub nodes_lost: bool,
    pub vcenter_lost: bool,
}

/// How often each kind of event has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    pub enters: u8,
    pub cancels: u8,
    pub crashes: u8,
    pub losses: u8,
    pub cordons: u8,
    pub uncordons: u8,
    pub slips: u8,
    pub pods: u8,
    pub clock_steps: u8,
    pub waits: u8,
}

impl Used {
    /// All that is not the usual course of a maintenance.
    pub fn faults(self) -> u8 {
        self.cancels
            + self.crashes
            + self.losses
            + self.cordons
            + self.uncordons
            + self.slips
            + self.clock_steps
    }
}

#[derive(Clone)]
pub struct State {
    pub nodes: [Arc<NodeTruth>; NODES],
    pub replicas: [Replica; 2],
    pub leader: usize,
    pub epoch: u64,
    pub in_transit: Vec<Sent>,
    /// When the requests of the previous leader have arrived.
    pub old_requests_until: Duration,
    pub elapsed: Duration,
    /// How far the wall clocks of the replicas are from the true time.
    pub offset: SignedDuration,
    versions: u64,
    processes: u8,
    pub used: Used,
    pub limits: Limits,
    pub controls: Controls,
}

impl NodeTruth {
    fn new(n: usize) -> Self {
        let mut object = node_facts(n);
        // Placement on other hosts is not part of this model.
        object.annotations.strategy = Some("wait".to_owned());
        object.boot_id = Some(BootId::new("boot-1"));
        Self {
            object,
            record: Record::InService,
            pods: 1,
            late_pods: 0,
            leaving: 0,
            is_cordoned_by_person: false,
            is_uncordoned_by_person: false,
            entering: None,
            in_maintenance: false,
            last_end: None,
            last_exit: None,
            is_on: true,
            boots: 1,
            going_down: None,
            may_have_pods: false,
            running: None,
            tasks: Vec::new(),
            tasks_made: 0,
        }
    }

    pub fn takes_vms(&self) -> bool {
        self.entering.is_none() && !self.in_maintenance
    }

    pub fn boot_id(&self) -> BootId {
        BootId::new(format!("boot-{}", self.boots))
    }

    /// The kubelet of this boot has not reported yet.
    pub fn is_kubelet_late(&self) -> bool {
        self.is_on
            && self.going_down.is_none()
            && (!self.object.ready.is_true || self.object.boot_id != Some(self.boot_id()))
    }

    pub fn new_task(&mut self, of: &str, n: usize) -> TaskRef {
        self.tasks_made += 1;
        TaskRef::new(format!("{of}-{n}-{}", self.tasks_made))
    }

    pub fn goes_off(&mut self) {
        self.is_on = false;
        self.going_down = None;
        (self.pods, self.late_pods, self.leaving) = (0, 0, 0);
    }

    /// The last read before a power cut: whether the cause still exists.
    pub fn still_asks(&self, n: usize, asked_by: &PowerOffCause) -> bool {
        let PowerOffCause::Host { host, task } = asked_by else {
            return true;
        };
        let is_it = |(entering, _): &(TaskRef, Timestamp)| task.as_ref().is_none_or(|task| task == entering);
        *host == host_ref(n) && (self.in_maintenance || self.entering.as_ref().is_some_and(is_it))
    }

    fn vcenter_facts(&self, n: usize) -> Vec<Fact> {
        let mut host = host(n);
        host.in_maintenance = Some(self.in_maintenance);
        host.last_end.clone_from(&self.last_end);
        host.last_exit.clone_from(&self.last_exit);
        host.entering = self
            .entering
            .as_ref()
            .map(|(task, queued_at)| EnteringMaintenance {
                task: task.clone(),
                queued_at: *queued_at,
                user: None,
                signal: DetectionSignal::Push,
            });
        let mut vm = vm_facts(n);
        vm.power = Some(if self.is_on {
            PowerState::On
        } else {
            PowerState::Off
        });
        vm.tools_running = Some(self.is_on && self.going_down.is_none());
        let own = [VsphereUpdate::Host(Arc::new(host)), VsphereUpdate::Vm(vm)];
        let tasks = self.tasks.iter().cloned().map(VsphereUpdate::Task);
        own.into_iter().chain(tasks).map(Fact::Vsphere).collect()
    }

    fn node_fact(&self) -> Fact {
        Fact::Kubernetes(KubernetesUpdate::Node(Box::new(self.object.clone())))
    }
}

/// Without what grows with the number of writes and what is only displayed.
impl fmt::Debug for NodeTruth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = &self.object;
        let truth = (self.pods, self.late_pods, self.leaving, self.may_have_pods);
        let persons = (self.is_cordoned_by_person, self.is_uncordoned_by_person);
        write!(
            f,
            "{truth:?} {persons:?} {} {:?}",
            node.unschedulable, node.cordoned_by
        )?;
        write!(f, " {:?} {} {:?}", node.boot_id, node.ready.is_true, node.guards)?;
        write!(
            f,
            " {:?} {}",
            self.record,
            node.annotations.last_episode.is_some()
        )?;
        let host = (
            &self.entering,
            self.in_maintenance,
            &self.last_end,
            &self.last_exit,
        );
        write!(f, " {host:?} {} {} {:?}", self.is_on, self.boots, self.going_down)?;
        write!(f, " {:?} {:?}", self.running, self.tasks)
    }
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.node)?;
        match &self.request {
            Request::Patch(patch) => write!(f, "{:?} {:?}", patch.record, patch.unschedulable),
            Request::Cut { kind, may_have_pods } => write!(f, "{kind:?} {may_have_pods}"),
            Request::PowerOn => write!(f, "on"),
        }
    }
}

/// The part that later steps depend on. The resource versions are left out: whether a replica or a request has the current one
/// follows from what it has not seen, and from the record.
impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} {} {:?} {:?}",
            self.nodes, self.leader, self.elapsed, self.offset
        )?;
        let has_old = self.in_transit.iter().any(|sent| !self.is_of_leader(sent));
        let until = has_old.then_some(self.old_requests_until);
        write!(f, " {:?} {until:?}", self.used)?;
        for sent in &self.in_transit {
            write!(
                f,
                " {sent:?} {} {}",
                self.is_of_leader(sent),
                self.is_current(sent)
            )?;
        }
        let knows_matter = |index: &usize| *index == self.leader || self.may_take_over();
        for replica in (0..2).filter(knows_matter).map(|index| &self.replicas[index]) {
            let behind = (replica.nodes_behind, replica.vcenter_behind);
            write!(f, " {behind:?} {} {}", replica.nodes_lost, replica.vcenter_lost)?;
            for snapshot in replica.snapshots.values() {
                write!(f, " {snapshot:?}")?;
            }
        }
        Ok(())
    }
}

impl Replica {
    fn new(process: u8, began: Timestamp) -> Self {
        Self {
            process,
            inventory: Arc::new(Inventory::new(inventory_settings(), began)),
            snapshots: BTreeMap::new(),
            looked_up: BTreeMap::new(),
            nodes_behind: false,
            vcenter_behind: false,
            nodes_lost: false,
            vcenter_lost: false,
        }
    }

    /// Does what the event loop does.
    fn advance(&mut self, facts: Vec<Fact>, now: Now) {
        let mut facts = facts;
        loop {
            let changes = Arc::make_mut(&mut self.inventory).advance(facts, now);
            if let Some(built) = changes.built
                && !built.is_standby
            {
                self.snapshots = built.snapshots;
            }
            let Some(requested) = changes.requested else {
                return;
            };
            let urgent = requested.watch_set.urgent;
            let is_new = |n: &usize| {
                let key = VmKey::Uuid(uuid(*n));
                urgent
                    .get(&key)
                    .is_some_and(|urgency| self.looked_up.get(&key) < Some(urgency))
            };
            facts = (0..NODES).filter(is_new).map(|n| found(n, &[n])).collect();
            self.looked_up = urgent;
            if facts.is_empty() {
                return;
            }
            facts.push(Fact::Vsphere(VsphereUpdate::Settled));
        }
    }

    pub fn next_at(&self) -> Option<Monotonic> {
        self.inventory.next_at()
    }
}

impl State {
    pub fn new(limits: Limits, controls: Controls) -> Self {
        let began = wall_after(at(0), BEGAN);
        let mut state = Self {
            nodes: [0, 1].map(|n| Arc::new(NodeTruth::new(n))),
            replicas: [0, 1].map(|process| Replica::new(process, began)),
            leader: 0,
            epoch: 1,
            in_transit: Vec::new(),
            old_requests_until: Duration::ZERO,
            elapsed: BEGAN,
            offset: SignedDuration::ZERO,
            versions: 100,
            processes: 2,
            used: Used::default(),
            limits,
            controls,
        };
        state.list(0);
        state.list(1);
        state.lead(0, Duration::ZERO);
        state
    }

    pub fn now(&self) -> Now {
        let wall = wall_after(at(0), self.elapsed);
        Now {
            wall: wall.checked_add(self.offset).unwrap_or(wall),
            monotonic: Monotonic::since_boot(self.elapsed),
        }
    }

    /// vCenter's clock, in whole seconds.
    pub fn true_time(&self) -> Timestamp {
        at(i64::try_from(self.elapsed.as_secs()).unwrap_or(0))
    }

    pub fn node(&mut self, n: usize) -> &mut NodeTruth {
        Arc::make_mut(&mut self.nodes[n])
    }

    pub fn is_of_leader(&self, sent: &Sent) -> bool {
        sent.process == self.replicas[self.leader].process
    }

    fn is_current(&self, sent: &Sent) -> bool {
        match &sent.request {
            Request::Patch(patch) => patch.resource_version == self.nodes[sent.node].object.resource_version,
            Request::Cut { .. } | Request::PowerOn => true,
        }
    }

    /// A cut of the node's power was requested and may still take effect.
    pub fn is_cut_on_its_way(&self, n: usize) -> bool {
        let node = &self.nodes[n];
        let is_cut = |sent: &Sent| sent.node == n && matches!(sent.request, Request::Cut { .. });
        node.going_down.is_some()
            || matches!(node.running, Some((_, Work::PowerOff)))
            || self.in_transit.iter().any(is_cut)
    }

    // What a replica gets to know.

    pub fn tell(&mut self, replica: usize, facts: Vec<Fact>) {
        let now = self.now();
        self.replicas[replica].advance(facts, now);
    }

    /// Lists everything, as at a start.
    fn list(&mut self, replica: usize) {
        let vcenter =
            (0..NODES).flat_map(|n| self.nodes[n].vcenter_facts(n).into_iter().chain([found(n, &[n])]));
        let nodes = self.nodes.iter().map(|node| node.node_fact());
        let facts: Vec<Fact> = synced(vcenter.chain(nodes)).collect();
        self.tell(replica, facts);
    }

    fn lead(&mut self, replica: usize, quarantine: Duration) {
        let from = self.now().after(quarantine);
        let epoch = LeadershipEpoch {
            epoch: self.epoch,
            acts_from: (!quarantine.is_zero()).then_some(Deadline {
                at: from.monotonic,
                shown: from.wall,
            }),
        };
        self.tell(replica, vec![Fact::Leadership(Some(epoch))]);
        // Its watch of pods begins with a list.
        let pods = [0, 1].map(|n| Fact::Kubernetes(KubernetesUpdate::PodsChanged(name(n))));
        self.tell(replica, pods.into());
    }

    /// The other replica leads from now on. The process of this one ends, or goes on as a standby with what it remembers.
    pub fn take_over(&mut self, is_crash: bool) {
        let before = self.leader;
        self.leader = 1 - before;
        self.epoch += 1;
        self.old_requests_until = self.elapsed + IN_TRANSIT_MAX;
        if !self.may_take_over() {
            self.replicas[before].process = u8::MAX;
        } else if is_crash {
            let (process, began) = (self.processes, self.now().wall);
            self.processes += 1;
            self.replicas[before] = Replica::new(process, began);
            self.list(before);
        } else {
            self.tell(before, vec![Fact::Leadership(None)]);
        }
        let quarantine = if self.controls.quarantine {
            IN_TRANSIT_MAX
        } else {
            Duration::ZERO
        };
        self.lead(self.leader, quarantine);
    }

    pub fn deliver_nodes(&mut self) {
        let facts = self.nodes.iter().map(|node| node.node_fact()).collect();
        let leader = self.leader;
        (
            self.replicas[leader].nodes_behind,
            self.replicas[leader].nodes_lost,
        ) = (false, false);
        self.tell(leader, facts);
    }

    pub fn deliver_vcenter(&mut self) {
        let facts = (0..NODES).flat_map(|n| self.nodes[n].vcenter_facts(n));
        let end = Fact::Vsphere(VsphereUpdate::Settled);
        let facts = facts.chain([end]).collect();
        let leader = self.leader;
        (
            self.replicas[leader].vcenter_behind,
            self.replicas[leader].vcenter_lost,
        ) = (false, false);
        self.tell(leader, facts);
    }

    /// The watch of pods is not behind: between its event and a cut there are milliseconds that no check can close.
    pub fn pods_changed(&mut self, n: usize) {
        let leader = self.leader;
        self.tell(
            leader,
            vec![Fact::Kubernetes(KubernetesUpdate::PodsChanged(name(n)))],
        );
    }

    pub fn report(&mut self, sent: &Sent, outcome: AttemptOutcome, kind: EffectKind) {
        if self.replicas[sent.replica].process != sent.process {
            return;
        }
        let found = EffectResult::Tried {
            kind,
            at: sent.at,
            host: (kind == EffectKind::PowerOn).then(|| host_ref(sent.node)),
            outcome,
        };
        let report = EffectReport {
            node: name(sent.node),
            found,
        };
        self.tell(sent.replica, vec![Fact::Effect(report)]);
    }

    // Changes of the world.

    pub fn vcenter_changed(&mut self) {
        for replica in &mut self.replicas {
            replica.vcenter_behind = true;
        }
    }

    pub fn change_node(&mut self, n: usize, change: impl FnOnce(&mut NodeFacts)) {
        self.versions += 1;
        let version = self.versions;
        let node = self.node(n);
        change(&mut node.object);
        node.object.resource_version = version;
        for replica in &mut self.replicas {
            replica.nodes_behind = true;
        }
    }

    pub fn pod_comes(&mut self, n: usize, slips_in: bool) {
        let is_cut_on_its_way = self.is_cut_on_its_way(n);
        let node = self.node(n);
        if is_cut_on_its_way && (slips_in || node.is_uncordoned_by_person) {
            node.late_pods += 1;
        } else {
            node.pods += 1;
        }
        self.pods_changed(n);
    }

    pub fn start(&mut self, n: usize, work: Work) -> TaskRef {
        let queued_at = self.true_time();
        let node = self.node(n);
        let (of, description_id) = match work {
            Work::PowerOff => ("off", "VirtualMachine.powerOff"),
            Work::PowerOn => ("on", "VirtualMachine.powerOn"),
        };
        let moref = node.new_task(of, n);
        node.running = Some((moref.clone(), work));
        node.tasks.push(Task {
            moref: moref.clone(),
            vm: Some(vm_ref(n)),
            description_id: description_id.to_owned(),
            state: TaskState::Running,
            queued_at,
            by_us: true,
        });
        if node.tasks.len() > RECENT_TASKS {
            node.tasks.remove(0);
        }
        self.vcenter_changed();
        moref
    }

    /// Writes a PATCH, if it is about the current version, or whatever the version is if `controls` say so.
    pub fn write(&mut self, sent: &Sent, patch: &Patch) -> Result<(), String> {
        let n = sent.node;
        let is_current = patch.resource_version == self.nodes[n].object.resource_version;
        if is_current || !self.controls.compare_and_set {
            if patch.unschedulable == Some(false) && self.nodes[n].is_cordoned_by_person {
                return Err(format!("the cordon of a person on node {n} is removed"));
            }
            let was_behind = self.replicas[sent.replica].nodes_behind;
            self.change_node(n, |node| {
                for (guard, is_set) in patch.guards.all() {
                    match is_set {
                        true => node.guards.insert(guard, GuardState::Ours),
                        false => node.guards.remove(&guard),
                    };
                }
                node.annotations.episode.clone_from(&patch.episode);
                node.annotations.last_episode.clone_from(&patch.last_episode);
                if let Some(unschedulable) = patch.unschedulable {
                    node.unschedulable = unschedulable;
                    node.cordoned_by = unschedulable.then(|| "haulout".to_owned());
                }
            });
            if self.replicas[sent.replica].process == sent.process {
                self.replicas[sent.replica].nodes_behind = was_behind;
            }
            let node = self.node(n);
            node.record = patch.record.clone();
            if patch.unschedulable == Some(false) {
                node.is_uncordoned_by_person = false;
            }
        }
        // The reply has the Node. After a conflict it is read again.
        if self.replicas[sent.replica].process == sent.process {
            let object = Box::new(self.nodes[n].object.clone());
            self.tell(
                sent.replica,
                vec![Fact::Kubernetes(KubernetesUpdate::Answered(object))],
            );
        }
        Ok(())
    }

    /// Whether one more fault may happen.
    pub fn may_fail(&self) -> bool {
        self.used.faults() < self.limits.faults
    }

    /// Whether the standby may still become the leader. If not, what it knows does not matter.
    pub fn may_take_over(&self) -> bool {
        self.may_fail() && self.used.crashes < self.limits.crashes
    }
}
