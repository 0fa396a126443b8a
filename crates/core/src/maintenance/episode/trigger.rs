//! The trigger of an episode.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ids::{EpisodeId, TaskRef};
use crate::maintenance::host::Detection;
use crate::maintenance::kinds::TriggerKind;
use crate::maintenance::request_identity::RequestIdentity;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trigger {
    /// The `EnterMaintenanceMode_Task`, where one was observed.
    pub task: Option<TaskRef>,
    /// When the task was queued (vCenter's clock) or the request created (kube-apiserver's clock). It orders the queue and starts the
    /// trace.
    pub clicked_at: Timestamp,
    /// The user who started the task, where vCenter reports one, or who created the request, where it says so.
    pub user: Option<String>,
    /// How the task was detected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detection: Option<Detection>,
    /// The NodeMaintenance that requested it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestIdentity>,
    /// The ended episode whose power-off took effect late. This episode powers the VM on again.
    #[serde(default, rename = "strayOf", skip_serializing_if = "Option::is_none")]
    pub late_power_off_of: Option<EpisodeId>,
}

impl Trigger {
    /// A trigger of which only the time is known.
    pub fn new(clicked_at: Timestamp) -> Self {
        Self {
            task: None,
            clicked_at,
            user: None,
            detection: None,
            request: None,
            late_power_off_of: None,
        }
    }

    /// Its kind. [`Episode::trigger_kind`](super::Episode::trigger_kind) also knows adopted episodes.
    pub fn kind(&self) -> TriggerKind {
        match (&self.task, &self.request, &self.late_power_off_of) {
            (Some(_), _, _) => TriggerKind::Task,
            (None, Some(_), _) => TriggerKind::Request,
            (None, None, Some(_)) => TriggerKind::Stray,
            (None, None, None) => TriggerKind::HostState,
        }
    }
}
