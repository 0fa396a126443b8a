//! A stand-in for CAPV, the infrastructure provider of Cluster API for vSphere, which is not built from a module.
//!
//! It follows kubernetes-sigs/cluster-api-provider-vsphere v1.16.1 (5b57d1db50a72f8d7ac605f9860f18d517215b4d):
//!
//! - `controllers/vspheremachine_controller.go` and `pkg/services/vimmachine.go`: a VSphereMachine has one VSphereVM, with the
//!   name of the Machine unless `spec.naming` has a template. The VSphereVM gets an owner reference without `controller`, the
//!   label of the cluster and the clone spec of the VSphereMachine, and none of its annotations. So a pause of the
//!   VSphereMachine does not reach the VSphereVM; it only stops the deletion and the changes of the VSphereVM by its owner.
//! - `controllers/vspherevm_controller.go`: after the finalizer, a VSphereVM that is paused is left alone, also if it is
//!   being deleted. It is paused by its own annotation `cluster.x-k8s.io/paused` or by `spec.paused` of the Cluster
//!   (`util/paused` of Cluster API). The condition `Paused` shows that the controller has seen it. A reconciliation that has
//!   begun before goes on.
//! - `pkg/services/govmomi/service.go`: `reconcilePowerState` powers on a VM that is off, with `PowerOnVM_Task` and without a
//!   host, so DRS places it. `DestroyVM` powers off and destroys the VM of a deleted VSphereVM.
//! - `pkg/services/govmomi/util.go`: `findVM` finds a VM by the BIOS UUID, and before that is known by the name of the
//!   VSphereVM.
//!
//! CAPV does not watch the power state. It reconciles a VSphereVM when the VSphereVM or its Cluster changes, status included,
//! when a task has ended, and every 10 minutes. After a failed task it waits a minute. Here it is [`PERIOD`] and [`RETRY`].
//!
//! Left out: clones, so a VSphereVM without a VM waits for one; networks; what is configured while a VM is off (PCI devices,
//! metadata, storage policy, cluster modules, tags); the deletion of a Node that has the VM's name.
//!
//! It also keeps the status of the KamajiControlPlane, a control plane without Machines, by the contract of Cluster API.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context as _;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{CLUSTER_LABEL, Kind, PAUSED};
use crate::vcenter::{OtherUser, VmState};

/// The user of vCenter.
pub const USER: &str = "capv";

/// How often all objects are reconciled.
const PERIOD: Duration = Duration::from_millis(200);
/// The time between two tasks for one VM.
const RETRY: Duration = Duration::from_secs(1);

const MACHINE_FINALIZER: &str = "vspheremachine.infrastructure.cluster.x-k8s.io";
const VM_FINALIZER: &str = "vspherevm.infrastructure.cluster.x-k8s.io";

/// A running stand-in. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Capv {
    task: JoinHandle<()>,
}

impl Drop for Capv {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Capv {
    /// Starts it for the objects of one namespace.
    pub(super) fn start(client: kube::Client, namespace: &str, vcenter: OtherUser) -> Self {
        let mut provider = Provider {
            client,
            namespace: namespace.to_owned(),
            vcenter,
            asked: BTreeMap::new(),
        };
        let task = tokio::spawn(async move {
            loop {
                if let Err(error) = provider.reconcile_all().await {
                    tracing::debug!(error = format!("{error:#}"), "reconciling as CAPV failed");
                }
                tokio::time::sleep(PERIOD).await;
            }
        });
        Self { task }
    }
}

struct Provider {
    client: kube::Client,
    namespace: String,
    vcenter: OtherUser,
    /// When a task was started for the VM of this name.
    asked: BTreeMap<String, Instant>,
}

/// One condition of an object.
struct Condition<'c> {
    kind: &'c str,
    is_true: bool,
    reason: &'c str,
}

