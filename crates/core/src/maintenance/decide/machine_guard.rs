//! Sets the guards on the Machine of a node before its power is cut, and removes them at the end.

use super::context::{PhaseContext, PhaseStep, at_latest, meanwhile};
use super::guards::GUARDS_LOOKED_AT_EVERY;
use super::{Decision, transition_to};
use crate::maintenance::clock::Monotonic;
use crate::maintenance::effect::{Effect, EffectKind};
use crate::maintenance::episode::{Episode, Phase};
use crate::maintenance::machine_guard::MachineGuards;
use crate::maintenance::observed::{AttemptOutcome, RetryAdvice};
use crate::maintenance::waiting::WaitingOn;

/// After how many refusals in a row guards are left that Haulout may not remove.
const FORBIDDEN_MAX: u32 = 3;

/// After how many refusals of any kind they are left where the settings use no guards on Machines any more.
const UNUSED_MAX: u32 = 8;

impl<'a> PhaseContext<'a> {
    /// `step`, or the effect that sets the guards where that is due. The phase goes on while a refused one waits for its retry. A
    /// parked phase stays parked, and its guards are looked at again.
    pub(super) fn guarded(self, step: PhaseStep) -> PhaseStep {
        let PhaseStep::Decided(decision) = &step else {
            return match self.look_at_machine_guards() {
                Some(look) => meanwhile(step, look),
                None => step,
            };
        };
        // A record comes first: it may be that of a request that was sent.
        if is_about_the_end(decision) || matches!(decision, Decision::Write(_)) {
            return step;
        }
        match self.set_machine_guards() {
            Some(first @ PhaseStep::Decided(Decision::Act { .. } | Decision::Write(_))) => first,
            Some(PhaseStep::Decided(Decision::Wait {
                recheck: Some(at), ..
            })) => at_latest(at, step),
            Some(_) | None => step,
        }
    }

    /// The step that comes before the power is cut: the guards have to be set.
    pub(super) fn set_machine_guards(self) -> Option<PhaseStep> {
        let guards = &self.episode.machine_guards;
        // A copy of the record may be from before the guards were removed.
        let is_due = guards.is_due || !self.seen.is_record_on_node;
        if !self.policy.guards.machines || self.seen.node.is_none() {
            return None;
        }
        if !is_due {
            return self.look_at_machine_guards();
        }
        let removal = self.attempted_at(EffectKind::RemoveMachineGuards);
        if let Some(report) = &self.seen.machine_guards
            && report.at >= self.seen.record_seen.at.monotonic
            && Some(report.at) > removal
        {
            return Some(PhaseStep::record(transition_to(Episode {
                machine_guards: guards.with(report),
                ..self.episode.clone()
            })));
        }
        let effect = || {
            Ok(Effect::SetMachineGuards {
                vm: self.episode.vm_uuid.or(self.vm.uuid),
            })
        };
        let waiting_on = WaitingOn::MachineGuards { is_removal: false };
        Some(self.start_or_retry(EffectKind::SetMachineGuards, waiting_on, effect))
    }

    /// The look at guards that were set, while a controller could take the node for broken: somebody may have removed them, and then
    /// the effect sets them again.
    fn look_at_machine_guards(self) -> Option<PhaseStep> {
        let guards = &self.episode.machine_guards;
        let is_away = self.episode.phase.vm_is_off() || self.episode.phase == Phase::Rejoining;
        let is_set = !guards.is_due && !guards.objects.is_empty();
        if !is_away || !is_set || !self.policy.guards.machines || self.seen.node.is_none() {
            return None;
        }
        let waiting_on = WaitingOn::MachineGuards { is_removal: false };
        let last = self.attempted_at(EffectKind::SetMachineGuards);
        let next = last.map(|at| at.after(GUARDS_LOOKED_AT_EVERY));
        Some(match next {
            Some(at) if self.now.monotonic < at => PhaseStep::wait_until(waiting_on, at),
            Some(_) | None => PhaseStep::act(
                Effect::SetMachineGuards {
                    vm: self.episode.vm_uuid.or(self.vm.uuid),
                },
                waiting_on,
            ),
        })
    }

