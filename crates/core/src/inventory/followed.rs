//! Nodes with an open episode that the label selector no longer matches. Their episodes continue; no other begins.

use std::collections::BTreeSet;

use super::Inventory;
use crate::facts::kubernetes::{NodeFacts, StrandedNode};
use crate::ids::{NodeName, NodeUid};
use crate::maintenance::episode::Record;

impl Inventory {
    /// The nodes to watch by name: those with an open episode whose Node is not in the watch of selected Nodes. Nodes that need not be
    /// followed any more are forgotten.
    pub(crate) fn nodes_to_follow(&mut self) -> BTreeSet<NodeName> {
        self.forget_followed();
        self.forget_records_ended_by_hand();
        let gone = self
            .node_states
            .iter()
            .filter(|(_, local)| local.record_of_gone.is_some())
            .map(|(name, _)| name.clone());
        let stranded = self.nodes.stranded().filter(|node| !node.is_selected);
        let stranded = stranded
            .map(|node| node.name.clone())
            .filter(|name| !self.nodes.has(name));
        let known = self.nodes.followed().cloned();
        gone.chain(stranded)
            .chain(known)
            .chain(self.only_copied())
            .collect()
    }

    /// Applies a Node that is watched by name.
    pub(super) fn apply_followed(&mut self, node: NodeFacts) {
        let is_selected = self.nodes.has(&node.name) && !self.nodes.is_followed(&node.name);
        if !is_selected {
            self.nodes.follow(&node.name);
            self.apply_node(node);
        }
    }

    /// Applies that there is no such Node: with this UID, or with this name at all.
    pub(super) fn lose_followed(&mut self, name: &NodeName, uid: Option<&NodeUid>) {
        let is_same = |node: &NodeFacts| uid.is_none_or(|uid| node.uid == *uid);
        if self.nodes.is_followed(name) && self.nodes.node(name).is_some_and(is_same) {
            self.nodes.unfollow(name);
            self.forget_node(name);
        }
        if uid.is_none() {
            self.nodes.forget_stranded(name);
        }
    }

    /// Applies the episodes that a scan of all Nodes found.
    pub(super) fn apply_scan(&mut self, stranded: Vec<StrandedNode>) {
        self.nodes.set_stranded(stranded);
    }