impl Provider {
    async fn reconcile_all(&mut self) -> anyhow::Result<()> {
        let clusters = self.list(Kind::Cluster).await?;
        let paused: BTreeSet<String> = clusters
            .iter()
            .filter(|cluster| cluster.data.pointer("/spec/paused") == Some(&json!(true)))
            .map(name)
            .collect();
        let is_paused = |object: &DynamicObject| {
            let cluster = object
                .metadata
                .labels
                .as_ref()
                .and_then(|it| it.get(CLUSTER_LABEL));
            object
                .metadata
                .annotations
                .as_ref()
                .is_some_and(|it| it.contains_key(PAUSED))
                || cluster.is_some_and(|cluster| paused.contains(cluster))
        };
        for control_plane in self.list(Kind::KamajiControlPlane).await? {
            let status = json!({
                "externalManagedControlPlane": true,
                "initialization": {"controlPlaneInitialized": true},
                "version": control_plane.data.pointer("/spec/version"),
            });
            self.write_status(Kind::KamajiControlPlane, &control_plane, status, &[])
                .await?;
        }
        for cluster in self.list(Kind::VSphereCluster).await? {
            let status = json!({"initialization": {"provisioned": true}});
            self.write_status(Kind::VSphereCluster, &cluster, status, &[ready()])
                .await?;
        }
        for machine in self.list(Kind::VSphereMachine).await? {
            self.reconcile_machine(&machine, is_paused(&machine))
                .await
                .with_context(|| format!("the VSphereMachine {}", name(&machine)))?;
        }
        for vm in self.list(Kind::VSphereVm).await? {
            self.reconcile_vm(&vm, is_paused(&vm))
                .await
                .with_context(|| format!("the VSphereVM {}", name(&vm)))?;
        }
        Ok(())
    }

    async fn reconcile_machine(&self, machine: &DynamicObject, is_paused: bool) -> anyhow::Result<()> {
        let Some(owner) = owner(machine, "Machine") else {
            return Ok(());
        };
        let goes_on = self
            .begin(Kind::VSphereMachine, machine, MACHINE_FINALIZER, is_paused)
            .await?;
        if !goes_on {
            return Ok(());
        }
        let vms = self.api(Kind::VSphereVm);
        let vm = vms.get_opt(owner).await?;
        if machine.metadata.deletion_timestamp.is_some() {
            return match vm {
                None => {
                    self.remove_finalizer(Kind::VSphereMachine, machine, MACHINE_FINALIZER)
                        .await
                }
                Some(vm) if vm.metadata.deletion_timestamp.is_some() => Ok(()),
                Some(_) => Ok(vms.delete(owner, &DeleteParams::default()).await.map(drop)?),
            };
        }
        let Some(vm) = vm else {
            return self.create_vm(machine, owner).await;
        };
        let uuid = vm.data.pointer("/spec/biosUUID").and_then(Value::as_str);
        let (true, Some(uuid)) = (vm.data.pointer("/status/ready") == Some(&json!(true)), uuid) else {
            return Ok(());
        };
        let provider_id = json!(format!("vsphere://{uuid}"));
        if machine.data.pointer("/spec/providerID") != Some(&provider_id) {
            let patch = json!({"spec": {"providerID": provider_id}});
            self.patch(Kind::VSphereMachine, machine, &patch).await?;
        }
        let status = json!({
            "initialization": {"provisioned": true},
            "addresses": [
                {"type": "ExternalIP", "address": "127.0.0.1"},
                {"type": "InternalDNS", "address": owner},
            ],
        });
        let conditions = [ready(), provisioned()];
        self.write_status(Kind::VSphereMachine, machine, status, &conditions)
            .await
    }

