//! The state of the simulated vCenter: hosts, VMs and tasks, and how they change by themselves.

use std::time::Duration;

use tokio::sync::watch;

use crate::clock;
use crate::faults::Fault;
use crate::world::{World, WorldEvent};

/// The name of the controller's account, as tasks name it.
pub const OUR_USER: &str = "VSPHERE.LOCAL\\haulout";

/// The name of the person who puts hosts into maintenance mode.
pub const OPERATOR: &str = "VSPHERE.LOCAL\\operator";

/// The user of tasks that vCenter begins by itself.
pub const SYSTEM: &str = "";

/// How often DRS looks for a host for the VMs of a host that enters maintenance mode.
const DRS_LOOKS: Duration = Duration::from_secs(60);

/// How often it is tried whether the question of a VM is answered.
const ASKED_AGAIN: Duration = Duration::from_secs(3);

/// How long an ended task stays in the list of its entity.
const RECENT: Duration = Duration::from_secs(600);

/// The state of a vCenter.
#[derive(Debug)]
pub struct Vcenter {
    pub hosts: Vec<Host>,
    /// The VMs. The first are those of the nodes, in their order.
    pub vms: Vec<Vm>,
    /// All tasks so far.
    pub tasks: Vec<Task>,
    /// It does not answer until then.
    pub down_until: Duration,
    /// Long polls are not answered until then, although the session lives.
    pub withheld_until: Duration,
    /// Wakes long polls.
    pub changes: watch::Sender<u64>,
    /// When a stream had its first set last.
    pub followed_at: Duration,
    /// Whether DRS places VMs.
    pub has_drs: bool,
    /// Whether the GPUs are shared as vGPUs, of which each takes a whole GPU. DRS moves VMs with vGPUs by vMotion.
    pub has_vgpus: bool,
}

/// A host with one GPU.
#[derive(Clone, Debug)]
pub struct Host {
    pub name: String,
    /// Whether vCenter reaches it.
    pub connected: bool,
    /// Whether it is in maintenance mode.
    pub in_maintenance: bool,
    /// The task that puts it into maintenance mode.
    pub entering: Option<usize>,
    pub tasks: Vec<usize>,
}

#[derive(Clone, Debug)]
pub struct Vm {
    pub name: String,
    /// Its BIOS UUID.
    pub uuid: String,
    /// The host on which it is registered.
    pub host: usize,
    /// Whether it runs.
    pub on: bool,
    /// How many times it was powered on.
    pub boots: u32,
    /// When it was powered off last.
    pub off_since: Duration,
    /// A person powered it off, and nobody has powered it on since.
    pub off_by_person: bool,
    /// The boot for which its kubelet has started.
    pub kubelet: u32,
    /// The boot in which its device plugin has registered.
    pub plugin: u32,
    /// Whether it is the VM of a node.
    pub is_ours: bool,
    /// Whether it has the GPU of its host, so that it cannot be moved while it runs.
    pub has_gpu: bool,
    /// Its guest shuts down.
    pub going_down: bool,
    /// Its guest shuts down and has ended VMware Tools.
    pub tools_stopped: bool,
    /// It went off with its host, and vCenter still shows it as on.
    pub crashed: bool,
    /// It has a question that a person has to answer. Until then it neither starts nor stops, and refuses other operations.
    pub asks: bool,
    /// Its files are locked until then.
    pub locked_until: Duration,
    pub tasks: Vec<usize>,
}

