//! The effects: everything that Haulout does besides writing its record, and why each may be repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::drain::{Drained, PendingReason};
use super::machine_guard::MachineGuards;
use super::request_identity::RequestIdentity;
use crate::facts::known_pods::KnownPods;
use crate::facts::vsphere::DeviceChange;
use crate::ids::{BootId, HostRef, NodeUid, TaskRef, VmRef, VmUuid};

/// An effect only starts an operation and is short; its result is observed as a fact.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Lists the node's pods, evicts those that block, and reports. Repeatable: an eviction has the pod's UID.
    DrainRound {
        /// [`Observed::pods_revision`](super::observed::Observed::pods_revision) when it was decided.
        pods_revision: u64,
        /// A budget blocked pods in the last round, so that pods of the same budgets are evicted one after the other.
        in_turn: bool,
        /// The pods whose eviction is not due yet, and why each is still there.
        deferred: BTreeMap<String, PendingReason>,
        /// What the lists of this drain showed so far; `None` in its first round.
        known: Option<Arc<KnownPods>>,
        /// Limits how long pods may be waited for.
        began: DrainBegan,
    },
    /// Lists the volumes that are attached to the node and that no pod there uses any more. Changes nothing.
    ListVolumes,
    /// Asks the guest to shut down. The VM and the cause are read first; a VM that is off is left alone.
    ShutdownGuest {
        vm: VmRef,
        /// The proof of the drain.
        drained: Drained,
        /// Checked again before the call.
        asked_by: PowerOffCause,
    },
    /// Cuts the VM's power. Repeatable: the VM and the cause are read first, and a VM that is off is left alone.
    PowerOff {
        vm: VmRef,
        /// The proof of the drain.
        drained: Drained,
        /// Checked again before the call.
        asked_by: PowerOffCause,
    },
    /// Reads which VMs hold the passthrough devices of these hosts. Changes nothing.
    Survey { hosts: Vec<HostRef> },
    /// Relocates the powered-off VM. Repeatable: a VM that is already there or being relocated is left alone.
    Relocate { vm: VmRef, to: HostRef },
    /// Gives the powered-off VM the passthrough devices of the host where it is registered, in place of those at the addresses of
    /// another host. Repeatable: a VM that has these devices is left alone.
    Reconfigure {
        vm: VmRef,
        /// The host with the devices.
        host: HostRef,
        devices: Vec<DeviceChange>,
    },
    /// Sets guards on the Machine of the node, if it has one. Repeatable: what is set already is left alone.
    SetMachineGuards {
        /// The UUID of the VM, by which the Machine is verified.
        vm: Option<VmUuid>,
    },
    /// Removes the guards of the episode. Repeatable: one that is not ours is left alone.
    RemoveMachineGuards {
        /// The UUID of the VM, which is part of the guards.
        vm: Option<VmUuid>,
        guards: MachineGuards,
    },
    /// Sets the count of GPUs of an earlier boot to 0 in the status of the Node. Repeatable: it is done while the Node shows this boot.
    ClearGpus {
        node: NodeUid,
        /// The version of the Node that shows the counts.
        resource_version: u64,
        /// The boot that it shows. A kubelet that has started since has written another one.
        boot: Option<BootId>,
        resources: BTreeSet<String>,
    },
    /// Powers the VM on. Repeatable: a VM that is on or being powered on is left alone.
    PowerOn { vm: VmRef, place: PowerOnTarget },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainBegan {
    /// How long it has taken.
    pub elapsed: Duration,
    /// When it began in whole seconds of the wall clock, for display.
    pub at: Timestamp,
}

/// The cause of a power-off. It is read again right before the call, because a cancel may not have been observed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PowerOffCause {
    /// The host enters maintenance or is in maintenance.
    Host {
        host: HostRef,
        /// The `EnterMaintenanceMode_Task`, where it is known.
        task: Option<TaskRef>,
    },
    /// A request; `None` if it is not known any more.
    Request(Option<RequestIdentity>),
}

