//! A dry run: logs what would be changed, and reports it as done.

use std::time::Duration;

use super::{Executor, report};
use crate::log_node;
use crate::run_effect::{NotRecorded, Recorded, RunEffect};
use haulout_core::ids::NodeName;
use haulout_core::maintenance::clock::Now;
use haulout_core::maintenance::decide::Transition;
use haulout_core::maintenance::effect::Effect;
use haulout_core::maintenance::effect_report::EffectResult;
use haulout_core::maintenance::episode::Record;
use haulout_core::maintenance::observed::{AttemptOutcome, Observed, PendingReason};
use haulout_kubernetes::drain::{self, PodPending, RoundReport};

/// Calls only what needs no permit, so nothing is changed.
pub struct DryRun {
    executor: Executor,
}

impl DryRun {
    pub fn of(executor: Executor) -> Self {
        Self { executor }
    }

    /// Lists the pods that a round would evict, and reports that none is left.
    async fn list(&self, name: &NodeName, record: &Record, pods_revision: u64, now: Now) -> AttemptOutcome {
        let executor = &self.executor;
        match drain::list_only(&executor.traced(), name, &executor.drain, now).await {
            Ok(round) => {
                let would_evict = |left: &&PodPending| left.why == PendingReason::NotReached;
                let evicted = round.left.iter().filter(would_evict).count();
                log_node!(info, name, record, "dry run: would evict {evicted} pods");
                let done = RoundReport {
                    left: Vec::new(),
                    longest_wait: Duration::ZERO,
                    ..round
                };
                let done = report::of_round(done, pods_revision, (now, Duration::ZERO));
                executor.report(name, EffectResult::Drain(done)).await;
                AttemptOutcome::Done
            }
            Err(error) => super::not_done(error),
        }
    }
}

impl RunEffect for DryRun {
    async fn record(
        &self,
        name: &NodeName,
        _seen: &Observed,
        _before: &Record,
        transition: &Transition,
        _now: Now,
    ) -> Result<Recorded, NotRecorded> {
        let report = EffectResult::DryRunRecord {
            record: Box::new(transition.record.clone()),
            unschedulable: transition.unschedulable,
            fulfilled: transition.fulfilled.as_ref().map(|request| request.uid.clone()),
        };
        self.executor.report(name, report).await;
        Ok(Recorded::Elsewhere)
    }

    async fn perform(&self, name: &NodeName, record: &Record, effect: &Effect, now: Now) {
        let executor = &self.executor;
        let outcome = match effect {
            Effect::DrainRound { pods_revision, .. } => self.list(name, record, *pods_revision, now).await,
            Effect::ListVolumes => executor.list_volumes(name, now).await,
            Effect::Survey { hosts } => executor.survey(name, hosts).await,
            Effect::ShutdownGuest { .. }
            | Effect::PowerOff { .. }
            | Effect::Relocate { .. }
            | Effect::Reconfigure { .. }
            | Effect::SetMachineGuards { .. }
            | Effect::RemoveMachineGuards { .. }
            | Effect::ClearGpus { .. }
            | Effect::PowerOn { .. } => {
                let what = effect.kind().words();
                log_node!(info, name, record, "dry run: would {what} at this point");
                executor
                    .report(name, EffectResult::DryRunEffect(effect.clone()))
                    .await;
                AttemptOutcome::Done
            }
        };
        executor.report_attempt(name, record, effect, now, outcome).await;
    }
}
