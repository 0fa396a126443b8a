//! What vCenter reports of hosts, clusters, VMs and tasks, and what this process has seen of hosts.

mod absences;
mod failed_maintenances;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use self::absences::Absences;
use self::failed_maintenances::FailedMaintenances;
use super::{Inventory, Source};
use crate::facts::vsphere::{ClusterRules, Compute, Host, Task, Vm, VsphereUpdate};
use crate::ids::{ComputeRef, HostRef, TaskRef, VmRef};
use crate::maintenance::clock::{Deadline, Monotonic, Now};
use crate::maintenance::observed::{AttemptOutcome, FailedMaintenance};
use crate::maintenance::placement::HostSurvey;

/// How long a host counts as updated after it left maintenance mode. The hosts of a cluster are updated one after another, an hour or
/// more each where they drain and restart.
const ROLLING_UPGRADE: Duration = Duration::from_secs(24 * 3600);

/// How many tasks are kept for each VM, on average. vCenter lists an ended task for ten minutes and does not say when it no longer
/// does. In a session that lasts for months, backups alone are thousands.
const TASKS_PER_VM: usize = 16;

/// The objects of vCenter.
#[derive(Clone, Debug)]
pub(super) struct VcenterStore {
    source: Source<String>,
    hosts: BTreeMap<HostRef, Arc<Host>>,
    computes: BTreeMap<ComputeRef, Compute>,
    vms: BTreeMap<VmRef, Vm>,
    tasks: BTreeMap<TaskRef, Task>,
    surveys: BTreeMap<HostRef, HostSurvey>,
    /// The hosts whose latest maintenance task failed.
    failed: FailedMaintenances,
    /// The hosts that vCenter lost, until they have stayed connected for long enough.
    absences: Absences,
    /// When hosts left maintenance mode.
    left_maintenance: BTreeMap<HostRef, Monotonic>,
    /// The VMs that vCenter shuts down by a compute policy.
    evacuated_by_policy: BTreeSet<VmRef>,
}

impl VcenterStore {
    pub(super) fn new(host_settle: Duration) -> Self {
        Self {
            source: Source::disconnected("vCenter"),
            hosts: BTreeMap::new(),
            computes: BTreeMap::new(),
            vms: BTreeMap::new(),
            tasks: BTreeMap::new(),
            surveys: BTreeMap::new(),
            failed: FailedMaintenances::default(),
            absences: Absences::new(host_settle),
            left_maintenance: BTreeMap::new(),
            evacuated_by_policy: BTreeSet::new(),
        }
    }

    /// Why vCenter is disconnected, if it is.
    pub(super) fn disconnected(&self) -> Option<&str> {
        self.source.disconnected.as_deref()
    }

    /// Whether the rest of a set is awaited. It follows soon, and may contradict the facts so far.
    pub(super) fn is_set_incomplete(&self) -> bool {
        self.source.disconnected.is_none() && self.source.is_incomplete
    }

    pub(super) fn host(&self, moref: &HostRef) -> Option<&Arc<Host>> {
        self.hosts.get(moref)
    }

    pub(super) fn hosts(&self) -> impl Iterator<Item = &Arc<Host>> {
        self.hosts.values()
    }

    pub(super) fn compute(&self, moref: &ComputeRef) -> Option<&Compute> {
        self.computes.get(moref)
    }

    pub(super) fn cluster_of(&self, host: &HostRef) -> Option<&ComputeRef> {
        self.host(host)?.compute.as_ref()
    }

    /// The rules of a cluster; none while they are unknown.
    pub(super) fn rules_of(&self, compute: Option<&ComputeRef>) -> Arc<ClusterRules> {
        let compute = compute.and_then(|moref| self.compute(moref));
        compute
            .map(|compute| Arc::clone(&compute.rules))
            .unwrap_or_default()
    }

    pub(super) fn vm(&self, moref: &VmRef) -> Option<&Vm> {
        self.vms.get(moref)
    }

    pub(super) fn task(&self, moref: &TaskRef) -> Option<&Task> {
        self.tasks.get(moref)
    }

    pub(super) fn tasks_of(&self, vm: &VmRef) -> impl Iterator<Item = &Task> + Clone {
        self.tasks
            .values()
            .filter(move |task| task.vm.as_ref() == Some(vm))
    }

    pub(super) fn survey(&self, host: &HostRef) -> Option<&HostSurvey> {
        self.surveys.get(host)
    }

    pub(super) fn set_survey(&mut self, host: HostRef, survey: HostSurvey) {
        self.surveys.insert(host, survey);
    }

