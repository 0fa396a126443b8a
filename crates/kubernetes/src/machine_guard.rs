//! Sets and removes the guards on the objects of Cluster API.
//!
//! - `cluster.x-k8s.io/skip-remediation` on the Machine: its MachineHealthCheck does not remediate it
//!   (`annotations.HasSkipRemediation` in Cluster API's `util/annotations`).
//! - `cluster.x-k8s.io/paused` on the VSphereVM: the provider leaves it alone, so that it does not power on the VM
//!   (`reconcilePowerState` in CAPV's `pkg/services/govmomi/service.go`). The provider does not hand the annotation of a
//!   VSphereMachine on to its VSphereVM.
//! - `cluster.x-k8s.io/paused` on the MachineHealthChecks of OpenShift: see `openshift`.
//!
//! They count by their key, whatever the value. The value is ours: it names the VM, so that a guard is known as that of a node
//! without any other memory, and one that somebody else set is not removed.

mod openshift;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::warn;

use super::answer::{self, ApiRefusal};
use crate::fence::Permit;
use crate::ids::{NodeName, VmUuid, is_object_name};
use crate::keys::{
    CLUSTER_API, CLUSTER_API_INFRASTRUCTURE, CLUSTER_NAME, FIELD_MANAGER, NODE_CLUSTER_NAMESPACE,
    NODE_MACHINE, OPENSHIFT_MACHINES, PAUSED, SKIP_REMEDIATION,
};
use crate::maintenance::machine_guard::{GuardedKind, GuardedObject, MAX_GUARDED};

/// The deadline of one call.
const DEADLINE: Duration = Duration::from_secs(10);

/// How long the versions of the APIs are remembered. They change with an update of Cluster API.
const VERSIONS_FOR: Duration = Duration::from_secs(600);

/// The objects in one page of a list, and the pages at most. A cluster has as many VSphereVMs as nodes.
const PAGE: u32 = 500;
const PAGES_MAX: usize = 20;

/// Whether the Node names a Machine of Cluster API or OpenShift.
pub fn names_machine(node: &Node) -> bool {
    let keys = [NODE_MACHINE, openshift::NODE_MACHINE];
    let mut annotations = node.metadata.annotations.iter().flatten();
    annotations.any(|(key, _)| keys.contains(&key.as_str()))
}

/// The objects of Cluster API, in the cluster of the nodes or in a management cluster.
pub struct MachineApi {
    client: kube::Client,
    versions: Mutex<Option<(Instant, Versions)>>,
}

/// The versions in which the APIs are served; `None` if they are not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Versions {
    cluster_api: Option<String>,
    infrastructure: Option<String>,
    openshift: Option<String>,
}

/// Why guards were not set or removed.
#[derive(Debug)]
pub struct MachineGuardError {
    /// What was tried.
    what: String,
    why: ApiRefusal,
}

impl fmt::Display for MachineGuardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

impl MachineGuardError {
    /// Whether Haulout lacks the right. A credential that does not count says nothing about rights.
    pub fn is_forbidden(&self) -> bool {
        self.why.code() == Some(403)
    }
}

type Guarded<T> = Result<T, MachineGuardError>;

impl MachineApi {
    /// The objects in the cluster of `client`.
    pub fn new(client: kube::Client) -> Self {
        Self {
            client,
            versions: Mutex::new(None),
        }
    }

    /// Whether Machines of Cluster API or OpenShift are served, or may be because the API groups cannot be listed.
    pub async fn is_served(&self) -> bool {
        let versions = self.versions().await;
        versions.is_err()
            || versions.is_ok_and(|versions| versions.cluster_api.is_some() || versions.openshift.is_some())
    }

    /// Whether Machines of OpenShift are served.
    pub async fn is_openshift(&self) -> bool {
        let versions = self.versions().await;
        versions.is_ok_and(|versions| versions.openshift.is_some())
    }

    /// Whether Machines of Cluster API are served.
    pub async fn is_cluster_api(&self) -> bool {
        let versions = self.versions().await;
        versions.is_ok_and(|versions| versions.cluster_api.is_some())
    }

