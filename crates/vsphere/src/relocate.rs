//! Relocate: move a VM that is off to another host, with its disks where they are.

use super::call::SoapCall;
use super::client::Vcenter;
use super::commands::{MaintenanceCause, StartedTask};
use super::error::Error;
use super::fault::{Fault, FaultKind};
use super::moref::Moref;
use super::power::read_started;
use super::preflight::TaskKind;
use super::property::{PropertySpec, TraversalStep};
use super::soap::ReplyError;
use super::update::PowerState;
use super::xml::write::XmlWriter;
use crate::Permit;
use haulout_core::ids::{HostRef, VmRef};

const METHOD: &str = "RelocateVM_Task";

impl Vcenter {
    /// Moves `vm` to `to` (`RelocateVM_Task`), after a look: one that is there is already there, a relocate at work is
    /// taken for this one, wherever it goes; where it ends shows in the VM's host.
    ///
    /// The specification names the host, and the resource pool only where the VM's own belongs to another compute
    /// resource. It never names a datastore or a device: the disks have to be reachable from the destination, and
    /// vCenter ignores passthrough devices in it (`VirtualMachineRelocateSpec.deviceChange` in the API reference).
    ///
    /// # Errors
    /// As [`Vcenter::power_off`], and [`FaultKind::InvalidPowerState`] without asking where the VM is not off: vCenter
    /// would try to move it while it runs.
    pub async fn relocate(
        &self,
        permit: &impl Permit,
        vm: &VmRef,
        to: &HostRef,
    ) -> Result<StartedTask, Error> {
        let look = self.look(METHOD, vm, &MaintenanceCause::default()).await?;
        if let Some(task) = look.at_work(METHOD, vm, &TaskKind::RELOCATE)? {
            return Ok(StartedTask::Running(task));
        }
        if look.host.as_ref() == Some(to) {
            return Ok(StartedTask::AlreadyThere);
        }
        if look.power != Some(PowerState::Off) {
            return Err(not_off(vm, look.power));
        }
        let pool = self.other_pool(look.pool.as_ref(), to).await?;
        let spec = XmlWriter::new("spec")
            .with_all(pool.map(|pool| XmlWriter::moref("pool", &pool)))
            .with(XmlWriter::moref("host", &to.into()));
        let call = SoapCall::under(permit, METHOD, &vm.into()).with(spec);
        self.call_in(&look.session, &call, read_started).await
    }

    /// The root pool of `to`'s compute resource, where `pool` belongs to another one.
    async fn other_pool(&self, pool: Option<&Moref>, to: &HostRef) -> Result<Option<Moref>, Error> {
        let host = Moref::from(to);
        let mut spec = PropertySpec::default()
            .read("ComputeResource", &["resourcePool"])
            .read("HostSystem", &["parent"])
            .read("ResourcePool", &["owner"])
            .of(
                &host,
                vec![TraversalStep::new("HostSystem", "parent", Vec::new())],
            );
        if let Some(pool) = pool {
            spec = spec.of(pool, Vec::new());
        }
        let objects = self.retrieve(spec).await?;
        let value = |of: &Moref, path: &str| {
            let object = objects.iter().find(|object| object.moref == *of)?;
            object.moref(path).cloned()
        };
        let unknown = |what: &str| {
            let call = SoapCall::to("RetrievePropertiesEx", &host);
            call.unreadable(ReplyError::value(what, "visible to us"))
        };
        let compute = value(&host, "parent").ok_or_else(|| unknown("the destination's compute resource"))?;
        if pool.and_then(|pool| value(pool, "owner")).as_ref() == Some(&compute) {
            return Ok(None);
        }
        let root = value(&compute, "resourcePool");
        Ok(Some(
            root.ok_or_else(|| unknown("the destination's resource pool"))?,
        ))
    }
}

fn not_off(vm: &VmRef, existing: Option<PowerState>) -> Error {
    Error::Refused {
        operation: METHOD,
        object: Moref::from(vm).to_string(),
        source: Fault {
            kind: FaultKind::InvalidPowerState,
            said: "only a VM that is off is moved, and this one is not".to_owned(),
        },
        existing,
    }
}
