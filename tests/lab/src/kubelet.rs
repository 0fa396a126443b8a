//! A simulated kubelet: a Node and its pods follow the power state of a VM.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use futures::{Stream, StreamExt as _};
pub use haulout_show::node::GPU;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// With the value `true`, the pod never terminates until the machine boots again.
pub const STUCK: &str = "lab.haulout/stuck";
/// The milliseconds in which a pod's containers end. By default, the whole grace period.
pub const EXITS_AFTER_MS: &str = "lab.haulout/exits-after-ms";
/// The milliseconds from then until the kubelet has unmounted a pod's volumes and deletes it. By default, [`UNMOUNTS_AFTER`].
pub const UNMOUNTS_AFTER_MS: &str = "lab.haulout/unmounts-after-ms";
/// How long a kubelet needs for a pod whose containers have ended. A real one needs 10 ms to 1.4 s.
const UNMOUNTS_AFTER: Duration = Duration::from_millis(50);
/// How long a Node that is registered anew is not Ready: "CSINode is not yet initialized". On a real one 0.25 to 0.4 s.
const INITIALIZES_AFTER: Duration = Duration::from_millis(300);
/// How long a pod that was left on the Node is not Ready after a boot. On a real one 0.3 to 1.7 s.
const RESTARTS_AFTER: Duration = Duration::from_millis(700);
/// Says that kube-controller-manager attaches the Node's volumes. Every kubelet sets it when it registers.
const ATTACHED_BY_CONTROLLER: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// The interval of unchanged status writes. The Lease is the heartbeat.
const STATUS_EVERY: Duration = Duration::from_secs(10);
/// The retry interval.
const RETRY: Duration = Duration::from_millis(200);
/// Ended pods that are reported concurrently.
const WORKERS: usize = 16;
/// The timeout of a request.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The state of a machine's VM, received from a [`watch`] channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VmFacts {
    /// Whether the VM is powered on.
    pub on: bool,
    /// The number of power-ons. A watch channel only shows the latest value; the count shows a fast reboot.
    pub boots: u64,
    /// Whether its guest shuts down.
    pub is_stopping: bool,
    /// The milliseconds that its guest takes to shut down.
    pub shutdown_ms: u32,
}

impl VmFacts {
    /// A VM that is running from the start.
    pub const ON: Self = Self {
        on: true,
        boots: 0,
        is_stopping: false,
        shutdown_ms: 0,
    };

    /// The same VM powered off.
    pub fn off(self) -> Self {
        Self {
            on: false,
            is_stopping: false,
            ..self
        }
    }

    /// The same VM powered on once more.
    pub fn booted(self) -> Self {
        Self {
            on: true,
            boots: self.boots + 1,
            is_stopping: false,
            ..self
        }
    }

    /// The same VM while its guest shuts down.
    pub fn stopping(self) -> Self {
        Self {
            is_stopping: true,
            ..self
        }
    }
}

/// The machine of a Node.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The Node's name.
    pub name: String,
    /// The Node's labels, in addition to a kubelet's own.
    pub labels: BTreeMap<String, String>,
    /// `spec.providerID`; none where no cloud provider runs.
    pub provider_id: Option<String>,
    /// `status.nodeInfo.systemUUID`.
    pub system_uuid: String,
    /// How many GPUs it has.
    pub gpus: u32,
    /// The heartbeat interval.
    pub heartbeat: Duration,
    /// The time from power-on to the start of the kubelet.
    pub boot: Duration,
    /// The time from then until the device plugin offers the GPUs. Only the next status shows them.
    pub gpus_after: Duration,
    /// How often the kubelet writes a status that has changed; 10 s by a real one. A device plugin that registers does not cause it.
    pub status_every: Duration,
    /// How long heartbeats continue after a power-off, which gives a stale Ready.
    pub lies: Duration,
}

impl Machine {
    /// A machine that boots in 0.5 s and has its GPUs 0.25 s later.
    pub fn new(name: impl Into<String>, vm_uuid: &str, gpus: u32) -> Self {
        Self {
            name: name.into(),
            labels: BTreeMap::new(),
            provider_id: Some(format!("vsphere://{vm_uuid}")),
            system_uuid: vm_uuid.to_owned(),
            gpus,
            heartbeat: Duration::from_secs(1),
            boot: Duration::from_millis(500),
            gpus_after: Duration::from_millis(250),
            status_every: Duration::from_millis(300),
            lies: Duration::ZERO,
        }
    }

