//! Binds Nodes to VMs: by UUID in both byte orders, or by name where that is configured, and only if exactly one VM matches. Where
//! two Nodes claim one VM, the first one keeps it.

use std::collections::BTreeSet;

use super::Inventory;
use crate::facts::kubernetes::NodeFacts;
use crate::facts::vsphere::{Passthrough, PowerState, Task, Vm, VmKey, VmotionDevice};
use crate::ids::{NodeName, VmRef, VmUuid};
use crate::maintenance::episode::{Episode, Phase, Record};
use crate::maintenance::observed::{
    BoundVm, FailedMaintenance, HostState, ObservedVm, OtherClaimant, Vmotion,
};
use crate::maintenance::policy::{NodeBinding, VmotionGrace};

impl Inventory {
    /// The lookup keys of a node, also if its Node was deleted during an episode.
    pub(super) fn keys_of(&self, name: &NodeName) -> BTreeSet<VmKey> {
        if let Some(node) = self.nodes.node(name) {
            return self.keys(node);
        }
        let gone = self.record_of_gone(name);
        let uuid = gone.as_ref().and_then(Record::episode).and_then(|it| it.vm_uuid);
        let key = match (gone, uuid) {
            (Some(_), _) if self.settings.binding == NodeBinding::Name => Some(VmKey::Name(name.to_string())),
            (Some(_), Some(uuid)) => Some(VmKey::Uuid(uuid)),
            (Some(_) | None, _) => None,
        };
        key.into_iter().collect()
    }

    /// The lookup keys of a node, with that of the VM in its record.
    pub(super) fn all_keys_of(&self, name: &NodeName) -> BTreeSet<VmKey> {
        let recorded = self.recorded_key(name);
        self.keys_of(name).into_iter().chain(recorded).collect()
    }

    /// The key of the VM with which the episode of a node began, where `NODE_BINDING` leads to other keys by now. Only a copy counts: a
    /// kubelet can write any record to its own Node. It is of this machine if it is of this Node object, or the Node reports its UUID.
    fn recorded_key(&self, name: &NodeName) -> Option<VmKey> {
        let uuid = match self.nodes.node(name) {
            None => self.own_copy(name)?.vm_uuid?,
            Some(node) => {
                let copy = self.open_copy(node)?;
                let uuid = copy.vm_uuid?;
                let mut reported = [node.provider_uuid, node.system_uuid].into_iter().flatten();
                let is_of_node = copy.node_uid == node.uid || reported.any(|it| uuid.same_machine(it));
                let is_own = self.settings.releases.names(&copy.release);
                (is_of_node && is_own).then_some(uuid)?
            }
        };
        let is_known = self.keys_of(name).iter().any(|key| match key {
            VmKey::Uuid(known) => uuid.same_machine(*known),
            VmKey::Name(_) => false,
        });
        (!is_known).then_some(VmKey::Uuid(uuid))
    }

    /// The VMs that episodes have switched off and not yet brought back into service. A new `VCENTER_SCOPE` must not leave them off.
    /// Only a copy names the VM: a kubelet can write any record to its own Node.
    pub(super) fn kept_off(&self) -> BTreeSet<VmRef> {
        let of_node = |name: &NodeName| {
            let copy = self.own_copy(name)?;
            let record = self.record_for(name)?;
            let episode = record.episode().filter(|episode| episode.id == copy.id)?;
            let phase = episode.phase.at_work();
            let is_off = phase.vm_is_off() || (*phase == Phase::Rejoining && episode.powered_off);
            copy.vm.clone().filter(|_| is_off)
        };
        self.requests.copied().filter_map(of_node).collect()
    }

    /// The lookup keys of `node`.
    pub(super) fn keys(&self, node: &NodeFacts) -> BTreeSet<VmKey> {
        let system_uuid = match self.settings.binding {
            NodeBinding::Name => return BTreeSet::from([VmKey::Name(node.name.to_string())]),
            NodeBinding::ProviderId => None,
            NodeBinding::Uuid => node.system_uuid,
        };
        let mut keys: BTreeSet<VmKey> = BTreeSet::new();
        for uuid in [node.provider_uuid, system_uuid].into_iter().flatten() {
            // Usually both are the same UUID in two byte orders, which needs only one lookup.
            let known = keys.iter().any(|key| match key {
                VmKey::Uuid(other) => uuid.same_machine(*other),
                VmKey::Name(_) => false,
            });
            if !known {
                keys.insert(VmKey::Uuid(uuid));
            }
        }
        keys
    }