/// What a task does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Puts a host into maintenance mode.
    Enter(usize),
    /// Takes a host out of it.
    Exit(usize),
    /// Cuts the power of a VM.
    PowerOff(usize),
    /// Powers a VM on, where it is registered or where DRS places it.
    PowerOn {
        vm: usize,
        /// Whether DRS places it.
        by_drs: bool,
    },
    /// Moves a VM that is off.
    Relocate {
        vm: usize,
        /// The host.
        to: usize,
    },
    /// DRS moves a VM that runs.
    Vmotion {
        vm: usize,
        /// The host.
        to: usize,
    },
    /// Works on a VM for another client, such as a backup.
    Foreign(usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// It runs.
    Running,
    /// It has succeeded.
    Success,
    /// It has failed, with this fault.
    Error(&'static str),
}

#[derive(Clone, Debug)]
pub struct Task {
    /// What it does.
    pub work: Work,
    /// Who began it.
    pub user: &'static str,
    pub state: TaskState,
    /// A restart has forgotten it. The host may still carry it out.
    pub forgotten: bool,
    /// Whether a person has cancelled it.
    pub cancelled: bool,
    pub began: Duration,
    pub ended: Option<Duration>,
    /// Why DRS did not power the VM on, although the task succeeded.
    pub not_attempted: Option<&'static str>,
}

impl Host {
    /// Whether VMs can be powered on there.
    pub fn takes_vms(&self) -> bool {
        self.connected && !self.in_maintenance && self.entering.is_none()
    }
}

impl Vm {
    /// Whether vCenter shows it as on.
    pub fn is_shown_on(&self) -> bool {
        self.on || self.crashed
    }
}

impl Vcenter {
    /// A vCenter without objects.
    pub fn new() -> Self {
        Self {
            hosts: Vec::new(),
            vms: Vec::new(),
            tasks: Vec::new(),
            down_until: Duration::ZERO,
            withheld_until: Duration::ZERO,
            changes: watch::Sender::new(0),
            followed_at: Duration::ZERO,
            has_drs: true,
            has_vgpus: false,
        }
    }

    /// The tasks of a list that are recent.
    pub fn recent(&self, tasks: &[usize]) -> Vec<usize> {
        let now = clock::elapsed();
        let is_recent = |task: &&usize| {
            let task = &self.tasks[**task];
            !task.forgotten && task.ended.is_none_or(|at| now < at + RECENT)
        };
        tasks.iter().filter(is_recent).copied().collect()
    }

    /// The unfinished task of a VM.
    pub fn busy(&self, vm: usize) -> Option<usize> {
        let tasks = self.vms[vm].tasks.iter().rev();
        tasks
            .copied()
            .find(|task| self.tasks[*task].state == TaskState::Running)
    }

    /// Whether the GPU of a host is in use.
    fn gpu_in_use(&self, host: usize) -> bool {
        self.vms.iter().any(|vm| vm.on && vm.has_gpu && vm.host == host)
    }

    /// Why a VM cannot be powered on there.
    pub fn unsuited(&self, vm: usize, host: usize) -> Option<&'static str> {
        if !self.hosts[host].connected {
            Some("HostNotConnected")
        } else if !self.hosts[host].takes_vms() {
            Some("InvalidState")
        } else if self.vms[vm].has_gpu && self.gpu_in_use(host) {
            Some("InsufficientResourcesFault")
        } else {
            None
        }
    }

    /// Something has changed.
    pub fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}

impl Default for Vcenter {
    fn default() -> Self {
        Self::new()
    }
}

impl World {
    pub fn begin_task(&mut self, work: Work, user: &'static str) -> usize {
        let task = self.vcenter.tasks.len();
        match work {
            Work::Enter(host) | Work::Exit(host) => self.vcenter.hosts[host].tasks.push(task),
            Work::PowerOff(vm)
            | Work::PowerOn { vm, .. }
            | Work::Relocate { vm, .. }
            | Work::Vmotion { vm, .. }
            | Work::Foreign(vm) => {
                self.vcenter.vms[vm].tasks.push(task);
            }
        }
        if let Work::PowerOn { vm, .. } = work
            && user == OUR_USER
            && self
                .faults
                .fires(Fault::FilesLocked, &mut self.rng, &mut self.account)
        {
            self.vcenter.vms[vm].locked_until = clock::elapsed() + self.seconds(10..300);
        }
        if let Work::PowerOn { vm, .. } = work
            && self
                .faults
                .fires(Fault::PowerOnAsks, &mut self.rng, &mut self.account)
        {
            self.question_is_asked(vm);
        }
        let hangs = user == OUR_USER
            && self
                .faults
                .fires(Fault::TaskHangs, &mut self.rng, &mut self.account);
        let lasts = match work {
            _ if hangs => Some(self.rng.u64(600_000..1_800_000)),
            Work::Enter(_) => None,
            Work::Exit(_) | Work::PowerOff(_) => Some(self.rng.u64(500..3_000)),
            Work::PowerOn { .. } => Some(self.rng.u64(1_000..6_000)),
            Work::Relocate { .. } => Some(self.rng.u64(3_000..30_000)),
            Work::Vmotion { .. } => Some(self.rng.u64(5_000..200_000)),
            Work::Foreign(_) => Some(self.rng.u64(20_000..1_200_000)),
        };
        self.vcenter.tasks.push(Task {
            work,
            user,
            state: TaskState::Running,
            forgotten: false,
            cancelled: false,
            began: clock::elapsed(),
            ended: None,
            not_attempted: None,
        });
        if let Some(millis) = lasts {
            self.queue
                .after(Duration::from_millis(millis), WorldEvent::TaskEnds(task));
        }
        self.vcenter.changed();
        task
    }

