//! The sentences about transitions.

use jiff::Timestamp;

use super::parts::parts;
use super::waits::parked;
use super::{Reason, Told};
use crate::maintenance::decide::Transition;
use crate::maintenance::episode::{CordonOwner, DrainEnd, Episode, EpisodeResult, Phase, Record};
use crate::maintenance::observed::BoundVm;
use crate::maintenance::waiting::few;
use crate::status::{PhaseKind, Took};

/// What is told of the begin of an episode whose VM vCenter itself shuts down for the maintenance of its host.
pub(super) fn evacuation(vm: &BoundVm, episode: &Episode) -> Option<Told> {
    let vm = vm.found().filter(|vm| vm.evacuation_power_off)?;
    let is_of_host = vm.host.is_leaving() && episode.trigger.late_power_off_of.is_none();
    let sentence = if episode.powered_off {
        "vCenter itself has shut down the VM, because maintenance.vm.evacuation.poweroff is set on it or a compute policy says \
         so; its pods were not evicted"
    } else {
        "vCenter itself shuts down the VM, because maintenance.vm.evacuation.poweroff is set on it or a compute policy says so; \
         its pods may end before they are evicted"
    };
    is_of_host.then(|| Told::new(Reason::EvacuationPolicy, sentence.to_owned(), ""))
}

/// What is told of a transition that was written at `at`.
pub(super) fn transition_text(before: &Record, transition: &Transition, at: Timestamp) -> Option<Told> {
    let Some(episode) = transition.record.episode() else {
        return Some(ended(before.episode()?, transition, at).with_trace());
    };
    let told = match before {
        Record::Python(_) => {
            let (phase, host) = (episode.phase.name(), &episode.host);
            let sentence = format!(
                "Took over the maintenance of ESXi host {host} from the Python controller, in {phase}"
            );
            return Some(Told::once(Reason::MaintenanceAdopted, sentence).with_trace());
        }
        Record::InService | Record::Unreadable { .. } => {
            return Some(Told::once(Reason::HostMaintenanceDetected, detected(episode)).with_trace());
        }
        Record::Episode(was) if transition.is_bookkeeping(before) => kept(was, episode),
        Record::Episode(was) => changed(was, episode, transition.unschedulable, at),
    };
    told.map(|(reason, sentence)| Told::once(reason, sentence))
}

/// A write in the same phase.
fn kept(was: &Episode, episode: &Episode) -> Option<(Reason, String)> {
    if let Some(left) = episode.machine_guards.left_behind()
        && was.machine_guards.left.is_none()
    {
        return Some((Reason::GuardFailed, format!("The node is not held up: {left}")));
    }
    let left = episode.gave_up_volumes(was)?;
    let sentence = format!(
        "The guest is being shut down with volumes still attached: {}",
        few(left)
    );
    Some((Reason::VolumesAttached, sentence))
}

/// The Event for a transition between phases.
fn changed(
    was: &Episode,
    episode: &Episode,
    unschedulable: Option<bool>,
    at: Timestamp,
) -> Option<(Reason, String)> {
    let from = was.phase.at_work().kind();
    let phase = episode.phase.kind();
    let took = Took(at.duration_since(was.worked_since()));
    if was.phase.parked().is_some() && from == phase {
        let parked = Took(at.duration_since(was.since));
        return Some((
            Reason::MaintenanceResumed,
            format!("{phase} continues after {parked} parked"),
        ));
    }
    let is_same_phase = (was.phase.kind(), was.since) == (phase, episode.since);
    if is_same_phase && unschedulable == Some(true) {
        let sentence =
            format!("The node was uncordoned in {phase}; it is cordoned again until it is back in service");
        return Some((Reason::CordonRestored, sentence));
    }
    match &episode.phase {
        Phase::Parked { reason, .. } => {
            let told = parked(reason);
            Some((told.reason, told.sentence))
        }
        Phase::Queued => None,
        Phase::Draining => Some(draining(was, episode, from, took)),
        Phase::Drained if from == PhaseKind::Draining => {
            let sentence = format!("Drained in {took}; stays drained for {}", episode.cause());
            Some((Reason::DrainSucceeded, sentence))
        }
        Phase::Drained => {
            let sentence = "Kept cordoned and drained, as a NodeMaintenance asks";
            Some((Reason::DrainSucceeded, sentence.to_owned()))
        }
        Phase::ShuttingDown(DrainEnd::Complete) => {
            let returned = &episode.left_behind;
            let with = if returned.is_empty() {
                String::new()
            } else {
                let (pods, names) = (pods(returned.len()), few(returned));
                format!(" with {pods} that did not hold the drain: {names}")
            };
            let sentence = format!("Drained in {took}; the guest is being shut down{with}");
            Some((Reason::DrainSucceeded, sentence))
        }
        Phase::ShuttingDown(DrainEnd::TimedOut) => {
            let left = &episode.left_behind;
            let (pods, names) = (pods(left.len()), few(left));
            let sentence =
                format!("Not drained within {took}; the guest is being shut down with {pods} left: {names}");
            Some((Reason::DrainTimedOut, sentence))
        }
        Phase::Relocating { .. } | Phase::AwaitingHost | Phase::PoweringOn { .. } => {
            off(was, episode, from, took)
        }
        Phase::Rejoining => {
            let host = episode.moved_to.as_ref().unwrap_or(&episode.host);
            let sentence = format!("The VM is powered on, on ESXi host {host}");
            from.vm_is_off().then_some((Reason::VMPoweredOn, sentence))
        }
    }
}

