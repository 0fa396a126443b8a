//! The fixture of a scenario: its own vCenter, its nodes in a shared cluster, and the real binary.
//!
//! Fixtures share one cluster. Each one has its own node label, so that each Haulout sees only its own nodes, its own
//! namespace for pods, and its own user in the audit log.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use rustix::process::Signal;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use haulout_show::node::{ANNOTATIONS, annotation, boot_id, episode, gpus, is_cordoned, is_ready, phase};

use crate::build;
use crate::kube::{AuditEvent, Kube, User};
use crate::kubelet::{EXITS_AFTER_MS, Kubelet, Machine, VmFacts};
use crate::process::{Process, ProcessSpec};
use crate::real_kubelet;
use crate::vcenter::{self, Collector, Spec, State, Tls, VcenterSimulator};
use crate::wait::until;

/// The variable with times that no user sets, as `retry_max=1`. Those of a fixture stay unless they are changed.
pub const TEST_TIMINGS: &str = "TEST_TIMINGS";

/// With the value `real`, all nodes of all fixtures have a real kubelet.
pub const KUBELET: &str = "HAULOUT_LAB_KUBELET";

/// The prefix of the Python controller's annotations.
pub const PYTHON_ANNOTATIONS: &str = "vsphere-maintenance.boeye.net";

/// The timeout of a wait. A step takes a few seconds, and many times as long on a machine with other work.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// The pause before a watch that failed is opened again.
const RETRY: Duration = Duration::from_millis(100);

/// How much later than a watch the writer usually knows of its write.
const ANSWERED: Duration = Duration::from_millis(25);

/// A VM of the fixture that is a node.
#[derive(Debug, Clone)]
pub struct Member {
    /// The VM's name in vCenter. The Node has the same name with the fixture's name as prefix.
    pub vm: String,
    /// The machine of the node.
    pub machine: Machine,
    /// Whether its kubelet is a real one.
    pub is_real: bool,
    /// The ports of our loopback that a real kubelet and its pods reach, in addition to the kube-apiserver's and vCenter's.
    pub reaches: Vec<u16>,
}

impl Member {
    /// A node on the VM of this name, with this BIOS UUID and two GPUs.
    pub fn new(fixture: &str, vm: &str, uuid: &str) -> Self {
        let machine = Machine::new(format!("{fixture}-{vm}"), uuid, 2).label(label(fixture), "true");
        Self {
            vm: vm.to_owned(),
            machine,
            is_real: std::env::var(KUBELET).is_ok_and(|kind| kind == "real"),
            reaches: Vec::new(),
        }
    }

    /// The same node with a real kubelet.
    pub fn with_real_kubelet(mut self) -> Self {
        self.is_real = true;
        self
    }
}

/// The label that a fixture's nodes carry.
pub fn label(fixture: &str) -> String {
    format!("lab.haulout/{fixture}")
}

/// The parts of one scenario.
pub struct Fixture<'a> {
    /// Its vCenter.
    pub vcenter: VcenterSimulator,
    /// The cluster.
    pub kube: &'a Kube,
    name: String,
    client: kube::Client,
    kubelets: BTreeMap<String, Kubelet>,
    uuids: BTreeMap<String, String>,
    /// vCenter's own certificate, if it is served over TLS.
    certificate: Option<PathBuf>,
    // Forwards power states from vCenter to the kubelets.
    _followers: JoinSet<()>,
}

/// A running Haulout.
#[derive(Debug)]
pub struct Haulout {
    process: Process,
}

impl<'a> Fixture<'a> {
    /// Starts the vCenter, registers each member's Node, and waits until all are Ready with their GPUs.
    pub async fn create(
        kube: &'a Kube,
        name: &str,
        spec: &Spec,
        members: Vec<Member>,
        tls: bool,
    ) -> anyhow::Result<Self> {
        Self::create_with(kube, name, spec, members, tls, Collector::default()).await
    }

