//! Builds the snapshot of one node.

use std::sync::Arc;

use super::binding::is_same_machine;
use super::requests::is_younger;
use super::{Inventory, NodeState};
use crate::facts::device_slice;
use crate::facts::kubernetes::NodeFacts;
use crate::facts::vsphere::{PowerState, Task, Vm};
use crate::ids::{EpisodeId, HostRef, NodeName, VmRef};
use crate::keys::FIELD_MANAGER;
use crate::maintenance::episode::{Episode, EpisodeOrigin, Phase, Record};
use crate::maintenance::observed::{
    Admission, BoundVm, CordonedBy, HostState, LATE_POWER_OFF_WINDOW, NodeOverrides, NodeSnapshot, Observed,
    ObservedNode, ObservedVm, RecordAge, SourceState, Strategy,
};
use crate::maintenance::placement::{PlacementForecast, PlacementOffer};
use crate::maintenance::record::{LastEpisode, is_written_for, read_record};
use crate::maintenance::request::Approval;

pub fn record_of(node: &NodeFacts) -> Record {
    read_record(&node.annotations)
}

impl Inventory {
    /// The effective record of a node, also where its Node was deleted.
    pub(super) fn record_for(&self, name: &NodeName) -> Option<Record> {
        match self.nodes.node(name) {
            Some(node) => Some(self.record(node)),
            None => self.record_of_gone(name),
        }
    }

    /// The record that was last read on the Node, where there is one.
    pub(super) fn record_on_node(&self, name: &NodeName) -> Option<&Record> {
        self.node_states.get(name)?.on_node.as_ref()
    }

    /// Whether the annotation of the Node says that its VM waits for its own host.
    pub(super) fn waits_for_home(&self, name: &NodeName) -> bool {
        let node = self.nodes.node(name);
        node.is_some_and(|node| node.annotations.strategy.as_deref() == Some("wait"))
    }

    /// Whether vCenter reports the VM as on.
    pub(super) fn is_vm_on(&self, vm: &VmRef) -> bool {
        let vm = self.vcenter.vm(vm);
        vm.is_some_and(|vm| vm.power == Some(PowerState::On))
    }

    /// The effective record: the one on the Node, in a dry run the one that would be there, or a copy that takes its place.
    pub(super) fn record(&self, node: &NodeFacts) -> Record {
        let local = self.node_states.get(&node.name);
        let record = local.and_then(|local| local.dry_run.record().or(local.on_node.as_ref()));
        let record = record.cloned().unwrap_or_else(|| record_of(node));
        match record {
            Record::InService => {
                let copied = self.record_from_copy(node);
                let copied = copied.or_else(|| self.copy_of_another_machine(node));
                copied.unwrap_or(Record::InService)
            }
            // Haulout also writes the annotations of the Python controller. Without our own annotation, the rest looks like a record of
            // that controller; the copy that matches it is used.
            Record::Python(ref python) => {
                let copied = self.record_from_copy(node);
                copied
                    .filter(|copied| is_written_for(copied, python))
                    .unwrap_or(record)
            }
            // A Node that was restored from a backup, or written with `kubectl replace`, has an older record.
            Record::Episode(ref old) => {
                let is_newer = |copy: &Arc<Episode>| copy.id == old.id && is_younger(copy, old);
                let copied = self.copy(&node.name).is_some_and(is_newer);
                let copied = copied.then(|| self.record_from_copy(node)).flatten();
                copied.unwrap_or(record)
            }
            Record::Unreadable { .. } => record,
        }
    }

    /// The episode in a copy, where the Node has none: the Node was deleted and the same machine registered again, or its annotations
    /// were removed. It continues from the newest state that is known of this Node object, or else of another one of this name. A copy
    /// does not count if the Node already names its episode, or a later one, as ended: the object has only not been closed yet.
    pub(super) fn record_from_copy(&self, node: &NodeFacts) -> Option<Record> {
        let copy = self.open_copy(node).or_else(|| self.in_place_of_copy(node))?;
        let BoundVm::Found(vm) = self.vm_of(&node.name) else {
            return None;
        };
        let is_same_machine = is_same_machine(vm.uuid, copy.vm_uuid);
        let local = self.node_states.get(&node.name);
        let on_node = local.and_then(|local| local.last_on_node.as_ref());
        // After a restore of etcd, Node and copy may be of an earlier Node object, while this process remembers a record of a later one.
        // That record does not count.
        let is_of_later = |episode: &Episode| copy.node_uid == node.uid && episode.node_uid != node.uid;
        let is_newer = |episode: &&Arc<Episode>| {
            episode.id == copy.id && is_younger(episode, copy) && !is_of_later(episode)
        };
        let newest = on_node.filter(is_newer).unwrap_or(copy);
        is_same_machine.then(|| Record::Episode(Arc::clone(newest)))
    }

