//! The preflight check: reads a VM and the cause of the operation right before a call.

use std::sync::Arc;

use super::client::Vcenter;
use super::decode;
use super::error::Error;
use super::fault::{Fault, FaultKind};
use super::moref::Moref;
use super::property::{ObjectProperties, PropertySpec, TraversalStep};
use super::session::Session;
use super::task::{self, TaskInfo};
use super::text;
use super::update::PowerState;
use haulout_core::facts::vsphere::LEFT_OVER_AFTER;
use haulout_core::ids::{HostRef, TaskRef, VmRef};
use haulout_core::maintenance::effect::PowerOffCause;
use jiff::Timestamp;

/// Objects per page: a VM, a host, and their recent tasks, at most 200 small ones.
const PAGE: u32 = 500;

/// A VM right before a call.
#[derive(Clone, Debug)]
pub(super) struct PreflightCheck {
    operation: &'static str,
    vm: VmRef,
    /// The session of the check, and the only one for the call: in another session time has passed, and
    /// the cause may have ended.
    pub(super) session: Arc<Session>,
    pub(super) power: Option<PowerState>,
    pub(super) host: Option<HostRef>,
    pub(super) pool: Option<Moref>,
    /// Its folder; `None` in a vApp.
    pub(super) folder: Option<Moref>,
    unfinished: Vec<TaskInfo>,
    /// Why the cause has ended, if it has.
    cause_ended: Option<Fault>,
}

/// The tasks of one operation, by `descriptionId`.
pub(super) struct TaskKind(&'static [&'static str]);

impl TaskKind {
    pub(super) const POWER_OFF: Self = Self(&["VirtualMachine.powerOff"]);
    pub(super) const POWER_ON: Self = Self(&[
        "VirtualMachine.powerOn",
        "Datacenter.powerOnVm",
        "Drm.ExecuteVmPowerOnLRO",
    ]);
    pub(super) const RELOCATE: Self = Self(&[
        "VirtualMachine.relocate",
        "VirtualMachine.relocateVm",
        "VirtualMachine.migrate",
        "Drm.ExecuteVMotionLRO",
    ]);
    pub(super) const RECONFIGURE: Self = Self(&["VirtualMachine.reconfigure"]);

    fn matches(&self, task: &TaskInfo) -> bool {
        self.0.contains(&&*task.description_id)
    }
}

impl Vcenter {
    /// Reads the VM, its unfinished tasks, and the cause of `operation`.
    pub(super) async fn check(
        &self,
        operation: &'static str,
        vm: &VmRef,
        cause: Option<&PowerOffCause>,
    ) -> Result<PreflightCheck, Error> {
        let moref = Moref::from(vm);
        let (host, task) = cause.map_or((None, None), PowerOffCause::host_and_task);
        let cause = CauseCheck { host, task };
        let read = self.retrieve_with_session(cause.spec(vm), PAGE).await;
        let (session, objects) = read.map_err(|error| error.before(operation, &moref))?;
        let Some(own) = objects.iter().find(|object| object.moref == moref) else {
            let message = "the VM does not exist, or is not visible to us";
            let fault = Fault::new(FaultKind::ManagedObjectNotFound, message);
            return Err(Error::refused(operation, &moref, fault));
        };
        if let Some((_, fault)) = own.missing.first() {
            return Err(Error::refused(operation, &moref, fault.clone()));
        }
        let unfinished = unfinished(operation, own, &objects, session.began_at);
        let unfinished = unfinished.map_err(|error| error.before(operation, &moref))?;
        Ok(PreflightCheck {
            operation,
            vm: vm.clone(),
            session,
            power: own.text("runtime.powerState").and_then(decode::power),
            host: own.moref("runtime.host").and_then(Moref::host),
            pool: own.moref("resourcePool").cloned(),
            folder: own
                .moref("parent")
                .filter(|parent| parent.kind == "Folder")
                .cloned(),
            unfinished,
            cause_ended: cause.left(own).or_else(|| cause.ended(&objects)),
        })
    }
}

