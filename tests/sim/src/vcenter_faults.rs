//! Faults of vCenter that are no single replies: hosts that are lost, tasks that fail or are forgotten, and people who change VMs.

use crate::clock;
use crate::people::Deed;
use crate::vcenter::{OPERATOR, OUR_USER, TaskState, Work};
use crate::world::{World, WorldEvent};

impl World {
    /// vCenter loses the connection to a host. Its VMs go on.
    pub(crate) fn host_is_lost(&mut self) {
        let host = self.rng.usize(0..self.vcenter.hosts.len());
        self.vcenter.hosts[host].connected = false;
        self.tell(self.vcenter.hosts[host].name.clone(), "does not respond");
        self.vcenter.changed();
        self.within(5..300, WorldEvent::HostResponds(host));
    }

    /// A host crashes. vCenter shows its VMs as they were until HA restarts them elsewhere, or the host responds again.
    pub(crate) fn host_crashes(&mut self) -> bool {
        let host = self.rng.usize(0..self.vcenter.hosts.len());
        if !self.vcenter.hosts[host].connected {
            return false;
        }
        self.vcenter.hosts[host].connected = false;
        self.tell(self.vcenter.hosts[host].name.clone(), "crashes");
        for vm in 0..self.vcenter.vms.len() {
            if self.vcenter.vms[vm].on && self.vcenter.vms[vm].host == host {
                self.vm_goes_off(vm);
                self.vcenter.vms[vm].crashed = true;
                self.within(20..120, WorldEvent::HaRestarts(vm));
            }
        }
        self.vcenter.changed();
        self.within(60..600, WorldEvent::HostResponds(host));
        true
    }

    /// HA restarts a VM that went off with its host, on a host that can take it.
    pub(crate) fn ha_restarts(&mut self, vm: usize) {
        let mut hosts = 0..self.vcenter.hosts.len();
        let to = hosts.find(|to| self.vcenter.unsuited(vm, *to).is_none());
        let Some(to) = to.filter(|_| self.vcenter.vms[vm].crashed) else {
            return;
        };
        self.vcenter.vms[vm].host = to;
        if self.vcenter.vms[vm].is_ours {
            let memory = &mut self.oracle.nodes[vm];
            memory.cause_ended = Some(clock::elapsed());
            // Where no leader saw that it was off, it is powered off again while a maintenance or a request asks for it.
            memory.causes += 1;
            if self.vcenter.has_vgpus {
                // As if vCenter had moved it by vMotion. Only its next status shows that it was restarted.
                memory.cuts_before = memory.cuts;
            }
        }
        self.vm_goes_on(vm);
    }

    /// vCenter reaches a host again. HA restarts there what it could not restart elsewhere.
    pub fn host_responds(&mut self, host: usize) {
        if !self.vcenter.hosts[host].connected {
            self.vcenter.hosts[host].connected = true;
            for vm in 0..self.vcenter.vms.len() {
                if self.vcenter.vms[vm].crashed && self.vcenter.vms[vm].host == host {
                    self.ha_restarts(vm);
                    // Else nobody has to power it on but its owner.
                    let left = &mut self.vcenter.vms[vm];
                    left.off_by_person |= std::mem::take(&mut left.crashed);
                }
            }
            self.tell(self.vcenter.hosts[host].name.clone(), "responds again");
            self.vcenter.changed();
            self.hosts_progress();
        }
    }

    /// A VM goes off by itself. Nobody but its owner has to power it on, unless it is in an episode.
    pub(crate) fn vm_dies(&mut self) -> bool {
        let vm = self.any_node();
        let dies = self.vcenter.vms[vm].on && self.vcenter.busy(vm).is_none();
        if dies {
            self.vm_goes_off(vm);
            self.vcenter.vms[vm].off_by_person = true;
        }
        dies
    }

    /// A person powers on a VM that is off, wherever DRS finds a place.
    pub(crate) fn vm_is_started(&mut self) -> bool {
        self.person_acts_on_vm(|vm, _| Work::PowerOn { vm, by_drs: true })
    }

    /// A person moves a VM that is off.
    pub(crate) fn vm_is_moved(&mut self) -> bool {
        self.person_acts_on_vm(|vm, to| Work::Relocate { vm, to })
    }

