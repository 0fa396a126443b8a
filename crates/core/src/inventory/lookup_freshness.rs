//! Which lookups have to be repeated: a VM may have been cloned since its node was bound, and then neither VM may be touched.

use std::collections::BTreeMap;

use super::Inventory;
use crate::facts::kubernetes::NodeFacts;
use crate::facts::vsphere::{LookupUrgency, VmKey};
use crate::ids::VmRef;
use crate::maintenance::episode::{Phase, Record};

/// A key for which an outdated lookup could do harm.
#[derive(Clone, Debug)]
pub(super) struct UrgentLookup {
    urgency: LookupUrgency,
    /// A result has arrived since.
    pub(super) is_answered: bool,
}

impl Inventory {
    /// Updates and returns the urgent keys.
    pub(super) fn urgent(&mut self) -> BTreeMap<VmKey, LookupUrgency> {
        let mut urgent = BTreeMap::new();
        for node in self.nodes.values() {
            let Some(urgency) = self.urgency_of(node) else {
                continue;
            };
            for key in self.all_keys_of(&node.name) {
                let most = urgent.entry(key).or_insert(urgency);
                *most = urgency.max(*most);
            }
        }
        self.urgent_lookups
            .retain(|key, lookup| urgent.get(key) == Some(&lookup.urgency));
        for (key, urgency) in &urgent {
            self.urgent_lookups.entry(key.clone()).or_insert(UrgentLookup {
                urgency: *urgency,
                is_answered: false,
            });
        }
        urgent
    }

    fn urgency_of(&self, node: &NodeFacts) -> Option<LookupUrgency> {
        let record = self.record(node);
        if let Some(Phase::ShuttingDown(_)) = record.phase().map(Phase::at_work) {
            return Some(LookupUrgency::PowerCut);
        }
        let is_vm_leaving = |vm: &VmRef| {
            let vm = self.vms.get(vm);
            vm.is_some_and(|vm| self.host_state(vm.host.as_ref()).is_leaving())
        };
        let is_leaving = || {
            let keys = self.all_keys_of(&node.name);
            let mut vms = keys
                .iter()
                .filter_map(|key| self.lookup_answers.get(key))
                .flatten();
            vms.any(is_vm_leaving)
        };
        (record != Record::InService || is_leaving()).then_some(LookupUrgency::Maintenance)
    }

    /// Whether all keys of the node were looked up again since its drain ended, as is required before its power is cut.
    pub(super) fn is_identity_fresh(&self, node: &NodeFacts) -> bool {
        let keys = self.all_keys_of(&node.name);
        keys.iter().all(|key| {
            self.urgent_lookups
                .get(key)
                .is_some_and(|lookup| lookup.urgency == LookupUrgency::PowerCut && lookup.is_answered)
        })
    }
}
