//! What happens in the cluster by itself: kubelets, the scheduler, workloads with budgets, and evictions.

use std::time::Duration;

use serde_json::{Value, json};

use crate::clock;
use crate::kube_api::{EvictionAsk, refusal};
use crate::store::{Key, cluster_key, is_cordoned};
use crate::world::{World, WorldEvent};

const NAMESPACE: &str = "shop";
const SCHEDULER: &str = "kube-scheduler";
pub(crate) const KUBELET: &str = "kubelet";
pub(crate) const GPU: &str = "nvidia.com/gpu";

/// The label by which the controller selects Nodes.
pub const LABEL: &str = "intel.feature.node.kubernetes.io/gpu";

/// A set of equal pods.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its name, which is a label of its pods.
    pub name: String,
    /// How many pods there are.
    pub replicas: usize,
    /// How many have to be healthy, if there is a budget.
    pub budget: Option<usize>,
    /// How many pods were created so far.
    created: usize,
    /// The node that its controller names in `spec.nodeName`: no cordon keeps its pods away.
    pub pinned: Option<usize>,
}

pub fn node_name(node: usize) -> String {
    format!("gpu-{node}")
}

pub fn node_key(node: usize) -> Key {
    cluster_key("nodes", &node_name(node))
}

pub fn pod_key(name: &str) -> Key {
    ("pods".to_owned(), NAMESPACE.to_owned(), name.to_owned())
}

fn budget_key(workload: &str) -> Key {
    (
        "poddisruptionbudgets".to_owned(),
        NAMESPACE.to_owned(),
        workload.to_owned(),
    )
}

fn budget(app: &str, least: usize, pods: usize) -> Value {
    json!({
        "kind": "PodDisruptionBudget", "apiVersion": "policy/v1", "metadata": {},
        "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": app}}},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": least, "expectedPods": pods},
    })
}

pub fn is_ready(node: &Value) -> bool {
    node["status"]["conditions"][0]["status"] == "True"
}

pub(crate) fn is_terminating(pod: &Value) -> bool {
    !pod["metadata"]["deletionTimestamp"].is_null()
}

/// Whether the time that a terminating pod has to end is over.
pub fn is_overdue(pod: &Value) -> bool {
    let until = pod["metadata"]["deletionTimestamp"].as_str();
    let until: Option<jiff::Timestamp> = until.and_then(|until| until.parse().ok());
    until.is_some_and(|until| until <= clock::true_time())
}

fn is_healthy(pod: &Value) -> bool {
    let is_ready = pod["status"]["conditions"][0]["status"] == "True";
    pod["status"]["phase"] == "Running" && is_ready && !is_terminating(pod)
}

