//! The phases of an episode.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::HostIdentity;
use crate::maintenance::drain::DrainEnd;
use crate::maintenance::kinds::PhaseKind;
use crate::maintenance::waiting::ParkReason;

/// The phase of an episode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// A limit on drained or unavailable nodes is reached: the node waits for a slot, untouched.
    Queued,
    /// Cordoned; its pods are being evicted.
    Draining,
    /// Drained for a request and kept so: cordoned and empty, its VM on.
    Drained,
    /// Drained; the guest is asked to shut down, and its power is cut after a deadline.
    ShuttingDown(DrainEnd),
    /// Off; being relocated cold.
    Relocating {
        /// The target host, reserved for it.
        to: HostIdentity,
    },
    /// Off; waits for its host to leave maintenance, or for another host that fits.
    AwaitingHost,
    /// Being powered on.
    PoweringOn {
        /// DRS picks the host; otherwise it is powered on where it is registered.
        by_drs: bool,
    },
    /// On; waits for the Node to be Ready on another boot with its GPUs.
    Rejoining,
    /// Waits for a person; resumes by itself when the reason goes away.
    Parked {
        reason: ParkReason,
        resume: Box<Phase>,
        /// When that phase began: its deadlines still count from there.
        resume_since: Timestamp,
    },
}

impl Phase {
    pub const fn kind(&self) -> PhaseKind {
        match self {
            Self::Queued => PhaseKind::Queued,
            Self::Draining => PhaseKind::Draining,
            Self::Drained => PhaseKind::Drained,
            Self::ShuttingDown(_) => PhaseKind::ShuttingDown,
            Self::Relocating { .. } => PhaseKind::Relocating,
            Self::AwaitingHost => PhaseKind::AwaitingHost,
            Self::PoweringOn { .. } => PhaseKind::PoweringOn,
            Self::Rejoining => PhaseKind::Rejoining,
            Self::Parked { .. } => PhaseKind::Parked,
        }
    }

    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// The details of the phase, as they follow its name; empty where there are none.
    pub fn whereto(&self) -> String {
        if let Self::Relocating { to } = self {
            format!(" to {to}")
        } else if let Self::PoweringOn { by_drs: true } = self {
            ", placed by DRS".to_owned()
        } else if let Self::Parked { reason, .. } = self {
            format!(": {reason}")
        } else {
            String::new()
        }
    }

    /// The host that the VM is being relocated to.
    pub fn target(&self) -> Option<&HostIdentity> {
        if let Self::Relocating { to } = self.at_work() {
            Some(to)
        } else {
            None
        }
    }

    /// Why the node is parked, and when the phase that it resumes began.
    pub fn parked(&self) -> Option<(&ParkReason, Timestamp)> {
        if let Self::Parked {
            reason, resume_since, ..
        } = self
        {
            Some((reason, *resume_since))
        } else {
            None
        }
    }

    /// The phase itself, or the one that a parked phase resumes.
    pub fn at_work(&self) -> &Self {
        if let Self::Parked { resume, .. } = self {
            resume.at_work()
        } else {
            self
        }
    }

    /// Whether the VM was seen off and is not known to be on again.
    pub fn vm_is_off(&self) -> bool {
        self.at_work().kind().vm_is_off()
    }

    /// Whether it takes one of `MAX_CONCURRENT_DRAINS`: from the cordon until the VM is off or on another host.
    pub fn is_draining(&self) -> bool {
        self.at_work().kind().is_draining()
    }

    /// Whether it takes one of `MAX_UNAVAILABLE`: from the cordon until the node is back.
    pub fn is_unavailable(&self) -> bool {
        !matches!(self.at_work(), Self::Queued)
    }
}
