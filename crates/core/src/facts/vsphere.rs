//! The facts of vCenter as plain data.
//!
//! A [`Host`], [`Vm`], [`Compute`] or [`Task`] is always complete: a changed property is merged with the known ones before it is
//! sent. Large values are shared by clones. `None` means *unknown* (not reported or not readable), never a default.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::ids::{ComputeRef, DatastoreRef, HostRef, NetworkRef, TaskRef, VmRef, VmUuid};

pub use self::cluster::{AntiAffinityRule, ClusterRules, Compute, Drs, DrsBehavior, DrsOverride, VmHostRule};
pub use self::devices::{
    AllowedDevice, ClaimedDevice, DeviceChange, DeviceMismatch, DeviceRequirement, Passthrough, PciDevice,
    PciIds, StaticDevice, VmotionDevice,
};
pub use self::survey::{Claim, HostReading, HostSurvey};
pub use self::vgpu::{HostVgpus, VgpuProfile};

mod cluster;
mod devices;
mod survey;
mod vgpu;

/// A change of a fact or of the stream.
#[derive(Clone, Debug, PartialEq)]
pub enum VsphereUpdate {
    /// All facts are void. A complete set follows, and then [`VsphereUpdate::Settled`].
    Reset,
    /// A host appeared or changed.
    Host(Arc<Host>),
    /// A host was removed from the inventory, or is no longer visible to us.
    HostGone(HostRef),
    /// The compute resource of some host appeared or changed.
    Compute(Compute),
    /// The compute resource was removed.
    ComputeGone(ComputeRef),
    /// One of our VMs appeared or changed.
    Vm(Vm),
    /// One of our VMs was removed from the inventory.
    VmGone(VmRef),
    /// A task of one of our VMs, or one we started, appeared or changed.
    Task(Task),
    /// vCenter no longer lists a task that was not seen to end; its result is unknown.
    TaskGone(TaskRef),
    /// The VMs that match a key of the [`WatchSet`].
    Found { key: VmKey, vms: BTreeSet<VmRef> },
    /// The keys of the [`WatchSet`] that match a VM outside `VCENTER_SCOPE`, which is in no [`VsphereUpdate::Found`].
    OutOfScope {
        /// All of them.
        keys: BTreeSet<VmKey>,
    },
    /// The VMs that vCenter itself shuts down by a compute policy when their host enters maintenance mode. Independent of `Reset` and
    /// `Settled`.
    EvacuationPolicies {
        /// All of them, also those of other clients.
        vms: BTreeSet<VmRef>,
    },
    /// The updates since the last `Reset` or `Settled` are complete.
    Settled,
    /// The stream broke and is rebuilt; a `Reset` follows when it is synced again.
    Lost {
        /// The operation and the error.
        why: String,
    },
}

/// The key of a VM lookup.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VmKey {
    /// By BIOS UUID, in both byte orders.
    Uuid(VmUuid),
    /// By inventory name, where no UUID is known or binding by name is configured.
    Name(String),
}

/// The objects that the stream watches, besides all hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchSet {
    /// The VMs of our nodes.
    pub vms: Arc<BTreeSet<VmKey>>,
    /// Those of `vms` for which an outdated lookup could do harm. Each is looked up when it is added here or its
    /// [urgency](LookupUrgency) rises, and [`VsphereUpdate::Found`] is sent even if nothing changed.
    pub urgent: BTreeMap<VmKey, LookupUrgency>,
    /// VMs that are found outside `VCENTER_SCOPE` as well: an episode has switched them off, and has to switch them on.
    pub kept_off: BTreeSet<VmRef>,
    /// Tasks whose end is awaited.
    pub tasks: BTreeSet<TaskRef>,
}

/// Why a lookup must be current: a VM may have been cloned since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LookupUrgency {
    /// Its node is in maintenance, or its host enters maintenance.
    Maintenance,
    /// The next effect cuts its power.
    PowerCut,
}

