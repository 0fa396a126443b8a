//! The Events for waits, and their keys.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{EventsOfNode, Reason};
use haulout_core::maintenance::effect::EffectKind;
use haulout_core::maintenance::episode::Episode;
use haulout_core::maintenance::observed::{PendingEviction, PendingReason};
use haulout_core::maintenance::placement::RejectedHost;
use haulout_core::maintenance::request::RequestIdentity;
use haulout_core::maintenance::waiting::{BUDGET, ParkReason, WaitingOn, few, few_by};
use haulout_core::status::{PhaseKind, Took};

/// The reason, note and key of the Event for a wait. Short waits and waits that the phase implies have
/// none. A lost connection has none either: it concerns every node, and the log reports it once.
pub(super) fn wait_event(
    episode: &Episode,
    on: &WaitingOn,
    known: &EventsOfNode,
    now: Timestamp,
) -> Option<(Reason, String, String)> {
    let note = format!("Waiting for {on}");
    let (reason, detail) = match on {
        // The nodes ahead change all the time; that it waits is one fact.
        WaitingOn::Slot { .. } => (Reason::MaintenanceQueued, String::new()),
        WaitingOn::Vmotion { .. } => (Reason::WaitingForVMotion, String::new()),
        WaitingOn::Pods { left, .. } => return blocked(left).or_else(|| refused(left)),
        WaitingOn::Volumes { volumes, .. } if volumes.is_empty() => return None,
        WaitingOn::Volumes { .. } => (Reason::VolumesAttached, String::new()),
        WaitingOn::DrainHeld { .. } => (Reason::DrainTimedOut, String::new()),
        WaitingOn::Task {
            effect: EffectKind::PowerOff,
        } => return Some(power_cut(episode, known, now)),
        WaitingOn::Retry { effect, message, at } => {
            let what = effect.words();
            let note = format!("Could not {what}: {message}; the next attempt is at {at:.0}");
            return Some((refusal_of(*effect), note, format!("{what} {message}")));
        }
        WaitingOn::HostVisible { host, state } => (Reason::HostNotVisible, format!("{host} {state}")),
        WaitingOn::HostSettling { host, .. } => (Reason::HostSettling, host.clone()),
        WaitingOn::HostExit { host, refused, .. } => return Some(host_exit(host, refused)),
        WaitingOn::HostEntry { host, .. } => (Reason::HostNotEntering, host.clone()),
        WaitingOn::MaintenanceRetry { message, .. } => (Reason::MaintenanceInterrupted, message.clone()),
        WaitingOn::PowerOnPause { losses, .. } => (Reason::VMPowerLost, losses.to_string()),
        WaitingOn::OtherRelease { release } => (Reason::MaintenanceParked, release.clone()),
        WaitingOn::Approval { .. } => (Reason::ApprovalNeeded, String::new()),
        WaitingOn::Hook { names, .. } => (Reason::WaitingForHook, names.join(" ")),
        WaitingOn::Skip => (Reason::MaintenanceSkipped, String::new()),
        WaitingOn::Place { request, refused } => return Some(no_place(request, refused)),
        WaitingOn::Question(text) => (Reason::VMQuestionPending, text.clone()),
        // The same text as for the transition, so it is not repeated.
        WaitingOn::Parked(reason) => {
            let (reason, note) = parked(reason);
            return Some((reason, note.clone(), note));
        }
        WaitingOn::Task { .. }
        | WaitingOn::Vcenter { .. }
        | WaitingOn::Kubernetes { .. }
        | WaitingOn::Takeover { .. }
        | WaitingOn::NodeObject
        | WaitingOn::VmLookup
        | WaitingOn::DrainRound
        | WaitingOn::GuestShutdown { .. }
        | WaitingOn::GuestShutdownAfterCancel { .. }
        | WaitingOn::WritePace { .. }
        | WaitingOn::Request { .. }
        | WaitingOn::PoweredOn { .. }
        | WaitingOn::NotBefore { .. }
        | WaitingOn::Window { .. }
        | WaitingOn::InvalidWindow { .. }
        | WaitingOn::AlreadyThere { .. }
        | WaitingOn::Survey
        | WaitingOn::PowerState
        | WaitingOn::NodeReady { .. }
        | WaitingOn::Gpus { .. }
        | WaitingOn::MachineGuards { .. } => return None,
    };
    Some((reason, note, detail))
}

/// The reason of the Event for an effect that was refused.
fn refusal_of(effect: EffectKind) -> Reason {
    match effect {
        EffectKind::DrainRound => Reason::EvictionRefused,
        EffectKind::SetMachineGuards | EffectKind::RemoveMachineGuards => Reason::GuardFailed,
        EffectKind::ListVolumes => Reason::VolumesAttached,
        EffectKind::ClearGpus => Reason::GpuCountNotCleared,
        EffectKind::ShutdownGuest
        | EffectKind::PowerOff
        | EffectKind::Survey
        | EffectKind::Relocate
        | EffectKind::Reconfigure
        | EffectKind::PowerOn => Reason::VCenterRequestFailed,
    }
}

