//! Holds a step while the Node has hooks for it.

use super::context::{PhaseContext, PhaseStep};
use super::transition_to;
use crate::maintenance::clock::Elapsed;
use crate::maintenance::episode::{Episode, HeldStep, Phase};
use crate::maintenance::hook::HookPoint;
use crate::maintenance::policy::HookTimeoutAction;
use crate::maintenance::waiting::WaitingOn;

impl PhaseContext<'_> {
    /// The wait for the hooks of `point`; `None` if there is none, or if they have held the step for the longest time and the setting
    /// is to proceed.
    pub(super) fn hold(self, point: HookPoint) -> Option<PhaseStep> {
        let names = self.node.hooks.get(&point).filter(|names| !names.is_empty())?;
        let Some(held) = self.episode.held.filter(|held| held.point == point) else {
            return Some(PhaseStep::record(transition_to(Episode {
                held: Some(HeldStep::begin(point, self.now)),
                ..self.episode.clone()
            })));
        };
        let deadline = self.deadline(held.timer.elapsed, self.policy.hook_timeout);
        let waiting_on = |until| WaitingOn::Hook {
            point,
            names: names.iter().cloned().collect(),
            until,
        };
        match self.policy.hook_timeout_action {
            HookTimeoutAction::Proceed if self.is_past(deadline) => None,
            HookTimeoutAction::Proceed => Some(PhaseStep::wait_until(
                waiting_on(Some(deadline.shown)),
                deadline.at,
            )),
            HookTimeoutAction::Hold => Some(self.unless_overdue(deadline, PhaseStep::wait(waiting_on(None)))),
        }
    }

    /// The wait for the hooks that the Node had at the cordon. The time of the drain begins after it.
    pub(super) fn hold_first_eviction(self) -> Option<PhaseStep> {
        let held = self.episode.held?;
        if held.point != HookPoint::PreDrain {
            return None;
        }
        Some(self.hold(HookPoint::PreDrain).unwrap_or_else(|| {
            PhaseStep::record(transition_to(Episode {
                drained_for: Elapsed::ZERO,
                limited_from: Elapsed::ZERO,
                held: None,
                ..self.enter(Phase::Draining)
            }))
        }))
    }
}
