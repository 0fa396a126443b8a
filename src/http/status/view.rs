//! The content of the pages as plain data, for the templates and for `/api/v1`.
//!
//! Every list is limited, and the omitted rows are counted, because large pages are not readable and
//! would cost the controller memory.

mod episode;
mod node;
mod overview;
mod state;

use std::fmt::Display;

use jiff::Timestamp;
use serde::Serialize;

use super::PageSettings;
use super::page_state::PageState;
use crate::kubernetes::update::NodeMaintenanceFacts;
use crate::status::{self, PhaseKind};

pub(crate) use state::ShownState;

/// The input of a page.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) state: &'a PageState,
    /// The NodeMaintenance objects of ended episodes, newest first.
    pub(super) history: &'a [NodeMaintenanceFacts],
    pub(super) settings: &'a PageSettings,
    pub(super) now: Timestamp,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Frame {
    pub now: Timestamp,
    pub version: &'static str,
    pub dry_run: bool,
    /// Why vCenter is not synced; its data is outdated then.
    #[serde(rename = "vcenterSilent")]
    pub vcenter_error: Option<String>,
    /// Why Kubernetes is not synced.
    #[serde(rename = "kubernetesSilent")]
    pub kubernetes_error: Option<String>,
    pub leadership: PageLeadership,
}

/// The role of this replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "role")]
pub(crate) enum PageLeadership {
    Leads,
    /// Another replica leads.
    StandsBy {
        /// The leader, if known.
        leader: Option<String>,
    },
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Overview {
    #[serde(flatten)]
    pub frame: Frame,
    pub figures: OverviewFigures,
    /// The hosts of the clusters with our nodes, those out of service first.
    pub hosts: Vec<HostRow>,
    pub more_hosts: usize,
    /// The nodes, those in an episode first.
    pub nodes: Vec<NodeRow>,
    pub more_nodes: usize,
    /// Queued nodes in order.
    pub queue: Vec<QueueRow>,
    /// Recent phases and states of nodes and hosts.
    pub timeline: Timeline,
    /// The latest episodes, active ones first.
    pub episodes: Vec<EpisodeRow>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OverviewFigures {
    pub nodes: usize,
    /// Nodes with an episode that is not queued.
    pub in_episode: usize,
    pub queued: usize,
    pub parked: usize,
    /// Hosts that enter maintenance, or are in it.
    pub hosts_leaving: usize,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HostRow {
    pub name: String,
    pub state: ShownState,
    pub words: &'static str,
    /// The user of the maintenance task, if known.
    pub by: Option<String>,
    /// Queue time of the task, on vCenter's clock.
    pub since: Option<Timestamp>,
    /// The nodes whose VMs are on the host.
    pub nodes: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeRow {
    pub name: String,
    pub state: ShownState,
    pub phase: PhaseKind,
    pub since: Option<Timestamp>,
    pub host: Option<String>,
    pub waits_for: Option<Waits>,
    pub episode: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Waits {
    pub reason: String,
    pub message: String,
    /// As far as this process knows.
    pub since: Option<Timestamp>,
}

/// A queued node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct QueueRow {
    #[serde(rename = "place")]
    pub position: usize,
    pub node: String,
    /// The time of the task or request, which decides the order.
    pub asked_at: Timestamp,
    pub limit: Option<String>,
    pub ahead: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EpisodeRow {
    pub id: String,
    pub node: String,
    pub host: Option<String>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// The phase, or the result.
    pub result: String,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodePage {
    #[serde(flatten)]
    pub frame: Frame,
    #[serde(flatten)]
    pub row: NodeRow,
    pub facts: Vec<LabelledFact>,
    /// The remaining pods; `None` before a drain lists them.
    pub pods: Option<PodRows>,
    /// Steps of the latest episode in this process, newest first.
    pub steps: Vec<EpisodeStep>,
    pub episodes: Vec<EpisodeRow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LabelledFact {
    pub name: &'static str,
    pub value: String,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodRows {
    /// The listed pods, blocked ones first.
    pub left: Vec<PodRow>,
    pub more: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodRow {
    pub name: String,
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EpisodeStep {
    pub at: Timestamp,
    pub text: String,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EpisodePage {
    #[serde(flatten)]
    pub frame: Frame,
    #[serde(flatten)]
    pub row: EpisodeRow,
    pub is_running: bool,
    pub trace_id: String,
    /// The link to the trace, if configured.
    pub trace_url: Option<String>,
    pub facts: Vec<LabelledFact>,
    pub waits_for: Option<Waits>,
    pub phases: Vec<TimelineSpan>,
    /// Phases and waits over time.
    pub timeline: Timeline,
    /// The remaining pods; `None` before a drain lists them.
    pub pods: Option<PodRows>,
    /// Steps in this process, newest first.
    pub steps: Vec<EpisodeStep>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Timeline {
    pub from: Timestamp,
    pub to: Timestamp,
    pub rows: Vec<TimelineRow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TimelineRow {
    pub name: String,
    /// In order, without overlaps.
    pub spans: Vec<TimelineSpan>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TimelineSpan {
    pub state: ShownState,
    pub label: String,
    pub from: Timestamp,
    /// `None` if it has not ended.
    pub to: Option<Timestamp>,
}

impl LabelledFact {
    fn new(name: &'static str, value: impl Into<String>) -> Self {
        let value = value.into();
        Self { name, value }
    }
}

impl TimelineSpan {
    fn of(span: status::StatusSpan<impl Display>, state: ShownState) -> Self {
        Self {
            state,
            label: span.kind.to_string(),
            from: span.from,
            to: span.to,
        }
    }
}
