//! Computes the status of an object from its current status and the status of its node. Which function is for which object is decided
//! in [`objects`](super::objects).
//!
//! `phases` and `state` are phases of an episode; `phase` is the progress of the object, which
//! [`conditions`](super::conditions) sets.

use std::sync::Arc;

use jiff::Timestamp;

use super::conditions::{Progress, with_conditions};
use super::kind::{NodeMaintenanceStatus, PendingPod, PhaseTimes, WaitStatus};
use haulout_core::maintenance::episode::{Episode, EpisodeResult, Record};
use haulout_core::maintenance::record;
use haulout_core::status::{EpisodeEnd, EpisodeOutcome, NodeEntry, PhaseKind, WaitKind};
use haulout_kubernetes::update::{NodeMaintenanceFacts, RequestAction};

/// The reason of the wait of a request for a node that is not watched.
pub(super) const NODE_NOT_FOUND: &str = "NodeNotFound";

/// The maximum number of pods in a status.
const PODS: usize = 50;

/// The maximum number of phases in a status.
const PHASES: usize = 100;

/// The status of an episode's object while the episode lasts. While a source is not synced, the record may be older than the copy,
/// which stays then.
pub(super) fn of_episode(
    object: &NodeMaintenanceFacts,
    entry: &NodeEntry,
    (episode, is_known): (&Arc<Episode>, bool),
    now: Timestamp,
) -> NodeMaintenanceStatus {
    let mut status = episode_status(object, entry, episode);
    if is_known && may_be_copied(object, entry, episode) {
        status.record = record::write(&Record::Episode(Arc::clone(episode)), now).episode;
    }
    let parked = parked(episode);
    let progress = parked.as_deref().map_or(Progress::Running, Progress::Stalled);
    with_conditions(object, status, progress, now)
}

/// Whether the record may be copied. After a restart a copy shows to which node a VM belongs. A kubelet can write the UUID of another
/// node's VM into the record on its own Node, so the first copy is written only while the node has that VM.
fn may_be_copied(object: &NodeMaintenanceFacts, entry: &NodeEntry, episode: &Episode) -> bool {
    let status = entry.status.as_ref();
    let has_vm = || {
        let vm = status.and_then(|status| status.vm.found());
        vm.and_then(|vm| vm.uuid) == episode.vm_uuid
    };
    let is_copied = || {
        let copy = object.status.record.as_deref().and_then(record::read_copy);
        copy.is_some_and(|copy| copy.vm_uuid == episode.vm_uuid)
    };
    episode.vm_uuid.is_none() || has_vm() || is_copied()
}

/// The status of a request with an episode.
pub(super) fn of_request(
    object: &NodeMaintenanceFacts,
    action: &RequestAction,
    entry: &NodeEntry,
    episode: &Episode,
    now: Timestamp,
) -> NodeMaintenanceStatus {
    let status = episode_status(object, entry, episode);
    let waits_for = entry.waiting_on().map(|wait| wait.on.kind());
    let phase = episode.phase.kind();
    let is_kept = match action {
        RequestAction::Drain => phase == PhaseKind::Drained,
        RequestAction::PowerOff => phase == PhaseKind::AwaitingHost && waits_for == Some(WaitKind::Request),
        RequestAction::Relocate { .. } | RequestAction::Reboot => false,
    };
    let parked = parked(episode);
    let otherwise = if is_kept {
        Progress::Kept
    } else {
        Progress::Running
    };
    let progress = parked.as_deref().map_or(otherwise, Progress::Stalled);
    with_conditions(object, status, progress, now)
}

/// Why an episode is parked.
fn parked(episode: &Episode) -> Option<String> {
    episode.phase.parked().map(|(reason, _)| reason.to_string())
}

/// The status of an episode's object at its end.
pub(super) fn of_ended_episode(object: &NodeMaintenanceFacts, ending: &EpisodeEnd) -> NodeMaintenanceStatus {
    let EpisodeEnd { episode, how, at } = ending;
    let mut status = (*object.status).clone();
    // It may have ended before the object was written.
    set_episode(&mut status, episode);
    set_phases(&mut status, episode);
    status.record = record::write(&Record::Episode(Arc::clone(episode)), *at).episode;
    over(object, status, Some(episode), Some(*how), *at)
}

