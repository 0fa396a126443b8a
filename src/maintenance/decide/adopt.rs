//! Taking over an episode of the Python controller: its four annotations become a record of ours, in one write.

use super::{Decision, go, wait};
use crate::maintenance::episode::{Cordon, Episode, HostMark, Phase, PythonEpisode, PythonState, Trigger};
use crate::maintenance::observed::{CordonedBy, NodeSeen, Observed, PowerSeen, VmSeen};
use crate::maintenance::waiting::{ParkReason, WaitingOn};

/// Adopts `python`, once the VM is known: what it did not write down has to be read off the VM as it stands.
pub(super) fn adopt(python: &PythonEpisode, node: &NodeSeen, seen: &Observed) -> Decision {
    let vm = match &seen.vm {
        VmSeen::NotLookedUp => return wait(WaitingOn::VmLookup),
        VmSeen::Missing => return wait(WaitingOn::Parked(ParkReason::VmMissing)),
        VmSeen::Ambiguous(vms) => {
            return wait(WaitingOn::Parked(ParkReason::VmAmbiguous { count: vms.len() }));
        }
        VmSeen::Shared(nodes) => {
            return wait(WaitingOn::Parked(ParkReason::VmShared { nodes: nodes.clone() }));
        }
        VmSeen::Found(vm) => vm,
    };
    let was_off = match python.state {
        PythonState::Draining => false,
        PythonState::PoweredOff | PythonState::Migrated => true,
    };
    let boot_is_from_before = match vm.power {
        PowerSeen::Unknown => return wait(WaitingOn::PowerState),
        PowerSeen::Off | PowerSeen::Suspended => true,
        // It may have booted since, and then the boot id that the Node tells is the one to wait for.
        PowerSeen::On => !was_off,
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
    let (id, traceparent) = Episode::name(&node.uid, &trigger, python.since);
    Decision::Record(Box::new(go(Episode {
        id,
        traceparent,
        trigger,
        node_uid: node.uid.clone(),
        vm_uuid: vm.uuid,
        host: by_name(&python.host, vm.on_name == python.host, vm.on.clone()),
        begun_at: python.since,
        // It cordons whatever it finds and uncordons it at the end, so the cordon it left is for us to take away.
        cordon: Cordon::Adopted(match &node.cordoned_by {
            CordonedBy::Other(manager) => Some(manager.clone()),
            CordonedBy::Unknown | CordonedBy::Haulout => None,
        }),
        recordoned: 0,
        boot_before: node.boot_id.clone().filter(|_| boot_is_from_before),
        gpus_before: node.gpus.clone(),
        powered_off: was_off,
        moved_to: python
            .migrated_to_host
            .as_ref()
            .map(|name| by_name(name, vm.on_name == *name, vm.on.clone())),
        gave_up: None,
        left_behind: Vec::new(),
        epoch: seen.lead.epoch,
        trail: Default::default(),
        phase,
        since: python.since,
    })))
}

fn by_name(name: &str, is_here: bool, here: Option<crate::ids::HostRef>) -> HostMark {
    HostMark {
        moref: here.filter(|_| is_here),
        name: name.into(),
    }
}