    /// The same machine with one more label.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }
}

/// A running kubelet. Dropping it kills it: the Node stays without heartbeats.
#[derive(Debug)]
pub struct Kubelet {
    name: String,
    manners: watch::Sender<Manners>,
    task: JoinHandle<()>,
}

/// Changes to a running machine.
#[derive(Debug, Clone)]
pub(crate) struct Manners {
    /// How long heartbeats continue after a power-off. A real kubelet has none.
    lies: Duration,
    /// Whether boots hang.
    pub(crate) is_boot_held: bool,
    /// Whether the kubelet is stopped although its machine runs.
    pub(crate) is_stopped: bool,
    /// From the start of the kubelet until the device plugin has offered the GPUs.
    pub(crate) gpus_after: Duration,
    /// How many GPUs the device plugin offers.
    pub(crate) gpus: u32,
    /// Whether boots find no checkpoint of device plugins.
    pub(crate) loses_checkpoint: bool,
    /// Whether it has a shutdown grace period.
    pub(crate) is_graceful: bool,
    /// The machine's UUID as the kubelet reports it.
    pub(crate) system_uuid: String,
}

impl Manners {
    fn of(machine: &Machine) -> Self {
        Self {
            lies: machine.lies,
            is_boot_held: false,
            is_stopped: false,
            gpus_after: machine.gpus_after,
            gpus: machine.gpus,
            loses_checkpoint: false,
            is_graceful: false,
            system_uuid: machine.system_uuid.clone(),
        }
    }
}

impl Kubelet {
    /// Starts it on the current runtime. If the VM is on, its Node is registered at once with all GPUs, and is Ready a moment later.
    /// The client's user needs a kubelet's rights.
    pub fn start(client: kube::Client, machine: Machine, vm: watch::Receiver<VmFacts>) -> Self {
        let name = machine.name.clone();
        let (manners, manners_seen) = watch::channel(Manners::of(&machine));
        let task = tokio::spawn(Worker::new(client, machine, vm, manners_seen).run());
        Self { name, manners, task }
    }

    /// Starts on a machine what `run` makes of the changes to it.
    pub(crate) fn run_by<R>(machine: &Machine, run: impl FnOnce(watch::Receiver<Manners>) -> R) -> Self
    where
        R: Future<Output = ()> + Send + 'static,
    {
        let (manners, manners_seen) = watch::channel(Manners::of(machine));
        Self {
            name: machine.name.clone(),
            manners,
            task: tokio::spawn(run(manners_seen)),
        }
    }

    /// The Node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets how long heartbeats continue after the next power-off.
    pub fn set_lies(&self, lies: Duration) {
        self.manners.send_modify(|it| it.lies = lies);
    }

    /// From the next power-on, the kubelet does not start until [`Self::release_boot`].
    pub fn hold_boot(&self) {
        self.manners.send_modify(|it| it.is_boot_held = true);
    }

    /// Sets the time from the kubelet's start to its GPUs in the next boot.
    pub fn set_gpus_after(&self, after: Duration) {
        self.manners.send_modify(|it| it.gpus_after = after);
    }

    /// From the next boot on, the kubelet has lost its checkpoint of device plugins: until the plugin has registered, it leaves the GPU
    /// counts on its Node as they are. Otherwise it reports 0.
    pub fn lose_checkpoint(&self) {
        self.manners.send_modify(|it| it.loses_checkpoint = true);
    }

    /// From now on it has a shutdown grace period (`shutdownGracePeriod`): while its guest shuts down it says so at once, ends the pods on
    /// its Node as Failed, and rejects new ones.
    pub fn shut_down_gracefully(&self) {
        self.manners.send_modify(|it| it.is_graceful = true);
    }

    /// Sets how many GPUs the device plugin offers, from the next heartbeat on. Fewer are fewer allocatable ones; the capacity stays
    /// until the next boot, as for five minutes with a real kubelet.
    pub fn set_gpus(&self, gpus: u32) {
        self.manners.send_modify(|it| it.gpus = gpus);
    }

    /// Reports this as `status.nodeInfo.systemUUID`, whatever the machine's own is. The status is written at once.
    pub fn report_system_uuid(&self, uuid: &str) {
        self.manners
            .send_modify(|it| uuid.clone_into(&mut it.system_uuid));
    }

    /// Stops the kubelet while its machine goes on: no heartbeats, and no pod ends.
    pub fn stop(&self) {
        self.manners.send_modify(|it| it.is_stopped = true);
    }

