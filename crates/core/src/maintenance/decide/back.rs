//! The way back: the VM is on; the node counts as back when it is Ready on another boot with its GPUs.

use super::context::{PhaseContext, PhaseStep, at_latest};
use super::{cordoned, stands_on};
use crate::maintenance::effect::EffectKind;
use crate::maintenance::episode::{Episode, Phase};
use crate::maintenance::observed::ObservedVm;
use crate::maintenance::request::{Request, RequestAction};
use crate::maintenance::waiting::{ParkReason, WaitingOn};

/// Whether a node whose VM is on its way back has to be drained again: its host leaves, or a request asks for more than
/// was done.
pub(super) fn is_to_leave_again(episode: &Episode, vm: &ObservedVm, request: Option<&Request>) -> bool {
    let unmet = request.is_some_and(|request| request.is_unmet(episode));
    vm.host.is_leaving() || (unmet && vm.host.is_out())
}

impl PhaseContext<'_> {
    /// Rejoining, VM on.
    pub(super) fn rejoining(self) -> PhaseStep {
        if is_to_leave_again(self.episode, self.vm, self.seen.request.as_ref()) {
            return self.leave_again();
        }
        if !self.vm.host.is_out() {
            return self.host_not_visible();
        }
        let asked = self.seen.request.as_ref();
        if let Some(request) = asked
            && request.action == RequestAction::PowerOff
        {
            // Someone powered it on by hand: to cut its power again would be a quarrel.
            return PhaseStep::park(ParkReason::PoweredOn {
                request: request.mark.name.clone(),
            });
        }
        if let Some(step) = self.may_still_go_off() {
            return step;
        }
        match self.missing() {
            None => match asked {
                Some(request) if request.action == RequestAction::Drain => {
                    PhaseStep::Go(cordoned(self.enter(Phase::Drained), self.node))
                }
                asked => self.end(asked.map(|request| request.mark.clone())),
            },
            Some(waiting_on) => {
                let deadline = self.phase_deadline(self.policy.power_on_timeout);
                let grace = self.phase_deadline(self.policy.node_monitor_grace);
                let step = PhaseStep::wait(waiting_on);
                let step = if self.is_past(grace) {
                    step
                } else {
                    at_latest(grace.at, step)
                };
                self.unless_overdue(deadline, step)
            }
        }
    }

    /// The host it came back to is leaving as well, or leaves again, or a request asks for more than was done: the episode
    /// goes on with another drain.
    fn leave_again(self) -> PhaseStep {
        self.drain_in_turn(Episode {
            host: stands_on(self.vm),
            moved_to: None,
            refusals: Vec::new(),
            ..self.episode.clone()
        })
    }

    /// A request to bring the VM down that was called off may still take effect. A guest that is on its way down looks Ready
    /// until its kubelet is missed.
    fn may_still_go_off(self) -> Option<PhaseStep> {
        let in_flight = self.episode.in_flight;
        if let Some(asked) = in_flight.guest_shutdown {
            let until = self.deadline(
                asked.elapsed,
                self.policy.guest_shutdown_timeout + self.policy.node_monitor_grace,
            );
            if !self.is_past(until) {
                let waiting_on = WaitingOn::GuestShutdownAfterCancel { until: until.shown };
                return Some(PhaseStep::wait_until(waiting_on, until.at));
            }
        }
        if let Some(cut) = in_flight.power_off {
            let waiting_on = || WaitingOn::Task(EffectKind::PowerOff);
            if self.vm.is_being_cut {
                let overdue = self.deadline(cut.elapsed, self.policy.power_off_timeout);
                return Some(self.unless_overdue(overdue, PhaseStep::wait(waiting_on())));
            }
            let until = self.deadline(cut.elapsed, self.policy.unanswered_for);
            if !self.is_past(until) {
                return Some(PhaseStep::wait_until(waiting_on(), until.at));
            }
        }
        None
    }

    /// What the node still lacks to be back.
    fn missing(self) -> Option<WaitingOn> {
        let (node, episode) = (self.node, self.episode);
        let lacking = |missing| Some(WaitingOn::NodeReady { missing });
        if !node.ready {
            return lacking("it is not Ready");
        }
        if episode.powered_off {
            match (&node.boot_id, &episode.boot_before) {
                (None, _) => return lacking("it does not tell its boot id"),
                // A Ready that nobody has refuted yet says nothing: it may be the one from before the power cycle.
                (Some(boot), Some(before)) if boot == before => {
                    return lacking("its Ready is from before the power cycle");
                }
                (Some(_), Some(_)) => {}
                // Nobody wrote down the boot before (an episode of the Python controller, met with its VM already on):
                // then only a Ready counts that a stopped kubelet would have lost by now.
                (Some(_), None) if !self.is_past(self.phase_deadline(self.policy.node_monitor_grace)) => {
                    return lacking("its Ready may be from before the power cycle");
                }
                (Some(_), None) => {}
            }
        }
        episode.gpus_before.iter().find_map(|(resource, want)| {
            let have = node.gpus.get(resource).copied().unwrap_or(0);
            (have < *want).then(|| WaitingOn::Gpus {
                resource: resource.clone(),
                have,
                want: *want,
            })
        })
    }
}
