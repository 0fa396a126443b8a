//! Which VMs vCenter found for which key, and which lookups have to be repeated: a VM may have been cloned since its node was bound,
//! and then neither VM may be touched.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Inventory;
use crate::facts::kubernetes::NodeFacts;
use crate::facts::vsphere::{LookupUrgency, VmKey};
use crate::ids::{NodeName, VmRef, VmUuid};
use crate::maintenance::episode::{Phase, Record};

/// The lookups of VMs.
#[derive(Clone, Debug, Default)]
pub(super) struct LookupStore {
    /// The keys of all nodes, which are looked up.
    wanted: Arc<BTreeSet<VmKey>>,
    answers: BTreeMap<VmKey, BTreeSet<VmRef>>,
    /// The keys that match a VM outside the scope.
    out_of_scope: BTreeSet<VmKey>,
    /// The keys that match each VM, alone or with others.
    keys_by_vm: BTreeMap<VmRef, BTreeSet<VmKey>>,
    /// The nodes that are looked up by each key.
    nodes_by_key: BTreeMap<VmKey, BTreeSet<NodeName>>,
    urgent: BTreeMap<VmKey, UrgentLookup>,
}

/// A key for which an outdated lookup could do harm.
#[derive(Clone, Debug)]
struct UrgentLookup {
    urgency: LookupUrgency,
    /// A result has arrived since.
    is_answered: bool,
}

impl LookupStore {
    pub(super) fn wanted(&self) -> &Arc<BTreeSet<VmKey>> {
        &self.wanted
    }

    /// Sets the keys to be looked up. Returns whether they are others. The results of the rest are forgotten: otherwise a Node that
    /// keeps changing its UUID would fill the memory.
    pub(super) fn want(&mut self, keys: BTreeSet<VmKey>) -> bool {
        if *self.wanted == keys {
            return false;
        }
        let answered = self.answers.keys();
        let unused: Vec<VmKey> = answered.filter(|key| !keys.contains(key)).cloned().collect();
        unused.iter().for_each(|key| self.forget(key));
        self.wanted = Arc::new(keys);
        true
    }

    pub(super) fn answer(&self, key: &VmKey) -> Option<&BTreeSet<VmRef>> {
        self.answers.get(key)
    }

    pub(super) fn is_out_of_scope(&self, key: &VmKey) -> bool {
        self.out_of_scope.contains(key)
    }

    pub(super) fn set_out_of_scope(&mut self, keys: BTreeSet<VmKey>) {
        self.out_of_scope = keys;
    }

    /// The keys that match a VM, alone or with others.
    pub(super) fn keys_of(&self, vm: &VmRef) -> Option<&BTreeSet<VmKey>> {
        self.keys_by_vm.get(vm)
    }

    /// The nodes that are looked up by a key that matches a VM.
    pub(super) fn nodes_of(&self, vm: &VmRef) -> impl Iterator<Item = &NodeName> {
        let keys = self.keys_of(vm).into_iter().flatten();
        keys.filter_map(|key| self.nodes_by_key.get(key)).flatten()
    }

    /// Whether an answer changes something. The same again matters to a node that waits for a current lookup.
    pub(super) fn is_change(&self, key: &VmKey, vms: &BTreeSet<VmRef>) -> bool {
        self.answers.get(key) != Some(vms) || self.urgent.contains_key(key)
    }

    /// Records the VMs that match `key`.
    pub(super) fn record(&mut self, key: VmKey, vms: BTreeSet<VmRef>) {
        if let Some(lookup) = self.urgent.get_mut(&key) {
            lookup.is_answered = true;
        }
        self.forget(&key);
        for vm in &vms {
            self.keys_by_vm.entry(vm.clone()).or_default().insert(key.clone());
        }
        self.answers.insert(key, vms);
    }

    fn forget(&mut self, key: &VmKey) {
        for vm in self.answers.remove(key).into_iter().flatten() {
            if let Entry::Occupied(mut keys) = self.keys_by_vm.entry(vm) {
                keys.get_mut().remove(key);
                if keys.get().is_empty() {
                    keys.remove();
                }
            }
        }
    }

    /// Whether a key of this machine has no answer yet.
    pub(super) fn is_awaited(&self, machine: VmUuid) -> bool {
        self.wanted.iter().any(|key| match key {
            VmKey::Uuid(uuid) => uuid.same_machine(machine) && !self.answers.contains_key(key),
            VmKey::Name(_) => false,
        })
    }

    /// Updates the index of nodes: `name` now has the keys `after` instead of those `before`.
    pub(super) fn index(&mut self, name: &NodeName, before: &BTreeSet<VmKey>, after: &BTreeSet<VmKey>) {
        for key in before.difference(after) {
            if let Entry::Occupied(mut names) = self.nodes_by_key.entry(key.clone()) {
                names.get_mut().remove(name);
                if names.get().is_empty() {
                    names.remove();
                }
            }
        }
        for key in after.difference(before) {
            self.nodes_by_key
                .entry(key.clone())
                .or_default()
                .insert(name.clone());
        }
    }

    fn set_urgent(&mut self, urgent: &BTreeMap<VmKey, LookupUrgency>) {
        self.urgent
            .retain(|key, lookup| urgent.get(key) == Some(&lookup.urgency));
        for (key, urgency) in urgent {
            self.urgent.entry(key.clone()).or_insert(UrgentLookup {
                urgency: *urgency,
                is_answered: false,
            });
        }
    }

    /// Whether `key` was looked up again since the power of its VM may be cut.
    fn is_fresh(&self, key: &VmKey) -> bool {
        let lookup = self.urgent.get(key);
        lookup.is_some_and(|lookup| lookup.urgency == LookupUrgency::PowerCut && lookup.is_answered)
    }
}

impl Inventory {
    /// Updates and returns the urgent keys.
    pub(super) fn urgent(&mut self) -> BTreeMap<VmKey, LookupUrgency> {
        let mut urgent = BTreeMap::new();
        for node in self.nodes.all() {
            let Some(urgency) = self.urgency_of(node) else {
                continue;
            };
            for key in self.all_keys_of(&node.name) {
                let most = urgent.entry(key).or_insert(urgency);
                *most = urgency.max(*most);
            }
        }
        // A VM that an episode keeps off may be cloned, also while its Node is deleted.
        for name in self.only_copied() {
            for key in self.all_keys_of(&name) {
                urgent.entry(key).or_insert(LookupUrgency::Maintenance);
            }
        }
        self.lookups.set_urgent(&urgent);
        urgent
    }

    fn urgency_of(&self, node: &NodeFacts) -> Option<LookupUrgency> {
        let record = self.record(node);
        if let Some(Phase::ShuttingDown(_)) = record.phase().map(Phase::at_work) {
            return Some(LookupUrgency::PowerCut);
        }
        let is_vm_leaving = |vm: &VmRef| {
            let vm = self.vcenter.vm(vm);
            vm.is_some_and(|vm| self.host_state(vm.host.as_ref()).is_leaving())
        };
        let is_leaving = || {
            let keys = self.all_keys_of(&node.name);
            let mut vms = keys.iter().filter_map(|key| self.lookups.answer(key)).flatten();
            vms.any(is_vm_leaving)
        };
        (record != Record::InService || is_leaving()).then_some(LookupUrgency::Maintenance)
    }

    /// Whether all keys of the node were looked up again since its drain ended, as is required before its power is cut.
    pub(super) fn is_identity_fresh(&self, node: &NodeFacts) -> bool {
        let keys = self.all_keys_of(&node.name);
        keys.iter().all(|key| self.lookups.is_fresh(key))
    }
}
