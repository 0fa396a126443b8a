//! Applies facts of vCenter.

use super::Inventory;
use crate::facts::vsphere::{self as vsphere, EndOutcome};
use crate::ids::TaskRef;
use crate::maintenance::observed::{AttemptOutcome, FailedMaintenance};

impl Inventory {
    pub(super) fn apply_vsphere(&mut self, update: vsphere::VsphereUpdate) {
        use vsphere::VsphereUpdate;
        if let VsphereUpdate::EvacuationPolicies { vms } = update {
            self.evacuated_by_policy = vms;
            return;
        }
        self.vcenter.is_incomplete = !matches!(update, VsphereUpdate::Settled | VsphereUpdate::Lost { .. });
        match update {
            VsphereUpdate::Reset => {
                self.vcenter.disconnected = Some("vCenter is sending its whole inventory again".to_owned());
                self.vcenter.seen.clear();
                self.out_of_scope.clear();
            }
            VsphereUpdate::Host(host) => {
                self.vcenter.seen.insert(host.moref.to_string());
                self.record_failed_maintenance(&host);
                self.record_absence(&host);
                let known = self.hosts.get(&host.moref);
                let was_in = known.is_some_and(|known| known.in_maintenance == Some(true));
                if was_in && host.in_maintenance == Some(false) {
                    self.left_maintenance
                        .insert(host.moref.clone(), self.now.monotonic);
                }
                self.hosts.insert(host.moref.clone(), host);
            }
            VsphereUpdate::HostGone(host) => {
                self.hosts.remove(&host);
                self.surveys.remove(&host);
                self.interrupted.remove(&host);
                self.absences.remove(&host);
                self.left_maintenance.remove(&host);
                self.last_episodes.remove(&host);
            }
            VsphereUpdate::Compute(compute) => {
                self.vcenter.seen.insert(compute.moref.to_string());
                self.computes.insert(compute.moref.clone(), compute);
            }
            VsphereUpdate::ComputeGone(compute) => {
                self.computes.remove(&compute);
            }
            VsphereUpdate::Vm(vm) => {
                self.vcenter.seen.insert(vm.moref.to_string());
                self.vms.insert(vm.moref.clone(), vm);
            }
            VsphereUpdate::VmGone(vm) => {
                self.vms.remove(&vm);
            }
            VsphereUpdate::Task(task) => {
                self.vcenter.seen.insert(task.moref.to_string());
                let moref = task.moref.clone();
                self.settle_drs_power_on(&task);
                self.tasks.insert(moref.clone(), task);
                for local in self.node_states.values_mut() {
                    local.settle(&moref, &self.tasks);
                }
            }
            VsphereUpdate::Found { key, vms } => {
                if let Some(lookup) = self.urgent_lookups.get_mut(&key) {
                    lookup.is_answered = true;
                }
                self.record_lookup(key, vms);
            }
            VsphereUpdate::OutOfScope { keys } => self.out_of_scope = keys,
            VsphereUpdate::TaskGone(task) => self.lose_task(&task),
            // It is no part of a set of updates.
            VsphereUpdate::EvacuationPolicies { .. } => {}
            VsphereUpdate::Settled => self.settle_vcenter(),
            VsphereUpdate::Lost { why } => self.vcenter.disconnected = Some(why),
        }
    }

    /// Records a failed maintenance task of `host`, until a later one begins or is cancelled. A rebuilt stream does not report the
    /// failed task again, so its absence changes nothing.
    fn record_failed_maintenance(&mut self, host: &vsphere::Host) {
        if host.entering.is_some() || host.in_maintenance == Some(true) {
            self.interrupted.remove(&host.moref);
        }
        let Some(end) = &host.last_end else {
            self.record_lost_maintenance(host);
            return;
        };
        match &end.outcome {
            EndOutcome::Cancelled => {
                self.interrupted.remove(&host.moref);
            }
            EndOutcome::Failed { message } => {
                let is_known = |(task, _): &(TaskRef, FailedMaintenance)| *task == end.task;
                if !self.interrupted.get(&host.moref).is_some_and(is_known) {
                    let interrupted = FailedMaintenance {
                        at: self.now,
                        message: message.clone(),
                    };
                    self.interrupted
                        .insert(host.moref.clone(), (end.task.clone(), interrupted));
                }
            }
        }
    }

    /// Records a maintenance that a rebuilt stream does not report any more: a vCenter that restarts forgets its task, and the host
    /// may go on entering. It counts as failed, because a cancel would be undone at once.
    fn record_lost_maintenance(&mut self, host: &vsphere::Host) {
        let is_rebuilt = self.vcenter.disconnected.is_some();
        let before = self.hosts.get(&host.moref).filter(|_| is_rebuilt);
        let Some(lost) = before.and_then(|before| before.entering.as_ref()) else {
            return;
        };
        if host.entering.is_none() && host.in_maintenance == Some(false) {
            let interrupted = FailedMaintenance {
                at: self.now,
                message: "vCenter does not list its task any more".to_owned(),
            };
            self.interrupted
                .insert(host.moref.clone(), (lost.task.clone(), interrupted));
        }
    }

    /// vCenter no longer has the task, so its result is unknown. Its effect shows on the VM.
    fn lose_task(&mut self, task: &TaskRef) {
        self.tasks.remove(task);
        let attempts = self
            .node_states
            .values_mut()
            .flat_map(|local| local.attempts.values_mut());
        for attempt in attempts {
            if attempt.outcome == AttemptOutcome::Running(task.clone()) {
                attempt.outcome = AttemptOutcome::Done;
            }
        }
    }

    /// The set is complete: objects that were not reported do not exist.
    fn settle_vcenter(&mut self) {
        if self.vcenter.disconnected.take().is_none() {
            return;
        }
        let seen = std::mem::take(&mut self.vcenter.seen);
        self.hosts.retain(|moref, _| seen.contains(moref.as_str()));
        self.last_episodes
            .retain(|moref, _| seen.contains(moref.as_str()));
        self.interrupted.retain(|moref, _| seen.contains(moref.as_str()));
        self.absences.retain(|moref, _| seen.contains(moref.as_str()));
        self.computes.retain(|moref, _| seen.contains(moref.as_str()));
        self.vms.retain(|moref, _| seen.contains(moref.as_str()));
        self.tasks.retain(|moref, _| seen.contains(moref.as_str()));
        self.surveys.clear();
        // The result of a task that vCenter no longer has is unknown. Its effect is repeated if the VM does not show it.
        for local in self.node_states.values_mut() {
            local.attempts.retain(|_, attempt| match &attempt.outcome {
                AttemptOutcome::Running(task) => self.tasks.contains_key(task),
                AttemptOutcome::Asked | AttemptOutcome::Done | AttemptOutcome::Refused(_) => true,
            });
        }
    }
}

#[cfg(test)]
mod tests;
