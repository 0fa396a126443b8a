//! Applies facts of vCenter.

use super::Inventory;
use crate::facts::vsphere::{self as vsphere, EndOutcome};
use crate::ids::TaskRef;
use crate::maintenance::observed::{AttemptOutcome, FailedMaintenance};

impl Inventory {
    pub(super) fn apply_vsphere(&mut self, update: vsphere::VsphereUpdate) {
        use vsphere::VsphereUpdate;
        self.vcenter.is_open = !matches!(update, VsphereUpdate::Settled | VsphereUpdate::Lost { .. });
        match update {
            VsphereUpdate::Reset => {
                self.vcenter.disconnected = Some("vCenter is sending its whole inventory again".to_owned());
                self.vcenter.seen.clear();
            }
            VsphereUpdate::Host(host) => {
                self.vcenter.seen.insert(host.moref.to_string());
                self.note_end(&host);
                self.hosts.insert(host.moref.clone(), host);
            }
            VsphereUpdate::HostGone(host) => {
                self.hosts.remove(&host);
                self.surveys.remove(&host);
                self.interrupted.remove(&host);
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
                if let Some(pressed) = self.urgent_lookups.get_mut(&key) {
                    pressed.is_answered = true;
                }
                self.answer(key, vms);
            }
            VsphereUpdate::TaskGone(task) => self.lose_task(&task),
            VsphereUpdate::Settled => self.settle_vcenter(),
            VsphereUpdate::Lost { why } => self.vcenter.disconnected = Some(why),
        }
    }

    /// Notes when a maintenance of `host` was seen to fail. It is forgotten when a later one begins or ends otherwise; a stream that
    /// is built anew tells of none, and that is no news.
    fn note_end(&mut self, host: &vsphere::Host) {
        if host.entering.is_some() || host.in_maintenance == Some(true) {
            self.interrupted.remove(&host.moref);
        }
        let Some(end) = &host.last_end else { return };
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

    /// vCenter knows a task no more, and how it ended is not to be had: what it did shows on the VM.
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
        self.computes.retain(|moref, _| seen.contains(moref.as_str()));
        self.vms.retain(|moref, _| seen.contains(moref.as_str()));
        self.tasks.retain(|moref, _| seen.contains(moref.as_str()));
        self.surveys.clear();
        // A task that vCenter no longer knows tells nothing more: its effect is judged by the VM, and repeated if the
        // VM does not show it.
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