    /// The copy of an episode that has switched off another VM than that of the Node. Only this copy names that VM, so it stays open, and
    /// the Node is parked, until a person ends the episode.
    fn copy_of_another_machine(&self, node: &NodeFacts) -> Option<Record> {
        let copy = self.open_copy(node)?;
        let phase = copy.phase.at_work();
        let is_off = phase.vm_is_off() || matches!(phase, Phase::ShuttingDown(_));
        let is_another = match self.vm_of(&node.name) {
            BoundVm::Found(vm) => {
                let uuids = vm.uuid.zip(copy.vm_uuid);
                uuids.is_some_and(|(is, was)| !is.same_machine(was))
            }
            BoundVm::Missing { .. } | BoundVm::NoVm | BoundVm::OutOfScope | BoundVm::NoUuid => true,
            BoundVm::NotLookedUp
            | BoundVm::Ambiguous(_)
            | BoundVm::Shared(_)
            | BoundVm::HeldByDeadNode { .. } => false,
        };
        let is_ours = self.settings.releases.names(&copy.release);
        (is_off && is_another && is_ours).then(|| Record::Episode(Arc::clone(copy)))
    }

    /// The last episode that was on a Node and has not ended there, while maintenance continues without NodeMaintenances. Copies
    /// cannot be read then, and a node whose annotations are removed must not be forgotten with its VM off.
    fn in_place_of_copy(&self, node: &NodeFacts) -> Option<&Arc<Episode>> {
        self.request_sources.ignored(None)?;
        let last = self.node_states.get(&node.name)?.last_on_node.as_ref();
        last.filter(|last| last.node_uid == node.uid && self.settings.releases.names(&last.release))
    }

    /// The copy of a record that its Node does not name as ended.
    pub(super) fn open_copy(&self, node: &NodeFacts) -> Option<&Arc<Episode>> {
        let copy = self.copy(&node.name)?;
        let last = self.last_episode(node);
        // The copy of an episode that went on on another Node object of this name may still name the earlier one.
        let is_over = last.is_some_and(|last| {
            let is_later = last.episode.begun_at >= copy.begun_at && copy.node_uid == node.uid;
            last.episode.id == copy.id || is_later
        });
        (!is_over).then_some(copy)
    }

    /// Whether an open copy may belong to a Node without a record, as far as its VM is not known. Until then it must not be closed.
    fn copy_awaits_vm(&self, node: &NodeFacts, record: &Record) -> bool {
        let is_unknown = || match self.vm_of(&node.name) {
            BoundVm::NotLookedUp
            | BoundVm::Ambiguous(_)
            | BoundVm::Shared(_)
            | BoundVm::HeldByDeadNode { .. } => true,
            BoundVm::Found(vm) => vm.uuid.is_none(),
            BoundVm::Missing { .. } | BoundVm::NoVm | BoundVm::OutOfScope | BoundVm::NoUuid => false,
        };
        *record == Record::InService && self.open_copy(node).is_some() && is_unknown()
    }

    pub(super) fn bound_vm(&self, name: &NodeName) -> Option<&Vm> {
        let seen = self.vm_of(name);
        self.vcenter.vm(&seen.found()?.moref)
    }

    /// The VM of a node in `phase`. Before its power is cut, only a current lookup counts, because another VM may have the UUID by
    /// now. A VM that is off has no power to cut, so the last lookup is enough to power it on again.
    fn vm_for(&self, name: &NodeName, phase: Option<&Phase>) -> BoundVm {
        let vm = self.vm_of(name);
        let is_on = vm.found().is_some_and(|vm| vm.power != Some(PowerState::Off));
        let is_fresh = || {
            self.nodes
                .node(name)
                .is_some_and(|node| self.is_identity_fresh(node))
        };
        match phase {
            Some(Phase::ShuttingDown(_)) if is_on && !is_fresh() => BoundVm::NotLookedUp,
            Some(_) | None => vm,
        }
    }