    /// As [`Fixture::create`], with this property collector.
    ///
    /// # Errors
    /// As [`Fixture::create`].
    pub async fn create_with(
        kube: &'a Kube,
        name: &str,
        spec: &Spec,
        members: Vec<Member>,
        tls: bool,
        collector: Collector,
    ) -> anyhow::Result<Self> {
        let binary = build::part("vcenter").await?;
        let tls_files = if tls {
            let (cert, key) = kube.server_certificate(&format!("vcenter-{name}"))?;
            Some(Tls { cert, key })
        } else {
            None
        };
        let certificate = tls_files.as_ref().map(|files| files.cert.clone());
        let options = vcenter::VcenterOptions {
            tls: tls_files,
            collector,
            ..vcenter::VcenterOptions::default()
        };
        let vcenter = VcenterSimulator::start(&binary, spec, options).await?;
        let client = kube.client_for(&User::admin("admin"))?;
        kube.create_namespace(name).await?;
        let mut followers = JoinSet::new();
        let mut kubelets = BTreeMap::new();
        let mut uuids = BTreeMap::new();
        let state = vcenter.state().await?;
        let (sender, states) = watch::channel(state);
        for member in members {
            let uuid = member.machine.system_uuid.clone();
            let facts = facts(&states.borrow(), &uuid);
            let (to_kubelet, from_vcenter) = watch::channel(facts);
            followers.spawn(carry(states.clone(), uuid.clone(), to_kubelet));
            uuids.insert(member.machine.name.clone(), uuid.clone());
            let kubelet = if member.is_real {
                let guest = vcenter.own_guest(&uuid).await?;
                let mut reaches = member.reaches;
                reaches.push(vcenter.port()?);
                real_kubelet::start(kube, member.machine, guest, from_vcenter, &reaches).await?
            } else {
                Kubelet::start(client.clone(), member.machine, from_vcenter)
            };
            kubelets.insert(kubelet.name().to_owned(), kubelet);
        }
        followers.spawn(vcenter.follow(sender));
        let fixture = Self {
            vcenter,
            kube,
            name: name.to_owned(),
            client,
            kubelets,
            uuids,
            certificate,
            _followers: followers,
        };
        for node in fixture.kubelets.keys() {
            fixture
                .wait_node(node, "is Ready with its GPUs", |node| {
                    is_ready(node) && gpus(node) > 0
                })
                .await?;
        }
        Ok(fixture)
    }

    /// The fixture's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// vCenter's own certificate.
    pub fn certificate(&self) -> anyhow::Result<&Path> {
        let certificate = self.certificate.as_deref();
        certificate.context("vCenter is not served over TLS")
    }

    /// The Node of the VM of this name.
    pub fn node_name(&self, vm: &str) -> String {
        format!("{}-{vm}", self.name)
    }

    /// The kubelet of the VM of this name.
    pub fn kubelet(&self, vm: &str) -> anyhow::Result<&Kubelet> {
        self.kubelets
            .get(&self.node_name(vm))
            .ok_or_else(|| anyhow!("no node on a VM {vm:?} is on this fixture"))
    }

    /// The BIOS UUID of the VM of this name.
    pub fn uuid(&self, vm: &str) -> anyhow::Result<&str> {
        let uuid = self.uuids.get(&self.node_name(vm));
        uuid.map(String::as_str)
            .ok_or_else(|| anyhow!("no node on a VM {vm:?} is on this fixture"))
    }

    /// A client with all rights.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// The user of this fixture's Haulout in the audit log.
    pub fn user(&self) -> User {
        User::haulout(format!("haulout-{}", self.name))
    }

