//! Which answers have to be fresh: a VM may have been cloned since its node was bound, and of two VMs neither is touched.

use std::collections::BTreeMap;

use super::{Dirty, Inventory};
use crate::facts::kubernetes::NodeFacts;
use crate::facts::vsphere::{LookupUrgency, VmKey};
use crate::ids::VmRef;
use crate::maintenance::episode::{Phase, Record};

/// A key for which an old answer could do harm.
#[derive(Debug)]
pub(super) struct UrgentLookup {
    how: LookupUrgency,
    /// An answer came in since.
    pub(super) is_answered: bool,
}

impl Inventory {
    /// Notes which keys are pressing by now, and gives them, so that vCenter is asked for them.
    pub(super) fn urgent(&mut self) -> BTreeMap<VmKey, LookupUrgency> {
        if matches!(self.dirty, Some(Dirty::Only(_))) {
            // None of it moves a node to another phase or its VM to another host, and what presses of the others stands.
            return self
                .urgent_lookups
                .iter()
                .map(|(key, pressed)| (key.clone(), pressed.how))
                .collect();
        }
        let mut pressing = BTreeMap::new();
        // For a node at rest nothing is.
        for node in self.dirty_nodes().iter().filter_map(|name| self.nodes.get(name)) {
            let Some(how) = self.urgency_of(node) else {
                continue;
            };
            for key in self.keys(node) {
                let most = pressing.entry(key).or_insert(how);
                *most = how.max(*most);
            }
        }
        self.urgent_lookups
            .retain(|key, pressed| pressing.get(key) == Some(&pressed.how));
        for (key, how) in &pressing {
            self.urgent_lookups.entry(key.clone()).or_insert(UrgentLookup {
                how: *how,
                is_answered: false,
            });
        }
        pressing
    }

    fn urgency_of(&self, node: &NodeFacts) -> Option<LookupUrgency> {
        let record = self.record(node);
        if let Some(Phase::ShuttingDown(_)) = record.phase().map(Phase::at_work) {
            return Some(LookupUrgency::PowerCut);
        }
        let is_on_its_way = |vm: &VmRef| {
            let vm = self.vms.get(vm);
            vm.is_some_and(|vm| self.host_state(vm.host.as_ref()).is_leaving())
        };
        let is_leaving = || {
            let keys = self.keys(node);
            let mut vms = keys
                .iter()
                .filter_map(|key| self.lookup_answers.get(key))
                .flatten();
            vms.any(is_on_its_way)
        };
        (record != Record::InService || is_leaving()).then_some(LookupUrgency::Maintenance)
    }

    /// Whether the node's power may be cut as far as the answers to its keys go: each was asked for since its drain has ended.
    pub(super) fn is_identity_fresh(&self, node: &NodeFacts) -> bool {
        let keys = self.keys(node);
        keys.iter().all(|key| {
            self.urgent_lookups
                .get(key)
                .is_some_and(|pressed| pressed.how == LookupUrgency::PowerCut && pressed.is_answered)
        })
    }
}
