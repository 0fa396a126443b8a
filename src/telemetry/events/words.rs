//! What is told as which Event: a pure function of what an actor tells and of what is remembered of its node.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::parts::Span;
use super::{OfNode, Said};
use crate::actor::tell::Told;
use crate::cluster::events::Severity;
use crate::maintenance::decide::Transition;
use crate::maintenance::effect::EffectKind;
use crate::maintenance::episode::{Cordon, DrainEnd, Ended, Episode, Phase, Record};
use crate::maintenance::observed::{PodLeft, PodLeftBecause};
use crate::maintenance::placement::Refused;
use crate::maintenance::waiting::{ParkReason, WaitingOn, few, few_by};
use crate::telemetry::link::Links;

/// How Kubernetes begins what it says of a budget that refuses an eviction: it goes on with the budget's name, `needs 1
/// healthy pods and has 1 currently`.
const BUDGET: &str = "The disruption budget ";

/// What happened, as one word. People filter by it, so a word that is there stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "`Reason::meaning` explains each")]
pub enum Reason {
    HostMaintenanceDetected,
    MaintenanceQueued,
    MaintenanceAdopted,
    DrainStarted,
    CordonRestored,
    GuestRestarted,
    EvictionBlocked,
    EvictionRefused,
    DrainSucceeded,
    DrainTimedOut,
    GuestShutdownTimedOut,
    GuestShutdownUnavailable,
    VMPoweredOff,
    WaitingForHost,
    NoCompatibleHost,
    HostNotVisible,
    VMRelocated,
    VMQuestionPending,
    VMPoweredOn,
    NodeNotReadyAfterPowerOn,
    VCenterRequestFailed,
    NodeWriteFailed,
    MaintenanceInterrupted,
    VMPowerLost,
    MaintenanceParked,
    MaintenanceResumed,
    ApprovalNeeded,
    MaintenanceSkipped,
    MaintenanceSucceeded,
    MaintenanceFailed,
    MaintenanceCancelled,
}

impl Reason {
    /// All of them, in the order of an episode.
    pub const ALL: [Self; 31] = [
        Self::HostMaintenanceDetected,
        Self::MaintenanceQueued,
        Self::MaintenanceAdopted,
        Self::DrainStarted,
        Self::CordonRestored,
        Self::GuestRestarted,
        Self::EvictionBlocked,
        Self::EvictionRefused,
        Self::DrainSucceeded,
        Self::DrainTimedOut,
        Self::GuestShutdownTimedOut,
        Self::GuestShutdownUnavailable,
        Self::VMPoweredOff,
        Self::WaitingForHost,
        Self::NoCompatibleHost,
        Self::HostNotVisible,
        Self::VMRelocated,
        Self::VMQuestionPending,
        Self::VMPoweredOn,
        Self::NodeNotReadyAfterPowerOn,
        Self::VCenterRequestFailed,
        Self::NodeWriteFailed,
        Self::MaintenanceInterrupted,
        Self::VMPowerLost,
        Self::MaintenanceParked,
        Self::MaintenanceResumed,
        Self::ApprovalNeeded,
        Self::MaintenanceSkipped,
        Self::MaintenanceSucceeded,
        Self::MaintenanceFailed,
        Self::MaintenanceCancelled,
    ];