    fn person_acts_on_vm(&mut self, work: impl FnOnce(usize, usize) -> Work) -> bool {
        let is_free = |world: &Self, vm: usize| !world.vcenter.vms[vm].on && world.vcenter.busy(vm).is_none();
        let Some(vm) = self.any_node_where(is_free) else {
            return false;
        };
        // A VM that a person powers on is powered off again where a maintenance or a request still asks for it.
        self.oracle.nodes[vm].causes += 1;
        let work = work(vm, self.rng.usize(0..self.vcenter.hosts.len()));
        self.tell("operator", self.words(&work));
        self.begin_task(work, OPERATOR);
        true
    }

    /// Another client begins a task on a VM, which refuses other operations until that ends.
    pub(crate) fn foreign_task_begins(&mut self) -> bool {
        let is_free = |world: &Self, vm: usize| world.vcenter.busy(vm).is_none();
        let Some(vm) = self.any_node_where(is_free) else {
            return false;
        };
        self.tell("backup", self.words(&Work::Foreign(vm)));
        self.begin_task(Work::Foreign(vm), OPERATOR);
        true
    }

    /// A VM of ours that runs asks a person, for example because its datastore is full.
    pub(crate) fn vm_asks(&mut self) -> bool {
        let is_on = |world: &Self, vm: usize| world.vcenter.vms[vm].on;
        let Some(vm) = self.any_node_where(is_on) else {
            return false;
        };
        self.question_is_asked(vm);
        true
    }

    pub(crate) fn question_is_asked(&mut self, vm: usize) {
        self.tell(
            "vCenter",
            format!("{} asks a question", self.vcenter.vms[vm].name),
        );
        self.vcenter.vms[vm].asks = true;
        self.vcenter.changed();
        self.within(5..400, WorldEvent::QuestionIsAnswered(vm));
    }

    /// A person answers the question of a VM.
    pub fn question_is_answered(&mut self, vm: usize) {
        if std::mem::take(&mut self.vcenter.vms[vm].asks) {
            self.tell(
                "operator",
                format!("answers the question of {}", self.vcenter.vms[vm].name),
            );
            self.vcenter.changed();
        }
    }

    /// A maintenance task fails by itself. Sometimes the operator tries again.
    pub(crate) fn maintenance_fails(&mut self) -> bool {
        let hosts = 0..self.vcenter.hosts.len();
        let entering: Vec<usize> = hosts
            .filter(|host| self.vcenter.hosts[*host].entering.is_some())
            .collect();
        let Some(host) = self.any_of(&entering) else {
            return false;
        };
        let Some(task) = self.vcenter.hosts[host].entering.take() else {
            return false;
        };
        self.tell("vCenter", format!("{}: Timedout", self.words(&Work::Enter(host))));
        self.vcenter.tasks[task].state = TaskState::Error("Timedout");
        self.vcenter.tasks[task].ended = Some(clock::elapsed());
        self.vcenter.changed();
        self.cause_ends(host);
        if self.rng.bool() {
            self.within(5..120, WorldEvent::Deed(Deed::Enters(host)));
        }
        true
    }

    /// vCenter's service restarts and forgets some of its tasks. A host may carry them out nevertheless.
    pub(crate) fn tasks_are_forgotten(&mut self) {
        let lasts = self.seconds(5..60);
        self.vcenter_restarts(lasts);
        for task in 0..self.vcenter.tasks.len() {
            if self.vcenter.tasks[task].state != TaskState::Running || self.rng.bool() {
                continue;
            }
            self.vcenter.tasks[task].forgotten = true;
            match self.vcenter.tasks[task].work {
                Work::Enter(host) => {
                    self.vcenter.tasks[task].state = TaskState::Error("SystemError");
                    self.vcenter.hosts[host].entering = None;
                    self.cause_ends(host);
                }
                Work::Exit(_)
                | Work::PowerOff(_)
                | Work::PowerOn { .. }
                | Work::Relocate { .. }
                | Work::Vmotion { .. }
                | Work::Foreign(_) => {}
            }
            let words = self.words(&self.vcenter.tasks[task].work);
            self.tell("vCenter", format!("forgets: {words}"));
        }
        self.vcenter.changed();
    }

    /// Tasks that hang end. One that vCenter has forgotten is not carried out any more.
    pub(crate) fn tasks_end(&mut self) {
        for task in 0..self.vcenter.tasks.len() {
            let it = &mut self.vcenter.tasks[task];
            if it.state != TaskState::Running || it.user != OUR_USER {
                continue;
            }
            if it.forgotten {
                it.state = TaskState::Error("SystemError");
            } else {
                self.task_ends(task);
            }
        }
    }
}
