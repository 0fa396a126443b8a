//! What the pages show, as plain data: made of what is known, serialised as it is for `/api/v1`, and drawn by the templates.
//!
//! Every list has a bound, and what is left out is counted: a page of thousands of nodes is read by nobody, and a hundred
//! open ones must not cost the controller its memory.

mod build;

use jiff::Timestamp;
use serde::Serialize;

use crate::maintenance::episode::Phase;
use crate::maintenance::observed::HostState;

pub(super) use build::{episode, node, overview};

/// What stands on every page.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Frame {
    /// When this was so.
    pub now: Timestamp,
    /// The program's version.
    pub version: &'static str,
    /// Everything is decided, and nothing done.
    pub dry_run: bool,
    /// Why vCenter is not heard, if it is not: all that is shown of it is old then.
    pub vcenter_silent: Option<String>,
    /// Why Kubernetes is not heard, if it is not.
    pub kubernetes_silent: Option<String>,
    /// Which replica acts.
    pub leadership: Leadership,
}

/// Which of several replicas acts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "role")]
pub enum Leadership {
    /// This one.
    Leads,
    /// Another one; this one looks on.
    StandsBy {
        /// Who leads, where that is known.
        leader: Option<String>,
    },
}

/// What a colour, a hatching and a sign stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(
    missing_docs,
    reason = "each is a phase, or the state of a host, of that name"
)]
pub enum State {
    InService,
    Queued,
    Draining,
    Drained,
    ShuttingDown,
    Relocating,
    AwaitingHost,
    PoweringOn,
    Rejoining,
    Parked,
    Adopting,
    EnteringMaintenance,
    InMaintenance,
    Quarantined,
    Unreachable,
    Unknown,
    Waiting,
}

/// The overview.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// What stands on every page.
    #[serde(flatten)]
    pub frame: Frame,
    /// The counts.
    pub figures: Figures,
    /// The hosts of the clusters that carry nodes of ours; those that are not in service first.
    pub hosts: Vec<HostRow>,
    /// How many hosts are not listed.
    pub more_hosts: usize,
    /// The nodes; those that are not at rest first.
    pub nodes: Vec<NodeRow>,
    /// How many nodes are not listed.
    pub more_nodes: usize,
    /// Those that wait their turn, in its order.
    pub queue: Vec<QueueRow>,
    /// What nodes and hosts went through of late.
    pub timeline: Timeline,
    /// The latest episodes, those in progress first.
    pub episodes: Vec<EpisodeRow>,
}

/// How many there are of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    /// Nodes that are watched.
    pub nodes: usize,
    /// Those with an episode that is not queued.
    pub in_episode: usize,
    /// Those that wait their turn.
    pub queued: usize,
    /// Those that wait for a person or a change.
    pub parked: usize,
    /// Hosts that are on their way into maintenance, or in it.
    pub hosts_leaving: usize,
}

/// One host.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostRow {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: State,
    /// Its state in words.
    pub words: &'static str,
    /// Who clicked, where vCenter tells.
    pub by: Option<String>,
    /// When its task was queued, on vCenter's clock.
    pub since: Option<Timestamp>,
    /// The nodes whose VMs stand on it.
    pub nodes: Vec<String>,
}

/// One node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    /// Its name.
    pub name: String,
    /// Its phase, as a state.
    pub state: State,
    /// Its phase.
    pub phase: &'static str,
    /// Since when.
    pub since: Option<Timestamp>,
    /// The host that its VM stands on.
    pub host: Option<String>,
    /// What it waits for.
    pub waits_for: Option<Waits>,
    /// The id of its episode.
    pub episode: Option<String>,
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waits {
    /// As a word.
    pub reason: String,
    /// As a sentence that follows "waits for".
    pub message: String,
    /// Since when, as far as this process has seen.
    pub since: Option<Timestamp>,
}

/// One node that waits its turn.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueRow {
    /// Its place, from 1.
    pub place: usize,
    /// Its name.
    pub node: String,
    /// When it was clicked or asked for: the queue's order.
    pub asked_at: Timestamp,
    /// Which limit is full.
    pub limit: Option<String>,
    /// Those that come before it.
    pub ahead: Vec<String>,
}

/// One episode in a list.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EpisodeRow {
    /// Its id.
    pub id: String,
    /// Its node.
    pub node: String,
    /// Its host.
    pub host: Option<String>,
    /// When it began.
    pub started_at: Option<Timestamp>,
    /// When it ended, if it has.
    pub ended_at: Option<Timestamp>,
    /// Where it stands, or how it ended.
    pub result: String,
}

/// One node's page.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePage {
    /// What stands on every page.
    #[serde(flatten)]
    pub frame: Frame,
    /// What the overview says of it.
    #[serde(flatten)]
    pub row: NodeRow,
    /// Further facts, each with its name.
    pub facts: Vec<Fact>,
    /// The pods that are still to go; `None` while no drain has listed them.
    pub pods: Option<Pods>,
    /// What was done and waited for in the latest episode, as far as this process has seen; the newest first.
    pub steps: Vec<Step>,
    /// Its episodes, the newest first.
    pub episodes: Vec<EpisodeRow>,
}

