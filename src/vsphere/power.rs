//! Power: shut a guest down, cut a VM's power, switch it on. Each looks first, because starting twice is not starting once.

use super::client::{Call, Error, Vcenter};
use super::decode;
use super::fault::{Fault, FaultKind};
use super::property::{Object, Spec, Step, unreadable};
use super::soap::{self, Moref, ReplyError};
use super::task::{self, TaskInfo};
use super::update::Power;
use super::xml::write::Out;
use crate::gate::Permit;
use crate::ids::{HostRef, TaskRef, VmRef};

/// What came of a call that starts a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Started {
    /// Nothing was to do: the VM is in the wanted state.
    AlreadyThere,
    /// This task does it, started by this call or found at work. It ends in [`super::update::Update::Task`].
    Running(TaskRef),
}

/// Who chooses the host on which a VM starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerOnBy {
    /// Nobody: it starts where it is registered (`PowerOnVM_Task`).
    Host,
    /// DRS (`PowerOnMultiVM_Task` on the VM's datacenter).
    Drs,
}

/// A VM as it is right before something is started on it.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) power: Option<Power>,
    pub(super) host: Option<HostRef>,
    pub(super) pool: Option<Moref>,
    /// Its tasks that have not ended.
    unfinished: Vec<TaskInfo>,
}

/// The tasks that do one thing, by the names that vCenter and the simulator give them.
pub(super) struct TaskKind {
    description_ids: &'static [&'static str],
    names: &'static [&'static str],
}

