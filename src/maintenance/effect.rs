//! Everything Haulout can do to the world beside writing its record, and why each may be repeated.

use jiff::Timestamp;

use super::observed::Drained;
use crate::ids::{HostRef, VmRef};

/// One thing to do. Each only starts something and is short; what comes of it is observed.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// List the node's pods, evict those that stand in the way, and report. Repeatable: an eviction names the pod's UID.
    DrainRound {
        /// Which state of the node's pods the round is an answer to.
        pods_revision: u64,
        /// A budget held pods in the last one, so that pods that are alike are asked one after the other.
        in_turn: bool,
        /// How long the drain may take. A round is in a hurry where it would else not come to all its pods by then.
        until: Timestamp,
    },
    /// Ask the guest to shut down. Repeatable: a guest on its way down ignores it, a stopped one answers "already off".
    ShutdownGuest {
        /// Whose guest.
        vm: VmRef,
        /// That it may be done.
        drained: Drained,
    },
    /// Cut the VM's power. Repeatable: the VM is looked at first, and an off VM is left alone.
    PowerOff {
        /// Whose power.
        vm: VmRef,
        /// That it may be done.
        drained: Drained,
    },
    /// Read who holds which passthrough device on these hosts. Changes nothing.
    Survey {
        /// The hosts whose VMs are read.
        hosts: Vec<HostRef>,
    },
    /// Move the powered-off VM. Repeatable: a VM that is already there, or on its way, is left alone.
    Relocate {
        /// Which VM.
        vm: VmRef,
        /// To which host.
        to: HostRef,
    },
    /// Power the VM on. Repeatable: a VM that is on, or being powered on, is left alone.
    PowerOn {
        /// Which VM.
        vm: VmRef,
        /// DRS picks the host; otherwise it is powered on where it stands.
        by_drs: bool,
    },
}

/// The kinds of effects, for counting and remembering tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each variant is the kind of the effect of that name")]
pub enum EffectKind {
    DrainRound,
    ShutdownGuest,
    PowerOff,
    Survey,
    Relocate,
    PowerOn,
}

impl Effect {
    /// Whether it changes anything outside of Haulout.
    pub fn changes_something(&self) -> bool {
        match self {
            Self::DrainRound { .. }
            | Self::ShutdownGuest { .. }
            | Self::PowerOff { .. }
            | Self::Relocate { .. }
            | Self::PowerOn { .. } => true,
            Self::Survey { .. } => false,
        }
    }

    /// Its kind.
    pub fn kind(&self) -> EffectKind {
        match self {
            Self::DrainRound { .. } => EffectKind::DrainRound,
            Self::ShutdownGuest { .. } => EffectKind::ShutdownGuest,
            Self::PowerOff { .. } => EffectKind::PowerOff,
            Self::Survey { .. } => EffectKind::Survey,
            Self::Relocate { .. } => EffectKind::Relocate,
            Self::PowerOn { .. } => EffectKind::PowerOn,
        }
    }
}

impl EffectKind {
    /// What it does, in the words that follow "tried to".
    pub fn words(self) -> &'static str {
        match self {
            Self::DrainRound => "drain",
            Self::ShutdownGuest => "shut the guest down",
            Self::PowerOff => "power off",
            Self::Survey => "read the passthrough devices of other hosts",
            Self::Relocate => "relocate",
            Self::PowerOn => "power on",
        }
    }
}