fn draining(was: &Episode, episode: &Episode, from: PhaseKind, took: Took) -> (Reason, String) {
    if episode.recordoned > was.recordoned {
        let sentence =
            "The node was uncordoned during the drain; it is cordoned again and the drain starts over";
        return (Reason::CordonRestored, sentence.to_owned());
    }
    if from == PhaseKind::ShuttingDown {
        return if episode.drained_boot == was.drained_boot {
            let sentence =
                "Pods may have started after the drain; they are evicted before the VM is shut down";
            (Reason::DrainStarted, sentence.to_owned())
        } else {
            let sentence = "The guest rebooted instead of shutting down; the node is drained again";
            (Reason::GuestRestarted, sentence.to_owned())
        };
    }
    let cordon = match episode.cordon {
        CordonOwner::Theirs => "Was cordoned already",
        CordonOwner::NotYet | CordonOwner::Ours | CordonOwner::Adopted(_) => "Cordoned",
    };
    let is_queue_over = from == PhaseKind::Queued;
    let after = is_queue_over.then(|| format!(" after {took} in the queue"));
    let after = after.unwrap_or_default();
    let cause = episode.cause();
    (
        Reason::DrainStarted,
        format!("{cordon}{after}; pods are being evicted for {cause}"),
    )
}

/// The Event for a transition to a phase in which the VM is off.
fn off(was: &Episode, episode: &Episode, from: PhaseKind, took: Took) -> Option<(Reason, String)> {
    if !from.vm_is_off() {
        let sentence = if from == PhaseKind::ShuttingDown {
            format!("The VM is powered off after {took}")
        } else {
            let left = &episode.left_behind;
            let with = if left.is_empty() {
                String::new()
            } else {
                format!(" with {} left: {}", pods(left.len()), few(left))
            };
            format!("The VM was found powered off in {from}{with}")
        };
        return Some((Reason::VMPoweredOff, sentence));
    }
    let to = episode.moved_to.as_ref()?;
    let is_moved = episode.phase.kind() == PhaseKind::PoweringOn && episode.moved_to != was.moved_to;
    let sentence = format!(
        "The VM was moved from ESXi host {} to {to} in {took}",
        episode.host
    );
    is_moved.then_some((Reason::VMRelocated, sentence))
}

fn ended(was: &Episode, transition: &Transition, at: Timestamp) -> Told {
    let cordon = match transition.unschedulable {
        Some(false) => "; uncordoned",
        Some(true) | None if was.cordon == CordonOwner::NotYet => "",
        Some(true) | None => "; its cordon is kept",
    };
    let whole = Took(at.duration_since(was.begun_at));
    let parts = parts(was);
    let (reason, sentence) = match transition.ended {
        Some(EpisodeResult::Cancelled) => {
            let cause = was.cause();
            let cause = cause
                .strip_prefix('t')
                .map_or(cause.clone(), |rest| format!("T{rest}"));
            let sentence = format!("{cause} was cancelled after {whole}{cordon}");
            (Reason::MaintenanceCancelled, sentence)
        }
        Some(EpisodeResult::Vmotioned) => {
            let sentence = format!("vCenter moved the VM to another host by vMotion after {whole}{cordon}");
            (Reason::MaintenanceSucceeded, sentence)
        }
        Some(EpisodeResult::Failed) => {
            let why = was.relocation_failure.as_deref().unwrap_or_default();
            let sentence = format!(
                "Back in service after {whole}{parts}, but not relocated: no host could take the VM; last waited for \
                 {why}{cordon}"
            );
            (Reason::MaintenanceFailed, sentence)
        }
        Some(EpisodeResult::Succeeded) | None => {
            let accepted = was.accepted_gpus.as_ref();
            let fewer = accepted.map_or_else(String::new, |fewer| {
                format!("; a person accepted it with fewer GPUs: {fewer}")
            });
            let unmatched = &was.unmatched_gpus;
            let unmatched = if unmatched.is_empty() {
                String::new()
            } else {
                let names = few(unmatched);
                format!("; not awaited, because GPU_RESOURCES does not match them any more: {names}")
            };
            let sentence = format!("Back in service after {whole}{parts}{fewer}{unmatched}{cordon}");
            (Reason::MaintenanceSucceeded, sentence)
        }
    };
    Told::once(reason, sentence)
}

fn detected(episode: &Episode) -> String {
    let trigger = &episode.trigger;
    if let Some(ended) = &trigger.late_power_off_of {
        return format!(
            "A power-off requested in episode {ended} took effect after its end; the VM is powered on again"
        );
    }
    let more = if trigger.task.is_some() {
        let late = Took(episode.begun_at.duration_since(trigger.clicked_at));
        format!("; detected after {late}")
    } else if trigger.request.is_some() {
        " asks for this node".to_owned()
    } else {
        String::new()
    };
    let next = match (&episode.phase, &episode.cordon) {
        (Phase::Queued, _) => "waits for a slot",
        (_, _) if episode.powered_off => "cordoned, the VM is off already",
        (_, CordonOwner::Theirs) => "was cordoned already, pods are being evicted",
        (_, CordonOwner::NotYet | CordonOwner::Ours | CordonOwner::Adopted(_)) => {
            "cordoned, pods are being evicted"
        }
    };
    format!("{}{more}; {next}", episode.trigger_sentence())
}

fn pods(count: usize) -> String {
    format!("{count} pod{}", if count == 1 { "" } else { "s" })
}
