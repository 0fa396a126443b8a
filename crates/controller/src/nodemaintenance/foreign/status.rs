//! The status of an object of another project, from the status that an object of Haulout's own kind would have.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::nodemaintenance::kind::NodeMaintenanceStatus;
use crate::nodemaintenance::status::NODE_NOT_FOUND;
use haulout_core::facts::foreign_maintenance::{
    ForeignApi, ForeignMaintenance, ForeignStatus, Medik8sStatus, NvidiaDrain, NvidiaStatus, PodReference,
};
use haulout_core::status::PhaseKind;
use haulout_kubernetes::answer::plain;
use haulout_kubernetes::update::NodeMaintenanceFacts;

/// How long a new object is left alone, so that its own operator can show first that it handles it.
const SETTLE: SignedDuration = SignedDuration::from_secs(3);

/// How far the clock of the kube-apiserver may be ahead. With a larger difference, the status is written at once.
const SKEW: SignedDuration = SignedDuration::from_secs(10);

/// Whether the status of an object is not written yet.
pub(in crate::nodemaintenance) fn is_early(object: &NodeMaintenanceFacts, now: Timestamp) -> bool {
    let age = now.duration_since(object.created_at);
    age < SETTLE && age > -SKEW
}

/// The status for an object whose request has this status.
pub(in crate::nodemaintenance) fn status_of(
    foreign: &ForeignMaintenance,
    object: &NodeMaintenanceFacts,
    status: &NodeMaintenanceStatus,
    now: Timestamp,
) -> ForeignStatus {
    let waits = status.waiting_on.as_ref();
    let waits = waits.map(|wait| format!("waiting for {}", wait.message));
    let message = status.last_error.clone().or(waits).unwrap_or_default();
    let is_drained = status.phase.as_deref() == Some("Succeeded");
    match foreign.origin.api {
        ForeignApi::Medik8s | ForeignApi::Kubevirt => {
            let is_missing = status
                .waiting_on
                .as_ref()
                .is_some_and(|it| it.reason == NODE_NOT_FOUND);
            let phase = if is_missing {
                Some("Failed")
            } else {
                status.phase.as_deref()
            };
            let error = Some(message).filter(|text| !is_drained && !text.is_empty());
            ForeignStatus::Medik8s(medik8s(foreign.origin.api, status, phase, error))
        }
        ForeignApi::Nvidia => {
            let reason = match (reason(status), foreign.has_failed_requestor) {
                ("Ready", true) => "RequestorFailed",
                (reason, _) => reason,
            };
            let message = if reason == "Ready" { String::new() } else { message };
            ForeignStatus::Nvidia(NvidiaStatus {
                conditions: vec![ready(foreign, object, reason, &message, now)],
                drain: status.eviction_pods.map(|eviction_pods| NvidiaDrain {
                    total_pods: status.total_pods.unwrap_or(eviction_pods),
                    eviction_pods,
                    drain_progress: if is_drained {
                        100
                    } else {
                        status.drain_progress.unwrap_or(0)
                    },
                    wait_for_eviction: status.pending_pods.clone(),
                }),
            })
        }
    }
}

/// The status for an object that Haulout does not serve.
pub(in crate::nodemaintenance) fn refused(
    foreign: &ForeignMaintenance,
    object: &NodeMaintenanceFacts,
    why: &str,
    now: Timestamp,
) -> ForeignStatus {
    match foreign.origin.api {
        ForeignApi::Medik8s | ForeignApi::Kubevirt => ForeignStatus::Medik8s(Medik8sStatus {
            phase: Some("Failed".to_owned()),
            last_error: Some(plain(why)),
            ..Medik8sStatus::default()
        }),
        ForeignApi::Nvidia => ForeignStatus::Nvidia(NvidiaStatus {
            conditions: vec![ready(foreign, object, "Pending", why, now)],
            drain: None,
        }),
    }
}

