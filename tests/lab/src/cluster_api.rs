//! Cluster API's own controllers and webhooks, with stand-ins for its infrastructure provider for vSphere and for its
//! control plane provider.
//!
//! The cluster manages itself: its Machines are in the namespace of a fixture, and the kubeconfig of the workload cluster
//! is one of the same cluster. The CustomResourceDefinitions name the webhooks of one manager, so such a fixture needs a
//! cluster of its own.

mod capv;
mod definitions;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::build;
use crate::fixture::{Fixture, WAIT_TIMEOUT};
use crate::kube::User;
use crate::ports::Port;
use crate::process::{Process, ProcessSpec, REMOVE_AT_EOF};
use crate::run_dir::RunDir;
use crate::wait::until;

pub use capv::USER as INFRASTRUCTURE_USER;

/// The annotation that pauses the reconciliation of an object, whatever its value.
pub const PAUSED: &str = "cluster.x-k8s.io/paused";
/// The annotation with which a MachineHealthCheck leaves out a Machine, whatever its value.
pub const SKIP_REMEDIATION: &str = "cluster.x-k8s.io/skip-remediation";
/// The label that names the Cluster of an object.
const CLUSTER_LABEL: &str = "cluster.x-k8s.io/cluster-name";
/// The label that only one Machine and its MachineSet have.
const MACHINE_LABEL: &str = "lab.haulout/machine";
/// The name of the Cluster and of the objects of which it has one.
const CLUSTER: &str = "lab";
/// The version of the control plane.
const VERSION: &str = "v1.36.3";

/// A kind that Cluster API or its providers define.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Cluster,
    /// A machine of a cluster.
    Machine,
    /// Replaces a Machine that is deleted.
    MachineSet,
    /// Marks a Machine for remediation if its Node is unhealthy for too long.
    MachineHealthCheck,
    /// The infrastructure of a Cluster.
    VSphereCluster,
    /// The infrastructure of a Machine.
    VSphereMachine,
    /// The template of the VSphereMachines of a MachineSet.
    VSphereMachineTemplate,
    /// The VM of a VSphereMachine.
    VSphereVm,
    /// A control plane that has no Machines.
    KamajiControlPlane,
}

impl Kind {
    fn resource(self) -> ApiResource {
        let core = ("cluster.x-k8s.io", "v1beta2");
        let infrastructure = ("infrastructure.cluster.x-k8s.io", "v1beta2");
        let ((group, version), kind, plural) = match self {
            Self::Cluster => (core, "Cluster", "clusters"),
            Self::Machine => (core, "Machine", "machines"),
            Self::MachineSet => (core, "MachineSet", "machinesets"),
            Self::MachineHealthCheck => (core, "MachineHealthCheck", "machinehealthchecks"),
            Self::VSphereCluster => (infrastructure, "VSphereCluster", "vsphereclusters"),
            Self::VSphereMachine => (infrastructure, "VSphereMachine", "vspheremachines"),
            Self::VSphereMachineTemplate => (
                infrastructure,
                "VSphereMachineTemplate",
                "vspheremachinetemplates",
            ),
            Self::VSphereVm => (infrastructure, "VSphereVM", "vspherevms"),
            Self::KamajiControlPlane => (
                ("controlplane.cluster.x-k8s.io", "v1alpha1"),
                "KamajiControlPlane",
                "kamajicontrolplanes",
            ),
        };
        ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: format!("{group}/{version}"),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        }
    }

    fn reference(self, name: &str) -> Value {
        let ApiResource { group, kind, .. } = self.resource();
        json!({"apiGroup": group, "kind": kind, "name": name})
    }
}

/// Cluster API for the VMs of a fixture. Dropping it stops its controllers.
pub struct ClusterApi {
    // The processes are dropped before the ports and the directory.
    manager: Process,
    _infrastructure: capv::Capv,
    client: kube::Client,
    namespace: String,
    _ports: [Port; 2],
    _dir: RunDir,
}