    pub(super) fn vm_of(&self, name: &NodeName) -> BoundVm {
        let moref = match self.found_for(name) {
            Ok(moref) => moref,
            Err(seen) => return *seen,
        };
        match self.owners.get(&moref) {
            Some(owner) if owner == name => {}
            Some(owner) if self.holds_vm(owner, &moref) => return self.held_by(owner, &moref),
            Some(_) | None => {
                let others = self.other_claimants(&moref, name);
                if !others.is_empty() {
                    return BoundVm::Shared(others);
                }
            }
        }
        match self.vcenter.vm(&moref) {
            Some(vm) => BoundVm::Found(ObservedVm {
                other_claimants: self.observed_claimants(&moref, name),
                ..self.facts(vm)
            }),
            // The properties of the VM have not arrived yet, or it is being removed.
            None => BoundVm::NotLookedUp,
        }
    }

    /// The VM of a node whose VM `owner` has.
    fn held_by(&self, owner: &NodeName, moref: &VmRef) -> BoundVm {
        let owner_node = self.nodes.node(owner);
        if self.is_vm_on(moref) && owner_node.is_none_or(|node| !node.ready.is_true) {
            return BoundVm::HeldByDeadNode {
                node: owner.clone(),
                is_deleted: owner_node.is_none(),
            };
        }
        BoundVm::Shared(vec![owner.clone()])
    }

    fn observed_claimants(&self, moref: &VmRef, name: &NodeName) -> Vec<OtherClaimant> {
        let others = self.other_claimants(moref, name).into_iter();
        let observed = |node: NodeName| {
            let ready = self.nodes.node(&node)?.ready;
            Some(OtherClaimant {
                ready: ready.is_true,
                ready_since: ready.since,
                registered_at: self.nodes.node(&node)?.created_at,
                node,
            })
        };
        others.filter_map(observed).collect()
    }

    /// Forgets the records of deleted Nodes whose episode was ended by hand: the NodeMaintenance is gone as well, the VM is on, nothing
    /// requested of vCenter can still stop it, and a Ready Node matches it. Otherwise that Node would never get the VM.
    pub(super) fn forget_records_ended_by_hand(&mut self) {
        let names = self.node_states.keys().filter(|name| self.is_ended_by_hand(name));
        for name in names.cloned().collect::<Vec<_>>() {
            self.is_changed = true;
            self.node_states.remove(&name);
        }
    }

    fn is_ended_by_hand(&self, name: &NodeName) -> bool {
        let sources = &self.request_sources;
        let is_read = sources.disconnected().is_none() && sources.ignored(None).is_none();
        let is_listed = self.settings.node_maintenances && is_read;
        if !is_listed || self.nodes.has(name) || self.copy(name).is_some() {
            return false;
        }
        let record = self
            .node_states
            .get(name)
            .and_then(|local| local.record_of_gone.as_ref());
        let is_pending = |episode: &Episode| !episode.in_flight.is_empty();
        if record.and_then(Record::episode).is_none_or(is_pending) {
            return false;
        }
        let Ok(moref) = self.found_for(name) else {
            return false;
        };
        let others = self.observed_claimants(&moref, name);
        self.is_vm_on(&moref) && others.iter().any(|other| other.ready)
    }

    /// The only VM of a node, even if other nodes match it too: by its keys, or else the one with which its episode began.
    fn found_for(&self, name: &NodeName) -> Result<VmRef, Box<BoundVm>> {
        let seen = match self.found_by(name, self.keys_of(name)) {
            Ok(moref) => return Ok(moref),
            Err(seen) => seen,
        };
        let is_unbound = match *seen {
            BoundVm::Missing { .. } | BoundVm::NoVm | BoundVm::OutOfScope | BoundVm::NoUuid => true,
            BoundVm::NotLookedUp
            | BoundVm::Ambiguous(_)
            | BoundVm::Shared(_)
            | BoundVm::HeldByDeadNode { .. }
            | BoundVm::Found(_) => false,
        };
        match self.recorded_key(name).filter(|_| is_unbound) {
            Some(key) => self.found_by(name, BTreeSet::from([key])),
            None => Err(seen),
        }
    }

