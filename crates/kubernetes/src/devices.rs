//! The GPUs in ResourceSlices (`resource.k8s.io/v1`, Dynamic Resource Allocation). Pure.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};

use super::facts::GpuResources;
use crate::device_slice::DeviceSlice;
use crate::ids::NodeName;

/// The maximum number of slices that are kept of one Node. One slice has up to 128 devices.
const PER_NODE_MAX: usize = 64;

/// The ResourceSlices with GPUs, by their names.
#[derive(Debug)]
pub struct SliceIndex {
    gpus: GpuResources,
    slices: BTreeMap<String, Slice>,
    by_node: BTreeMap<NodeName, BTreeSet<String>>,
    /// During a list: the slices that it has not reported yet.
    unlisted: BTreeSet<String>,
}

#[derive(Debug)]
struct Slice {
    node: NodeName,
    pool: String,
    generation: i64,
    slice: DeviceSlice,
}

impl SliceIndex {
    pub fn new(gpus: GpuResources) -> Self {
        Self {
            gpus,
            slices: BTreeMap::new(),
            by_node: BTreeMap::new(),
            unlisted: BTreeSet::new(),
        }
    }

    pub fn list_begins(&mut self) {
        self.unlisted = self.slices.keys().cloned().collect();
    }

    /// A list is complete. Returns the Nodes with slices that are gone.
    pub fn listed(&mut self) -> BTreeSet<NodeName> {
        let gone = std::mem::take(&mut self.unlisted);
        gone.iter().filter_map(|name| self.remove(name)).collect()
    }

    /// Returns the Node with this slice, if it has GPUs of one Node. Others are shared by Nodes and do not go with their VM.
    pub fn seen(&mut self, object: &ResourceSlice) -> Option<NodeName> {
        let name = object.metadata.name.as_deref()?;
        self.unlisted.remove(name);
        let spec = &object.spec;
        if !self.gpus.matches(&spec.driver) {
            return None;
        }
        let node = NodeName::new(spec.node_name.clone()?);
        let names = self.by_node.entry(node.clone()).or_default();
        if names.len() >= PER_NODE_MAX && !names.contains(name) {
            return None;
        }
        names.insert(name.to_owned());
        let created = object.metadata.creation_timestamp.as_ref();
        let devices = spec.devices.iter().flatten().filter(|device| is_usable(device));
        let slice = Slice {
            node: node.clone(),
            pool: spec.pool.name.clone(),
            generation: spec.pool.generation,
            slice: DeviceSlice {
                driver: spec.driver.clone(),
                created_at: created.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
                devices: devices.count() as u64,
            },
        };
        self.slices.insert(name.to_owned(), slice);
        Some(node)
    }

    /// A slice was deleted. Returns its Node.
    pub fn remove(&mut self, name: &str) -> Option<NodeName> {
        let Slice { node, .. } = self.slices.remove(name)?;
        if let Entry::Occupied(mut names) = self.by_node.entry(node.clone()) {
            names.get_mut().remove(name);
            if names.get().is_empty() {
                names.remove();
            }
        }
        Some(node)
    }

    /// The slices of a Node. A driver that changes its devices writes a new generation of the pool, and deletes the one before
    /// afterwards, so only the newest generation counts.
    pub fn slices_of(&self, node: &NodeName) -> Arc<[DeviceSlice]> {
        let names = self.by_node.get(node).into_iter().flatten();
        let slices: Vec<&Slice> = names.filter_map(|name| self.slices.get(name)).collect();
        let mut newest: BTreeMap<(&str, &str), i64> = BTreeMap::new();
        for slice in &slices {
            let generation = newest.entry(slice.pool_key()).or_insert(slice.generation);
            *generation = slice.generation.max(*generation);
        }
        let is_newest = |slice: &&&Slice| newest.get(&slice.pool_key()) == Some(&slice.generation);
        let current = slices.iter().filter(is_newest);
        current.map(|slice| slice.slice.clone()).collect()
    }

    /// The Nodes with slices.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.by_node.keys()
    }
}

impl Slice {
    fn pool_key(&self) -> (&str, &str) {
        (&self.slice.driver, &self.pool)
    }
}

/// Whether pods without a toleration for it may use the device. A driver taints a device that is unhealthy.
fn is_usable(device: &Device) -> bool {
    let mut taints = device.taints.iter().flatten();
    !taints.any(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
}

#[cfg(test)]
mod tests;