    /// The word.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// What was being done, as a word.
    pub fn action(self) -> &'static str {
        self.row().1
    }

    /// Whether it was to be expected.
    pub fn severity(self) -> Severity {
        self.row().2
    }

    fn row(self) -> (&'static str, &'static str, Severity) {
        use Severity::{Normal, Warning};
        match self {
            Self::HostMaintenanceDetected => ("HostMaintenanceDetected", "Begin", Normal),
            Self::MaintenanceQueued => ("MaintenanceQueued", "Queue", Normal),
            Self::MaintenanceAdopted => ("MaintenanceAdopted", "Begin", Normal),
            Self::DrainStarted => ("DrainStarted", "Drain", Normal),
            Self::CordonRestored => ("CordonRestored", "Drain", Warning),
            Self::GuestRestarted => ("GuestRestarted", "Drain", Warning),
            Self::EvictionBlocked => ("EvictionBlocked", "Drain", Warning),
            Self::EvictionRefused => ("EvictionRefused", "Drain", Warning),
            Self::DrainSucceeded => ("DrainSucceeded", "Drain", Normal),
            Self::DrainTimedOut => ("DrainTimedOut", "Drain", Warning),
            Self::GuestShutdownTimedOut => ("GuestShutdownTimedOut", "ShutDown", Warning),
            Self::GuestShutdownUnavailable => ("GuestShutdownUnavailable", "ShutDown", Warning),
            Self::VMPoweredOff => ("VMPoweredOff", "ShutDown", Normal),
            Self::WaitingForHost => ("WaitingForHost", "Place", Normal),
            Self::NoCompatibleHost => ("NoCompatibleHost", "Place", Warning),
            Self::HostNotVisible => ("HostNotVisible", "Place", Warning),
            Self::VMRelocated => ("VMRelocated", "Place", Normal),
            Self::VMQuestionPending => ("VMQuestionPending", "PowerOn", Warning),
            Self::VMPoweredOn => ("VMPoweredOn", "PowerOn", Normal),
            Self::NodeNotReadyAfterPowerOn => ("NodeNotReadyAfterPowerOn", "Rejoin", Warning),
            Self::VCenterRequestFailed => ("VCenterRequestFailed", "AskVCenter", Warning),
            Self::NodeWriteFailed => ("NodeWriteFailed", "Record", Warning),
            Self::MaintenanceInterrupted => ("MaintenanceInterrupted", "Drain", Warning),
            Self::VMPowerLost => ("VMPowerLost", "PowerOn", Warning),
            Self::MaintenanceParked => ("MaintenanceParked", "Park", Warning),
            Self::MaintenanceResumed => ("MaintenanceResumed", "Resume", Normal),
            Self::ApprovalNeeded => ("ApprovalNeeded", "Queue", Normal),
            Self::MaintenanceSkipped => ("MaintenanceSkipped", "Skip", Warning),
            Self::MaintenanceSucceeded => ("MaintenanceSucceeded", "End", Normal),
            Self::MaintenanceFailed => ("MaintenanceFailed", "End", Warning),
            Self::MaintenanceCancelled => ("MaintenanceCancelled", "End", Normal),
        }
    }
}

/// The Event that `told` makes. Without an episode nothing has begun that could be told of, but for a Node that cannot
/// begin one: whoever clicked waits for it in vain.
pub(super) fn of(told: Told<'_>, known: &OfNode, links: &Links, now: Timestamp) -> Option<Said> {
    match told {
        Told::Recorded {
            node,
            before,
            transition,
            wrote,
        } => {
            let (reason, note) = recorded(before, transition, known, links, wrote.0)?;
            let key = format!("{} {note}", reason.name());
            let episode = transition.record.episode().or(before.episode());
            let uid = node.map(|node| &node.uid).or(episode.map(|it| &it.node_uid))?;
            Some(Said {
                uid: uid.clone(),
                reason,
                note,
                key,
            })
        }
        Told::NotRecorded {
            before,
            transition,
            said,
        } => {
            let episode = transition.record.episode().or(before.episode())?;
            let phase = transition.record.phase_name();
            let reason = Reason::NodeWriteFailed;
            Some(Said {
                uid: episode.node_uid.clone(),
                reason,
                note: format!("Could not record {phase} on the Node: {said}"),
                // The words name the pause before the next try, which grows.
                key: format!("{} {phase}", reason.name()),
            })
        }
        Told::Asks { .. } => None,
        Told::Waits { node, record, on } => {
            let (uid, (reason, note, detail)) = match (record.episode(), on) {
                (Some(episode), _) => {
                    // An episode of another Node of that name is told on the one that stands there.
                    let uid = node.map_or(&episode.node_uid, |node| &node.uid);
                    (uid, waits(episode, on, known, now)?)
                }
                (None, WaitingOn::Parked(reason)) if needs_a_person(reason) => {
                    let (reason, note) = parked(reason);
                    (&node?.uid, (reason, note.clone(), note))
                }
                (None, _) => return None,
            };
            Some(Said {
                uid: uid.clone(),
                reason,
                key: format!("{} {detail}", reason.name()),
                note,
            })
        }
    }
}