    /// The only VM that matches `keys`.
    fn found_by(&self, name: &NodeName, keys: BTreeSet<VmKey>) -> Result<VmRef, Box<BoundVm>> {
        let is_expected = self.is_expected_in_vcenter(name);
        if keys.is_empty() {
            let has_uuid = self
                .nodes
                .node(name)
                .is_some_and(|node| node.system_uuid.is_some());
            // With a UUID, only `NODE_BINDING=provider-id` leaves it without a key.
            let is_none = has_uuid && !is_expected;
            return Err(Box::new(if is_none { BoundVm::NoVm } else { BoundVm::NoUuid }));
        }
        let mut vms: BTreeSet<VmRef> = BTreeSet::new();
        let mut all_answered = true;
        let mut is_outside = false;
        for key in keys {
            is_outside |= self.lookups.is_out_of_scope(&key);
            match self.lookups.answer(&key) {
                Some(answer) => vms.extend(answer.iter().filter(|vm| self.may_run(vm)).cloned()),
                None => all_answered = false,
            }
        }
        if !all_answered {
            return Err(Box::new(BoundVm::NotLookedUp));
        }
        if vms.len() > 1 {
            return Err(Box::new(BoundVm::Ambiguous(vms)));
        }
        let was_known = self.node_states.get(name).is_some_and(|local| local.has_known_vm);
        let missing = || {
            Box::new(if is_outside {
                BoundVm::OutOfScope
            } else if is_expected || was_known {
                BoundVm::Missing { was_known }
            } else {
                BoundVm::NoVm
            })
        };
        vms.into_iter().next().ok_or_else(missing)
    }

    /// Whether something says that the node is a VM of vSphere: its provider ID, or a maintenance that it has or had.
    fn is_expected_in_vcenter(&self, name: &NodeName) -> bool {
        let Some(node) = self.nodes.node(name) else {
            return true;
        };
        let on_node = self.record_on_node(name);
        node.provider_uuid.is_some()
            || node.annotations.last_episode.is_some()
            || on_node.is_some_and(|record| *record != Record::InService)
            || self.copy(name).is_some()
    }

    /// Whether it is no template. A template can have the UUID of the VM that it was made from.
    fn may_run(&self, vm: &VmRef) -> bool {
        !self.vcenter.vm(vm).is_some_and(|vm| vm.template)
    }

    /// The other nodes for which only this VM is found.
    fn other_claimants(&self, vm: &VmRef, name: &NodeName) -> Vec<NodeName> {
        let names: BTreeSet<&NodeName> = self.nodes_of(vm).filter(|other| *other != name).collect();
        let claims_it = |other: &&&NodeName| self.found_for(other).is_ok_and(|found| found == *vm);
        names
            .iter()
            .filter(claims_it)
            .map(|other| (*other).clone())
            .collect()
    }

    /// Binds the VM that is found for `name` to the first node that claims it. Of several, the one that had it under an earlier moref
    /// keeps it. When this process starts, a node with a copy of its record comes first, because no kubelet may write that; then one
    /// with a provider ID, then the older one. So nobody gets a VM before all that may claim it is known. Where maintenance went on
    /// without the list of copies, a node with one gets the VM afterwards.
    pub(super) fn claim(&mut self, name: &NodeName) {
        let is_listed = self.nodes.disconnected().is_none() && self.request_sources.disconnected().is_none();
        let Ok(moref) = self.found_for(name) else { return };
        let uuid = self.vcenter.vm(&moref).and_then(|vm| vm.uuid);
        if !is_listed || uuid.is_some_and(|uuid| self.lookups.is_awaited(uuid)) {
            return;
        }
        let has_copy = |name: &NodeName| {
            let copy = self.copy(name);
            copy.is_some_and(|copy| is_same_machine(copy.vm_uuid, uuid))
        };
        let owner = self.owners.get(&moref);
        let keeps_it =
            |owner: &NodeName| self.holds_vm(owner, &moref) && (has_copy(owner) || !has_copy(name));
        if owner.is_some_and(keeps_it) {
            return;
        }
        let mut claimants = self.other_claimants(&moref, name);
        claimants.push(name.clone());
        let rank = |name: &NodeName| {
            let node = self.nodes.node(name);
            let has_provider_id = node.is_some_and(|node| node.provider_uuid.is_some());
            let created_at = node.map(|node| node.created_at);
            let had_it = self
                .owners
                .iter()
                .any(|(vm, owner)| owner == name && self.vcenter.vm(vm).is_none());
            (
                !had_it,
                !has_copy(name),
                !has_provider_id,
                created_at,
                name.clone(),
            )
        };
        if let Some(owner) = claimants.into_iter().min_by_key(rank) {
            self.owners
                .retain(|vm, it| *it != owner || self.vcenter.vm(vm).is_some());
            self.owners.insert(moref, owner);
        }
    }

    /// Whether this VM is still found for its owner, also if that exists only in a record.
    fn holds_vm(&self, owner: &NodeName, vm: &VmRef) -> bool {
        self.found_for(owner).is_ok_and(|found| found == *vm)
    }

