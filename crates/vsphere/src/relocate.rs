//! Relocate: moves a powered-off VM to another host; its disks stay.

pub(crate) mod check;

use super::call::SoapCall;
use super::client::Vcenter;
use super::error::Error;
use super::moref::Moref;
use super::power::{StartedTask, read_started};
use super::preflight::TaskKind;
use super::property::{PropertySpec, TraversalStep};
use super::soap::ReplyError;
use super::xml::write::XmlWriter;
use crate::WritePermit;
use haulout_core::ids::{HostRef, VmRef};

const METHOD: &str = "RelocateVM_Task";

impl Vcenter {
    /// Moves `vm` to `to` (`RelocateVM_Task`) after a check of the VM, and one by vCenter of the relocate itself
    /// (`CheckRelocate_Task`), whose errors are returned as if vCenter had refused the call. Without the privilege or the method for
    /// that, or without an answer within seconds, it is left out. A running relocate counts as this one,
    /// whatever its destination; the result shows in the host of the VM.
    ///
    /// The specification has the folder of the VM, because vCenter may put a VM without one into the
    /// root VM folder (`VirtualMachineRelocateSpec.folder`); the host; and a resource pool only if the
    /// current one belongs to another compute resource. It has no datastore or device: the destination must reach the disks, and
    /// vCenter ignores passthrough devices in it (`VirtualMachineRelocateSpec.deviceChange` in the API
    /// reference).
    ///
    /// # Errors
    /// As [`Vcenter::power_off`], and [`super::fault::FaultKind::InvalidPowerState`] without a call if the VM is not
    /// off: vCenter would migrate it while it runs.
    pub async fn relocate(
        &self,
        permit: &impl WritePermit,
        vm: &VmRef,
        to: &HostRef,
    ) -> Result<StartedTask, Error> {
        let check = self.check(METHOD, vm, None).await?;
        if let Some(task) = check.running_task(&TaskKind::RELOCATE)? {
            return Ok(StartedTask::Running(task));
        }
        if check.host.as_ref() == Some(to) {
            return Ok(StartedTask::AlreadyThere);
        }
        check.check_off()?;
        let pool = self.other_pool(check.pool.as_ref(), to).await?;
        let spec = XmlWriter::new("spec")
            .with_all(
                check
                    .folder
                    .as_ref()
                    .map(|folder| XmlWriter::moref("folder", folder)),
            )
            .with_all(pool.map(|pool| XmlWriter::moref("pool", &pool)))
            .with(XmlWriter::moref("host", &to.into()));
        if let Some(objection) = self.relocate_objection(&check.session, vm, &spec).await {
            return Err(check.refused(objection));
        }
        // The check by vCenter takes a moment, in which somebody may have powered the VM on.
        let again = self.check(METHOD, vm, None).await?;
        again.check_off()?;
        let call = SoapCall::under(permit, METHOD, &vm.into()).with(spec);
        self.call_in(&check.session, &call, read_started).await
    }

    /// The root pool of the compute resource of `to`, if `pool` belongs to another one.
    async fn other_pool(&self, pool: Option<&Moref>, to: &HostRef) -> Result<Option<Moref>, Error> {
        let host = Moref::from(to);
        let mut spec = PropertySpec::default()
            .read_properties("ComputeResource", &["resourcePool"])
            .read_properties("HostSystem", &["parent"])
            .read_properties("ResourcePool", &["owner"])
            .select_object(&host, [TraversalStep::new("HostSystem", "parent", [])]);
        if let Some(pool) = pool {
            spec = spec.select_object(pool, []);
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
