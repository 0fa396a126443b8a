//! Which nodes hold a slot under the limits, and for how long. Everybody who may write a Node may write a record, so a record alone
//! gives no slot: this process granted it, or found it when it became the leader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::time::Duration;

use jiff::Timestamp;

use super::Inventory;
use super::snapshot::is_paused;
use crate::facts::kubernetes::NodeFacts;
use crate::ids::NodeName;
use crate::maintenance::admission::{AdmissionLimits, AdmissionQueue, QueuedNode};
use crate::maintenance::clock::Monotonic;
use crate::maintenance::decide::{is_replaced, vmotion_grace, wants_place};
use crate::maintenance::desired::DesiredState;
use crate::maintenance::episode::{Episode, Phase, PythonState, Record};
use crate::maintenance::observed::BoundVm;
use crate::maintenance::policy::Limit;
use crate::maintenance::request::Request;

/// How many GPUs of a node count. A kubelet may report any number, and must not use up what others may take.
const GPUS_MAX: u32 = 1_024;

/// The slot of a node among those being drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot {
    /// Since when it holds the slot, also after the slot lapsed.
    since: Option<Monotonic>,
    /// Since when its record cannot be read.
    unreadable_since: Option<Monotonic>,
}

impl Inventory {
    /// The limits within a group. A percentage is of its nodes.
    pub(super) fn limits(&self, group: Option<&str>) -> AdmissionLimits {
        let of_group = || {
            self.nodes
                .all()
                .filter(|node| node.limit_group.as_deref() == group)
        };
        let gpus = || of_group().map(|node| u64::from(self.gpus_for_limits(node))).sum();
        AdmissionLimits {
            concurrent_drains: self.settings.concurrent_drains,
            unavailable: self.settings.unavailable.limit_of(|| of_group().count() as u64),
            unavailable_gpus: self.settings.unavailable_gpus.limit_of(gpus),
            power_offs: self.settings.power_offs.limit_of(|| of_group().count() as u64),
        }
    }

    /// The GPUs that a node has in service: those at the beginning of its episode, or those of the healthy node now.
    fn gpus_for_limits(&self, node: &NodeFacts) -> u32 {
        let local = self.node_states.get(&node.name);
        let episode = local.and_then(|local| local.on_node.as_ref()?.episode());
        let before = episode
            .map(|episode| counted_gpus(&episode.gpus_before))
            .filter(|gpus| *gpus > 0);
        before.unwrap_or_else(|| {
            let now = self.nodes.gpus(node, None);
            let expected = local.map(|local| local.gpus.expected(&now, &node.gpu_capacity));
            counted_gpus(&expected.unwrap_or(now))
        })
    }

    /// The group of a node, or the one of its deleted Node as far as this process has seen it.
    pub(super) fn limit_group(&self, name: &NodeName) -> Option<&str> {
        match self.nodes.node(name) {
            Some(node) => node.limit_group.as_deref(),
            None => self.node_states.get(name)?.group_of_gone.as_deref(),
        }
    }

    /// Counts the nodes as unavailable whose Nodes were deleted during their episodes. `before` are the queues that are not built yet.
    fn count_deleted(
        &self,
        names: &BTreeSet<NodeName>,
        queues: &mut BTreeMap<Option<String>, AdmissionQueue>,
        mut before: BTreeMap<Option<String>, AdmissionQueue>,
    ) {
        let deleted = names.iter().filter(|name| !self.nodes.has(name));
        for name in deleted.filter(|name| self.is_unavailable_without_node(name)) {
            let queue = queues.entry(self.limit_group(name).map(str::to_owned));
            let queue = queue.or_insert_with_key(|group| AdmissionQueue::after(before.remove(group)));
            queue.unavailable.insert(name.clone());
        }
    }