const POWER_OFF: TaskKind = TaskKind {
    description_ids: &["VirtualMachine.powerOff"],
    names: &["PowerOffVM_Task", "PowerOffVM", "PowerOff"],
};
const POWER_ON: TaskKind = TaskKind {
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

impl TaskKind {
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
    /// Asks the guest of `vm` to shut down (`ShutdownGuest`; API reference, `VirtualMachine`). It starts no task: the
    /// end shows in the VM's power state, or never. A VM that is off already is well.
    ///
    /// # Errors
    /// [`FaultKind::ToolsUnavailable`] where VMware Tools do not run, and every error of a call.
    pub async fn shutdown_guest(&self, permit: &Permit, vm: &VmRef) -> Result<(), Error> {
        match self.call(&Call::under(permit, "ShutdownGuest", &vm.into())).await {
            Ok(_)
            | Err(Error::Refused {
                existing: Some(Power::Off),
                ..
            }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Cuts the power of `vm` (`PowerOffVM_Task`), after a look: one that is off is already there, a power-off at work
    /// is taken for this one.
    ///
    /// # Errors
    /// [`FaultKind::TaskInProgress`] while another task of the VM runs, and every error of a call. After
    /// [`Error::Transport`] it is unknown whether the power-off was started; calling again looks first.
    pub async fn power_off(&self, permit: &Permit, vm: &VmRef) -> Result<Started, Error> {
        let look = self.look("PowerOffVM_Task", vm).await?;
        if look.power == Some(Power::Off) {
            return Ok(Started::AlreadyThere);
        }
        if let Some(task) = look.at_work("PowerOffVM_Task", vm, &POWER_OFF)? {
            return Ok(Started::Running(task));
        }
        self.start(&Call::under(permit, "PowerOffVM_Task", &vm.into()), Power::Off)
            .await
    }

    /// Switches `vm` on, after a look as in [`Vcenter::power_off`].
    ///
    /// By DRS, the task itself ends well even where DRS refuses or only recommends; that is told as the error of the
    /// task in [`super::update::Update::Task`] (`ClusterPowerOnVmResult` in the API reference).
    ///
    /// # Errors
    /// As [`Vcenter::power_off`].
    pub async fn power_on(&self, permit: &Permit, vm: &VmRef, by: PowerOnBy) -> Result<Started, Error> {
        let method = match by {
            PowerOnBy::Host => "PowerOnVM_Task",
            PowerOnBy::Drs => "PowerOnMultiVM_Task",
        };
        let look = self.look(method, vm).await?;
        if look.power == Some(Power::On) {
            return Ok(Started::AlreadyThere);
        }
        if let Some(task) = look.at_work(method, vm, &POWER_ON)? {
            return Ok(Started::Running(task));
        }
        let call = match by {
            PowerOnBy::Host => Call::under(permit, method, &vm.into()),
            PowerOnBy::Drs => {
                let datacenter = self.datacenter(vm, &look).await?;
                Call::under(permit, method, &datacenter).with(Out::moref("vm", &vm.into()))
            }
        };
        self.start(&call, Power::On).await
    }

    /// Sends a call that starts a task. A VM that turns out to be in the wanted state is already there.
    async fn start(&self, call: &Call, wanted: Power) -> Result<Started, Error> {
        match self.call(call).await {
            Ok(response) => started(call, &response),
            Err(Error::Refused {
                existing: Some(power),
                ..
            }) if power == wanted => Ok(Started::AlreadyThere),
            Err(error) => Err(error),
        }
    }

    /// Reads the VM fresh, with its tasks that have not ended, for `operation`.
    pub(super) async fn look(&self, operation: &'static str, vm: &VmRef) -> Result<Look, Error> {
        let spec = Spec::default()
            .read(
                "VirtualMachine",
                &["runtime.powerState", "runtime.host", "resourcePool", "recentTask"],
            )
            .read("Task", &[task::PATHS, &[task::NAME]].concat())
            .of(
                &vm.into(),
                vec![Step::new("VirtualMachine", "recentTask", Vec::new())],
            );
        let objects = self.retrieve(spec).await?;
        let refused = |source: Fault| Error::Refused {
            operation,
            object: Moref::from(vm).to_string(),
            source,
            existing: None,
        };
        let mut own = objects.iter().filter(|object| object.moref == Moref::from(vm));
        let Some(own) = own.next() else {
            return Err(refused(Fault {
                kind: FaultKind::ManagedObjectNotFound,
                said: "the VM does not exist, or is not visible to us".to_owned(),
            }));
        };
        if let Some((_, fault)) = own.missing.first() {
            return Err(refused(fault.clone()));
        }
        Ok(Look {
            power: own
                .get("runtime.powerState")
                .and_then(|state| decode::power(state.text())),
            host: own
                .get("runtime.host")
                .and_then(Moref::read)
                .and_then(|host| host.host()),
            pool: own.get("resourcePool").and_then(Moref::read),
            unfinished: unfinished(&objects).map_err(|source| Error::Reply {
                operation,
                object: Moref::from(vm).to_string(),
                source,
            })?,
        })
    }

    /// The datacenter that `vm` is in, found upwards from the host it is registered on: that chain exists for VMs in
    /// folders and in vApps alike.
    async fn datacenter(&self, vm: &VmRef, look: &Look) -> Result<Moref, Error> {
        let start = look.host.as_ref().map_or_else(|| Moref::from(vm), Moref::from);
        let spec = Spec::default()
            .read("Datacenter", &["name"])
            .of(&start, vec![Step::up()]);
        let found = self.retrieve(spec).await?;
        let mut datacenters = found.into_iter().map(|object| object.moref);
        datacenters
            .find(|moref| moref.kind == "Datacenter")
            .ok_or_else(|| {
                let call = Call::read("RetrievePropertiesEx", &start);
                unreadable(
                    &call,
                    ReplyError::value(format!("the datacenter above {start}"), "visible to us"),
                )
            })
    }
}

impl Look {
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
        let Some(other) = self.unfinished.first() else {
            return Ok(None);
        };
        Err(Error::Refused {
            operation,
            object: Moref::from(vm).to_string(),
            source: Fault {
                kind: FaultKind::TaskInProgress,
                said: format!(
                    "{} ({}) is at work on it",
                    other.moref,
                    super::text::for_people(&other.description_id)
                ),
            },
            existing: None,
        })
    }
}

/// The task that `call` returned.
pub(super) fn started(call: &Call, response: &super::xml::Part) -> Result<Started, Error> {
    let moref = soap::returned_moref(response).map_err(|source| unreadable(call, source))?;
    let task = moref
        .task()
        .ok_or_else(|| unreadable(call, ReplyError::value("returnval", "a Task")))?;
    Ok(Started::Running(task))
}

fn unfinished(objects: &[Object]) -> Result<Vec<TaskInfo>, ReplyError> {
    let mut tasks = Vec::new();
    for object in objects.iter().filter(|object| object.moref.kind == "Task") {
        let task = task::read(object, None)?;
        if !task.has_ended() {
            tasks.push(task);
        }
    }
    Ok(tasks)
}
