//! NodeMaintenance objects of other projects, which ask for drains as well.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Serialize};

use super::requested_maintenance::RequestedMaintenance;
use crate::is_default;

named_enum! {
    /// The project whose NodeMaintenance it is.
    pub enum ForeignApi {
        /// `nodemaintenance.medik8s.io/v1beta1` (medik8s/node-maintenance-operator).
        Medik8s = "medik8s",
        /// `nodemaintenance.kubevirt.io/v1beta1` (kubevirt/node-maintenance-operator, and OpenShift).
        Kubevirt = "kubevirt",
        /// `maintenance.nvidia.com/v1alpha1` (Mellanox/maintenance-operator).
        Nvidia = "nvidia",
    }
}

/// Where a request comes from that is a NodeMaintenance of another project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignOrigin {
    pub api: ForeignApi,
    /// The namespace of the object, where the kind has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// A NodeMaintenance of another project.
#[derive(Clone, Debug, PartialEq)]
pub struct ForeignMaintenance {
    /// The project, and the namespace.
    pub origin: ForeignOrigin,
    /// `metadata.name`.
    pub name: String,
    /// What it asks for, or why Haulout does not do it.
    pub asked: Result<RequestedMaintenance, String>,
    /// The operator of its project handles it too, so Haulout leaves its status alone.
    pub has_operator: bool,
    /// The requestor reports that its work failed.
    pub has_failed_requestor: bool,
    /// Its status, as far as Haulout writes it.
    pub status: ForeignStatus,
}

/// The status of a NodeMaintenance of another project, as far as Haulout writes it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ForeignStatus {
    /// That of medik8s, of which that of KubeVirt is a part.
    Medik8s(Medik8sStatus),
    Nvidia(NvidiaStatus),
}

/// `NodeMaintenanceStatus` in `api/v1beta1/nodemaintenance_types.go` of medik8s/node-maintenance-operator. Its operator leaves zeros
/// out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Medik8sStatus {
    /// `Running`, `Succeeded` or `Failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The share of the evicted pods, in percent. KubeVirt's kind does not have it.
    #[serde(skip_serializing_if = "is_default")]
    pub drain_progress: u32,
    /// The latest error, while it lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// The names of the pods that are left.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pending_pods: Vec<String>,
    /// The same pods with their namespaces. KubeVirt's kind does not have it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pending_pods_refs: Vec<PodReference>,
    /// The number of pods when the drain began.
    #[serde(rename = "totalpods", skip_serializing_if = "is_default")]
    pub total_pods: u32,
    /// The number of those that had to be evicted.
    #[serde(skip_serializing_if = "is_default")]
    pub eviction_pods: u32,
}

/// A pod in the status of medik8s.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodReference {
    pub namespace: String,
    pub name: String,
}

/// `NodeMaintenanceStatus` in `api/v1alpha1/nodemaintenance_types.go` of Mellanox/maintenance-operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NvidiaStatus {
    /// The condition `Ready`, whose reason is the phase. Other conditions belong to requestors.
    pub conditions: Vec<Condition>,
    /// The drain, once it has begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<NvidiaDrain>,
}

/// `DrainStatus` in the same file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NvidiaDrain {
    /// The number of pods when the drain began.
    pub total_pods: u32,
    /// The number of those that had to be evicted.
    pub eviction_pods: u32,
    /// The share of those that are gone, in percent.
    pub drain_progress: u32,
    /// The pods that are left, as `namespace/name`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wait_for_eviction: Vec<String>,
}

impl ForeignApi {
    /// The API group of the kind.
    pub const fn group(self) -> &'static str {
        match self {
            Self::Medik8s => "nodemaintenance.medik8s.io",
            Self::Kubevirt => "nodemaintenance.kubevirt.io",
            Self::Nvidia => "maintenance.nvidia.com",
        }
    }

    /// The version that is read.
    pub const fn version(self) -> &'static str {
        match self {
            Self::Medik8s | Self::Kubevirt => "v1beta1",
            Self::Nvidia => "v1alpha1",
        }
    }
}

impl ForeignOrigin {
    /// The object `name`, as people tell it from Haulout's own: `medik8s/NAME` or `nvidia/NAMESPACE/NAME`.
    pub fn display_name(&self, name: &str) -> String {
        format!("{self}/{name}")
    }
}

impl fmt::Display for ForeignOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{}/{namespace}", self.api),
            None => write!(f, "{}", self.api),
        }
    }
}
