//! What the status of one object is to say, from what it says and what is seen.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::OfNode;
use crate::cluster::maintenances::kind::{NodeMaintenanceStatus, PendingPod, PhaseTimes, Waiting};
use crate::cluster::update::{AskedAction, Maintenance};
use crate::maintenance::episode::{Ended, Episode, Phase, Record};
use crate::maintenance::observed::DrainReport;
use crate::maintenance::record;
use crate::maintenance::waiting::WaitingOn;

/// The most pods that a status names: a node has 110 at most, and an object must stay small.
const PODS: usize = 50;

/// The most phases that a status keeps: a queue of parkings must not fill an object.
pub(super) const PHASES: usize = 100;

/// How far something has come.
enum Progress<'a> {
    Running,
    /// What was asked for is so, and is kept so.
    Kept,
    Stalled(&'a str),
    Succeeded,
    Failed(&'a str),
    Cancelled,
    NotSeen,
}

/// The status of an episode's object while the episode lasts.
pub(super) fn of(
    object: &Maintenance,
    seen: &OfNode,
    episode: &Episode,
    now: Timestamp,
) -> NodeMaintenanceStatus {
    let mut status = shown(object, seen, episode, now);
    status.record = record::write(&Record::Episode(Arc::new(episode.clone())), now).episode;
    let parked = parked(episode);
    let progress = parked.as_deref().map_or(Progress::Running, Progress::Stalled);
    judged(object, status, &progress, now)
}

/// The status of a request that an episode goes about.
pub(super) fn of_request(
    object: &Maintenance,
    action: AskedAction,
    seen: &OfNode,
    episode: &Episode,
    now: Timestamp,
) -> NodeMaintenanceStatus {
    let status = shown(object, seen, episode, now);
    let is_kept = match (action, &episode.phase) {
        (AskedAction::Drain, Phase::Drained) => true,
        (AskedAction::PowerOff, Phase::AwaitingHost) => {
            matches!(seen.waits, Some(WaitingOn::Request { .. }))
        }
        (AskedAction::Drain | AskedAction::PowerOff | AskedAction::Relocate | AskedAction::Reboot, _) => {
            false
        }
    };
    let parked = parked(episode);
    let progress = match &parked {
        Some(why) => Progress::Stalled(why),
        None if is_kept => Progress::Kept,
        None => Progress::Running,
    };
    judged(object, status, &progress, now)
}

/// Why an episode is parked, if it is.
fn parked(episode: &Episode) -> Option<String> {
    match &episode.phase {
        Phase::Parked { reason, .. } => Some(reason.to_string()),
        Phase::Queued
        | Phase::Draining
        | Phase::Drained
        | Phase::ShuttingDown(_)
        | Phase::Relocating { .. }
        | Phase::AwaitingHost
        | Phase::PoweringOn { .. }
        | Phase::Rejoining => None,
    }
}

/// The status of an episode's object at its end. Without `how`, nobody saw it.
pub(super) fn ended(
    object: &Maintenance,
    seen: &OfNode,
    episode: Option<&Episode>,
    how: Option<Ended>,
    at: Timestamp,
) -> NodeMaintenanceStatus {
    let mut status = (*object.status).clone();
    if let Some(episode) = episode {
        passed(&mut status, seen, episode);
    }
    let mut status = over(status, at);
    if let Some(episode) = episode {
        status.record = record::write(&Record::Episode(Arc::new(episode.clone())), at).episode;
    }
    let gave_up = episode
        .and_then(|episode| episode.gave_up.clone())
        .unwrap_or_default();
    let progress = match how {
        Some(Ended::Succeeded) => Progress::Succeeded,
        Some(Ended::Failed) => Progress::Failed(&gave_up),
        Some(Ended::Cancelled) => Progress::Cancelled,
        None => Progress::NotSeen,
    };
    judged(object, status, &progress, at)
}

/// Whether `wanted` tells nothing else than `is` but how far it has come: which pods are left, and the words of a wait for the
/// same thing.
pub(super) fn counts_on(is: &NodeMaintenanceStatus, wanted: &NodeMaintenanceStatus) -> bool {
    if is == wanted {
        return false;
    }
    let mut standing = NodeMaintenanceStatus {
        pending_pods: is.pending_pods.clone(),
        pods: is.pods.clone(),
        total_pods: is.total_pods,
        eviction_pods: is.eviction_pods,
        drain_progress: is.drain_progress,
        ..wanted.clone()
    };
    if let (Some(was), Some(waiting)) = (&is.waiting_on, &mut standing.waiting_on) {
        waiting.message.clone_from(&was.message);
    }
    for (was, condition) in is.conditions.iter().zip(&mut standing.conditions) {
        condition.message.clone_from(&was.message);
    }
    standing == *is
}

/// The status of a request that is fulfilled, or was given up.
pub(super) fn fulfilled(object: &Maintenance, gave_up: Option<&str>, at: Timestamp) -> NodeMaintenanceStatus {
    let status = over((*object.status).clone(), at);
    let progress = gave_up.map_or(Progress::Succeeded, Progress::Failed);
    judged(object, status, &progress, at)
}

/// The status of a request that nothing can be done about.
pub(super) fn stalled(
    object: &Maintenance,
    reason: &str,
    why: &str,
    now: Timestamp,
) -> NodeMaintenanceStatus {
    let mut status = (*object.status).clone();
    status.waiting_on = Some(waiting_since(&status, reason, why, now));
    judged(object, status, &Progress::Stalled(why), now)
}

/// The status of a request that is not being gone about yet.
pub(super) fn waiting(
    object: &Maintenance,
    reason: &str,
    why: &str,
    now: Timestamp,
) -> NodeMaintenanceStatus {
    let mut status = (*object.status).clone();
    status.waiting_on = Some(waiting_since(&status, reason, why, now));
    judged(object, status, &Progress::Running, now)
}

fn over(mut status: NodeMaintenanceStatus, at: Timestamp) -> NodeMaintenanceStatus {
    close_phase(&mut status, at);
    status.state = Some("Ended".to_owned());
    status.waiting_on = None;
    status.pending_pods.clear();
    status.pods.clear();
    status.ended_at = Some(text(at));
    status
}

/// What an episode shows of itself, whichever object it is shown in.
fn shown(object: &Maintenance, seen: &OfNode, episode: &Episode, now: Timestamp) -> NodeMaintenanceStatus {
    let mut status = (*object.status).clone();
    let phase = episode.phase.name();
    passed(&mut status, seen, episode);
    begin_phase(&mut status, phase, episode.since);
    status.state = Some(phase.to_owned());
    status.host = Some(episode.host.name.to_string());
    status.target = match (&episode.moved_to, episode.phase.at_work()) {
        (Some(moved), _) => Some(moved.name.to_string()),
        (None, Phase::Relocating { to }) => Some(to.name.to_string()),
        (
            None,
            Phase::Queued
            | Phase::Draining
            | Phase::Drained
            | Phase::ShuttingDown(_)
            | Phase::AwaitingHost
            | Phase::PoweringOn { .. }
            | Phase::Rejoining
            | Phase::Parked { .. },
        ) => None,
    };
    status.episode = Some(episode.id.to_string());
    status.trace_id = Some(episode.trace_id().to_owned());
    status.started_at = Some(text(episode.begun_at));
    match &seen.waits {
        Some(on) => {
            let since = waiting_since(&status, on.kind().variant(), &on.to_string(), now);
            status.waiting_on = Some(since);
        }
        None => status.waiting_on = None,
    }
    let is_draining = matches!(episode.phase.at_work(), Phase::Draining);
    let report = seen.drain.as_ref().filter(|_| is_draining);
    if let Some((listed, left)) = seen.most {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        status.total_pods = status.total_pods.max(Some(count(listed)));
        status.eviction_pods = status.eviction_pods.max(Some(count(left)));
    }
    drained(&mut status, report, &episode.phase);
    status
}

fn drained(status: &mut NodeMaintenanceStatus, report: Option<&DrainReport>, phase: &Phase) {
    status.pending_pods.clear();
    status.pods.clear();
    let Some(report) = report else {
        if !matches!(phase.at_work(), Phase::Queued | Phase::Draining) && status.eviction_pods.is_some() {
            status.drain_progress = Some(100);
        }
        return;
    };
    for pod in report.left.iter().take(PODS) {
        let (namespace, name) = pod.name.split_once('/').unwrap_or(("", &pod.name));
        status.pending_pods.push(pod.name.clone());
        status.pods.push(PendingPod {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            state: pod.why.state().name().to_owned(),
            reason: pod.why.to_string(),
        });
    }
    let left = u32::try_from(report.left.len()).unwrap_or(u32::MAX);
    let all = status.eviction_pods.unwrap_or(0).max(left);
    status.eviction_pods = Some(all);
    let gone = u64::from(all.saturating_sub(left));
    let percent = (gone * 100).checked_div(u64::from(all)).unwrap_or(100);
    status.drain_progress = u32::try_from(percent).ok();
}

/// Adds the phases of an episode that have begun and are not written yet.
fn passed(status: &mut NodeMaintenanceStatus, seen: &OfNode, episode: &Episode) {
    for (phase, since) in &seen.phases {
        if *since >= episode.begun_at {
            begin_phase(status, phase, *since);
        }
    }
}

fn begin_phase(status: &mut NodeMaintenanceStatus, phase: &str, since: Timestamp) {
    let started_at = text(since);
    let is_known = status
        .phases
        .last()
        .is_some_and(|last| last.started_at >= started_at || last.phase == phase);
    if is_known || status.phases.len() >= PHASES {
        return;
    }
    close_phase(status, since);
    status.phases.push(PhaseTimes {
        phase: phase.to_owned(),
        started_at,
        ended_at: None,
    });
}

fn close_phase(status: &mut NodeMaintenanceStatus, at: Timestamp) {
    if let Some(last) = status.phases.last_mut() {
        last.ended_at.get_or_insert_with(|| text(at));
    }
}

fn waiting_since(status: &NodeMaintenanceStatus, reason: &str, message: &str, now: Timestamp) -> Waiting {
    let standing = status
        .waiting_on
        .as_ref()
        .filter(|waiting| waiting.reason == reason);
    Waiting {
        reason: reason.to_owned(),
        message: message.to_owned(),
        since: standing.map_or_else(|| text(now), |waiting| waiting.since.clone()),
    }
}

fn judged(
    object: &Maintenance,
    mut status: NodeMaintenanceStatus,
    progress: &Progress<'_>,
    now: Timestamp,
) -> NodeMaintenanceStatus {
    let state = status.state.clone().unwrap_or_else(|| "Waiting".to_owned());
    let waits = status
        .waiting_on
        .as_ref()
        .map_or_else(String::new, |waiting| format!("waiting for {}", waiting.message));
    let (phase, succeeded, reconciling, is_stalled, error) = match progress {
        Progress::Running => ("Running", ("Unknown", state, waits), true, false, None),
        Progress::Kept => ("Succeeded", ("True", state, waits), false, false, None),
        Progress::Stalled(why) => (
            "Running",
            ("Unknown", state, (*why).to_owned()),
            false,
            true,
            Some(*why),
        ),
        Progress::Succeeded => (
            "Succeeded",
            ("True", "Succeeded".to_owned(), String::new()),
            false,
            false,
            None,
        ),
        Progress::Failed(why) => (
            "Failed",
            ("False", "Failed".to_owned(), (*why).to_owned()),
            false,
            false,
            Some(*why),
        ),
        Progress::Cancelled => (
            "Succeeded",
            (
                "False",
                "Cancelled".to_owned(),
                "it was called off before anything was cut off".to_owned(),
            ),
            false,
            false,
            None,
        ),
        Progress::NotSeen => (
            "Running",
            (
                "Unknown",
                "NotSeen".to_owned(),
                "how it ended was not seen; the node is out of it".to_owned(),
            ),
            false,
            false,
            None,
        ),
    };
    status.observed_generation = Some(object.generation);
    status.phase = Some(phase.to_owned());
    status.last_error = error.map(str::to_owned);
    let word = |is: bool| if is { "True" } else { "False" };
    let (is, reason, message) = succeeded;
    let stalled = if is_stalled {
        message.clone()
    } else {
        String::new()
    };
    let judgements = [
        ("Succeeded", is, reason.clone(), message.clone()),
        ("Reconciling", word(reconciling), reason.clone(), message),
        ("Stalled", word(is_stalled), reason, stalled),
    ];
    status.conditions = judgements
        .into_iter()
        .map(|(kind, is, reason, message)| {
            let standing = object
                .status
                .conditions
                .iter()
                .find(|standing| standing.type_ == kind && standing.status == is);
            Condition {
                last_transition_time: standing
                    .map_or(Time(whole(now)), |standing| standing.last_transition_time.clone()),
                message,
                observed_generation: Some(object.generation),
                reason,
                status: is.to_owned(),
                type_: kind.to_owned(),
            }
        })
        .collect();
    status
}

/// Kubernetes keeps whole seconds; a finer time would differ from what it gives back.
fn whole(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

fn text(at: Timestamp) -> String {
    format!("{at:.3}")
}