    /// Sets the guards of the node whose VM is `vm`, and returns the objects that have them: none if the node has no Machine that can be
    /// guarded, and `None` if a right is missing, which is logged and does not hold up the maintenance.
    ///
    /// The Node only says which Machine to read, because a kubelet may write any name there. It counts if it has the VM's UUID and
    /// names the Node.
    ///
    /// # Errors
    /// When a call fails for another reason than a missing right.
    pub async fn set(
        &self,
        _permit: &Permit,
        nodes: &kube::Client,
        node: &NodeName,
        vm: VmUuid,
    ) -> Guarded<Option<Vec<GuardedObject>>> {
        match self.set_all(nodes, node, vm).await {
            Err(error) if error.is_forbidden() => {
                warn!("node {node} is not guarded against Cluster API, because Haulout may not: {error}");
                Ok(None)
            }
            set => set.map(Some),
        }
    }

    async fn set_all(
        &self,
        nodes: &kube::Client,
        node: &NodeName,
        vm: VmUuid,
    ) -> Guarded<Vec<GuardedObject>> {
        let annotations = self.annotations_of(nodes, node).await?;
        let mut guarded = Vec::new();
        for (namespace, check) in self.health_checks_of(&annotations, node, vm).await? {
            guarded.extend(self.pause(&namespace, &check, vm).await?);
        }
        let Some((namespace, machine)) = self.machine_of(&annotations, node, vm).await? else {
            return Ok(guarded);
        };
        // First the one by which the VM would be powered on.
        for infrastructure in self.infrastructure_of(&namespace, &machine, vm).await? {
            let set = self.annotate(GuardedKind::VsphereVm, &namespace, &infrastructure, vm);
            guarded.extend(set.await?);
        }
        let set = self.annotate(GuardedKind::Machine, &namespace, &machine, vm);
        guarded.extend(set.await?);
        Ok(guarded)
    }

    /// Removes the guards of the node whose VM is `vm` from `objects`, and from its Machine.
    ///
    /// # Errors
    /// When a call fails. An object that is gone has no guard.
    pub async fn remove(
        &self,
        _permit: &Permit,
        nodes: &kube::Client,
        node: &NodeName,
        vm: VmUuid,
        objects: &[GuardedObject],
    ) -> Guarded<()> {
        let mut objects = objects.to_vec();
        // What was set just before a crash is not in the record. Where Haulout may not look, it has most likely not set anything.
        let (machine, checks) = match self.of_node(nodes, node, vm).await {
            Err(error) if error.is_forbidden() && objects.is_empty() => (None, Vec::new()),
            found => found?,
        };
        for (namespace, check) in checks {
            objects.push(object(GuardedKind::HealthCheck, &namespace, &check));
        }
        if let Some((namespace, machine)) = machine {
            for infrastructure in self.infrastructure_of(&namespace, &machine, vm).await? {
                objects.push(object(GuardedKind::VsphereVm, &namespace, &infrastructure));
            }
            objects.push(object(GuardedKind::Machine, &namespace, &machine));
        }
        objects.sort();
        objects.dedup();
        for object in objects {
            self.restore(&object, vm).await?;
        }
        Ok(())
    }

    /// The Machine of the node in Cluster API, and its health checks in OpenShift.
    async fn of_node(
        &self,
        nodes: &kube::Client,
        node: &NodeName,
        vm: VmUuid,
    ) -> Guarded<(Option<InNamespace>, Vec<InNamespace>)> {
        let annotations = self.annotations_of(nodes, node).await?;
        let checks = self.health_checks_of(&annotations, node, vm).await?;
        Ok((self.machine_of(&annotations, node, vm).await?, checks))
    }

    /// The annotations of a Node; none if it does not exist.
    async fn annotations_of(
        &self,
        nodes: &kube::Client,
        node: &NodeName,
    ) -> Guarded<BTreeMap<String, String>> {
        let nodes: Api<Node> = Api::all(nodes.clone());
        let seen = answer::within(DEADLINE, nodes.get_metadata_opt(node.as_str())).await;
        let seen = guarded(|| format!("reading node {node}"), seen)?;
        Ok(seen
            .and_then(|seen| seen.metadata.annotations)
            .unwrap_or_default())
    }

