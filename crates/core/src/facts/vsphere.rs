//! What vCenter tells, as plain data: typed, complete, and without a trace of the wire.
//!
//! A [`Host`], [`Vm`], [`Compute`] or [`Task`] always comes whole: a changed property is merged with what was known of
//! the object before it is told. What is long in one and seldom changes is shared by all its copies. `None` means *unknown*
//! (not told, not readable), never a default.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::ids::{ComputeRef, DatastoreRef, HostRef, TaskRef, VmRef, VmUuid};

/// One thing that vCenter told, or that became of the stream itself.
#[derive(Clone, Debug, PartialEq)]
pub enum VsphereUpdate {
    /// All that was told before is void. A complete set follows, closed by [`VsphereUpdate::Settled`].
    Reset,
    /// A host appeared or changed. It is shared with what it is compared to when it is told next.
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
    /// A task that is [awaited](WatchSet::tasks) and that vCenter does not know any more: how it ended is not to be learnt.
    TaskGone(TaskRef),
    /// Which VMs answer to a key of the [`WatchSet`]: none, one, or more than one.
    Found {
        /// What was asked for.
        key: VmKey,
        /// Who answers to it.
        vms: BTreeSet<VmRef>,
    },
    /// What was told since the last `Reset` or `Settled` is complete: judge by it.
    Settled,
    /// The stream broke; it is being rebuilt, and a `Reset` follows when it stands again.
    Lost {
        /// What was tried and what vCenter answered, for people.
        why: String,
    },
}

/// What a VM is looked up by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VmKey {
    /// By BIOS UUID, in both byte orders.
    Uuid(VmUuid),
    /// By inventory name, where no UUID is known or binding by name is configured.
    Name(String),
}

/// What the house wants to hear about, beside the hosts, which it always hears about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchSet {
    /// The VMs of our nodes.
    pub vms: Arc<BTreeSet<VmKey>>,
    /// Those of `vms` for which an old answer could do harm. Each is asked for when it comes in here or becomes
    /// [more pressing](LookupUrgency), and told in [`VsphereUpdate::Found`] although nothing changed.
    pub urgent: BTreeMap<VmKey, LookupUrgency>,
    /// Tasks whose end somebody waits for.
    pub tasks: BTreeSet<TaskRef>,
}

/// Why an answer must not be an old one: a VM may have been cloned since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LookupUrgency {
    /// Its node is in maintenance, or its host is leaving.
    Maintenance,
    /// The next thing done to it cuts its power.
    PowerCut,
}

/// An ESXi host.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// Its moref.
    pub moref: HostRef,
    /// Its name in the inventory; `None` while unreadable.
    pub name: Option<String>,
    /// The cluster (or standalone compute resource) it belongs to.
    pub compute: Option<ComputeRef>,
    /// `runtime.connectionState`.
    pub connection: Option<HostConnection>,
    /// `runtime.inMaintenanceMode`: false during the whole entering phase.
    pub in_maintenance: Option<bool>,
    /// `runtime.inQuarantineMode`: a host that proactive HA distrusts.
    pub in_quarantine: Option<bool>,
    /// The latest `HostSystem.enterMaintenanceMode` task of this host that is queued or running.
    pub entering: Option<EnteringMaintenance>,
    /// The newest such task that ended without success while this stream followed it. `None` once a newer one has begun, once the
    /// host is in maintenance, and after the stream was rebuilt.
    pub last_end: Option<MaintenanceEnd>,
    /// `datastore`.
    pub datastores: Arc<BTreeSet<DatastoreRef>>,
    /// PCI devices of which `config.pciPassthruInfo` says passthrough is active, with ids from `hardware.pciDevice`.
    /// Read where a VM of ours stands in the host's cluster, soon after the host is told; `None` until then, and elsewhere.
    pub passthrough: Option<Arc<[PciDevice]>>,
}

