//! What kubelets do, as it was measured of a real one.

use std::time::Duration;

use serde_json::{Value, json};

use crate::clock;
use crate::cluster::{
    GPU, KUBELET, has_ended, is_of_daemon_set, is_terminating, node_key, node_name, pod_key,
};
use crate::faults::Fault;
use crate::store::Key;
use crate::world::{World, WorldEvent};

/// How often a kubelet writes a status that has changed. Only this shows that a device plugin has registered.
const STATUS: Duration = Duration::from_secs(10);

/// How often it writes one that has not changed. After a restore of etcd, a watch that goes on from its old version misses what was
/// restored, until such a write.
const UNCHANGED_STATUS: Duration = Duration::from_secs(300);

impl World {
    /// Schedules the status of each kubelet.
    pub fn plan_statuses(&mut self) {
        for node in 0..self.plan.nodes {
            self.queue.after(UNCHANGED_STATUS, WorldEvent::StatusIsDue(node));
        }
    }

    /// The time of an unchanged status.
    pub fn status_is_due(&mut self, node: usize) {
        self.queue.after(UNCHANGED_STATUS, WorldEvent::StatusIsDue(node));
        let now = format!("{:.0}", clock::true_time());
        if self.kubelet_runs(node) {
            self.kube.change(&node_key(node), KUBELET, |node| {
                node["status"]["conditions"][0]["lastHeartbeatTime"] = json!(now);
            });
        }
    }

    /// Whether the kubelet of a node runs: it starts after the VM, and ends before the guest has shut down.
    pub fn kubelet_runs(&self, node: usize) -> bool {
        let vm = &self.vcenter.vms[node];
        vm.on && vm.kubelet == vm.boots && !vm.going_down
    }

    /// Whether the guest tells its kubelet that it shuts down, as `shutdownGracePeriod` says. So on every second node.
    fn is_graceful(&self, node: usize) -> bool {
        (self.plan.seed + node as u64).is_multiple_of(2)
    }

    /// The containers of a pod that terminates have ended, if its kubelet runs, and its phase says so. It is deleted when its volumes
    /// are unmounted.
    pub fn pod_ends(&mut self, pod: &Key) {
        let runs = self.node_of(pod).is_none_or(|node| self.kubelet_runs(node));
        let is_leaving = self.kube.get(pod).is_some_and(|pod| is_terminating(pod));
        if !runs || !is_leaving {
            return;
        }
        let phase = if self.rng.bool() { "Succeeded" } else { "Failed" };
        self.kube.change(pod, KUBELET, |pod| {
            pod["status"]["phase"] = json!(phase);
            pod["status"]["conditions"] =
                json!([{"type": "Ready", "status": "False", "reason": "PodCompleted"}]);
        });
        self.update_budgets();
        let unmounts = match self.rng.u32(0..10) {
            0 => self.rng.u64(1_400..10_000),
            _ => self.rng.u64(10..1_400),
        };
        self.queue.after(
            Duration::from_millis(unmounts),
            WorldEvent::PodIsDone(pod.clone()),
        );
    }

    /// The kubelet is done with a pod that terminates. A finalizer may keep the Pod for a while.
    pub fn pod_is_done(&mut self, pod: &Key) {
        let runs = self.node_of(pod).is_none_or(|node| self.kubelet_runs(node));
        let is_leaving = self.kube.get(pod).is_some_and(|pod| is_terminating(pod));
        if !runs || !is_leaving {
            return;
        }
        if self.rng.u32(0..20) > 0 || !self.plan.has_finalizers {
            self.finalizer_is_gone(pod);
            return;
        }
        let now = format!("{:.0}", clock::true_time());
        self.kube.change(pod, KUBELET, |pod| {
            pod["metadata"]["deletionTimestamp"] = json!(now);
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(0);
        });
        self.within(5..120, WorldEvent::FinalizerIsGone(pod.clone()));
    }

    /// Nothing keeps a deleted Pod any more.
    pub fn finalizer_is_gone(&mut self, pod: &Key) {
        if self.kube.get(pod).is_some_and(|pod| is_terminating(pod)) {
            self.kube.delete(pod);
            self.update_budgets();
            self.schedule_soon();
        }
    }