    /// Whether an episode keeps a node unavailable whose Node was deleted. Without its VM there is nothing that may come back.
    fn is_unavailable_without_node(&self, name: &NodeName) -> bool {
        let record = self.record_for(name);
        let episode = record.as_ref().and_then(Record::episode);
        episode.is_some_and(|episode| episode.phase.is_unavailable() && self.is_of_its_vm(name, episode))
    }

    /// The queue of a node's group.
    pub(super) fn queue_of(&self, name: &NodeName) -> (&AdmissionQueue, AdmissionLimits) {
        static EMPTY: LazyLock<AdmissionQueue> = LazyLock::new(AdmissionQueue::default);
        let group = self.limit_group(name);
        let queue = self.admission_queues.get(&group.map(str::to_owned));
        (queue.unwrap_or(&EMPTY), self.limits(group))
    }

    /// Updates which nodes hold slots and which wait for one. Each group has a queue and limits of its own.
    pub(super) fn update_admission(&mut self, names: &BTreeSet<NodeName>) {
        let mut before = std::mem::take(&mut self.admission_queues);
        let mut queues: BTreeMap<Option<String>, AdmissionQueue> = BTreeMap::new();
        let mut lapses: Vec<Monotonic> = Vec::new();
        for name in names {
            let Some(node) = self.nodes.node(name) else {
                continue;
            };
            let queue = queues
                .entry(node.limit_group.clone())
                .or_insert_with_key(|group| AdmissionQueue::after(before.remove(group)));
            let record = self.record(node);
            let (drains, unavailable) = self.takes_slots(node, &record);
            let queued_since = self.queued_since(node, &record, &mut lapses);
            let is_granted = queue.granted.contains_key(name);
            let local = self.node_states.get(name);
            let before = local.map(|local| local.slot).unwrap_or_default();
            let slot = self.next_slot(before, is_granted, &record);
            let holds = |since: Option<Monotonic>, lapses: &mut Vec<Monotonic>| {
                let lapse = since.map(|since| since.after(self.settings.drain_slot));
                let held = lapse.filter(|lapse| self.now.monotonic < *lapse);
                lapses.extend(held);
                held.is_some()
            };
            if holds(slot.since.filter(|_| drains), &mut lapses) {
                queue.draining.insert(name.clone());
            }
            if unavailable || holds(slot.unreadable_since.filter(|_| node.unschedulable), &mut lapses) {
                queue.unavailable.insert(name.clone());
            }
            let is_queued = queued_since.is_some();
            if let Some(clicked_at) = queued_since {
                queue.queued.insert(QueuedNode {
                    clicked_at,
                    node: name.clone(),
                });
            }
            let is_only_drained = (drains || is_queued) && self.is_only_drained(node, &record);
            // This process granted the slot, or found it when it began to act.
            let is_known = slot.since.is_some() || before.since.is_some() || !self.knows_slots;
            let believed = record.episode().filter(|episode| self.is_believed(node, episode));
            let mut is_counted = false;
            if let Some(local) = self.node_states.get_mut(name) {
                local.slot = slot;
                if let Some(episode) = believed {
                    local
                        .power_offs
                        .record_episode(episode, is_known, self.now.monotonic);
                    is_counted = drains && local.power_offs.is_counted(episode);
                }
            }
            if is_only_drained || is_counted {
                queue.drain_only.insert(name.clone());
            }
        }
        self.count_deleted(names, &mut queues, before);
        self.grant_slots(&mut queues, &mut lapses);
        lapses.extend(self.late_power_off_ends());
        let next = queues.values().filter_map(AdmissionQueue::next_lapse);
        self.next_timed_change = lapses.into_iter().chain(next).min();
        self.admission_queues = queues;
    }