/// A queued or running `EnterMaintenanceMode_Task`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnteringMaintenance {
    /// The task.
    pub task: TaskRef,
    /// `info.queueTime`: the moment of the click, on vCenter's clock.
    pub queued_at: Timestamp,
    /// Who clicked, when a person or a service account did (`info.reason`).
    pub user: Option<String>,
    /// What told of it first.
    pub signal: DetectionSignal,
}

/// An `EnterMaintenanceMode_Task` that ended without success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaintenanceEnd {
    /// The task.
    pub task: TaskRef,
    /// How it ended.
    pub outcome: EndOutcome,
}

/// How a task ended that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndOutcome {
    /// Somebody cancelled it: `RequestCanceled`, or any error after `info.cancelled`.
    Cancelled,
    /// Anything else, such as its own timeout.
    Failed {
        /// The fault, with vCenter's words.
        said: String,
    },
}

/// What tells of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectionSignal {
    /// A long poll: vCenter pushed it.
    Push,
    /// The re-read, because no long poll had.
    Reread,
}

/// `HostSystemConnectionState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostConnection {
    /// vCenter hears the host.
    Connected,
    /// A person disconnected it.
    Disconnected,
    /// vCenter lost it: all that is known of the host is stale.
    NotResponding,
}

/// One passthrough device of a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciDevice {
    /// The address on that host, `0000:3b:00.0`.
    pub address: String,
    /// PCI vendor id, masked to 16 bits (the wire has it as a signed short).
    pub vendor: u16,
    /// PCI device id, masked likewise.
    pub device: u16,
}

/// A cluster, or the compute resource around a standalone host (which has no DRS).
#[derive(Clone, Debug, PartialEq)]
pub struct Compute {
    /// Its moref.
    pub moref: ComputeRef,
    /// Its name in the inventory; `None` while unreadable.
    pub name: Option<String>,
    /// `drsConfig`, `None` where there is none or it is unreadable.
    pub drs: Option<Drs>,
}

/// The DRS settings of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Drs {
    /// `drsConfig.enabled`.
    pub enabled: bool,
    /// `drsConfig.defaultVmBehavior`.
    pub behavior: DrsBehavior,
    /// `drsVmConfig`, already empty where `enableVmBehaviorOverrides` is false.
    pub overrides: BTreeMap<VmRef, DrsOverride>,
}

/// `DrsBehavior`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrsBehavior {
    /// DRS only recommends.
    Manual,
    /// DRS places at power-on, and recommends afterwards.
    PartiallyAutomated,
    /// DRS places and moves.
    FullyAutomated,
}

/// One VM's deviation from its cluster's DRS settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrsOverride {
    /// `false` excludes the VM from DRS altogether, initial placement included.
    pub enabled: bool,
    /// The VM's own behaviour, if it has one.
    pub behavior: Option<DrsBehavior>,
}

impl Drs {
    /// Whether DRS itself places `vm` at power-on and moves it: fully automated for that VM.
    pub fn fully_automated_for(&self, vm: &VmRef) -> bool {
        let (enabled, behavior) = match self.overrides.get(vm) {
            Some(own) => (own.enabled, own.behavior.unwrap_or(self.behavior)),
            None => (true, self.behavior),
        };
        self.enabled && enabled && behavior == DrsBehavior::FullyAutomated
    }
}

/// A virtual machine of ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Vm {
    /// Its moref.
    pub moref: VmRef,
    /// Its name in the inventory.
    pub name: Option<String>,
    /// `config.uuid`, the BIOS UUID.
    pub uuid: Option<VmUuid>,
    /// `config.template`: a template can answer to a UUID but never run.
    pub template: bool,
    /// `runtime.powerState`.
    pub power: Option<PowerState>,
    /// `runtime.host`: where it runs, or is registered while off.
    pub host: Option<HostRef>,
    /// `guest.toolsRunningStatus == guestToolsRunning`.
    pub tools_running: Option<bool>,
    /// `runtime.question.text`: a pending question blocks every power operation until a person answers it.
    pub question: Option<String>,
    /// `datastore`.
    pub datastores: Arc<BTreeSet<DatastoreRef>>,
    /// Its passthrough devices; `None` while its configuration is unreadable.
    pub passthrough: Option<Vec<Passthrough>>,
    /// `maintenance.vm.evacuation.poweroff` is set in its extraConfig: vCenter itself powers it off when its host
    /// enters maintenance, and so races the drain.
    pub evacuation_power_off: bool,
}

