//! The text of Events: a pure function of the event and the state of its node.

use jiff::Timestamp;

use super::parts::parts;
use super::waits::{self, parked};
use super::{EventText, EventsOfNode, Reason};
use crate::link::Links;
use haulout_core::maintenance::decide::Transition;
use haulout_core::maintenance::episode::{CordonOwner, DrainEnd, Episode, EpisodeResult, Phase, Record};
use haulout_core::maintenance::observed::ObservedNode;
use haulout_core::maintenance::placement::PlacementForecast;
use haulout_core::maintenance::waiting::{ParkReason, WaitingOn, few};
use haulout_core::status::node_event::NodeEvent;
use haulout_core::status::{PhaseKind, Took};

/// The Event for `event`. Without an episode there is none, unless the Node cannot begin one although
/// its host waits for it.
pub(super) fn event_text(
    event: NodeEvent<'_>,
    known: &EventsOfNode,
    links: &Links,
    now: Timestamp,
) -> Option<EventText> {
    match event {
        NodeEvent::Recorded {
            node,
            before,
            transition,
            wrote,
            ..
        } => {
            let (reason, note) = recorded(before, transition, links, wrote.0)?;
            let episode = transition.record.episode().or(before.episode());
            let uid = node.map(|node| &node.uid).or(episode.map(|it| &it.node_uid))?;
            Some(EventText {
                uid: uid.clone(),
                reason,
                key: format!("{} {note}", reason.name()),
                note,
            })
        }
        NodeEvent::NotRecorded {
            before,
            transition,
            message,
        } => {
            let episode = transition.record.episode().or(before.episode())?;
            let phase = transition.record.phase_name();
            let reason = Reason::NodeWriteFailed;
            Some(EventText {
                uid: episode.node_uid.clone(),
                reason,
                note: format!("Could not write {phase} to the Node: {message}"),
                // The text contains the growing pause before the next attempt.
                key: format!("{} {phase}", reason.name()),
            })
        }
        NodeEvent::Asks { .. } => None,
        NodeEvent::Forecasts {
            node,
            record,
            placement,
        } => {
            let episode = record.episode()?;
            let reason = match placement {
                PlacementForecast::Drs | PlacementForecast::Host(_) | PlacementForecast::OneOf(_) => {
                    Reason::PlacementExpected
                }
                PlacementForecast::Home { .. } => Reason::NoOtherHostExpected,
            };
            Some(EventText {
                uid: node.map_or(&episode.node_uid, |node| &node.uid).clone(),
                reason,
                note: format!("After the drain: {placement}"),
                key: format!("{} {placement}", reason.name()),
            })
        }
        NodeEvent::Waits { node, record, on, .. } => wait_text(node, record.episode(), on, known, now),
    }
}

/// The Event for a wait.
fn wait_text(
    node: Option<&ObservedNode>,
    episode: Option<&Episode>,
    on: &WaitingOn,
    known: &EventsOfNode,
    now: Timestamp,
) -> Option<EventText> {
    let (uid, (reason, note, detail)) = match (episode, on) {
        (Some(episode), _) => {
            // The Event is about the current Node of that name.
            let uid = node.map_or(&episode.node_uid, |node| &node.uid);
            (uid, waits::wait_event(episode, on, known, now)?)
        }
        (None, WaitingOn::Parked(reason)) if needs_a_person(reason) => {
            let (reason, note) = parked(reason);
            (&node?.uid, (reason, note.clone(), note))
        }
        (None, _) => return None,
    };
    Some(EventText {
        uid: uid.clone(),
        reason,
        key: format!("{} {detail}", reason.name()),
        note,
    })
}

