//! Sets the GPU counts of an earlier boot on the Node to 0.
//!
//! The kubelet of a new boot reports 0 until the device plugin has registered. One that has lost its checkpoint of device plugins does
//! not know the resource, and leaves the count on the Node as it is: the node would count as back before it has its GPUs. So the counts
//! are set to 0 while the VM is off, and what the Node shows afterwards is of a later boot. The scheduler sees it as well.
//!
//! A VM that somebody else powers on may be on before that. Then it is done before the node counts as back: a kubelet that knows its
//! GPUs writes their count again with its next status.
//!
//! Neither a power-on nor an uncordon waits for it for long: it may be forbidden.

use std::collections::BTreeSet;

use super::context::{PhaseContext, PhaseStep, at_latest, retry_wait};
use super::{Decision, transition_to};
use crate::maintenance::clock::Now;
use crate::maintenance::effect::{Effect, EffectKind};
use crate::maintenance::episode::Episode;
use crate::maintenance::observed::{AttemptOutcome, EffectAttempt, EffectRefusal, PowerState, RetryAdvice};
use crate::maintenance::waiting::WaitingOn;

/// How many refusals in a row are waited for.
const REFUSALS_MAX: u32 = 5;

/// The attempts in an episode. Somebody may write the counts again while the VM is off.
const TRIES_MAX: u32 = 20;

/// Whether a Node shows the resource in its status. The devices of a driver are in ResourceSlices, which have a time of their own; its
/// name has no slash.
fn is_of_status(resource: &str) -> bool {
    resource.contains('/')
}

/// Whether nothing waits for the next attempt.
fn is_given_up(attempt: &EffectAttempt) -> bool {
    let is_hopeless =
        |refusal: &EffectRefusal| refusal.advice == RetryAdvice::Person || attempt.refusals >= REFUSALS_MAX;
    attempt.tries >= TRIES_MAX || attempt.outcome.refusal().is_some_and(is_hopeless)
}

impl PhaseContext<'_> {
    /// `step`, or before it the effect where it is due. Of all steps, a power-on alone waits for it.
    pub(super) fn without_old_gpus(self, step: PhaseStep) -> PhaseStep {
        let is_off = self.vm.power == Some(PowerState::Off) && self.episode.phase.vm_is_off();
        let (waiting_on, recheck, is_power_on) = match &step {
            PhaseStep::Decided(Decision::Wait { waiting_on, recheck }) if is_off => {
                (waiting_on.clone(), *recheck, false)
            }
            PhaseStep::Decided(Decision::Act {
                effect: Effect::PowerOn { .. },
                waiting_on,
                recheck,
            }) if is_off => (waiting_on.clone(), *recheck, true),
            PhaseStep::Decided(_) | PhaseStep::Park { .. } => return step,
        };
        let resources = self.shown_gpus();
        if resources.is_empty() {
            return step;
        }
        let attempt = self.seen.attempts.get(&EffectKind::ClearGpus);
        let next = attempt.map(|attempt| (attempt, self.clear_again_at(attempt)));
        match next {
            Some((attempt, _)) if is_power_on && is_given_up(attempt) => step,
            Some((attempt, _)) if attempt.tries >= TRIES_MAX => step,
            Some((attempt, at)) if self.now.monotonic < at.monotonic => {
                if is_power_on {
                    PhaseStep::wait_until(clear_wait(attempt, at, waiting_on), at.monotonic)
                } else {
                    at_latest(at.monotonic, step)
                }
            }
            Some(_) | None => PhaseStep::Decided(Decision::Act {
                effect: self.clear_gpus(resources),
                waiting_on,
                recheck,
            }),
        }
    }

    /// The step before a node with another boot counts as back, where the counts of the earlier boot were not set to 0.
    pub(super) fn clear_gpus_first(self) -> Option<PhaseStep> {
        let episode = self.episode;
        let has_some = episode.gpus_before.keys().any(|resource| is_of_status(resource));
        if !episode.powered_off || episode.gpus_cleared || !has_some || self.seen.node.is_none() {
            return None;
        }
        if self.gpus_are_cleared() {
            return Some(PhaseStep::record(transition_to(Episode {
                gpus_cleared: true,
                ..episode.clone()
            })));
        }
        let resources = self.shown_gpus();
        let resource = resources.first().cloned().unwrap_or_default();
        let waiting_on = WaitingOn::Gpus {
            want: episode.gpus_before.get(&resource).copied().unwrap_or_default(),
            have: 0,
            resource,
        };
        let attempt = self.seen.attempts.get(&EffectKind::ClearGpus);
        let next = attempt.map(|attempt| (attempt, self.clear_again_at(attempt)));
        match next {
            Some((attempt, _)) if attempt.tries >= TRIES_MAX => None,
            Some((attempt, at)) if self.now.monotonic < at.monotonic => {
                // The refusal of an earlier phase says nothing about this one.
                let is_of_phase = attempt.at.monotonic >= self.seen.record_seen.phase_at;
                (!is_of_phase || !is_given_up(attempt))
                    .then(|| PhaseStep::wait_until(clear_wait(attempt, at, waiting_on), at.monotonic))
            }
            Some(_) | None => Some(PhaseStep::act(self.clear_gpus(resources), waiting_on)),
        }
    }

    /// Whether the counts on the Node are of a later boot, or there are none.
    pub(super) fn gpus_are_cleared(self) -> bool {
        if self.vm.power == Some(PowerState::Off) {
            return self.shown_gpus().is_empty();
        }
        let attempt = self.seen.attempt(EffectKind::ClearGpus);
        let is_done = attempt.is_some_and(|attempt| attempt.outcome == AttemptOutcome::Done);
        let was_off = self.episode.powered_off || self.episode.phase.vm_is_off();
        self.episode.gpus_cleared || was_off && (is_done || self.shown_gpus().is_empty())
    }

    /// The GPU resources before of which the Node shows a count.
    fn shown_gpus(self) -> BTreeSet<String> {
        if self.seen.node.is_none() {
            return BTreeSet::new();
        }
        let (allocatable, capacity) = (&self.node.gpus, &self.node.gpu_capacity);
        let is_shown = |resource: &&String| {
            let counts = [allocatable.get(*resource), capacity.get(*resource)];
            is_of_status(resource) && counts.into_iter().flatten().any(|count| *count > 0)
        };
        let before = self.episode.gpus_before.keys();
        before.filter(is_shown).cloned().collect()
    }

    fn clear_gpus(self, resources: BTreeSet<String>) -> Effect {
        Effect::ClearGpus {
            node: self.node.uid.clone(),
            resource_version: self.node.resource_version,
            boot: self.node.boot_id.clone(),
            resources,
        }
    }

    fn clear_again_at(self, attempt: &EffectAttempt) -> Now {
        match attempt.outcome.refusal() {
            Some(refusal) => self.retry_at(attempt, refusal),
            None => attempt.at.after(self.policy.backoff(attempt.tries)),
        }
    }
}

/// The wait for the next attempt.
fn clear_wait(attempt: &EffectAttempt, at: Now, waiting_on: WaitingOn) -> WaitingOn {
    match attempt.outcome.refusal() {
        Some(refusal) => retry_wait(EffectKind::ClearGpus, refusal.message.clone(), at),
        None => waiting_on,
    }
}