    /// Starts a stopped kubelet again.
    pub fn resume(&self) {
        self.manners.send_modify(|it| it.is_stopped = false);
    }

    /// Lets boots finish again; an overdue one does at once.
    pub fn release_boot(&self) {
        self.manners.send_modify(|it| it.is_boot_held = false);
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The state of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Off,
    /// Powered off; heartbeats continue until then.
    Lying {
        until: Instant,
    },
    Booting {
        until: Instant,
    },
    /// The kubelet runs; the GPUs are offered from `gpus_at` on.
    Up {
        gpus_at: Instant,
    },
}

type PodEvents = Pin<Box<dyn Stream<Item = watcher::Result<Event<Pod>>> + Send>>;

struct Worker {
    nodes: Api<Node>,
    leases: Api<Lease>,
    client: kube::Client,
    machine: Machine,
    vm: watch::Receiver<VmFacts>,
    manners: watch::Receiver<Manners>,
    life: Life,
    boots: u64,
    boot_id: String,
    /// Whether this boot's kubelet has registered its Node. It does so only at its start: a deleted Node stays away
    /// until the next boot.
    registered: bool,
    /// When the Node that this boot's kubelet has created is Ready.
    initialized_at: Option<Instant>,
    /// When the kubelet learned that its machine shuts down.
    shutdown_at: Option<Instant>,
    beat_at: Instant,
    wrote_status: Option<Instant>,
    /// By UID, and shared, to avoid copies of all pods in each step.
    pods: BTreeMap<String, Arc<Pod>>,
    listing: BTreeMap<String, Arc<Pod>>,
    /// When the containers of terminating pods will have ended, by pod UID.
    ends: BTreeMap<String, Instant>,
    /// When the kubelet is done with pods whose containers have ended, by UID.
    done: BTreeMap<String, Instant>,
    /// Pods reported as ended, by UID. One report is enough if a finalizer keeps the pod.
    ended: BTreeSet<String>,
    /// The pods that ran when the machine went off, by UID: when they are Ready again, once their containers were started again.
    left: BTreeMap<String, Option<Instant>>,
    /// The most GPUs that were offered in this boot.
    most_gpus: u32,
}

impl Worker {
    fn new(
        client: kube::Client,
        machine: Machine,
        vm: watch::Receiver<VmFacts>,
        manners: watch::Receiver<Manners>,
    ) -> Self {
        let VmFacts { on, boots, .. } = *vm.borrow();
        let now = Instant::now();
        Self {
            nodes: Api::all(client.clone()),
            leases: Api::namespaced(client.clone(), "kube-node-lease"),
            client,
            vm,
            manners,
            life: if on { Life::Up { gpus_at: now } } else { Life::Off },
            boots,
            boot_id: fresh_boot_id(&machine.name),
            machine,
            registered: false,
            initialized_at: None,
            shutdown_at: None,
            beat_at: now,
            wrote_status: None,
            pods: BTreeMap::new(),
            listing: BTreeMap::new(),
            ends: BTreeMap::new(),
            done: BTreeMap::new(),
            ended: BTreeSet::new(),
            left: BTreeMap::new(),
            most_gpus: 0,
        }
    }