    /// Sets the condition Ready.
    pub fn set_ready(&mut self, node: usize, status: &str) {
        let now = format!("{:.0}", clock::true_time());
        let (reason, message) = match status {
            "True" => ("KubeletReady", "kubelet is posting ready status"),
            "False" => ("KubeletNotReady", "node is shutting down"),
            _ => ("NodeStatusUnknown", "Kubelet stopped posting node status."),
        };
        self.kube.change(&node_key(node), KUBELET, |node| {
            let ready = &mut node["status"]["conditions"][0];
            if ready["status"] != status {
                ready["lastTransitionTime"] = json!(now);
            }
            ready["status"] = json!(status);
            ready["reason"] = json!(reason);
            ready["message"] = json!(message);
            ready["lastHeartbeatTime"] = json!(now);
        });
    }

    /// The guest shuts down. A kubelet with a shutdown grace period says so, and fails its pods; it rejects the pods with which the
    /// DaemonSets replace theirs.
    pub fn kubelet_shuts_down(&mut self, node: usize) {
        if !self.is_graceful(node) {
            return;
        }
        self.set_ready(node, "False");
        for pod in self.pods_on(&node_name(node)) {
            let Some(object) = self.kube.get(&pod) else {
                continue;
            };
            let is_daemon = is_of_daemon_set(object);
            if is_daemon {
                self.kube.delete(&pod);
                self.add_daemon(node);
            }
            let reason = if is_daemon { "NodeShutdown" } else { "Terminated" };
            self.kube.change(&pod, KUBELET, |pod| {
                pod["status"] = json!({"phase": "Failed", "reason": reason});
            });
        }
        self.update_budgets();
        self.schedule_soon();
    }

    /// The DaemonSet's pod of a node.
    pub fn add_daemon(&mut self, node: usize) {
        let daemon = self.pod("DaemonSet", "agent", Some(node));
        // The name is free.
        let _ = self
            .kube
            .create(&pod_key(&format!("agent-{node}")), daemon, KUBELET);
    }

    /// The kubelet of a VM that was powered on has started.
    pub fn kubelet_starts(&mut self, node: usize, boots: u32) {
        let vm = &self.vcenter.vms[node];
        if !vm.on || vm.boots != boots {
            return;
        }
        let is_boot = vm.kubelet != boots;
        self.vcenter.vms[node].kubelet = boots;
        // The Node may have been deleted.
        let is_new = self.register_node(node);
        let has_lost_checkpoint = is_boot
            && self
                .faults
                .fires(Fault::CheckpointLost, &mut self.rng, &mut self.account);
        let gpus = self.gpus_of(node);
        self.kube.change(&node_key(node), KUBELET, |object| {
            object["status"]["nodeInfo"]["bootID"] = json!(format!("boot-{node}-{boots}"));
            // A kubelet that does not know the resource leaves its counts alone.
            if !has_lost_checkpoint {
                set_gpus(object, gpus);
            }
        });
        if !is_new {
            self.set_ready(node, "True");
        }
        self.tell(node_name(node), format!("is Ready on boot {boots}"));
        for pod in self.pods_on(&node_name(node)) {
            self.pod_was_left(&pod, is_boot);
        }
        // A plugin that has registered is seen with the next status.
        let registers = Duration::from_millis(self.rng.u64(500..12_000));
        let ticks = registers.as_secs() / STATUS.as_secs() + 1;
        let shown = STATUS * u32::try_from(ticks).unwrap_or(1);
        self.queue.after(shown, WorldEvent::GpuIsBack { node, boots });
        if self
            .faults
            .fires(Fault::DriverUncordons, &mut self.rng, &mut self.account)
        {
            let init = Duration::from_millis(self.rng.u64(500..8_000));
            self.queue
                .after(init, WorldEvent::DriverUncordons { node, boots });
        }
        self.schedule_soon();
    }

    /// A Node that is registered anew is not Ready at first.
    pub fn node_is_new(&mut self, node: usize) {
        let (boots, gpus) = (self.vcenter.vms[node].boots, self.gpus_of(node));
        self.kube
            .change(&node_key(node), KUBELET, |object| set_gpus(object, gpus));
        self.set_ready(node, "False");
        let soon = Duration::from_millis(self.rng.u64(250..400));
        self.queue.after(soon, WorldEvent::ReadyIsBack { node, boots });
    }