/// The Event for the begin of an episode whose VM vCenter itself shuts down for the maintenance of its host.
pub(super) fn evacuation(event: NodeEvent<'_>) -> Option<EventText> {
    let NodeEvent::Recorded {
        vm,
        before: Record::InService,
        transition,
        ..
    } = event
    else {
        return None;
    };
    let episode = transition.record.episode()?;
    let vm = vm.found().filter(|vm| vm.evacuation_power_off)?;
    let is_of_host = vm.host.is_leaving() && episode.trigger.late_power_off_of.is_none();
    let note = if episode.powered_off {
        "vCenter itself has shut down the VM, because maintenance.vm.evacuation.poweroff is set on it or a compute policy says \
         so; its pods were not evicted"
    } else {
        "vCenter itself shuts down the VM, because maintenance.vm.evacuation.poweroff is set on it or a compute policy says so; \
         its pods may end before they are evicted"
    };
    let reason = Reason::EvacuationPolicy;
    is_of_host.then(|| EventText {
        uid: episode.node_uid.clone(),
        reason,
        note: note.to_owned(),
        key: reason.name().to_owned(),
    })
}

fn recorded(
    before: &Record,
    transition: &Transition,
    links: &Links,
    at: Timestamp,
) -> Option<(Reason, String)> {
    let Some(episode) = transition.record.episode() else {
        return Some(ended(before.episode()?, transition, links, at));
    };
    match before {
        Record::Python(_) => {
            let (phase, host) = (episode.phase.name(), &episode.host);
            let trace = links.or_id(episode);
            let note = format!(
                "Took over the maintenance of ESXi host {host} from the Python controller, in {phase}; trace {trace}"
            );
            Some((Reason::MaintenanceAdopted, note))
        }
        Record::InService | Record::Unreadable { .. } => {
            Some((Reason::HostMaintenanceDetected, detected(episode, links)))
        }
        Record::Episode(was) if transition.is_bookkeeping(before) => {
            if let Some(left) = episode.machine_guards.left_behind()
                && was.machine_guards.left.is_none()
            {
                return Some((Reason::GuardFailed, format!("The node is not held up: {left}")));
            }
            let left = episode.gave_up_volumes(was)?;
            let note = format!(
                "The guest is being shut down with volumes still attached: {}",
                few(left)
            );
            Some((Reason::VolumesAttached, note))
        }
        Record::Episode(was) => changed(was, episode, transition.unschedulable, at),
    }
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
        let note =
            format!("The node was uncordoned in {phase}; it is cordoned again until it is back in service");
        return Some((Reason::CordonRestored, note));
    }
    match &episode.phase {
        Phase::Parked { reason, .. } => Some(parked(reason)),
        Phase::Queued => None,
        Phase::Draining => Some(draining(was, episode, from, took)),
        Phase::Drained if from == PhaseKind::Draining => {
            let note = format!("Drained in {took}; stays drained for {}", episode.cause());
            Some((Reason::DrainSucceeded, note))
        }
        Phase::Drained => {
            let note = "Kept cordoned and drained, as a NodeMaintenance asks";
            Some((Reason::DrainSucceeded, note.to_owned()))
        }
        Phase::ShuttingDown(DrainEnd::Complete) => {
            let returned = &episode.left_behind;
            let with = if returned.is_empty() {
                String::new()
            } else {
                let (pods, names) = (pods(returned.len()), few(returned));
                format!(" with {pods} that did not hold the drain: {names}")
            };
            let note = format!("Drained in {took}; the guest is being shut down{with}");
            Some((Reason::DrainSucceeded, note))
        }
        Phase::ShuttingDown(DrainEnd::TimedOut) => {
            let left = &episode.left_behind;
            let (pods, names) = (pods(left.len()), few(left));
            let note =
                format!("Not drained within {took}; the guest is being shut down with {pods} left: {names}");
            Some((Reason::DrainTimedOut, note))
        }
        Phase::Relocating { .. } | Phase::AwaitingHost | Phase::PoweringOn { .. } => {
            off(was, episode, from, took)
        }
        Phase::Rejoining => {
            let host = episode.moved_to.as_ref().unwrap_or(&episode.host);
            let note = format!("The VM is powered on, on ESXi host {host}");
            from.vm_is_off().then_some((Reason::VMPoweredOn, note))
        }
    }
}