    async fn run(mut self) {
        let on_this_node = watcher::Config::default().fields(&format!("spec.nodeName={}", self.machine.name));
        let mut events: PodEvents = Box::pin(
            watcher(Api::<Pod>::all(self.client.clone()), on_this_node).then(|event| async {
                if event.is_err() {
                    // The watcher restarts at its next poll, which must not be a busy loop.
                    tokio::time::sleep(RETRY).await;
                }
                event
            }),
        );
        let mut source_lives = true;
        loop {
            self.step().await;
            let wake = self.wake_at();
            tokio::select! {
                // Without a source the machine keeps its last state.
                changed = self.vm.changed(), if source_lives => source_lives = changed.is_ok(),
                // Its sender is dropped with the task.
                Ok(()) = self.manners.changed() => {
                    self.wrote_status = None;
                    self.beat_at = Instant::now();
                }
                event = events.next() => match event {
                    Some(Ok(event)) => self.fold(event),
                    Some(Err(error)) => tracing::debug!(node = %self.machine.name, %error, "watching pods failed"),
                    None => return,
                },
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    fn fold(&mut self, event: Event<Pod>) {
        let uid = |pod: &Pod| pod.metadata.uid.clone().unwrap_or_default();
        match event {
            Event::Apply(pod) => {
                self.pods.insert(uid(&pod), Arc::new(pod));
            }
            Event::Delete(pod) => {
                self.pods.remove(&uid(&pod));
            }
            Event::Init => self.listing.clear(),
            Event::InitApply(pod) => {
                self.listing.insert(uid(&pod), Arc::new(pod));
            }
            Event::InitDone => self.pods = std::mem::take(&mut self.listing),
        }
        self.ends.retain(|uid, _| self.pods.contains_key(uid));
        self.done.retain(|uid, _| self.pods.contains_key(uid));
        self.ended.retain(|uid| self.pods.contains_key(uid));
        self.left.retain(|uid, _| self.pods.contains_key(uid));
    }

    /// When something is due by the clock.
    fn wake_at(&self) -> Instant {
        let life = match self.life {
            Life::Up { .. } if self.manners.borrow().is_stopped => {
                return Instant::now() + Duration::from_secs(3600);
            }
            // Only new facts change a machine that is off or held.
            Life::Off => return Instant::now() + Duration::from_secs(3600),
            Life::Booting { .. } if self.manners.borrow().is_boot_held => {
                return Instant::now() + Duration::from_secs(3600);
            }
            Life::Booting { until } => return until,
            Life::Lying { until } => until,
            Life::Up { gpus_at } if gpus_at > Instant::now() => gpus_at,
            Life::Up { .. } => self.beat_at,
        };
        let running = matches!(self.life, Life::Up { .. });
        let waits = |uid: &String| running && !self.ended.contains(uid);
        let pods = self.ends.iter().filter(|(uid, _)| waits(uid));
        let pods = pods.map(|(uid, end)| self.done.get(uid).copied().unwrap_or(*end));
        let left = self
            .left
            .values()
            .copied()
            .flatten()
            .filter(|_| running && self.shutdown_at.is_none());
        pods.chain(left).chain([life, self.beat_at]).min().unwrap_or(life)
    }

    async fn step(&mut self) {
        let now = Instant::now();
        self.live(now);
        if self.manners.borrow().is_stopped {
            return;
        }
        if now >= self.beat_at && matches!(self.life, Life::Up { .. } | Life::Lying { .. }) {
            let is_first = !self.registered || self.initialized_at.is_some();
            self.initialized_at = self.initialized_at.filter(|at| now < *at);
            self.beat_at = match self.beat(now).await {
                Ok(()) if is_first => {
                    let share = self.machine.heartbeat.mul_f64(share_of(&self.machine.name));
                    self.initialized_at.unwrap_or(now + share)
                }
                Ok(()) => now + self.machine.heartbeat,
                Err(error) => {
                    tracing::debug!(node = %self.machine.name, error = format!("{error:#}"), "a heartbeat failed");
                    Instant::now() + RETRY
                }
            };
        }
        if matches!(self.life, Life::Up { .. }) {
            self.tend_pods().await;
        }
    }

    /// Follows the VM's power and the clock.
    fn live(&mut self, now: Instant) {
        let VmFacts {
            on,
            boots,
            is_stopping,
            // vCenter powers it off after that time.
            shutdown_ms: _,
        } = *self.vm.borrow_and_update();
        let power_cycled = boots != self.boots;
        self.boots = boots;
        self.life = match self.life {
            Life::Off | Life::Lying { .. } if on => Life::Booting {
                until: now + self.machine.boot,
            },
            Life::Up { .. } | Life::Booting { .. } if on && power_cycled => Life::Booting {
                until: now + self.machine.boot,
            },
            Life::Up { .. } if !on => {
                let lies = self.manners.borrow().lies;
                if lies.is_zero() {
                    Life::Off
                } else {
                    Life::Lying { until: now + lies }
                }
            }
            Life::Booting { .. } if !on => Life::Off,
            Life::Lying { until } if now >= until => Life::Off,
            Life::Booting { until } if now >= until && !self.manners.borrow().is_boot_held => {
                self.begin_boot(now);
                let after = self.manners.borrow().gpus_after;
                let tick = self.machine.status_every.max(Duration::from_millis(1));
                let ticks = after.as_nanos() / tick.as_nanos() + 1;
                Life::Up {
                    gpus_at: now + tick * u32::try_from(ticks).unwrap_or(u32::MAX),
                }
            }
            Life::Up { gpus_at } => {
                // The status that shows the GPUs.
                if gpus_at <= now && self.wrote_status.is_some_and(|wrote| wrote < gpus_at) {
                    self.wrote_status = None;
                    self.beat_at = now;
                }
                self.life
            }
            Life::Off | Life::Lying { .. } | Life::Booting { .. } => self.life,
        };
        let is_stopping = is_stopping && self.manners.borrow().is_graceful;
        if is_stopping && self.shutdown_at.is_none() && matches!(self.life, Life::Up { .. }) {
            self.shutdown_at = Some(now);
            self.wrote_status = None;
            self.beat_at = now;
        }
    }

    /// The kubelet of a new boot.
    fn begin_boot(&mut self, now: Instant) {
        self.boot_id = fresh_boot_id(&self.machine.name);
        self.registered = false;
        self.initialized_at = None;
        self.shutdown_at = None;
        self.wrote_status = None;
        self.beat_at = now;
        self.most_gpus = 0;
        // The power cycle ended all containers.
        for (uid, pod) in &self.pods {
            if pod.metadata.deletion_timestamp.is_some() {
                self.ends.insert(uid.clone(), now);
            } else if phase_of(pod) == "Running" {
                self.left.insert(uid.clone(), None);
            }
        }
    }

    /// Renews the Lease, and writes the Node's status if it has changed.
    async fn beat(&mut self, now: Instant) -> anyhow::Result<()> {
        let name = self.machine.name.clone();
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name},
            "spec": {
                "holderIdentity": name,
                "leaseDurationSeconds": 40,
                "renewTime": format!("{:.6}", jiff::Timestamp::now()),
            },
        });
        let apply = PatchParams::apply("kubelet").force();
        limited(
            "renewing the node's lease",
            self.leases.patch(&name, &apply, &Patch::Apply(&lease)),
        )
        .await?;

        let node = match limited("reading the node", self.nodes.get_opt(&name)).await? {
            Some(node) => node,
            None if self.registered => return Ok(()),
            None => {
                let node = self.registration()?;
                let params = PostParams::default();
                let node = limited("registering the node", self.nodes.create(&params, &node)).await?;
                self.initialized_at = Some(now + INITIALIZES_AFTER);
                node
            }
        };
        self.registered = true;
        let status = self.status(&node, now);
        let due = self.wrote_status.is_none_or(|wrote| now >= wrote + STATUS_EVERY);
        if due || !says_ready(&node) {
            let patch = Patch::Strategic(json!({"status": status}));
            limited(
                "writing the node's status",
                self.nodes.patch_status(&name, &PatchParams::default(), &patch),
            )
            .await?;
            self.wrote_status = Some(now);
        }
        Ok(())
    }

