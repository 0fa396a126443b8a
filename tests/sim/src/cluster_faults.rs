//! Faults of the cluster that are no single replies: what happens to Nodes, their kubelets and cordons, and to etcd.

use std::sync::Arc;
use std::time::Duration;

use haulout::keys::STRATEGY;
use serde_json::{Value, json};

use crate::clock;
use crate::cluster::{LABEL, is_ready, node_key, node_name};
use crate::faults::Fault;
use crate::oracle::{is_from_manifest, phase, phase_at_work, record};
use crate::people::Deed;
use crate::store::is_cordoned;
use crate::world::{World, WorldEvent};

/// The field manager of NVIDIA's driver manager.
const DRIVER_MANAGER: &str = "driver-manager";

/// The kinds that may be forbidden.
const KINDS: [&str; 6] = [
    "nodes",
    "pods",
    "poddisruptionbudgets",
    "nodemaintenances",
    "volumeattachments",
    "leases",
];

/// The phases in which a cordon is restored that a program removes. Before the VM is off, it counts as removed by a person.
pub(crate) const RESTORES_CORDON: [&str; 4] = ["relocating", "awaitingHost", "poweringOn", "rejoining"];

/// How long it may take until a leader has seen a cordon, if the last one ended when it was set.
const CORDON_SEEN: Duration = Duration::from_secs(90);

/// A Node that was deleted, to be created again.
#[derive(Debug)]
pub struct Manifest {
    node: usize,
    object: Arc<Value>,
    /// Whether a person had cordoned it, and when one did last.
    was_cordoned: bool,
    cordoned_at: Option<Duration>,
}

impl World {
    /// Sets or removes the label by which the controller selects a Node.
    pub fn set_label(&mut self, node: usize, has: bool) {
        self.kube.change(&node_key(node), "kubectl", |node| {
            if let Some(labels) = node["metadata"]["labels"].as_object_mut() {
                if has {
                    labels.insert(LABEL.to_owned(), json!("true"));
                } else {
                    labels.remove(LABEL);
                }
            }
        });
    }

    /// A person or a program deletes a Node. Its pods are collected, and its kubelet registers it again later.
    pub(crate) fn node_is_deleted(&mut self) -> bool {
        let node = self.any_node();
        let name = node_name(node);
        let Some(manifest) = self.kube.delete(&node_key(node)) else {
            return false;
        };
        self.tell(&name, "is deleted");
        self.oracle.nodes[node].is_lost |= record(&manifest).is_some() && !self.has_copy(node);
        // Its VM waits for its own host, and nobody can take that back. A VM of others may have the device there for ever.
        let waits_for_home = !manifest["metadata"]["annotations"][STRATEGY].is_null()
            || record(&manifest).is_some_and(|record| record["waitsForHome"] == true);
        self.oracle.nodes[node].is_lost |= waits_for_home && self.plan.others > 0;
        let memory = &mut self.oracle.nodes[node];
        let was_cordoned = std::mem::take(&mut memory.cordoned_by_person);
        let cordoned_at = memory.person_cordoned;
        memory.schedulable_since = Some(clock::elapsed());
        if self
            .faults
            .fires(Fault::ManifestRestored, &mut self.rng, &mut self.account)
        {
            let manifest = Manifest {
                node,
                object: manifest,
                was_cordoned,
                cordoned_at,
            };
            self.manifests.push(manifest);
            self.within(5..100, WorldEvent::ManifestIsApplied);
        }
        for pod in self.pods_on(&name) {
            self.kube.delete(&pod);
        }
        self.schedule_soon();
        self.within(10..300, WorldEvent::NodeRegisters(node));
        true
    }

    /// A kubelet that runs registers its Node, if that is missing. Returns whether it was.
    pub fn register_node(&mut self, node: usize) -> bool {
        let is_new = self.kubelet_runs(node) && self.kube.get(&node_key(node)).is_none();
        if is_new {
            self.tell(node_name(node), "is registered again");
            self.oracle.nodes[node].drain_held = None;
            self.add_node(node);
            self.node_is_new(node);
        }
        is_new
    }