/// What is read again before power is cut for the maintenance of a host. Without host nothing is.
#[derive(Clone, Copy, Debug)]
struct CauseCheck<'a> {
    host: Option<&'a HostRef>,
    task: Option<&'a TaskRef>,
}

impl CauseCheck<'_> {
    fn spec(self, vm: &VmRef) -> PropertySpec {
        let recent = |kind| [TraversalStep::new(kind, "recentTask", [])];
        let mut spec = PropertySpec::default()
            .read_properties(
                "VirtualMachine",
                &[
                    "runtime.powerState",
                    "runtime.host",
                    "resourcePool",
                    "parent",
                    "recentTask",
                ],
            )
            .read_properties("Task", task::PATHS)
            .select_object(&vm.into(), recent("VirtualMachine"));
        if let Some(host) = self.host {
            spec = spec
                .read_properties(
                    "HostSystem",
                    &["name", "runtime.inMaintenanceMode", "runtime.connectionState"],
                )
                .select_object(&host.into(), recent("HostSystem"));
        }
        if let Some(task) = self.task {
            spec = spec.select_object(&task.into(), []);
        }
        spec
    }

    /// The VM is on another host than the one that is maintained.
    fn left(self, vm: &ObjectProperties) -> Option<Fault> {
        let is_on = vm.moref("runtime.host").and_then(Moref::host)?;
        let host = self.host.filter(|host| **host != is_on)?;
        let why =
            format!("the VM is on {is_on} now, and not on {host}, which is maintained; nothing was sent");
        Some(Fault::new(FaultKind::NotLeaving, why))
    }

    /// Why the power must not be cut any more: the host is not in maintenance, and no task puts it
    /// there. If vCenter does not know the task, any other maintenance task of the host counts.
    fn ended(self, objects: &[ObjectProperties]) -> Option<Fault> {
        let of = |moref: Moref| objects.iter().find(move |object| object.moref == moref);
        let maintained = self.host?;
        let host = of(maintained.into());
        let text_of = |path: &str| host?.text(path);
        let is_in_maintenance = text_of("runtime.inMaintenanceMode").and_then(decode::boolean);
        if is_in_maintenance == Some(true) {
            return None;
        }
        let read = |object: &ObjectProperties| task::read_task(object, None).ok();
        let task = self.task.and_then(|task| of(task.into()));
        if let Some(fault) = task.and_then(withheld_task) {
            return Some(fault);
        }
        let task = task.and_then(read);
        let is_under_way = match &task {
            Some(task) => !task.has_ended(),
            None => objects.iter().filter_map(read).any(|other| {
                let is_there = other.entity.as_ref().and_then(Moref::host).as_ref() == Some(maintained);
                is_there && other.enters_maintenance() && !other.has_ended()
            }),
        };
        if is_under_way {
            return None;
        }
        let name = text_of("name").map(text::inventory_name);
        let name = name.unwrap_or_else(|| maintained.to_string());
        let denied = host.and_then(|host| host.denied("runtime.inMaintenanceMode"));
        let why = match (host, denied) {
            (None, _) => "is not shown by vCenter".to_owned(),
            (Some(_), Some(fault)) => format!("cannot be read ({fault})"),
            (Some(_), None) => {
                let state = text_of("runtime.connectionState")
                    .map_or_else(String::new, |state| format!("({}) ", text::for_people(state)));
                format!("{state}is not entering maintenance mode any more")
            }
        };
        let why = format!("host {name} {why}; nothing was sent");
        Some(Fault::new(FaultKind::NotLeaving, why))
    }
}

impl PreflightCheck {
    /// The running task of `kind` on the VM, if any.
    ///
    /// # Errors
    /// If a task of another kind runs.
    pub(super) fn running_task(&self, kind: &TaskKind) -> Result<Option<TaskRef>, Error> {
        if let Some(task) = self.unfinished.iter().find(|task| kind.matches(task)) {
            let Self { operation, vm, .. } = self;
            tracing::info!(%vm, task = %task.moref, operation, "a task of this kind already runs; no other one is started");
            return Ok(Some(task.moref.clone()));
        }
        self.check_idle()?;
        Ok(None)
    }