    /// Namespace and object of the Machine of the node.
    async fn machine_of(
        &self,
        annotations: &BTreeMap<String, String>,
        node: &NodeName,
        vm: VmUuid,
    ) -> Guarded<Option<InNamespace>> {
        let annotation = |key: &str| {
            let value = annotations.get(key)?;
            is_object_name(value).then(|| value.clone())
        };
        let (Some(namespace), Some(name)) = (annotation(NODE_CLUSTER_NAMESPACE), annotation(NODE_MACHINE))
        else {
            return Ok(None);
        };
        let Some(machine) = self.get(GuardedKind::Machine, &namespace, &name).await? else {
            return Ok(None);
        };
        if !is_of_node(&machine, node, vm) {
            warn!(
                "node {node} names Machine {namespace}/{name}, which is that of another node, so it is not guarded"
            );
            return Ok(None);
        }
        // Somebody else wants it to be gone.
        let is_deleted = machine.metadata.deletion_timestamp.is_some();
        Ok((!is_deleted).then_some((namespace, machine)))
    }

    /// The VSphereVMs of a Machine.
    async fn infrastructure_of(
        &self,
        namespace: &str,
        machine: &DynamicObject,
        vm: VmUuid,
    ) -> Guarded<Vec<DynamicObject>> {
        let text = |pointer: &str| machine.data.pointer(pointer).and_then(Value::as_str);
        let (Some("VSphereMachine"), Some(infrastructure), Some(cluster)) = (
            text("/spec/infrastructureRef/kind"),
            text("/spec/infrastructureRef/name"),
            text("/spec/clusterName").filter(|name| is_object_name(name)),
        ) else {
            return Ok(Vec::new());
        };
        let Some(api) = self.api(GuardedKind::VsphereVm, namespace).await? else {
            return Ok(Vec::new());
        };
        let is_ours = |object: &DynamicObject| {
            let owners = object.metadata.owner_references.iter().flatten();
            let mut owners = owners.map(|owner| (owner.kind.as_str(), owner.name.as_str()));
            let uuid = object.data.pointer("/spec/biosUUID").and_then(Value::as_str);
            let is_of_vm = uuid.and_then(VmUuid::parse).is_none_or(|is| is.same_machine(vm));
            owners.any(|owner| owner == ("VSphereMachine", infrastructure)) && is_of_vm
        };
        let params = ListParams::default()
            .labels(&format!("{CLUSTER_NAME}={cluster}"))
            .limit(PAGE);
        let mut found = Vec::new();
        let each = |object: DynamicObject| {
            if is_ours(&object) && found.len() < MAX_GUARDED - 1 {
                found.push(object);
            }
        };
        let list = async |params| api.list(&params).await;
        let listed = answer::pages(params, PAGES_MAX, DEADLINE, list, each).await;
        guarded(|| format!("listing the VSphereVMs in {namespace}"), listed)?;
        Ok(found)
    }

    /// Sets the guard unless the object has one; `None` if it has that of somebody else.
    async fn annotate(
        &self,
        kind: GuardedKind,
        namespace: &str,
        of: &DynamicObject,
        vm: VmUuid,
    ) -> Guarded<Option<GuardedObject>> {
        let value = value_of(vm);
        match of.annotations().get(key(kind)) {
            Some(present) if *present != value => return Ok(None),
            Some(_) => {}
            None => self.write(kind, namespace, of, &json!(value)).await?,
        }
        Ok(Some(object(kind, namespace, of)))
    }

    /// Removes the guard if it is ours.
    async fn restore(&self, guarded: &GuardedObject, vm: VmUuid) -> Guarded<()> {
        let GuardedObject {
            kind,
            namespace,
            name,
        } = guarded;
        let Some(object) = self.get(*kind, namespace, name).await? else {
            return Ok(());
        };
        if *kind == GuardedKind::HealthCheck {
            return self.resume(namespace, &object, vm).await;
        }
        let present = object.annotations().get(key(*kind));
        if present.is_some_and(|value| *value == value_of(vm)) {
            self.write(*kind, namespace, &object, &Value::Null).await?;
        }
        Ok(())
    }

    /// Writes the guard, if the object has not changed since it was read.
    async fn write(
        &self,
        kind: GuardedKind,
        namespace: &str,
        object: &DynamicObject,
        value: &Value,
    ) -> Guarded<()> {
        let name = object.metadata.name.clone().unwrap_or_default();
        let Some(api) = self.api(kind, namespace).await? else {
            return Ok(());
        };
        let patch = Patch::Merge(json!({
            "metadata": {
                "resourceVersion": object.metadata.resource_version,
                "annotations": { key(kind): value },
            },
        }));
        let params = PatchParams::apply(FIELD_MANAGER);
        let written = answer::within(DEADLINE, api.patch_metadata(&name, &params, &patch)).await;
        guarded(|| format!("annotating {kind} {namespace}/{name}"), written).map(|_| ())
    }

