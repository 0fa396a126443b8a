//! Applies the reports of effects.

use super::{Inventory, NodeState};
use crate::facts::kubernetes::Budget;
use crate::facts::vsphere::{PowerState, Task, TaskState};
use crate::ids::{HostRef, NodeName};
use crate::maintenance::clock::Now;
use crate::maintenance::effect::EffectKind;
use crate::maintenance::effect_report::{EffectReport, EffectResult};
use crate::maintenance::observed::{AttemptOutcome, EffectAttempt, EffectRefusal};

impl Inventory {
    /// Applies a failed power-on task of a VM to the attempt that went through DRS. The DRS task itself succeeds in any case, and the
    /// failure is in a task of the VM (`ClusterPowerOnVmResult` in the API reference). A repeated report counts once.
    pub(super) fn settle_drs_power_on(&mut self, task: &Task) {
        let TaskState::Error(fault) = &task.state else {
            return;
        };
        let was_failed = self
            .vcenter
            .task(&task.moref)
            .is_some_and(|known| matches!(known.state, TaskState::Error(_)));
        let Some(vm) = task
            .vm
            .as_ref()
            .filter(|_| !was_failed && task.makes() == Some(PowerState::On))
        else {
            return;
        };
        let nodes: Vec<NodeName> = self.nodes_of(vm).cloned().collect();
        for node in nodes {
            let attempts = self.node_states.get_mut(&node).map(|local| &mut local.attempts);
            let Some(attempt) = attempts.and_then(|all| all.get_mut(&EffectKind::PowerOn)) else {
                continue;
            };
            let is_by_drs = attempt.host.is_none() && attempt.task.as_ref() != Some(&task.moref);
            if is_by_drs && attempt.outcome.refusal().is_none() {
                attempt.refuse(EffectRefusal::from(fault));
            }
        }
    }

    pub(super) fn apply_effect(&mut self, report: EffectReport) {
        let local = self.node_states.entry(report.node).or_default();
        match report.found {
            EffectResult::Tried {
                kind,
                at,
                host,
                outcome,
            } => {
                let attempt = EffectAttempt::after(local.attempts.get(&kind), at, host, outcome);
                let task = attempt.task.clone();
                local.attempts.insert(kind, attempt);
                // The task may have ended before its moref was reported.
                let ended = task.and_then(|task| self.vcenter.task(&task));
                ended.into_iter().for_each(|task| local.settle(task));
            }
            EffectResult::Evictions(_) => {}
            EffectResult::Drain(mut round) => {
                let blocked = &self.blocked_budgets;
                round.follow(local.drain.as_ref(), |namespace, name| {
                    let is_same = |budget: &Budget| budget.namespace == namespace && budget.name == name;
                    blocked.iter().any(is_same)
                });
                local.drain = Some(round);
            }
            EffectResult::Volumes(mut report) => {
                report.follow(local.volumes.as_ref());
                local.volumes = Some(report);
            }
            EffectResult::Surveyed { host, reading } => {
                self.vcenter.set_survey(host, reading);
            }
            EffectResult::MachineGuarded(report) => local.machine_guards = Some(report),
            EffectResult::DryRunRecord {
                record,
                unschedulable,
                fulfilled,
            } => local.dry_run.write(*record, unschedulable, fulfilled),
            EffectResult::DryRunEffect(effect) => local.dry_run.perform(&effect),
        }
    }
}

impl NodeState {
    /// Records the result of `task` in the attempt that waits for it.
    pub(super) fn settle(&mut self, task: &Task) {
        for attempt in self.attempts.values_mut() {
            if attempt.outcome.running_task() != Some(&task.moref) {
                continue;
            }
            match &task.state {
                TaskState::Queued | TaskState::Running => {}
                TaskState::Success => {
                    attempt.outcome = AttemptOutcome::Done;
                    attempt.refusals = 0;
                }
                TaskState::Error(fault) => attempt.refuse(EffectRefusal::from(fault)),
            }
        }
    }
}

impl EffectAttempt {
    /// An attempt with this outcome, after `before`.
    fn after(before: Option<&Self>, at: Now, host: Option<HostRef>, outcome: AttemptOutcome) -> Self {
        // What one host refused says nothing about another one.
        let same_host = before.filter(|attempt| attempt.host == host);
        let refused = same_host.map_or(0, |attempt| attempt.refusals);
        let refused_since = before.and_then(|attempt| attempt.refused_alike(&outcome));
        let (refusals, task) = match &outcome {
            AttemptOutcome::Refused(_) => (refused.saturating_add(1), None),
            AttemptOutcome::Done => (0, None),
            AttemptOutcome::Asked => (refused, None),
            AttemptOutcome::Running(task) => (refused, Some(task.clone())),
        };
        Self {
            at,
            host,
            task,
            refusals,
            refused_since: refused_since.unwrap_or(at),
            tries: before.map_or(0, |attempt| attempt.tries).saturating_add(1),
            outcome,
        }
    }

    /// Since when attempts are refused in this way, if this one was as well.
    fn refused_alike(&self, outcome: &AttemptOutcome) -> Option<Now> {
        let (before, now) = (self.outcome.refusal()?, outcome.refusal()?);
        (before.advice == now.advice).then_some(self.refused_since)
    }

    fn refuse(&mut self, refusal: EffectRefusal) {
        self.outcome = AttemptOutcome::Refused(refusal);
        self.refusals = self.refusals.saturating_add(1);
    }
}

#[cfg(test)]
mod tests;