    /// Fails if the cause has ended.
    ///
    /// # Errors
    /// [`FaultKind::NotLeaving`].
    pub(super) fn check_cause(&self) -> Result<(), Error> {
        match &self.cause_ended {
            Some(fault) => Err(self.refused(fault.clone())),
            None => Ok(()),
        }
    }

    /// Fails if the VM is registered on another host.
    ///
    /// # Errors
    /// [`FaultKind::InvalidState`].
    pub(super) fn check_host(&self, host: &HostRef) -> Result<(), Error> {
        let Some(other) = self.host.as_ref().filter(|other| *other != host) else {
            return Ok(());
        };
        let message = format!("the VM is registered on {other}, not on {host}; nothing was sent");
        Err(self.refused(Fault::new(FaultKind::InvalidState, message)))
    }

    /// Fails if any task runs on the VM.
    ///
    /// # Errors
    /// [`FaultKind::TaskInProgress`].
    pub(super) fn check_idle(&self) -> Result<(), Error> {
        let Some(task) = self.unfinished.first() else {
            return Ok(());
        };
        let what = text::for_people(&task.description_id);
        let user = task
            .user
            .as_ref()
            .map_or_else(String::new, |user| format!(" of user {user}"));
        let (moref, since) = (&task.moref, task.queued_at);
        let message = format!("{what}{user} ({moref}) is running on it since {since:.0}");
        Err(self.refused(Fault::new(FaultKind::TaskInProgress, message)))
    }

    /// Fails if the VM is not off.
    ///
    /// # Errors
    /// [`FaultKind::InvalidPowerState`].
    pub(super) fn check_off(&self) -> Result<(), Error> {
        if self.power == Some(PowerState::Off) {
            return Ok(());
        }
        Err(Error::Refused {
            operation: self.operation,
            object: Moref::from(&self.vm).to_string(),
            source: Fault::new(
                FaultKind::InvalidPowerState,
                "this is only done to a VM that is off, and this one is not",
            ),
            existing: self.power,
        })
    }

    pub(super) fn refused(&self, fault: Fault) -> Error {
        Error::refused(self.operation, &Moref::from(&self.vm), fault)
    }
}

/// The unfinished tasks of the VM; the other tasks are those of its host. A task that is left over does not count: it would stop every
/// operation for ever. vCenter itself refuses an operation that does not go together with one that runs.
///
/// # Errors
/// If one cannot be read: it may be unfinished.
fn unfinished(
    operation: &'static str,
    vm: &ObjectProperties,
    objects: &[ObjectProperties],
    session_began_at: Option<Timestamp>,
) -> Result<Vec<TaskInfo>, Error> {
    let own = vm.morefs("recentTask");
    let mut tasks = Vec::new();
    for object in objects.iter().filter(|object| own.contains(&object.moref)) {
        if let Some(fault) = withheld_task(object) {
            return Err(Error::refused(operation, &vm.moref, fault));
        }
        let task = task::read_task(object, None).map_err(|source| Error::Reply {
            operation,
            object: vm.moref.to_string(),
            source,
        })?;
        // Both times are of vCenter's clock.
        let is_left_over = session_began_at.is_some_and(|began_at| is_left_over(&task, began_at));
        if !task.has_ended() && !is_left_over {
            tasks.push(task);
        }
    }
    Ok(tasks)
}

fn is_left_over(task: &TaskInfo, session_began_at: Timestamp) -> bool {
    let is_left_over = session_began_at.duration_since(task.queued_at) > LEFT_OVER_AFTER;
    if is_left_over && !task.has_ended() {
        let what = text::for_people(&task.description_id);
        tracing::info!(task = %task.moref, what, queued_at = %task.queued_at, "a task that was left unfinished does not count");
    }
    is_left_over
}

/// The fault for a task that vCenter withholds.
fn withheld_task(task: &ObjectProperties) -> Option<Fault> {
    let Fault { kind, message } = task::withheld(task)?;
    let message = format!("may not read its task {}: {message}", task.moref);
    Some(Fault::new(kind.clone(), message))
}
