//! The phase of a NodeMaintenance and its three conditions, as `kubectl wait` and kstatus expect them.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::kind::NodeMaintenanceStatus;
use haulout_core::status::EpisodeOutcome;
use haulout_kubernetes::update::NodeMaintenanceFacts;

/// The progress of a request or an episode.
#[derive(Clone, Copy)]
pub(super) enum Progress<'a> {
    Running,
    /// The request is fulfilled and kept so.
    Kept,
    Stalled(&'a str),
    /// It has ended, with the reason of a failure.
    Over(EpisodeOutcome, &'a str),
}

/// `status` with its phase and the three conditions.
pub(super) fn with_conditions(
    object: &NodeMaintenanceFacts,
    mut status: NodeMaintenanceStatus,
    progress: Progress<'_>,
    now: Timestamp,
) -> NodeMaintenanceStatus {
    let waits = status.waiting_on.as_ref();
    let state = status.state.as_deref().or(waits.map(|wait| wait.reason.as_str()));
    let state = state.unwrap_or("Waiting").to_owned();
    let waits = waits.map_or_else(String::new, |waiting| format!("waiting for {}", waiting.message));
    let (phase, succeeded, reason, message) = match progress {
        Progress::Running => ("Running", "Unknown", state, waits),
        Progress::Kept => ("Succeeded", "True", state, waits),
        Progress::Stalled(why) => ("Running", "Unknown", state, why.to_owned()),
        Progress::Over(outcome, why) => {
            let (phase, succeeded, message) = end_words(outcome, why);
            (phase, succeeded, outcome.name().to_owned(), message.to_owned())
        }
    };
    let is_running = matches!(progress, Progress::Running);
    let is_stalled = matches!(progress, Progress::Stalled(_));
    let word = |is: bool| if is { "True" } else { "False" };
    let why_stalled = if is_stalled {
        message.clone()
    } else {
        String::new()
    };
    let conditions = [
        ("Succeeded", succeeded, message.clone()),
        ("Reconciling", word(is_running), message.clone()),
        ("Stalled", word(is_stalled), why_stalled),
    ];
    let conditions = conditions.map(|(kind, is, message)| {
        let mut current = object.status.conditions.iter();
        let same = current.find(|current| current.type_ == kind && current.status == is);
        Condition {
            last_transition_time: same.map_or(Time(whole(now)), |same| same.last_transition_time.clone()),
            message,
            observed_generation: Some(object.generation),
            reason: reason.clone(),
            status: is.to_owned(),
            type_: kind.to_owned(),
        }
    });
    status.conditions = conditions.into();
    status.observed_generation = Some(object.generation);
    status.phase = Some(phase.to_owned());
    status.result = match progress {
        Progress::Over(outcome, _) => Some(outcome.name().to_owned()),
        Progress::Running | Progress::Kept | Progress::Stalled(_) => None,
    };
    status.last_error = (is_stalled || phase == "Failed").then_some(message);
    status
}

/// Phase, status of the condition `Succeeded`, and message of an end.
fn end_words(outcome: EpisodeOutcome, why: &str) -> (&'static str, &'static str, &str) {
    match outcome {
        EpisodeOutcome::Succeeded if why.is_empty() => {
            ("Succeeded", "True", "it is done, and the node is back")
        }
        EpisodeOutcome::Succeeded => ("Succeeded", "True", why),
        EpisodeOutcome::Failed => ("Failed", "False", why),
        EpisodeOutcome::Cancelled => (
            "Cancelled",
            "False",
            "it was cancelled before the VM was off or the node was drained",
        ),
        EpisodeOutcome::NotSeen => (
            "Unknown",
            "Unknown",
            "no process saw how it ended; the node is no longer in maintenance",
        ),
    }
}

/// Kubernetes stores whole seconds; a finer time would differ from the stored one.
fn whole(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
