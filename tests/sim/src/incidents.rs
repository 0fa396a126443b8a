//! Faults that happen at times, and not to single requests: when each happens, what it does, and what is repaired in the end.

use std::ops::Range;
use std::time::Duration;

use jiff::SignedDuration;
use tokio::sync::watch;

use crate::clock;
use crate::cluster::node_name;
use crate::faults::{Fault, Occasion};
use crate::world::{Orders, World, WorldEvent};

impl World {
    /// Schedules the faults that this run has drawn.
    pub fn plan_incidents(&mut self) {
        let active = self.plan.active.as_secs();
        for fault in Fault::ALL
            .iter()
            .copied()
            .filter(|fault| self.plan.faults.has(*fault))
        {
            let Occasion::Times(most) = fault.occasion() else {
                continue;
            };
            for _ in 0..self.rng.usize(1..=most) {
                let at = Duration::from_secs(self.rng.u64(10..active));
                self.queue.after(at, WorldEvent::Fault(fault));
            }
        }
    }

    /// A fault happens.
    pub fn fault(&mut self, fault: Fault) {
        if self.faults.is_calm {
            return;
        }
        self.tell("fault", fault.name());
        if self.happened(fault) {
            self.account.count("fault", fault.name());
        }
    }

    /// Lets a fault happen. False if there is nothing that it can happen to.
    fn happened(&mut self, fault: Fault) -> bool {
        let now = clock::elapsed();
        match fault {
            Fault::SessionsExpire => {
                self.sessions.clear();
                self.vcenter.changed();
            }
            Fault::LoginsRefused => {
                self.refused_logins.until = now + self.seconds(5..400);
                self.sessions.clear();
                self.vcenter.changed();
            }
            Fault::VcenterRestarts => {
                let lasts = Duration::from_secs(self.rng.u64(5..90));
                self.vcenter_restarts(lasts);
            }
            Fault::TasksForgotten => self.tasks_are_forgotten(),
            Fault::UpdatesWithheld => {
                self.vcenter.withheld_until = now + Duration::from_secs(self.rng.u64(5..60));
            }
            Fault::HostLost => self.host_is_lost(),
            Fault::HostCrashes => return self.host_crashes(),
            Fault::VmDies => return self.vm_dies(),
            Fault::MaintenanceFails => return self.maintenance_fails(),
            Fault::VmStarted => return self.vm_is_started(),
            Fault::VmMoved => return self.vm_is_moved(),
            Fault::ForeignTask => return self.foreign_task_begins(),
            Fault::VmAsks => return self.vm_asks(),
            Fault::KubernetesOutage => {
                self.kube.down_until = now + Duration::from_secs(self.rng.u64(2..40));
                self.kube.cut();
            }
            Fault::WatchCut => self.kube.cut(),
            Fault::HistoryCompacted => self.kube.compact(),
            Fault::WatchLags => {
                let until = now + Duration::from_secs(self.rng.u64(10..120));
                self.kube.lag = (until, Duration::from_millis(self.rng.u64(100..8_000)));
            }
            Fault::KindForbidden => self.kind_is_forbidden(),
            Fault::LabelLost => {
                let node = self.any_node();
                self.tell(node_name(node), "loses its label");
                self.set_label(node, false);
                self.within(5..200, WorldEvent::LabelIsBack(node));
            }
            Fault::NodeDeleted => return self.node_is_deleted(),
            Fault::EtcdRestored => self.snapshot_is_taken(),
            Fault::ReadyLost => return self.ready_is_lost(),
            Fault::PluginEnds => return self.plugin_ends(),
            Fault::AnnotationsRemoved => return self.annotations_are_removed(),
            Fault::CordonTaken => return self.cordon_is_taken(),
            Fault::ClockSteps => self.clock_steps(),
            Fault::ReplicaKilled => self.any_replica().send_modify(|orders| orders.kills += 1),
            Fault::ReplicaStopped => self.any_replica().send_modify(|orders| orders.stops += 1),
            Fault::SettingsChange => self.settings_change(),
            Fault::ReplicaCutOff => self.replica_is_cut_off(),
            Fault::HostileKubelet => return self.kubelet_lies(),
            Fault::HostileTenant => self.tenant_asks(),
            // These happen at a request, a task, a guest shutdown, a boot or an eviction.
            Fault::VcenterRefuses
            | Fault::VcenterReplyLost
            | Fault::VcenterUnavailable
            | Fault::VcenterSilent
            | Fault::VcenterLate
            | Fault::VcenterGarbled
            | Fault::KubernetesGarbled
            | Fault::PollCut
            | Fault::PollReplyLate
            | Fault::TaskUpdateLost
            | Fault::TaskFails
            | Fault::TaskHangs
            | Fault::KubernetesRefuses
            | Fault::KubernetesReplyLost
            | Fault::KubernetesFails
            | Fault::KubernetesThrottles
            | Fault::KubernetesSilent
            | Fault::KubernetesLate
            | Fault::Conflict
            | Fault::GuestIgnores
            | Fault::ToolsStop
            | Fault::ManifestRestored
            | Fault::DriverUncordons
            | Fault::FilesLocked
            | Fault::VmotionFails
            | Fault::PowerOnAsks
            | Fault::CheckpointLost
            | Fault::PodEndsLate => return false,
        }
        true
    }

