//! The GPUs that nodes have in ResourceSlices.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::Inventory;
use crate::facts::device_slice::{self, DeviceSlice};
use crate::facts::kubernetes::NodeFacts;
use crate::ids::NodeName;

/// The ResourceSlices by node.
#[derive(Clone, Debug, Default)]
pub(super) struct DeviceSlices {
    by_node: BTreeMap<NodeName, Arc<[DeviceSlice]>>,
    /// The first list is still awaited. An episode that began without it would not wait for these GPUs.
    pub(super) are_awaited: bool,
}

impl DeviceSlices {
    pub(super) fn awaited(are_awaited: bool) -> Self {
        Self {
            are_awaited,
            ..Self::default()
        }
    }

    pub(super) fn of(&self, node: &NodeName) -> &[DeviceSlice] {
        self.by_node.get(node).map_or(&[], |slices| slices)
    }

    fn set(&mut self, node: &NodeName, slices: Arc<[DeviceSlice]>) {
        if slices.is_empty() {
            self.by_node.remove(node);
        } else {
            self.by_node.insert(node.clone(), slices);
        }
    }
}

impl Inventory {
    pub(super) fn apply_devices(&mut self, node: &NodeName, slices: Arc<[DeviceSlice]>) {
        self.device_slices.set(node, slices);
        if let Some(facts) = self.nodes.get(node) {
            let gpus = self.gpus(facts, None);
            let local = self.node_states.entry(node.clone()).or_default();
            local.gpus.note(&gpus, self.now.monotonic);
        }
    }

    /// The GPUs of a Node by resource and by driver. With `after`, only ResourceSlices that were created later count.
    pub(super) fn gpus(&self, node: &NodeFacts, after: Option<Timestamp>) -> Arc<BTreeMap<String, u64>> {
        let devices = device_slice::counts(self.device_slices.of(&node.name), after);
        if devices.is_empty() {
            return Arc::clone(&node.gpus);
        }
        let mut gpus = BTreeMap::clone(&node.gpus);
        gpus.extend(devices);
        Arc::new(gpus)
    }
}
