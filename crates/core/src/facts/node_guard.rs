//! Guards on a Node: taints, labels and annotations with which the scheduler and other controllers leave it alone.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize as _, Deserializer};

use crate::keys::{
    AUTOSCALER_SCALE_DOWN_DISABLED, GARDENER_PRESERVE, MAINTENANCE_TAINT, MEDIK8S_EXCLUDE,
    NVSENTINEL_MANAGED, OUT_OF_SERVICE_TAINT, QUEUED_TAINT,
};

named_enum! {
    pub enum NodeGuard {
        /// The scheduler places no pod, also where somebody else uncordons the Node.
        MaintenanceTaint = "maintenance-taint",
        /// While the node is queued, the scheduler prefers nodes that are not drained next.
        QueuedTaint = "queued-taint",
        /// While the VM is off with pods or volumes left behind, Kubernetes deletes the pods by force and detaches the volumes (KEP-2268).
        OutOfServiceTaint = "out-of-service-taint",
        /// cluster-autoscaler does not remove the node (`ScaleDownDisabledKey` in
        /// `cluster-autoscaler/core/scaledown/eligibility/eligibility.go`).
        ClusterAutoscaler = "cluster-autoscaler",
        /// medik8s' NodeHealthCheck and its remediators skip the node (`ExcludeFromRemediation` in
        /// `medik8s/common/pkg/labels/labels.go`).
        Medik8s = "medik8s",
        /// NVSentinel takes no action on the node, and its monitors leave it, as while somebody else repairs it (ADR-040 there).
        Nvsentinel = "nvsentinel",
        /// Gardener's machine-controller-manager keeps the machine of a failed node
        /// (`docs/usage/machine-preservation.md` there).
        Gardener = "gardener",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardField {
    Taint {
        key: &'static str,
        /// The value that Haulout sets, where it has one.
        value: Option<&'static str>,
        effect: &'static str,
    },
    Label {
        key: &'static str,
        /// The value that Haulout sets.
        value: &'static str,
    },
    Annotation {
        key: &'static str,
        /// The value that Haulout sets.
        value: &'static str,
    },
}

/// The state of a guard on a Node, where it is not simply absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardState {
    /// It has the value that Haulout sets, and `metadata.managedFields` names Haulout as its owner.
    Ours,
    /// It has the value that Haulout sets, and no owner is named.
    Set,
    /// It has another value or another owner.
    Other,
    /// The controller that it is for does not look after this Node.
    NotNeeded,
}

/// The guards of a Node, by what was found; an absent guard has no entry.
pub type FoundGuards = BTreeMap<NodeGuard, GuardState>;

impl NodeGuard {
    pub const fn field(self) -> GuardField {
        match self {
            Self::MaintenanceTaint => GuardField::Taint {
                key: MAINTENANCE_TAINT,
                value: None,
                effect: "NoSchedule",
            },
            Self::QueuedTaint => GuardField::Taint {
                key: QUEUED_TAINT,
                value: None,
                effect: "PreferNoSchedule",
            },
            Self::OutOfServiceTaint => GuardField::Taint {
                key: OUT_OF_SERVICE_TAINT,
                value: Some("nodeshutdown"),
                effect: "NoExecute",
            },
            Self::ClusterAutoscaler => GuardField::Annotation {
                key: AUTOSCALER_SCALE_DOWN_DISABLED,
                value: "true",
            },
            Self::Medik8s => GuardField::Label {
                key: MEDIK8S_EXCLUDE,
                value: "true",
            },
            Self::Nvsentinel => GuardField::Label {
                key: NVSENTINEL_MANAGED,
                value: "false",
            },
            Self::Gardener => GuardField::Annotation {
                key: GARDENER_PRESERVE,
                value: "when-failed",
            },
        }
    }

    /// Whether nobody else sets it, because its key is Haulout's own.
    pub const fn is_own(self) -> bool {
        matches!(self, Self::MaintenanceTaint | Self::QueuedTaint)
    }
}

/// Reads the guards of a record. Names of a newer version are dropped, because nothing is known about their fields.
pub(crate) fn read_node_guards<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeSet<NodeGuard>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}
