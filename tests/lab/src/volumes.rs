//! Volumes that are attached and detached by the real attach-detach controller and CSI's external-attacher, with a CSI
//! driver that can hold a detachment.
//!
//! The simulated kubelets do not mount: a pod runs before its volume is attached, and `status.volumesInUse` of a Node stays
//! empty, so the controller asks for the detachment as soon as the last pod with the volume is gone.

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde::Deserialize;
use serde_json::json;

use crate::build;
use crate::fixture::{Fixture, WAIT_TIMEOUT};
use crate::kube::User;
use crate::kubelet::EXITS_AFTER_MS;
use crate::ports::Port;
use crate::process::{Process, ProcessSpec, REMOVE_AT_EOF};
use crate::run_dir::RunDir;
use crate::wait::until;

/// A call that the driver got.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Call {
    /// `ControllerPublishVolume` or `ControllerUnpublishVolume`.
    pub method: String,
    /// The volume's name.
    pub volume: String,
    /// The Node's name.
    pub node: String,
    /// Whether it has been answered.
    pub done: bool,
}

/// The volumes of a fixture. Dropping it stops the driver and the attacher.
pub struct Volumes {
    // The processes are dropped before the port and the directory.
    attacher: Process,
    driver: Process,
    http: reqwest::Client,
    client: kube::Client,
    /// The fixture's name, which is its namespace.
    fixture: String,
    control: Port,
    _dir: RunDir,
}

impl Volumes {
    /// Starts a CSI driver for the Nodes on the VMs of these names, and its attacher.
    pub async fn start(fixture: &Fixture<'_>, vms: &[&str]) -> anyhow::Result<Self> {
        let programs = build::part("csi").await?;
        let dir = RunDir::create()?;
        let control = Port::reserve()?;
        let client = fixture.client();
        let name = driver_name(fixture.name());
        let socket = dir.join("csi.sock");
        let driver = ProcessSpec::new("csi-driver", programs.join("driver"), dir.join("driver.log"))
            .arg(format!("--name={name}"))
            .arg(format!("--socket={}", socket.display()))
            .arg(format!("--control=127.0.0.1:{}", control.number()))
            .env(REMOVE_AT_EOF, dir.path())
            .spawn()?;
        let params = PostParams::default();
        let drivers: Api<CSIDriver> = Api::all(client.clone());
        let object = json!({"metadata": {"name": name}, "spec": {"attachRequired": true}});
        drivers.create(&params, &serde_json::from_value(object)?).await?;
        let nodes: Api<CSINode> = Api::all(client.clone());
        for vm in vms {
            let node = fixture.node_name(vm);
            let object = json!({
                "metadata": {"name": node},
                "spec": {"drivers": [{"name": name, "nodeID": node}]},
            });
            nodes.create(&params, &serde_json::from_value(object)?).await?;
        }
        let user = User::admin(format!("csi-attacher-{}", fixture.name()));
        let kubeconfig = fixture.kube.kubeconfig(&user)?;
        let attacher = ProcessSpec::leashed(
            "csi-attacher",
            programs.join("csi-attacher"),
            dir.join("csi-attacher.log"),
        )
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--csi-address={}", socket.display()))
        // A detachment that is held goes on waiting.
        .arg("--timeout=10m")
        .spawn()?;
        let mut volumes = Self {
            attacher,
            driver,
            http: reqwest::Client::builder().no_proxy().build()?,
            client,
            fixture: fixture.name().to_owned(),
            control,
            _dir: dir,
        };
        until("the CSI driver to answer", WAIT_TIMEOUT, async || {
            volumes.driver.check_running()?;
            volumes.attacher.check_running()?;
            volumes.calls().await.map(|_| Some(()))
        })
        .await?;
        Ok(volumes)
    }