/// `VirtualMachinePowerState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerState {
    /// Running.
    On,
    /// Off.
    Off,
    /// Suspended: neither runs nor can be moved with a passthrough device.
    Suspended,
}

/// A passthrough device of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passthrough {
    /// Bound to one address of one host (`VirtualPCIPassthroughDeviceBackingInfo`).
    Static {
        /// The address, `0000:3b:00.0`.
        address: String,
        /// PCI vendor id.
        vendor: u16,
        /// PCI device id, where the backing tells it in a form that can be read.
        device: Option<u16>,
    },
    /// Chosen at power-on among devices that match (`VirtualPCIPassthroughDynamicBackingInfo`).
    Dynamic {
        /// Vendor and device ids, any of which will do.
        allowed: Vec<(u16, u16)>,
    },
    /// vGPU, DVX, or a backing this client does not know: its placement is not ours to judge.
    Other {
        /// The backing's type name on the wire.
        backing: String,
    },
}

/// A task of vCenter.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Its moref.
    pub moref: TaskRef,
    /// `info.entity`, when it is a VM.
    pub vm: Option<VmRef>,
    /// `info.descriptionId`, such as `VirtualMachine.powerOff`.
    pub description_id: String,
    /// Where it stands.
    pub state: TaskState,
    /// `info.queueTime`.
    pub queued_at: Timestamp,
    /// Whether `info.reason` names the user that we are logged in as.
    pub by_us: bool,
}

impl Task {
    /// What it has made of the VM's power, where it ended well and is of that kind; by `descriptionId`, because names
    /// differ by who started it.
    pub fn made(&self) -> Option<PowerState> {
        (self.state == TaskState::Success).then(|| self.makes()).flatten()
    }

    /// What it makes of the VM's power, where it ends well and is of that kind.
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
    /// Waits for its turn.
    Queued,
    /// Runs.
    Running,
    /// Ended well.
    Success,
    /// Ended with a fault.
    Error(super::fault::Fault),
}

/// What a survey found: each host that was asked for is in one of the two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surveyed {
    /// What the VMs on a host hold.
    pub claims: Vec<Claims>,
    /// Hosts of which nothing is known.
    pub not_surveyed: Vec<NotSurveyed>,
}

/// What the VMs on one host hold of its passthrough devices, read at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The host.
    pub host: HostRef,
    /// One entry for each passthrough device of each VM registered there, ours or not, powered on or off.
    pub held: Vec<Claim>,
    /// VMs registered there of which it is not known what they hold.
    pub unreadable: Vec<UnreadableVm>,
}

/// A VM whose devices cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableVm {
    /// Its moref.
    pub vm: VmRef,
    /// Its name in the inventory, where that much can be read.
    pub name: Option<String>,
    /// Why its devices cannot be read, for people.
    pub why: String,
}

/// A host of which it is not known which VMs are registered on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotSurveyed {
    /// Its moref.
    pub host: HostRef,
    /// Why, for people.
    pub why: String,
}

/// One VM's hold on one passthrough device of the host it is registered on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who holds it.
    pub vm: VmRef,
    /// Which device: by address where it is known (static backing, or assigned while powered on), else by its ids.
    pub device: ClaimedDevice,
}

/// How precisely a claim names its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimedDevice {
    /// Exactly this address.
    Address(String),
    /// One of the devices with any of these vendor and device ids; which one is not told.
    AnyOf(Vec<(u16, u16)>),
}
