//! Nodes with an open episode that the label selector does not match any more. Their episodes are gone on with; no other begins.

use std::collections::BTreeSet;

use super::{Inventory, News};
use crate::cluster::update::{Node, StrandedNode};
use crate::ids::{NodeName, NodeUid};
use crate::maintenance::episode::Record;

impl Inventory {
    /// The nodes to be watched by name: those whose episode is open and whose Node the watch of selected Nodes does not tell of.
    pub fn to_follow(&self) -> BTreeSet<NodeName> {
        let gone = self
            .local
            .iter()
            .filter(|(_, local)| local.record_of_gone.is_some())
            .map(|(name, _)| name.clone());
        let stranded = self
            .stranded
            .iter()
            .filter(|node| node.is_ours && !node.is_selected);
        let stranded = stranded
            .map(|node| node.name.clone())
            .filter(|name| !self.nodes.contains_key(name));
        let known = self.followed.iter().cloned();
        gone.chain(stranded)
            .chain(known)
            .chain(self.only_copied())
            .collect()
    }

    /// Takes a Node that was looked for by name.
    pub(super) fn apply_followed(&mut self, node: Node) {
        let is_selected = self.nodes.contains_key(&node.name) && !self.followed.contains(&node.name);
        if !is_selected {
            self.followed.insert(node.name.clone());
            self.apply_node(node);
        }
    }

    /// Takes that there is no such Node: of this UID, or of the name at all.
    pub(super) fn lose_followed(&mut self, name: &NodeName, uid: Option<&NodeUid>) {
        let is_it = |node: &Node| uid.is_none_or(|uid| node.uid == *uid);
        if self.followed.contains(name) && self.nodes.get(name).is_some_and(is_it) {
            self.followed.remove(name);
            self.forget_node(name);
        }
        if uid.is_none() {
            self.stranded.retain(|node| node.name != *name);
        }
    }

    /// Takes which episodes a look through all Nodes found.
    pub(super) fn apply_scan(&mut self, stranded: Vec<StrandedNode>) {
        self.stranded = stranded;
    }

    /// Lets go of the followed Nodes on which no episode of this release is open any more, nor may have to be made up for.
    pub(super) fn let_go(&mut self) {
        let is_over = |name: &&NodeName| {
            let on_node = self.local.get(*name).and_then(|local| local.on_node.as_ref());
            match on_node {
                Some(Record::InService) => {
                    let node = self.nodes.get(*name);
                    self.copy(name).is_none() && !node.is_some_and(|node| self.may_be_stray(node))
                }
                Some(Record::Episode(episode)) => !self.rules.releases.names(&episode.release),
                Some(Record::Python(_) | Record::Unreadable { .. }) | None => false,
            }
        };
        let over: Vec<NodeName> = self.followed.iter().filter(is_over).cloned().collect();
        for name in over {
            self.news = Some(News::OfAll);
            self.followed.remove(&name);
            self.stranded.retain(|node| node.name != name);
            self.forget_node(&name);
        }
    }

    /// Episodes that stand under another annotation prefix than ours: nobody here goes on with them.
    pub fn under_other_prefixes(&self) -> impl Iterator<Item = &StrandedNode> {
        self.stranded.iter().filter(|node| !node.is_ours)
    }
}