    /// Forgets the followed Nodes without an open episode of this release, unless a late power-off may still stop their VM.
    fn forget_followed(&mut self) {
        let is_over = |name: &&NodeName| match self.record_on_node(name) {
            Some(Record::InService) => {
                let node = self.nodes.node(name);
                self.copy(name).is_none() && !node.is_some_and(|node| self.may_power_off_late(node))
            }
            Some(Record::Episode(episode)) => !self.settings.releases.names(&episode.release),
            // Its release is unknown.
            Some(Record::Unreadable { .. }) => self.own_copy(name).is_none(),
            Some(Record::Python(_)) | None => false,
        };
        let over: Vec<NodeName> = self.nodes.followed().filter(is_over).cloned().collect();
        for name in over {
            self.is_changed = true;
            self.nodes.unfollow(&name);
            self.nodes.forget_stranded(&name);
            self.forget_node(&name);
            self.node_states.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::kubernetes::{self, NodeAnnotations};
    use crate::inventory::Fact;
    use crate::inventory::tests::{copied, in_episode, inventory_with, name, node, snapshot_of, trio};
    use crate::maintenance::episode::Phase;

    const OURS: &str = "haulout/haulout";

    fn found(n: usize, is_selected: bool) -> StrandedNode {
        StrandedNode {
            name: name(n),
            uid: NodeUid::new(format!("uid-{n}")),
            is_selected,
        }
    }

    fn scanned(stranded: Vec<StrandedNode>) -> Fact {
        Fact::Kubernetes(kubernetes::KubernetesUpdate::Scanned { stranded })
    }

    fn followed(node: NodeFacts) -> Fact {
        Fact::Kubernetes(kubernetes::KubernetesUpdate::Followed(Box::new(node)))
    }

    #[test]
    fn a_node_with_an_episode_is_followed_until_its_end() {
        let mut inventory = inventory_with([scanned(vec![found(1, false), found(2, true)])]);
        assert_eq!(inventory.nodes_to_follow(), [name(1)].into());
        inventory.apply(followed(in_episode(1, Phase::AwaitingHost, OURS)));
        assert_eq!(snapshot_of(&mut inventory, 1).record.phase_name(), "AwaitingHost");
        assert_eq!(inventory.nodes_to_follow(), [name(1)].into());
        inventory.apply(followed(NodeFacts {
            resource_version: 11,
            ..node(1)
        }));
        assert!(inventory.nodes_to_follow().is_empty());
        assert!(inventory.all_snapshots().is_empty());
    }

    #[test]
    fn an_episode_of_another_release_is_not_followed() {
        for release in ["other/other", ""] {
            let theirs = in_episode(1, Phase::AwaitingHost, release);
            let mut inventory = inventory_with([scanned(vec![found(1, false)]), followed(theirs.clone())]);
            assert!(inventory.nodes_to_follow().is_empty(), "{release:?}");
            assert!(inventory.all_snapshots().is_empty(), "{release:?}");
            inventory.apply(copied(theirs));
            assert!(inventory.nodes_to_follow().is_empty(), "{release:?}");
            assert!(inventory.all_snapshots().is_empty(), "{release:?}");
        }
    }

    #[test]
    fn a_record_that_cannot_be_read_is_followed_only_with_a_copy_of_ours() {
        let of = in_episode(1, Phase::AwaitingHost, OURS);
        let mut unreadable = of.clone();
        unreadable.annotations.episode = Some("nonsense".to_owned());
        let mut inventory = inventory_with([scanned(vec![found(1, false)]), followed(unreadable.clone())]);
        assert!(inventory.nodes_to_follow().is_empty());
        let mut inventory = inventory_with([copied(of), followed(unreadable)]);
        assert_eq!(inventory.nodes_to_follow(), [name(1)].into());
    }

    #[test]
    fn node_of_an_own_copy_is_followed() {
        let mut inventory = inventory_with([copied(in_episode(1, Phase::AwaitingHost, OURS))]);
        assert_eq!(inventory.nodes_to_follow(), [name(1)].into());
        assert_eq!(snapshot_of(&mut inventory, 1).record.phase_name(), "AwaitingHost");
        assert_eq!(snapshot_of(&mut inventory, 1).observed.node, None);
    }

    #[test]
    fn deleted_node_is_followed_while_its_episode_is_open() {
        let of = in_episode(1, Phase::AwaitingHost, OURS);
        let mut inventory = inventory_with([scanned(vec![found(1, false)]), followed(of.clone())]);
        inventory.apply(Fact::Kubernetes(kubernetes::KubernetesUpdate::FollowedAbsent {
            name: name(1),
        }));
        assert_eq!(snapshot_of(&mut inventory, 1).observed.node, None);
        assert_eq!(inventory.nodes_to_follow(), [name(1)].into());
        // The deletion of another Node of that name changes nothing.
        inventory.apply(Fact::Kubernetes(kubernetes::KubernetesUpdate::FollowedGone {
            name: name(1),
            uid: NodeUid::new("uid-9"),
        }));
        assert_eq!(inventory.nodes_to_follow(), [name(1)].into());
    }

    #[test]
    fn no_episode_begins_on_a_node_that_is_only_followed() {
        let mut inventory = inventory_with(trio(1));
        assert_eq!(inventory.all_snapshots().len(), 1);
        inventory.apply(followed(NodeFacts {
            annotations: NodeAnnotations::default(),
            ..node(2)
        }));
        assert_eq!(inventory.all_snapshots().len(), 1);
    }

    #[test]
    fn a_node_whose_episode_is_removed_leaves_the_snapshots_at_once() {
        let of = in_episode(1, Phase::AwaitingHost, OURS);
        let mut inventory =
            inventory_with([scanned(vec![found(1, false)]), followed(of.clone()), copied(of)]);
        assert_eq!(inventory.all_snapshots().len(), 1);
        inventory.apply(followed(NodeFacts {
            resource_version: 11,
            annotations: NodeAnnotations::default(),
            ..node(1)
        }));
        let snapshots = inventory.build_snapshots();
        assert!(
            !snapshots.contains_key(&name(1)),
            "its actor would keep the old snapshot"
        );
    }
}