impl ClusterApi {
    /// Installs Cluster API, starts its controllers, creates a Cluster in the fixture's namespace and waits until it is
    /// available. A Machine whose Node is not Ready for longer than `unhealthy_after` is remediated.
    pub async fn start(fixture: &Fixture<'_>, unhealthy_after: Duration) -> anyhow::Result<Self> {
        let program = build::part("cluster-api").await?;
        let module = build::module("cluster-api").await?;
        let dir = RunDir::create()?;
        let ports = [Port::reserve()?, Port::reserve()?];
        let [webhooks, health] = &ports;
        let authority = std::fs::read(fixture.kube.authority()).context("reading the lab's CA")?;
        let client = fixture.client();
        let serving = definitions::Serving {
            port: webhooks.number(),
            authority: ByteString(authority),
        };
        definitions::install_kinds(&client, &module, &serving).await?;
        let mut manager = manager(fixture, &program, &dir, webhooks, health)?;
        let http = reqwest::Client::builder().no_proxy().build()?;
        let ready = format!("http://127.0.0.1:{}/readyz", health.number());
        until("Cluster API's controllers to start", WAIT_TIMEOUT, async || {
            manager.check_running()?;
            Ok(http.get(&ready).send().await?.status().is_success().then_some(()))
        })
        .await
        .with_context(|| manager.tail())?;
        definitions::install_webhooks(&client, &module, &serving).await?;
        let this = Self {
            manager,
            _infrastructure: capv::Capv::start(
                client.clone(),
                fixture.name(),
                fixture.vcenter.as_user(capv::USER),
            ),
            client,
            namespace: fixture.name().to_owned(),
            _ports: ports,
            _dir: dir,
        };
        this.create_cluster(fixture, unhealthy_after).await?;
        Ok(this)
    }

