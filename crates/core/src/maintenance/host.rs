//! The state of an ESXi host.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::clock::Deadline;
use super::kinds::HostKind;
use crate::ids::TaskRef;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostState {
    /// Not in the inventory, or not readable. It never counts as out of maintenance.
    Unknown,
    /// Disconnected or not responding: what vCenter reports of it is out of date.
    Unreachable,
    /// Entering maintenance mode; its VMs can only be powered off, shut down or migrated.
    Entering {
        /// The `EnterMaintenanceMode_Task`.
        task: TaskRef,
        /// When the task was queued, on vCenter's clock.
        clicked_at: Timestamp,
        /// The user who started it, where vCenter reports one.
        user: Option<String>,
        /// How the task was detected.
        detection: Detection,
    },
    /// In maintenance mode.
    InMaintenance,
    /// Out of maintenance, but vCenter had lost it shortly before, and nobody has taken it out of maintenance since. It may be
    /// under repair, so nothing is done there until it has stayed.
    Settling {
        /// The end of `HOST_SETTLE_SECONDS`.
        until: Deadline,
    },
    /// Out of maintenance, but in quarantine by proactive HA: no VM is placed there.
    Quarantined,
    /// Out of maintenance, and usable.
    InService,
}

impl HostState {
    /// Whether its VMs have to leave or be off: it enters maintenance mode or is in it.
    pub fn is_leaving(&self) -> bool {
        match self {
            Self::Entering { .. } | Self::InMaintenance => true,
            Self::Unknown
            | Self::Unreachable
            | Self::Settling { .. }
            | Self::Quarantined
            | Self::InService => false,
        }
    }

    /// Whether it is known to be out of maintenance, and not only for a moment.
    pub fn is_out(&self) -> bool {
        match self {
            Self::Quarantined | Self::InService => true,
            Self::Unknown
            | Self::Unreachable
            | Self::Entering { .. }
            | Self::InMaintenance
            | Self::Settling { .. } => false,
        }
    }

    /// Whether a VM may be placed and powered on there.
    pub fn takes_vms(&self) -> bool {
        matches!(self, Self::InService)
    }

    /// The state in words that follow "is".
    pub fn words(&self) -> &'static str {
        match self {
            Self::Unknown => "unknown to vCenter",
            Self::Unreachable => "not reachable for vCenter",
            Self::Entering { .. } => "entering maintenance mode",
            Self::InMaintenance => "in maintenance mode",
            Self::Settling { .. } => "back by itself, for a short time so far",
            Self::Quarantined => "in quarantine",
            Self::InService => "in service",
        }
    }

    pub const fn kind(&self) -> HostKind {
        match self {
            Self::Unknown => HostKind::Unknown,
            Self::Unreachable => HostKind::Unreachable,
            Self::Entering { .. } => HostKind::EnteringMaintenance,
            Self::InMaintenance => HostKind::InMaintenance,
            Self::Settling { .. } => HostKind::Settling,
            Self::Quarantined => HostKind::Quarantined,
            Self::InService => HostKind::InService,
        }
    }
}

/// How a maintenance task was detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Detection {
    /// vCenter pushed it.
    Pushed,
    /// Only the periodic re-read showed it.
    Polled,
    /// It is older than this process or its leadership.
    AtStartup,
}

impl Detection {
    /// Its name on metrics and spans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pushed => "property_collector",
            Self::Polled => "poll",
            Self::AtStartup => "startup",
        }
    }
}
