//! Power: shut a guest down, cut a VM's power, switch it on. Each looks first, because starting twice is not starting once.

use super::call::Call;
use super::client::Vcenter;
use super::commands::{Asked, AskedBy, PowerOnBy, Started};
use super::error::Error;
use super::look::{Look, TaskKind};
use super::moref::Moref;
use super::property::{Spec, Step};
use super::soap::{self, ReplyError};
use super::update::Power;
use super::xml::Element;
use super::xml::write::Out;
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
        asked: &AskedBy,
    ) -> Result<Asked, Error> {
        const METHOD: &str = "ShutdownGuest";
        let look = self.look(METHOD, vm, asked).await?;
        if look.power == Some(Power::Off) {
            return Ok(Asked::AlreadyOff);
        }
        look.still_asked(METHOD, vm)?;
        look.is_free(METHOD, vm)?;
        let call = Call::under(permit, METHOD, &vm.into());
        match self.call_in(&look.session, &call, soap::nothing).await {
            Ok(()) => Ok(Asked::Sent),
            Err(Error::Refused {
                existing: Some(Power::Off),
                ..
            }) => Ok(Asked::AlreadyOff),
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
        asked: &AskedBy,
    ) -> Result<Started, Error> {
        const METHOD: &str = "PowerOffVM_Task";
        let look = self.look(METHOD, vm, asked).await?;
        if look.power == Some(Power::Off) {
            return Ok(Started::AlreadyThere);
        }
        look.still_asked(METHOD, vm)?;
        if let Some(task) = look.at_work(METHOD, vm, &TaskKind::POWER_OFF)? {
            return Ok(Started::Running(task));
        }
        self.start(&look, &Call::under(permit, METHOD, &vm.into()), Power::Off)
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
    pub async fn power_on(&self, permit: &impl Permit, vm: &VmRef, by: PowerOnBy) -> Result<Started, Error> {
        let method = match by {
            PowerOnBy::Host(_) => "PowerOnVM_Task",
            PowerOnBy::Drs => "PowerOnMultiVM_Task",
        };
        let look = self.look(method, vm, &AskedBy::default()).await?;
        if look.power == Some(Power::On) {
            return Ok(Started::AlreadyThere);
        }
        if let Some(task) = look.at_work(method, vm, &TaskKind::POWER_ON)? {
            return Ok(Started::Running(task));
        }
        let call = match by {
            PowerOnBy::Host(host) => {
                look.is_on(method, vm, &host)?;
                Call::under(permit, method, &vm.into()).with(Out::moref("host", &(&host).into()))
            }
            PowerOnBy::Drs => {
                let datacenter = self.datacenter(vm, &look).await?;
                Call::under(permit, method, &datacenter).with(Out::moref("vm", &vm.into()))
            }
        };
        self.start(&look, &call, Power::On).await
    }

    /// Sends a call that starts a task, in the session of the look. A VM that turns out to be in the wanted state is already there.
    async fn start(&self, look: &Look, call: &Call, wanted: Power) -> Result<Started, Error> {
        match self.call_in(&look.session, call, read_started).await {
            Ok(started) => Ok(started),
            Err(Error::Refused {
                existing: Some(power),
                ..
            }) if power == wanted => Ok(Started::AlreadyThere),
            Err(error) => Err(error),
        }
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
                let call = Call::to("RetrievePropertiesEx", &start);
                call.unreadable(ReplyError::value(
                    format!("the datacenter above {start}"),
                    "visible to us",
                ))
            })
    }
}

/// Reads the task that a method returns.
pub(super) fn read_started(response: &Element<'_>) -> Result<Started, ReplyError> {
    let task = soap::returned_moref(response)?.task();
    task.map(Started::Running)
        .ok_or_else(|| ReplyError::value("returnval", "a Task"))
}