impl PowerOffCause {
    /// The host that is maintained, and its task, where it is known.
    pub fn host_and_task(&self) -> (Option<&HostRef>, Option<&TaskRef>) {
        match self {
            Self::Host { host, task } => (Some(host), task.as_ref()),
            Self::Request(_) => (None, None),
        }
    }
}

/// Where a VM is powered on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PowerOnTarget {
    /// On the host where it is registered (`PowerOnVM_Task` with `host`).
    Host(HostRef),
    /// On the host that DRS chooses (`PowerOnMultiVM_Task` on the VM's datacenter).
    Drs,
}

named_enum! {
    /// The kinds of effects.
    pub enum EffectKind {
        DrainRound = "drain_round",
        ListVolumes = "list_volumes",
        ShutdownGuest = "shutdown_guest",
        PowerOff = "power_off",
        Survey = "survey",
        Relocate = "relocate",
        Reconfigure = "reconfigure",
        SetMachineGuards = "set_machine_guards",
        RemoveMachineGuards = "remove_machine_guards",
        ClearGpus = "clear_gpus",
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
            | Self::Reconfigure { .. }
            | Self::SetMachineGuards { .. }
            | Self::RemoveMachineGuards { .. }
            | Self::ClearGpus { .. }
            | Self::PowerOn { .. } => true,
            Self::Survey { .. } | Self::ListVolumes => false,
        }
    }

    /// The host of a relocation or reconfiguration, or of a power-on that names one.
    pub fn host(&self) -> Option<&HostRef> {
        match self {
            Self::Relocate { to: host, .. }
            | Self::Reconfigure { host, .. }
            | Self::PowerOn {
                place: PowerOnTarget::Host(host),
                ..
            } => Some(host),
            Self::DrainRound { .. }
            | Self::ListVolumes
            | Self::ShutdownGuest { .. }
            | Self::PowerOff { .. }
            | Self::Survey { .. }
            | Self::SetMachineGuards { .. }
            | Self::RemoveMachineGuards { .. }
            | Self::ClearGpus { .. }
            | Self::PowerOn {
                place: PowerOnTarget::Drs,
                ..
            } => None,
        }
    }

    pub fn kind(&self) -> EffectKind {
        match self {
            Self::DrainRound { .. } => EffectKind::DrainRound,
            Self::ListVolumes => EffectKind::ListVolumes,
            Self::ShutdownGuest { .. } => EffectKind::ShutdownGuest,
            Self::PowerOff { .. } => EffectKind::PowerOff,
            Self::Survey { .. } => EffectKind::Survey,
            Self::Relocate { .. } => EffectKind::Relocate,
            Self::Reconfigure { .. } => EffectKind::Reconfigure,
            Self::SetMachineGuards { .. } => EffectKind::SetMachineGuards,
            Self::RemoveMachineGuards { .. } => EffectKind::RemoveMachineGuards,
            Self::ClearGpus { .. } => EffectKind::ClearGpus,
            Self::PowerOn { .. } => EffectKind::PowerOn,
        }
    }
}

impl EffectKind {
    /// Whether it is repeated often and changes little each time.
    pub const fn is_routine(self) -> bool {
        matches!(self, Self::DrainRound | Self::ListVolumes | Self::Survey)
    }

    /// The effect in words that follow "tried to".
    pub fn words(self) -> &'static str {
        match self {
            Self::DrainRound => "drain",
            Self::ListVolumes => "list the attached volumes",
            Self::ShutdownGuest => "shut the guest down",
            Self::PowerOff => "power off",
            Self::Survey => "read the passthrough devices of other hosts",
            Self::Relocate => "relocate",
            Self::Reconfigure => "reconfigure the passthrough devices",
            Self::SetMachineGuards => "set the guards on its Machine",
            Self::RemoveMachineGuards => "remove the guards from its Machine",
            Self::ClearGpus => "set the GPU count of the last boot to 0",
            Self::PowerOn => "power on",
        }
    }
}
