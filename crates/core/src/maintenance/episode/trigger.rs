//! What sets an episode off.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ids::{EpisodeId, TaskRef};
use crate::maintenance::request::RequestIdentity;

/// What set an episode off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trigger {
    /// The `EnterMaintenanceMode_Task`, where there was one to see.
    pub task: Option<TaskRef>,
    /// When it was queued, on vCenter's clock, or its request created, on the kube-apiserver's: the queue's order, and
    /// the start of the trace.
    pub clicked_at: Timestamp,
    /// Who clicked, where vCenter tells.
    pub user: Option<String>,
    /// How the click was heard of; `None` where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detection: Option<Detection>,
    /// The NodeMaintenance that asked for it, where one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestIdentity>,
    /// The episode that had ended when a power-off of ours still arrived: this one makes up for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stray_of: Option<EpisodeId>,
}

/// How a click was heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Detection {
    /// vCenter pushed it.
    Pushed,
    /// Only the re-read told of it.
    Polled,
    /// It is older than the process, or its leadership: nobody listened then.
    AtStartup,
}

impl Detection {
    /// Its name on metrics and spans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pushed => "property_collector",
            Self::Polled => "poll",
            Self::AtStartup => "startup",
        }
    }
}

named_enum! {
    /// The kinds of triggers, as metrics and spans name them.
    pub enum TriggerKind {
        /// A maintenance task of its host.
        Task = "task",
        /// Its host, in maintenance mode without a task that was seen.
        HostState = "host_state",
        /// A NodeMaintenance.
        Request = "request",
        /// A power-off of an earlier episode that arrived after that had ended.
        Stray = "stray",
        /// The Python controller, whose episode was adopted.
        Adopted = "adopted",
    }
}

impl Trigger {
    /// Its kind. [`Episode::trigger_kind`](super::Episode::trigger_kind) also knows adopted episodes.
    pub fn kind(&self) -> TriggerKind {
        match (&self.task, &self.request, &self.stray_of) {
            (Some(_), _, _) => TriggerKind::Task,
            (None, Some(_), _) => TriggerKind::Request,
            (None, None, Some(_)) => TriggerKind::Stray,
            (None, None, None) => TriggerKind::HostState,
        }
    }
}