/// An ESXi host.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    pub moref: HostRef,
    /// Its name in the inventory; `None` while unreadable.
    pub name: Option<String>,
    /// The cluster (or standalone compute resource) it belongs to.
    pub compute: Option<ComputeRef>,
    /// `runtime.connectionState`.
    pub connection: Option<HostConnection>,
    /// `runtime.inMaintenanceMode`: false during the whole entering phase.
    pub in_maintenance: Option<bool>,
    /// `runtime.inQuarantineMode`, set by proactive HA.
    pub in_quarantine: Option<bool>,
    /// The latest `HostSystem.enterMaintenanceMode` task of this host that is queued or running.
    pub entering: Option<EnteringMaintenance>,
    /// When the maintenance that the host is in was requested (`info.queueTime` of its task). Unknown some ten minutes after it has
    /// entered: then vCenter does not list the task any more.
    pub maintenance_asked_at: Option<Timestamp>,
    /// The newest such task that ended without success while this stream watched it. `None` once a newer one has begun, once the
    /// host is in maintenance, and after the stream was rebuilt.
    pub last_end: Option<MaintenanceEnd>,
    /// The newest `HostSystem.exitMaintenanceMode` task of this host that a user started, as far as this stream has seen one.
    pub last_exit: Option<TaskRef>,
    /// `summary.config.product.build`: the build of ESXi. `None` if it is unknown or no number.
    pub build: Option<u64>,
    /// A `HostSystem.enterStandbyMode` task of this host that is queued or running. It ends only when no VM there is powered on.
    pub entering_standby: Option<TaskRef>,
    /// A mode of `runtime.partialMaintenanceMode` that the host is in, enters or leaves.
    pub partial_maintenance: Option<String>,
    pub datastores: Arc<BTreeSet<DatastoreRef>>,
    /// PCI devices of which `config.pciPassthruInfo` says passthrough is active, with ids from `hardware.pciDevice`.
    /// Read for hosts of the clusters of our VMs, soon after the host is sent; `None` until then, and for other clusters.
    pub passthrough: Option<Arc<[PciDevice]>>,
    /// The addresses of its devices with active SR-IOV, which have virtual functions for VMs. Read together with `passthrough`.
    pub sriov: Arc<BTreeSet<String>>,
}

/// A queued or running `EnterMaintenanceMode_Task`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnteringMaintenance {
    pub task: TaskRef,
    /// `info.queueTime`, on vCenter's clock.
    pub queued_at: Timestamp,
    /// The user who started it (`info.reason`).
    pub user: Option<String>,
    pub signal: DetectionSignal,
}

/// An `EnterMaintenanceMode_Task` that ended without success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaintenanceEnd {
    pub task: TaskRef,
    pub outcome: EndOutcome,
}

/// How a task ended that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndOutcome {
    /// It was cancelled: `RequestCanceled`, or any error after `info.cancelled`.
    Cancelled,
    /// Anything else, such as its own timeout.
    Failed {
        /// The fault with its message.
        message: String,
    },
}

/// How a change was detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectionSignal {
    /// By the long poll.
    Push,
    /// By the periodic re-read.
    Reread,
}