    /// Removes the owners that no longer exist.
    pub(super) fn forget_owners(&mut self, names: &BTreeSet<NodeName>) {
        self.owners.retain(|_, owner| names.contains(owner));
    }

    /// The nodes with a key that this VM matches, alone or with others: by their Node, or by the copy of their record, which is all
    /// that there is of a deleted Node when this process starts.
    pub(super) fn nodes_of(&self, vm: &VmRef) -> impl Iterator<Item = &NodeName> {
        let keys = self.lookups.keys_of(vm);
        let is_key = move |key: VmKey| keys.is_some_and(|keys| keys.contains(&key));
        let is_recorded = move |name: &&NodeName| {
            let of_gone = (!self.nodes.has(name)).then(|| self.keys_of(name));
            self.recorded_key(name).is_some_and(is_key) || of_gone.into_iter().flatten().any(is_key)
        };
        self.lookups
            .nodes_of(vm)
            .chain(self.requests.copied().filter(is_recorded))
    }

    fn facts(&self, vm: &Vm) -> ObservedVm {
        let host = vm.host.as_ref().and_then(|moref| self.vcenter.host(moref));
        let host_name = host
            .and_then(|host| host.name.clone())
            .or_else(|| vm.host.as_ref().map(ToString::to_string))
            .unwrap_or_else(|| "(no host)".to_owned());
        let drs = host
            .and_then(|host| host.compute.as_ref())
            .and_then(|compute| self.vcenter.compute(compute)?.drs.as_ref())
            .is_some_and(|drs| drs.fully_automated_for(&vm.moref));
        // DRS cannot move a VM with a device at a fixed address of its host.
        let movable = vm.passthrough.as_ref().is_some_and(|devices| {
            !devices
                .iter()
                .any(|device| matches!(device, Passthrough::Static { .. }))
        });
        let vmotion = self.vmotion(vm);
        let has_devices = vm.passthrough.as_ref().map(|devices| !devices.is_empty());
        let is_pinned = has_devices == Some(true) && vmotion.is_none();
        ObservedVm {
            moref: vm.moref.clone(),
            uuid: vm.uuid,
            power: vm.power,
            host_ref: vm.host.clone(),
            host_name,
            host: self.host_state(vm.host.as_ref()),
            drs: drs && movable,
            question: vm.question.clone(),
            interrupted: self.interrupted(vm),
            is_being_cut: self.is_being_cut(vm),
            tools_running: vm.tools_running,
            is_left_to_vcenter: self.settings.vmotion_grace == VmotionGrace::Unlimited
                && has_devices.is_some()
                && !is_pinned,
            is_pinned,
            vmotion,
            maintenance_asked_at: vm
                .host
                .as_ref()
                .and_then(|host| self.vcenter.host(host)?.maintenance_asked_at),
            evacuation_power_off: self.vcenter.is_evacuated_by_power_off(vm),
            other_claimants: Vec::new(),
        }
    }

    /// Whether vCenter can move the VM by vMotion although it has passthrough devices.
    fn vmotion(&self, vm: &Vm) -> Option<Vmotion> {
        let devices = vm.passthrough.as_deref()?;
        let kinds: Option<Vec<VmotionDevice>> = devices.iter().map(Passthrough::vmotion_device).collect();
        Some(Vmotion {
            device: *kinds?.first()?,
            is_under_way: self.is_under_way(vm, Task::is_vmotion),
        })
    }

    /// The failed maintenance of the VM's host, where none came after it.
    fn interrupted(&self, vm: &Vm) -> Option<FailedMaintenance> {
        let host = vm.host.as_ref()?;
        let is_in_service = self.host_state(Some(host)) == HostState::InService;
        let failed = self.vcenter.failed_maintenance(host);
        failed.filter(|_| is_in_service).cloned()
    }

    /// Whether a task that powers the VM off is queued or running.
    fn is_being_cut(&self, vm: &Vm) -> bool {
        self.is_under_way(vm, |task| task.makes() == Some(PowerState::Off))
    }

    /// Whether such a task of the VM is queued or running, and not only left over.
    fn is_under_way(&self, vm: &Vm, is_such: impl Fn(&Task) -> bool) -> bool {
        self.vcenter
            .tasks_of(&vm.moref)
            .any(|task| !task.has_ended() && !task.is_left_over(self.now.wall) && is_such(task))
    }
}

/// Whether both are known and of the same machine.
pub(super) fn is_same_machine(one: Option<VmUuid>, other: Option<VmUuid>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one.same_machine(other))
}

#[cfg(test)]
mod tests;
