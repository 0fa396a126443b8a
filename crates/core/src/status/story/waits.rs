//! The sentences about waits.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{Reason, Told};
use crate::maintenance::effect::EffectKind;
use crate::maintenance::episode::Episode;
use crate::maintenance::observed::{PendingEviction, PendingReason};
use crate::maintenance::placement::RejectedHost;
use crate::maintenance::request::RequestIdentity;
use crate::maintenance::waiting::{BUDGET, ParkReason, WaitingOn, few, few_by};
use crate::status::{PhaseKind, Took};

/// What is told of a wait. Short waits and waits that the phase implies are no Event. A lost connection is none either: it concerns
/// every node, and the log reports it once.
pub(super) fn wait_text(
    episode: &Episode,
    on: &WaitingOn,
    guest_until: Option<Timestamp>,
    now: Timestamp,
) -> Option<Told> {
    let sentence = format!("Waiting for {on}");
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
        } => return Some(power_cut(episode, guest_until, now)),
        WaitingOn::Retry { effect, message, at } => {
            let what = effect.words();
            let sentence = format!("Could not {what}: {message}; the next attempt is at {at:.0}");
            return Some(Told::new(
                refusal_of(*effect),
                sentence,
                &format!("{what} {message}"),
            ));
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
        WaitingOn::Parked(reason) => return Some(parked(reason)),
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
    Some(Told::new(reason, sentence, &detail))
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

fn no_place(request: &RequestIdentity, refused: &[RejectedHost]) -> Told {
    let elsewhere = elsewhere(refused);
    let sentence =
        format!("No host can take the VM, which NodeMaintenance {request} wants to relocate: {elsewhere}");
    Told::new(Reason::NoCompatibleHost, sentence, &elsewhere)
}

fn host_exit(host: &str, refused: &[RejectedHost]) -> Told {
    let waits = format!("Waiting for ESXi host {host} to be back in service");
    if refused.is_empty() {
        return Told::new(Reason::WaitingForHost, waits, host);
    }
    let elsewhere = elsewhere(refused);
    let sentence = format!("No other host can take the VM: {elsewhere}. {waits}");
    Told::new(Reason::NoCompatibleHost, sentence, &elsewhere)
}

/// Uses the text of Cluster API. The same budgets are one fact, whatever pods they hold, unless a
/// budget has too few healthy pods: then the wait is not caused by the drain alone.
fn blocked(left: &[PendingEviction]) -> Option<Told> {
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
    let sentence = format!(
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
    Some(Told::new(Reason::EvictionBlocked, sentence, &detail))
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

fn refused(left: &[PendingEviction]) -> Option<Told> {
    let refusals = left.iter().filter_map(|pod| {
        let PendingReason::Refused { message } = &pod.why else {
            return None;
        };
        Some((pod.name.clone(), message))
    });
    let (held, messages): (Vec<String>, Vec<&String>) = refusals.unzip();
    let first = messages.first()?;
    let sentence = format!("Cannot evict {}: {first}", few(&held));
    Some(Told::new(Reason::EvictionRefused, sentence, first))
}

/// The power is cut because the guest did not shut down in time, or VMware Tools do not run.
fn power_cut(episode: &Episode, guest_until: Option<Timestamp>, now: Timestamp) -> Told {
    // Without a known deadline the request was sent by an earlier process, and the time has passed.
    if guest_until.is_some_and(|until| now < until) {
        let sentence =
            "The guest cannot be shut down, because VMware Tools do not run; its power is being cut";
        return Told::new(Reason::GuestShutdownUnavailable, sentence.to_owned(), "");
    }
    let took = Took(now.duration_since(episode.since));
    let sentence = format!("The guest did not shut down within {took}; its power is being cut");
    Told::new(Reason::GuestShutdownTimedOut, sentence, "")
}

pub(super) fn parked(reason: &ParkReason) -> Told {
    if let ParkReason::Overdue { phase, waiting_on } = reason
        && phase == PhaseKind::Rejoining.name()
    {
        return Told::once(
            Reason::NodeNotReadyAfterPowerOn,
            format!("Not back in service in time after the power-on, still waiting for {waiting_on}"),
        );
    }
    Told::once(
        Reason::MaintenanceParked,
        format!("Waiting for a person or a change: {reason}"),
    )
}
