//! A look at a VM right before something is started on it, and at what asks for that, in one reading.

use std::sync::Arc;

use super::client::Vcenter;
use super::commands::MaintenanceCause;
use super::decode;
use super::error::Error;
use super::fault::{Fault, FaultKind};
use super::moref::Moref;
use super::property::{ObjectProperties, PropertySpec, TraversalStep};
use super::session::Session;
use super::soap::ReplyError;
use super::task::{self, TaskInfo};
use super::text;
use super::update::PowerState;
use haulout_core::ids::{HostRef, TaskRef, VmRef};

/// Objects per page: a VM, a host, and the recent tasks of both, of which there are 200 at the most, and each is small.
const PAGE: u32 = 500;

/// A VM as it is right before something is started on it.
#[derive(Clone, Debug)]
pub(super) struct PreflightCheck {
    /// In which it was read, and in which alone it may be acted on: in another one time has passed, in which what asked for it
    /// may have ended.
    pub(super) session: Arc<Session>,
    pub(super) power: Option<PowerState>,
    pub(super) host: Option<HostRef>,
    pub(super) pool: Option<Moref>,
    /// Its tasks that have not ended.
    unfinished: Vec<TaskInfo>,
    /// Why what asked for it does so no more.
    not_leaving: Option<Fault>,
}

/// The tasks that do one thing, by the names that vCenter and the simulator give them.
pub(super) struct TaskKind {
    description_ids: &'static [&'static str],
    names: &'static [&'static str],
}

impl TaskKind {
    pub(super) const POWER_OFF: Self = Self {
        description_ids: &["VirtualMachine.powerOff"],
        names: &["PowerOffVM_Task", "PowerOffVM", "PowerOff"],
    };
    pub(super) const POWER_ON: Self = Self {
        description_ids: &[
            "VirtualMachine.powerOn",
            "Datacenter.powerOnVm",
            "Drm.ExecuteVmPowerOnLRO",
        ],
        names: &[
            "PowerOnVM_Task",
            "PowerOnVM",
            "PowerOn",
            "PowerOnMultiVM_Task",
            "PowerOnMultiVM",
        ],
    };
    pub(super) const RELOCATE: Self = Self {
        description_ids: &[
            "VirtualMachine.relocate",
            "VirtualMachine.relocateVm",
            "VirtualMachine.migrate",
            "Drm.ExecuteVMotionLRO",
        ],
        names: &["RelocateVM_Task", "RelocateVM", "MigrateVM_Task", "MigrateVM"],
    };

    fn matches(&self, task: &TaskInfo) -> bool {
        self.description_ids.contains(&&*task.description_id)
            || task
                .name
                .as_deref()
                .is_some_and(|name| self.names.contains(&name))
    }
}

impl Vcenter {
    /// Reads the VM fresh, with its tasks that have not ended, and what asks for `operation`.
    pub(super) async fn look(
        &self,
        operation: &'static str,
        vm: &VmRef,
        asked: &MaintenanceCause,
    ) -> Result<PreflightCheck, Error> {
        let (session, objects) = self.retrieve_with_session(asked.spec(vm), PAGE).await?;
        let moref = Moref::from(vm);
        let Some(own) = objects.iter().find(|object| object.moref == moref) else {
            return Err(refused(
                operation,
                vm,
                Fault {
                    kind: FaultKind::ManagedObjectNotFound,
                    said: "the VM does not exist, or is not visible to us".to_owned(),
                },
            ));
        };
        if let Some((_, fault)) = own.missing.first() {
            return Err(refused(operation, vm, fault.clone()));
        }
        Ok(PreflightCheck {
            session,
            power: own.text("runtime.powerState").and_then(decode::power),
            host: own.moref("runtime.host").and_then(Moref::host),
            pool: own.moref("resourcePool").cloned(),
            unfinished: unfinished(own, &objects).map_err(|source| Error::Reply {
                operation,
                object: moref.to_string(),
                source,
            })?,
            not_leaving: asked.ended(&objects),
        })
    }
}

impl MaintenanceCause {
    fn spec(&self, vm: &VmRef) -> PropertySpec {
        let recent = |kind| vec![TraversalStep::new(kind, "recentTask", Vec::new())];
        let mut spec = PropertySpec::default()
            .read(
                "VirtualMachine",
                &["runtime.powerState", "runtime.host", "resourcePool", "recentTask"],
            )
            .read("Task", &[task::PATHS, &[task::NAME]].concat())
            .of(&vm.into(), recent("VirtualMachine"));
        if let Some(host) = &self.host {
            spec = spec
                .read(
                    "HostSystem",
                    &["name", "runtime.inMaintenanceMode", "runtime.connectionState"],
                )
                .of(&host.into(), recent("HostSystem"));
        }
        if let Some(task) = &self.task {
            spec = spec.of(&task.into(), Vec::new());
        }
        spec
    }