fn recorded(
    before: &Record,
    transition: &Transition,
    known: &OfNode,
    links: &Links,
    at: Timestamp,
) -> Option<(Reason, String)> {
    let Some(episode) = transition.record.episode() else {
        return Some(ended(before.episode()?, transition, known, links, at));
    };
    let was = match before {
        Record::Episode(was) => was,
        Record::Python(_) => {
            let phase = episode.phase.name();
            let host = &episode.host;
            let trace = links.or_id(episode);
            let note = format!(
                "Took over the maintenance of ESXi host {host} from the Python controller, in {phase}; trace {trace}"
            );
            return Some((Reason::MaintenanceAdopted, note));
        }
        Record::InService | Record::Unreadable { .. } => {
            return Some((Reason::HostMaintenanceDetected, detected(episode, links)));
        }
    };
    if transition.is_bookkeeping(before) {
        return None;
    }
    let from = was.phase.at_work();
    let took = Span(at.duration_since(worked_since(was)));
    let is_resumed = matches!(was.phase, Phase::Parked { .. })
        && std::mem::discriminant(from) == std::mem::discriminant(&episode.phase);
    if is_resumed {
        let parked = Span(at.duration_since(was.since));
        let note = format!("{} goes on after {parked}", episode.phase.name());
        return Some((Reason::MaintenanceResumed, note));
    }
    let is_same_phase = (was.phase.name(), was.since) == (episode.phase.name(), episode.since);
    if is_same_phase && transition.unschedulable == Some(true) {
        return Some((
            Reason::CordonRestored,
            format!(
                "The node was uncordoned in {}; it is cordoned again until it is back",
                episode.phase.name()
            ),
        ));
    }
    match &episode.phase {
        Phase::Parked { reason, .. } => Some(parked(reason)),
        Phase::Queued => None,
        Phase::Draining if episode.recordoned > was.recordoned => Some((
            Reason::CordonRestored,
            "Somebody uncordoned the node in mid-drain; it is cordoned again and drained from the beginning"
                .to_owned(),
        )),
        Phase::Draining
            if matches!(from, Phase::ShuttingDown(_)) && episode.drained_boot != was.drained_boot =>
        {
            Some((
                Reason::GuestRestarted,
                "The guest restarted where it was asked to shut down; the node is drained again".to_owned(),
            ))
        }
        Phase::Draining if matches!(from, Phase::ShuttingDown(_)) => Some((
            Reason::DrainStarted,
            "Pods may have come after the drain; they are evicted before the VM is shut down".to_owned(),
        )),
        Phase::Draining => {
            let cordon = match episode.cordon {
                Cordon::Theirs => "Was cordoned already",
                Cordon::NotYet | Cordon::Ours | Cordon::Adopted(_) => "Cordoned",
            };
            let after = match from {
                Phase::Queued => format!(" after {took} in the queue"),
                Phase::Draining
                | Phase::Drained
                | Phase::ShuttingDown(_)
                | Phase::Relocating { .. }
                | Phase::AwaitingHost
                | Phase::PoweringOn { .. }
                | Phase::Rejoining
                | Phase::Parked { .. } => String::new(),
            };
            let cause = cause(episode);
            Some((
                Reason::DrainStarted,
                format!("{cordon}{after}; pods are being evicted for {cause}"),
            ))
        }
        Phase::Drained => Some((
            Reason::DrainSucceeded,
            match from {
                Phase::Draining => format!("Drained in {took}; kept so for {}", cause(episode)),
                Phase::Queued
                | Phase::Drained
                | Phase::ShuttingDown(_)
                | Phase::Relocating { .. }
                | Phase::AwaitingHost
                | Phase::PoweringOn { .. }
                | Phase::Rejoining
                | Phase::Parked { .. } => "Kept cordoned and drained, as a NodeMaintenance asks".to_owned(),
            },
        )),
        Phase::ShuttingDown(DrainEnd::Complete) => Some((
            Reason::DrainSucceeded,
            format!("Drained in {took}; the guest is being shut down"),
        )),
        Phase::ShuttingDown(DrainEnd::TimedOut) => {
            let left = &episode.left_behind;
            let note = format!(
                "Not drained within {took}; the guest is being shut down with {} left behind: {}",
                pods(left.len()),
                few(left)
            );
            Some((Reason::DrainTimedOut, note))
        }
        Phase::Relocating { .. } | Phase::AwaitingHost | Phase::PoweringOn { .. } if !is_off(from) => {
            let note = match from {
                Phase::ShuttingDown(_) => format!("The VM is off after {took}"),
                Phase::Queued
                | Phase::Draining
                | Phase::Drained
                | Phase::Relocating { .. }
                | Phase::AwaitingHost
                | Phase::PoweringOn { .. }
                | Phase::Rejoining
                | Phase::Parked { .. } => format!("The VM was found off in {}", from.name()),
            };
            Some((Reason::VMPoweredOff, note))
        }
        Phase::PoweringOn { .. } if episode.moved_to != was.moved_to => {
            let to = episode.moved_to.as_ref().map_or("", |to| &to.name);
            let note = format!(
                "The VM was moved from ESXi host {} to {to} in {took}",
                episode.host
            );
            Some((Reason::VMRelocated, note))
        }
        Phase::Relocating { .. } | Phase::AwaitingHost | Phase::PoweringOn { .. } => None,
        Phase::Rejoining if is_off(from) => {
            let host = episode.moved_to.as_ref().unwrap_or(&episode.host);
            Some((Reason::VMPoweredOn, format!("The VM is on, on ESXi host {host}")))
        }
        Phase::Rejoining => None,
    }
}