    /// The work of a task is done, or turns out to be impossible.
    pub fn task_ends(&mut self, task: usize) {
        if self.vcenter.tasks[task].state != TaskState::Running {
            return;
        }
        let work = self.vcenter.tasks[task].work.clone();
        if let Work::PowerOn { vm, .. } | Work::PowerOff(vm) = work
            && self.vcenter.vms[vm].asks
        {
            self.queue.after(ASKED_AGAIN, WorldEvent::TaskEnds(task));
            return;
        }
        let is_ours = self.vcenter.tasks[task].user == OUR_USER;
        let fails = is_ours && self.faults.task_fails(&mut self.rng, &mut self.account);
        let state = if fails {
            TaskState::Error("SystemError")
        } else {
            self.carry_out(task, &work)
        };
        self.tell("vCenter", format!("{}: {state:?}", self.words(&work)));
        let now = clock::elapsed();
        let ended = &mut self.vcenter.tasks[task];
        ended.state = state;
        ended.ended = Some(now);
        self.vcenter.changed();
        self.hosts_progress();
    }

    fn carry_out(&mut self, task: usize, work: &Work) -> TaskState {
        match *work {
            Work::Enter(host) => {
                self.vcenter.hosts[host].entering = None;
                self.vcenter.hosts[host].in_maintenance = true;
            }
            Work::Exit(host) => self.vcenter.hosts[host].in_maintenance = false,
            Work::PowerOff(vm) => {
                if !self.vcenter.hosts[self.vcenter.vms[vm].host].connected {
                    return TaskState::Error("HostNotConnected");
                }
                if !self.vcenter.vms[vm].on {
                    return TaskState::Error("InvalidPowerState");
                }
                self.vm_goes_off(vm);
            }
            Work::PowerOn { vm, by_drs } => {
                if self.vcenter.vms[vm].is_shown_on() {
                    return TaskState::Error("InvalidPowerState");
                }
                if clock::elapsed() < self.vcenter.vms[vm].locked_until {
                    return TaskState::Error("FileLocked");
                }
                let here = self.vcenter.vms[vm].host;
                let host = if by_drs { self.drs_host(vm) } else { Some(here) };
                let Some(host) = host else {
                    self.vcenter.tasks[task].not_attempted = Some("NoCompatibleHost");
                    return TaskState::Success;
                };
                if let Some(fault) = self.vcenter.unsuited(vm, host) {
                    return TaskState::Error(fault);
                }
                self.vcenter.vms[vm].host = host;
                self.vm_goes_on(vm);
            }
            Work::Relocate { vm, to } => {
                if self.vcenter.vms[vm].is_shown_on() {
                    return TaskState::Error("InvalidPowerState");
                }
                if !self.vcenter.hosts[to].takes_vms() {
                    return TaskState::Error("InvalidState");
                }
                self.vcenter.vms[vm].host = to;
            }
            Work::Vmotion { vm, to } => {
                let fails = self
                    .faults
                    .fires(Fault::VmotionFails, &mut self.rng, &mut self.account);
                if fails || !self.vcenter.vms[vm].on {
                    return TaskState::Error(if fails {
                        "MigrationFault"
                    } else {
                        "InvalidPowerState"
                    });
                }
                if let Some(fault) = self.vcenter.unsuited(vm, to) {
                    return TaskState::Error(fault);
                }
                self.vcenter.vms[vm].host = to;
                self.oracle.nodes[vm].cause_ended = Some(clock::elapsed());
            }
            Work::Foreign(_) => {}
        }
        TaskState::Success
    }

    /// The host on which DRS powers a VM on; its own, if that is possible.
    fn drs_host(&self, vm: usize) -> Option<usize> {
        let own = self.vcenter.vms[vm].host;
        let mut hosts = std::iter::once(own).chain(0..self.vcenter.hosts.len());
        hosts.find(|host| self.vcenter.unsuited(vm, *host).is_none())
    }

    /// A VM stops.
    pub fn vm_goes_off(&mut self, vm: usize) {
        let now = clock::elapsed();
        let off = &mut self.vcenter.vms[vm];
        off.on = false;
        off.going_down = false;
        off.tools_stopped = false;
        off.asks = false;
        off.off_since = now;
        let (name, boots) = (off.name.clone(), off.boots);
        self.tell("vCenter", format!("{name} is off"));
        if self.vcenter.vms[vm].is_ours {
            self.oracle.nodes[vm].effects.offs += 1;
            // kube-controller-manager waits for 50 s.
            let grace = Duration::from_secs(50);
            self.queue
                .after(grace, WorldEvent::NodeUnknown { node: vm, boots });
        }
        self.vcenter.changed();
        self.hosts_progress();
    }