    /// The latest maintenance of a host, if it failed.
    pub(super) fn failed_maintenance(&self, host: &HostRef) -> Option<&FailedMaintenance> {
        self.failed.failure_of(host)
    }

    /// Whether the host has left maintenance mode recently, as far as this process has seen it.
    pub(super) fn is_maintained(&self, host: &HostRef) -> bool {
        self.left_maintenance.contains_key(host)
    }

    /// When a host that is back may be used, if that is not yet so.
    pub(super) fn settles_at(&self, host: &HostRef) -> Option<Deadline> {
        self.absences.settles_at(host)
    }

    /// When the next host may be used.
    pub(super) fn next_settled(&self) -> Option<Monotonic> {
        self.absences.next_settled()
    }

    /// Whether vCenter itself shuts the VM down when its host enters maintenance.
    pub(super) fn is_evacuated_by_power_off(&self, vm: &Vm) -> bool {
        vm.evacuation_power_off || self.evacuated_by_policy.contains(&vm.moref)
    }

    /// Forgets what has lasted long enough. Returns whether there was something.
    pub(super) fn set_time(&mut self, now: Monotonic) -> bool {
        let before = self.left_maintenance.len();
        self.left_maintenance
            .retain(|_, at| now < at.after(ROLLING_UPGRADE));
        let is_forgotten = self.left_maintenance.len() < before;
        self.absences.end(now) || is_forgotten
    }

    /// Whether an update that is about to be applied changes something.
    pub(super) fn is_change(&self, update: &VsphereUpdate) -> bool {
        match update {
            VsphereUpdate::Host(host) => self.hosts.get(&host.moref) != Some(host),
            VsphereUpdate::Vm(vm) => self.vms.get(&vm.moref) != Some(vm),
            VsphereUpdate::EvacuationPolicies { vms } => *vms != self.evacuated_by_policy,
            VsphereUpdate::Settled => self.source.disconnected.is_some(),
            VsphereUpdate::Reset
            | VsphereUpdate::HostGone(_)
            | VsphereUpdate::Compute(_)
            | VsphereUpdate::ComputeGone(_)
            | VsphereUpdate::VmGone(_)
            | VsphereUpdate::Task(_)
            | VsphereUpdate::TaskGone(_)
            | VsphereUpdate::Found { .. }
            | VsphereUpdate::OutOfScope { .. }
            | VsphereUpdate::Lost { .. } => true,
        }
    }

    fn apply(&mut self, update: VsphereUpdate, now: Now) {
        // Policies are no part of a set of updates.
        if !matches!(update, VsphereUpdate::EvacuationPolicies { .. }) {
            self.source.is_incomplete =
                !matches!(update, VsphereUpdate::Settled | VsphereUpdate::Lost { .. });
        }
        match update {
            VsphereUpdate::Reset => {
                self.source.disconnected = Some("vCenter is sending its whole inventory again".to_owned());
                self.source.seen.clear();
            }
            VsphereUpdate::Host(host) => self.apply_host(host, now),
            VsphereUpdate::HostGone(host) => {
                self.hosts.remove(&host);
                self.surveys.remove(&host);
                self.failed.forget(&host);
                self.absences.forget(&host);
                self.left_maintenance.remove(&host);
            }
            VsphereUpdate::Compute(compute) => {
                self.see(compute.moref.as_str());
                self.computes.insert(compute.moref.clone(), compute);
            }
            VsphereUpdate::ComputeGone(compute) => {
                self.computes.remove(&compute);
            }
            VsphereUpdate::Vm(vm) => {
                self.see(vm.moref.as_str());
                self.vms.insert(vm.moref.clone(), vm);
            }
            VsphereUpdate::VmGone(vm) => {
                self.vms.remove(&vm);
            }
            VsphereUpdate::Task(task) => {
                self.see(task.moref.as_str());
                self.tasks.insert(task.moref.clone(), task);
            }
            VsphereUpdate::TaskGone(task) => {
                self.tasks.remove(&task);
            }
            VsphereUpdate::EvacuationPolicies { vms } => self.evacuated_by_policy = vms,
            VsphereUpdate::Settled => self.settle(),
            VsphereUpdate::Lost { why } => self.source.disconnected = Some(why),
            // The answers of lookups are kept elsewhere.
            VsphereUpdate::Found { .. } | VsphereUpdate::OutOfScope { .. } => {}
        }
    }

