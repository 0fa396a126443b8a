//! Everything Haulout can do to the world beside writing its record, and why each may be repeated.

use std::collections::BTreeMap;

use super::observed::{Drained, PendingReason};
use crate::ids::{HostRef, TaskRef, VmRef};

/// One thing to do. Each only starts something and is short; what comes of it is observed.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// List the node's pods, evict those that stand in the way, and report. Repeatable: an eviction names the pod's UID.
    DrainRound {
        /// Which state of the node's pods the round is an answer to.
        pods_revision: u64,
        /// A budget held pods in the last one, so that pods that are alike are asked one after the other.
        in_turn: bool,
        /// The pods that are not asked in this round, because it is too early, and why each is still there.
        deferred: BTreeMap<String, PendingReason>,
    },
    /// Ask the guest to shut down. The VM and what asked for it are looked at first; an off VM is left alone.
    ShutdownGuest {
        /// Whose guest.
        vm: VmRef,
        /// That it may be done.
        drained: Drained,
        /// What has to hold still when vCenter is asked.
        asked_by: PowerOffCause,
    },
    /// Cut the VM's power. Repeatable: the VM and what asked for it are looked at first, and an off VM is left alone.
    PowerOff {
        /// Whose power.
        vm: VmRef,
        /// That it may be done.
        drained: Drained,
        /// What has to hold still when vCenter is asked.
        asked_by: PowerOffCause,
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
        /// Where.
        place: PowerOnTarget,
    },
}

/// What a power-off is for. It is read once more right before anything is sent: a cancel may not have been told yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PowerOffCause {
    /// The host is on its way into maintenance, or in it.
    Host {
        /// Which.
        host: HostRef,
        /// The task that takes it there, where it is known.
        task: Option<TaskRef>,
    },
    /// A person's request.
    Request,
}

/// Where a VM is powered on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PowerOnTarget {
    /// On this host, where it is registered.
    Host(HostRef),
    /// Where DRS puts it.
    Drs,
}

named_enum! {
    /// The kinds of effects, for counting and remembering tries.
    pub enum EffectKind {
        DrainRound = "drain_round",
        ShutdownGuest = "shutdown_guest",
        PowerOff = "power_off",
        Survey = "survey",
        Relocate = "relocate",
        PowerOn = "power_on",
    }
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

    /// The host that the VM is to be on: of a relocate, and of a power-on that names one.
    pub fn host(&self) -> Option<&HostRef> {
        match self {
            Self::Relocate { to: host, .. }
            | Self::PowerOn {
                place: PowerOnTarget::Host(host),
                ..
            } => Some(host),
            Self::DrainRound { .. }
            | Self::ShutdownGuest { .. }
            | Self::PowerOff { .. }
            | Self::Survey { .. }
            | Self::PowerOn {
                place: PowerOnTarget::Drs,
                ..
            } => None,
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
    /// Whether it comes again and again and changes little each time.
    pub const fn is_routine(self) -> bool {
        matches!(self, Self::DrainRound | Self::Survey)
    }

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