    /// Creates a volume and a claim of this name, and waits until they are bound.
    pub async fn add_volume(&self, name: &str) -> anyhow::Result<()> {
        let volume_name = self.volume_name(name);
        let size = json!({"storage": "1Gi"});
        let params = PostParams::default();
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": volume_name},
            "spec": {
                "capacity": size,
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": self.fixture, "name": name},
                "csi": {"driver": driver_name(&self.fixture), "volumeHandle": volume_name},
            },
        }))?;
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        volumes.create(&params, &volume).await?;
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                // An empty class, so that nobody makes a volume for it.
                "storageClassName": "",
                "volumeName": volume_name,
                "resources": {"requests": size},
            },
        }))?;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &self.fixture);
        claims.create(&params, &claim).await?;
        until(
            &format!("the claim {name} to be bound"),
            WAIT_TIMEOUT,
            async || {
                let status = claims.get(name).await?.status.unwrap_or_default();
                Ok((status.phase.as_deref() == Some("Bound")).then_some(()))
            },
        )
        .await
    }

    /// Creates a pod with the claim of this name on the Node, and waits until the volume is attached.
    pub async fn add_pod(&self, name: &str, node: &str, claim: &str) -> anyhow::Result<()> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"app": name}, "annotations": {EXITS_AFTER_MS: "100"}},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 5,
                "containers": [{"name": "main", "image": "lab.invalid/none"}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            },
        }))?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.fixture);
        pods.create(&PostParams::default(), &pod)
            .await
            .with_context(|| format!("creating the pod {name}"))?;
        let what = format!("the volume {claim} to be attached to {node}");
        let attached = until(&what, WAIT_TIMEOUT, async || {
            let attachments = self.attachments(node).await?;
            let is_attached = |it: &VolumeAttachment| {
                it.spec.source.persistent_volume_name.as_deref() == Some(&self.volume_name(claim))
                    && it.status.as_ref().is_some_and(|status| status.attached)
            };
            Ok(attachments.iter().any(is_attached).then_some(()))
        });
        attached.await.with_context(|| self.attacher.tail())
    }

    /// The VolumeAttachments of this driver on the Node.
    pub async fn attachments(&self, node: &str) -> anyhow::Result<Vec<VolumeAttachment>> {
        let all: Api<VolumeAttachment> = Api::all(self.client.clone());
        let mut list = all.list(&ListParams::default()).await?.items;
        list.retain(|it| it.spec.attacher == driver_name(&self.fixture) && it.spec.node_name == node);
        Ok(list)
    }

    /// Waits until the Node has no VolumeAttachment of this driver.
    pub async fn wait_detached(&self, node: &str) -> anyhow::Result<()> {
        let what = format!("the VolumeAttachments of {node} to be gone");
        let detached = until(&what, WAIT_TIMEOUT, async || {
            Ok(self.attachments(node).await?.is_empty().then_some(()))
        });
        detached.await.with_context(|| self.attacher.tail())
    }

    /// Lets detachments wait until [`Self::release_detachments`].
    pub async fn hold_detachments(&self) -> anyhow::Result<()> {
        self.post("hold").await
    }

    /// Lets the detachments that wait end, and later ones too.
    pub async fn release_detachments(&self) -> anyhow::Result<()> {
        self.post("release").await
    }

    /// Waits until the driver has to detach the volume of this name.
    pub async fn wait_detaching(&self, volume: &str) -> anyhow::Result<()> {
        let name = self.volume_name(volume);
        let what = format!("the volume {volume} to be detached");
        let asked = until(&what, WAIT_TIMEOUT, async || {
            let calls = self.calls().await?;
            let is_asked = |it: &Call| it.method == "ControllerUnpublishVolume" && it.volume == name;
            Ok(calls.iter().any(is_asked).then_some(()))
        });
        asked.await.with_context(|| self.attacher.tail())
    }

    /// The calls that the driver got, in order.
    pub async fn calls(&self) -> anyhow::Result<Vec<Call>> {
        let answer = self.http.get(self.url("calls")).send().await?;
        let text = answer.error_for_status()?.text().await?;
        serde_json::from_str(&text).with_context(|| format!("reading the driver's calls {text:?}"))
    }

    async fn post(&self, what: &str) -> anyhow::Result<()> {
        let answer = self.http.post(self.url(what)).send().await?;
        answer.error_for_status()?;
        Ok(())
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.control.number())
    }

    /// The name of a PersistentVolume, which all fixtures of a cluster share.
    fn volume_name(&self, claim: &str) -> String {
        format!("{}-{claim}", self.fixture)
    }
}

/// The name of a fixture's driver.
fn driver_name(fixture: &str) -> String {
    format!("{fixture}.csi.lab.haulout")
}