    /// The objects of a kind in the fixture's namespace.
    pub fn api(&self, kind: Kind) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &kind.resource())
    }

    /// The object of this name; `None` if there is none.
    pub async fn object(&self, kind: Kind, name: &str) -> anyhow::Result<Option<DynamicObject>> {
        let object = self.api(kind).get_opt(name).await;
        object.with_context(|| format!("reading the {} {name}", kind.resource().kind))
    }

    /// The value of an annotation of an object; `None` if the object or the annotation is not there.
    pub async fn annotation(&self, kind: Kind, name: &str, key: &str) -> anyhow::Result<Option<String>> {
        let object = self.object(kind, name).await?;
        let annotations = object.and_then(|object| object.metadata.annotations);
        Ok(annotations.and_then(|mut annotations| annotations.remove(key)))
    }

    /// Pauses an object with the annotation, or ends that, and waits until its controller has seen it.
    pub async fn pause(&self, kind: Kind, name: &str, paused: bool) -> anyhow::Result<()> {
        let patch = json!({"metadata": {"annotations": {PAUSED: paused.then_some("true")}}});
        let api = self.api(kind);
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .with_context(|| format!("pausing the {kind:?} {name}"))?;
        let status = if paused { "True" } else { "False" };
        let what = format!("the {kind:?} {name} to have the condition Paused={status}");
        until(&what, WAIT_TIMEOUT, async || {
            let object = self.object(kind, name).await?;
            Ok(object
                .filter(|object| condition(object, "Paused") == Some(status))
                .map(drop))
        })
        .await
    }

    /// Creates the Machine, the VSphereMachine and the MachineSet of a node of the fixture, which is on the VM of this name,
    /// and waits until the Machine is bound to its Node. The Machine, the VSphereMachine and the VSphereVM have the VM's name.
    pub async fn add_machine(&self, fixture: &Fixture<'_>, vm: &str) -> anyhow::Result<()> {
        let labels = json!({CLUSTER_LABEL: CLUSTER, MACHINE_LABEL: vm});
        let machine = |infrastructure: Value| {
            json!({
                "clusterName": CLUSTER,
                // There is no bootstrap provider, as with a Secret that a person writes.
                "bootstrap": {"dataSecretName": "bootstrap"},
                "infrastructureRef": infrastructure,
            })
        };
        self.create(
            Kind::VSphereMachine,
            json!({
                "metadata": {"name": vm, "labels": labels},
                "spec": {"template": "lab", "network": {"devices": [{"networkName": "VM Network", "dhcp4": true}]}},
            }),
        )
        .await?;
        self.create(
            Kind::Machine,
            json!({
                "metadata": {"name": vm, "labels": labels},
                "spec": machine(Kind::VSphereMachine.reference(vm)),
            }),
        )
        .await?;
        let node = fixture.node_name(vm);
        self.wait_machine(vm, &format!("is bound to the Node {node}"), |machine| {
            machine.data.pointer("/status/nodeRef/name") == Some(&json!(node))
        })
        .await?;
        // It adopts the Machine, which is in its controller's cache by now, and creates no other one.
        self.create(
            Kind::MachineSet,
            json!({
                "metadata": {"name": vm, "labels": {CLUSTER_LABEL: CLUSTER}},
                "spec": {
                    "clusterName": CLUSTER,
                    "replicas": 1,
                    "selector": {"matchLabels": {MACHINE_LABEL: vm}},
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": machine(Kind::VSphereMachineTemplate.reference(CLUSTER)),
                    },
                },
            }),
        )
        .await?;
        self.wait_machine(vm, "is healthy, and of its MachineSet", |machine| {
            let owners = machine.metadata.owner_references.iter().flatten();
            owners.into_iter().any(|owner| owner.kind == "MachineSet")
                && condition(machine, "HealthCheckSucceeded") == Some("True")
        })
        .await?;
        Ok(())
    }

    /// Waits until `wanted` holds for the Machine. The error of a timeout shows the Machine and the controllers' log.
    pub async fn wait_machine(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&DynamicObject) -> bool,
    ) -> anyhow::Result<DynamicObject> {
        let what = format!("the Machine {name} {what}");
        let look = until(&what, WAIT_TIMEOUT, async || {
            let machine = self.object(Kind::Machine, name).await?;
            Ok(machine.filter(&wanted))
        });
        match look.await {
            Ok(machine) => Ok(machine),
            Err(error) => Err(error.context(self.describe(name).await)),
        }
    }

    /// Waits until somebody has deleted the Machine. It may still have finalizers.
    pub async fn wait_machine_deleted(&self, name: &str) -> anyhow::Result<()> {
        let what = format!("the Machine {name} to be deleted");
        let deleted = until(&what, WAIT_TIMEOUT, async || {
            Ok(self.is_machine_deleted(name).await?.then_some(()))
        });
        match deleted.await {
            Ok(()) => Ok(()),
            Err(error) => Err(error.context(self.describe(name).await)),
        }
    }

    /// Whether somebody has deleted the Machine. It may still have finalizers.
    pub async fn is_machine_deleted(&self, name: &str) -> anyhow::Result<bool> {
        let machine = self.object(Kind::Machine, name).await?;
        Ok(machine.is_none_or(|machine| machine.metadata.deletion_timestamp.is_some()))
    }

    /// The names of all Machines.
    pub async fn machines(&self) -> anyhow::Result<Vec<String>> {
        let machines = self.api(Kind::Machine).list(&ListParams::default()).await?;
        Ok(machines.into_iter().filter_map(|it| it.metadata.name).collect())
    }

    /// How often the infrastructure provider asked vCenter to power on the VM of this name, successfully or not.
    pub async fn power_on_calls(&self, fixture: &Fixture<'_>, vm: &str) -> anyhow::Result<usize> {
        let journal = fixture.vcenter.journal().await?;
        let calls = journal
            .iter()
            .filter(|entry| entry.user == INFRASTRUCTURE_USER && entry.method == "PowerOnVM_Task");
        Ok(calls.filter(|entry| entry.object == vm).count())
    }

    /// The last lines of the log of Cluster API's controllers.
    pub fn log_text(&self) -> String {
        self.manager.tail()
    }

    async fn describe(&self, machine: &str) -> String {
        let mut text = String::new();
        for (kind, name) in [
            (Kind::Cluster, CLUSTER),
            (Kind::MachineHealthCheck, CLUSTER),
            (Kind::MachineSet, machine),
            (Kind::Machine, machine),
            (Kind::VSphereMachine, machine),
            (Kind::VSphereVm, machine),
        ] {
            let object = match self.object(kind, name).await {
                Ok(Some(mut object)) => {
                    object.metadata.managed_fields = None;
                    serde_json::to_string(&object).unwrap_or_default()
                }
                Ok(None) => "none".to_owned(),
                Err(error) => format!("{error:#}"),
            };
            text += &format!("{kind:?} {name}: {object}\n");
        }
        text + &self.log_text()
    }

    async fn create(&self, kind: Kind, object: Value) -> anyhow::Result<()> {
        let resource = kind.resource();
        let mut object = object;
        object["apiVersion"] = json!(resource.api_version);
        object["kind"] = json!(resource.kind);
        let object: DynamicObject =
            serde_json::from_value(object).with_context(|| format!("composing a {}", resource.kind))?;
        let creating = format!("creating the {} {:?}", resource.kind, object.metadata.name);
        // The webhook of a kind is called a moment after its configuration was written.
        until(&creating, WAIT_TIMEOUT, async || {
            match self.api(kind).create(&PostParams::default(), &object).await {
                Ok(_) => Ok(Some(())),
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(Some(())),
                Err(error) => Err(error.into()),
            }
        })
        .await
    }

    async fn create_cluster(&self, fixture: &Fixture<'_>, unhealthy_after: Duration) -> anyhow::Result<()> {
        let url: reqwest::Url = fixture.kube.url().parse()?;
        let endpoint = json!({"host": url.host_str(), "port": url.port()});
        let labels = json!({CLUSTER_LABEL: CLUSTER});
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": format!("{CLUSTER}-kubeconfig"), "labels": labels},
            "type": "cluster.x-k8s.io/secret",
            "data": {"value": ByteString(kubeconfig(fixture)?)},
        }))?;
        secrets.create(&PostParams::default(), &secret).await?;
        let metadata = json!({"name": CLUSTER, "labels": labels});
        let objects = [
            (
                Kind::VSphereCluster,
                json!({
                    "metadata": metadata,
                    "spec": {"server": fixture.vcenter.sdk(), "controlPlaneEndpoint": endpoint},
                }),
            ),
            (
                Kind::KamajiControlPlane,
                json!({"metadata": metadata, "spec": {"version": VERSION}}),
            ),
            (
                Kind::VSphereMachineTemplate,
                json!({"metadata": metadata, "spec": {"template": {"spec": {"template": "lab"}}}}),
            ),
            (
                Kind::Cluster,
                json!({
                    "metadata": metadata,
                    "spec": {
                        "controlPlaneEndpoint": endpoint,
                        "infrastructureRef": Kind::VSphereCluster.reference(CLUSTER),
                        "controlPlaneRef": Kind::KamajiControlPlane.reference(CLUSTER),
                    },
                }),
            ),
            (Kind::MachineHealthCheck, health_check(&metadata, unhealthy_after)),
        ];
        for (kind, object) in objects {
            self.create(kind, object).await?;
        }
        until("the Cluster to be reachable", WAIT_TIMEOUT, async || {
            let cluster = self.object(Kind::Cluster, CLUSTER).await?;
            let is_reachable = |cluster: &DynamicObject| {
                [
                    "InfrastructureReady",
                    "ControlPlaneInitialized",
                    "RemoteConnectionProbe",
                ]
                .iter()
                .all(|name| condition(cluster, name) == Some("True"))
            };
            Ok(cluster.as_ref().is_some_and(is_reachable).then_some(()))
        })
        .await
        .with_context(|| self.log_text())
    }
}