    /// The episode whose power-off took effect late and stopped the VM.
    fn late_power_off(
        &self,
        record: &Record,
        vm: Option<&ObservedVm>,
        node: Option<&NodeFacts>,
    ) -> Option<EpisodeId> {
        match (record, vm, node) {
            (Record::InService, Some(facts), Some(node)) if facts.power == Some(PowerState::Off) => {
                self.late_power_off_of(node, &facts.moref)
            }
            // The Node does not name the episode that sent the power-off any more, so the queued one stands for it.
            (Record::Episode(episode), Some(facts), Some(_))
                if *episode.phase.at_work() == Phase::Queued && facts.power == Some(PowerState::Off) =>
            {
                let is_ours = self
                    .last_switched(&facts.moref)
                    .is_some_and(|task| task.by_us && task.made() == Some(PowerState::Off));
                is_ours.then(|| episode.id.clone())
            }
            (_, _, _) => None,
        }
    }

    /// The snapshot of a node. `None` if its Node is deleted and no record is left, or if it is watched by name only and has nothing to
    /// bring back.
    pub(super) fn snapshot(&self, name: &NodeName, offer: PlacementOffer) -> Option<NodeSnapshot> {
        let local = self.node_states.get(name);
        let node = self.nodes.node(name);
        let record = self.record_for(name)?;
        let phase = record.phase().map(Phase::at_work);
        let vm = self.vm_for(name, phase);
        let home = record.episode().and_then(|episode| episode.host.moref.as_ref());
        let target = self.target(phase, vm.found(), home);
        let home = self.host_state(home);
        let late_power_off_of = self.late_power_off(&record, vm.found(), node);
        // On a node that is not selected, an episode begins only to bring back a VM that an ended episode powered off.
        if record == Record::InService && late_power_off_of.is_none() && self.nodes.is_followed(name) {
            return None;
        }
        let static_devices = self.static_placement(&record, self.bound_vm(name));
        let forecast = self.placement_forecast(&record, vm.found(), node, &offer);
        let mut seen = Observed {
            late_power_off_of,
            acting_since: self.acting_since,
            leadership: self.leadership,
            record_seen: self.record_age(local),
            sources: self
                .disconnected_for(name, &record)
                .unwrap_or(SourceState::Synced),
            node: node.map(|node| self.observed(node, &record)),
            copy_version: self.copy_version(name),
            has_copy: self.has_copy_of(name, &record),
            copy_awaits_vm: node.is_some_and(|node| self.copy_awaits_vm(node, &record)),
            is_record_on_node: local.is_some_and(|local| local.has_on_node(&record)),
            is_only_remembered: self.is_only_remembered(node, &record),
            request: self.request(name, node),
            vm,
            // Of other nodes: `add_other_nodes` sets these three where the node is not idle.
            ahead_traceparent: None,
            origin: EpisodeOrigin::default(),
            admission: Admission::Granted,
            drain: local.and_then(|local| local.drain.clone()),
            volumes: local.and_then(|local| local.volumes.clone()),
            pods_revision: local.map_or(0, |local| local.pods_revision),
            machine_guards: local.and_then(|local| local.machine_guards.clone()),
            attempts: local.map(|local| local.attempts.clone()).unwrap_or_default(),
            forecast,
            static_devices,
            offer,
            target,
            home,
        };
        if let Some(local) = local {
            local
                .dry_run
                .apply_to(&mut seen, |host| self.host_state(Some(host)));
        }
        let mut snapshot = NodeSnapshot {
            record,
            observed: seen,
        };
        // An idle node needs nothing of other nodes. Its actor is not woken by what happens to them.
        if !snapshot.is_idle() {
            self.add_other_nodes(name, &mut snapshot);
        }
        Some(snapshot)
    }

    /// Adds what a node that is not idle has to know of others: its place in the queue, and the episodes that it follows.
    fn add_other_nodes(&self, name: &NodeName, snapshot: &mut NodeSnapshot) {
        let (queue, limits) = self.queue_of(name);
        let admission = queue.admission(name, limits);
        snapshot.observed.ahead_traceparent = self.root_ahead(&admission);
        snapshot.observed.admission = admission;
        if let (BoundVm::Found(vm), None) = (&snapshot.observed.vm, snapshot.record.episode()) {
            snapshot.observed.origin = self.origin(vm);
        }
    }

    /// Whether `record` is neither on its Node nor in a copy.
    fn is_only_remembered(&self, node: Option<&NodeFacts>, record: &Record) -> bool {
        let local = node.and_then(|node| self.node_states.get(&node.name));
        local.zip(record.episode()).is_some_and(|(local, episode)| {
            let is_last = local
                .last_on_node
                .as_ref()
                .is_some_and(|last| last.id == episode.id);
            let is_elsewhere = local.has_on_node(record) || local.dry_run.record().is_some();
            is_last && !is_elsewhere && node.is_some_and(|node| !self.has_copy_of(&node.name, record))
        })
    }

