//! What Kubernetes reports of Nodes and their ResourceSlices.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::{Inventory, Source};
use crate::facts::device_slice::{self, DeviceSlice};
use crate::facts::kubernetes::{NodeFacts, StrandedNode};
use crate::ids::NodeName;

/// The Nodes.
#[derive(Clone, Debug)]
pub(super) struct NodeStore {
    source: Source<NodeName>,
    nodes: BTreeMap<NodeName, NodeFacts>,
    /// Those of them that the label selector does not match.
    followed: BTreeSet<NodeName>,
    /// The episodes that the latest scan of all Nodes found.
    stranded: Vec<StrandedNode>,
    slices: BTreeMap<NodeName, Arc<[DeviceSlice]>>,
    /// The first list of ResourceSlices is still awaited. An episode that began without it would not wait for these GPUs.
    are_slices_awaited: bool,
}

impl NodeStore {
    pub(super) fn new(are_slices_awaited: bool) -> Self {
        Self {
            source: Source::disconnected("the kube-apiserver"),
            nodes: BTreeMap::new(),
            followed: BTreeSet::new(),
            stranded: Vec::new(),
            slices: BTreeMap::new(),
            are_slices_awaited,
        }
    }

    /// Why the watch of Nodes is disconnected, if it is.
    pub(super) fn disconnected(&self) -> Option<&str> {
        self.source.disconnected.as_deref()
    }

    pub(super) fn node(&self, name: &NodeName) -> Option<&NodeFacts> {
        self.nodes.get(name)
    }

    pub(super) fn has(&self, name: &NodeName) -> bool {
        self.nodes.contains_key(name)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &NodeFacts> {
        self.nodes.values()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.keys()
    }

    /// The list begins again.
    pub(super) fn reset(&mut self) {
        self.source.disconnected = Some("the Nodes are being listed again".to_owned());
        self.source.seen.clear();
    }

    /// The watch broke.
    pub(super) fn lose(&mut self, why: String) {
        self.source.disconnected = Some(why);
    }

    /// The list is complete. Returns the known Nodes that are not in it, where a list was awaited.
    pub(super) fn settle(&mut self) -> Vec<NodeName> {
        if self.source.disconnected.take().is_none() {
            return Vec::new();
        }
        let seen = std::mem::take(&mut self.source.seen);
        let names = self.nodes.keys();
        let gone = names.filter(|name| !seen.contains(name) && !self.is_followed(name));
        gone.cloned().collect()
    }

    /// Whether `node` is older than the known version. The watch may deliver an older version than the reply to our own PATCH. Versions
    /// are compared only within one list and its watch, because a restore of etcd sets them back.
    pub(super) fn is_older(&self, node: &NodeFacts) -> bool {
        let is_of_this_list = self.source.seen.contains(&node.name) || self.source.disconnected.is_none();
        let known = self.nodes.get(&node.name).filter(|known| known.uid == node.uid);
        is_of_this_list && known.is_some_and(|known| known.resource_version > node.resource_version)
    }

    pub(super) fn insert(&mut self, node: NodeFacts) {
        if self.source.disconnected.is_some() {
            self.source.seen.insert(node.name.clone());
        }
        self.nodes.insert(node.name.clone(), node);
    }

    pub(super) fn remove(&mut self, name: &NodeName) -> Option<NodeFacts> {
        self.nodes.remove(name)
    }

    /// Takes any version of a Node for newer than the known one, if `is_meant` is true of that.
    pub(super) fn forget_version(&mut self, name: &NodeName, is_meant: impl Fn(&NodeFacts) -> bool) {
        if let Some(known) = self.nodes.get_mut(name).filter(|known| is_meant(known)) {
            known.resource_version = 0;
        }
    }

    /// Whether this Node is known although the label selector does not match it.
    pub(super) fn is_followed(&self, name: &NodeName) -> bool {
        self.followed.contains(name)
    }

    pub(super) fn followed(&self) -> impl Iterator<Item = &NodeName> {
        self.followed.iter()
    }

    pub(super) fn follow(&mut self, name: &NodeName) {
        self.followed.insert(name.clone());
    }

    pub(super) fn unfollow(&mut self, name: &NodeName) {
        self.followed.remove(name);
    }

    pub(super) fn stranded(&self) -> impl Iterator<Item = &StrandedNode> {
        self.stranded.iter()
    }

    pub(super) fn set_stranded(&mut self, stranded: Vec<StrandedNode>) {
        self.stranded = stranded;
    }

    pub(super) fn forget_stranded(&mut self, name: &NodeName) {
        self.stranded.retain(|node| node.name != *name);
    }

    pub(super) fn slices_of(&self, node: &NodeName) -> &[DeviceSlice] {
        self.slices.get(node).map_or(&[], |slices| slices)
    }

    fn set_slices(&mut self, node: &NodeName, slices: Arc<[DeviceSlice]>) {
        if slices.is_empty() {
            self.slices.remove(node);
        } else {
            self.slices.insert(node.clone(), slices);
        }
    }

    pub(super) fn are_slices_awaited(&self) -> bool {
        self.are_slices_awaited
    }

    pub(super) fn end_wait_for_slices(&mut self) {
        self.are_slices_awaited = false;
    }

    /// The GPUs of a Node by resource and by driver. With `after`, only ResourceSlices that were created later count.
    pub(super) fn gpus(&self, node: &NodeFacts, after: Option<Timestamp>) -> Arc<BTreeMap<String, u64>> {
        let devices = device_slice::counts(self.slices_of(&node.name), after);
        if devices.is_empty() {
            return Arc::clone(&node.gpus);
        }
        let mut gpus = BTreeMap::clone(&node.gpus);
        gpus.extend(devices);
        Arc::new(gpus)
    }
}

impl Inventory {
    pub(super) fn apply_devices(&mut self, node: &NodeName, slices: Arc<[DeviceSlice]>) {
        self.nodes.set_slices(node, slices);
        if let Some(facts) = self.nodes.node(node) {
            let gpus = self.nodes.gpus(facts, None);
            let local = self.node_states.entry(node.clone()).or_default();
            local.gpus.record_gpus(&gpus, self.now.monotonic);
        }
    }
}
