//! Which VMs of others the account could power off, by mistake or misled.

use std::collections::{BTreeMap, BTreeSet};

use super::call::SoapCall;
use super::client::Vcenter;
use super::error::Error;
use super::privileges::{Entity, POWER_OFF};
use super::property::{PropertySpec, TraversalStep};
use super::reading::{PAGE, container_view};
use super::scope::VmScope;
use super::{soap, text};
use haulout_core::ids::VmRef;

/// VMs in one question. With their morefs a request has some 50 KB.
const CHUNK: usize = 500;

/// VMs that are asked about. An account that sees more sees too much in any case.
const VMS_MAX: usize = 20_000;

impl Vcenter {
    /// The VMs, with their names, that this account may power off, without those of `own` and those in
    /// [`VmScope`]. `None` if the server does not report privileges. Templates are left out, because they
    /// are never on.
    ///
    /// # Errors
    /// Those of a read or a call.
    pub async fn vms_of_others(
        &self,
        own: &BTreeSet<VmRef>,
    ) -> Result<Option<BTreeMap<VmRef, String>>, Error> {
        let session = self.sessions.get().await?;
        let create = container_view(&session.content, "VirtualMachine");
        let view = self.call_in(&session, &create, soap::returned_moref).await?;
        let spec = PropertySpec::default()
            .read_properties("VirtualMachine", &["name", "config.template"])
            .select_beyond(&view, [TraversalStep::new("ContainerView", "view", [])]);
        // A VM that cannot be read is left out: it cannot be powered off either.
        let read = self.retrieve_pages(&session, spec, PAGE).await;
        let destroy = SoapCall::to("DestroyView", &view);
        self.call_in(&session, &destroy, soap::nothing).await?;
        let read = read?;
        let mut others = BTreeMap::new();
        for object in &read.objects {
            let Some(vm) = object.moref.vm().filter(|vm| !own.contains(vm)) else {
                continue;
            };
            if object.text("config.template") == Some("true") {
                continue;
            }
            let name = object.text("name").map(text::inventory_name);
            others.insert(vm.clone(), name.unwrap_or_else(|| vm.to_string()));
        }
        let mut reached = BTreeMap::new();
        let others: Vec<(VmRef, String)> = others.into_iter().take(VMS_MAX).collect();
        for chunk in others.chunks(CHUNK) {
            let names: BTreeMap<VmRef, String> = chunk.iter().cloned().collect();
            let Some(chunk) = self.may_power_off(names).await? else {
                return Ok(None);
            };
            reached.extend(chunk);
        }
        Ok(Some(reached))
    }

    /// Those of `vms` that are out of scope and may be powered off.
    async fn may_power_off(
        &self,
        mut vms: BTreeMap<VmRef, String>,
    ) -> Result<Option<BTreeMap<VmRef, String>>, Error> {
        let scope = &self.settings.scope;
        if !scope.is_everything() {
            let session = self.sessions.get().await?;
            let spec = VmScope::spec(vms.keys());
            let read = self.retrieve_pages(&session, spec, PAGE).await?;
            let inside = scope.contains(&vms.keys().cloned().collect(), &read.objects);
            vms.retain(|vm, _| !inside.contains(vm));
        }
        let entities: Vec<Entity> = vms.keys().cloned().map(Entity::Vm).collect();
        let Some(lacking) = self.lacks(POWER_OFF, &entities).await? else {
            return Ok(None);
        };
        let lacking: BTreeSet<Entity> = lacking.into_iter().collect();
        vms.retain(|vm, _| !lacking.contains(&Entity::Vm(vm.clone())));
        Ok(Some(vms))
    }
}