    fn registration(&self) -> anyhow::Result<Node> {
        let machine = &self.machine;
        let mut labels = machine.labels.clone();
        for (key, value) in [
            ("hostname", machine.name.as_str()),
            ("os", "linux"),
            ("arch", "amd64"),
        ] {
            labels
                .entry(format!("kubernetes.io/{key}"))
                .or_insert_with(|| value.to_owned());
        }
        serde_json::from_value(json!({
            "metadata": {"name": machine.name, "labels": labels, "annotations": {ATTACHED_BY_CONTROLLER: "true"}},
            "spec": {"providerID": machine.provider_id},
        }))
        .context("composing the node")
    }

    fn status(&mut self, node: &Node, now: Instant) -> Value {
        let manners = self.manners.borrow().clone();
        let is_registered = match self.life {
            Life::Up { gpus_at } => now >= gpus_at,
            Life::Lying { .. } | Life::Booting { .. } | Life::Off => true,
        };
        let gpus = if is_registered { manners.gpus } else { 0 };
        self.most_gpus = self.most_gpus.max(gpus);
        let resources = |gpus: u32| {
            let mut resources = json!({"cpu": "16", "memory": "64Gi", "pods": "110"});
            if is_registered || !manners.loses_checkpoint {
                resources[GPU] = json!(gpus.to_string());
            }
            resources
        };
        let (capacity, allocatable) = (resources(self.most_gpus), resources(gpus));
        let system_uuid = manners.system_uuid.clone();
        let time = now_in_seconds();
        let (ready, reason, message) = match (self.shutdown_at, self.initialized_at) {
            (Some(_), _) => ("False", "KubeletNotReady", "node is shutting down"),
            (None, Some(_)) => ("False", "KubeletNotReady", "CSINode is not yet initialized"),
            (None, None) => ("True", "KubeletReady", "the lab's kubelet stand-in is ready"),
        };
        let conditions: Vec<Value> = [
            ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            ("PIDPressure", "False", "KubeletHasSufficientPID"),
            ("Ready", ready, reason),
        ]
        .into_iter()
        .map(|(kind, status, reason)| {
            let message = if kind == "Ready" { message } else { "" };
            let mut condition = json!({
                "type": kind, "status": status, "reason": reason, "lastHeartbeatTime": time, "message": message,
            });
            // A fast reboot leaves Ready and its transition time unchanged, as on a real node.
            if condition_of(node, kind) != Some(status) {
                condition["lastTransitionTime"] = json!(time);
            }
            condition
        })
        .collect();
        json!({
            "capacity": capacity,
            "allocatable": allocatable,
            "conditions": conditions,
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": self.machine.name},
            ],
            "nodeInfo": {
                "bootID": self.boot_id, "systemUUID": system_uuid,
                "machineID": self.machine.system_uuid.replace('-', ""),
                "kernelVersion": "lab", "osImage": "lab", "containerRuntimeVersion": "lab://1",
                "kubeletVersion": "v1.36.0", "kubeProxyVersion": "", "operatingSystem": "linux",
                "architecture": "amd64",
            },
        })
    }