    /// The step that comes before the end of the episode: its guards have to be removed.
    ///
    /// The record first says that they are due. So they are set again if the host or a request asks for the node once more.
    pub(super) fn remove_machine_guards(self) -> Option<PhaseStep> {
        let guards = &self.episode.machine_guards;
        // Where they are due, they may be set although no reply said so, also under settings that use none any more. With a copy of
        // the record they are set again, and a crash may have lost that.
        let may_be_set = guards.is_due || guards.may_be_more || !self.seen.is_record_on_node;
        if guards.objects.is_empty() && !may_be_set || guards.left.is_some() {
            return None;
        }
        let is_nothing_known = guards.objects.is_empty() && guards.may_be_more;
        if !guards.is_due && !is_nothing_known {
            return Some(PhaseStep::record(transition_to(Episode {
                machine_guards: MachineGuards {
                    is_due: true,
                    ..guards.clone()
                },
                ..self.episode.clone()
            })));
        }
        if self.are_removed() {
            return None;
        }
        if let Some(why) = self.removal_is_given_up() {
            return Some(PhaseStep::record(transition_to(Episode {
                machine_guards: MachineGuards {
                    left: Some(why.to_owned()),
                    ..guards.clone()
                },
                ..self.episode.clone()
            })));
        }
        let effect = || {
            Ok(Effect::RemoveMachineGuards {
                vm: self.episode.vm_uuid.or(self.vm.uuid),
                guards: guards.clone(),
            })
        };
        let waiting_on = WaitingOn::MachineGuards { is_removal: true };
        Some(self.start_or_retry(EffectKind::RemoveMachineGuards, waiting_on, effect))
    }

    /// Whether the guards were removed since this record was written, and not set after that.
    fn are_removed(self) -> bool {
        let set = self.attempted_at(EffectKind::SetMachineGuards);
        let removal = self.seen.attempts.get(&EffectKind::RemoveMachineGuards);
        removal.is_some_and(|removal| {
            removal.outcome == AttemptOutcome::Done
                && removal.at.monotonic >= self.seen.record_seen.at.monotonic
                && Some(removal.at.monotonic) > set
        })
    }

    /// Why the guards are left: the rights are gone, or the settings use no such guards any more and the removal keeps failing. No node
    /// stays cordoned for that.
    fn removal_is_given_up(self) -> Option<&'a str> {
        let attempt = self.seen.attempts.get(&EffectKind::RemoveMachineGuards)?;
        let refusal = attempt.outcome.refusal()?;
        let is_forbidden = refusal.advice == RetryAdvice::Person;
        let is_given_up = is_forbidden && attempt.refusals >= FORBIDDEN_MAX
            || !self.policy.guards.machines && attempt.refusals >= UNUSED_MAX;
        is_given_up.then_some(&refusal.message)
    }

    fn attempted_at(self, kind: EffectKind) -> Option<Monotonic> {
        self.seen.attempts.get(&kind).map(|attempt| attempt.at.monotonic)
    }
}

/// Whether the decision ends the episode or removes its guards.
fn is_about_the_end(decision: &Decision) -> bool {
    let waiting_on = match decision {
        Decision::Write(transition) => {
            let next = transition.record.episode();
            return next.is_none_or(|next| next.machine_guards.left.is_some());
        }
        Decision::Act { waiting_on, .. } | Decision::Wait { waiting_on, .. } => waiting_on,
        Decision::Idle => return false,
    };
    matches!(
        waiting_on,
        WaitingOn::MachineGuards { is_removal: true }
            | WaitingOn::Retry {
                effect: EffectKind::RemoveMachineGuards,
                ..
            }
    )
}