    /// An object is reported. In a whole list, those that are not reported do not exist.
    fn see(&mut self, moref: &str) {
        if self.source.disconnected.is_some() {
            self.source.seen.insert(moref.to_owned());
        }
    }

    fn apply_host(&mut self, host: Arc<Host>, now: Now) {
        self.see(host.moref.as_str());
        let known = self.hosts.get(&host.moref);
        let is_rebuilt = self.source.disconnected.is_some();
        self.failed.record_host(&host, known.filter(|_| is_rebuilt), now);
        self.absences.record_host(&host, now);
        let was_in = known.is_some_and(|known| known.in_maintenance == Some(true));
        if was_in && host.in_maintenance == Some(false) {
            self.left_maintenance.insert(host.moref.clone(), now.monotonic);
        }
        self.hosts.insert(host.moref.clone(), host);
    }

    /// The set is complete: objects of a whole list that were not reported do not exist.
    fn settle(&mut self) {
        self.forget_ended_tasks();
        if self.source.disconnected.take().is_none() {
            return;
        }
        let seen = std::mem::take(&mut self.source.seen);
        self.hosts.retain(|moref, _| seen.contains(moref.as_str()));
        self.computes.retain(|moref, _| seen.contains(moref.as_str()));
        self.vms.retain(|moref, _| seen.contains(moref.as_str()));
        self.tasks.retain(|moref, _| seen.contains(moref.as_str()));
        self.failed.retain(&seen);
        self.absences.retain(&seen);
        self.surveys.clear();
    }

    /// Forgets the older half of the ended tasks when there are too many. A new session does not list them either.
    fn forget_ended_tasks(&mut self) {
        if self.tasks.len() <= TASKS_PER_VM * (self.vms.len() + 1) {
            return;
        }
        let ended = self.tasks.values().filter(|task| task.has_ended());
        let mut ended: Vec<(Timestamp, TaskRef)> =
            ended.map(|task| (task.queued_at, task.moref.clone())).collect();
        ended.sort_unstable();
        for (_, task) in &ended[..ended.len().div_ceil(2)] {
            self.tasks.remove(task);
        }
    }
}

impl Inventory {
    pub(super) fn apply_vsphere(&mut self, update: VsphereUpdate) {
        match &update {
            VsphereUpdate::Found { key, vms } => self.lookups.record(key.clone(), vms.clone()),
            VsphereUpdate::OutOfScope { keys } => self.lookups.set_out_of_scope(keys.clone()),
            VsphereUpdate::Reset => self.lookups.set_out_of_scope(BTreeSet::new()),
            VsphereUpdate::HostGone(host) => {
                self.last_episodes.remove(host);
            }
            VsphereUpdate::Task(task) => {
                self.settle_drs_power_on(task);
                let states = self.node_states.values_mut();
                states.for_each(|local| local.settle(task));
            }
            VsphereUpdate::TaskGone(task) => self.lose_task(task),
            VsphereUpdate::Settled => return self.settle_vcenter(),
            VsphereUpdate::Host(_)
            | VsphereUpdate::Compute(_)
            | VsphereUpdate::ComputeGone(_)
            | VsphereUpdate::Vm(_)
            | VsphereUpdate::VmGone(_)
            | VsphereUpdate::EvacuationPolicies { .. }
            | VsphereUpdate::Lost { .. } => {}
        }
        self.vcenter.apply(update, self.now);
    }

    /// vCenter no longer has the task, so its result is unknown. Its effect shows on the VM.
    fn lose_task(&mut self, task: &TaskRef) {
        let attempts = self
            .node_states
            .values_mut()
            .flat_map(|local| local.attempts.values_mut());
        for attempt in attempts {
            if attempt.outcome.running_task() == Some(task) {
                attempt.outcome = AttemptOutcome::Done;
            }
        }
    }

    /// The set is complete.
    fn settle_vcenter(&mut self) {
        let is_rebuilt = self.vcenter.disconnected().is_some();
        self.vcenter.apply(VsphereUpdate::Settled, self.now);
        if !is_rebuilt {
            return;
        }
        let vcenter = &self.vcenter;
        self.last_episodes.retain(|host, _| vcenter.host(host).is_some());
        // The result of a task that vCenter no longer has is unknown. Its effect is repeated if the VM does not show it.
        for local in self.node_states.values_mut() {
            local.attempts.retain(|_, attempt| {
                let running = attempt.outcome.running_task();
                running.is_none_or(|task| vcenter.task(task).is_some())
            });
        }
    }
}

#[cfg(test)]
mod tests;