fn ended(
    was: &Episode,
    transition: &Transition,
    known: &OfNode,
    links: &Links,
    at: Timestamp,
) -> (Reason, String) {
    let cordon = match transition.unschedulable {
        Some(false) => "; uncordoned",
        Some(true) | None if was.cordon == Cordon::NotYet => "",
        Some(true) | None => "; its cordon is left as it is",
    };
    let whole = Span(at.duration_since(was.begun_at));
    let trace = links.or_id(was);
    match transition.ended {
        Some(Ended::Cancelled) => (
            Reason::MaintenanceCancelled,
            match &was.trigger.request {
                Some(request) => {
                    format!(
                        "NodeMaintenance {} was called off after {whole}{cordon}; trace {trace}",
                        request.name
                    )
                }
                None => format!(
                    "The maintenance of ESXi host {} was called off after {whole}{cordon}; trace {trace}",
                    was.host
                ),
            },
        ),
        Some(Ended::Failed) => (
            Reason::MaintenanceFailed,
            format!(
                "Back in service after {whole}{}, and not relocated: it found no place, while waiting for {}{cordon}; trace {trace}",
                known.parts,
                was.gave_up.as_deref().unwrap_or_default()
            ),
        ),
        Some(Ended::Succeeded) | None => (
            Reason::MaintenanceSucceeded,
            format!(
                "Back in service after {whole}{}{cordon}; trace {trace}",
                known.parts
            ),
        ),
    }
}

/// What it is called out of service for.
fn cause(episode: &Episode) -> String {
    match &episode.trigger.request {
        Some(request) => format!("NodeMaintenance {}", request.name),
        None => format!("the maintenance of ESXi host {}", episode.host),
    }
}

