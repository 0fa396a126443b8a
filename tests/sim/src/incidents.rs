//! Faults that happen at times, and not to single requests: to hosts, VMs, Nodes, kubelets and replicas.

use std::time::Duration;

use haulout::keys::{DEFAULT_PREFIX, Keys, SKIP};
use jiff::SignedDuration;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::clock;
use crate::cluster::{LABEL, node_key, node_name};
use crate::faults::{Fault, Occasion};
use crate::oracle::record;
use crate::store::cluster_key;
use crate::world::{Orders, World, WorldEvent};

/// The field manager of a kubelet that lies.
const HOSTILE_KUBELET: &str = "kubelet";

impl World {
    /// Schedules the faults that this run has drawn.
    pub fn plan_incidents(&mut self) {
        let active = self.plan.active.as_secs();
        for fault in Fault::ALL
            .iter()
            .copied()
            .filter(|fault| self.plan.faults.has(*fault))
        {
            let Occasion::Times(most) = fault.occasion() else {
                continue;
            };
            for _ in 0..self.rng.usize(1..=most) {
                let at = Duration::from_secs(self.rng.u64(10..active));
                self.queue.after(at, WorldEvent::Fault(fault));
            }
        }
    }

    /// A fault happens.
    pub fn fault(&mut self, fault: Fault) {
        if self.faults.is_calm {
            return;
        }
        self.tell("fault", fault.name());
        if self.happened(fault) {
            self.account.count("fault", fault.name());
        }
    }

    /// Lets a fault happen. False if there is nothing that it can happen to.
    fn happened(&mut self, fault: Fault) -> bool {
        let now = clock::elapsed();
        match fault {
            Fault::SessionsExpire => {
                self.sessions.clear();
                self.vcenter.changed();
            }
            Fault::VcenterRestarts => {
                self.sessions.clear();
                self.vcenter.down_until = now + Duration::from_secs(self.rng.u64(5..90));
                self.vcenter.changed();
            }
            Fault::TasksForgotten => self.tasks_are_forgotten(),
            Fault::UpdatesWithheld => {
                self.vcenter.withheld_until = now + Duration::from_secs(self.rng.u64(5..60));
            }
            Fault::HostLost => self.host_is_lost(),
            Fault::VmDies => return self.vm_dies(),
            Fault::MaintenanceFails => return self.maintenance_fails(),
            Fault::VmStarted => return self.vm_is_started(),
            Fault::VmMoved => return self.vm_is_moved(),
            Fault::KubernetesOutage => {
                self.kube.down_until = now + Duration::from_secs(self.rng.u64(2..40));
                self.kube.cut();
            }
            Fault::WatchCut => self.kube.cut(),
            Fault::HistoryCompacted => self.kube.compact(),
            Fault::WatchLags => {
                let until = now + Duration::from_secs(self.rng.u64(10..120));
                self.kube.lag = (until, Duration::from_millis(self.rng.u64(100..8_000)));
            }
            Fault::KindForbidden => self.kind_is_forbidden(),
            Fault::LabelLost => {
                let node = self.any_node();
                self.tell(node_name(node), "loses its label");
                self.set_label(node, false);
                self.within(5, 200, WorldEvent::LabelIsBack(node));
            }
            Fault::NodeDeleted => return self.node_is_deleted(),
            Fault::EtcdRestored => self.snapshot_is_taken(),
            Fault::ReadyLost => return self.ready_is_lost(),
            Fault::AnnotationsRemoved => return self.annotations_are_removed(),
            Fault::CordonTaken => return self.cordon_is_taken(),
            Fault::ClockSteps => self.clock_steps(),
            Fault::ReplicaKilled => self.any_replica().send_modify(|orders| orders.kills += 1),
            Fault::ReplicaStopped => self.any_replica().send_modify(|orders| orders.stops += 1),
            Fault::ReplicaCutOff => self.replica_is_cut_off(),
            Fault::HostileKubelet => return self.kubelet_lies(),
            Fault::HostileTenant => self.tenant_asks(),
            // These happen at a request, a task, a guest shutdown, a boot or an eviction.
            Fault::VcenterRefuses
            | Fault::VcenterReplyLost
            | Fault::VcenterUnavailable
            | Fault::VcenterSilent
            | Fault::VcenterLate
            | Fault::PollCut
            | Fault::TaskUpdateLost
            | Fault::TaskFails
            | Fault::TaskHangs
            | Fault::KubernetesRefuses
            | Fault::KubernetesReplyLost
            | Fault::KubernetesFails
            | Fault::KubernetesThrottles
            | Fault::KubernetesSilent
            | Fault::KubernetesLate
            | Fault::Conflict
            | Fault::GuestIgnores
            | Fault::ToolsStop
            | Fault::ManifestRestored
            | Fault::DriverUncordons
            | Fault::PodEndsLate => return false,
        }
        true
    }

