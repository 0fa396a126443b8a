//! Tasks: the properties to read, and how to decode them.
//!
//! `info.result` can be of any type and size. It is read only of our own tasks whose outcome it
//! contains, and omitted from the task history.

use jiff::Timestamp;

use super::decode::{boolean, timestamp};
use super::fault::{Fault, FaultKind};
use super::moref::Moref;
use super::property::{ObjectProperties, Value};
use super::soap::ReplyError;
use super::text::for_people;
use super::update::TaskState;
use haulout_core::ids::TaskRef;

/// Properties of a watched task. Paths below `info` are pushed only when their value changes, so
/// progress causes no update.
pub(super) const PATHS: &[&str] = &[
    "info.descriptionId",
    "info.entity",
    "info.state",
    "info.cancelled",
    "info.error",
    "info.reason",
    "info.queueTime",
];

/// The name of the operation, for tasks with another `descriptionId`.
pub(super) const NAME: &str = "info.name";

/// The result of a task.
pub(super) const RESULT: &str = "info.result";

/// The relevant fields of `TaskInfo`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TaskInfo {
    pub moref: TaskRef,
    /// `name`, such as `EnterMaintenanceMode_Task`; `None` for internal tasks of vCenter, or if it was
    /// not requested.
    pub name: Option<String>,
    /// `descriptionId`, such as `HostSystem.enterMaintenanceMode`.
    pub description_id: String,
    pub entity: Option<Moref>,
    pub state: TaskState,
    /// `cancelled`: a client requested to cancel it. It may still run.
    pub cancelled: bool,
    /// `reason.userName`, if a user started it.
    pub user: Option<String>,
    pub queued_at: Timestamp,
}

impl TaskInfo {
    pub(crate) fn has_ended(&self) -> bool {
        match self.state {
            TaskState::Queued | TaskState::Running => false,
            TaskState::Success | TaskState::Error(_) => true,
        }
    }

    /// Whether the task puts a host into maintenance. Decided by `descriptionId`, because names and
    /// messages depend on language and client (`proto-notes/property-collector.md`).
    pub(crate) fn enters_maintenance(&self) -> bool {
        self.description_id == "HostSystem.enterMaintenanceMode"
    }

    /// Whether success alone does not imply that it did something: `PowerOnMultiVM_Task`, our only task
    /// on a datacenter, succeeds even if nothing was started (`ClusterPowerOnVmResult`).
    pub(crate) fn needs_result(&self) -> bool {
        self.entity
            .as_ref()
            .is_some_and(|entity| entity.kind == "Datacenter")
    }
}

/// Decodes a task. Missing properties keep their value from `before`, the earlier state of the same
/// task.
///
/// # Errors
/// If the description id, the state or the queue time is unknown or malformed.
pub(crate) fn read(object: &ObjectProperties, before: Option<&TaskInfo>) -> Result<TaskInfo, ReplyError> {
    let moref = object
        .moref
        .task()
        .ok_or_else(|| ReplyError::value(object.moref.to_string(), "a Task"))?;
    let mut draft = before.map_or_else(TaskDraft::default, TaskDraft::of);
    for (path, value) in &object.properties {
        draft.set(path, value.as_ref());
    }
    let mut task = draft.finish(moref)?;
    if task.state == TaskState::Success
        && let Some(fault) = object.get(RESULT).and_then(Value::fault)
    {
        task.state = TaskState::Error(fault.clone());
    }
    Ok(task)
}

/// A partially known task.
#[derive(Default)]
struct TaskDraft {
    name: Option<String>,
    description_id: Option<String>,
    entity: Option<Moref>,
    state: Option<TaskState>,
    cancelled: bool,
    error: Option<Fault>,
    user: Option<String>,
    queued_at: Option<Timestamp>,
}

impl TaskDraft {
    fn of(task: &TaskInfo) -> Self {
        let error = match &task.state {
            TaskState::Error(fault) => Some(fault.clone()),
            TaskState::Queued | TaskState::Running | TaskState::Success => None,
        };
        Self {
            name: task.name.clone(),
            description_id: Some(task.description_id.clone()),
            entity: task.entity.clone(),
            state: Some(task.state.clone()),
            cancelled: task.cancelled,
            error,
            user: task.user.clone(),
            queued_at: Some(task.queued_at),
        }
    }

    fn set(&mut self, path: &str, value: Option<&Value>) {
        let text = value.and_then(Value::text).filter(|text| !text.is_empty());
        match path {
            NAME => self.name = text.map(str::to_owned),
            "info.descriptionId" => self.description_id = text.map(str::to_owned),
            "info.entity" => self.entity = value.and_then(Value::moref).cloned(),
            "info.state" => self.state = text.and_then(state),
            "info.cancelled" => self.cancelled = text.and_then(boolean).unwrap_or(false),
            "info.error" => self.error = value.and_then(Value::fault).cloned(),
            "info.reason" => self.user = text.map(for_people),
            "info.queueTime" => self.queued_at = text.and_then(timestamp),
            // Not requested.
            _ => {}
        }
    }

    fn finish(self, moref: TaskRef) -> Result<TaskInfo, ReplyError> {
        let missing = |what: &'static str, expected| ReplyError::value(what, expected);
        let state = self
            .state
            .ok_or_else(|| missing("TaskInfo.state", "queued, running, success or error"))?;
        let state = match (state, self.error) {
            (TaskState::Error(_), Some(fault)) => TaskState::Error(fault),
            (TaskState::Error(_), None) => TaskState::Error(without_reason()),
            (state, _) => state,
        };
        Ok(TaskInfo {
            moref,
            name: self.name,
            description_id: self
                .description_id
                .ok_or_else(|| missing("TaskInfo.descriptionId", "a text"))?,
            entity: self.entity,
            state,
            cancelled: self.cancelled,
            user: self.user,
            queued_at: self
                .queued_at
                .ok_or_else(|| missing("TaskInfo.queueTime", "a time"))?,
        })
    }
}

fn state(text: &str) -> Option<TaskState> {
    match text {
        "queued" => Some(TaskState::Queued),
        "running" => Some(TaskState::Running),
        "success" => Some(TaskState::Success),
        "error" => Some(TaskState::Error(without_reason())),
        _ => None,
    }
}

fn without_reason() -> Fault {
    Fault {
        kind: FaultKind::Other("without a type".to_owned()),
        said: "the task failed and gave no reason".to_owned(),
    }
}