fn detected(episode: &Episode, links: &Links) -> String {
    let (host, trigger) = (&episode.host, &episode.trigger);
    let how = match &trigger.task {
        Some(task) => {
            let by = trigger
                .user
                .as_ref()
                .map_or_else(String::new, |user| format!(" by {user}"));
            let late = Span(episode.begun_at.duration_since(trigger.clicked_at));
            format!("is entering maintenance ({task}{by}); noticed after {late}")
        }
        None => "is in maintenance mode".to_owned(),
    };
    let what = match (&trigger.stray_of, &trigger.request) {
        (Some(ended), _) => {
            return format!(
                "The VM is off by a request of ours that arrived after episode {ended} had ended; it is brought back; trace {}",
                links.or_id(episode)
            );
        }
        (None, Some(request)) => format!("NodeMaintenance {} asks for this node", request.name),
        (None, None) => format!("ESXi host {host} {how}"),
    };
    let next = match (&episode.phase, &episode.cordon) {
        (Phase::Queued, _) => "waits for its turn",
        (_, Cordon::Theirs) => "was cordoned already, pods are being evicted",
        (_, Cordon::NotYet | Cordon::Ours | Cordon::Adopted(_)) => "cordoned, pods are being evicted",
    };
    format!("{what}; {next}; trace {}", links.or_id(episode))
}

fn parked(reason: &ParkReason) -> (Reason, String) {
    match reason {
        ParkReason::Overdue { phase, waiting_on } if phase == Phase::Rejoining.name() => (
            Reason::NodeNotReadyAfterPowerOn,
            format!("Not back in time after the power-on, still waiting for {waiting_on}"),
        ),
        ParkReason::Overdue { .. }
        | ParkReason::UnreadableRecord { .. }
        | ParkReason::AnotherNode
        | ParkReason::VmMissing
        | ParkReason::VmAmbiguous { .. }
        | ParkReason::VmShared { .. }
        | ParkReason::VmSuspended
        | ParkReason::NoUuid
        | ParkReason::VmReplaced { .. }
        | ParkReason::PowerLost { .. }
        | ParkReason::PoweredOn { .. }
        | ParkReason::Uncordoned => (
            Reason::MaintenanceParked,
            format!("Waiting for a person or a change: {reason}"),
        ),
    }
}

/// Whether a Node without an episode is told on. A VM that vCenter does not know may be in another vCenter or not be
/// there yet: a label that selects too much would else put a warning on every such Node.
fn needs_a_person(reason: &ParkReason) -> bool {
    match reason {
        ParkReason::VmMissing | ParkReason::NoUuid => false,
        ParkReason::UnreadableRecord { .. }
        | ParkReason::VmReplaced { .. }
        | ParkReason::PowerLost { .. }
        | ParkReason::AnotherNode
        | ParkReason::VmAmbiguous { .. }
        | ParkReason::VmShared { .. }
        | ParkReason::VmSuspended
        | ParkReason::PoweredOn { .. }
        | ParkReason::Uncordoned
        | ParkReason::Overdue { .. } => true,
    }
}