/// Whether the containers of a pod have ended, and it does not start again.
pub(crate) fn has_ended(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// Whether a pod has to leave its node before the power is cut. The kubelet of one that was evicted still unmounts its volumes when its
/// containers have ended.
pub fn blocks_drain(pod: &Value) -> bool {
    let is_daemon = is_of_daemon_set(pod);
    let is_with_kubelet = is_terminating(pod) && pod["metadata"]["deletionGracePeriodSeconds"] != 0;
    !is_daemon && (!has_ended(pod) || is_with_kubelet)
}

pub(crate) fn is_of_daemon_set(pod: &Value) -> bool {
    pod["metadata"]["ownerReferences"][0]["kind"] == "DaemonSet"
}

impl Workload {
    /// A workload without pods.
    pub fn new(name: String, replicas: usize, budget: Option<usize>) -> Self {
        Self {
            name,
            replicas,
            budget,
            created: 0,
            pinned: None,
        }
    }
}

impl World {
    /// Creates the Node of a VM.
    pub fn add_node(&mut self, node: usize) {
        let uuid = self.vcenter.vms[node].uuid.clone();
        let boots = self.vcenter.vms[node].boots;
        let (name, now) = (node_name(node), format!("{:.0}", clock::true_time()));
        // A kubelet that lies about its UUID without a provider ID has exactly one VM, and another node has it too.
        let spec = match self.plan.is_liar(node) {
            true => json!({}),
            false => json!({"providerID": format!("vsphere://{uuid}")}),
        };
        let object = json!({
            "kind": "Node", "apiVersion": "v1",
            "metadata": {
                "labels": {LABEL: "true", "kubernetes.io/hostname": name},
                "annotations": {},
            },
            "spec": spec,
            "status": {
                "conditions": [{
                    "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                    "lastHeartbeatTime": now, "lastTransitionTime": now,
                }],
                "nodeInfo": {
                    "systemUUID": uuid, "bootID": format!("boot-{node}-{boots}"), "machineID": "m", "kernelVersion": "6.1",
                    "osImage": "Linux", "containerRuntimeVersion": "containerd://2.0", "kubeletVersion": "v1.34.0",
                    "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64",
                },
                "capacity": {GPU: "1", "pods": "110"}, "allocatable": {GPU: "1", "pods": "110"},
            },
        });
        // The name is new.
        let _ = self.kube.create(&node_key(node), object, KUBELET);
        self.add_daemon(node);
    }

    /// A person creates a pod that nothing replaces.
    pub fn add_single_pod(&mut self, name: &str, app: &str, node: usize) {
        if !self.workloads.iter().any(|workload| workload.name == app) {
            self.workloads.push(Workload::new(app.to_owned(), 0, None));
        }
        let pod = self.pod("ReplicaSet", app, Some(node));
        // The name is new.
        let _ = self.kube.create(&pod_key(name), pod, "kubectl");
        self.update_budgets();
    }

    /// A person says how many pods of a workload have to be healthy.
    pub fn set_budget(&mut self, app: &str, least: usize) {
        let Some(workload) = self.workloads.iter_mut().find(|workload| workload.name == app) else {
            return;
        };
        workload.budget = Some(least);
        let key = budget_key(app);
        if self.kube.get(&key).is_none() {
            let budget = budget(app, least, 1);
            let _ = self.kube.create(&key, budget, "kubectl");
        }
        self.kube.change(&key, "kubectl", |budget| {
            budget["spec"]["minAvailable"] = json!(least);
            budget["status"]["desiredHealthy"] = json!(least);
        });
        self.update_budgets();
    }

    pub(crate) fn pod(&self, owner: &str, workload: &str, node: Option<usize>) -> Value {
        let mut pod = json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "labels": {"app": workload},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": owner, "name": workload, "uid": format!("uid-{workload}"), "controller": true}],
            },
            "spec": {"containers": [], "terminationGracePeriodSeconds": 30},
            "status": {"phase": "Pending"},
        });
        if let Some(node) = node {
            pod["spec"]["nodeName"] = json!(node_name(node));
            pod["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        }
        pod
    }

    /// Creates a workload whose pods run already.
    pub fn add_workload(&mut self, workload: Workload) {
        if let Some(least) = workload.budget {
            let budget = budget(&workload.name, least, workload.replicas);
            let _ = self
                .kube
                .create(&budget_key(&workload.name), budget, "kube-controller-manager");
        }
        let (replicas, index) = (workload.replicas, self.workloads.len());
        self.workloads.push(workload);
        for _ in 0..replicas {
            let pinned = self.workloads[index].pinned;
            let node = pinned.unwrap_or_else(|| self.rng.usize(0..self.plan.nodes));
            self.add_pod(index, Some(node));
        }
        self.update_budgets();
    }

    fn add_pod(&mut self, workload: usize, node: Option<usize>) {
        let workload = &mut self.workloads[workload];
        workload.created += 1;
        let (app, number) = (workload.name.clone(), workload.created);
        let pod = self.pod("ReplicaSet", &app, node);
        let _ = self.kube.create(
            &pod_key(&format!("{app}-{number}")),
            pod,
            "kube-controller-manager",
        );
    }

    /// The pods of a workload.
    fn pods_of<'a>(&'a self, app: &'a str) -> impl Iterator<Item = &'a Value> {
        let pods = self.kube.list("pods").map(|(_, pod)| &**pod);
        pods.filter(move |pod| pod["metadata"]["labels"]["app"] == app)
    }

    /// Whether the eviction of a pod would be accepted.
    pub(crate) fn may_be_evicted(&self, pod: &Value) -> bool {
        let app = pod["metadata"]["labels"]["app"].as_str().unwrap_or_default();
        let workload = self.workloads.iter().find(|workload| workload.name == app);
        let least = workload.and_then(|workload| workload.budget);
        let healthy = || self.pods_of(app).filter(|pod| is_healthy(pod)).count();
        is_healthy(pod) && least.is_none_or(|least| healthy() > least)
    }

    pub(crate) fn update_budgets(&mut self) {
        for index in 0..self.workloads.len() {
            let Workload {
                name,
                budget: Some(least),
                ..
            } = self.workloads[index].clone()
            else {
                continue;
            };
            let healthy = self.pods_of(&name).filter(|pod| is_healthy(pod)).count();
            self.kube
                .change(&budget_key(&name), "kube-controller-manager", |budget| {
                    budget["status"]["disruptionsAllowed"] = json!(healthy.saturating_sub(least));
                    budget["status"]["currentHealthy"] = json!(healthy);
                });
        }
    }

    /// Binds pods soon.
    pub fn schedule_soon(&mut self) {
        if !self.is_scheduling {
            self.is_scheduling = true;
            let soon = Duration::from_millis(self.rng.u64(100..1_000));
            self.queue.after(soon, WorldEvent::Schedule);
        }
    }

    /// Creates missing pods, and decides where pending pods run.
    pub fn schedule(&mut self) {
        self.is_scheduling = false;
        for index in 0..self.workloads.len() {
            let Workload {
                name,
                replicas,
                pinned,
                ..
            } = self.workloads[index].clone();
            if pinned.is_some_and(|node| !self.vcenter.vms[node].on) {
                continue;
            }
            let is_there = |pod: &&Value| !is_terminating(pod) && !has_ended(pod);
            let there = self.pods_of(&name).filter(is_there).count();
            for _ in there..replicas {
                self.add_pod(index, pinned);
            }
        }
        let takes = |node: &usize| {
            let node = self.kube.get(&node_key(*node));
            node.is_some_and(|node| is_ready(node) && !is_cordoned(node))
        };
        let nodes: Vec<usize> = (0..self.plan.nodes).filter(takes).collect();
        if nodes.is_empty() {
            return;
        }
        let is_pending = |pod: &&Value| pod["spec"]["nodeName"].is_null();
        let pods = self.kube.list("pods").map(|(key, pod)| (key, &**pod));
        let pending = pods.filter(|(_, pod)| is_pending(pod));
        let pending: Vec<Key> = pending.map(|(key, _)| key.clone()).collect();
        for pod in pending {
            let node = nodes[self.rng.usize(0..nodes.len())];
            // The scheduler may bind to a Node that was cordoned a moment ago. Haulout waits a second for that.
            let late = self.rng.u64(1..50);
            let late = Duration::from_millis(if late < 40 { late } else { late * 18 });
            self.queue.after(late, WorldEvent::PodBound { pod, node });
        }
    }

    pub fn pod_bound(&mut self, pod: &Key, node: usize) {
        let name = node_name(node);
        self.kube
            .change(pod, SCHEDULER, |pod| pod["spec"]["nodeName"] = json!(name));
        let starts = Duration::from_millis(self.rng.u64(500..5_000));
        self.queue.after(starts, WorldEvent::PodRuns(pod.clone()));
    }

    /// A pod runs, if its node does.
    pub fn pod_runs(&mut self, pod: &Key) {
        let Some(node) = self.node_of(pod) else { return };
        let may_run = |pod: &Value| !has_ended(pod) && !is_terminating(pod);
        if !self.kubelet_runs(node) || self.kube.get(pod).is_none_or(|pod| !may_run(pod)) {
            return;
        }
        self.kube.change(pod, KUBELET, |pod| {
            pod["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        });
        self.update_budgets();
    }

    pub(crate) fn node_of(&self, pod: &Key) -> Option<usize> {
        let node = self.kube.get(pod)?["spec"]["nodeName"].as_str()?;
        node.strip_prefix("gpu-")?.parse().ok()
    }

    /// kube-controller-manager has not heard of a kubelet for some time.
    pub fn node_unknown(&mut self, node: usize, boots: u32) {
        let vm = &self.vcenter.vms[node];
        if !vm.on && vm.boots == boots {
            self.set_ready(node, "Unknown");
            self.tell(node_name(node), "is not Ready");
        }
    }

    /// The pods that are bound to a node.
    pub fn pods_on(&self, node: &str) -> Vec<Key> {
        let pods = self
            .kube
            .list("pods")
            .filter(|(_, pod)| pod["spec"]["nodeName"] == node);
        pods.map(|(key, _)| key.clone()).collect()
    }

    /// The eviction of a pod.
    pub fn evict(&mut self, ask: &EvictionAsk<'_>) -> (u16, Value) {
        let key = ask.pod;
        let Some(pod) = self.kube.get(key).cloned() else {
            return refusal(404, "NotFound", &format!("pods \"{}\" not found", key.2));
        };
        if ask.uid.is_some_and(|uid| pod["metadata"]["uid"] != uid) {
            let message = "Precondition failed: UID in precondition: another, UID in object meta: this";
            return refusal(409, "Conflict", message);
        }
        self.check_eviction(&pod);
        let app = pod["metadata"]["labels"]["app"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let workload = self.workloads.iter().find(|workload| workload.name == app);
        if let Some(least) = workload.and_then(|workload| workload.budget)
            && is_healthy(&pod)
        {
            let healthy = self.pods_of(&app).filter(|pod| is_healthy(pod)).count();
            if healthy <= least {
                self.account.count("fault", "eviction: held by a budget");
                let message = format!(
                    "The disruption budget {app} needs {least} healthy pods and has {healthy} currently"
                );
                let (code, mut body) = refusal(
                    429,
                    "TooManyRequests",
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                );
                body["details"] = json!({"causes": [{"reason": "DisruptionBudget", "message": message}]});
                return (code, body);
            }
        }
        if !is_terminating(&pod) {
            self.check_pinned_eviction(&app);
            let ends = self.faults.pod_ends(&mut self.rng, &mut self.account);
            self.tell(
                "eviction",
                format!("{} ends in {:.0} s", key.2, ends.as_secs_f32()),
            );
            let at = clock::wall_at(clock::elapsed() + Duration::from_secs(30));
            self.kube.change(key, "kube-apiserver", |pod| {
                pod["metadata"]["deletionTimestamp"] = json!(format!("{at:.0}"));
                pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
            });
            self.queue.after(ends, WorldEvent::PodEnds(key.clone()));
            self.update_budgets();
            self.schedule_soon();
        }
        (
            201,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}),
        )
    }
}