    /// A deleted Node is created again from its manifest, by a backup or by a person. It has the record and the cordon of then.
    pub(crate) fn manifest_is_applied(&mut self) {
        let Manifest {
            node,
            object: manifest,
            was_cordoned,
            cordoned_at,
        } = self.manifests.remove(0);
        let key = node_key(node);
        if self.faults.is_calm || self.kube.get(&key).is_some() {
            return;
        }
        self.tell(node_name(node), "is created from its manifest");
        let mut object = (*manifest).clone();
        object["metadata"]["managedFields"] = Value::Null;
        // The name is free.
        let _ = self.kube.create(&key, object, "kubectl-client-side-apply");
        let memory = &mut self.oracle.nodes[node];
        // The manifest has no field managers: only the record of a leader tells whose a cordon is, if one saw it.
        let was_seen = record(&manifest).is_none_or(|record| record["cordon"] == "theirs");
        memory.cordoned_by_person = was_cordoned && was_seen;
        // A cordon without a record and with another field manager counts as a person's. So does one of ours from before a Node that
        // a person cordoned: the record of the later Node says that the cordon is theirs.
        let is_earlier = memory.person_cordoned != cordoned_at;
        let is_unclear = record(&manifest).is_none() || is_earlier || was_cordoned && !was_seen;
        memory.is_lost |= is_cordoned(&manifest) && is_unclear;
        self.node_catches_up(node);
    }

    /// A tool removes all annotations from a Node in an episode.
    pub(crate) fn annotations_are_removed(&mut self) -> bool {
        let Some(node) = self.any_node_where(|world, node| world.record_on(node).is_some()) else {
            return false;
        };
        self.tell(node_name(node), "loses its annotations");
        let object = self.kube.get(&node_key(node));
        // Only the record could tell that the cordon of the manifest is not a person's.
        self.oracle.nodes[node].is_lost |=
            object.is_some_and(|object| is_from_manifest(object) && is_cordoned(object));
        self.oracle.nodes[node].drain_held = None;
        self.oracle.nodes[node].record_removed = Some(clock::elapsed());
        self.kube.change(&node_key(node), "gitops", |node| {
            node["metadata"]["annotations"] = json!({});
        });
        // After a restore of etcd, the copy is from before what replicas remember, and their memory counts.
        let is_outdated = self.oracle.restored.is_some();
        // A replica that has started meanwhile cannot read the copy.
        let (kind, until) = &self.kube.forbidden;
        let is_forbidden = kind == "nodemaintenances" && *until > clock::elapsed();
        let is_unreadable = is_forbidden || self.has_listed.contains(&false);
        self.oracle.nodes[node].is_lost |= is_outdated || is_unreadable || !self.has_copy(node);
        true
    }

    /// A kubelet loses its connection for a while.
    pub(crate) fn ready_is_lost(&mut self) -> bool {
        let is_up = |world: &Self, node: usize| {
            let object = world.kube.get(&node_key(node));
            world.vcenter.vms[node].on && object.is_some_and(|object| is_ready(object))
        };
        let Some(node) = self.any_node_where(is_up) else {
            return false;
        };
        self.tell(node_name(node), "is not Ready for a while");
        self.set_ready(node, "Unknown");
        let boots = self.vcenter.vms[node].boots;
        self.within(2..90, WorldEvent::ReadyIsBack { node, boots });
        true
    }

    /// The kubelet has its connection again.
    pub(crate) fn ready_is_back(&mut self, node: usize, boots: u32) {
        let vm = &self.vcenter.vms[node];
        if vm.boots == boots && self.kubelet_runs(node) {
            self.tell(node_name(node), "is Ready again");
            self.set_ready(node, "True");
            self.schedule_soon();
        }
    }