/// The status of an episode's object at an end that this process did not observe: `how` is what its Node says.
pub(super) fn of_unobserved_end(
    object: &NodeMaintenanceFacts,
    how: Option<EpisodeResult>,
    at: Timestamp,
) -> NodeMaintenanceStatus {
    let copy = object.status.record.as_deref().and_then(record::read_copy);
    let copy = copy.filter(|_| how.is_some());
    over(object, (*object.status).clone(), copy.as_deref(), how, at)
}

fn over(
    object: &NodeMaintenanceFacts,
    status: NodeMaintenanceStatus,
    episode: Option<&Episode>,
    how: Option<EpisodeResult>,
    at: Timestamp,
) -> NodeMaintenanceStatus {
    let gave_up = match how {
        Some(EpisodeResult::Failed) => Some("the reason was not recorded".to_owned()),
        Some(_) | None => None,
    };
    let gave_up = episode
        .and_then(|episode| episode.relocation_failure.clone())
        .or(gave_up);
    let fewer = episode.and_then(|episode| episode.accepted_gpus.as_ref());
    let fewer = fewer.map(|fewer| format!("a person accepted it with fewer GPUs: {fewer}"));
    let message = gave_up.or(fewer).unwrap_or_default();
    let progress = Progress::Over(EpisodeOutcome::from(how), &message);
    with_conditions(object, closed(status, at), progress, at)
}

/// Whether `wanted` differs from `is` only in its progress: the pods that are left, and the text of a wait of the same kind.
pub(super) fn is_progress(is: &NodeMaintenanceStatus, wanted: &NodeMaintenanceStatus) -> bool {
    if is == wanted {
        return false;
    }
    let mut unchanged = NodeMaintenanceStatus {
        pending_pods: is.pending_pods.clone(),
        pods: is.pods.clone(),
        total_pods: is.total_pods,
        eviction_pods: is.eviction_pods,
        drain_progress: is.drain_progress,
        ..wanted.clone()
    };
    if let (Some(was), Some(waiting)) = (&is.waiting_on, &mut unchanged.waiting_on) {
        waiting.message.clone_from(&was.message);
        waiting.deadline.clone_from(&was.deadline);
        waiting.then.clone_from(&was.then);
        waiting.next_step.clone_from(&was.next_step);
    }
    for (was, condition) in is.conditions.iter().zip(&mut unchanged.conditions) {
        condition.message.clone_from(&was.message);
    }
    unchanged == *is
}

/// The status of a request that is fulfilled or was given up. The episode is the one that ended last on its node, if this process
/// observed that.
pub(super) fn of_fulfilled_request(
    object: &NodeMaintenanceFacts,
    episode: Option<&Episode>,
    gave_up: Option<&str>,
    at: Timestamp,
) -> NodeMaintenanceStatus {
    let mut status = (*object.status).clone();
    let is_its = |it: &&Episode| status.episode.as_deref() == Some(it.id.as_str());
    if let Some(episode) = episode.filter(is_its) {
        set_episode(&mut status, episode);
        set_phases(&mut status, episode);
    }
    let status = closed(status, at);
    let outcome = gave_up.map_or(EpisodeOutcome::Succeeded, |_| EpisodeOutcome::Failed);
    with_conditions(
        object,
        status,
        Progress::Over(outcome, gave_up.unwrap_or_default()),
        at,
    )
}

/// The status of a request without an episode. It shows nothing of an episode that the node had or has: that was not begun for it, or
/// has ended without it.
pub(super) fn of_waiting_request(
    object: &NodeMaintenanceFacts,
    wait: WaitStatus,
    progress: Progress<'_>,
    now: Timestamp,
) -> NodeMaintenanceStatus {
    let before = &*object.status;
    let status = NodeMaintenanceStatus {
        waiting_on: Some(wait.continuing(before.waiting_on.as_ref())),
        ..NodeMaintenanceStatus::default()
    };
    with_conditions(object, status, progress, now)
}

fn closed(mut status: NodeMaintenanceStatus, at: Timestamp) -> NodeMaintenanceStatus {
    close_phase(&mut status, at);
    status.state = Some("Ended".to_owned());
    status.waiting_on = None;
    status.pending_pods.clear();
    status.pods.clear();
    status.ended_at = Some(text(at));
    status
}