/// A fact with its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fact {
    /// What it is about.
    pub name: &'static str,
    /// What is so.
    pub value: String,
}

/// The pods that are still to go.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pods {
    /// Those that are listed, the ones that are held back first.
    pub left: Vec<PodRow>,
    /// How many are not listed.
    pub more: usize,
}

/// A pod that is still to go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRow {
    /// `namespace/name`.
    pub name: String,
    /// Why it is still there.
    pub why: String,
}

/// Something that was done, or waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// When.
    pub at: Timestamp,
    /// What.
    pub text: String,
}

/// One episode's page.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EpisodePage {
    /// What stands on every page.
    #[serde(flatten)]
    pub frame: Frame,
    /// What lists say of it.
    #[serde(flatten)]
    pub row: EpisodeRow,
    /// It is in progress.
    pub is_running: bool,
    /// The id of its trace.
    pub trace_id: String,
    /// The address of its trace, where the configuration tells how.
    pub trace_url: Option<String>,
    /// Further facts, each with its name.
    pub facts: Vec<Fact>,
    /// What it waits for.
    pub waits_for: Option<Waits>,
    /// Its phases, in order.
    pub phases: Vec<Span>,
    /// Its phases, and what was waited for, over time.
    pub timeline: Timeline,
    /// The pods that are still to go; `None` while no drain has listed them.
    pub pods: Option<Pods>,
    /// What was done and waited for, as far as this process has seen; the newest first.
    pub steps: Vec<Step>,
}

/// Spans of time, in rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// Where it begins.
    pub from: Timestamp,
    /// Where it ends.
    pub to: Timestamp,
    /// The rows, from above.
    pub rows: Vec<TimelineRow>,
}

/// One row of a timeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TimelineRow {
    /// Whose.
    pub name: String,
    /// In order, and never two at once.
    pub spans: Vec<Span>,
}

/// A span of time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Span {
    /// What it is drawn as.
    pub state: State,
    /// What it is called.
    pub label: String,
    /// When it began.
    pub from: Timestamp,
    /// When it ended; `None` while it lasts.
    pub to: Option<Timestamp>,
}

impl State {
    /// All of them, in the order in which a node and then a host go through them.
    pub const ALL: [Self; 17] = [
        Self::InService,
        Self::Queued,
        Self::Draining,
        Self::Drained,
        Self::ShuttingDown,
        Self::Relocating,
        Self::AwaitingHost,
        Self::PoweringOn,
        Self::Rejoining,
        Self::Parked,
        Self::Adopting,
        Self::EnteringMaintenance,
        Self::InMaintenance,
        Self::Quarantined,
        Self::Unreachable,
        Self::Unknown,
        Self::Waiting,
    ];

    /// The state of a phase.
    pub fn of_phase(phase: &Phase) -> Self {
        Self::named(phase.name())
    }

    /// The state of a host.
    pub fn of_host(state: &HostState) -> Self {
        match state {
            HostState::Unknown => Self::Unknown,
            HostState::Unreachable => Self::Unreachable,
            HostState::Entering { .. } => Self::EnteringMaintenance,
            HostState::InMaintenance => Self::InMaintenance,
            HostState::Quarantined => Self::Quarantined,
            HostState::InService => Self::InService,
        }
    }

    /// The state of a phase by its name, as objects have it.
    pub fn named(phase: &str) -> Self {
        let of_this_name = |state: &Self| state.name() == phase;
        Self::ALL.into_iter().find(of_this_name).unwrap_or(Self::Unknown)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::InService => "InService",
            Self::Queued => "Queued",
            Self::Draining => "Draining",
            Self::Drained => "Drained",
            Self::ShuttingDown => "ShuttingDown",
            Self::Relocating => "Relocating",
            Self::AwaitingHost => "AwaitingHost",
            Self::PoweringOn => "PoweringOn",
            Self::Rejoining => "Rejoining",
            Self::Parked => "Parked",
            Self::Adopting => "Adopting",
            Self::EnteringMaintenance => "EnteringMaintenance",
            Self::InMaintenance => "InMaintenance",
            Self::Quarantined => "Quarantined",
            Self::Unreachable => "Unreachable",
            Self::Unknown => "Unknown",
            Self::Waiting => "Waiting",
        }
    }

    /// The sign that stands beside its name, so that nobody has to tell it by its colour.
    pub fn sign(self) -> &'static str {
        match self {
            Self::InService => "\u{25cb}",
            Self::Queued => "\u{25d4}",
            Self::Draining => "\u{25bd}",
            Self::Drained => "\u{25bc}",
            Self::ShuttingDown => "\u{25e9}",
            Self::Relocating => "\u{25b6}",
            Self::AwaitingHost => "\u{25a0}",
            Self::PoweringOn => "\u{25b3}",
            Self::Rejoining => "\u{25b2}",
            Self::Parked => "\u{2716}",
            Self::Adopting => "\u{25c7}",
            Self::EnteringMaintenance => "\u{25bd}",
            Self::InMaintenance => "\u{25a0}",
            Self::Quarantined => "\u{25d4}",
            Self::Unreachable => "\u{2716}",
            Self::Unknown => "?",
            Self::Waiting => "\u{25ab}",
        }
    }
}