    async fn tend_pods(&mut self) {
        let now = Instant::now();
        let mut ending = Vec::new();
        for (uid, pod) in self.pods.clone() {
            if pod.metadata.deletion_timestamp.is_some() {
                self.left.remove(&uid);
                if !self.has_ended(&uid, &pod, now) {
                    continue;
                }
                match self.done.get(&uid).copied() {
                    Some(done) if now >= done => ending.push((uid, pod)),
                    Some(_) => {}
                    None => match self.write_end(&pod).await {
                        Ok(()) => {
                            let unmounts =
                                annotation(&pod, UNMOUNTS_AFTER_MS).and_then(|text| text.parse().ok());
                            let unmounts = unmounts.map_or(UNMOUNTS_AFTER, Duration::from_millis);
                            self.done.insert(uid, Instant::now() + unmounts);
                        }
                        Err(error) => {
                            self.ends.insert(uid, Instant::now() + RETRY);
                            self.failed(&pod, &error);
                        }
                    },
                }
            } else {
                let tended = match self.shutdown_at {
                    Some(since) => self.stop_pod(&pod, since).await,
                    None => self.run_pod(&uid, &pod).await,
                };
                if let Err(error) = tended {
                    self.failed(&pod, &error);
                }
            }
        }
        let this = &*self;
        let reported: Vec<_> = futures::stream::iter(ending)
            .map(|(uid, pod)| async move {
                let reported = this.report_end(&uid, &pod).await;
                (uid, pod, reported)
            })
            .buffer_unordered(WORKERS)
            .collect()
            .await;
        for (uid, pod, reported) in reported {
            match reported {
                Ok(()) => {
                    self.ended.insert(uid);
                }
                Err(error) => {
                    self.done.insert(uid, Instant::now() + RETRY);
                    self.failed(&pod, &error);
                }
            }
        }
    }

    /// Writes the terminal phase of a pod whose containers have ended. It is deleted when its volumes are unmounted.
    async fn write_end(&mut self, pod: &Pod) -> anyhow::Result<()> {
        if matches!(phase_of(pod), "Succeeded" | "Failed") {
            return Ok(());
        }
        self.write_terminal(pod, json!({"phase": "Succeeded"}), "PodCompleted")
            .await
    }

