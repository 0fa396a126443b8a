//! The phase of a NodeMaintenance and its three conditions, in the manner that `kubectl wait` and kstatus read.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::kind::NodeMaintenanceStatus;
use crate::kubernetes::update::NodeMaintenanceFacts;
use crate::status::EpisodeOutcome;

/// How far something has come.
#[derive(Clone, Copy)]
pub(super) enum Progress<'a> {
    Running,
    /// What was asked for is so, and is kept so.
    Kept,
    Stalled(&'a str),
    /// It is over; why, where it failed.
    Over(EpisodeOutcome, &'a str),
}

/// `status` with its judgement: the phase and the three conditions.
pub(super) fn judged(
    object: &NodeMaintenanceFacts,
    mut status: NodeMaintenanceStatus,
    progress: Progress<'_>,
    now: Timestamp,
) -> NodeMaintenanceStatus {
    let state = status.state.as_deref().unwrap_or("Waiting");
    let waits = status.waiting_on.as_ref();
    let waits = waits.map_or_else(String::new, |waiting| format!("waiting for {}", waiting.message));
    let (phase, succeeded, reason, message) = match progress {
        Progress::Running => ("Running", "Unknown", state, waits),
        Progress::Kept => ("Succeeded", "True", state, waits),
        Progress::Stalled(why) => ("Running", "Unknown", state, why.to_owned()),
        Progress::Over(outcome, why) => {
            let (phase, succeeded, message) = match outcome {
                EpisodeOutcome::Succeeded => ("Succeeded", "True", ""),
                EpisodeOutcome::Failed => ("Failed", "False", why),
                EpisodeOutcome::Cancelled => (
                    "Succeeded",
                    "False",
                    "it was called off before anything was cut off",
                ),
                EpisodeOutcome::NotSeen => (
                    "Running",
                    "Unknown",
                    "how it ended was not seen; the node is out of it",
                ),
            };
            (phase, succeeded, outcome.name(), message.to_owned())
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
        let mut standing = object.status.conditions.iter();
        let standing = standing.find(|standing| standing.type_ == kind && standing.status == is);
        Condition {
            last_transition_time: standing
                .map_or(Time(whole(now)), |standing| standing.last_transition_time.clone()),
            message,
            observed_generation: Some(object.generation),
            reason: reason.to_owned(),
            status: is.to_owned(),
            type_: kind.to_owned(),
        }
    });
    status.conditions = conditions.into();
    status.observed_generation = Some(object.generation);
    status.phase = Some(phase.to_owned());
    status.last_error = (is_stalled || phase == "Failed").then_some(message);
    status
}

/// Kubernetes keeps whole seconds; a finer time would differ from what it gives back.
fn whole(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