    /// The environment of this fixture's Haulout: short intervals, its label, both addresses.
    pub fn environment(&self) -> anyhow::Result<BTreeMap<String, OsString>> {
        let kubeconfig = self.kube.kubeconfig(&self.user())?;
        let mut environment: BTreeMap<String, OsString> = [
            ("VCENTER_HOST", self.vcenter.sdk()),
            ("VCENTER_USER", self.vcenter.user()),
            ("VCENTER_PASSWORD", self.vcenter.password()),
            ("GPU_NODE_LABEL", &label(&self.name)),
            // All fixtures share one kube-apiserver. The name of the Lease is that of the release: without it, one Haulout would adopt
            // another one's episodes.
            ("LEASE_NAME", &self.name),
            ("POLL_INTERVAL_SECONDS", "1"),
            ("DRAIN_TIMEOUT_SECONDS", "120"),
            ("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "30"),
            ("POWER_ON_TIMEOUT_SECONDS", "60"),
            ("HOST_SETTLE_SECONDS", "1"),
            // The node monitor grace is shorter than the lab's, so that a stale Ready occurs.
            (TEST_TIMINGS, "eviction_retry=1,retry_max=1,node_monitor_grace=2"),
            ("LOG_LEVEL", "info"),
            // One replica unless a scenario starts more, even if the tests run in a cluster.
            ("LEADER_ELECTION", "false"),
            // Scenarios run in parallel. A scenario that needs an endpoint sets its address.
            ("METRICS_ADDRESS", "off"),
            ("HEALTH_ADDRESS", "off"),
            ("STATUS_ADDRESS", "off"),
            // The lab is on loopback and needs no proxy.
            ("HTTP_PROXY", ""),
            ("HTTPS_PROXY", ""),
            ("http_proxy", ""),
            ("https_proxy", ""),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), OsString::from(value)))
        .collect();
        environment.insert("KUBECONFIG".to_owned(), kubeconfig.into_os_string());
        if self.certificate.is_some() {
            let authority = self.kube.authority().as_os_str().to_owned();
            environment.insert("VCENTER_CA_BUNDLE".to_owned(), authority);
        }
        Ok(environment)
    }

    /// Starts Haulout with this fixture's environment, changed by `changes`.
    pub fn start(&self, binary: &Path, changes: &[(&str, &str)]) -> anyhow::Result<Haulout> {
        let mut environment = self.environment()?;
        for (name, value) in changes {
            let mut value = OsString::from(value);
            // The later entries of the list go before the earlier ones.
            if *name == TEST_TIMINGS
                && let Some(before) = environment.get(*name)
            {
                value = [before.as_os_str(), value.as_os_str()].join(",".as_ref());
            }
            environment.insert((*name).to_owned(), value);
        }
        let mut spec = ProcessSpec::leashed("haulout", binary, self.log()).arg("run");
        for (name, value) in environment {
            spec = spec.env(name, value);
        }
        Ok(Haulout {
            process: spec.spawn()?,
        })
    }

    /// The log file of this fixture's Haulout processes.
    pub fn log(&self) -> PathBuf {
        self.kube.dir().join(format!("haulout-{}.log", self.name))
    }

    /// The log of this fixture's Haulout processes.
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Waits until the log contains `words`.
    pub async fn wait_for_log(&self, words: &str) -> anyhow::Result<()> {
        let what = format!("the log of {} to contain {words:?}", self.name);
        let result = until(&what, WAIT_TIMEOUT, async || {
            Ok(self.log_text().contains(words).then_some(()))
        })
        .await;
        result.with_context(|| format!("the log:\n{}", self.log_text()))
    }

    pub async fn node(&self, name: &str) -> anyhow::Result<Node> {
        let nodes: Api<Node> = Api::all(self.client());
        nodes
            .get(name)
            .await
            .with_context(|| format!("reading the Node {name}"))
    }

    /// Waits until `wanted` holds for the Node. The error of a timeout shows the Node and the log.
    pub async fn wait_node(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&Node) -> bool,
    ) -> anyhow::Result<Node> {
        let nodes: Api<Node> = Api::all(self.client());
        // A watch shows every state, and costs the API server and this process less than polling.
        let named = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut states = pin!(watcher(nodes.clone(), named).applied_objects());
        let look = async {
            loop {
                match states.next().await {
                    Some(Ok(node)) if wanted(&node) => return node,
                    Some(Ok(_)) => {}
                    // It may be starting.
                    Some(Err(_)) | None => tokio::time::sleep(RETRY).await,
                }
            }
        };
        if let Ok(node) = tokio::time::timeout(WAIT_TIMEOUT, look).await {
            // A watch is often faster than the answer to the write.
            tokio::time::sleep(ANSWERED).await;
            return Ok(node);
        }
        let node = nodes
            .get(name)
            .await
            .map_or_else(|error| error.to_string(), |node| describe(&node));
        bail!(
            "waited {WAIT_TIMEOUT:?} for: {name} {what}\n{node}\nHaulout's log:\n{}",
            self.log_text()
        )
    }

    /// Waits until the Node's `state` annotation is this, or absent for `None`.
    pub async fn wait_state(&self, node: &str, state: Option<&str>) -> anyhow::Result<Node> {
        let what = format!("has the state {state:?}");
        self.wait_node(node, &what, |node| annotation(node, "state") == state)
            .await
    }

    /// Waits until the episode on the Node is in this phase, as its JSON names it.
    pub async fn wait_phase(&self, node: &str, phase: &str) -> anyhow::Result<Node> {
        self.wait_node(node, &format!("is in phase {phase}"), |node| {
            self::phase(node).as_deref() == Some(phase)
        })
        .await
    }

    /// Waits until the Node is back in service: no episode, schedulable, Ready, with its GPUs.
    pub async fn wait_in_service(&self, node: &str) -> anyhow::Result<Node> {
        let is_back = |node: &Node| {
            annotation(node, "state").is_none()
                && annotation(node, "episode").is_none()
                && !is_cordoned(node)
                && is_ready(node)
                && gpus(node) > 0
        };
        self.wait_node(node, "is back in service", is_back).await
    }

    /// Creates a pod on the Node that ends when it is deleted.
    pub async fn add_pod(&self, name: &str, node: &str, annotations: &[(&str, &str)]) -> anyhow::Result<Pod> {
        self.add_pod_with_grace(name, node, annotations, 5).await
    }

    /// The same with a grace period in seconds.
    ///
    /// # Errors
    /// As [`Self::add_pod`].
    pub async fn add_pod_with_grace(
        &self,
        name: &str,
        node: &str,
        annotations: &[(&str, &str)],
        grace: u32,
    ) -> anyhow::Result<Pod> {
        let annotations: BTreeMap<&str, &str> = [(EXITS_AFTER_MS, "100")]
            .into_iter()
            .chain(annotations.iter().copied())
            .collect();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"app": name}, "annotations": annotations},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": grace,
                "containers": [container()],
            },
        }))
        .context("writing a pod")?;
        let pods: Api<Pod> = Api::namespaced(self.client(), &self.name);
        pods.create(&PostParams::default(), &pod)
            .await
            .with_context(|| format!("creating the pod {name}"))?;
        until(&format!("the pod {name} to be Ready"), WAIT_TIMEOUT, async || {
            let pod = pods.get(name).await?;
            let ready = pod
                .status
                .iter()
                .flat_map(|status| status.conditions.iter().flatten());
            let is_ready = ready.clone().any(|it| it.type_ == "Ready" && it.status == "True");
            Ok(is_ready.then_some(pod))
        })
        .await
    }

    /// Attaches a PersistentVolume of this claim to the Node. Nothing detaches it but [`Self::detach_volume`].
    pub async fn attach_volume(&self, volume: &str, node: &str, claim: &str) -> anyhow::Result<()> {
        let persistent: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": volume},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": self.name, "name": claim},
                "csi": {"driver": "lab.invalid", "volumeHandle": volume},
            },
        }))
        .context("writing a PersistentVolume")?;
        let attachment: VolumeAttachment = serde_json::from_value(json!({
            "metadata": {"name": volume},
            "spec": {"attacher": "lab.invalid", "nodeName": node, "source": {"persistentVolumeName": volume}},
        }))
        .context("writing a VolumeAttachment")?;
        let volumes: Api<PersistentVolume> = Api::all(self.client());
        volumes.create(&PostParams::default(), &persistent).await?;
        let attachments: Api<VolumeAttachment> = Api::all(self.client());
        attachments.create(&PostParams::default(), &attachment).await?;
        Ok(())
    }

    /// Removes the VolumeAttachment of a volume, as the CSI driver does when it has detached it.
    pub async fn detach_volume(&self, volume: &str) -> anyhow::Result<()> {
        let attachments: Api<VolumeAttachment> = Api::all(self.client());
        attachments.delete(volume, &Default::default()).await?;
        Ok(())
    }

    /// The names of the pods on the Node in this fixture's namespace.
    pub async fn pods_on(&self, node: &str) -> anyhow::Result<Vec<String>> {
        let pods: Api<Pod> = Api::namespaced(self.client(), &self.name);
        let list = pods
            .list(&ListParams::default().fields(&format!("spec.nodeName={node}")))
            .await;
        let list = list.with_context(|| format!("listing the pods of {node}"))?;
        Ok(list
            .items
            .into_iter()
            .filter_map(|pod| pod.metadata.name)
            .collect())
    }

    /// Creates or changes a budget for the one pod with the label `app=NAME`: `allowed` 0 blocks its eviction. A
    /// blocking budget is waited for until the disruption controller has counted it; another one is not, because the
    /// pod may already be gone. `minAvailable` is used because a pod without a controller has no scale for
    /// `maxUnavailable`.
    pub async fn set_budget(&self, app: &str, allowed: i32) -> anyhow::Result<()> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.client(), &self.name);
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": format!("{app}-budget")},
            "spec": {"minAvailable": i32::from(allowed == 0), "selector": {"matchLabels": {"app": app}}},
        });
        let params = PatchParams::apply("lab").force();
        let name = format!("{app}-budget");
        budgets
            .patch(&name, &params, &Patch::Apply(&budget))
            .await
            .context("writing the budget")?;
        if allowed > 0 {
            return Ok(());
        }
        until(
            &format!("the budget {name} to be counted"),
            WAIT_TIMEOUT,
            async || {
                let status = budgets.get(&name).await?.status;
                let blocks = |it: &PodDisruptionBudgetStatus| {
                    it.expected_pods > Some(0) && it.disruptions_allowed == Some(0)
                };
                Ok(status.as_ref().is_some_and(blocks).then_some(()))
            },
        )
        .await
    }

    /// Cordons or uncordons the Node like kubectl.
    pub async fn person_cordons(&self, node: &str, cordon: bool) -> anyhow::Result<()> {
        self.cordon_as("kubectl-cordon", node, cordon).await
    }

    /// Cordons or uncordons the Node with another program's field manager.
    pub async fn cordon_as(&self, manager: &str, node: &str, cordon: bool) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(self.client());
        let params = PatchParams {
            field_manager: Some(manager.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Strategic(json!({"spec": {"unschedulable": cordon}}));
        nodes
            .patch(node, &params, &patch)
            .await
            .with_context(|| format!("setting unschedulable={cordon} on {node} as {manager}"))?;
        Ok(())
    }

    /// Sets annotations of the Node under Haulout's prefix.
    pub async fn annotate(&self, node: &str, annotations: &[(&str, &str)]) -> anyhow::Result<()> {
        self.annotate_under(ANNOTATIONS, node, annotations).await
    }

    /// Sets annotations of the Node under this prefix, in the way of the Python controller.
    pub async fn annotate_under(
        &self,
        prefix: &str,
        node: &str,
        annotations: &[(&str, &str)],
    ) -> anyhow::Result<()> {
        let annotations: BTreeMap<String, &str> = annotations
            .iter()
            .map(|(name, value)| (format!("{prefix}/{name}"), *value))
            .collect();
        let nodes: Api<Node> = Api::all(self.client());
        let params = PatchParams {
            field_manager: Some("OpenAPI-Generator".to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        nodes
            .patch(node, &params, &patch)
            .await
            .with_context(|| format!("annotating {node}"))?;
        Ok(())
    }

    /// The changing requests of this fixture's Haulout in the audit log.
    pub async fn audit(&self) -> anyhow::Result<Vec<AuditEvent>> {
        self.kube.audit_of(&self.user()).await
    }

    /// How often the VM was powered off and on, from vCenter's journal.
    pub async fn power_cycles(&self, vm: &str) -> anyhow::Result<(usize, usize)> {
        let journal = self.vcenter.journal().await?;
        let count = |detail: &str| {
            let changes = journal
                .iter()
                .filter(|entry| entry.kind == vcenter::EntryKind::Power && entry.user != "spec");
            changes
                .filter(|entry| entry.object == vm && entry.detail == detail)
                .count()
        };
        Ok((count("poweredOff"), count("poweredOn")))
    }

    /// How often `method` was called over SOAP on the object of this name.
    pub async fn calls(&self, method: &str, object: &str) -> anyhow::Result<usize> {
        let journal = self.vcenter.journal().await?;
        let calls = journal.iter().filter(|entry| entry.is_call(method));
        Ok(calls.filter(|entry| entry.object == object).count())
    }

    /// Waits until `wanted` holds for vCenter's state.
    pub async fn wait_vcenter(
        &self,
        what: &str,
        wanted: impl FnMut(&State) -> bool,
    ) -> anyhow::Result<State> {
        let state = self.vcenter.wait_until(what, WAIT_TIMEOUT, wanted).await;
        state.with_context(|| format!("Haulout's log:\n{}", self.log_text()))
    }

    /// Waits until `host` is in maintenance mode.
    pub async fn wait_in_maintenance(&self, host: &str) -> anyhow::Result<()> {
        let is_in = |state: &State| state.host(host).is_some_and(|host| host.in_maintenance);
        self.wait_vcenter(&format!("{host} is in maintenance"), is_in)
            .await?;
        Ok(())
    }
}

impl Haulout {
    /// Sends SIGTERM and expects an orderly exit in time.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let status = self.process.stop(Duration::from_secs(5)).await?;
        if !status.success() {
            bail!("haulout ended with {status} after SIGTERM");
        }
        Ok(())
    }

    /// Sends SIGABRT and waits until it has ended.
    pub async fn abort(mut self) -> anyhow::Result<()> {
        self.process.signal(Signal::ABORT)?;
        let ended = tokio::time::timeout(WAIT_TIMEOUT, self.process.wait()).await;
        ended.with_context(|| format!("haulout did not end within {WAIT_TIMEOUT:?} of a crash"))??;
        Ok(())
    }

    /// Kills it and waits until it has ended.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        self.process.kill().await.map(|_| ())
    }

    /// Waits until it ends by itself, and returns its exit code.
    pub async fn ended(mut self) -> anyhow::Result<Option<i32>> {
        let status = tokio::time::timeout(WAIT_TIMEOUT, self.process.wait()).await;
        Ok(status
            .with_context(|| format!("haulout did not end within {WAIT_TIMEOUT:?}"))??
            .code())
    }

    /// Freezes it with SIGSTOP.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.process.signal(Signal::STOP)
    }

    /// Continues it with SIGCONT.
    pub fn thaw(&self) -> anyhow::Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// Its process id.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// Fails with its last output if it has ended unexpectedly.
    pub fn check_running(&mut self) -> anyhow::Result<()> {
        self.process.check_running()
    }
}