fn no_place(request: &RequestIdentity, refused: &[RejectedHost]) -> (Reason, String, String) {
    let elsewhere = elsewhere(refused);
    let note =
        format!("No host can take the VM, which NodeMaintenance {request} wants to relocate: {elsewhere}");
    (Reason::NoCompatibleHost, note, elsewhere)
}

fn host_exit(host: &str, refused: &[RejectedHost]) -> (Reason, String, String) {
    let waits = format!("Waiting for ESXi host {host} to be back in service");
    if refused.is_empty() {
        return (Reason::WaitingForHost, waits, host.to_owned());
    }
    let elsewhere = elsewhere(refused);
    let note = format!("No other host can take the VM: {elsewhere}. {waits}");
    (Reason::NoCompatibleHost, note, elsewhere)
}

/// Uses the text of Cluster API. The same budgets are one fact, whatever pods they hold, unless a
/// budget has too few healthy pods: then the wait is not caused by the drain alone.
fn blocked(left: &[PendingEviction]) -> Option<(Reason, String, String)> {
    let mut held: Vec<String> = Vec::new();
    let mut budgets: BTreeMap<String, &str> = BTreeMap::new();
    for pod in left {
        if let PendingReason::Budget { names, message } = &pod.why {
            held.push(pod.name.clone());
            budgets.insert(names.join(", "), message);
        }
    }
    if held.is_empty() {
        return None;
    }
    let words: Vec<String> = budgets
        .iter()
        .map(|(names, message)| held_by(names, message))
        .collect();
    let note = format!(
        "Cannot evict {} as it would violate the pod's disruption budget. {}: {}",
        if held.len() == 1 { "pod" } else { "pods" },
        few_by(&words, ". "),
        few(&held)
    );
    let short = budgets.iter().filter(|(_, message)| is_short(message));
    let detail = budgets
        .keys()
        .map(String::as_str)
        .chain(std::iter::once("short:"))
        .chain(short.map(|(names, _)| names.as_str()));
    let detail = detail.collect::<Vec<_>>().join(" ");
    Some((Reason::EvictionBlocked, note, detail))
}

/// The message of Kubernetes about a budget, or its equivalent.
fn held_by(names: &str, message: &str) -> String {
    if message.starts_with(BUDGET) {
        return message.trim_end_matches('.').to_owned();
    }
    if names.is_empty() {
        return "It allows no disruption".to_owned();
    }
    format!("{BUDGET}{names} allows no disruption")
}

/// Whether a budget has fewer healthy pods than it needs. An unexpected message counts as no.
fn is_short(message: &str) -> bool {
    let counts: Vec<u64> = message.split(' ').filter_map(|word| word.parse().ok()).collect();
    matches!(counts[..], [needs, has] if has < needs)
}

/// Why the first few hosts are rejected, by host and not by reason: the number of hosts per reason
/// changes often, and each change would create another Event.
fn elsewhere(refused: &[RejectedHost]) -> String {
    few(&refused.iter().map(RejectedHost::to_string).collect::<Vec<_>>())
}

fn refused(left: &[PendingEviction]) -> Option<(Reason, String, String)> {
    let refusals = left.iter().filter_map(|pod| {
        let PendingReason::Refused { message } = &pod.why else {
            return None;
        };
        Some((pod.name.clone(), message))
    });
    let (held, messages): (Vec<String>, Vec<&String>) = refusals.unzip();
    let first = messages.first()?;
    let note = format!("Cannot evict {}: {first}", few(&held));
    Some((Reason::EvictionRefused, note, (*first).clone()))
}

/// The power is cut because the guest did not shut down in time, or VMware Tools do not run.
fn power_cut(episode: &Episode, known: &EventsOfNode, now: Timestamp) -> (Reason, String, String) {
    // Without a known deadline the request was sent by an earlier process, and the time has passed.
    if known.guest_until.is_some_and(|until| now < until) {
        return (
            Reason::GuestShutdownUnavailable,
            "The guest cannot be shut down, because VMware Tools do not run; its power is being cut"
                .to_owned(),
            String::new(),
        );
    }
    let took = Took(now.duration_since(episode.since));
    (
        Reason::GuestShutdownTimedOut,
        format!("The guest did not shut down within {took}; its power is being cut"),
        String::new(),
    )
}

pub(super) fn parked(reason: &ParkReason) -> (Reason, String) {
    if let ParkReason::Overdue { phase, waiting_on } = reason
        && phase == PhaseKind::Rejoining.name()
    {
        let note = format!("Not back in service in time after the power-on, still waiting for {waiting_on}");
        return (Reason::NodeNotReadyAfterPowerOn, note);
    }
    let note = format!("Waiting for a person or a change: {reason}");
    (Reason::MaintenanceParked, note)
}