/// The part of the status that the objects of an episode and of its request share.
fn episode_status(
    object: &NodeMaintenanceFacts,
    entry: &NodeEntry,
    episode: &Episode,
) -> NodeMaintenanceStatus {
    let mut status = (*object.status).clone();
    if drains_again(&status, episode) {
        status.total_pods = None;
        status.eviction_pods = None;
    }
    set_phases(&mut status, episode);
    status.state = Some(episode.phase.name().to_owned());
    set_episode(&mut status, episode);
    status.waiting_on = entry.waiting_on().map(|wait| {
        wait.written(&object.node)
            .continuing(object.status.waiting_on.as_ref())
    });
    set_drain_progress(&mut status, entry, episode);
    status
}

/// What the episode is about, which an object has in every phase.
fn set_episode(status: &mut NodeMaintenanceStatus, episode: &Episode) {
    status.host = Some(episode.host.to_string());
    let target = episode.phase.target().or(episode.moved_to.as_ref());
    status.target = target.map(ToString::to_string);
    status.episode = Some(episode.id.to_string());
    status.trace_id = Some(episode.trace_id().to_owned());
    status.started_at = Some(text(episode.begun_at));
    status.left_behind = episode.left_behind.iter().take(PODS).cloned().collect();
}

/// Whether the node is drained anew: its pods are counted from now on.
fn drains_again(status: &NodeMaintenanceStatus, episode: &Episode) -> bool {
    let was = status
        .state
        .as_deref()
        .and_then(|state| state.parse::<PhaseKind>().ok());
    let was_drained = was.is_some_and(|was| !was.is_before_drained());
    was_drained && episode.phase.at_work().kind() == PhaseKind::Draining
}

/// How far the drain is. After a drain with pods left behind, the share of those that are gone stays as it was.
fn set_drain_progress(status: &mut NodeMaintenanceStatus, entry: &NodeEntry, episode: &Episode) {
    let phase = episode.phase.at_work().kind();
    status.pending_pods.clear();
    status.pods.clear();
    let latest = entry.latest.as_ref();
    let most = latest
        .filter(|it| it.episode.id == episode.id)
        .and_then(|it| it.most);
    if let Some((listed, left)) = most {
        status.total_pods = status.total_pods.max(Some(count(listed)));
        status.eviction_pods = status.eviction_pods.max(Some(count(left)));
    }
    let pods = entry.status.as_ref().and_then(|it| it.pods.as_ref());
    if let Some(pods) = pods.filter(|_| phase == PhaseKind::Draining) {
        status.pods = pods.written(PODS);
        status.pending_pods = status.pods.iter().map(PendingPod::full_name).collect();
        let left = count(pods.left.len());
        let all = status.eviction_pods.unwrap_or(0).max(left);
        status.eviction_pods = Some(all);
        let gone = u64::from(all.saturating_sub(left));
        let percent = (gone * 100).checked_div(u64::from(all)).unwrap_or(100);
        status.drain_progress = u32::try_from(percent).ok();
    } else if !phase.is_before_drained() && status.eviction_pods.is_some() && episode.left_behind.is_empty() {
        status.drain_progress = Some(100);
    }
}

fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The phases of the record, after the earlier ones that the record has dropped.
fn set_phases(status: &mut NodeMaintenanceStatus, episode: &Episode) {
    let spans = episode.phase_spans();
    let Some(first) = spans.first().map(|first| first.from) else {
        return;
    };
    status.phases.retain(|phase| phase.started_at < text(first));
    close_phase(status, first);
    status.phases.extend(spans.iter().map(|span| PhaseTimes {
        phase: span.kind.name().to_owned(),
        started_at: text(span.from),
        ended_at: span.to.map(text),
    }));
    let over = status.phases.len().saturating_sub(PHASES);
    status.phases.drain(..over);
}

fn close_phase(status: &mut NodeMaintenanceStatus, at: Timestamp) {
    if let Some(last) = status.phases.last_mut() {
        last.ended_at.get_or_insert_with(|| text(at));
    }
}

/// A wait of a request for something that its node does not wait for.
pub(super) fn other_wait(reason: &str, message: String, now: Timestamp) -> WaitStatus {
    WaitStatus {
        reason: reason.to_owned(),
        message,
        since: text(now),
        deadline: None,
        then: None,
        next_step: None,
    }
}

fn text(at: Timestamp) -> String {
    format!("{at:.3}")
}
