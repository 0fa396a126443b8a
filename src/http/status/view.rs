//! What the pages show, as plain data: made of what is known, serialised as it is for `/api/v1`, and drawn by the templates.
//!
//! Every list has a bound, and what is left out is counted: a page of thousands of nodes is read by nobody, and a hundred
//! open ones must not cost the controller its memory.

mod episode;
mod node;
mod overview;
mod state;

use std::fmt::Display;

use jiff::Timestamp;
use serde::Serialize;

use crate::status::{self, PhaseKind};

pub(super) use episode::episode;
pub(super) use node::node;
pub(super) use overview::overview;
pub use state::ShownState;

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Frame {
    pub now: Timestamp,
    pub version: &'static str,
    /// Everything is decided, and nothing done.
    pub dry_run: bool,
    /// Why vCenter connection lost, if it is not: all that is shown of it is old then.
    pub vcenter_silent: Option<String>,
    /// Why Kubernetes connection lost, if it is not.
    pub kubernetes_silent: Option<String>,
    pub leadership: PageLeadership,
}

/// Which of several replicas acts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "role")]
pub enum PageLeadership {
    Leads,
    /// Another one; this one looks on.
    StandsBy {
        /// Who leads, where that is known.
        leader: Option<String>,
    },
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    #[serde(flatten)]
    pub frame: Frame,
    pub figures: OverviewFigures,
    /// The hosts of the clusters that carry nodes of ours; those that are not in service first.
    pub hosts: Vec<HostRow>,
    pub more_hosts: usize,
    /// The nodes; those that are not at rest first.
    pub nodes: Vec<NodeRow>,
    pub more_nodes: usize,
    /// Those that wait their turn, in its order.
    pub queue: Vec<QueueRow>,
    /// What nodes and hosts went through of late.
    pub timeline: Timeline,
    /// The latest episodes, those in progress first.
    pub episodes: Vec<EpisodeRow>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OverviewFigures {
    pub nodes: usize,
    /// Those with an episode that is not queued.
    pub in_episode: usize,
    pub queued: usize,
    /// Those that wait for a person or a change.
    pub parked: usize,
    /// Hosts that are on their way into maintenance, or in it.
    pub hosts_leaving: usize,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostRow {
    pub name: String,
    pub state: ShownState,
    pub words: &'static str,
    /// Who clicked, where vCenter tells.
    pub by: Option<String>,
    /// When its task was queued, on vCenter's clock.
    pub since: Option<Timestamp>,
    /// The nodes whose VMs stand on it.
    pub nodes: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
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
pub struct Waits {
    pub reason: String,
    pub message: String,
    /// Since when, as far as this process has seen.
    pub since: Option<Timestamp>,
}

/// One node that waits its turn.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueRow {
    pub place: usize,
    pub node: String,
    /// When it was clicked or asked for: the queue's order.
    pub asked_at: Timestamp,
    pub limit: Option<String>,
    pub ahead: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EpisodeRow {
    pub id: String,
    pub node: String,
    pub host: Option<String>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// Where it stands, or how it ended.
    pub result: String,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePage {
    #[serde(flatten)]
    pub frame: Frame,
    #[serde(flatten)]
    pub row: NodeRow,
    pub facts: Vec<LabelledFact>,
    /// The pods that are still to go; `None` while no drain has listed them.
    pub pods: Option<PodRows>,
    /// What was done and waited for in the latest episode, as far as this process has seen; the newest first.
    pub steps: Vec<EpisodeStep>,
    pub episodes: Vec<EpisodeRow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LabelledFact {
    pub name: &'static str,
    pub value: String,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRows {
    /// Those that are listed, the ones that are held back first.
    pub left: Vec<PodRow>,
    pub more: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRow {
    pub name: String,
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EpisodeStep {
    pub at: Timestamp,
    pub text: String,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EpisodePage {
    #[serde(flatten)]
    pub frame: Frame,
    #[serde(flatten)]
    pub row: EpisodeRow,
    pub is_running: bool,
    pub trace_id: String,
    /// The address of its trace, where the configuration tells how.
    pub trace_url: Option<String>,
    pub facts: Vec<LabelledFact>,
    pub waits_for: Option<Waits>,
    pub phases: Vec<TimelineSpan>,
    /// Its phases, and what was waited for, over time.
    pub timeline: Timeline,
    /// The pods that are still to go; `None` while no drain has listed them.
    pub pods: Option<PodRows>,
    /// What was done and waited for, as far as this process has seen; the newest first.
    pub steps: Vec<EpisodeStep>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    pub from: Timestamp,
    pub to: Timestamp,
    pub rows: Vec<TimelineRow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TimelineRow {
    pub name: String,
    /// In order, and never two at once.
    pub spans: Vec<TimelineSpan>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TimelineSpan {
    pub state: ShownState,
    pub label: String,
    pub from: Timestamp,
    /// When it ended; `None` while it lasts.
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