    /// The slot of a node, after `before`. A drain that is not believed keeps its slot for later, and does not hold it: a person may
    /// have paused it, and it goes on without another grant.
    fn next_slot(&self, before: Slot, is_granted: bool, record: &Record) -> Slot {
        let now = self.now.monotonic;
        let is_draining = match record {
            Record::Python(python) => python.state == PythonState::Draining,
            Record::Episode(episode) => episode.phase.is_draining(),
            Record::InService | Record::Unreadable { .. } => false,
        };
        Slot {
            since: match before.since {
                _ if !is_draining => None,
                Some(since) => Some(since),
                None if is_granted || !self.knows_slots => Some(now),
                None => None,
            },
            unreadable_since: matches!(record, Record::Unreadable { .. })
                .then(|| before.unreadable_since.unwrap_or(now)),
        }
    }

    /// Grants the free slots of each queue, in its order.
    fn grant_slots(
        &mut self,
        queues: &mut BTreeMap<Option<String>, AdmissionQueue>,
        lapses: &mut Vec<Monotonic>,
    ) {
        let is_connected = self.disconnected().is_none();
        for (group, queue) in queues.iter_mut() {
            self.count_gpus(queue);
            lapses.extend(self.count_power_offs(group.as_deref(), queue));
        }
        // An incomplete set may hide a node that holds a slot, so slots are granted on complete sets only.
        self.knows_slots |= is_connected;
        for (group, queue) in queues.iter_mut() {
            if is_connected {
                queue.grant(self.limits(group.as_deref()), self.now.monotonic);
            } else {
                queue.lapse(self.now.monotonic);
            }
        }
    }

    /// When the windows for late power-offs end.
    fn late_power_off_ends(&self) -> impl Iterator<Item = Monotonic> {
        let states = self.node_states.values();
        let ends = states.filter_map(|local| local.late_power_off_until);
        ends.filter(|until| self.now.monotonic < *until)
    }

    pub(super) fn count_gpus(&self, queue: &mut AdmissionQueue) {
        if self.settings.unavailable_gpus == Limit::Unlimited {
            return;
        }
        let queued = queue.queued.iter().map(|it| &it.node);
        let names = queue.unavailable.iter().chain(queued);
        let gpus = names.filter_map(|name| {
            let gpus = match self.nodes.node(name) {
                Some(node) => self.gpus_for_limits(node),
                None => counted_gpus(&self.record_for(name)?.episode()?.gpus_before),
            };
            Some((name.clone(), gpus))
        });
        queue.gpus = gpus.collect();
    }

    /// Whether the node takes a drain slot, and whether it counts as unavailable. Only its own record counts.
    fn takes_slots(&self, node: &NodeFacts, record: &Record) -> (bool, bool) {
        match record {
            Record::InService | Record::Unreadable { .. } => (false, false),
            Record::Python(python) => (python.state == PythonState::Draining, true),
            Record::Episode(episode) => {
                let drains = self.is_believed(node, episode) && episode.phase.is_draining();
                // A Node that was registered again has its record only in the copy at first.
                let is_continued =
                    || self.has_own_copy_of(&node.name, episode) && self.is_of_its_vm(&node.name, episode);
                let is_its_own = episode.node_uid == node.uid || is_continued();
                (drains, is_its_own && episode.phase.is_unavailable())
            }
        }
    }

    /// Whether an episode drains the node or switches its VM off: it is of this Node, of its VM and of this release, and no person
    /// has said that the node is left alone.
    pub(super) fn is_believed(&self, node: &NodeFacts, episode: &Episode) -> bool {
        let is_its_vm = self.is_of_its_vm(&node.name, episode);
        let is_ours = self.settings.releases.has(&episode.release);
        episode.node_uid == node.uid && is_its_vm && is_ours && !is_paused(node)
    }

    /// Whether the VM of a node is the one of its episode, as far as it was looked up.
    fn is_of_its_vm(&self, name: &NodeName, episode: &Episode) -> bool {
        match self.vm_of(name) {
            BoundVm::Found(vm) => is_replaced(episode, &vm).is_none(),
            BoundVm::NotLookedUp => true,
            BoundVm::Missing { .. }
            | BoundVm::NoVm
            | BoundVm::OutOfScope
            | BoundVm::NoUuid
            | BoundVm::Ambiguous(_)
            | BoundVm::Shared(_)
            | BoundVm::HeldByDeadNode { .. } => false,
        }
    }

