//! Retries a power-on that was refused, where the VM is.

use std::time::Duration;

use super::context::{PhaseContext, PhaseStep, retry_wait, task_wait};
use crate::maintenance::effect::{Effect, EffectKind, PowerOnTarget};
use crate::maintenance::observed::AttemptOutcome;

/// The longest interval between two tries of a host that has refused to power the VM on for good.
const HERE_AGAIN_MAX: Duration = Duration::from_secs(600);

/// Within that share of the time so far the next such try comes.
const SHARE: u32 = 4;

impl PhaseContext<'_> {
    /// Retries the power-on that DRS or the host where the VM is registered refused. It is retried from this phase, because a change
    /// of phase would cost two writes per attempt. The VM is not moved for it. DRS is also asked where the own host is back and
    /// refuses the VM: DRS may have given the device to another VM meanwhile.
    pub(super) fn power_on_again(self) -> Option<PhaseStep> {
        let place = self.place(self.drs() && !self.may_stay());
        let may_ask = match &place {
            Some(PowerOnTarget::Drs) => true,
            Some(PowerOnTarget::Host(_)) => self.may_be_here() && self.vm.host.takes_vms(),
            None => false,
        };
        if self.relocation().is_some() || !may_ask {
            return None;
        }
        let is_elsewhere = matches!(place, Some(PowerOnTarget::Host(_))) && !self.is_at_home();
        let effect = Effect::PowerOn {
            vm: self.vm.moref.clone(),
            place: place?,
        };
        if is_elsewhere {
            // Its devices may be those of another host.
            let has_fixed_devices = !self.episode.home_devices.is_empty();
            return (!has_fixed_devices).then(|| self.power_on_here_again(effect));
        }
        let Some(attempt) = self.seen.attempts.get(&EffectKind::PowerOn) else {
            // An earlier leader was refused. Its own host is preferred, so the survey of the hosts comes first.
            let waiting_on = task_wait(EffectKind::PowerOn);
            return self.has_surveyed().then(|| PhaseStep::act(effect, waiting_on));
        };
        match &attempt.outcome {
            AttemptOutcome::Refused(refusal) => {
                let at = self.retry_at(attempt, refusal);
                let waiting_on = if self.is_entry_overdue() {
                    self.awaited_host()
                } else {
                    retry_wait(EffectKind::PowerOn, refusal.message.clone(), at)
                };
                let step = if self.now.monotonic >= at.monotonic {
                    PhaseStep::act(effect, waiting_on)
                } else {
                    PhaseStep::wait_until(waiting_on, at.monotonic)
                };
                let deadline = self.phase_deadline(self.policy.power_on_timeout);
                Some(self.unless_overdue(deadline, step))
            }
            AttemptOutcome::Running(_) => Some(PhaseStep::wait(task_wait(EffectKind::PowerOn))),
            AttemptOutcome::Asked | AttemptOutcome::Done => None,
        }
    }

    /// Tries another host than the VM's own again, which has refused to power it on for good: a file may be locked for minutes. The
    /// intervals grow with the time in the phase.
    fn power_on_here_again(self, effect: Effect) -> PhaseStep {
        let attempt = self.seen.attempts.get(&EffectKind::PowerOn);
        if attempt.is_some_and(|attempt| attempt.outcome.running_task().is_some()) {
            return PhaseStep::wait(task_wait(EffectKind::PowerOn));
        }
        let last = attempt.map_or(self.seen.record_seen.phase_at, |attempt| attempt.at.monotonic);
        let waited = self.episode.elapsed.span();
        let waited = waited.saturating_sub(self.now.monotonic.since(last));
        let least = self.policy.retry_max;
        let at = last.after((waited / SHARE).clamp(least, least.max(HERE_AGAIN_MAX)));
        if self.now.monotonic >= at {
            PhaseStep::act(effect, self.awaited_host())
        } else {
            PhaseStep::wait_until(self.awaited_host(), at)
        }
    }
}
