//! Which facts change nothing. They arrive so often that no snapshot may be built for them: heartbeats of kubelets, and what a source
//! reports again.

use super::{Fact, Inventory};
use crate::facts::kubernetes::{KubernetesUpdate, NodeFacts, ReadyCondition};
use crate::facts::vsphere::VsphereUpdate;
use crate::maintenance::effect_report::EffectResult;

impl Inventory {
    /// Whether a fact that is about to be applied can change a snapshot.
    pub(super) fn is_change(&self, fact: &Fact) -> bool {
        match fact {
            Fact::Vsphere(update) => self.is_vsphere_change(update),
            Fact::Kubernetes(update) => self.is_kubernetes_change(update),
            // Evictions are only displayed.
            Fact::Effect(report) => !matches!(report.found, EffectResult::Evictions(_)),
            Fact::Leadership(_) => true,
        }
    }

    fn is_vsphere_change(&self, update: &VsphereUpdate) -> bool {
        if let VsphereUpdate::Found { key, vms } = update {
            return self.lookups.is_change(key, vms);
        }
        self.vcenter.is_change(update)
    }

    fn is_kubernetes_change(&self, update: &KubernetesUpdate) -> bool {
        match update {
            KubernetesUpdate::Node(node)
            | KubernetesUpdate::Answered(node)
            | KubernetesUpdate::ReadAgain { node, .. }
            | KubernetesUpdate::Followed(node)
            | KubernetesUpdate::FollowedListed(node) => {
                let known = self.nodes.node(&node.name);
                let is_heartbeat = known.is_some_and(|known| is_heartbeat(known, node));
                // A Node whose label is back can begin an episode again. An episode needs the newest version for its PATCH.
                let built = self.snapshots.get(&node.name);
                !is_heartbeat
                    || self.nodes.is_followed(&node.name)
                    || built.is_some_and(|snapshot| !snapshot.is_idle())
            }
            KubernetesUpdate::Devices { node, slices } => {
                self.nodes.has(node) && *self.nodes.slices_of(node) != **slices
            }
            KubernetesUpdate::Reset
            | KubernetesUpdate::NodeGone { .. }
            | KubernetesUpdate::FollowedGone { .. }
            | KubernetesUpdate::FollowedAbsent { .. }
            | KubernetesUpdate::PodsChanged(_)
            | KubernetesUpdate::Budget { .. }
            | KubernetesUpdate::Scanned { .. }
            | KubernetesUpdate::Settled
            | KubernetesUpdate::Maintenances(_)
            | KubernetesUpdate::DevicesListed
            | KubernetesUpdate::ForeignMaintenances(..)
            | KubernetesUpdate::Lost { .. } => true,
        }
    }
}

/// Whether a Node differs only in what each heartbeat of its kubelet changes.
fn is_heartbeat(known: &NodeFacts, node: &NodeFacts) -> bool {
    let ready = ReadyCondition {
        heartbeat: known.ready.heartbeat,
        ..node.ready
    };
    let heartbeat = NodeFacts {
        resource_version: known.resource_version,
        ready,
        ..node.clone()
    };
    *known == heartbeat
}