    /// Whether the node is only drained: a request asks for that, and the host of its VM does not leave.
    fn is_only_drained(&self, node: &NodeFacts, record: &Record) -> bool {
        let BoundVm::Found(vm) = self.vm_in_dry_run(node) else {
            return false;
        };
        let request = self.due_request(&node.name, Some(node), record);
        matches!(
            DesiredState::of(&vm, record.episode(), request.as_ref()),
            DesiredState::Drained(_)
        )
    }

    /// How long `node` has been queued. A node that is drained already waits for no vMotion.
    fn queued_for(&self, node: &NodeFacts, record: &Record) -> Duration {
        match record {
            Record::InService => Duration::ZERO,
            Record::Episode(episode) if *episode.phase.at_work() == Phase::Queued => {
                let seen = self
                    .node_states
                    .get(&node.name)
                    .and_then(|local| local.observed_record.seen);
                let since = seen.map_or(Duration::ZERO, |seen| self.now.monotonic.since(seen.at.monotonic));
                episode.elapsed.span() + since
            }
            Record::Episode(_) | Record::Python(_) | Record::Unreadable { .. } => Duration::MAX,
        }
    }

    /// Since when `node` waits for a slot, if it does. When that changes with time, after the time for a vMotion or with the window of
    /// a request, is added to `lapses`.
    fn queued_since(
        &self,
        node: &NodeFacts,
        record: &Record,
        lapses: &mut Vec<Monotonic>,
    ) -> Option<Timestamp> {
        let BoundVm::Found(vm) = self.vm_in_dry_run(node) else {
            return None;
        };
        // No episode begins on a node that the label selector does not match.
        if *record == Record::InService && self.nodes.is_followed(&node.name) {
            return None;
        }
        let request = self.request(&node.name, Some(node));
        let changes_at = request
            .as_ref()
            .and_then(|it| it.changes_at(record.episode(), self.now.wall));
        lapses.extend(changes_at.map(|at| {
            let left = at.duration_since(self.now.wall).unsigned_abs();
            self.now.monotonic.after(left)
        }));
        let is_due = |it: &Request| it.not_due(record.episode(), self.now.wall).is_none();
        let request = request.filter(is_due);
        let grace = vmotion_grace(&vm, request.as_ref(), self.settings.vmotion_grace);
        let left = grace.saturating_sub(self.queued_for(node, record));
        if !left.is_zero() {
            lapses.push(self.now.monotonic.after(left));
            return None;
        }
        let approval = self.settings.require_approval;
        let asked_at = wants_place(
            record,
            &super::snapshot::observed_node(node),
            &vm,
            request.as_ref(),
            approval,
        )?;
        // Somebody who may create requests for one node alone must not keep the first place for it.
        let is_by_request = request.is_some() && !vm.host.is_leaving();
        let ended_at = self.last_end(&node.name).filter(|_| is_by_request);
        Some(ended_at.map_or(asked_at, |ended_at| asked_at.max(ended_at)))
    }

    /// When the last episode of a node ended, as far as its Node, its NodeMaintenances or this process know.
    fn last_end(&self, name: &NodeName) -> Option<Timestamp> {
        let local = self.node_states.get(name).and_then(|local| local.last_ended);
        let recorded = self.requests.last_end(name);
        // The clock of the process that wrote it may be ahead.
        local.max(recorded).map(|at| at.min(self.now.wall))
    }
}

/// How many GPUs these are for the limits.
fn counted_gpus(gpus: &BTreeMap<String, u64>) -> u32 {
    let sum = gpus.values().fold(0_u64, |sum, count| sum.saturating_add(*count));
    u32::try_from(sum).unwrap_or(u32::MAX).min(GPUS_MAX)
}

#[cfg(test)]
mod tests;