    /// The driver manager uncordons the Node after its boot, also where a person has cordoned it.
    pub(crate) fn driver_uncordons(&mut self, node: usize, boots: u32) {
        let vm = &self.vcenter.vms[node];
        let Some(object) = self.kube.get(&node_key(node)) else {
            return;
        };
        if !vm.on || vm.boots != boots || !is_cordoned(object) {
            return;
        }
        let phase = record(object).map(|record| phase(&record).0).unwrap_or_default();
        let is_restored = RESTORES_CORDON.contains(&phase.as_str());
        self.tell(node_name(node), "is uncordoned by the driver manager");
        let memory = &mut self.oracle.nodes[node];
        let cordoned = memory.person_cordoned;
        let may_be_unseen = cordoned.is_some_and(|at| clock::elapsed() < at + CORDON_SEEN);
        if !is_restored || may_be_unseen {
            // It counts as uncordoned by a person.
            memory.cordoned_by_person = false;
        }
        memory.schedulable_since = Some(clock::elapsed());
        self.kube.change(&node_key(node), DRIVER_MANAGER, |node| {
            node["spec"]["unschedulable"] = Value::Null;
        });
        self.schedule_soon();
    }

    /// A person uncordons a node in an episode, and may cordon it again.
    pub(crate) fn cordon_is_taken(&mut self) -> bool {
        let Some(node) = self.any_node_where(Self::cordon_is_ours) else {
            return false;
        };
        self.uncordon_as_person(node);
        if self.rng.bool() {
            self.within(1..60, WorldEvent::Deed(Deed::Cordons(node)));
        }
        true
    }

    /// One kind of objects is forbidden for some time: its rights are being changed.
    pub(crate) fn kind_is_forbidden(&mut self) {
        let kind = KINDS[self.rng.usize(0..KINDS.len())];
        let until = clock::elapsed() + self.seconds(5..120);
        self.tell(
            "kubernetes",
            format!("forbids {kind} until {} s", until.as_secs()),
        );
        self.kube.forbidden = (kind.to_owned(), until);
        // Watches go on until they end.
        if self.rng.bool() {
            self.kube.cut();
        }
    }

    /// A snapshot of etcd is taken, to be restored later.
    pub(crate) fn snapshot_is_taken(&mut self) {
        self.snapshot = Some((self.kube.snapshot(), self.oracle.nodes.clone()));
        self.within(10..200, WorldEvent::EtcdIsRestored);
    }

    /// etcd is restored from the snapshot: objects and their versions go back. Kubelets and controllers go on from there.
    pub(crate) fn etcd_is_restored(&mut self) {
        if self.faults.is_calm {
            return;
        }
        let Some((snapshot, memory)) = self.snapshot.take() else {
            return;
        };
        let now = clock::elapsed();
        self.tell(
            "kubernetes",
            format!("etcd is restored to version {}", snapshot.version),
        );
        self.kube.restore(snapshot);
        self.kube.down_until = now + self.seconds(1..20);
        // A replica that is cut off knows of it later.
        let known = self.cut_off.iter().map(|it| it.kubernetes_until);
        let known_at = known.fold(now, Duration::max);
        self.oracle.restored(&memory, known_at);
        for node in 0..self.plan.nodes {
            self.node_catches_up(node);
        }
        let pods: Vec<_> = self.kube.list("pods").map(|(key, _)| key.clone()).collect();
        for pod in pods {
            // It ends now if it was terminating.
            self.queue.after(Duration::from_secs(5), WorldEvent::PodEnds(pod));
        }
        self.schedule_soon();
    }

    /// A kubelet writes the status of its Node again after a restore.
    fn node_catches_up(&mut self, node: usize) {
        let vm = self.vcenter.vms[node].clone();
        let boots = vm.boots;
        self.register_node(node);
        if vm.on && vm.kubelet == boots {
            self.queue
                .after(Duration::from_secs(6), WorldEvent::KubeletStarts { node, boots });
        }
        self.queue
            .after(Duration::from_secs(50), WorldEvent::NodeUnknown { node, boots });
        let goes_off = !vm.on || vm.going_down || self.vcenter.busy(node).is_some();
        // A VM that is off while its node is queued was powered off by a person. One that is back is not asked to shut down.
        let known = self.record_on(node).or_else(|| self.copy_of(node));
        let says_nothing =
            |record: &Value| ["queued", "rejoining"].contains(&phase_at_work(record).0.as_str());
        let is_unknown = known.is_none_or(|record| says_nothing(&record));
        self.oracle.nodes[node].is_lost |= goes_off && is_unknown;
    }
}
