//! The NodeMaintenance kinds of other projects, from their own manifests. Their operators do not run.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject};
use kube::core::GroupVersionKind;

use crate::kube::define;
use crate::wait::until;

/// A NodeMaintenance kind of another project.
#[derive(Debug, Clone, Copy)]
pub struct ForeignKind {
    group: &'static str,
    version: &'static str,
    definition: &'static str,
}

/// medik8s/node-maintenance-operator.
pub const MEDIK8S: ForeignKind = ForeignKind {
    group: "nodemaintenance.medik8s.io",
    version: "v1beta1",
    definition: include_str!("../crds/medik8s.yaml"),
};

/// kubevirt/node-maintenance-operator.
pub const KUBEVIRT: ForeignKind = ForeignKind {
    group: "nodemaintenance.kubevirt.io",
    version: "v1beta1",
    definition: include_str!("../crds/kubevirt.yaml"),
};

/// Mellanox/maintenance-operator.
pub const NVIDIA: ForeignKind = ForeignKind {
    group: "maintenance.nvidia.com",
    version: "v1alpha1",
    definition: include_str!("../crds/nvidia.yaml"),
};

impl ForeignKind {
    /// Installs the kind, and waits until it is served.
    pub async fn install(&self, client: &kube::Client) -> anyhow::Result<()> {
        define(client, self.definition).await
    }

    /// Removes the kind with all of its objects.
    pub async fn remove(&self, client: &kube::Client) -> anyhow::Result<()> {
        let name = format!("nodemaintenances.{}", self.group);
        let kinds: Api<CustomResourceDefinition> = Api::all(client.clone());
        kinds
            .delete(&name, &DeleteParams::default())
            .await
            .with_context(|| format!("deleting {name}"))?;
        until(
            &format!("{name} to be gone"),
            Duration::from_secs(60),
            async || Ok(kinds.get_opt(&name).await?.is_none().then_some(())),
        )
        .await
    }

    /// The objects, in `namespace` if the kind has namespaces.
    pub fn objects(&self, client: &kube::Client, namespace: Option<&str>) -> Api<DynamicObject> {
        let kind = self.resource();
        match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
            None => Api::all_with(client.clone(), &kind),
        }
    }

    pub fn resource(&self) -> ApiResource {
        let kind = GroupVersionKind::gvk(self.group, self.version, "NodeMaintenance");
        ApiResource::from_gvk_with_plural(&kind, "nodemaintenances")
    }
}
