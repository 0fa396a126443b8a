//! Applies facts of Kubernetes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::binding::is_same_machine;
use super::node_state::NodeState;
use super::requests::is_younger;
use super::snapshot::record_of;
use super::{Inventory, LastEpisodeOfHost};
use crate::facts::kubernetes;
use crate::facts::vsphere::VmKey;
use crate::ids::NodeName;
use crate::maintenance::episode::{Episode, Phase, Record};
use crate::maintenance::observed::BoundVm;
use crate::maintenance::record::read_last;

/// The shortest time between two changes of a Node's UUIDs. A VM that is replaced under the same Node name changes them once.
const IDENTITY_PACE: Duration = Duration::from_secs(10);

impl Inventory {
    pub(super) fn apply_kubernetes(&mut self, update: kubernetes::KubernetesUpdate) {
        use kubernetes::KubernetesUpdate;
        match update {
            KubernetesUpdate::Reset => self.nodes.reset(),
            KubernetesUpdate::Node(node) => {
                self.nodes.unfollow(&node.name);
                self.apply_node(*node);
            }
            KubernetesUpdate::Answered(node) => self.apply_answered(*node),
            KubernetesUpdate::ReadAgain { node, conflicted } => {
                // A restore of etcd sets versions back, and a watch may go on from its old one.
                let is_conflicted = |known: &kubernetes::NodeFacts| {
                    known.uid == node.uid && known.resource_version == conflicted
                };
                self.nodes.forget_version(&node.name, is_conflicted);
                self.apply_answered(*node);
            }
            KubernetesUpdate::NodeGone { name, uid } => {
                let is_same = self.nodes.node(&name).is_some_and(|node| node.uid == uid);
                if is_same && !self.nodes.is_followed(&name) {
                    self.forget_node(&name);
                }
            }
            KubernetesUpdate::Settled => {
                for name in self.nodes.settle() {
                    self.forget_node(&name);
                }
            }
            KubernetesUpdate::Maintenances(update) => self.apply_maintenances(None, update),
            KubernetesUpdate::ForeignMaintenances(api, update) => self.apply_maintenances(Some(api), update),
            KubernetesUpdate::PodsChanged(name) => {
                if let Some(local) = self.node_states.get_mut(&name) {
                    local.pods_revision = local.pods_revision.wrapping_add(1);
                }
            }
            KubernetesUpdate::Budget { budget, state } => self.apply_budget(budget, state),
            KubernetesUpdate::Followed(node) => self.apply_followed(*node),
            KubernetesUpdate::FollowedListed(node) => {
                if self.nodes.is_followed(&node.name) {
                    self.nodes.forget_version(&node.name, |_| true);
                }
                self.apply_followed(*node);
            }
            KubernetesUpdate::FollowedGone { name, uid } => self.lose_followed(&name, Some(&uid)),
            KubernetesUpdate::FollowedAbsent { name } => self.lose_followed(&name, None),
            KubernetesUpdate::Scanned { stranded } => self.apply_scan(stranded),
            KubernetesUpdate::Devices { node, slices } => self.apply_devices(&node, slices),
            KubernetesUpdate::DevicesListed => self.nodes.end_wait_for_slices(),
            KubernetesUpdate::Lost { why } => self.nodes.lose(why),
        }
    }

    /// Applies a Node from a reply. One that is not known was deleted in the meantime.
    fn apply_answered(&mut self, node: kubernetes::NodeFacts) {
        let known = self.nodes.node(&node.name);
        if known.is_some_and(|known| known.uid == node.uid) {
            self.apply_node(node);
        }
    }

    pub(super) fn apply_node(&mut self, mut node: kubernetes::NodeFacts) {
        if self.nodes.is_older(&node) {
            return;
        }
        let known = self.nodes.node(&node.name).filter(|known| known.uid == node.uid);
        if let Some(known) = known
            && self.keys(known) != self.keys(&node)
        {
            self.pace_identity(&mut node);
        }
        let gpus = self.nodes.gpus(&node, None);
        let last = node.annotations.last_episode.as_deref().and_then(read_last);
        let local = self.node_states.entry(node.name.clone()).or_default();
        local.last_episode = last.map(Arc::new);
        let ended = local.last_episode.as_ref().map(|last| &last.episode.id);
        local.last_on_node.take_if(|episode| Some(&episode.id) == ended);
        let copied = self.record_from_copy(&node);
        let local = self.node_states.entry(node.name.clone()).or_default();
        local.record_of_gone = None;
        local.gpus.record_gpus(&gpus, self.now.monotonic);
        let on_node = local.on_node.insert(record_of(&node));
        if let Record::Episode(episode) = on_node {
            let is_newer = |last: &Arc<Episode>| last.id == episode.id && is_younger(last, episode);
            if !local.last_on_node.as_ref().is_some_and(is_newer) {
                local.last_on_node = Some(Arc::clone(episode));
            }
        }
        let recorded = local.dry_run.record().unwrap_or(on_node).phase();
        // If the record was removed and the episode goes on with its copy, what was done still counts.
        match recorded.or_else(|| copied.as_ref()?.phase()) {
            Some(phase) if phase.is_draining() || *phase.at_work() == Phase::Drained => {}
            // Results of an earlier phase or episode no longer count.
            Some(_) => local.drain = None,
            None => {
                local.drain = None;
                local.attempts.clear();
                local.offered = None;
            }
        }
        if !node.unschedulable && !local.dry_run.is_cordoned() {
            // Pods may have been scheduled since the last list.
            local.drain = None;
        }
        let before = self.nodes.node(&node.name);
        let keys = before.map(|before| self.keys(before)).unwrap_or_default();
        let last = before.and_then(|before| before.annotations.last_episode.as_ref());
        let is_last_changed = last != node.annotations.last_episode.as_ref();
        self.lookups.index(&node.name, &keys, &self.keys(&node));
        if is_last_changed {
            self.record_last_episode(&node);
        }
        self.nodes.insert(node);
    }

