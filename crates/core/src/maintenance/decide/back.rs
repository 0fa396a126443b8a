//! The VM is on. The node counts as back when it is Ready on another boot with its GPUs.

use std::fmt;

use super::context::{PhaseContext, PhaseStep, at_latest, task_wait};
use super::{cordoned, host_of, transition_to};
use crate::facts::kubernetes::RequestAction;
use crate::maintenance::clock::Deadline;
use crate::maintenance::effect::EffectKind;
use crate::maintenance::episode::{Episode, Phase};
use crate::maintenance::hook::HookPoint;
use crate::maintenance::observed::ObservedVm;
use crate::maintenance::request::Request;
use crate::maintenance::waiting::{ParkReason, WaitingOn};

/// Whether a rejoining node has to be drained again: its host enters maintenance, or a request asks for more than was done.
pub(super) fn has_to_leave_again(episode: &Episode, vm: &ObservedVm, request: Option<&Request>) -> bool {
    // The VM came back before this request, and not against it.
    let is_new =
        |request: &Request| request.action == RequestAction::PowerOff && !request.is_served_by(episode);
    let is_unmet = |request: &Request| episode.needs_more_for(&request.action) || is_new(request);
    let unmet = request.is_some_and(is_unmet);
    vm.has_to_leave(Some(episode)) || (unmet && vm.host.is_out())
}