    /// Why the power is not to be cut any more: the host is not in maintenance, and nothing is putting it there. Where vCenter does
    /// not know the task, any other one that does so is as good.
    fn ended(&self, objects: &[ObjectProperties]) -> Option<Fault> {
        let of = |moref: Moref| objects.iter().find(move |object| object.moref == moref);
        let host = self.host.as_ref().and_then(|host| of(host.into()));
        let word = |path: &str| host?.text(path);
        let is_in_maintenance = word("runtime.inMaintenanceMode").and_then(decode::boolean);
        if is_in_maintenance == Some(true) || (self.host.is_none() && self.task.is_none()) {
            return None;
        }
        let read = |object: &ObjectProperties| task::read(object, None).ok();
        let task = self.task.as_ref().and_then(|task| of(task.into())).and_then(read);
        let is_under_way = match &task {
            Some(task) => !task.has_ended(),
            None => objects.iter().filter_map(read).any(|other| {
                let is_there =
                    other.entity.as_ref().and_then(Moref::host) == self.host && self.host.is_some();
                is_there && other.enters_maintenance() && !other.has_ended()
            }),
        };
        if is_under_way {
            return None;
        }
        let name = word("name").map(text::inventory_name);
        let name = name.or_else(|| self.host.as_ref().map(ToString::to_string));
        let name = name.unwrap_or_else(|| "unknown".to_owned());
        let denied = host.and_then(|host| host.denied("runtime.inMaintenanceMode"));
        let why = match (host, denied) {
            (None, _) if self.host.is_some() => "is not shown by vCenter".to_owned(),
            (_, Some(fault)) => format!("cannot be read ({fault})"),
            (_, None) => {
                let state = word("runtime.connectionState")
                    .map_or_else(String::new, |state| format!("({}) ", text::for_people(state)));
                format!("{state}is not entering maintenance mode any more")
            }
        };
        Some(Fault {
            kind: FaultKind::NotLeaving,
            said: format!("host {name} {why}; nothing was sent"),
        })
    }
}

impl PreflightCheck {
    /// The task of `kind` at work on the VM, if there is one.
    ///
    /// # Errors
    /// Where a task of another kind is.
    pub(super) fn at_work(
        &self,
        operation: &'static str,
        vm: &VmRef,
        kind: &TaskKind,
    ) -> Result<Option<TaskRef>, Error> {
        if let Some(task) = self.unfinished.iter().find(|task| kind.matches(task)) {
            tracing::info!(%vm, task = %task.moref, operation, "found at work already; not started again");
            return Ok(Some(task.moref.clone()));
        }
        self.is_free(operation, vm)?;
        Ok(None)
    }

    /// Whether what asked for it still does.
    ///
    /// # Errors
    /// [`FaultKind::NotLeaving`] where it does not.
    pub(super) fn still_asked(&self, operation: &'static str, vm: &VmRef) -> Result<(), Error> {
        let ended = self.not_leaving.clone();
        ended.map_or(Ok(()), |fault| Err(refused(operation, vm, fault)))
    }

    /// Whether the VM is registered on `host`, as far as is known.
    ///
    /// # Errors
    /// Where it is registered on another one.
    pub(super) fn is_on(&self, operation: &'static str, vm: &VmRef, host: &HostRef) -> Result<(), Error> {
        let Some(other) = self.host.as_ref().filter(|other| *other != host) else {
            return Ok(());
        };
        let kind = FaultKind::InvalidState;
        let said = format!("the VM is registered on {other}, not on {host}; nothing was sent");
        Err(refused(operation, vm, Fault { kind, said }))
    }

    /// Whether nothing is at work on the VM.
    ///
    /// # Errors
    /// Where a task is.
    pub(super) fn is_free(&self, operation: &'static str, vm: &VmRef) -> Result<(), Error> {
        match self.unfinished.first() {
            Some(task) => Err(busy(operation, vm, task)),
            None => Ok(()),
        }
    }
}

fn busy(operation: &'static str, vm: &VmRef, task: &TaskInfo) -> Error {
    let what = text::for_people(&task.description_id);
    let said = format!("{} ({what}) is at work on it", task.moref);
    let kind = FaultKind::TaskInProgress;
    refused(operation, vm, Fault { kind, said })
}

fn refused(operation: &'static str, vm: &VmRef, source: Fault) -> Error {
    Error::Refused {
        operation,
        object: Moref::from(vm).to_string(),
        source,
        existing: None,
    }
}

/// The tasks of the VM that have not ended. What is read beside are its host's.
fn unfinished(vm: &ObjectProperties, objects: &[ObjectProperties]) -> Result<Vec<TaskInfo>, ReplyError> {
    let own = vm.morefs("recentTask");
    let mut tasks = Vec::new();
    for object in objects.iter().filter(|object| own.contains(&object.moref)) {
        let task = task::read(object, None)?;
        if !task.has_ended() {
            tasks.push(task);
        }
    }
    Ok(tasks)
}