    /// Limits changes of a Node's UUIDs to one per [`IDENTITY_PACE`], because each costs searches in vCenter and a build of all
    /// snapshots. Until then, the previous UUIDs are kept.
    fn pace_identity(&mut self, node: &mut kubernetes::NodeFacts) {
        let local = self.node_states.entry(node.name.clone()).or_default();
        let changed_at = local.identity_changed_at;
        if changed_at.is_some_and(|at| self.now.monotonic < at.after(IDENTITY_PACE)) {
            if let Some(known) = self.nodes.node(&node.name) {
                node.provider_uuid = known.provider_uuid;
                node.system_uuid = known.system_uuid;
            }
        } else {
            local.identity_changed_at = Some(self.now.monotonic);
        }
    }

    /// Records the ended episode that `node` names, for the next episode on the same host.
    fn record_last_episode(&mut self, node: &kubernetes::NodeFacts) {
        let local = self.node_states.entry(node.name.clone()).or_default();
        let last = local.last_episode.clone();
        let asked_guest = last
            .as_ref()
            .and_then(|last| last.episode.in_flight.guest_asked_at());
        let ended_at = last.as_ref().map(|last| last.at);
        local.asked_guest = asked_guest;
        // A time in the future, of another clock or forged, must not hide the times before it.
        local.last_ended = local.last_ended.max(ended_at.map(|at| at.min(self.now.wall)));
        local.open_late_power_off(ended_at, self.now);
        self.next_timed_change = self
            .next_timed_change
            .into_iter()
            .chain(local.late_power_off_until)
            .min();
        // A followed Node may be another release's, whose vCenter gives its hosts the same morefs.
        let Some(last) = last.filter(|_| !self.nodes.is_followed(&node.name)) else {
            return;
        };
        let Some(host) = last.episode.host.moref.clone() else {
            return;
        };
        let last = LastEpisodeOfHost {
            at: last.at,
            traceparent: Arc::clone(&last.episode.traceparent),
        };
        if self
            .last_episodes
            .get(&host)
            .is_none_or(|known| known.at < last.at)
        {
            self.last_episodes.insert(host, last);
        }
    }

    /// Whether the record of a Node that is about to be forgotten may be that of its VM: the one that is found for the Node, or else one
    /// that the Node names. It claims this VM from then on, and a kubelet can write any record.
    fn may_be_of_its_vm(&self, name: &NodeName, episode: &Episode) -> bool {
        let is_copied = || {
            self.own_copy(name)
                .is_some_and(|copy| is_same_machine(copy.vm_uuid, episode.vm_uuid))
        };
        let is_its_vm = match self.vm_of(name) {
            BoundVm::Found(vm) => is_same_machine(vm.uuid, episode.vm_uuid),
            BoundVm::Ambiguous(_) | BoundVm::Shared(_) | BoundVm::HeldByDeadNode { .. } => false,
            BoundVm::NotLookedUp
            | BoundVm::Missing { .. }
            | BoundVm::NoVm
            | BoundVm::OutOfScope
            | BoundVm::NoUuid => self.keys_of(name).into_iter().any(|key| match key {
                VmKey::Uuid(named) => is_same_machine(Some(named), episode.vm_uuid),
                // From then on it claims the VM of its name.
                VmKey::Name(_) => true,
            }),
        };
        is_its_vm || episode.vm_uuid.is_none() || is_copied()
    }

    pub(super) fn forget_node(&mut self, name: &NodeName) {
        let on_node = self.record_on_node(name).and_then(Record::episode);
        let is_of_its_vm = on_node.is_none_or(|episode| self.may_be_of_its_vm(name, episode));
        let Some(node) = self.nodes.remove(name) else {
            return;
        };
        self.lookups.index(name, &self.keys(&node), &BTreeSet::new());
        let local = self.node_states.entry(name.clone()).or_default();
        local.group_of_gone.clone_from(&node.limit_group);
        let is_ours = |episode: &Episode| self.settings.releases.has(&episode.release);
        match local.on_node.take() {
            Some(Record::Episode(episode)) if is_ours(&episode) && is_of_its_vm => {
                local.record_of_gone = Some(Record::Episode(episode));
            }
            Some(record @ Record::Python(_)) => local.record_of_gone = Some(record),
            Some(Record::InService | Record::Episode(_) | Record::Unreadable { .. }) | None => {
                let gpus = std::mem::take(&mut local.gpus);
                if gpus.is_empty() {
                    self.node_states.remove(name);
                } else {
                    // A label that is lost for a boot is back before the device plugin is.
                    *local = NodeState {
                        gpus,
                        ..NodeState::default()
                    };
                }
            }
        }
        let (cluster, now) = (&self.nodes, self.now.monotonic);
        self.node_states.retain(|name, local| {
            cluster.has(name) || local.record_of_gone.is_some() || !local.gpus.has_lapsed(now)
        });
    }
}