    /// Whether the copy of a record is of the episode in `record`.
    fn has_copy_of(&self, name: &NodeName, record: &Record) -> bool {
        let (copy, episode) = (self.copy(name), record.episode());
        copy.zip(episode)
            .is_some_and(|(copy, episode)| copy.id == episode.id)
    }

    /// Since when the record is known; since now if it was not seen before.
    fn record_age(&self, local: Option<&NodeState>) -> RecordAge {
        let seen = local.and_then(|local| local.observed_record.seen);
        seen.unwrap_or(RecordAge {
            at: self.now,
            phase_at: self.now.monotonic,
            from_the_start: false,
        })
    }

    /// The facts of a Node, with what this process remembers of it.
    fn observed(&self, node: &NodeFacts, record: &Record) -> ObservedNode {
        let seen = ObservedNode {
            gpus: self
                .nodes
                .gpus(node, record.episode().and_then(|episode| episode.slices_after())),
            newest_slice: device_slice::newest(self.nodes.slices_of(&node.name)),
            ..observed_node(node)
        };
        match self.node_states.get(&node.name) {
            None => seen,
            Some(local) => ObservedNode {
                asked_guest: local.asked_guest(self.now.monotonic),
                expected_gpus: local
                    .gpus
                    .expected(&self.nodes.gpus(node, None), &node.gpu_capacity),
                last_episode: local.last_episode.clone(),
                ..seen
            },
        }
    }

    /// Where the VM is likely to go, while it is on and its host enters maintenance.
    fn placement_forecast(
        &self,
        record: &Record,
        vm: Option<&ObservedVm>,
        node: Option<&NodeFacts>,
        offer: &PlacementOffer,
    ) -> Option<PlacementForecast> {
        let is_before = matches!(record.phase()?.at_work(), Phase::Queued | Phase::Draining);
        let vm = vm.filter(|vm| is_before && vm.power == Some(PowerState::On) && vm.host.is_leaving())?;
        let may_move = node.is_some_and(|node| observed_node(node).overrides.strategy == Strategy::Migrate);
        let name_of = |moref: &HostRef| self.vcenter.host(moref)?.name.clone();
        let unsurveyed = offer.survey.iter().filter_map(name_of).collect();
        Some(PlacementForecast::of(
            offer,
            vm.drs && may_move,
            &vm.host_name,
            unsurveyed,
        ))
    }

    /// The state of the host that the VM is being relocated to; unknown if that is in another cluster.
    fn target(&self, phase: Option<&Phase>, vm: Option<&ObservedVm>, home: Option<&HostRef>) -> HostState {
        let to = phase.and_then(Phase::target).and_then(|to| to.moref.as_ref());
        let from = vm.and_then(|vm| vm.host_ref.as_ref()).or(home);
        let compute = |host: Option<&HostRef>| self.vcenter.cluster_of(host?);
        if compute(to).is_some() && compute(to) == compute(from) {
            self.host_state(to)
        } else {
            HostState::Unknown
        }
    }

    /// The episode of `node` that ended recently and caused `vm` to be off: its power-off arrived late, or the guest completed a
    /// requested shutdown. If a person has switched the VM since, it is left alone. A guest that shuts down by itself leaves no task.
    fn late_power_off_of(&self, node: &NodeFacts, vm: &VmRef) -> Option<EpisodeId> {
        let last = self.last_episode(node)?;
        let switched = self.vcenter.tasks_of(vm).filter(|task| task.made().is_some());
        let was_on = switched.clone().any(|task| task.made() == Some(PowerState::On));
        let latest = switched.max_by_key(|task| task.queued_at);
        let may_be_late = || {
            let local = self.node_states.get(&node.name);
            local.is_some_and(|local| local.may_power_off_late(self.now.monotonic))
        };
        let is_ours = match latest {
            // It is not the regular power-off of the episode, because a power-on came before it. If that left no task, the
            // clocks of vCenter and of this process are compared.
            Some(task) if task.made() == Some(PowerState::Off) => {
                let is_later = was_on || task.queued_at > last.episode.since;
                let age = task.queued_at.duration_since(last.at);
                let is_near = is_later && age.abs() <= LATE_POWER_OFF_WINDOW;
                // A power-off that was still awaited at the end needs no comparison of clocks.
                let is_awaited = || last.episode.in_flight.power_off.is_some() && may_be_late();
                task.by_us && (is_near || is_awaited())
            }
            // No task shows why it is off.
            Some(_) | None => last.episode.in_flight.guest_asked_at().is_some() && may_be_late(),
        };
        is_ours.then(|| last.episode.id.clone())
    }

