//! Guest shutdown, power-off and power-on. Each checks the VM first, so that no task is started twice.

use super::call::SoapCall;
use super::client::Vcenter;
use super::error::Error;
use super::moref::Moref;
use super::preflight::{PreflightCheck, TaskKind};
use super::property::{PropertySpec, TraversalStep};
use super::soap::{self, ReplyError};
use super::update::PowerState;
use super::xml::Element;
use super::xml::write::XmlWriter;
use crate::WritePermit;
use haulout_core::ids::{TaskRef, VmRef};
use haulout_core::maintenance::effect::{PowerOffCause, PowerOnTarget};

/// Result of a call that starts a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartedTask {
    /// The VM already is in the requested state.
    AlreadyThere,
    /// The task, started by this call or already running. It ends with
    /// [`super::update::VsphereUpdate::Task`].
    Running(TaskRef),
}

impl Vcenter {
    /// Requests a shutdown of the guest (`ShutdownGuest`; API reference, `VirtualMachine`) after a
    /// check of the VM and the cause. Starts no task. The VM powers off later, or never. Nothing is
    /// sent for a VM that is off already.
    ///
    /// # Errors
    /// Fault kinds of [`super::fault::FaultKind`]: `NotLeaving` if the cause has ended,
    /// `TaskInProgress` while a task of the VM runs, `ToolsUnavailable` without VMware Tools; and every
    /// error of a call. If the session ends after the check, `NotAuthenticated`: the call is not
    /// repeated in another session.
    pub async fn shutdown_guest(
        &self,
        permit: &impl WritePermit,
        vm: &VmRef,
        cause: &PowerOffCause,
    ) -> Result<(), Error> {
        const METHOD: &str = "ShutdownGuest";
        let check = self.check(METHOD, vm, Some(cause)).await?;
        if check.power == Some(PowerState::Off) {
            return Ok(());
        }
        check.check_cause()?;
        check.check_idle()?;
        let call = SoapCall::under(permit, METHOD, &vm.into());
        match self.call_in(&check.session, &call, soap::nothing).await {
            Err(Error::Refused {
                existing: Some(PowerState::Off),
                ..
            }) => Ok(()),
            sent => sent,
        }
    }

    /// Cuts the power of `vm` (`PowerOffVM_Task`) after a check as in [`Vcenter::shutdown_guest`]. A
    /// running power-off counts as this one.
    ///
    /// # Errors
    /// As [`Vcenter::shutdown_guest`], without `ToolsUnavailable`. After [`Error::Transport`] it is
    /// unknown whether the task was started; another call checks first.
    pub async fn power_off(
        &self,
        permit: &impl WritePermit,
        vm: &VmRef,
        cause: &PowerOffCause,
    ) -> Result<StartedTask, Error> {
        const METHOD: &str = "PowerOffVM_Task";
        let check = self.check(METHOD, vm, Some(cause)).await?;
        if check.power == Some(PowerState::Off) {
            return Ok(StartedTask::AlreadyThere);
        }
        check.check_cause()?;
        if let Some(task) = check.running_task(&TaskKind::POWER_OFF)? {
            return Ok(StartedTask::Running(task));
        }
        let call = SoapCall::under(permit, METHOD, &vm.into());
        self.start(&check, &call, PowerState::Off).await
    }

    /// Powers `vm` on after a check as in [`Vcenter::power_off`].
    ///
    /// With DRS the task succeeds even if DRS refuses or only recommends; that is reported as the error
    /// of the task in [`super::update::VsphereUpdate::Task`] (`ClusterPowerOnVmResult` in the API
    /// reference).
    ///
    /// # Errors
    /// As [`Vcenter::power_off`], and `InvalidState` if the VM is registered on another host than the
    /// given one: vCenter ignores a host that it finds incompatible (API reference, `PowerOnVM_Task`).
    pub async fn power_on(
        &self,
        permit: &impl WritePermit,
        vm: &VmRef,
        target: &PowerOnTarget,
    ) -> Result<StartedTask, Error> {
        let method = match target {
            PowerOnTarget::Host(_) => "PowerOnVM_Task",
            PowerOnTarget::Drs => "PowerOnMultiVM_Task",
        };
        let check = self.check(method, vm, None).await?;
        if check.power == Some(PowerState::On) {
            return Ok(StartedTask::AlreadyThere);
        }
        if let Some(task) = check.running_task(&TaskKind::POWER_ON)? {
            return Ok(StartedTask::Running(task));
        }
        let call = match target {
            PowerOnTarget::Host(host) => {
                check.check_host(host)?;
                SoapCall::under(permit, method, &vm.into()).with(XmlWriter::moref("host", &host.into()))
            }
            PowerOnTarget::Drs => {
                let datacenter = self.datacenter(vm, &check).await?;
                SoapCall::under(permit, method, &datacenter).with(XmlWriter::moref("vm", &vm.into()))
            }
        };
        self.start(&check, &call, PowerState::On).await
    }

    /// Sends a call that starts a task, in the session of the check.
    async fn start(
        &self,
        check: &PreflightCheck,
        call: &SoapCall,
        wanted: PowerState,
    ) -> Result<StartedTask, Error> {
        match self.call_in(&check.session, call, read_started).await {
            Ok(started) => Ok(started),
            Err(Error::Refused {
                existing: Some(power),
                ..
            }) if power == wanted => Ok(StartedTask::AlreadyThere),
            Err(error) => Err(error),
        }
    }

    /// The datacenter of `vm`, found from its host: unlike the VM's own parents, that chain is the same
    /// for VMs in folders and in vApps.
    async fn datacenter(&self, vm: &VmRef, check: &PreflightCheck) -> Result<Moref, Error> {
        let start = check.host.as_ref().map_or_else(|| Moref::from(vm), Moref::from);
        let spec = PropertySpec::default()
            .read_properties("Datacenter", &["name"])
            .select_object(&start, [TraversalStep::up()]);
        let objects = self.retrieve(spec).await?;
        let mut datacenters = objects.into_iter().map(|object| object.moref);
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

/// Decodes a returned task.
pub(super) fn read_started(response: &Element<'_>) -> Result<StartedTask, ReplyError> {
    let task = soap::returned_moref(response)?.task();
    task.map(StartedTask::Running)
        .ok_or_else(|| ReplyError::value("returnval", "a Task"))
}
