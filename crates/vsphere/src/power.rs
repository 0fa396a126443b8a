//! Power: shut a guest down, cut a VM's power, switch it on. Each looks first, because starting twice is not starting once.

use super::call::SoapCall;
use super::client::Vcenter;
use super::commands::{GuestShutdown, MaintenanceCause, PowerOnBy, StartedTask};
use super::error::Error;
use super::moref::Moref;
use super::preflight::{PreflightCheck, TaskKind};
use super::property::{PropertySpec, TraversalStep};
use super::soap::{self, ReplyError};
use super::update::PowerState;
use super::xml::Element;
use super::xml::write::XmlWriter;
use crate::Permit;
use haulout_core::ids::VmRef;

impl Vcenter {
    /// Asks the guest of `vm` to shut down (`ShutdownGuest`; API reference, `VirtualMachine`), after a look at the VM and at what asks
    /// for it. It starts no task.
    ///
    /// # Errors
    /// [`super::fault::FaultKind::NotLeaving`] where nothing asks for it any more, [`super::fault::FaultKind::TaskInProgress`] while a task of the VM runs,
    /// [`super::fault::FaultKind::ToolsUnavailable`] where VMware Tools do not run, and every error of a call. A session that ends between the look
    /// and the call is [`super::fault::FaultKind::NotAuthenticated`]: it is not sent again in another one.
    pub async fn shutdown_guest(
        &self,
        permit: &impl Permit,
        vm: &VmRef,
        asked: &MaintenanceCause,
    ) -> Result<GuestShutdown, Error> {
        const METHOD: &str = "ShutdownGuest";
        let look = self.look(METHOD, vm, asked).await?;
        if look.power == Some(PowerState::Off) {
            return Ok(GuestShutdown::AlreadyOff);
        }
        look.still_asked(METHOD, vm)?;
        look.is_free(METHOD, vm)?;
        let call = SoapCall::under(permit, METHOD, &vm.into());
        match self.call_in(&look.session, &call, soap::nothing).await {
            Ok(()) => Ok(GuestShutdown::Sent),
            Err(Error::Refused {
                existing: Some(PowerState::Off),
                ..
            }) => Ok(GuestShutdown::AlreadyOff),
            Err(error) => Err(error),
        }
    }

    /// Cuts the power of `vm` (`PowerOffVM_Task`), after a look as in [`Vcenter::shutdown_guest`]: one that is off is already there, a
    /// power-off at work is taken for this one.
    ///
    /// # Errors
    /// As [`Vcenter::shutdown_guest`], less VMware Tools. After [`Error::Transport`] it is unknown whether the power-off was started;
    /// calling again looks first.
    pub async fn power_off(
        &self,
        permit: &impl Permit,
        vm: &VmRef,
        asked: &MaintenanceCause,
    ) -> Result<StartedTask, Error> {
        const METHOD: &str = "PowerOffVM_Task";
        let look = self.look(METHOD, vm, asked).await?;
        if look.power == Some(PowerState::Off) {
            return Ok(StartedTask::AlreadyThere);
        }
        look.still_asked(METHOD, vm)?;
        if let Some(task) = look.at_work(METHOD, vm, &TaskKind::POWER_OFF)? {
            return Ok(StartedTask::Running(task));
        }
        self.start(
            &look,
            &SoapCall::under(permit, METHOD, &vm.into()),
            PowerState::Off,
        )
        .await
    }

    /// Switches `vm` on, after a look as in [`Vcenter::power_off`].
    ///
    /// By DRS, the task itself ends well even where DRS refuses or only recommends; that is told as the error of the
    /// task in [`super::update::Update::Task`] (`ClusterPowerOnVmResult` in the API reference).
    ///
    /// # Errors
    /// As [`Vcenter::power_off`], and [`super::fault::FaultKind::InvalidState`] where the VM is registered on another host than the
    /// one that is named: vCenter takes a host that it finds incompatible for none (API reference, `PowerOnVM_Task`).
    pub async fn power_on(
        &self,
        permit: &impl Permit,
        vm: &VmRef,
        by: PowerOnBy,
    ) -> Result<StartedTask, Error> {
        let method = match by {
            PowerOnBy::Host(_) => "PowerOnVM_Task",
            PowerOnBy::Drs => "PowerOnMultiVM_Task",
        };
        let look = self.look(method, vm, &MaintenanceCause::default()).await?;
        if look.power == Some(PowerState::On) {
            return Ok(StartedTask::AlreadyThere);
        }
        if let Some(task) = look.at_work(method, vm, &TaskKind::POWER_ON)? {
            return Ok(StartedTask::Running(task));
        }
        let call = match by {
            PowerOnBy::Host(host) => {
                look.is_on(method, vm, &host)?;
                SoapCall::under(permit, method, &vm.into()).with(XmlWriter::moref("host", &(&host).into()))
            }
            PowerOnBy::Drs => {
                let datacenter = self.datacenter(vm, &look).await?;
                SoapCall::under(permit, method, &datacenter).with(XmlWriter::moref("vm", &vm.into()))
            }
        };
        self.start(&look, &call, PowerState::On).await
    }

    /// Sends a call that starts a task, in the session of the look. A VM that turns out to be in the wanted state is already there.
    async fn start(
        &self,
        look: &PreflightCheck,
        call: &SoapCall,
        wanted: PowerState,
    ) -> Result<StartedTask, Error> {
        match self.call_in(&look.session, call, read_started).await {
            Ok(started) => Ok(started),
            Err(Error::Refused {
                existing: Some(power),
                ..
            }) if power == wanted => Ok(StartedTask::AlreadyThere),
            Err(error) => Err(error),
        }
    }

    /// The datacenter that `vm` is in, found upwards from the host it is registered on: that chain exists for VMs in
    /// folders and in vApps alike.
    async fn datacenter(&self, vm: &VmRef, look: &PreflightCheck) -> Result<Moref, Error> {
        let start = look.host.as_ref().map_or_else(|| Moref::from(vm), Moref::from);
        let spec = PropertySpec::default()
            .read("Datacenter", &["name"])
            .of(&start, vec![TraversalStep::up()]);
        let found = self.retrieve(spec).await?;
        let mut datacenters = found.into_iter().map(|object| object.moref);
        datacenters
            .find(|moref| moref.kind == "Datacenter")
            .ok_or_else(|| {
                let call = SoapCall::to("RetrievePropertiesEx", &start);
                call.unreadable(ReplyError::value(
                    format!("the datacenter above {start}"),
                    "visible to us",
                ))
            })
    }
}

/// Reads the task that a method returns.
pub(super) fn read_started(response: &Element<'_>) -> Result<StartedTask, ReplyError> {
    let task = soap::returned_moref(response)?.task();
    task.map(StartedTask::Running)
        .ok_or_else(|| ReplyError::value("returnval", "a Task"))
}