    /// The ended episode that a Node names.
    fn last_episode(&self, node: &NodeFacts) -> Option<&Arc<LastEpisode>> {
        self.node_states.get(&node.name)?.last_episode.as_ref()
    }

    /// The latest task that switched a VM on or off.
    fn last_switched(&self, vm: &VmRef) -> Option<&Task> {
        let switched = self.vcenter.tasks_of(vm).filter(|task| task.made().is_some());
        switched.max_by_key(|task| task.queued_at)
    }

    /// Whether an episode of `node` ended recently whose requests may still stop the VM.
    pub(super) fn may_power_off_late(&self, node: &NodeFacts) -> bool {
        let last = self.last_episode(node);
        let local = self.node_states.get(&node.name);
        last.is_some_and(|last| !last.episode.in_flight.is_empty())
            && local.is_some_and(|local| local.may_power_off_late(self.now.monotonic))
    }

    /// The origin of an episode that begins with this `vm`, for its trace.
    fn origin(&self, vm: &ObservedVm) -> EpisodeOrigin {
        let host = vm.host_ref.as_ref();
        let compute = host.and_then(|host| self.vcenter.host(host)?.compute.as_ref());
        EpisodeOrigin {
            cluster: compute.and_then(|compute| self.vcenter.compute(compute)?.name.clone()),
            vm: self.vcenter.vm(&vm.moref).and_then(|vm| vm.name.clone()),
            before: host.and_then(|host| Some(self.last_episodes.get(host)?.traceparent.to_string())),
            ..EpisodeOrigin::default()
        }
    }

    /// The traceparent of the first node ahead in the queue that has an episode.
    fn root_ahead(&self, admission: &Admission) -> Option<Arc<str>> {
        match admission {
            Admission::Granted => None,
            Admission::Queued { ahead, .. } => ahead.iter().find_map(|name| {
                let record = self.record(self.nodes.node(name)?);
                record.episode().map(|episode| episode.traceparent.clone())
            }),
        }
    }

    pub(super) fn vm_in_dry_run(&self, node: &NodeFacts) -> BoundVm {
        let mut vm = self.vm_of(&node.name);
        if let (BoundVm::Found(facts), Some(local)) = (&mut vm, self.node_states.get(&node.name)) {
            local
                .dry_run
                .apply_to_vm(facts, |host| self.host_state(Some(host)));
        }
        vm
    }
}

pub(super) fn observed_node(node: &NodeFacts) -> ObservedNode {
    ObservedNode {
        uid: node.uid.clone(),
        resource_version: node.resource_version,
        unschedulable: node.unschedulable,
        cordoned_by: match node.cordoned_by.as_deref() {
            None => CordonedBy::Unknown,
            Some(FIELD_MANAGER) => CordonedBy::Haulout,
            Some(other) => CordonedBy::Other(other.to_owned()),
        },
        keep_cordoned: node.annotations.keep_cordoned.as_deref() == Some("true"),
        overrides: NodeOverrides {
            skip: is_paused(node),
            approved: node.annotations.approved.as_deref().and_then(Approval::parse),
            strategy: match node.annotations.strategy.as_deref() {
                Some("wait") => Strategy::Wait,
                // An unknown value counts as absent.
                Some(_) | None => Strategy::Migrate,
            },
        },
        ready: node.ready.is_true,
        is_unreachable: node.ready.is_unknown,
        ready_since: node.ready.since,
        boot_id: node.boot_id.clone(),
        gpus: node.gpus.clone(),
        gpu_capacity: Arc::clone(&node.gpu_capacity),
        expected_gpus: node.gpus.clone(),
        accepted_gpus: Arc::clone(&node.accepted_gpus),
        newest_slice: None,
        asked_guest: None,
        last_episode: None,
        conditions: node.conditions.clone(),
        guards: node.guards.clone(),
        hooks: node.hooks.clone(),
        taints: Arc::clone(&node.taints),
    }
}

/// Whether a person has paused the node.
pub(super) fn is_paused(node: &NodeFacts) -> bool {
    node.annotations.skip.as_deref() == Some("true")
}

#[cfg(test)]
mod tests;