/// The status of a condition of an object.
pub fn condition<'o>(object: &'o DynamicObject, kind: &str) -> Option<&'o str> {
    let conditions = object.data.pointer("/status/conditions")?.as_array()?;
    let condition = conditions.iter().find(|condition| condition["type"] == kind)?;
    condition["status"].as_str()
}

fn health_check(metadata: &Value, unhealthy_after: Duration) -> Value {
    let seconds = unhealthy_after.as_secs();
    let unhealthy = |status: &str| json!({"type": "Ready", "status": status, "timeoutSeconds": seconds});
    json!({
        "metadata": metadata,
        "spec": {
            "clusterName": CLUSTER,
            "selector": {"matchLabels": {CLUSTER_LABEL: CLUSTER}},
            "checks": {
                "nodeStartupTimeoutSeconds": 600,
                "unhealthyNodeConditions": [unhealthy("Unknown"), unhealthy("False")],
            },
            "remediation": {"triggerIf": {"unhealthyLessThanOrEqualTo": "100%"}},
        },
    })
}

/// The controllers. Their webhooks are served on all addresses, which the program cannot change.
fn manager(
    fixture: &Fixture<'_>,
    program: &Path,
    dir: &RunDir,
    webhooks: &Port,
    health: &Port,
) -> anyhow::Result<Process> {
    let user = User::admin("cluster-api");
    let kubeconfig = fixture.kube.kubeconfig(&user)?;
    let (certificate, key) = fixture.kube.server_certificate("cluster-api-webhooks")?;
    let name = |path: &Path| {
        let name = path.file_name().context("a certificate has no name")?;
        anyhow::Ok(name.to_string_lossy().into_owned())
    };
    let certificates = certificate.parent().context("a certificate has no directory")?;
    ensure!(
        key.parent() == Some(certificates),
        "a key is in another directory"
    );
    ProcessSpec::leashed("cluster-api", program, dir.join("cluster-api.log"))
        .arg(format!("--namespace={}", fixture.name()))
        .arg(format!("--webhook-port={}", webhooks.number()))
        .arg(format!("--webhook-cert-dir={}", certificates.display()))
        .arg(format!("--webhook-cert-name={}", name(&certificate)?))
        .arg(format!("--webhook-key-name={}", name(&key)?))
        .arg(format!("--health-addr=127.0.0.1:{}", health.number()))
        .args(["--diagnostics-address=0", "--insecure-diagnostics"])
        // All objects are created in the storage version.
        .arg("--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields")
        .env("KUBECONFIG", kubeconfig)
        .env("HTTPS_PROXY", "")
        .env("https_proxy", "")
        .env(REMOVE_AT_EOF, dir.path())
        .spawn()
}

/// A kubeconfig that refers to no files.
fn kubeconfig(fixture: &Fixture<'_>) -> anyhow::Result<Vec<u8>> {
    let path = fixture.kube.kubeconfig(&User::admin("cluster-api-remote"))?;
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    for (place, names) in [
        ("/clusters/0/cluster", &["certificate-authority"][..]),
        ("/users/0/user", &["client-certificate", "client-key"][..]),
    ] {
        let entry = config
            .pointer_mut(place)
            .and_then(Value::as_object_mut)
            .with_context(|| format!("a kubeconfig without {place}"))?;
        for name in names {
            let path = entry.remove(*name).context("a kubeconfig without certificates")?;
            let path = path.as_str().context("a path that is no text")?;
            let content = std::fs::read(path).with_context(|| format!("reading {path}"))?;
            entry.insert(format!("{name}-data"), json!(ByteString(content)));
        }
    }
    Ok(serde_json::to_vec(&config)?)
}
