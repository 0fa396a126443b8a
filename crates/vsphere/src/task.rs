//! A task: which of its properties are read, and what they say together.
//!
//! `info.result` is of any type and of any size, and everybody's tasks are read: so it is asked for only of tasks of ours that say
//! in it what became of them, and left out of the pages of the task history.

use jiff::Timestamp;

use super::decode::{boolean, timestamp};
use super::fault::{Fault, FaultKind};
use super::moref::Moref;
use super::property::{ObjectProperties, Value};
use super::soap::ReplyError;
use super::text::for_people;
use super::update::TaskState;
use haulout_core::ids::TaskRef;

/// What is followed of a task. A path below `info` is valid on its declared type, and is pushed when that value changes: the
/// progress of a task is no update.
pub(super) const PATHS: &[&str] = &[
    "info.descriptionId",
    "info.entity",
    "info.state",
    "info.cancelled",
    "info.error",
    "info.reason",
    "info.queueTime",
];

/// The name of the operation, which tells what a task does where the `descriptionId` is another one.
pub(super) const NAME: &str = "info.name";

/// What a task returned.
pub(super) const RESULT: &str = "info.result";

/// `TaskInfo`, as far as it matters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TaskInfo {
    /// The task.
    pub moref: TaskRef,
    /// `name`, such as `EnterMaintenanceMode_Task`; unset for vCenter's internal tasks, and where it was not asked for.
    pub name: Option<String>,
    /// `descriptionId`, such as `HostSystem.enterMaintenanceMode`.
    pub description_id: String,
    /// What it works on.
    pub entity: Option<Moref>,
    /// Where it stands.
    pub state: TaskState,
    /// `cancelled`: a client has asked for its end. It may still run.
    pub cancelled: bool,
    /// `reason.userName`, where a user started it.
    pub user: Option<String>,
    /// `queueTime`.
    pub queued_at: Timestamp,
}

impl TaskInfo {
    /// Whether it is over.
    pub(crate) fn has_ended(&self) -> bool {
        match self.state {
            TaskState::Queued | TaskState::Running => false,
            TaskState::Success | TaskState::Error(_) => true,
        }
    }

    /// Whether it puts a host into maintenance: by `descriptionId`, because names and messages differ by language and
    /// by who started it (`proto-notes/property-collector.md`).
    pub(crate) fn enters_maintenance(&self) -> bool {
        self.description_id == "HostSystem.enterMaintenanceMode"
    }

    /// Whether its success alone does not tell what became of it: a `PowerOnMultiVM_Task`, the only task of ours on a datacenter,
    /// succeeds although nothing was started (`ClusterPowerOnVmResult`).
    pub(crate) fn needs_result(&self) -> bool {
        self.entity
            .as_ref()
            .is_some_and(|entity| entity.kind == "Datacenter")
    }
}

/// Reads a task. What is not told of `before`, the same task as it was known, stays.
///
/// # Errors
/// Where the description id, the state or the queue time is neither told nor known, or ill-formed.
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

/// A task of which not everything is known yet.
#[derive(Default)]
struct TaskDraft {
    name: Option<String>,
    description_id: Option<String>,
    entity: Option<Moref>,
    state: Option<TaskStage>,
    cancelled: bool,
    error: Option<Fault>,
    user: Option<String>,
    queued_at: Option<Timestamp>,
}

/// `TaskInfoState`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TaskStage {
    Queued,
    Running,
    Success,
    Error,
}

impl TaskDraft {
    fn of(task: &TaskInfo) -> Self {
        let (state, error) = match &task.state {
            TaskState::Queued => (TaskStage::Queued, None),
            TaskState::Running => (TaskStage::Running, None),
            TaskState::Success => (TaskStage::Success, None),
            TaskState::Error(fault) => (TaskStage::Error, Some(fault.clone())),
        };
        Self {
            name: task.name.clone(),
            description_id: Some(task.description_id.clone()),
            entity: task.entity.clone(),
            state: Some(state),
            cancelled: task.cancelled,
            error,
            user: task.user.clone(),
            queued_at: Some(task.queued_at),
        }
    }

    fn set(&mut self, path: &str, value: Option<&Value>) {
        let words = value.and_then(Value::text).filter(|words| !words.is_empty());
        match path {
            NAME => self.name = words.map(str::to_owned),
            "info.descriptionId" => self.description_id = words.map(str::to_owned),
            "info.entity" => self.entity = value.and_then(Value::moref).cloned(),
            "info.state" => self.state = words.and_then(stage),
            "info.cancelled" => self.cancelled = words.and_then(boolean).unwrap_or(false),
            "info.error" => self.error = value.and_then(Value::fault).cloned(),
            "info.reason" => self.user = words.map(for_people),
            "info.queueTime" => self.queued_at = words.and_then(timestamp),
            // A path that nobody asked for.
            _ => {}
        }
    }

    fn finish(self, moref: TaskRef) -> Result<TaskInfo, ReplyError> {
        let missing = |what: &'static str, expected| ReplyError::value(what, expected);
        let state = self
            .state
            .ok_or_else(|| missing("TaskInfo.state", "queued, running, success or error"))?;
        Ok(TaskInfo {
            moref,
            name: self.name,
            description_id: self
                .description_id
                .ok_or_else(|| missing("TaskInfo.descriptionId", "a text"))?,
            entity: self.entity,
            state: match state {
                TaskStage::Queued => TaskState::Queued,
                TaskStage::Running => TaskState::Running,
                TaskStage::Success => TaskState::Success,
                TaskStage::Error => TaskState::Error(self.error.unwrap_or_else(|| Fault {
                    kind: FaultKind::Other("without a type".to_owned()),
                    said: "the task failed and does not say why".to_owned(),
                })),
            },
            cancelled: self.cancelled,
            user: self.user,
            queued_at: self
                .queued_at
                .ok_or_else(|| missing("TaskInfo.queueTime", "a time"))?,
        })
    }
}

fn stage(text: &str) -> Option<TaskStage> {
    match text {
        "queued" => Some(TaskStage::Queued),
        "running" => Some(TaskStage::Running),
        "success" => Some(TaskStage::Success),
        "error" => Some(TaskStage::Error),
        _ => None,
    }
}
