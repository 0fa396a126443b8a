//! The way back: the VM is on; the node counts as back when it is Ready on another boot with its GPUs.

use super::scene::{Scene, Step};
use super::{cordoned, stands_on};
use crate::maintenance::episode::{Episode, Phase};
use crate::maintenance::observed::VmFacts;
use crate::maintenance::policy::after;
use crate::maintenance::request::{Action, Request};
use crate::maintenance::waiting::{ParkReason, WaitingOn};

/// Whether a node whose VM is on its way back has to be drained again: its host leaves, or a request asks for more than
/// was done.
pub(super) fn is_to_leave_again(episode: &Episode, vm: &VmFacts, request: Option<&Request>) -> bool {
    let unmet = request.is_some_and(|request| request.is_unmet(episode));
    vm.host.is_leaving() || (unmet && vm.host.is_out())
}

impl Scene<'_> {
    /// Rejoining, VM on.
    pub(super) fn rejoining(self) -> Step {
        if is_to_leave_again(self.episode, self.vm, self.seen.request.as_ref()) {
            return self.leave_again();
        }
        if !self.vm.host.is_out() {
            return self.host_not_visible();
        }
        let asked = self.seen.request.as_ref();
        if let Some(request) = asked
            && request.action == Action::PowerOff
        {
            // Someone powered it on by hand: to cut its power again would be a quarrel.
            return Step::Park {
                reason: ParkReason::PoweredOn {
                    request: request.mark.name.clone(),
                },
                effect: None,
                recheck: None,
            };
        }
        match self.missing() {
            None => match asked {
                Some(request) if request.action == Action::Drain => {
                    Step::Go(cordoned(self.episode.enter(Phase::Drained, self.now), self.node))
                }
                asked => self.end(asked.map(|request| request.mark.clone())),
            },
            Some(waiting_on) => {
                let deadline = after(self.episode.since, self.policy.power_on_timeout);
                self.unless_overdue(
                    deadline,
                    Step::Wait {
                        waiting_on,
                        recheck: None,
                    },
                )
            }
        }
    }

    /// The host it came back to is leaving as well, or leaves again, or a request asks for more than was done: the episode
    /// goes on with another drain.
    fn leave_again(self) -> Step {
        let boot = self.node.boot_id.clone();
        self.drain_in_turn(Episode {
            host: stands_on(self.vm),
            moved_to: None,
            boot_before: boot.or_else(|| self.episode.boot_before.clone()),
            ..self.episode.clone()
        })
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
                // then only a heartbeat from after the power-on counts.
                (Some(_), None) if node.heartbeat.is_none_or(|beat| beat < episode.since) => {
                    return lacking("it has not been heard since its power-on");
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