fn draining(was: &Episode, episode: &Episode, from: PhaseKind, took: Took) -> (Reason, String) {
    if episode.recordoned > was.recordoned {
        let note = "The node was uncordoned during the drain; it is cordoned again and the drain starts over";
        return (Reason::CordonRestored, note.to_owned());
    }
    if from == PhaseKind::ShuttingDown {
        return if episode.drained_boot == was.drained_boot {
            let note = "Pods may have started after the drain; they are evicted before the VM is shut down";
            (Reason::DrainStarted, note.to_owned())
        } else {
            let note = "The guest rebooted instead of shutting down; the node is drained again";
            (Reason::GuestRestarted, note.to_owned())
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
        let note = if from == PhaseKind::ShuttingDown {
            format!("The VM is powered off after {took}")
        } else {
            format!("The VM was found powered off in {from}")
        };
        return Some((Reason::VMPoweredOff, note));
    }
    let to = episode.moved_to.as_ref()?;
    let is_moved = episode.phase.kind() == PhaseKind::PoweringOn && episode.moved_to != was.moved_to;
    let note = format!(
        "The VM was moved from ESXi host {} to {to} in {took}",
        episode.host
    );
    is_moved.then_some((Reason::VMRelocated, note))
}

fn ended(was: &Episode, transition: &Transition, links: &Links, at: Timestamp) -> (Reason, String) {
    let cordon = match transition.unschedulable {
        Some(false) => "; uncordoned",
        Some(true) | None if was.cordon == CordonOwner::NotYet => "",
        Some(true) | None => "; its cordon is kept",
    };
    let whole = Took(at.duration_since(was.begun_at));
    let (parts, trace) = (parts(was), links.or_id(was));
    match transition.ended {
        Some(EpisodeResult::Cancelled) => {
            let cause = was.cause();
            let cause = cause
                .strip_prefix('t')
                .map_or(cause.clone(), |rest| format!("T{rest}"));
            let note = format!("{cause} was cancelled after {whole}{cordon}; trace {trace}");
            (Reason::MaintenanceCancelled, note)
        }
        Some(EpisodeResult::Vmotioned) => {
            let note = format!(
                "vCenter moved the VM to another host by vMotion after {whole}{cordon}; trace {trace}"
            );
            (Reason::MaintenanceSucceeded, note)
        }
        Some(EpisodeResult::Failed) => {
            let why = was.relocation_failure.as_deref().unwrap_or_default();
            let note = format!(
                "Back in service after {whole}{parts}, but not relocated: no host could take the VM; last waited for \
                 {why}{cordon}; trace {trace}"
            );
            (Reason::MaintenanceFailed, note)
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
            let note =
                format!("Back in service after {whole}{parts}{fewer}{unmatched}{cordon}; trace {trace}");
            (Reason::MaintenanceSucceeded, note)
        }
    }
}

fn detected(episode: &Episode, links: &Links) -> String {
    let trigger = &episode.trigger;
    let trace = links.or_id(episode);
    if let Some(ended) = &trigger.late_power_off_of {
        return format!(
            "A power-off requested in episode {ended} took effect after its end; the VM is powered on again; trace {trace}"
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
    format!("{}{more}; {next}; trace {trace}", episode.trigger_sentence())
}

/// Whether a Node without an episode gets an Event. Not for a VM that vCenter does not know: a label
/// that selects too many nodes would put a warning on each of them.
fn needs_a_person(reason: &ParkReason) -> bool {
    !matches!(
        reason,
        ParkReason::VmMissing | ParkReason::VmOutOfScope | ParkReason::NoUuid
    )
}

fn pods(count: usize) -> String {
    format!("{count} pod{}", if count == 1 { "" } else { "s" })
}
