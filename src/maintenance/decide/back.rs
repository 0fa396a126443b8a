//! The way back: the VM is on; the node counts as back when it is Ready on another boot with its GPUs.

use super::scene::{Scene, Step};
use super::{stands_on, start_draining};
use crate::maintenance::episode::Episode;
use crate::maintenance::observed::Admission;
use crate::maintenance::policy::after;
use crate::maintenance::waiting::WaitingOn;

impl Scene<'_> {
    /// Rejoining, VM on.
    pub(super) fn rejoining(self) -> Step {
        if self.vm.host.is_leaving() {
            return self.leave_again();
        }
        if !self.vm.host.is_out() {
            return self.host_not_visible();
        }
        match self.missing() {
            None => self.end(),
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

    /// The host it came back to is leaving as well, or leaves again: the episode goes on with another drain.
    fn leave_again(self) -> Step {
        match &self.seen.admission {
            Admission::Granted => {
                let again = Episode {
                    host: stands_on(self.vm),
                    moved_to: None,
                    boot_before: self
                        .node
                        .boot_id
                        .clone()
                        .or_else(|| self.episode.boot_before.clone()),
                    ..self.episode.clone()
                };
                Step::Go(start_draining(&again, self.node, self.now))
            }
            Admission::Behind { ahead, limit } => Step::Wait {
                waiting_on: WaitingOn::Slot {
                    ahead: ahead.clone(),
                    limit: *limit,
                },
                recheck: None,
            },
        }
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