    /// The wall clock of a replica is set.
    fn clock_steps(&mut self) {
        let replica = self.rng.usize(0..self.plan.replicas);
        let by = SignedDuration::from_secs(self.rng.i64(-7_200..7_200));
        self.tell(
            format!("replica-{replica}"),
            format!("its wall clock steps by {} s", by.as_secs()),
        );
        clock::step(replica, by);
    }

    /// A replica is restarted with other settings, as in a rollout. The others keep theirs.
    fn settings_change(&mut self) {
        let replica = self.rng.usize(0..self.plan.replicas);
        self.has_other_settings[replica] ^= true;
        let which = self.settings_of(self.has_other_settings[replica]);
        let flags = which.flags.join(" ");
        self.tell(format!("replica-{replica}"), format!("gets {flags}"));
        self.orders[replica].send_modify(|orders| orders.stops += 1);
    }

    /// A drain begins. A change at any time seldom meets one that is blocked.
    pub fn settings_may_change_in_drain(&mut self) {
        if self.plan.faults.has(Fault::SettingsChange) {
            self.within(60..400, WorldEvent::Fault(Fault::SettingsChange));
        }
    }

    /// A replica does not reach vCenter, the kube-apiserver, or both.
    fn replica_is_cut_off(&mut self) {
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

    /// All that is left of faults is repaired.
    pub fn repair(&mut self) {
        for host in 0..self.vcenter.hosts.len() {
            self.host_responds(host);
        }
        self.refused_logins.until = Duration::ZERO;
        for vm in 0..self.plan.nodes {
            self.question_is_answered(vm);
        }
        self.tasks_end();
        for node in 0..self.plan.nodes {
            self.set_label(node, true);
            self.register_node(node);
        }
    }

    fn any_replica(&mut self) -> &watch::Sender<Orders> {
        let replica = self.rng.usize(0..self.plan.replicas);
        &self.orders[replica]
    }

    pub(crate) fn any_node(&mut self) -> usize {
        self.rng.usize(0..self.plan.nodes)
    }

    /// One of the nodes for which this holds.
    pub(crate) fn any_node_where(&mut self, holds: impl Fn(&Self, usize) -> bool) -> Option<usize> {
        let nodes: Vec<usize> = (0..self.plan.nodes).filter(|node| holds(self, *node)).collect();
        self.any_of(&nodes)
    }

    /// One of some candidates. There may be none.
    pub(crate) fn any_of(&mut self, candidates: &[usize]) -> Option<usize> {
        let index = self.rng.usize(0..candidates.len().max(1));
        candidates.get(index).copied()
    }

    /// A time of so many seconds.
    pub(crate) fn seconds(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.rng.u64(range.start * 1_000..range.end * 1_000))
    }

    /// An event happens within so many seconds.
    pub(crate) fn within(&mut self, seconds: Range<u64>, event: WorldEvent) {
        let after = self.seconds(seconds);
        self.queue.after(after, event);
    }
}
