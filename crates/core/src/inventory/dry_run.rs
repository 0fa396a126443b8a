//! The assumed results of a dry run, applied to the facts of a node.
//!
//! So an episode passes through every phase and is logged, although nothing is written or done. Facts that Haulout does not change,
//! such as the states of hosts, are the real ones.

use std::sync::Arc;

use crate::ids::{BootId, HostRef, RequestUid, TaskRef};
use crate::maintenance::effect::{Effect, PowerOnTarget};
use crate::maintenance::episode::Record;
use crate::maintenance::observed::{BoundVm, CordonedBy, HostState, Observed, ObservedVm, PowerState};

/// The assumed boot id of a node after a power cycle.
const DRY_RUN_BOOT: &str = "dry-run";

/// The values that replace facts of one node. Empty outside of a dry run.
#[derive(Clone, Debug, Default)]
pub(super) struct DryRunOverlay {
    record: Option<Record>,
    unschedulable: Option<bool>,
    power: Option<PowerState>,
    on: Option<Option<HostRef>>,
    booted: bool,
    gpus_cleared: bool,
    /// The maintenance task whose episode has ended: for the node, its host is out of maintenance.
    done: Option<TaskRef>,
    /// The request that would be fulfilled.
    fulfilled: Option<RequestUid>,
}

impl DryRunOverlay {
    pub(super) fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    pub(super) fn is_cordoned(&self) -> bool {
        self.unschedulable == Some(true)
    }

    pub(super) fn fulfilled(&self) -> Option<&RequestUid> {
        self.fulfilled.as_ref()
    }

    pub(super) fn write(
        &mut self,
        record: Record,
        unschedulable: Option<bool>,
        fulfilled: Option<RequestUid>,
    ) {
        if record == Record::InService {
            let done = self
                .record
                .as_ref()
                .and_then(Record::episode)
                .and_then(|it| it.trigger.task.clone());
            *self = Self {
                done: done.or_else(|| self.done.take()),
                fulfilled: fulfilled.or_else(|| self.fulfilled.take()),
                ..Self::default()
            };
            return;
        }
        self.record = Some(record);
        self.unschedulable = unschedulable.or(self.unschedulable);
    }

    pub(super) fn perform(&mut self, effect: &Effect) {
        match effect {
            // The devices of the VM are not assumed, because only the decision to change them depends on them.
            Effect::DrainRound { .. }
            | Effect::ListVolumes
            | Effect::Survey { .. }
            | Effect::Reconfigure { .. }
            | Effect::SetMachineGuards { .. }
            | Effect::RemoveMachineGuards { .. } => {}
            Effect::ShutdownGuest { .. } | Effect::PowerOff { .. } => self.power = Some(PowerState::Off),
            Effect::Relocate { to, .. } => self.on = Some(Some(to.clone())),
            Effect::ClearGpus { .. } => self.gpus_cleared = true,
            Effect::PowerOn { place, .. } => {
                self.power = Some(PowerState::On);
                self.booted = true;
                if *place == PowerOnTarget::Drs {
                    // The host that DRS would choose is unknown. It is one that takes VMs.
                    self.on = Some(None);
                }
            }
        }
    }

    pub(super) fn apply_to(&self, seen: &mut Observed, state: impl Fn(&HostRef) -> HostState) {
        if let BoundVm::Found(vm) = &mut seen.vm {
            self.apply_to_vm(vm, state);
        }
        let Some(node) = &mut seen.node else { return };
        if let Some(unschedulable) = self.unschedulable {
            node.unschedulable = unschedulable;
            node.cordoned_by = CordonedBy::Haulout;
        }
        if self.gpus_cleared && !self.booted {
            node.gpus = Arc::default();
            node.gpu_capacity = Arc::default();
        }
        if self.booted {
            node.boot_id = Some(BootId::new(DRY_RUN_BOOT));
            node.ready = true;
        }
    }

    pub(super) fn apply_to_vm(&self, vm: &mut ObservedVm, state: impl Fn(&HostRef) -> HostState) {
        if let HostState::Entering { task, .. } = &vm.host
            && self.done.as_ref() == Some(task)
        {
            vm.host = HostState::InService;
        }
        if let Some(power) = self.power {
            vm.power = Some(power);
        }
        match &self.on {
            None => {}
            Some(Some(host)) => {
                vm.host = state(host);
                vm.host_name = host.to_string();
                vm.host_ref = Some(host.clone());
            }
            Some(None) => {
                vm.host = HostState::InService;
                vm.host_name = "the host DRS picks".to_owned();
                vm.host_ref = None;
            }
        }
    }
}

#[cfg(test)]
mod tests;
