//! The content of the pages as plain data, for the templates and for `/api/v1`.
//!
//! Every list is limited, and the omitted rows are counted, because large pages are not readable and
//! would cost the controller memory.

mod episode;
mod maintainable;
mod node;
mod overview;
mod state;

use jiff::Timestamp;
use serde::Serialize;

use super::PageSettings;
use super::page_state::{PageLeadership, PageState};
use haulout_core::status::{self, EpisodeStep, Obstacle, PhaseKind, StatusBoard};
use haulout_kubernetes::update::NodeMaintenanceFacts;

pub(crate) use state::ShownState;

/// The input of a page.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) state: &'a PageState,
    pub(super) board: &'a StatusBoard,
    /// The NodeMaintenance objects of ended episodes, newest first.
    pub(super) history: &'a [NodeMaintenanceFacts],
    pub(super) settings: &'a PageSettings,
    pub(super) now: Timestamp,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Frame {
    pub now: Timestamp,
    /// The address of the kube-apiserver.
    pub cluster: String,
    /// The address of vCenter.
    pub vcenter: String,
    /// When vCenter last answered, where this replica follows it.
    pub vcenter_answered: Option<Timestamp>,
    /// How many nodes wait for a person, for the title. The JSON of the overview has it among the figures.
    #[serde(skip)]
    pub need_person: usize,
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

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Overview {
    #[serde(flatten)]
    pub frame: Frame,
    pub figures: OverviewFigures,
    /// What the lists of nodes and hosts are limited to.
    pub filter: ListFilter,
    /// The nodes that wait for a person.
    pub need_person: Vec<NodeRow>,
    /// The hosts of the clusters with our nodes, those out of service first.
    pub hosts: Vec<HostRow>,
    pub host_pages: PageCount,
    /// The nodes, those in an episode first.
    pub nodes: Vec<NodeRow>,
    pub node_pages: PageCount,
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
    /// Nodes that wait for a person.
    pub need_person: usize,
    /// Hosts that enter maintenance, or are in it.
    pub hosts_leaving: usize,
    /// Nodes that would not get through a maintenance, as far as their VM and Node show.
    pub not_maintainable: usize,
}

/// Which nodes would get through a maintenance, as far as their VM and Node show.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MaintainablePage {
    #[serde(flatten)]
    pub frame: Frame,
    pub filter: ListFilter,
    /// How many nodes there are, with and without obstacles.
    pub all: usize,
    pub with_obstacles: usize,
    /// Those that would stop until a person acts.
    pub blocked: usize,
    /// The nodes, those that would stop first.
    pub nodes: Vec<MaintainableRow>,
    pub node_pages: PageCount,
    /// The command that reads pods and PodDisruptionBudgets as well.
    pub report: &'static str,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MaintainableRow {
    pub name: String,
    pub host: Option<String>,
    /// Its VM has been looked up.
    pub is_known: bool,
    pub obstacles: Vec<ObstacleRow>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ObstacleRow {
    /// As in the metric haulout_node_maintainable.
    pub kind: Obstacle,
    pub words: &'static str,
    /// The maintenance stops there until a person acts.
    pub blocks: bool,
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
    /// When it ends by itself.
    pub deadline: Option<Timestamp>,
    /// What happens then.
    pub then: Option<String>,
    /// What a person can do.
    pub next: Option<NextStepRow>,
    /// The address of the runbook.
    pub runbook: Option<String>,
    pub needs_person: bool,
}

/// A step for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NextStepRow {
    pub text: String,
    /// It is a command to copy.
    pub is_command: bool,
}

/// What the lists of the overview are limited to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListFilter {
    /// A part of the name of the node or host.
    pub q: String,
    /// The page of nodes, from 1.
    pub nodes: usize,
    /// The page of hosts, from 1.
    pub hosts: usize,
}

/// Which page of a list is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PageCount {
    /// All rows that match the filter.
    pub rows: usize,
    /// The shown page, from 1.
    pub page: usize,
    pub pages: usize,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HostPage {
    #[serde(flatten)]
    pub frame: Frame,
    #[serde(flatten)]
    pub row: HostRow,
    /// The nodes on it: what holds the host.
    pub on_it: Vec<NodeRow>,
    pub timeline: Timeline,
    pub episodes: Vec<EpisodeRow>,
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
    /// The same for people.
    #[serde(skip)]
    pub words: String,
    pub end: Option<EndLook>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum EndLook {
    Good,
    /// Cancelled, or not seen.
    Neutral,
    Bad,
}

impl EndLook {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Neutral => "neutral",
            Self::Bad => "bad",
        }
    }

    /// The sign beside the word, for readers who cannot distinguish the colours.
    pub(crate) fn sign(self) -> &'static str {
        match self {
            Self::Good => "\u{2713}",
            Self::Neutral => "\u{2013}",
            Self::Bad => "\u{2716}",
        }
    }
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
    fn of<Kind>(span: status::StatusSpan<Kind>, label: &str, state: ShownState) -> Self {
        Self {
            state,
            label: label.to_owned(),
            from: span.from,
            to: span.to,
        }
    }
}