    /// Writes `status`, which has a terminal phase, to a pod.
    async fn write_terminal(&mut self, pod: &Pod, mut status: Value, not_ready: &str) -> anyhow::Result<()> {
        let (pods, name) = self.pod_api(pod);
        status["conditions"] = json!([
            {"type": "Ready", "status": "False", "reason": not_ready, "lastTransitionTime": now_in_seconds()},
        ]);
        let patch = Patch::Strategic(json!({"metadata": {"uid": pod.metadata.uid}, "status": status}));
        let params = PatchParams::default();
        match limited("writing a pod's end", pods.patch_status(&name, &params, &patch)).await {
            Ok(written) => self.know(written),
            // It is gone, or another pod has its name.
            Err(error) if matches!(code(&error), Some(404 | 409 | 422)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// What a kubelet whose node shuts down since then does with a pod: it ends those that run, without their deletion, and starts none.
    async fn stop_pod(&mut self, pod: &Pod, since: Instant) -> anyhow::Result<()> {
        let reason = match phase_of(pod) {
            "Running" if Instant::now() >= since + exits_after(pod) => "Terminated",
            "Pending" => "NodeShutdown",
            _ => return Ok(()),
        };
        self.write_terminal(pod, json!({"phase": "Failed", "reason": reason}), "PodFailed")
            .await
    }

    /// Starts the containers of a pod again that ran when the machine went off, or fails it if it has GPUs: the device plugin does not
    /// offer them yet. Returns whether the pod is done for now.
    async fn restart_pod(&mut self, uid: &str, pod: &Pod) -> anyhow::Result<bool> {
        match self.left.get(uid).copied() {
            None => return Ok(false),
            Some(Some(ready_at)) if Instant::now() < ready_at => return Ok(true),
            Some(Some(_)) => {
                self.left.remove(uid);
                return Ok(false);
            }
            Some(None) => {}
        }
        if has_gpus(pod) {
            let reason = if self.manners.borrow().loses_checkpoint {
                "OutOfnvidia.com/gpu"
            } else {
                "UnexpectedAdmissionError"
            };
            let status = json!({"phase": "Failed", "reason": reason});
            self.write_terminal(pod, status, "PodFailed").await?;
            self.left.remove(uid);
            return Ok(true);
        }
        let is_ready = false;
        self.write_running(pod, is_ready).await?;
        let ready_at = Instant::now() + RESTARTS_AFTER;
        self.left.insert(uid.to_owned(), Some(ready_at));
        Ok(true)
    }

    fn failed(&self, pod: &Pod, error: &anyhow::Error) {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        tracing::debug!(node = %self.machine.name, pod = name, error = format!("{error:#}"), "tending a pod failed");
    }

    /// Whether the containers of a terminating pod have ended and this is not reported.
    fn has_ended(&mut self, uid: &str, pod: &Pod, now: Instant) -> bool {
        // A power cycle ends a stuck pod too.
        let hangs = annotation(pod, STUCK) == Some("true") && !self.ends.contains_key(uid);
        if hangs || self.ended.contains(uid) {
            return false;
        }
        let end = self.ends.entry(uid.to_owned());
        now >= *end.or_insert_with(|| now + exits_after(pod))
    }

    /// Reports a terminating pod as ended.
    async fn report_end(&self, uid: &str, pod: &Pod) -> anyhow::Result<()> {
        let (pods, name) = self.pod_api(pod);
        let precondition = Preconditions {
            uid: Some(uid.to_owned()),
            ..Preconditions::default()
        };
        let params = DeleteParams::default()
            .grace_period(0)
            .preconditions(precondition);
        match limited("reporting a pod as ended", pods.delete(&name, &params)).await {
            Ok(_) => Ok(()),
            // It is gone, or another pod has its name.
            Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes a pod Running and Ready, so that disruption budgets count it.
    async fn run_pod(&mut self, uid: &str, pod: &Pod) -> anyhow::Result<()> {
        if self.restart_pod(uid, pod).await? {
            return Ok(());
        }
        let status = pod.status.as_ref();
        let ready = status
            .iter()
            .flat_map(|it| it.conditions.iter().flatten())
            .any(|it| it.type_ == "Ready" && it.status == "True");
        let phase = phase_of(pod);
        if !matches!(phase, "Pending" | "Running") || ready && phase == "Running" {
            return Ok(());
        }
        let is_ready = true;
        self.write_running(pod, is_ready).await
    }

    /// Writes that the containers of a pod run. Those of a pod that is not Ready have just been started again.
    async fn write_running(&mut self, pod: &Pod, is_ready: bool) -> anyhow::Result<()> {
        let time = now_in_seconds();
        let conditions: Vec<Value> = ["PodScheduled", "Initialized", "ContainersReady", "Ready"]
            .into_iter()
            .map(|kind| {
                let status = if is_ready || kind == "PodScheduled" { "True" } else { "False" };
                json!({"type": kind, "status": status, "lastTransitionTime": time, "reason": null, "message": null})
            })
            .collect();
        let restarts = |name: &str| {
            let statuses = pod.status.as_ref().and_then(|it| it.container_statuses.as_ref());
            let mut statuses = statuses.into_iter().flatten();
            let before = statuses
                .find(|it| it.name == name)
                .map_or(0, |it| it.restart_count);
            before + i32::from(!is_ready)
        };
        let containers: Vec<Value> = pod
            .spec
            .iter()
            .flat_map(|spec| &spec.containers)
            .map(|container| {
                let restarts = restarts(&container.name);
                let last = json!({"terminated": {"exitCode": 255, "reason": "Unknown", "finishedAt": time}});
                json!({
                    "name": container.name, "image": container.image, "imageID": "", "ready": is_ready, "started": is_ready,
                    "restartCount": restarts, "state": {"running": {"startedAt": time}},
                    "lastState": if restarts == 0 { json!({}) } else { last },
                })
            })
            .collect();
        let patch = Patch::Strategic(json!({"status": {
            "phase": "Running", "startTime": time, "hostIP": "127.0.0.1",
            "conditions": conditions, "containerStatuses": containers,
        }}));
        let (pods, name) = self.pod_api(pod);
        let written = limited(
            "writing a pod's status",
            pods.patch_status(&name, &PatchParams::default(), &patch),
        )
        .await?;
        self.know(written);
        Ok(())
    }

    /// Records a pod as it was written, so that it is not written twice before the watch shows it.
    fn know(&mut self, written: Pod) {
        let uid = written.metadata.uid.clone().unwrap_or_default();
        self.pods.entry(uid).and_modify(|pod| *pod = Arc::new(written));
    }

    fn pod_api(&self, pod: &Pod) -> (Api<Pod>, String) {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        (
            Api::namespaced(self.client.clone(), namespace),
            pod.metadata.name.clone().unwrap_or_default(),
        )
    }
}

/// Runs one request with a timeout, so that the next heartbeat is not delayed.
async fn limited<T>(what: &str, request: impl Future<Output = kube::Result<T>>) -> anyhow::Result<T> {
    match tokio::time::timeout(WAIT_TIMEOUT, request).await {
        Ok(answer) => answer.with_context(|| what.to_owned()),
        Err(_) => anyhow::bail!("{what}: no answer within {WAIT_TIMEOUT:?}"),
    }
}

/// The HTTP status of a refusal.
fn code(error: &anyhow::Error) -> Option<u16> {
    if let Some(kube::Error::Api(status)) = error.downcast_ref() {
        Some(status.code)
    } else {
        None
    }
}

fn phase_of(pod: &Pod) -> &str {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase.unwrap_or("Pending")
}

/// How long its containers take to end.
fn exits_after(pod: &Pod) -> Duration {
    let of_spec = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.termination_grace_period_seconds);
    let grace = pod
        .metadata
        .deletion_grace_period_seconds
        .or(of_spec)
        .unwrap_or(0);
    let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
    let exits = annotation(pod, EXITS_AFTER_MS).and_then(|text| text.parse().ok());
    exits.map_or(grace, |exits| Duration::from_millis(exits).min(grace))
}

/// Whether it has a limit of GPUs.
fn has_gpus(pod: &Pod) -> bool {
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.any(|container| {
        let limits = container.resources.as_ref().and_then(|it| it.limits.as_ref());
        limits.is_some_and(|limits| limits.contains_key(GPU))
    })
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn condition_of<'a>(node: &'a Node, kind: &str) -> Option<&'a str> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == kind)
        .map(|condition| condition.status.as_str())
}

fn says_ready(node: &Node) -> bool {
    condition_of(node, "Ready") == Some("True")
}

/// Kubernetes stores most times in whole seconds.
fn now_in_seconds() -> String {
    format!("{:.0}", jiff::Timestamp::now())
}

/// The share of its heartbeat that a kubelet waits after its first one, so that the kubelets of a fleet do not send
/// theirs at the same time.
fn share_of(name: &str) -> f64 {
    let hash = Sha256::digest(name);
    f64::from(u16::from_be_bytes([hash[0], hash[1]])) / f64::from(u16::MAX)
}

/// A new boot id in the format of the Linux kernel.
fn fresh_boot_id(name: &str) -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let since_1970 = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let mut hash = Sha256::new();
    hash.update(name);
    hash.update(COUNT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    hash.update(since_1970.as_nanos().to_le_bytes());
    let hex: String = hash
        .finalize()
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::{fresh_boot_id, now_in_seconds};

    #[test]
    fn no_two_boots_share_an_id() {
        let id = fresh_boot_id("node");
        assert_eq!(id.len(), 36);
        assert_ne!(id, fresh_boot_id("node"));
    }

    #[test]
    fn times_have_the_form_kubernetes_wants() {
        let time = now_in_seconds();
        assert!(time.ends_with('Z') && !time.contains('.'), "{time}");
    }
}
