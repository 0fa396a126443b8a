//! Taking over an episode of the Python controller: its four annotations become a record of ours, in one write.

use super::begin::the_vm;
use super::{Decision, go, wait};
use crate::maintenance::episode::{
    CordonOwner, Episode, HostIdentity, Phase, PythonEpisode, PythonState, Trigger,
};
use crate::maintenance::observed::{CordonedBy, Observed, ObservedNode, ObservedPower};
use crate::maintenance::policy::Policy;
use crate::maintenance::waiting::WaitingOn;

/// Adopts `python`, once the VM is known: what it did not write down has to be read off the VM as it stands.
pub(super) fn adopt(
    python: &PythonEpisode,
    node: &ObservedNode,
    seen: &Observed,
    policy: &Policy,
) -> Decision {
    let vm = match the_vm(&seen.vm) {
        Ok(vm) => vm,
        Err(waiting_on) => return wait(waiting_on),
    };
    let was_off = match python.state {
        PythonState::Draining => false,
        PythonState::PoweredOff | PythonState::Migrated => true,
    };
    let boot_is_from_before = match vm.power {
        ObservedPower::Unknown => return wait(WaitingOn::PowerState),
        ObservedPower::Off | ObservedPower::Suspended => true,
        // It may have booted since, and then the boot id that the Node tells is the one to wait for.
        ObservedPower::On => !was_off,
    };
    let phase = match python.state {
        PythonState::Draining => Phase::Draining,
        PythonState::PoweredOff => Phase::AwaitingHost,
        PythonState::Migrated => Phase::Rejoining,
    };
    let trigger = Trigger {
        task: None,
        clicked_at: python.since,
        user: None,
        detection: None,
        request: None,
        stray_of: None,
    };
    let host = by_name(&python.host, vm.on_name == python.host, vm.on.clone());
    // How long its drain has taken by its own clock is not known by ours: it has its time anew.
    Decision::Record(Box::new(go(Episode {
        vm_uuid: vm.uuid,
        vm: Some(vm.moref.clone()),
        // It cordons whatever it finds and uncordons it at the end, so the cordon it left is for us to take away.
        cordon: CordonOwner::Adopted(match &node.cordoned_by {
            CordonedBy::Other(manager) => Some(manager.clone()),
            CordonedBy::Unknown | CordonedBy::Haulout => None,
        }),
        boot_before: node.boot_id.clone().filter(|_| boot_is_from_before),
        gpus_before: node.gpus.clone(),
        powered_off: was_off,
        moved_to: python
            .migrated_to_host
            .as_ref()
            .map(|name| by_name(name, vm.on_name == *name, vm.on.clone())),
        release: policy.releases.own.clone(),
        epoch: seen.lead.epoch,
        ..Episode::new(node.uid.clone(), trigger, host, phase, python.since)
    })))
}

fn by_name(name: &str, is_here: bool, here: Option<crate::ids::HostRef>) -> HostIdentity {
    HostIdentity {
        moref: here.filter(|_| is_here),
        name: name.into(),
    }
}
