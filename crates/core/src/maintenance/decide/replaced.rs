//! Whether the VM of a node is still the one with which its episode began.

use crate::maintenance::episode::Episode;
use crate::maintenance::observed::ObservedVm;
use crate::maintenance::waiting::ParkReason;

/// Returns the reason if `vm` is not the VM that the episode began with. A VM that is off and was registered again with its old
/// UUID still is that VM.
pub fn is_replaced(episode: &Episode, vm: &ObservedVm) -> Option<ParkReason> {
    let is_other_uuid = match (&episode.vm_uuid, &vm.uuid) {
        (Some(was), Some(is)) => !was.same_machine(*is),
        (None, _) | (_, None) => false,
    };
    let is_other_moref = episode.vm.as_ref().is_some_and(|was| *was != vm.moref);
    let is_registered_anew = episode.powered_off && episode.vm_uuid.is_some() && !is_other_uuid;
    if !is_other_uuid && (!is_other_moref || is_registered_anew) {
        return None;
    }
    let name = |moref: Option<String>, uuid: Option<String>| {
        let moref = moref.unwrap_or_else(|| "a VM".to_owned());
        uuid.map_or(moref.clone(), |uuid| format!("{moref} ({uuid})"))
    };
    Some(ParkReason::VmReplaced {
        was: name(
            episode.vm.as_ref().map(ToString::to_string),
            episode.vm_uuid.map(|uuid| uuid.to_string()),
        ),
        is: name(Some(vm.moref.to_string()), vm.uuid.map(|uuid| uuid.to_string())),
    })
}
