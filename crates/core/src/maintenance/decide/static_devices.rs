//! Gives a VM with devices at fixed addresses those of the host where it is about to be powered on.

use super::context::{PhaseContext, PhaseStep, retry_wait, task_wait};
use super::transition_to;
use crate::maintenance::effect::{Effect, EffectKind};
use crate::maintenance::episode::{Episode, RefusedMove};
use crate::maintenance::observed::{AttemptOutcome, EffectAttempt, EffectRefusal, RetryAdvice};
use crate::maintenance::placement::{DeviceOffer, RejectedHost, RejectionReason};
use crate::maintenance::waiting::WaitingOn;

impl PhaseContext<'_> {
    /// The step before a power-on, where the VM may have the devices of another host.
    ///
    /// The same address exists on hosts of the same kind, so it does not show to which host it belongs: vCenter is asked in each phase.
    /// At its own host, a VM has the right devices until it left that host in this episode.
    pub(super) fn reconfigure_first(self) -> Option<PhaseStep> {
        let devices = self.seen.static_devices.as_ref()?;
        let here = self.vm.host_ref.as_ref()?;
        if self.is_at_home() && self.episode.home_devices.is_empty() {
            return None;
        }
        let attempt = self.seen.attempt(EffectKind::Reconfigure);
        let attempt = attempt.filter(|attempt| attempt.host.as_ref() == Some(here));
        if let Some(attempt) = attempt {
            match &attempt.outcome {
                AttemptOutcome::Done => return None,
                AttemptOutcome::Refused(refusal) if self.is_refused_here(attempt, refusal) => {
                    return Some(self.choose_again(Some((here, RefusedMove::PowerOn, refusal))));
                }
                AttemptOutcome::Running(_) | AttemptOutcome::Asked | AttemptOutcome::Refused(_) => {}
            }
        }
        let is_known = devices.offer != DeviceOffer::Unreported && !devices.devices.is_empty();
        if self.episode.home_devices.is_empty() && is_known {
            // Recorded before the first change, so that the VM gets its own devices back at home.
            return Some(PhaseStep::record(transition_to(Episode {
                home_devices: devices.devices.clone(),
                ..self.episode.clone()
            })));
        }
        let step = match &devices.offer {
            DeviceOffer::Unreported => PhaseStep::wait(WaitingOn::Survey),
            DeviceOffer::Unsurveyed => self.survey_here(WaitingOn::Survey),
            DeviceOffer::Rejected(why) => self.without_devices(why),
            DeviceOffer::Devices(changes) => {
                let waiting_on = task_wait(EffectKind::Reconfigure);
                self.start_or_retry(EffectKind::Reconfigure, waiting_on, || {
                    Ok(Effect::Reconfigure {
                        vm: self.vm.moref.clone(),
                        host: here.clone(),
                        devices: changes.clone(),
                    })
                })
            }
        };
        Some(self.unless_overdue(self.phase_deadline(self.policy.power_on_timeout), step))
    }

    /// Whether the VM has to leave this host, which is not its own. A missing privilege is missing on each host.
    fn is_refused_here(self, attempt: &EffectAttempt, refusal: &EffectRefusal) -> bool {
        let is_about_host =
            self.is_refused_for_good(attempt, refusal) && refusal.advice != RetryAdvice::Person;
        !self.is_at_home() && (is_about_host || self.is_home_back())
    }

    /// The host has no device for the VM: another host is chosen, or its own is surveyed again until it has.
    fn without_devices(self, why: &RejectionReason) -> PhaseStep {
        let rejected = RejectedHost {
            host: self.vm.host_name.clone(),
            why: why.clone(),
        };
        let message = rejected.to_string();
        if let (false, Some(here)) = (self.is_at_home(), &self.vm.host_ref) {
            let refusal = EffectRefusal {
                advice: RetryAdvice::OtherHost,
                message,
            };
            return self.choose_again(Some((here, RefusedMove::PowerOn, &refusal)));
        }
        let survey = self.seen.attempt(EffectKind::Survey);
        let at = survey.map_or(self.now, |attempt| attempt.at.after(self.policy.survey_every));
        self.survey_here(retry_wait(EffectKind::Reconfigure, message, at))
    }

    /// Surveys the host where the VM is registered, at the interval of surveys.
    fn survey_here(self, waiting_on: WaitingOn) -> PhaseStep {
        let survey = self.seen.attempt(EffectKind::Survey);
        let at = survey.map(|attempt| attempt.at.after(self.policy.survey_every).monotonic);
        match at.filter(|at| self.now.monotonic < *at) {
            Some(at) => PhaseStep::wait_until(waiting_on, at),
            None => PhaseStep::act(
                Effect::Survey {
                    hosts: self.vm.host_ref.iter().cloned().collect(),
                },
                waiting_on,
            ),
        }
    }
}
