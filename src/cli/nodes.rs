//! The state of nodes, as plain data and as the table of `list`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::table::Table;
use crate::nodemaintenance::kind::{PendingPod, PhaseTimes, WaitStatus};
use crate::status::{PhaseKind, Took};

/// The state of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListedNode {
    pub(super) node: String,
    pub(super) state: PhaseKind,
    #[serde(skip)]
    pub(super) exit_state: ExitState,
    /// Start of the phase, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<String>,
    pub(super) ready: bool,
    pub(super) cordoned: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cordoned_by: Option<String>,
    pub(super) gpus: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parked: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) waiting_on: Option<WaitStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) pods: Vec<PendingPod>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) eviction_pods: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) phases: Vec<PhaseTimes>,
    /// A request began the episode, not host maintenance.
    #[serde(skip)]
    pub(super) by_request: bool,
    /// The cause of the episode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) requests: Vec<RequestState>,
    /// The user annotations of the Node.
    #[serde(rename = "wishes", skip_serializing_if = "Vec::is_empty")]
    pub(super) overrides: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trace: Option<TraceLink>,
}

/// An open request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RequestState {
    pub(super) name: String,
    pub(super) action: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) requested_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) phase: Option<String>,
}

/// The trace of an episode.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TraceLink {
    pub(super) node: String,
    pub(super) trace_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) url: Option<String>,
    /// The episode is active.
    pub(super) running: bool,
}

/// The state in exit codes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ExitState {
    #[default]
    InService,
    InMaintenance,
    Stuck,
}

impl ExitState {
    pub(super) fn of(phase: PhaseKind) -> Self {
        if phase == PhaseKind::InService {
            Self::InService
        } else if phase == PhaseKind::Parked {
            Self::Stuck
        } else {
            Self::InMaintenance
        }
    }

    pub(super) fn code(self) -> u8 {
        match self {
            Self::InService => 0,
            Self::InMaintenance => 3,
            Self::Stuck => 4,
        }
    }
}

pub(super) fn table(states: &[ListedNode], wide: bool, headers: bool, now: Timestamp) -> String {
    let mut columns = vec!["NODE", "HOST", "STATE", "PODS", "WAITING FOR", "SINCE"];
    if wide {
        columns.extend(["TARGET", "CORDONED BY", "GPUS", "REQUESTS", "TRACE"]);
    }
    let mut table = Table::new(&columns);
    for state in states {
        let waits = match (&state.parked, &state.waiting_on) {
            (Some(why), _) if wide => why.clone(),
            (_, Some(waiting)) if wide => waiting.message.clone(),
            (_, Some(waiting)) => waiting.reason.clone(),
            (Some(_), None) => "a person".to_owned(),
            (None, None) => String::new(),
        };
        let mut cells = vec![
            state.node.clone(),
            state.host.clone().unwrap_or_default(),
            state.state.to_string(),
            pods(state),
            waits,
            since(state.since.as_deref(), now),
        ];
        if wide {
            let gpus = state.gpus.iter().map(|(name, count)| format!("{name}={count}"));
            let requests: Vec<&str> = state.requests.iter().map(|it| it.name.as_str()).collect();
            let trace = state.trace.as_ref().map(|trace| trace.trace_id.clone());
            cells.extend([
                state.target.clone().unwrap_or_default(),
                state.cordoned_by.clone().unwrap_or_default(),
                gpus.collect::<Vec<_>>().join(","),
                requests.join(","),
                trace.unwrap_or_default(),
            ]);
        }
        table.row(cells);
    }
    table.render(headers)
}

/// Remaining pods, of all.
pub(super) fn pods(state: &ListedNode) -> String {
    match state.eviction_pods {
        Some(all) if !state.phases.is_empty() => format!("{}/{all}", state.pods.len()),
        Some(_) | None => String::new(),
    }
}

/// The time since `time`; empty for `None`.
pub(super) fn since(time: Option<&str>, now: Timestamp) -> String {
    time.and_then(|time| time.parse::<Timestamp>().ok())
        .map_or_else(String::new, |time| Took(now.duration_since(time)).to_string())
}