    async fn get(&self, kind: GuardedKind, namespace: &str, name: &str) -> Guarded<Option<DynamicObject>> {
        let Some(api) = self.api(kind, namespace).await? else {
            return Ok(None);
        };
        let found = answer::within(DEADLINE, api.get_opt(name)).await;
        guarded(|| format!("reading {kind} {namespace}/{name}"), found)
    }

    /// `None` if the API is not served.
    async fn api(&self, kind: GuardedKind, namespace: &str) -> Guarded<Option<Api<DynamicObject>>> {
        let versions = self.versions().await?;
        let (group, version, name, plural) = match kind {
            GuardedKind::Machine => (CLUSTER_API, versions.cluster_api, "Machine", "machines"),
            GuardedKind::VsphereVm => (
                CLUSTER_API_INFRASTRUCTURE,
                versions.infrastructure,
                "VSphereVM",
                "vspherevms",
            ),
            GuardedKind::OpenshiftMachine => (OPENSHIFT_MACHINES, versions.openshift, "Machine", "machines"),
            GuardedKind::HealthCheck => (
                OPENSHIFT_MACHINES,
                versions.openshift,
                "MachineHealthCheck",
                "machinehealthchecks",
            ),
        };
        Ok(version.map(|version| {
            let kind = GroupVersionKind::gvk(group, &version, name);
            let resource = ApiResource::from_gvk_with_plural(&kind, plural);
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        }))
    }

    /// The lock is not held during the call: nodes would wait for each other where the management cluster does not answer.
    async fn versions(&self) -> Guarded<Versions> {
        let known = self.versions.lock().clone();
        if let Some((_, versions)) = known.filter(|(at, _)| at.elapsed() < VERSIONS_FOR) {
            return Ok(versions);
        }
        let groups = answer::within(DEADLINE, self.client.list_api_groups()).await;
        let groups = guarded(|| "listing the API groups".to_owned(), groups)?.groups;
        let version = |name: &str| {
            let group = groups.iter().find(|group| group.name == name)?;
            let preferred = group
                .preferred_version
                .as_ref()
                .or_else(|| group.versions.first())?;
            Some(preferred.version.clone())
        };
        let versions = Versions {
            cluster_api: version(CLUSTER_API),
            infrastructure: version(CLUSTER_API_INFRASTRUCTURE),
            openshift: version(OPENSHIFT_MACHINES),
        };
        *self.versions.lock() = Some((Instant::now(), versions.clone()));
        Ok(versions)
    }
}

type InNamespace = (String, DynamicObject);

fn is_of_node(machine: &DynamicObject, node: &NodeName, vm: VmUuid) -> bool {
    let text = |pointer: &str| machine.data.pointer(pointer).and_then(Value::as_str);
    let provider = text("/spec/providerID").and_then(VmUuid::from_provider_id);
    let is_of_vm = provider.is_some_and(|is| is.same_machine(vm));
    is_of_vm && text("/status/nodeRef/name") == Some(node.as_str())
}

fn guarded<T>(what: impl FnOnce() -> String, result: Result<T, ApiRefusal>) -> Guarded<T> {
    result.map_err(|why| MachineGuardError { what: what(), why })
}

fn object(kind: GuardedKind, namespace: &str, object: &DynamicObject) -> GuardedObject {
    GuardedObject {
        kind,
        namespace: namespace.to_owned(),
        name: object.metadata.name.clone().unwrap_or_default(),
    }
}

fn key(kind: GuardedKind) -> &'static str {
    match kind {
        GuardedKind::Machine => SKIP_REMEDIATION,
        // A Machine of OpenShift is only read.
        GuardedKind::VsphereVm | GuardedKind::HealthCheck | GuardedKind::OpenshiftMachine => PAUSED,
    }
}

fn value_of(vm: VmUuid) -> String {
    format!("haulout: maintenance of VM {vm}")
}

#[cfg(test)]
mod tests;