    async fn create_vm(&self, machine: &DynamicObject, owner: &str) -> anyhow::Result<()> {
        let core = self.api(Kind::Machine).get(owner).await?;
        let bootstrap = core.data.pointer("/spec/bootstrap/dataSecretName");
        let Some(bootstrap) = bootstrap.filter(|name| !name.is_null()) else {
            return Ok(());
        };
        let resource = Kind::VSphereVm.resource();
        let mut spec = machine.data["spec"].clone();
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("providerID");
            spec.insert("bootstrapRef".to_owned(), json!({"name": bootstrap}));
        }
        let vm: DynamicObject = serde_json::from_value(json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {
                "name": owner,
                "labels": {CLUSTER_LABEL: machine.metadata.labels.as_ref().and_then(|it| it.get(CLUSTER_LABEL))},
                "ownerReferences": [{
                    "apiVersion": Kind::VSphereMachine.resource().api_version,
                    "kind": "VSphereMachine",
                    "name": machine.metadata.name,
                    "uid": machine.metadata.uid,
                }],
            },
            "spec": spec,
        }))?;
        self.api(Kind::VSphereVm)
            .create(&PostParams::default(), &vm)
            .await?;
        Ok(())
    }

    async fn reconcile_vm(&mut self, object: &DynamicObject, is_paused: bool) -> anyhow::Result<()> {
        if !self
            .begin(Kind::VSphereVm, object, VM_FINALIZER, is_paused)
            .await?
        {
            return Ok(());
        }
        let name = name(object);
        let uuid = object.data.pointer("/spec/biosUUID").and_then(Value::as_str);
        let state = self.vcenter.state().await?;
        let vm = state.vms.iter().find(|vm| match uuid {
            Some(uuid) => vm.uuid == uuid,
            None => vm.name == name,
        });
        if object.metadata.deletion_timestamp.is_some() {
            return match vm {
                None => self.remove_finalizer(Kind::VSphereVm, object, VM_FINALIZER).await,
                Some(vm) if !self.may_ask(vm) => Ok(()),
                Some(vm) if vm.is_on() => self.vcenter.power_off(&vm.uuid).await,
                Some(vm) => self.vcenter.remove_vm(&vm.uuid).await,
            };
        }
        let Some(vm) = vm else {
            return Ok(());
        };
        if !vm.is_on() {
            if self.may_ask(vm) {
                self.vcenter.power_on(&vm.uuid).await?;
            }
            let powering_on = Condition {
                kind: "VirtualMachineProvisioned",
                is_true: false,
                reason: "PoweringOn",
            };
            let not_ready = Condition {
                kind: "Ready",
                is_true: false,
                reason: "NotReady",
            };
            return self
                .write_status(Kind::VSphereVm, object, json!({}), &[not_ready, powering_on])
                .await;
        }
        if uuid.is_none() {
            let patch = json!({"spec": {"biosUUID": vm.uuid}});
            self.patch(Kind::VSphereVm, object, &patch).await?;
        }
        let status = json!({
            "ready": true,
            "addresses": ["127.0.0.1"],
            "host": vm.host,
            "vmRef": format!("VirtualMachine:{}", vm.reference),
        });
        let conditions = [ready(), provisioned()];
        self.write_status(Kind::VSphereVm, object, status, &conditions)
            .await
    }

    /// Whether the last task for the VM is long enough ago; if so, another one is noted.
    fn may_ask(&mut self, vm: &VmState) -> bool {
        let now = Instant::now();
        let may = self.asked.get(&vm.name).is_none_or(|asked| now >= *asked + RETRY);
        if may {
            self.asked.insert(vm.name.clone(), now);
        }
        may
    }

    /// The beginning of each reconciliation: the finalizer, and then the pause. Returns whether it goes on.
    async fn begin(
        &self,
        kind: Kind,
        object: &DynamicObject,
        finalizer: &str,
        is_paused: bool,
    ) -> anyhow::Result<bool> {
        let finalizers = object.metadata.finalizers.clone().unwrap_or_default();
        let is_deleted = object.metadata.deletion_timestamp.is_some();
        if !is_deleted && !finalizers.iter().any(|it| it == finalizer) {
            let all: Vec<&str> = finalizers.iter().map(String::as_str).chain([finalizer]).collect();
            self.patch(kind, object, &finalizers_patch(object, &all)).await?;
            return Ok(false);
        }
        let paused = Condition {
            kind: "Paused",
            is_true: is_paused,
            reason: if is_paused { "Paused" } else { "NotPaused" },
        };
        let status = if is_paused { "True" } else { "False" };
        if super::condition(object, "Paused") != Some(status) {
            self.write_status(kind, object, json!({}), &[paused]).await?;
            return Ok(false);
        }
        Ok(!is_paused)
    }

    async fn remove_finalizer(
        &self,
        kind: Kind,
        object: &DynamicObject,
        finalizer: &str,
    ) -> anyhow::Result<()> {
        let finalizers = object.metadata.finalizers.iter().flatten();
        let others: Vec<&str> = finalizers
            .map(String::as_str)
            .filter(|it| *it != finalizer)
            .collect();
        self.patch(kind, object, &finalizers_patch(object, &others)).await
    }

    /// Writes the status if it changes. Other conditions stay.
    async fn write_status(
        &self,
        kind: Kind,
        object: &DynamicObject,
        mut status: Value,
        conditions: &[Condition<'_>],
    ) -> anyhow::Result<()> {
        let old = object
            .data
            .pointer("/status/conditions")
            .cloned()
            .unwrap_or(json!([]));
        let mut all: Vec<Value> = old.as_array().cloned().unwrap_or_default();
        for Condition {
            kind,
            is_true,
            reason,
        } in conditions
        {
            let text = if *is_true { "True" } else { "False" };
            let is_same = |it: &Value| it["type"] == *kind && it["status"] == text && it["reason"] == *reason;
            if all.iter().any(is_same) {
                continue;
            }
            all.retain(|it| it["type"] != *kind);
            all.push(json!({
                "type": kind, "status": text, "reason": reason, "message": "",
                "lastTransitionTime": format!("{:.0}", jiff::Timestamp::now()),
                "observedGeneration": object.metadata.generation,
            }));
        }
        let fields = status.as_object().cloned().unwrap_or_default();
        let has =
            |(name, value): (&String, &Value)| object.data.pointer(&format!("/status/{name}")) == Some(value);
        if json!(all) == old && fields.iter().all(has) {
            return Ok(());
        }
        status["conditions"] = json!(all);
        let patch = Patch::Merge(json!({"status": status}));
        let api = self.api(kind);
        api.patch_status(&name(object), &params(), &patch).await?;
        Ok(())
    }

    async fn patch(&self, kind: Kind, object: &DynamicObject, patch: &Value) -> anyhow::Result<()> {
        let api = self.api(kind);
        api.patch(&name(object), &params(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    async fn list(&self, kind: Kind) -> anyhow::Result<Vec<DynamicObject>> {
        Ok(self.api(kind).list(&ListParams::default()).await?.items)
    }

    fn api(&self, kind: Kind) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &kind.resource())
    }
}

fn name(object: &DynamicObject) -> String {
    object.metadata.name.clone().unwrap_or_default()
}

/// The name of the owner of this kind.
fn owner<'o>(object: &'o DynamicObject, kind: &str) -> Option<&'o str> {
    let mut owners = object.metadata.owner_references.iter().flatten();
    owners
        .find(|owner| owner.kind == kind)
        .map(|owner| owner.name.as_str())
}

fn finalizers_patch(object: &DynamicObject, finalizers: &[&str]) -> Value {
    json!({"metadata": {"finalizers": finalizers, "resourceVersion": object.metadata.resource_version}})
}

fn params() -> PatchParams {
    PatchParams {
        field_manager: Some(USER.to_owned()),
        ..PatchParams::default()
    }
}

fn ready() -> Condition<'static> {
    Condition {
        kind: "Ready",
        is_true: true,
        reason: "Ready",
    }
}

fn provisioned() -> Condition<'static> {
    Condition {
        kind: "VirtualMachineProvisioned",
        is_true: true,
        reason: "Provisioned",
    }
}