/// The Event that a wait makes, and what of it makes it another one. Waits that are over within moments or that a phase
/// is about make none, nor does a world that is not heard: that concerns every node, and the log says it once.
fn waits(
    episode: &Episode,
    on: &WaitingOn,
    known: &OfNode,
    now: Timestamp,
) -> Option<(Reason, String, String)> {
    let waiting = || format!("Waiting for {on}");
    match on {
        // Who is before it changes all the time, and that it waits is one fact.
        WaitingOn::Slot { .. } => Some((Reason::MaintenanceQueued, waiting(), String::new())),
        WaitingOn::Pods(left) => blocked(left).or_else(|| refused(left)),
        WaitingOn::DrainHeld(_) => Some((
            Reason::DrainTimedOut,
            format!(
                "Not drained in time, and its power is not cut on pods. {}",
                waiting()
            ),
            String::new(),
        )),
        WaitingOn::Task(EffectKind::PowerOff) => Some(power_cut(episode, known, now)),
        WaitingOn::Retry { effect, said, at } => {
            let reason = match effect {
                EffectKind::DrainRound => Reason::EvictionRefused,
                EffectKind::ShutdownGuest
                | EffectKind::PowerOff
                | EffectKind::Survey
                | EffectKind::Relocate
                | EffectKind::PowerOn => Reason::VCenterRequestFailed,
            };
            let what = effect.words();
            Some((
                reason,
                format!("Could not {what}: {said}; the next try is at {at:.0}"),
                format!("{what} {said}"),
            ))
        }
        WaitingOn::HostVisible { host, state } => {
            Some((Reason::HostNotVisible, waiting(), format!("{host} {state}")))
        }
        WaitingOn::HostExit { host, refused, .. } if refused.is_empty() => Some((
            Reason::WaitingForHost,
            format!("Waiting for ESXi host {host} to be back in service"),
            host.clone(),
        )),
        WaitingOn::HostExit { host, refused, .. } => {
            let elsewhere = elsewhere(refused);
            Some((
                Reason::NoCompatibleHost,
                format!(
                    "No other host can take the VM: {elsewhere}. Waiting for ESXi host {host} to be back in service"
                ),
                elsewhere,
            ))
        }
        WaitingOn::MaintenanceRetry { said, .. } => {
            Some((Reason::MaintenanceInterrupted, waiting(), said.clone()))
        }
        WaitingOn::PowerOnPause { losses, .. } => Some((Reason::VMPowerLost, waiting(), losses.to_string())),
        WaitingOn::OtherRelease { release } => Some((Reason::MaintenanceParked, waiting(), release.clone())),
        WaitingOn::Approval => Some((Reason::ApprovalNeeded, waiting(), String::new())),
        WaitingOn::Skip => Some((Reason::MaintenanceSkipped, waiting(), String::new())),
        WaitingOn::Place { request, refused } => {
            let elsewhere = elsewhere(refused);
            Some((
                Reason::NoCompatibleHost,
                format!(
                    "No host can take the VM, as NodeMaintenance {} asks: {elsewhere}",
                    request.name
                ),
                elsewhere,
            ))
        }
        WaitingOn::Question(text) => Some((Reason::VMQuestionPending, waiting(), text.clone())),
        // The record's own change of phase has told it already, in the same words.
        WaitingOn::Parked(reason) => {
            let (reason, note) = parked(reason);
            Some((reason, note.clone(), note))
        }
        WaitingOn::Task(
            EffectKind::DrainRound
            | EffectKind::ShutdownGuest
            | EffectKind::Survey
            | EffectKind::Relocate
            | EffectKind::PowerOn,
        )
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
        | WaitingOn::AlreadyThere { .. }
        | WaitingOn::Survey
        | WaitingOn::PowerState
        | WaitingOn::NodeReady { .. }
        | WaitingOn::Gpus { .. } => None,
    }
}

/// Cluster API's words, which people know. The same budgets are one fact, however many of their pods come and go, and
/// so is how many of them are healthy, until the budget lacks some: then it is not the drain alone that it waits for.
fn blocked(left: &[PodLeft]) -> Option<(Reason, String, String)> {
    let mut held: Vec<String> = Vec::new();
    let mut budgets: BTreeMap<String, &str> = BTreeMap::new();
    for pod in left {
        match &pod.why {
            PodLeftBecause::Budget { names, said } => {
                held.push(pod.name.clone());
                budgets.insert(names.join(", "), said);
            }
            PodLeftBecause::Leaving
            | PodLeftBecause::Migrating { .. }
            | PodLeftBecause::Refused { .. }
            | PodLeftBecause::NotReached => {}
        }
    }
    if held.is_empty() {
        return None;
    }
    let words: Vec<String> = budgets.iter().map(|(names, said)| held_by(names, said)).collect();
    let note = format!(
        "Cannot evict {} as it would violate the pod's disruption budget. {}: {}",
        if held.len() == 1 { "pod" } else { "pods" },
        few_by(&words, ". "),
        few(&held)
    );
    let short = budgets.iter().filter(|(_, said)| is_short(said));
    let detail = budgets
        .keys()
        .map(String::as_str)
        .chain(std::iter::once("short:"))
        .chain(short.map(|(names, _)| names.as_str()));
    let detail = detail.collect::<Vec<_>>().join(" ");
    Some((Reason::EvictionBlocked, note, detail))
}

