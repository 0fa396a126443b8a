//! What a maintenance would do: the plans and the report that the leader makes and the command line shows.
//!
//! `planner` answers, from a copy of the inventory of the event loop. `view` reads what the copy does not hold. `node`, `wave`
//! and `report` make plain data of both.

mod durations;
mod node;
pub mod planner;
pub mod report;
pub mod rights;
pub mod view;
mod warnings;
pub mod wave;

use std::collections::BTreeMap;

use haulout_core::named_enum;
use serde::{Deserialize, Serialize};

use haulout_core::status::PhaseKind;

pub use warnings::DrainLimits;

/// The path of a plan in the API of the status page, with each host or node as `name`.
pub const PLAN_PATH: &str = "/api/v1/plan";

/// The path of the report.
pub const REPORT_PATH: &str = "/api/v1/report";

/// The path of the names of all hosts, for completion.
pub const HOSTS_PATH: &str = "/api/v1/hosts";

/// The events of an answer: how far it is, the answer, or why there is none.
pub const PROGRESS_EVENT: &str = "progress";
pub const ANSWER_EVENT: &str = "answer";
pub const ERROR_EVENT: &str = "error";

/// The names of one plan at most. A cluster of vSphere has up to 96 hosts.
pub const NAMES_MAX: usize = 100;

named_enum! {
    /// What a plan is about.
    pub enum PlannedObject {
        Host = "host",
        Node = "node",
    }
}

/// The plan of a maintenance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    pub about: PlannedObject,
    pub name: String,
    /// The state of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    pub nodes: Vec<NodePlan>,
    /// GPUs that are missing during the maintenance, by resource.
    pub gpus_missing: BTreeMap<String, u64>,
    /// What is not known, so that the plan may not be whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_checked: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePlan {
    pub node: String,
    pub state: PhaseKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    pub evicts: Vec<PodPlan>,
    /// Pods that are terminating already, as `namespace/name`.
    pub leaving: Vec<String>,
    /// Pods that stay because an annotation says so, as `namespace/name`.
    pub left: Vec<String>,
    /// Number of pods that stay, by reason.
    #[serde(rename = "letsBe")]
    pub skipped: BTreeMap<String, usize>,
    pub place: PlannedHost,
    pub gpus: BTreeMap<String, u64>,
    /// What would block it, except for budgets.
    pub stops: Vec<String>,
    /// Further notes.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodPlan {
    pub pod: String,
    /// How long it may end by itself before, from the cordon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<u64>,
    /// What would block its eviction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    /// What an operator should know before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The destination of the VM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedHost {
    /// The host to move to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// A text, if it is not moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<String>,
    /// Why other hosts are rejected.
    pub refused: Vec<String>,
}

impl Plan {
    /// Whether something would block it, as far as is known.
    pub fn is_blocked(&self) -> bool {
        !self.not_checked.is_empty()
            || self
                .nodes
                .iter()
                .any(|node| !node.stops.is_empty() || node.evicts.iter().any(|pod| pod.held.is_some()))
    }
}
