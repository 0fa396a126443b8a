//! Adopts an episode of the Python controller: its four annotations become a record, in one write.

use super::rounds::drain_time_of;
use super::{Decision, transition_to, wait};
use crate::maintenance::desired::DesiredState;
use crate::maintenance::episode::{
    CordonOwner, Episode, HostIdentity, Phase, PythonEpisode, PythonState, Trigger,
};
use crate::maintenance::observed::{CordonedBy, Observed, ObservedNode, PowerState};
use crate::maintenance::policy::Policy;
use crate::maintenance::waiting::WaitingOn;

/// Adopts `python` once the VM is known, because the annotations lack what only the VM shows.
pub(super) fn adopt(
    python: &PythonEpisode,
    node: &ObservedNode,
    seen: &Observed,
    policy: &Policy,
) -> Decision {
    let vm = match seen.vm.or_wait() {
        Ok(vm) => vm,
        Err(waiting_on) => return wait(waiting_on),
    };
    let was_off = match python.state {
        PythonState::Draining => false,
        PythonState::PoweredOff | PythonState::Migrated => true,
    };
    let boot_is_from_before = match vm.power {
        None => return wait(WaitingOn::PowerState),
        Some(PowerState::Off) | Some(PowerState::Suspended) => true,
        // The VM may have booted already, and then the current boot id is the one to wait for.
        Some(PowerState::On) => !was_off,
    };
    let phase = match python.state {
        PythonState::Draining => Phase::Draining,
        PythonState::PoweredOff => Phase::AwaitingHost,
        PythonState::Migrated => Phase::Rejoining,
    };
    let trigger = Trigger::new(python.since);
    let host = by_name(&python.host, vm.host_name == python.host, vm.host_ref.clone());
    let time = drain_time_of(DesiredState::Down, seen.request.as_ref(), policy);
    // The drain gets its full timeout again, because its elapsed time on the monotonic clock is unknown.
    Decision::Write(Box::new(transition_to(Episode {
        vm_uuid: vm.uuid,
        vm: Some(vm.moref.clone()),
        // The Python controller uncordons every node at the end, so Haulout removes the cordon for it.
        cordon: CordonOwner::Adopted(match &node.cordoned_by {
            CordonedBy::Other(manager) => Some(manager.clone()),
            CordonedBy::Unknown | CordonedBy::Haulout => None,
        }),
        boot_before: node.boot_id.clone().filter(|_| boot_is_from_before),
        gpus_before: node.gpus.clone(),
        slices_before: node.newest_slice.filter(|_| boot_is_from_before),
        powered_off: was_off,
        moved_to: python
            .migrated_to_host
            .as_ref()
            .map(|name| by_name(name, vm.host_name == *name, vm.host_ref.clone())),
        drain_limit: Some(time.limit),
        drain_timeout: time.timeout,
        release: policy.releases.own.clone(),
        epoch: seen.leadership.epoch,
        ..Episode::new(node.uid.clone(), trigger, host, phase, python.since)
    })))
}

fn by_name(name: &str, is_here: bool, here: Option<crate::ids::HostRef>) -> HostIdentity {
    HostIdentity {
        moref: here.filter(|_| is_here),
        name: name.into(),
    }
}