/// What Kubernetes says of a budget, or what follows from its refusal.
fn held_by(names: &str, said: &str) -> String {
    if said.starts_with(BUDGET) {
        return said.trim_end_matches('.').to_owned();
    }
    if names.is_empty() {
        return "It allows no disruption".to_owned();
    }
    format!("{BUDGET}{names} allows no disruption")
}

/// Whether a budget has fewer healthy pods than it needs. Words that do not read as expected count none.
fn is_short(said: &str) -> bool {
    let counts: Vec<u64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
    matches!(counts[..], [needs, has] if has < needs)
}

/// Why the first few hosts will not do. Host by host, and not by reason as in a wait's sentence: how many share a reason changes
/// with each that joins them, and a note that reads differently is sent anew.
fn elsewhere(refused: &[Refused]) -> String {
    few(&refused.iter().map(Refused::to_string).collect::<Vec<_>>())
}

fn refused(left: &[PodLeft]) -> Option<(Reason, String, String)> {
    let refusals = left.iter().filter_map(|pod| match &pod.why {
        PodLeftBecause::Refused { said } => Some((pod.name.clone(), said)),
        PodLeftBecause::Leaving
        | PodLeftBecause::Migrating { .. }
        | PodLeftBecause::Budget { .. }
        | PodLeftBecause::NotReached => None,
    });
    let (held, said): (Vec<String>, Vec<&String>) = refusals.unzip();
    let first = said.first()?;
    let note = format!("Cannot evict {}: {first}", few(&held));
    Some((Reason::EvictionRefused, note, (*first).clone()))
}

/// Power is cut on a guest that did not shut down in time, or that could not be asked to.
fn power_cut(episode: &Episode, known: &OfNode, now: Timestamp) -> (Reason, String, String) {
    // Without a deadline known, this process has not asked: the time was up before it began.
    if known.guest_until.is_some_and(|until| now < until) {
        return (
            Reason::GuestShutdownUnavailable,
            "The guest cannot be asked to shut down, as VMware Tools do not run; its power is being cut"
                .to_owned(),
            String::new(),
        );
    }
    let took = Span(now.duration_since(episode.since));
    (
        Reason::GuestShutdownTimedOut,
        format!("The guest did not shut down within {took}; its power is being cut"),
        String::new(),
    )
}

/// Whether the VM is off in this phase.
fn is_off(phase: &Phase) -> bool {
    match phase.at_work() {
        Phase::Relocating { .. } | Phase::AwaitingHost | Phase::PoweringOn { .. } => true,
        Phase::Queued
        | Phase::Draining
        | Phase::Drained
        | Phase::ShuttingDown(_)
        | Phase::Rejoining
        | Phase::Parked { .. } => false,
    }
}

/// Since when the phase that is at work has been.
fn worked_since(episode: &Episode) -> Timestamp {
    match &episode.phase {
        Phase::Parked { resume_since, .. } => *resume_since,
        Phase::Queued
        | Phase::Draining
        | Phase::Drained
        | Phase::ShuttingDown(_)
        | Phase::Relocating { .. }
        | Phase::AwaitingHost
        | Phase::PoweringOn { .. }
        | Phase::Rejoining => episode.since,
    }
}

fn pods(count: usize) -> String {
    format!("{count} pod{}", if count == 1 { "" } else { "s" })
}