    /// A pod that was on the node when its VM went off.
    fn pod_was_left(&mut self, pod: &Key, is_boot: bool) {
        let Some(object) = self.kube.get(pod).cloned() else {
            return;
        };
        let (is_daemon, is_running) = (is_of_daemon_set(&object), object["status"]["phase"] == "Running");
        if is_terminating(&object) {
            let cleans_up = Duration::from_millis(self.rng.u64(700..2_500));
            self.queue.after(cleans_up, WorldEvent::PodIsDone(pod.clone()));
        } else if has_ended(&object) && is_daemon {
            if let Some(node) = self.node_of(pod) {
                self.kube.delete(pod);
                self.add_daemon(node);
            }
        } else if is_boot && is_running && !is_daemon && self.rng.u32(0..4) == 0 {
            // It has a GPU, and the plugin has not registered yet.
            self.kube.change(pod, KUBELET, |pod| {
                pod["status"] = json!({"phase": "Failed", "reason": "UnexpectedAdmissionError"});
            });
        } else if !has_ended(&object) {
            if is_boot && is_running {
                self.kube.change(pod, KUBELET, |pod| {
                    pod["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
                });
            }
            let starts = Duration::from_millis(self.rng.u64(300..1_700));
            self.queue.after(starts, WorldEvent::PodRuns(pod.clone()));
        }
        self.update_budgets();
    }

    /// How many GPUs the device plugin of a node has registered.
    fn gpus_of(&self, node: usize) -> u32 {
        let vm = &self.vcenter.vms[node];
        u32::from(vm.plugin == vm.boots)
    }

    /// The device plugin has registered the GPU, and the kubelet writes its status.
    pub fn gpu_is_back(&mut self, node: usize, boots: u32) {
        let vm = &mut self.vcenter.vms[node];
        if vm.on && vm.boots == boots && vm.kubelet == boots {
            vm.plugin = boots;
            self.kube
                .change(&node_key(node), KUBELET, |object| set_gpus(object, 1));
        }
    }

    /// A device plugin ends. It is back before the kubelet forgets its resource, which takes five minutes; until then the capacity
    /// stays.
    pub(crate) fn plugin_ends(&mut self) -> bool {
        let is_up = |world: &Self, node: usize| world.kubelet_runs(node) && world.gpus_of(node) > 0;
        let Some(node) = self.any_node_where(is_up) else {
            return false;
        };
        self.tell(node_name(node), "has no device plugin for a while");
        self.kube.change(&node_key(node), KUBELET, |object| {
            object["status"]["allocatable"][GPU] = json!("0");
        });
        let boots = self.vcenter.vms[node].boots;
        self.within(10..290, WorldEvent::GpuIsBack { node, boots });
        true
    }

    /// Somebody has written the status of a Node. Its kubelet compares it with its own, and writes what differs.
    pub fn status_was_written(&mut self, node: usize) {
        let boots = self.vcenter.vms[node].boots;
        if self.kubelet_runs(node) && self.gpus_of(node) > 0 {
            let tick = Duration::from_millis(self.rng.u64(100..10_000));
            self.queue.after(tick, WorldEvent::GpuIsBack { node, boots });
        }
    }
}

/// The same patch of a Node's status as a merge patch: a strategic one merges conditions by their type.
pub fn with_merged_conditions(node: &Value, patch: &Value) -> Value {
    let (Some(before), Some(changes)) = (
        node["status"]["conditions"].as_array(),
        patch["status"]["conditions"].as_array(),
    ) else {
        return patch.clone();
    };
    let mut conditions = before.clone();
    for change in changes {
        let at = conditions.iter().position(|it| it["type"] == change["type"]);
        match (at, change["$patch"] == "delete") {
            (Some(at), true) => {
                conditions.remove(at);
            }
            (Some(at), false) => json_patch::merge(&mut conditions[at], change),
            (None, true) => {}
            (None, false) => conditions.push(change.clone()),
        }
    }
    let mut patch = patch.clone();
    patch["status"]["conditions"] = json!(conditions);
    patch
}

fn set_gpus(node: &mut Value, count: u32) {
    for field in ["capacity", "allocatable"] {
        node["status"][field][GPU] = json!(count.to_string());
    }
}
