//! Which VM a Node is: by UUID in both byte orders, by name only where configured or where no UUID is known, and never
//! on none or on more than one.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;

use super::Inventory;
use crate::cluster::update::Node;
use crate::ids::{NodeName, VmRef};
use crate::maintenance::episode::Record;
use crate::maintenance::observed::{PowerSeen, VmFacts, VmSeen};
use crate::vsphere::update::{Passthrough, Power, Vm, VmKey};

impl Inventory {
    /// What vCenter is asked about a node, whether its object is there or gone in mid-episode.
    pub(super) fn keys_of(&self, name: &NodeName) -> BTreeSet<VmKey> {
        if let Some(node) = self.nodes.get(name) {
            return self.keys(node);
        }
        let gone = self.record_of_gone(name);
        let uuid = gone.as_ref().and_then(Record::episode).and_then(|it| it.vm_uuid);
        gone.map(|_| match uuid {
            Some(uuid) if !self.rules.bind_by_name => VmKey::Uuid(uuid),
            Some(_) | None => VmKey::Name(name.to_string()),
        })
        .into_iter()
        .collect()
    }

    /// What vCenter is asked about `node`.
    pub(super) fn keys(&self, node: &Node) -> BTreeSet<VmKey> {
        let mut keys: BTreeSet<VmKey> = BTreeSet::new();
        for uuid in [node.provider_uuid, node.system_uuid].into_iter().flatten() {
            // The two usually name one machine in two byte orders; one question is enough then.
            let known = keys.iter().any(|key| match key {
                VmKey::Uuid(other) => uuid.same_machine(*other),
                VmKey::Name(_) => false,
            });
            if !known {
                keys.insert(VmKey::Uuid(uuid));
            }
        }
        if self.rules.bind_by_name || keys.is_empty() {
            keys = BTreeSet::from([VmKey::Name(node.name.to_string())]);
        }
        keys
    }

    /// The VM of a node.
    pub(super) fn vm_of(&self, name: &NodeName) -> VmSeen {
        let mut vms: BTreeSet<VmRef> = BTreeSet::new();
        let mut all_answered = true;
        for key in self.keys_of(name) {
            match self.answers.get(&key) {
                Some(answer) => vms.extend(answer.iter().filter(|vm| self.may_run(vm)).cloned()),
                None => all_answered = false,
            }
        }
        if !all_answered {
            return VmSeen::NotLookedUp;
        }
        if vms.len() > 1 {
            return VmSeen::Ambiguous(vms);
        }
        let Some(moref) = vms.into_iter().next() else {
            return VmSeen::Missing;
        };
        let others = self.other_nodes_of(&moref, name);
        if !others.is_empty() {
            return VmSeen::Shared(others);
        }
        match self.vms.get(&moref) {
            Some(vm) => VmSeen::Found(self.facts(vm)),
            // It answers to the key, and its properties have not been told yet, or it is on its way out.
            None => VmSeen::NotLookedUp,
        }
    }

    /// A template can carry the UUID of the VM it was made from, and never runs.
    fn may_run(&self, vm: &VmRef) -> bool {
        !self.vms.get(vm).is_some_and(|vm| vm.template)
    }

    /// The other nodes that are bound to this VM alone.
    fn other_nodes_of(&self, vm: &VmRef, name: &NodeName) -> Vec<NodeName> {
        let runs_alone = |key: &&VmKey| {
            let answer = self.answers.get(*key).into_iter().flatten();
            answer.filter(|vm| self.may_run(vm)).count() == 1
        };
        let keys = self.answers_to.get(vm).into_iter().flatten();
        let askers = keys.filter(runs_alone).filter_map(|key| self.askers.get(key));
        let names: BTreeSet<&NodeName> = askers.flatten().filter(|other| *other != name).collect();
        names.into_iter().cloned().collect()
    }

    /// The nodes to one of whose keys this VM answers, alone or with others.
    pub(super) fn nodes_of(&self, vm: &VmRef) -> impl Iterator<Item = &NodeName> {
        let keys = self.answers_to.get(vm).into_iter().flatten();
        keys.filter_map(|key| self.askers.get(key)).flatten()
    }

    /// Takes which VMs answer to `key`.
    pub(super) fn answer(&mut self, key: VmKey, vms: BTreeSet<VmRef>) {
        for vm in self.answers.get(&key).into_iter().flatten() {
            if let Entry::Occupied(mut keys) = self.answers_to.entry(vm.clone()) {
                keys.get_mut().remove(&key);
                if keys.get().is_empty() {
                    keys.remove();
                }
            }
        }
        for vm in &vms {
            self.answers_to.entry(vm.clone()).or_default().insert(key.clone());
        }
        self.answers.insert(key, vms);
    }

    /// Takes that `name` asks for the keys of `after`, where it asked for those of `before`.
    pub(super) fn asks(&mut self, name: &NodeName, before: Option<&Node>, after: Option<&Node>) {
        let keys = |node: Option<&Node>| node.map(|node| self.keys(node)).unwrap_or_default();
        let (before, after) = (keys(before), keys(after));
        for key in before.difference(&after) {
            if let Some(names) = self.askers.get_mut(key) {
                names.remove(name);
            }
        }
        for key in after.difference(&before) {
            self.askers.entry(key.clone()).or_default().insert(name.clone());
        }
    }

    fn facts(&self, vm: &Vm) -> VmFacts {
        let host = vm.host.as_ref().and_then(|moref| self.hosts.get(moref));
        let on_name = host
            .and_then(|host| host.name.clone())
            .or_else(|| vm.host.as_ref().map(ToString::to_string))
            .unwrap_or_else(|| "(no host)".to_owned());
        let drs = host
            .and_then(|host| host.compute.as_ref())
            .and_then(|compute| self.computes.get(compute)?.drs.as_ref())
            .is_some_and(|drs| drs.fully_automated_for(&vm.moref));
        // A device at a fixed address is on its own host only: DRS cannot place such a VM anywhere else.
        let movable = vm.passthrough.as_ref().is_some_and(|devices| {
            !devices
                .iter()
                .any(|device| matches!(device, Passthrough::Static { .. }))
        });
        VmFacts {
            moref: vm.moref.clone(),
            uuid: vm.uuid,
            power: match vm.power {
                None => PowerSeen::Unknown,
                Some(Power::On) => PowerSeen::On,
                Some(Power::Off) => PowerSeen::Off,
                Some(Power::Suspended) => PowerSeen::Suspended,
            },
            on: vm.host.clone(),
            on_name,
            host: self.host_state(vm.host.as_ref()),
            drs: drs && movable,
            question: vm.question.clone(),
        }
    }
}