    /// The wall clock of a replica is set.
    fn clock_steps(&mut self) {
        let replica = self.rng.usize(0..self.plan.replicas);
        let by = SignedDuration::from_secs(self.rng.i64(-7_200..7_200));
        self.tell(
            format!("replica-{replica}"),
            format!("its wall clock steps by {} s", by.as_secs()),
        );
        clock::step(replica, by);
    }

    /// All that is left of faults is repaired.
    pub fn repair(&mut self) {
        for host in 0..self.vcenter.hosts.len() {
            self.host_responds(host);
        }
        self.tasks_end();
        for node in 0..self.plan.nodes {
            self.set_label(node, true);
            self.register_node(node);
        }
    }

    fn any_replica(&mut self) -> &watch::Sender<Orders> {
        let replica = self.rng.usize(0..self.plan.replicas);
        &self.orders[replica]
    }

    fn any_node(&mut self) -> usize {
        self.rng.usize(0..self.plan.nodes)
    }

    fn within(&mut self, least: u64, most: u64, event: WorldEvent) {
        let after = Duration::from_millis(self.rng.u64(least * 1_000..most * 1_000));
        self.queue.after(after, event);
    }

    /// vCenter loses the connection to a host. Its VMs go on.
    fn host_is_lost(&mut self) {
        let host = self.rng.usize(0..self.vcenter.hosts.len());
        self.vcenter.hosts[host].connected = false;
        self.tell(self.vcenter.hosts[host].name.clone(), "does not respond");
        self.vcenter.changed();
        self.within(5, 300, WorldEvent::HostResponds(host));
    }

    /// vCenter reaches a host again.
    pub fn host_responds(&mut self, host: usize) {
        if !self.vcenter.hosts[host].connected {
            self.vcenter.hosts[host].connected = true;
            self.tell(self.vcenter.hosts[host].name.clone(), "responds again");
            self.vcenter.changed();
            self.hosts_progress();
        }
    }

    /// A VM goes off by itself. Nobody but its owner has to power it on, unless it is in an episode.
    fn vm_dies(&mut self) -> bool {
        let vm = self.any_node();
        let dies = self.vcenter.vms[vm].on && self.vcenter.busy(vm).is_none();
        if dies {
            self.vm_goes_off(vm);
            self.vcenter.vms[vm].off_by_person = true;
        }
        dies
    }

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
    fn node_is_deleted(&mut self) -> bool {
        let node = self.any_node();
        let name = node_name(node);
        let Some(manifest) = self.kube.delete(&node_key(node)) else {
            return false;
        };
        self.tell(&name, "is deleted");
        self.oracle.nodes[node].is_lost |= record(&manifest).is_some() && !self.has_copy(node);
        let was_cordoned = std::mem::take(&mut self.oracle.nodes[node].cordoned_by_person);
        self.oracle.nodes[node].uncordoned_by_person = Some(clock::elapsed());
        if self
            .faults
            .fires(Fault::ManifestRestored, &mut self.rng, &mut self.account)
        {
            self.manifests.push((node, manifest, was_cordoned));
            self.within(5, 100, WorldEvent::ManifestIsApplied);
        }
        for pod in self.pods_on(&name) {
            self.kube.delete(&pod);
        }
        self.schedule_soon();
        self.within(10, 300, WorldEvent::NodeRegisters(node));
        true
    }