/// `HostSystemConnectionState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostConnection {
    /// vCenter has a connection to the host.
    Connected,
    /// A person disconnected it.
    Disconnected,
    /// vCenter lost the connection: all facts of the host are out of date.
    NotResponding,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Vm {
    pub moref: VmRef,
    /// Its name in the inventory.
    pub name: Option<String>,
    /// `config.uuid`, the BIOS UUID.
    pub uuid: Option<VmUuid>,
    /// `config.template`: a template may match a UUID but cannot run.
    pub template: bool,
    /// `runtime.powerState`.
    pub power: Option<PowerState>,
    /// `runtime.host`: where it runs, or is registered while off.
    pub host: Option<HostRef>,
    /// `guest.toolsRunningStatus == guestToolsRunning`.
    pub tools_running: Option<bool>,
    /// `runtime.question.text`: a pending question blocks every power operation until a person answers it.
    pub question: Option<String>,
    /// `datastore`, without those that only images in its CD and floppy drives are on.
    pub datastores: Arc<BTreeSet<DatastoreRef>>,
    /// Those of its datastores that are known better, with their state.
    pub datastore_states: Arc<BTreeMap<DatastoreRef, Arc<DatastoreState>>>,
    /// `network`, with the names that are known. Empty if it has none or they are not reported.
    pub networks: Arc<BTreeMap<NetworkRef, Option<Arc<str>>>>,
    /// Its passthrough devices; `None` while its configuration is unreadable.
    pub passthrough: Option<Vec<Passthrough>>,
    /// `config.hardware.memoryMB`. A VM with a passthrough device reserves all of it at power-on.
    pub memory_mib: Option<u64>,
    /// `config.version`: its hardware version, such as `vmx-21`.
    pub hardware_version: Option<Arc<str>>,
    /// `maintenance.vm.evacuation.poweroff` is set in its extraConfig: vCenter itself powers it off when its host
    /// enters maintenance, and so races the drain.
    pub evacuation_power_off: bool,
}

/// What is known of a datastore. The default is one of which nothing was reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatastoreState {
    /// Its name in the inventory; `None` while unreadable.
    pub name: Option<Arc<str>>,
    /// `summary.maintenanceMode` is `inMaintenance`: no VM can use it.
    pub in_maintenance: bool,
    /// The hosts that have mounted it and report that they cannot access it now.
    pub inaccessible_on: BTreeSet<HostRef>,
}

/// `VirtualMachinePowerState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerState {
    /// Running.
    On,
    Off,
    /// Suspended: neither runs nor can be moved with a passthrough device.
    Suspended,
}

/// A task of vCenter.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    pub moref: TaskRef,
    /// `info.entity`, when it is a VM.
    pub vm: Option<VmRef>,
    /// `info.descriptionId`, such as `VirtualMachine.powerOff`.
    pub description_id: String,
    /// `info.state`.
    pub state: TaskState,
    /// `info.queueTime`.
    pub queued_at: Timestamp,
    /// Whether `info.reason` names our own user.
    pub by_us: bool,
}

/// After this time an unfinished task counts as left over. vCenter may list a task as queued for years that nothing works on. The
/// longest tasks of a VM, which consolidate large disks, take some hours.
pub const LEFT_OVER_AFTER: SignedDuration = SignedDuration::from_hours(24);

impl Task {
    /// Whether it was queued so long before `now` that nothing works on it any more.
    pub fn is_left_over(&self, now: Timestamp) -> bool {
        now.duration_since(self.queued_at) > LEFT_OVER_AFTER
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.state, TaskState::Success | TaskState::Error(_))
    }

    /// The power state that it has set, if it succeeded. It is derived from `descriptionId`, because names differ by initiator.
    pub fn made(&self) -> Option<PowerState> {
        (self.state == TaskState::Success).then(|| self.makes()).flatten()
    }

    /// Whether it moves a running VM to another host.
    pub fn is_vmotion(&self) -> bool {
        matches!(
            &*self.description_id,
            "Drm.ExecuteVMotionLRO" | "VirtualMachine.migrate" | "VirtualMachine.relocate"
        )
    }

    /// The power state that it sets if it succeeds.
    pub fn makes(&self) -> Option<PowerState> {
        match &*self.description_id {
            "VirtualMachine.powerOff" => Some(PowerState::Off),
            "VirtualMachine.powerOn" | "Drm.ExecuteVmPowerOnLRO" | "VirtualMachine.reset" => {
                Some(PowerState::On)
            }
            _ => None,
        }
    }
}

/// `TaskInfoState`, with the error of a failed one.
#[derive(Clone, Debug, PartialEq)]
pub enum TaskState {
    Queued,
    Running,
    Success,
    Error(super::fault::Fault),
}
