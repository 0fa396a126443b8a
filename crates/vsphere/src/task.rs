//! A task: which of its properties are read, and what they say together.
//!
//! `info.result` is of any type and of any size, and everybody's tasks are read: so it is asked for only of tasks of ours that say
//! in it what became of them, and left out of the pages of the task history.

use jiff::Timestamp;

use super::decode::{boolean, timestamp};
use super::fault::{self, Fault, FaultKind};
use super::property::Object;
use super::soap::{Moref, ReplyError};
use super::text::for_people;
use super::update::TaskState;
use super::xml::Element;
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

/// The same of a whole `TaskInfo`, as the task history has them.
pub(super) const KEPT: &[&str] = &[
    "task",
    "descriptionId",
    "entity",
    "state",
    "cancelled",
    "error",
    "reason",
    "queueTime",
];

/// `TaskInfo`, as far as it matters.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskInfo {
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
    pub fn has_ended(&self) -> bool {
        match self.state {
            TaskState::Queued | TaskState::Running => false,
            TaskState::Success | TaskState::Error(_) => true,
        }
    }

    /// Whether it puts a host into maintenance: by `descriptionId`, because names and messages differ by language and
    /// by who started it (`proto-notes/property-collector.md`).
    pub fn enters_maintenance(&self) -> bool {
        self.description_id == "HostSystem.enterMaintenanceMode"
    }

    /// Whether its success alone does not tell what became of it: a `PowerOnMultiVM_Task`, the only task of ours on a datacenter,
    /// succeeds although nothing was started (`ClusterPowerOnVmResult`).
    pub fn needs_result(&self) -> bool {
        self.entity
            .as_ref()
            .is_some_and(|entity| entity.kind == "Datacenter")
    }
}

/// Reads a task that was told by properties. What is not told of `before`, the same task as it was known, stays.
///
/// # Errors
/// Where the description id, the state or the queue time is neither told nor known, or ill-formed.
pub fn read(object: &Object, before: Option<&TaskInfo>) -> Result<TaskInfo, ReplyError> {
    let mut draft = before.map_or_else(Draft::default, Draft::of);
    let mut result = None;
    for (path, value) in object.properties() {
        if path == RESULT {
            result = value;
        } else if let Some(field) = path.strip_prefix("info.") {
            draft.set(field, value);
        }
    }
    let moref = object
        .moref
        .task()
        .ok_or_else(|| ReplyError::value(object.moref.to_string(), "a Task"))?;
    let mut task = draft.finish(moref)?;
    if task.state == TaskState::Success
        && let Some(fault) = result.and_then(not_started)
    {
        task.state = TaskState::Error(fault);
    }
    Ok(task)
}

/// Reads a whole `TaskInfo` of the task history, without its result.
///
/// # Errors
/// Where the reference, the description id, the state or the queue time is missing or ill-formed.
pub fn from_page(info: Element<'_>) -> Result<TaskInfo, ReplyError> {
    let moref = info.child("task").and_then(Moref::read);
    let moref = moref
        .and_then(|moref| moref.task())
        .ok_or_else(|| ReplyError::value("TaskInfo.task", "a Task"))?;
    if let Some(breach) = info.breach() {
        return Err(ReplyError::Object {
            object: moref.to_string(),
            why: format!("it has {breach}"),
        });
    }
    let mut draft = Draft::default();
    for child in info.children() {
        draft.set(child.name(), Some(child));
    }
    draft.finish(moref)
}

/// A task of which not everything is known yet.
#[derive(Default)]
struct Draft {
    name: Option<String>,
    description_id: Option<String>,
    entity: Option<Moref>,
    state: Option<Stage>,
    cancelled: bool,
    error: Option<Fault>,
    user: Option<String>,
    queued_at: Option<Timestamp>,
}

/// `TaskInfoState`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Queued,
    Running,
    Success,
    Error,
}

impl Draft {
    fn of(task: &TaskInfo) -> Self {
        let (state, error) = match &task.state {
            TaskState::Queued => (Stage::Queued, None),
            TaskState::Running => (Stage::Running, None),
            TaskState::Success => (Stage::Success, None),
            TaskState::Error(fault) => (Stage::Error, Some(fault.clone())),
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

    fn set(&mut self, field: &str, value: Option<Element<'_>>) {
        let words = value.map(Element::text).filter(|words| !words.is_empty());
        match field {
            "name" => self.name = words.map(str::to_owned),
            "descriptionId" => self.description_id = words.map(str::to_owned),
            "entity" => self.entity = value.and_then(Moref::read),
            "state" => self.state = words.and_then(stage),
            "cancelled" => self.cancelled = words.and_then(boolean).unwrap_or(false),
            "error" => self.error = value.map(fault::read_localized),
            "reason" => {
                let user = value.and_then(|reason| reason.text_of("userName"));
                self.user = user.filter(|user| !user.is_empty()).map(for_people);
            }
            "queueTime" => self.queued_at = words.and_then(timestamp),
            // A field that nobody asked for.
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
                Stage::Queued => TaskState::Queued,
                Stage::Running => TaskState::Running,
                Stage::Success => TaskState::Success,
                Stage::Error => TaskState::Error(self.error.unwrap_or_else(|| Fault {
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

fn stage(text: &str) -> Option<Stage> {
    match text {
        "queued" => Some(Stage::Queued),
        "running" => Some(Stage::Running),
        "success" => Some(Stage::Success),
        "error" => Some(Stage::Error),
        _ => None,
    }
}

/// Why a `PowerOnMultiVM_Task` that ended well started nothing, if it did not.
fn not_started(result: Element<'_>) -> Option<Fault> {
    if result.xsi_type() != Some("ClusterPowerOnVmResult") {
        return None;
    }
    if let Some(refused) = result.child("notAttempted") {
        return Some(refused.child("fault").map_or_else(
            || Fault {
                kind: FaultKind::Other("without a type".to_owned()),
                said: "DRS did not start the VM and does not say why".to_owned(),
            },
            fault::read_localized,
        ));
    }
    let only_recommended = result.child("attempted").is_none() && result.child("recommendations").is_some();
    only_recommended.then(|| Fault {
        kind: FaultKind::OnlyRecommended,
        said: "DRS only recommends where to start the VM: it is not fully automated".to_owned(),
    })
}