    /// The kubelet of a VM that is on registers its Node, if that is missing.
    pub fn register_node(&mut self, node: usize) {
        if self.vcenter.vms[node].on && self.kube.get(&node_key(node)).is_none() {
            self.tell(node_name(node), "is registered again");
            self.add_node(node);
        }
    }

    /// A kubelet writes what NodeRestriction allows to its own Node.
    fn kubelet_lies(&mut self) -> bool {
        if self.plan.nodes == 1 {
            return false;
        }
        let liar = match self.oracle.liar {
            Some(liar) => liar,
            None => self.any_node(),
        };
        self.oracle.liar = Some(liar);
        let episode = Keys::under(DEFAULT_PREFIX).episode;
        let record_of_other = self.oracle.last_record.clone().map(|mut record| {
            // Of another node: a drain that never ends would hold a slot.
            record["phase"] = json!("draining");
            record.to_string()
        });
        let vms = self.vcenter.vms.len();
        let uuid = self.vcenter.vms[(liar + self.rng.usize(1..vms)) % vms]
            .uuid
            .clone();
        let lie = self.rng.u32(0..8);
        let big = "x".repeat(200 << 10);
        let annotate =
            |node: &mut Value, key: &str, value: Value| node["metadata"]["annotations"][key] = value;
        self.kube
            .change(&node_key(liar), HOSTILE_KUBELET, |node| match lie {
                0 => annotate(node, &episode, json!("{\"id\": [[[[\u{1}")),
                1 => match record_of_other {
                    Some(record) => annotate(node, &episode, json!(record)),
                    None => annotate(node, &episode, json!("{\"phase\": \"draining\"}")),
                },
                2 => node["status"]["nodeInfo"]["systemUUID"] = json!(uuid),
                3 => node["metadata"]["annotations"] = json!({}),
                4 => annotate(node, SKIP, json!("true")),
                5 => annotate(node, "example.com/big", json!(big)),
                6 => node["spec"]["unschedulable"] = json!(false),
                _ => node["status"]["nodeInfo"]["bootID"] = json!("boot-forged"),
            });
        let words = [
            "writes a record that cannot be read",
            "writes the record of another node",
            "reports the UUID of another VM",
            "removes its annotations",
            "sets the annotation skip",
            "writes a large annotation",
            "uncordons itself",
            "reports another boot",
        ];
        let words = words.get(usize::try_from(lie).unwrap_or_default());
        self.tell(node_name(liar), words.copied().unwrap_or_default());
        true
    }

    /// A tenant creates a NodeMaintenance that an older or another schema allows.
    fn tenant_asks(&mut self) {
        self.requests += 1;
        let name = format!("odd-{}", self.requests);
        let node = self.any_node();
        self.oracle.nodes[node].causes += 1;
        let node = node_name(node);
        let specs = [
            json!("not an object"),
            json!({"action": "Drain"}),
            json!({"nodeName": "gpu-none", "action": "PowerOff", "origin": "Request"}),
            json!({"nodeName": node, "action": "Explode", "origin": "Request"}),
            json!({"nodeName": node, "action": "Drain", "origin": "Request", "drainTimeoutSeconds": -5}),
            json!({"nodeName": node, "action": "Drain", "origin": "Request", "notBefore": "yesterday"}),
            json!({"nodeName": node, "action": "Relocate", "origin": "Request", "targetHost": "esx-none"}),
            json!({"nodeName": node, "action": "Drain", "origin": "Request", "reason": "x".repeat(100 << 10)}),
            json!({"nodeName": node, "action": "Drain", "origin": "Request", "drainTimeoutSeconds": 1}),
            json!({"nodeName": node, "action": "Reboot", "origin": "Request", "window": {"start": "25:00", "end": "07:00"}}),
        ];
        let spec = specs[self.rng.usize(0..specs.len())].clone();
        self.tell("tenant", format!("creates {name}: {:.100}", spec.to_string()));
        let object = json!({
            "kind": "NodeMaintenance", "apiVersion": "haulout.dev/v1alpha1", "metadata": {}, "spec": spec,
        });
        // The name is new.
        let _ = self
            .kube
            .create(&cluster_key("nodemaintenances", &name), object, "kubectl");
    }
}
