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

pub(super) const RESULT: &str = "info.result";

/// The relevant fields of `TaskInfo`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TaskInfo {
    pub moref: TaskRef,
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

    /// Whether the task puts a host into standby mode (`PowerDownHostToStandBy_Task`).
    pub(crate) fn enters_standby(&self) -> bool {
        self.description_id == "HostSystem.enterStandbyMode"
    }

    /// Whether the task ends only when no VM on its host is powered on.
    pub(crate) fn empties_host(&self) -> bool {
        self.enters_maintenance() || self.enters_standby()
    }

    /// Whether the task takes a host out of maintenance.
    pub(crate) fn exits_maintenance(&self) -> bool {
        self.description_id == "HostSystem.exitMaintenanceMode"
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
pub(crate) fn read_task(
    object: &ObjectProperties,
    before: Option<&TaskInfo>,
) -> Result<TaskInfo, ReplyError> {
    let moref = object
        .moref
        .task()
        .ok_or_else(|| ReplyError::value(object.moref.to_string(), "a Task"))?;
    let sent = |path: &str| {
        let property = object.properties.iter().rfind(|(name, _)| name == path)?;
        Some(property.1.as_ref())
    };
    let text = |path| sent(path).map(|value| value.and_then(Value::text).filter(|text| !text.is_empty()));
    let missing = |what: &'static str, expected| ReplyError::value(what, expected);
    let state = text("info.state")
        .map_or_else(
            || before.map(|task| task.state.clone()),
            |text| text.and_then(state),
        )
        .ok_or_else(|| missing("TaskInfo.state", "queued, running, success or error"))?;
    let state = match (state, sent("info.error")) {
        (TaskState::Error(_), Some(error)) => {
            let fault = error.and_then(Value::fault).cloned();
            TaskState::Error(fault.unwrap_or_else(without_reason))
        }
        (TaskState::Error(fault), None) => match before.map(|task| &task.state) {
            Some(TaskState::Error(fault)) => TaskState::Error(fault.clone()),
            Some(TaskState::Queued | TaskState::Running | TaskState::Success) | None => {
                TaskState::Error(fault)
            }
        },
        (TaskState::Success, _) => match object.get(RESULT).and_then(Value::fault) {
            Some(fault) => TaskState::Error(fault.clone()),
            None => TaskState::Success,
        },
        (state, _) => state,
    };
    Ok(TaskInfo {
        moref,
        description_id: text("info.descriptionId")
            .unwrap_or_else(|| Some(&before?.description_id))
            .ok_or_else(|| missing("TaskInfo.descriptionId", "a text"))?
            .to_owned(),
        entity: sent("info.entity")
            .map_or_else(|| before?.entity.as_ref(), |value| value.and_then(Value::moref))
            .cloned(),
        state,
        cancelled: text("info.cancelled").map_or_else(
            || before.is_some_and(|task| task.cancelled),
            |text| text.and_then(boolean).unwrap_or(false),
        ),
        user: text("info.reason").map_or_else(|| before?.user.clone(), |text| text.map(for_people)),
        queued_at: text("info.queueTime")
            .map_or_else(|| Some(before?.queued_at), |text| text.and_then(timestamp))
            .ok_or_else(|| missing("TaskInfo.queueTime", "a time"))?,
    })
}

/// Why vCenter withholds the state of a task, if it does. A dead session, and a task that is gone meanwhile, are no reasons.
pub(crate) fn withheld(object: &ObjectProperties) -> Option<&Fault> {
    let fault = object.denied("info.state")?;
    let is_of_now = matches!(
        fault.kind,
        FaultKind::NotAuthenticated | FaultKind::ManagedObjectNotFound
    );
    (!is_of_now).then_some(fault)
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
    let kind = FaultKind::Other("without a type".to_owned());
    Fault::new(kind, "the task failed and gave no reason")
}