/// The container of a pod for both kinds of kubelets: it ends as the pod's annotation [`EXITS_AFTER_MS`] says, and has to be killed
/// without one.
pub fn container() -> serde_json::Value {
    let annotation = format!("metadata.annotations['{EXITS_AFTER_MS}']");
    json!({
        "name": "main", "image": real_kubelet::IMAGE, "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "EXITS_AFTER_MS", "valueFrom": {"fieldRef": {"fieldPath": annotation}}}],
    })
}

/// Forwards one VM's power state to its kubelet.
async fn carry(mut states: watch::Receiver<State>, uuid: String, to_kubelet: watch::Sender<VmFacts>) {
    while states.changed().await.is_ok() {
        let next = facts(&states.borrow_and_update(), &uuid);
        to_kubelet.send_if_modified(|current| {
            let changed = *current != next;
            *current = next;
            changed
        });
    }
}

fn facts(state: &State, uuid: &str) -> VmFacts {
    let vm = state.vms.iter().find(|vm| vm.uuid == uuid);
    VmFacts {
        on: vm.is_some_and(vcenter::VmState::is_on),
        boots: vm.map_or(0, |vm| u64::from(vm.boots)),
        is_stopping: vm.is_some_and(|vm| vm.shutting_down),
        shutdown_ms: vm.map_or(0, |vm| vm.shutdown_ms),
    }
}

fn describe(node: &Node) -> String {
    format!(
        "it is cordoned: {}, ready: {}, GPUs: {}, boot: {:?}, annotations: {:#?}",
        is_cordoned(node),
        is_ready(node),
        gpus(node),
        boot_id(node),
        node.metadata.annotations,
    )
}