/// Whether `wanted` differs from `is` only in its progress, as for Haulout's own kind.
pub(in crate::nodemaintenance) fn is_progress(is: &ForeignStatus, wanted: &ForeignStatus) -> bool {
    match (is, wanted) {
        (ForeignStatus::Medik8s(is), ForeignStatus::Medik8s(wanted)) => {
            is.phase == wanted.phase && is.last_error.is_some() == wanted.last_error.is_some()
        }
        (ForeignStatus::Nvidia(is), ForeignStatus::Nvidia(wanted)) => {
            let reasons = |it: &NvidiaStatus| {
                let reasons = it
                    .conditions
                    .iter()
                    .map(|it| (it.status.clone(), it.reason.clone()));
                reasons.collect::<Vec<_>>()
            };
            reasons(is) == reasons(wanted) && is.drain.is_some() == wanted.drain.is_some()
        }
        (ForeignStatus::Medik8s(_), ForeignStatus::Nvidia(_))
        | (ForeignStatus::Nvidia(_), ForeignStatus::Medik8s(_)) => false,
    }
}

fn medik8s(
    api: ForeignApi,
    status: &NodeMaintenanceStatus,
    phase: Option<&str>,
    error: Option<String>,
) -> Medik8sStatus {
    let names = status.pending_pods.iter().map(|pod| match pod.split_once('/') {
        Some((namespace, name)) => (namespace, name),
        None => ("", pod.as_str()),
    });
    let mut wanted = Medik8sStatus {
        phase: phase.map(str::to_owned),
        last_error: error.map(|error| plain(&error)),
        pending_pods: names.clone().map(|(_, name)| name.to_owned()).collect(),
        total_pods: status.total_pods.unwrap_or(0),
        eviction_pods: status.eviction_pods.unwrap_or(0),
        ..Medik8sStatus::default()
    };
    if api == ForeignApi::Medik8s {
        let is_drained = phase == Some("Succeeded");
        wanted.drain_progress = if is_drained {
            100
        } else {
            status.drain_progress.unwrap_or(0)
        };
        let refs = names.map(|(namespace, name)| PodReference {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        });
        wanted.pending_pods_refs = refs.collect();
    }
    wanted
}

/// The reason of the condition `Ready`, which is the phase of NVIDIA's kind. It has none for a node that is in maintenance with its
/// host as well: it stays cordoned, and is not ready for the requestor.
fn reason(status: &NodeMaintenanceStatus) -> &'static str {
    let phase = status
        .state
        .as_deref()
        .and_then(|state| state.parse::<PhaseKind>().ok());
    match phase {
        None | Some(PhaseKind::InService | PhaseKind::Adopting | PhaseKind::Queued) => "Pending",
        Some(PhaseKind::Draining) => "Draining",
        Some(PhaseKind::Drained) if status.phase.as_deref() == Some("Succeeded") => "Ready",
        Some(
            PhaseKind::Drained
            | PhaseKind::ShuttingDown
            | PhaseKind::Relocating
            | PhaseKind::AwaitingHost
            | PhaseKind::PoweringOn
            | PhaseKind::Rejoining
            | PhaseKind::Parked,
        ) => "Cordon",
    }
}

fn ready(
    foreign: &ForeignMaintenance,
    object: &NodeMaintenanceFacts,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Condition {
    let status = if reason == "Ready" { "True" } else { "False" };
    let current = match &foreign.status {
        ForeignStatus::Nvidia(status) => status.conditions.first(),
        ForeignStatus::Medik8s(_) => None,
    };
    let same = current.filter(|current| current.status == status);
    // Kubernetes stores whole seconds.
    let whole = Timestamp::from_second(now.as_second()).unwrap_or(now);
    Condition {
        last_transition_time: same.map_or(Time(whole), |same| same.last_transition_time.clone()),
        message: plain(message),
        observed_generation: Some(object.generation),
        reason: reason.to_owned(),
        status: status.to_owned(),
        type_: "Ready".to_owned(),
    }
}