    /// A VM starts.
    pub fn vm_goes_on(&mut self, vm: usize) {
        let on = &mut self.vcenter.vms[vm];
        on.on = true;
        on.crashed = false;
        on.off_by_person = false;
        on.boots += 1;
        let (name, host, boots) = (on.name.clone(), on.host, on.boots);
        let host = self.vcenter.hosts[host].name.clone();
        self.tell("vCenter", format!("{name} is on, on {host}"));
        if self.vcenter.vms[vm].is_ours {
            self.oracle.nodes[vm].effects.ons += 1;
            let boot = Duration::from_millis(self.rng.u64(10_000..60_000));
            self.queue
                .after(boot, WorldEvent::KubeletStarts { node: vm, boots });
        }
        self.vcenter.changed();
    }

    /// Ends the tasks of hosts that nothing keeps from maintenance mode any more.
    pub fn hosts_progress(&mut self) {
        for host in 0..self.vcenter.hosts.len() {
            let Some(task) = self.vcenter.hosts[host].entering else {
                continue;
            };
            let mut running = self.vcenter.vms.iter();
            if !self.vcenter.hosts[host].connected || running.any(|vm| vm.on && vm.host == host) {
                continue;
            }
            let soon = Duration::from_millis(self.rng.u64(200..2_000));
            self.queue.after(soon, WorldEvent::HostEnters { host, task });
        }
    }

    /// A host is in maintenance mode, unless something has changed meanwhile.
    pub fn host_enters(&mut self, host: usize, task: usize) {
        let is_busy = self.vcenter.vms.iter().any(|vm| vm.on && vm.host == host);
        let is_connected = self.vcenter.hosts[host].connected;
        if self.vcenter.hosts[host].entering == Some(task) && is_connected && !is_busy {
            self.task_ends(task);
        }
    }

    /// DRS moves the VMs without a GPU away from a host that enters maintenance mode.
    pub fn drs_evacuates(&mut self, host: usize) {
        if self.vcenter.hosts[host].entering.is_none() {
            return;
        }
        if self.vcenter.has_vgpus {
            self.drs_moves_vgpus(host);
            self.queue.after(DRS_LOOKS, WorldEvent::DrsEvacuates(host));
        }
        let moved: Vec<usize> = (0..self.vcenter.vms.len())
            .filter(|vm| {
                let vm = &self.vcenter.vms[*vm];
                vm.on && vm.host == host && !vm.has_gpu
            })
            .collect();
        for vm in moved {
            let other = (0..self.vcenter.hosts.len()).find(|other| self.vcenter.hosts[*other].takes_vms());
            if let Some(other) = other {
                self.vcenter.vms[vm].host = other;
            }
        }
        self.vcenter.changed();
        self.hosts_progress();
    }

    /// DRS moves the VMs with vGPUs away, where another host has a free GPU.
    fn drs_moves_vgpus(&mut self, host: usize) {
        for vm in 0..self.plan.nodes {
            let it = &self.vcenter.vms[vm];
            if !it.on || it.host != host || it.going_down || it.asks || self.vcenter.busy(vm).is_some() {
                continue;
            }
            let to = (0..self.vcenter.hosts.len()).find(|to| self.vcenter.unsuited(vm, *to).is_none());
            if let Some(to) = to {
                let work = Work::Vmotion { vm, to };
                self.tell("vCenter", self.words(&work));
                self.begin_task(work, SYSTEM);
            }
        }
    }

    /// The guest has shut down.
    pub fn guest_is_off(&mut self, vm: usize, boots: u32) {
        if self.vcenter.vms[vm].asks {
            self.queue
                .after(ASKED_AGAIN, WorldEvent::GuestIsOff { vm, boots });
            return;
        }
        let is_same = self.vcenter.vms[vm].boots == boots && self.vcenter.vms[vm].on;
        if is_same && self.vcenter.vms[vm].going_down {
            self.vm_goes_off(vm);
        }
    }

    /// The task in words.
    pub fn words(&self, work: &Work) -> String {
        let host = |host: usize| self.vcenter.hosts[host].name.clone();
        let vm = |vm: usize| self.vcenter.vms[vm].name.clone();
        match *work {
            Work::Enter(it) => format!("enter maintenance mode of {}", host(it)),
            Work::Exit(it) => format!("exit maintenance mode of {}", host(it)),
            Work::PowerOff(it) => format!("power off {}", vm(it)),
            Work::PowerOn { vm: it, by_drs: true } => format!("power on {} by DRS", vm(it)),
            Work::PowerOn { vm: it, .. } => format!("power on {}", vm(it)),
            Work::Relocate { vm: it, to } => format!("relocate {} to {}", vm(it), host(to)),
            Work::Vmotion { vm: it, to } => format!("move {} to {} by vMotion", vm(it), host(to)),
            Work::Foreign(it) => format!("create a snapshot of {}", vm(it)),
        }
    }
}
