//! Faults that need more than one step: restarts that forget tasks, people and programs that interfere, a restore of etcd.

use std::time::Duration;

use serde_json::{Value, json};

use crate::clock;
use crate::cluster::{is_ready, node_key, node_name};
use crate::oracle::{phase, record};
use crate::people::Deed;
use crate::store::is_cordoned;
use crate::vcenter::{OPERATOR, OUR_USER, TaskState, Work};
use crate::world::{World, WorldEvent};

/// The field manager of NVIDIA's driver manager.
const DRIVER_MANAGER: &str = "driver-manager";

/// The kinds that may be forbidden.
const KINDS: [&str; 6] = [
    "nodes",
    "pods",
    "poddisruptionbudgets",
    "nodemaintenances",
    "volumeattachments",
    "leases",
];

impl World {
    /// A fault that concerns one of some candidates. There may be none.
    fn any_of(&mut self, candidates: &[usize]) -> Option<usize> {
        let index = self.rng.usize(0..candidates.len().max(1));
        candidates.get(index).copied()
    }

    fn seconds(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.rng.u64(range.start * 1_000..range.end * 1_000))
    }

    /// vCenter's service restarts and forgets some of its tasks. A host may carry them out nevertheless.
    pub(crate) fn tasks_are_forgotten(&mut self) {
        self.sessions.clear();
        self.vcenter.down_until = clock::elapsed() + self.seconds(5..60);
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
                Work::Exit(_) | Work::PowerOff(_) | Work::PowerOn { .. } | Work::Relocate { .. } => {}
            }
            let words = self.words(&self.vcenter.tasks[task].work);
            self.tell("vCenter", format!("forgets: {words}"));
        }
        self.vcenter.changed();
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
            let after = self.seconds(5..120);
            self.queue.after(after, WorldEvent::Deed(Deed::Enters(host)));
        }
        true
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
        let is_free = |vm: &usize| !self.vcenter.vms[*vm].on && self.vcenter.busy(*vm).is_none();
        let off: Vec<usize> = (0..self.plan.nodes).filter(is_free).collect();
        let Some(vm) = self.any_of(&off) else {
            return false;
        };
        // A VM that a person powers on is powered off again where a maintenance or a request still asks for it.
        self.oracle.nodes[vm].causes += 1;
        let work = work(vm, self.rng.usize(0..self.vcenter.hosts.len()));
        self.tell("operator", self.words(&work));
        self.begin_task(work, OPERATOR);
        true
    }

    /// One kind of objects is forbidden for some time: its rights are being changed.
    pub(crate) fn kind_is_forbidden(&mut self) {
        let kind = KINDS[self.rng.usize(0..KINDS.len())];
        let until = clock::elapsed() + self.seconds(5..120);
        self.tell(
            "kubernetes",
            format!("forbids {kind} until {} s", until.as_secs()),
        );
        self.kube.forbidden = (kind.to_owned(), until);
        // Watches go on until they end.
        if self.rng.bool() {
            self.kube.cut();
        }
    }

    /// A replica does not reach vCenter, the kube-apiserver, or both.
    pub(crate) fn replica_is_cut_off(&mut self) {
        let replica = self.rng.usize(0..self.plan.replicas);
        let until = clock::elapsed() + self.seconds(5..120);
        let from = self.rng.u32(0..3);
        let cut_off = &mut self.cut_off[replica];
        if from != 0 {
            cut_off.kubernetes_until = until;
        }
        if from != 1 {
            cut_off.vcenter_until = until;
        }
        let words = ["vCenter", "the kube-apiserver", "both peers"];
        let words = words[usize::try_from(from).unwrap_or_default()];
        self.tell(
            format!("replica-{replica}"),
            format!("is cut off from {words} until {} s", until.as_secs()),
        );
        // Watches and long polls see it.
        self.kube.changes.send_modify(|count| *count += 1);
        self.vcenter.changed();
    }

    /// A kubelet loses its connection for a while.
    pub(crate) fn ready_is_lost(&mut self) -> bool {
        let is_up = |node: &usize| {
            let object = self.kube.get(&node_key(*node));
            self.vcenter.vms[*node].on && object.is_some_and(|object| is_ready(object))
        };
        let up: Vec<usize> = (0..self.plan.nodes).filter(is_up).collect();
        let Some(node) = self.any_of(&up) else {
            return false;
        };
        self.tell(node_name(node), "is not Ready for a while");
        self.set_ready(node, "Unknown");
        let boots = self.vcenter.vms[node].boots;
        let after = self.seconds(2..90);
        self.queue.after(after, WorldEvent::ReadyIsBack { node, boots });
        true
    }

    /// The kubelet has its connection again.
    pub(crate) fn ready_is_back(&mut self, node: usize, boots: u32) {
        let vm = &self.vcenter.vms[node];
        if vm.on && vm.boots == boots && vm.kubelet == boots {
            self.tell(node_name(node), "is Ready again");
            self.set_ready(node, "True");
            self.schedule_soon();
        }
    }

    /// The driver manager uncordons the Node after its boot, whoever has cordoned it.
    pub(crate) fn driver_uncordons(&mut self, node: usize, boots: u32) {
        let vm = &self.vcenter.vms[node];
        let Some(object) = self.kube.get(&node_key(node)) else {
            return;
        };
        if !vm.on || vm.boots != boots || !is_cordoned(object) {
            return;
        }
        let phase = record(object).map(|record| phase(&record).0).unwrap_or_default();
        let is_restored = [
            "shuttingDown",
            "relocating",
            "awaitingHost",
            "poweringOn",
            "rejoining",
        ];
        let is_restored = is_restored.contains(&phase.as_str());
        self.tell(node_name(node), "is uncordoned by the driver manager");
        let memory = &mut self.oracle.nodes[node];
        if !is_restored {
            // It counts as uncordoned by a person.
            memory.cordoned_by_person = false;
        }
        memory.uncordoned_by_person = Some(clock::elapsed());
        self.kube.change(&node_key(node), DRIVER_MANAGER, |node| {
            node["spec"]["unschedulable"] = Value::Null;
        });
        self.schedule_soon();
    }

    /// A person uncordons a node in an episode, and may cordon it again.
    pub(crate) fn cordon_is_taken(&mut self) -> bool {
        let is_cordoned_by_us = |node: &usize| {
            let object = self.kube.get(&node_key(*node));
            let is_ours = object.is_some_and(|object| is_cordoned(object) && record(object).is_some());
            is_ours && !self.oracle.nodes[*node].cordoned_by_person
        };
        let nodes: Vec<usize> = (0..self.plan.nodes).filter(is_cordoned_by_us).collect();
        let Some(node) = self.any_of(&nodes) else {
            return false;
        };
        self.uncordoned_by_person(node);
        if self.rng.bool() {
            let after = self.seconds(1..60);
            self.queue.after(after, WorldEvent::Deed(Deed::Cordons(node)));
        }
        true
    }

    /// A tool removes all annotations from a Node in an episode.
    pub(crate) fn annotations_are_removed(&mut self) -> bool {
        let has_record = |node: &usize| {
            let object = self.kube.get(&node_key(*node));
            object.is_some_and(|object| record(object).is_some())
        };
        let nodes: Vec<usize> = (0..self.plan.nodes).filter(has_record).collect();
        let Some(node) = self.any_of(&nodes) else {
            return false;
        };
        self.tell(node_name(node), "loses its annotations");
        self.kube.change(&node_key(node), "gitops", |node| {
            node["metadata"]["annotations"] = json!({});
        });
        self.oracle.nodes[node].is_lost |= !self.has_copy(node);
        true
    }

    /// A deleted Node is created again from its manifest, by a backup or by a person. It has the record and the cordon of then.
    pub(crate) fn manifest_is_applied(&mut self) {
        let (node, manifest, was_cordoned) = self.manifests.remove(0);
        let key = node_key(node);
        if self.faults.is_calm || self.kube.get(&key).is_some() {
            return;
        }
        self.tell(node_name(node), "is created from its manifest");
        let mut object = (*manifest).clone();
        object["metadata"]["managedFields"] = Value::Null;
        // The name is free.
        let _ = self.kube.create(&key, object, "kubectl-client-side-apply");
        self.oracle.nodes[node].cordoned_by_person = was_cordoned;
        // A cordon without a record and with another field manager counts as a person's.
        self.oracle.nodes[node].is_lost |= is_cordoned(&manifest) && record(&manifest).is_none();
        self.node_catches_up(node);
    }

    /// A snapshot of etcd is taken, to be restored later.
    pub(crate) fn snapshot_is_taken(&mut self) {
        self.snapshot = Some((self.kube.snapshot(), self.oracle.nodes.clone()));
        let after = self.seconds(10..200);
        self.queue.after(after, WorldEvent::EtcdIsRestored);
    }

    /// etcd is restored from the snapshot: objects and their versions go back. Kubelets and controllers go on from there.
    pub(crate) fn etcd_is_restored(&mut self) {
        if self.faults.is_calm {
            return;
        }
        let Some((snapshot, memory)) = self.snapshot.take() else {
            return;
        };
        let now = clock::elapsed();
        self.tell(
            "kubernetes",
            format!("etcd is restored to version {}", snapshot.version),
        );
        self.kube.restore(snapshot);
        self.kube.down_until = now + self.seconds(1..20);
        self.oracle.restored(&memory, now);
        for node in 0..self.plan.nodes {
            self.node_catches_up(node);
        }
        let pods: Vec<_> = self.kube.list("pods").map(|(key, _)| key.clone()).collect();
        for pod in pods {
            // It ends now if it was terminating.
            self.queue.after(Duration::from_secs(5), WorldEvent::PodEnds(pod));
        }
        self.schedule_soon();
    }

    /// A kubelet writes the status of its Node again after a restore.
    fn node_catches_up(&mut self, node: usize) {
        let vm = self.vcenter.vms[node].clone();
        self.register_node(node);
        if vm.on && vm.kubelet == vm.boots {
            let boots = vm.boots;
            self.queue
                .after(Duration::from_secs(6), WorldEvent::KubeletStarts { node, boots });
        }
        let boots = vm.boots;
        self.queue
            .after(Duration::from_secs(50), WorldEvent::NodeUnknown { node, boots });
        let goes_off = !vm.on || vm.going_down || self.vcenter.busy(node).is_some();
        let is_recorded = self
            .kube
            .get(&node_key(node))
            .is_some_and(|node| record(node).is_some());
        if goes_off && !is_recorded && !self.has_copy(node) {
            self.oracle.nodes[node].is_lost = true;
        }
    }

    /// Tasks that hang end.
    pub(crate) fn tasks_end(&mut self) {
        for task in 0..self.vcenter.tasks.len() {
            let it = &self.vcenter.tasks[task];
            if it.state == TaskState::Running && it.user == OUR_USER {
                self.task_ends(task);
            }
        }
    }
}