impl PhaseContext<'_> {
    /// The host is not known to be out of maintenance mode, and vCenter does not move the VM.
    pub(super) fn unless_out(self) -> Option<PhaseStep> {
        let is_moved = self.vm.is_moved_by_vcenter(Some(self.episode));
        (!self.vm.host.is_out() && !is_moved).then(|| self.host_not_visible())
    }

    /// Somebody powered the VM on by hand. Its power is not cut again against that.
    pub(super) fn powered_on_against_request(self) -> Option<PhaseStep> {
        let request = self.keeps_off()?.identity.name.clone();
        Some(PhaseStep::park(ParkReason::PoweredOn { request }))
    }

    pub(super) fn record_restart(self) -> Option<PhaseStep> {
        let is_new = self.was_restarted() && !self.episode.powered_off;
        is_new.then(|| {
            PhaseStep::record(transition_to(Episode {
                powered_off: true,
                gpus_cleared: false,
                ..self.episode.clone()
            }))
        })
    }

    fn boot_deadline(self) -> Deadline {
        self.phase_deadline(self.policy.power_on_timeout)
    }

    pub(super) fn clear_gpus_in_time(self) -> Option<PhaseStep> {
        let step = self.clear_gpus_first()?;
        Some(self.unless_overdue(self.boot_deadline(), step))
    }

    pub(super) fn await_node(self) -> Option<PhaseStep> {
        let waiting_on = self.missing()?;
        let deadline = self.boot_deadline();
        // The machine may have started under another name.
        if let Some(step) = self.park_if_dead().filter(|_| self.is_past(deadline)) {
            return Some(step);
        }
        let grace = self.phase_deadline(self.policy.node_monitor_grace);
        let step = PhaseStep::wait(waiting_on);
        let step = if self.is_past(grace) {
            step
        } else {
            at_latest(grace.at, step)
        };
        Some(self.unless_overdue(deadline, step))
    }

    pub(super) fn back_to_drained(self) -> Option<PhaseStep> {
        let asked = self.seen.request.as_ref();
        asked.filter(|request| request.action == RequestAction::Drain)?;
        Some(PhaseStep::record(cordoned(self.enter(Phase::Drained), self.node)))
    }

    /// A node that was not shut down is as it was.
    pub(super) fn hold_uncordon(self) -> Option<PhaseStep> {
        let hold = self.hold(HookPoint::PreUncordon);
        hold.filter(|_| self.episode.powered_off)
    }

    pub(super) fn end_in_time(self) -> PhaseStep {
        let asked = self.seen.request.as_ref();
        let end = self.end(asked.map(|request| request.identity.clone()));
        self.unless_overdue(self.boot_deadline(), end)
    }

    pub(super) fn leave_again(self) -> PhaseStep {
        self.drain_when_admitted(Episode {
            host: host_of(self.vm),
            moved_to: None,
            refusals: Vec::new(),
            power_off_request: None,
            ..self.episode.clone()
        })
    }

    /// Waits while a guest shutdown or power-off that was requested before a cancel may still take effect. A guest that shuts
    /// down looks Ready until its kubelet is missed.
    pub(super) fn pending_power_off(self) -> Option<PhaseStep> {
        let in_flight = self.episode.in_flight;
        if let Some(asked) = in_flight.guest_shutdown {
            let until = self.deadline(
                asked.elapsed,
                self.policy
                    .guest_shutdown_timeout
                    .max(self.episode.guest_timeout.span())
                    + self.policy.node_monitor_grace,
            );
            if !self.is_past(until) {
                let waiting_on = WaitingOn::GuestShutdownAfterCancel { until: until.shown };
                return Some(PhaseStep::wait_until(waiting_on, until.at));
            }
        }
        let cut = in_flight.power_off;
        let waiting_on = || task_wait(EffectKind::PowerOff);
        // It may be somebody else's, or one of ours from before a restore of etcd.
        if self.vm.is_being_cut {
            let timeout = self.policy.power_off_timeout;
            let overdue = cut.map_or_else(
                || self.phase_deadline(timeout),
                |cut| self.deadline(cut.elapsed, timeout),
            );
            return Some(self.unless_overdue(overdue, PhaseStep::wait(waiting_on())));
        }
        if let Some(cut) = cut {
            let until = self.deadline(cut.elapsed, self.policy.unanswered_for);
            if !self.is_past(until) {
                return Some(PhaseStep::wait_until(waiting_on(), until.at));
            }
        }
        None
    }

    /// What is still missing until the node is back.
    fn missing(self) -> Option<WaitingOn> {
        let (node, episode) = (self.node, self.episode);
        let lacking = |missing| Some(WaitingOn::NodeReady { missing });
        if !node.ready {
            return lacking("it is not Ready");
        }
        if episode.powered_off {
            match (&node.boot_id, &episode.boot_before) {
                (None, _) => return lacking("it does not report its boot id"),
                // The condition may be from before the power cycle, if no controller has updated it since.
                (Some(boot), Some(before)) if boot == before => {
                    return lacking("its Ready is from before the power cycle");
                }
                (Some(_), Some(_)) => {}
                // The earlier boot id is unknown for an episode of the Python controller that is adopted with its VM on. Then
                // Ready counts only after the time in which a stopped kubelet would have lost it.
                (Some(_), None) if !self.is_past(self.phase_deadline(self.policy.node_monitor_grace)) => {
                    return lacking("its Ready may be from before the power cycle");
                }
                (Some(_), None) => {}
            }
        }
        let mut lacking = self.lacking_gpus().filter(|gpus| !gpus.is_accepted);
        lacking.next().map(|gpus| WaitingOn::Gpus {
            resource: gpus.resource,
            have: gpus.have,
            want: gpus.want,
        })
    }

    /// The GPU resources of which fewer are allocatable than before.
    fn lacking_gpus(self) -> impl Iterator<Item = LackingGpus> {
        let node = self.node;
        let before = self.episode.gpus_before.iter();
        let before = before.filter(move |(resource, _)| self.policy.gpu_resources.matches(resource));
        before.filter_map(move |(resource, want)| {
            let have = node.gpus.get(resource).copied().unwrap_or(0);
            let accepted = node.accepted_gpus.get(resource);
            (have < *want).then(|| LackingGpus {
                resource: resource.clone(),
                have,
                want: *want,
                is_accepted: accepted.is_some_and(|accepted| have >= *accepted),
            })
        })
    }

    /// Records which GPUs were not awaited, because `GPU_RESOURCES` does not match them any more.
    pub(super) fn record_unmatched_gpus(self) -> Option<PhaseStep> {
        let before = self.episode.gpus_before.keys();
        let unmatched: Vec<String> = before
            .filter(|resource| !self.policy.gpu_resources.matches(resource))
            .cloned()
            .collect();
        (unmatched != self.episode.unmatched_gpus).then(|| {
            PhaseStep::record(transition_to(Episode {
                unmatched_gpus: unmatched,
                ..self.episode.clone()
            }))
        })
    }

    /// Records with which GPUs a person took the node back.
    pub(super) fn record_accepted_gpus(self) -> Option<PhaseStep> {
        let counts = self.lacking_gpus().map(|gpus| gpus.to_string());
        let accepted = counts.collect::<Vec<_>>().join(", ");
        let is_recorded = self.episode.accepted_gpus.as_ref() == Some(&accepted);
        (!accepted.is_empty() && !is_recorded).then(|| {
            PhaseStep::record(transition_to(Episode {
                accepted_gpus: Some(accepted),
                ..self.episode.clone()
            }))
        })
    }
}

/// A GPU resource that is not fully back.
struct LackingGpus {
    resource: String,
    have: u64,
    want: u64,
    is_accepted: bool,
}

impl fmt::Display for LackingGpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            resource, have, want, ..
        } = self;
        write!(f, "{resource} {have} of {want}")
    }
}
