//! The lab's vCenter: starts the Go program in `go/vcenter` and controls it through its control endpoint. The README
//! of the program describes what it adds to VMware's simulator.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use jiff::Timestamp;
use reqwest::{Method, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::wait::until;

/// The timeout of the start.
const START: Duration = Duration::from_secs(30);
/// The duration of a long poll.
const POLL: Duration = Duration::from_secs(10);
/// The time that a response may take in addition to its long poll.
const SLACK: Duration = Duration::from_secs(10);

/// The inventory to begin with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// The datacenter's name; `DC0` if empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub datacenter: String,
    pub clusters: Vec<ClusterSpec>,
    pub vms: Vec<VmSpec>,
    /// How long tasks take.
    pub delays: Delays,
    /// `Some(false)`: `recentTask` is not pushed, which the API allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push_recent_task: Option<bool>,
    /// `Some(false)`: task histories push only new tasks, not their later states.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push_task_end: Option<bool>,
    /// `Some(false)`: DRS places a VM at power on by its ranking, and not on its current host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drs_keeps_host: Option<bool>,
    /// Lists fixed-address devices in `assignableHardwareBinding` too, which is not documented of a vCenter.
    pub bind_static: bool,
    /// Its compute policies. Without any it has no REST API.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PolicySpec>,
    /// A large generated inventory in addition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bulk: Option<Bulk>,
    /// Ends sessions that are idle for longer; 0 is never.
    pub session_timeout_ms: u32,
    /// The length of `recentTask`; 0 is the simulator's default of 200.
    pub recent_tasks: usize,
}

/// A compute policy, which applies to the VMs with its tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySpec {
    pub name: String,
    /// The id of its capability.
    pub capability: String,
    /// The names of the VMs.
    pub vms: Vec<String>,
}

/// Hosts `bulk-0000` and so on, and read-only VMs spread over them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bulk {
    /// How many hosts, at least one.
    pub hosts: usize,
    /// How many VMs.
    pub vms: usize,
}

impl Bulk {
    /// The name of the `n`-th host.
    pub fn host(n: usize) -> String {
        format!("bulk-{n:04}")
    }

    /// The BIOS UUID of the `n`-th VM.
    pub fn uuid(n: usize) -> String {
        format!("c0000000-0000-4000-8000-{n:012x}")
    }
}

/// How long tasks take, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Delays {
    /// Enter Maintenance Mode, at the least.
    pub enter_ms: u32,
    /// Exit Maintenance Mode.
    pub exit_ms: u32,
    pub power_on_ms: u32,
    pub power_off_ms: u32,
    pub relocate_ms: u32,
    /// Reconfigure.
    pub reconfig_ms: u32,
    /// The time after which DRS begins to vMotion a VM with a vGPU off a host that enters maintenance mode; never if 0. The move
    /// takes `relocate_ms`.
    pub vmotion_ms: u32,
    /// The cycle in which vCenter starts a VM elsewhere that it has shut down because of its evacuation mark; marks have no effect
    /// if 0.
    pub remediation_ms: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterSpec {
    pub name: String,
    /// Its DRS settings.
    pub drs: DrsSpec,
    pub hosts: Vec<HostSpec>,
    /// The hosts that vSphere HA keeps for failover.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failover_hosts: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleSpec>,
}

/// A mandatory rule of a cluster: for VMs and hosts a VM-Host rule, for VMs alone one that keeps them apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleSpec {
    pub name: String,
    /// The names, UUIDs or morefs of its VMs.
    pub vms: Vec<String>,
    /// The hosts on which the VMs must run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// The hosts on which they must not run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_hosts: Vec<String>,
}

/// A DRS automation level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DrsAutomation {
    /// Recommend only.
    #[default]
    Manual,
    /// Place VMs at power on.
    PartiallyAutomated,
    /// Place VMs at power on and move them.
    FullyAutomated,
}

/// A cluster's DRS settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DrsSpec {
    /// Whether DRS is on at all.
    pub enabled: bool,
    /// The cluster's level.
    pub behavior: DrsAutomation,
    /// Whether overrides are enabled; they are if it is unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overrides_enabled: Option<bool>,
    /// Overrides for VMs.
    pub vm_overrides: Vec<VmOverride>,
}

/// The DRS setting of one VM.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VmOverride {
    /// Its name, UUID or moref.
    pub vm: String,
    /// `Some(false)` takes it out of DRS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Its own level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behavior: Option<DrsAutomation>,
}

/// One ESXi host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HostSpec {
    pub name: String,
    /// Its PCI devices.
    pub devices: Vec<DeviceSpec>,
    /// The datastores that it mounts; equal names are shared.
    pub datastores: Vec<String>,
    /// Its port groups; `VM Network` if empty. A name that begins with `dvs/` is one of a distributed switch.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<String>,
    /// Its memory in MiB; 4 GiB if 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub memory_mb: u32,
    /// Its build of ESXi, not reported if empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub build: String,
    /// How many GPUs it shares among VMs.
    #[serde(skip_serializing_if = "is_zero")]
    pub vgpus: u32,
    /// The profiles of vGPUs that it offers, such as `grid_a40-24c`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vgpu_profiles: Vec<String>,
    /// The newest hardware version that it runs: 13 is `vmx-13`, which is what it runs if 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub hardware_version: u32,
}

/// One PCI device. Ids are the unsigned numbers that `lspci` prints.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceSpec {
    /// Its address, `0000:3b:00.0`.
    pub id: String,
    /// The vendor id.
    pub vendor: u16,
    /// The device id.
    pub device: u16,
    /// The subsystem device id.
    pub sub_device: u16,
    /// The class; 0x0302 is a GPU without a display.
    pub class: u16,
    /// Whether passthrough is active.
    pub passthrough: bool,
    /// The hardware label that an administrator gave it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// It is a network card with active SR-IOV and this many virtual functions.
    #[serde(skip_serializing_if = "is_zero")]
    pub virtual_functions: u32,
}

impl DeviceSpec {
    /// A network card with active SR-IOV.
    pub fn sriov(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            vendor: 0x8086,
            device: 0x1592,
            class: 0x0200,
            virtual_functions: 8,
            ..Self::default()
        }
    }

    /// A GPU of NVIDIA's with passthrough active.
    pub fn gpu(id: impl Into<String>, device: u16) -> Self {
        Self {
            id: id.into(),
            vendor: 0x10de,
            device,
            class: 0x0302,
            passthrough: true,
            ..Self::default()
        }
    }
}

/// One virtual machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VmSpec {
    /// Its name. A second VM with the same name needs another folder.
    pub name: String,
    /// Its BIOS UUID; derived from folder and name if empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uuid: String,
    /// The folder under the datacenter's VM folder.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub folder: String,
    /// The host that it is registered on.
    pub host: String,
    /// Its datastore; the host's first when empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub datastore: String,
    /// Its passthrough device.
    pub gpu: Gpu,
    /// Whether it runs from the start.
    pub powered_on: bool,
    /// Whether VMware Tools run in it.
    pub tools: bool,
    /// How long the guest takes to shut down when asked.
    pub shutdown_ms: u32,
    /// The guest ignores a shutdown request.
    pub ignore_shutdown: bool,
    /// The guest reboots at a shutdown request.
    #[serde(skip_serializing_if = "is_false")]
    pub reboots: bool,
    /// The time from the request to the stop of VMware Tools while the VM is still on; 0 is with the VM.
    #[serde(skip_serializing_if = "is_zero")]
    pub tools_stop_ms: u32,
    /// Powers the VM off this long after each power-on, without a task; 0 is never.
    #[serde(skip_serializing_if = "is_zero")]
    pub dies_after_ms: u32,
    /// The properties that clients can read.
    #[serde(skip_serializing_if = "Readable::is_all")]
    pub readable: Readable,
    /// Its files are encrypted.
    #[serde(skip_serializing_if = "is_false")]
    pub encrypted: bool,
    /// It is a VM of vSphere Cluster Services, which vCenter powers off for a maintenance.
    #[serde(skip_serializing_if = "is_false")]
    pub cluster_agent: bool,
    /// Returned in [`VmState::boot_hint`].
    #[serde(skip_serializing_if = "String::is_empty")]
    pub boot_hint: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_config: BTreeMap<String, String>,
    /// The networks of its cards.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<String>,
    /// It has an SR-IOV network card, on the physical function at this address or, if `automatic`, on any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sriov_card: String,
    /// Its memory in MiB, which is reserved if it has a passthrough device; 32 if 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub memory_mb: u32,
    /// Its reserved memory in MiB if it has no such device.
    #[serde(skip_serializing_if = "is_zero")]
    pub reserved_mb: u32,
    /// Its hardware version: 13 is `vmx-13`, which it has if 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub hardware_version: u32,
    /// An image in its CD drive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSpec>,
}

/// An ISO image in the CD drive of a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageSpec {
    /// The datastore that it is on, which the host of the VM mounts.
    pub datastore: String,
    /// Whether the drive counts as connected when vCenter checks a relocation.
    pub connected: bool,
}

impl Default for VmSpec {
    fn default() -> Self {
        Self {
            name: String::new(),
            uuid: String::new(),
            folder: String::new(),
            host: String::new(),
            datastore: String::new(),
            gpu: Gpu::None,
            powered_on: true,
            tools: true,
            shutdown_ms: 50,
            ignore_shutdown: false,
            reboots: false,
            tools_stop_ms: 0,
            dies_after_ms: 0,
            readable: Readable::All,
            encrypted: false,
            cluster_agent: false,
            boot_hint: String::new(),
            extra_config: BTreeMap::new(),
            networks: Vec::new(),
            sriov_card: String::new(),
            memory_mb: 0,
            reserved_mb: 0,
            hardware_version: 0,
            image: None,
        }
    }
}

/// The properties of a VM that clients can read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Readable {
    /// All properties.
    #[default]
    All,
    /// Its `config` is unset, as that of an inaccessible or orphaned VM.
    NoConfig,
    /// Every property is missing with `NoPermission`.
    Denied,
}

impl Readable {
    fn is_all(&self) -> bool {
        *self == Self::All
    }
}

/// A VM's passthrough device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Gpu {
    /// No device.
    #[default]
    None,
    /// Any free device of this kind, chosen at power on.
    Dynamic {
        /// The vendor id.
        vendor: u16,
        /// The device id.
        device: u16,
        /// The subsystem device id; any if 0.
        #[serde(rename = "subDevice", default)]
        sub_device: u16,
        /// The hardware label; any if empty.
        #[serde(default)]
        label: String,
    },
    /// The device at this address of its host.
    Static {
        /// The address.
        id: String,
    },
    /// A virtual GPU.
    Vgpu { profile: String },
}

impl Gpu {
    /// Any free GPU of NVIDIA's of this model.
    pub fn nvidia(device: u16) -> Self {
        Self::dynamic(0x10de, device)
    }

    /// Any free device with these ids.
    pub fn dynamic(vendor: u16, device: u16) -> Self {
        Self::Dynamic {
            vendor,
            device,
            sub_device: 0,
            label: String::new(),
        }
    }
}

/// The traffic of one program with the SDK.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Traffic {
    /// Calls that have begun.
    pub calls: u64,
    /// Bytes of SOAP that it has sent.
    pub received: u64,
    /// Bytes of SOAP that it has received.
    pub sent: u64,
}

/// The property collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collector {
    /// The simulator's, which reads all filters again on each change.
    Simulator,
    /// Our own, which is faster and follows a vCenter's rules for versions.
    Own,
}

/// The default collector: `own` or `simulator`.
pub const COLLECTOR: &str = "LAB_COLLECTOR";

impl Default for Collector {
    fn default() -> Self {
        match std::env::var(COLLECTOR).as_deref() {
            Ok("own") => Self::Own,
            _ => Self::Simulator,
        }
    }
}

/// The options of the program.
#[derive(Debug, Clone)]
pub struct VcenterOptions {
    /// The user who may log in.
    pub user: String,
    /// That user's password.
    pub password: String,
    /// Serves the SDK over TLS.
    pub tls: Option<Tls>,
    /// The SDK's loopback port; 0 takes a free one.
    pub port: u16,
    /// The property collector.
    pub collector: Collector,
}

impl Default for VcenterOptions {
    fn default() -> Self {
        Self {
            user: "administrator@vsphere.local".into(),
            // A unique word, so that leaks can be searched for.
            password: "canary-pa55word".into(),
            tls: None,
            port: 0,
            collector: Collector::default(),
        }
    }
}

/// A certificate chain, leaf first, and the leaf's key, as PEM files.
#[derive(Debug, Clone)]
pub struct Tls {
    /// The chain.
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// The state of the inventory.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Grows with every change of this document.
    pub rev: i64,
    pub hosts: Vec<SimulatedHost>,
    pub vms: Vec<VmState>,
    /// How many sessions are open.
    pub sessions: usize,
}

impl State {
    pub fn host(&self, name: &str) -> Option<&SimulatedHost> {
        self.hosts.iter().find(|host| host.name == name)
    }

    /// The first VM of this name, UUID or moref.
    pub fn vm(&self, key: &str) -> Option<&VmState> {
        self.vms
            .iter()
            .find(|vm| vm.name == key || vm.reference == key || vm.uuid.eq_ignore_ascii_case(key))
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SimulatedHost {
    pub name: String,
    /// Its moref.
    #[serde(rename = "ref")]
    pub reference: String,
    /// Its cluster's name.
    pub cluster: String,
    /// Whether vCenter reaches it.
    pub connection: Connection,
    /// `runtime.inMaintenanceMode`.
    pub in_maintenance: bool,
    /// The Enter Maintenance Mode that runs, if any.
    pub entering: Option<Entering>,
    pub devices: Vec<DeviceState>,
}

/// A running Enter Maintenance Mode.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entering {
    /// Its task's moref.
    pub task: String,
    /// Who asked for it.
    pub by: String,
    /// When it began.
    pub since: Timestamp,
}

/// A device and the VM that holds it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceState {
    #[serde(flatten)]
    pub spec: DeviceSpec,
    /// The name of the VM that holds it, or is about to.
    #[serde(default)]
    pub used_by: Option<String>,
}

/// The connection state of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Connection {
    Connected,
    /// Disconnected by a user.
    Disconnected,
    NotResponding,
}

/// A VM's power state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Power {
    PoweredOn,
    PoweredOff,
    Suspended,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VmState {
    pub name: String,
    /// Its moref.
    #[serde(rename = "ref")]
    pub reference: String,
    /// Its BIOS UUID.
    pub uuid: String,
    pub host: String,
    /// Its power state.
    pub power: Power,
    /// The number of power-ons, which shows a fast reboot.
    pub boots: u32,
    /// Whether VMware Tools run while it does.
    pub tools: bool,
    /// The guest ignores a shutdown request.
    pub ignore_shutdown: bool,
    /// How long the guest takes to shut down.
    pub shutdown_ms: u32,
    /// Its guest shuts down.
    #[serde(default)]
    pub shutting_down: bool,
    /// The address of the device that it holds.
    #[serde(default)]
    pub device: Option<String>,
    /// The value in the spec.
    #[serde(default)]
    pub boot_hint: Option<String>,
}

impl VmState {
    /// Whether it runs.
    pub fn is_on(&self) -> bool {
        self.power == Power::PoweredOn
    }
}

/// A journal entry.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Counts from 1.
    pub seq: u64,
    pub time: Timestamp,
    pub kind: EntryKind,
    /// The user of the session, `operator` for the control endpoint, or `DRS`.
    #[serde(default)]
    pub user: String,
    /// The session's key, empty for the control endpoint.
    #[serde(default)]
    pub session: String,
    /// The SOAP method of a call.
    #[serde(default)]
    pub method: String,
    /// The `operationID` of a call.
    #[serde(default)]
    pub operation: String,
    /// The User-Agent of a login.
    #[serde(default)]
    pub agent: String,
    /// The object's name.
    #[serde(default)]
    pub object: String,
    /// The object's moref.
    #[serde(default, rename = "ref")]
    pub reference: String,
    /// The host of a VM that was started, stopped or moved.
    #[serde(default)]
    pub host: String,
    /// The maintenance task's moref.
    #[serde(default)]
    pub task: String,
    /// A call's arguments.
    #[serde(default)]
    pub args: serde_json::Value,
    /// The result: `poweredOff`, `entering`, `entered`, `exited`, `esx1 -> esx2`, `login`, …
    #[serde(default)]
    pub detail: String,
    /// The cause of a power change, such as `ShutdownGuest`.
    #[serde(default)]
    pub cause: String,
}

impl Entry {
    /// Whether this is a SOAP call of `method`.
    pub fn is_call(&self, method: &str) -> bool {
        self.kind == EntryKind::Call && self.method == method && !self.session.is_empty()
    }
}

/// The kind of a journal entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EntryKind {
    /// A call that changes something.
    Call,
    /// A VM's power state changed.
    Power,
    /// A change of a host's maintenance.
    Maintenance,
    /// A VM changed its host.
    Move,
    /// A VM was reconfigured.
    Reconfigure,
    /// A host was added, removed, renamed, connected or disconnected.
    Host,
    /// A user logged an event; its text is the detail.
    Event,
    /// A custom attribute got a value, which is the detail; the cause is the name of the attribute.
    Attribute,
    /// A login, a logout, a killed session, a restart.
    Session,
    /// A fault rule applied.
    Fault,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FaultRule {
    /// Set by the simulator.
    #[serde(skip_serializing)]
    pub id: u32,
    /// The SOAP method, or `*`.
    pub method: String,
    /// A name or moref; any object when empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub object: String,
    /// The host that the task would put the VM on, by name or moref; any when empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    pub kind: FaultRuleKind,
    /// The fault's type in the API, for [`FaultRuleKind::SoapFault`] and [`FaultRuleKind::TaskError`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fault: String,
    /// The `faultstring`; vCenter's text if empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The number of matching calls that succeed first.
    #[serde(default)]
    pub skip: u32,
    /// The number of calls that then fail; 0 is all.
    #[serde(default)]
    pub count: u32,
    /// The duration of a delay, a hang or a failing task.
    #[serde(default)]
    pub delay_ms: u32,
    /// The HTTP status for [`FaultRuleKind::Status`]; 200 when 0.
    #[serde(default)]
    pub status: u16,
    /// The content type for [`FaultRuleKind::Status`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content_type: String,
    /// The body for [`FaultRuleKind::Status`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub body: String,
    /// The result, for [`FaultRuleKind::TaskResult`].
    #[serde(flatten)]
    pub result: TaskResult,
    /// How often the rule has applied.
    #[serde(default, skip_serializing)]
    pub hits: u32,
}

impl FaultRule {
    /// A rule for every call of `method`.
    pub fn new(method: impl Into<String>, kind: FaultRuleKind) -> Self {
        Self {
            id: 0,
            method: method.into(),
            object: String::new(),
            host: String::new(),
            kind,
            fault: String::new(),
            message: String::new(),
            skip: 0,
            count: 0,
            delay_ms: 0,
            status: 0,
            content_type: String::new(),
            body: String::new(),
            result: TaskResult::default(),
            hits: 0,
        }
    }

    /// A rule that returns a SOAP fault from `method`.
    pub fn soap(method: impl Into<String>, fault: impl Into<String>) -> Self {
        Self {
            fault: fault.into(),
            ..Self::new(method, FaultRuleKind::SoapFault)
        }
    }

    /// A rule that fails the tasks of `method`.
    pub fn task(method: impl Into<String>, fault: impl Into<String>) -> Self {
        Self {
            fault: fault.into(),
            ..Self::new(method, FaultRuleKind::TaskError)
        }
    }

    /// A rule for the errors that `CheckRelocate_Task` finds.
    pub fn check_error(fault: impl Into<String>) -> Self {
        Self {
            fault: fault.into(),
            ..Self::new("CheckRelocate_Task", FaultRuleKind::CheckError)
        }
    }

    /// A rule for the warnings of `CheckRelocate_Task`.
    pub fn check_warning(fault: impl Into<String>) -> Self {
        Self {
            fault: fault.into(),
            ..Self::new("CheckRelocate_Task", FaultRuleKind::CheckWarning)
        }
    }

    /// A rule that gives successful tasks of `method` this result.
    pub fn result(method: impl Into<String>, result: TaskResult) -> Self {
        Self {
            result,
            ..Self::new(method, FaultRuleKind::TaskResult)
        }
    }

    /// Only calls on this object.
    #[must_use]
    pub fn on(mut self, object: impl Into<String>) -> Self {
        self.object = object.into();
        self
    }

    /// Only tasks that would put the VM on this host.
    #[must_use]
    pub fn to_host(mut self, host: impl Into<String>) -> Self {
        self.host = host.into();
        self
    }

    /// Only after this many successful calls.
    #[must_use]
    pub fn after(mut self, skip: u32) -> Self {
        self.skip = skip;
        self
    }

    /// At most this often.
    #[must_use]
    pub fn times(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// With this delay.
    #[must_use]
    pub fn delayed(mut self, ms: u32) -> Self {
        self.delay_ms = ms;
        self
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FaultRuleKind {
    /// A response with this status and body.
    Status,
    /// Status 503, empty.
    Http503,
    /// Status 200 with an HTML page.
    HtmlPage,
    /// The connection is cut, and the call is not executed.
    Reset,
    /// The call is executed, and the connection is cut before the response.
    LoseReply,
    /// The call is executed after a delay.
    Delay,
    /// There is no response.
    Hang,
    SoapFault,
    /// A task that fails.
    TaskError,
    /// A successful task with a large or deep result.
    TaskResult,
    /// An error that `CheckRelocate_Task` finds.
    CheckError,
    /// A warning of `CheckRelocate_Task`.
    CheckWarning,
}

/// The result of a task; at most one of both is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskResult {
    /// Text of so many bytes.
    #[serde(rename = "resultBytes", skip_serializing_if = "is_zero")]
    pub bytes: u32,
    /// Nested elements of at least this depth.
    #[serde(rename = "resultLevels", skip_serializing_if = "is_zero")]
    pub levels: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Changes to a guest's behaviour; `None` is no change.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GuestPatch {
    /// Whether VMware Tools run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<bool>,
    /// Whether the guest ignores a shutdown request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_shutdown: Option<bool>,
    /// How long the guest takes to shut down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shutdown_ms: Option<u32>,
    /// Whether it reboots instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reboots: Option<bool>,
    /// The time from the request to the stop of VMware Tools while the VM is still on; 0 is with the VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools_stop_ms: Option<u32>,
    /// The time from each later power-on to a power-off without a task; 0 is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dies_after_ms: Option<u32>,
    /// Whether a guest that shuts down ends when [`Guest::ended`] says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_guest: Option<bool>,
    /// The properties of the VM that clients can read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readable: Option<Readable>,
}

/// How a restarting vCenter responds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Down {
    /// Connections are refused.
    Refused,
    /// Its reverse proxy returns 503.
    Unavailable,
}

/// What else a restart does.
#[derive(Debug, Clone, Copy, Default)]
pub struct RestartEffects {
    /// How long each login is `InvalidLogin` afterwards.
    pub refuse_logins: Duration,
    /// Running Enter Maintenance Mode tasks end in error, and their hosts go on entering by themselves.
    pub lose_tasks: bool,
}

#[derive(Deserialize)]
struct Ready {
    sdk: String,
    ctl: String,
}

#[derive(Deserialize)]
struct Nothing {}

#[derive(Deserialize)]
struct TaskAnswer {
    task: String,
}

#[derive(Deserialize)]
struct RefAnswer {
    #[serde(rename = "ref")]
    reference: String,
}

/// A running simulator. Dropping it stops it and removes its files.
#[derive(Debug)]
pub struct VcenterSimulator {
    sdk: String,
    control: Control,
    user: String,
    password: String,
    child: Child,
    // The program ends when this end of its stdin closes; the kernel closes it when the parent is killed.
    stdin: Option<ChildStdin>,
    dir: PathBuf,
}

/// Another program that changes VMs. Its name is the user in the journal.
#[derive(Debug, Clone)]
pub struct OtherUser {
    control: Control,
    name: String,
}

/// The guest of a VM, as the one who runs it sees it.
#[derive(Debug, Clone)]
pub struct Guest {
    control: Control,
    vm: String,
}

/// The client of its control endpoint, which several tasks may share.
#[derive(Debug, Clone)]
struct Control {
    ctl: Url,
    http: reqwest::Client,
}

impl VcenterSimulator {
    /// Starts the program and waits until it serves.
    pub async fn start(binary: &Path, spec: &Spec, options: VcenterOptions) -> anyhow::Result<Self> {
        // An error means that a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .no_proxy()
            .build()
            .context("building the client of vcenter's control endpoint")?;
        let dir = private_dir()?;
        match Self::spawn(binary, spec, &options, &dir).await {
            Ok((child, stdin, ready)) => Ok(Self {
                control: Control {
                    ctl: Url::parse(&ready.ctl)
                        .with_context(|| format!("vcenter's control address {:?}", ready.ctl))?,
                    http,
                },
                sdk: ready.sdk,
                user: options.user,
                password: options.password,
                child,
                stdin: Some(stdin),
                dir,
            }),
            Err(error) => {
                let words = std::fs::read_to_string(dir.join("stderr")).unwrap_or_default();
                let _ = std::fs::remove_dir_all(&dir);
                Err(error.context(format!("starting {}: {}", binary.display(), words.trim())))
            }
        }
    }

    async fn spawn(
        binary: &Path,
        spec: &Spec,
        options: &VcenterOptions,
        dir: &Path,
    ) -> anyhow::Result<(Child, ChildStdin, Ready)> {
        let spec_file = dir.join("spec.json");
        let json = serde_json::to_vec_pretty(spec).context("writing vcenter's inventory as JSON")?;
        std::fs::write(&spec_file, json).with_context(|| format!("writing {}", spec_file.display()))?;
        let stderr = dir.join("stderr");
        let stderr =
            std::fs::File::create(&stderr).with_context(|| format!("creating {}", stderr.display()))?;
        let mut command = Command::new(binary);
        command
            .arg("-spec")
            .arg(&spec_file)
            .arg("-listen")
            .arg(format!("127.0.0.1:{}", options.port))
            .args(["-user", &options.user, "-password", &options.password])
            .args([
                "-collector",
                match options.collector {
                    Collector::Simulator => "simulator",
                    Collector::Own => "own",
                },
            ])
            // The simulator's temporary directory is inside ours and is removed with it.
            .env("TMPDIR", dir)
            .env("HAULOUT_LAB_REMOVE_AT_EOF", dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            // A Ctrl-C at the terminal goes to the whole foreground group; the lab stops its parts in order.
            .process_group(0)
            .kill_on_drop(true);
        if let Some(tls) = &options.tls {
            command
                .arg("-tls-cert")
                .arg(&tls.cert)
                .arg("-tls-key")
                .arg(&tls.key);
        }
        let mut child = command.spawn().context("spawning it")?;
        let stdin = child.stdin.take().context("its stdin is not piped")?;
        let stdout = child.stdout.take().context("its stdout is not piped")?;
        let mut line = String::new();
        tokio::time::timeout(START, BufReader::new(stdout).read_line(&mut line))
            .await
            .with_context(|| format!("no ready line within {START:?}"))?
            .context("reading its ready line")?;
        ensure!(!line.is_empty(), "it ended before it was ready");
        let ready = serde_json::from_str(&line).with_context(|| format!("its ready line {line:?}"))?;
        Ok((child, stdin, ready))
    }

    /// The SDK's URL, `https://127.0.0.1:PORT/sdk`.
    pub fn sdk(&self) -> &str {
        &self.sdk
    }

    /// The SDK's port on loopback.
    ///
    /// # Errors
    /// If the SDK's URL has none.
    pub fn port(&self) -> anyhow::Result<u16> {
        let url = reqwest::Url::parse(&self.sdk).with_context(|| format!("the SDK's URL {}", self.sdk))?;
        url.port().with_context(|| format!("{url} has no port"))
    }

    /// The control endpoint's URL.
    pub fn control(&self) -> &str {
        self.control.ctl.as_str()
    }

    /// The user who may log in.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// That user's password.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Ends it and waits until it is gone.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.stdin = None;
        if tokio::time::timeout(SLACK, self.child.wait()).await.is_err() {
            self.child
                .kill()
                .await
                .context("killing vcenter, which did not end when its stdin closed")?;
        }
        Ok(())
    }

    /// Starts Enter Maintenance Mode as the operator and returns the task's moref.
    pub async fn enter_maintenance(&self, host: &str) -> anyhow::Result<String> {
        Ok(self
            .post::<TaskAnswer>(&["hosts", host, "enter"], &serde_json::json!({}))
            .await?
            .task)
    }

    /// Starts Enter Maintenance Mode with "Move powered-off and suspended VMs".
    pub async fn enter_maintenance_moving_stopped(&self, host: &str) -> anyhow::Result<String> {
        let body = serde_json::json!({ "evacuatePoweredOffVms": true });
        Ok(self
            .post::<TaskAnswer>(&["hosts", host, "enter"], &body)
            .await?
            .task)
    }

    /// Starts Enter Maintenance Mode with a timeout.
    pub async fn enter_maintenance_within(&self, host: &str, timeout: Duration) -> anyhow::Result<String> {
        let body = serde_json::json!({ "timeoutMs": millis(timeout) });
        Ok(self
            .post::<TaskAnswer>(&["hosts", host, "enter"], &body)
            .await?
            .task)
    }

    /// Starts Enter Maintenance Mode and returns when it was accepted, by the program's clock.
    pub async fn click(&self, host: &str) -> anyhow::Result<Timestamp> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Answer {
            accepted_ns: i64,
        }
        let body = serde_json::json!({});
        let answer: Answer = self.post(&["hosts", host, "enter"], &body).await?;
        Timestamp::from_nanosecond(i128::from(answer.accepted_ns)).context("when the click was accepted")
    }

    /// The traffic of the program with this name, the first word of its User-Agent.
    pub async fn traffic(&self, program: &str) -> anyhow::Result<Traffic> {
        let all: BTreeMap<String, Traffic> = self.get(&["traffic"], &[], Duration::ZERO).await?;
        Ok(all.get(program).copied().unwrap_or_default())
    }

    /// The number of calls that this program had begun by then, in nanoseconds since 1970.
    pub async fn calls_until(&self, program: &str, then_ns: i64) -> anyhow::Result<u64> {
        let query = [("until", then_ns.to_string())];
        let all: BTreeMap<String, Traffic> = self.get(&["traffic"], &query, Duration::ZERO).await?;
        Ok(all.get(program).map_or(0, |traffic| traffic.calls))
    }

    /// Waits until `program` has made no call for a second: its subscriptions are set up.
    pub async fn rests(&self, program: &str) -> anyhow::Result<()> {
        let what = format!("{program} to ask for nothing more");
        until(&what, Duration::from_secs(30), async || {
            let before = self.traffic(program).await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
            let after = self.traffic(program).await?;
            Ok((before.calls == after.calls).then_some(()))
        })
        .await
    }

    /// Changes this many properties of the bulk inventory per second, until the next call; 0 stops it.
    pub async fn set_change_rate(&self, per_second: u32) -> anyhow::Result<()> {
        self.act(&["change-rate"], &serde_json::json!({ "perSecond": per_second }))
            .await
    }

    /// Starts Exit Maintenance Mode.
    pub async fn exit_maintenance(&self, host: &str) -> anyhow::Result<String> {
        Ok(self
            .post::<TaskAnswer>(&["hosts", host, "exit"], &serde_json::json!({}))
            .await?
            .task)
    }

    /// Cancels the Enter Maintenance Mode that runs on the host.
    pub async fn cancel_maintenance(&self, host: &str) -> anyhow::Result<()> {
        self.post::<TaskAnswer>(&["hosts", host, "cancel"], &serde_json::json!({}))
            .await?;
        Ok(())
    }

    /// Fails the running Enter Maintenance Mode of the host with this fault, without a cancel.
    pub async fn fail_maintenance(&self, host: &str, fault: &str) -> anyhow::Result<()> {
        self.post::<TaskAnswer>(&["hosts", host, "fail"], &serde_json::json!({ "fault": fault }))
            .await?;
        Ok(())
    }

    /// Runs a foreign task on a host, which ends at once with this result, and returns its moref.
    pub async fn run_host_task(&self, host: &str, result: TaskResult) -> anyhow::Result<String> {
        Ok(self
            .post::<TaskAnswer>(&["hosts", host, "task"], &result)
            .await?
            .task)
    }

    /// Runs a task of another user that puts the host into standby mode, for this long, and returns its moref. A real one waits until
    /// no VM on the host is powered on.
    pub async fn enter_standby(&self, host: &str, duration: Duration) -> anyhow::Result<String> {
        let millis = u32::try_from(duration.as_millis()).context("a long duration")?;
        let body = serde_json::json!({ "method": "PowerDownHostToStandBy_Task", "durationMs": millis });
        Ok(self
            .post::<TaskAnswer>(&["hosts", host, "task"], &body)
            .await?
            .task)
    }

    /// Runs a task of another user on a VM, such as `CreateSnapshot_Task`, for this long, and returns its moref. Until then vCenter
    /// refuses other operations on the VM.
    pub async fn occupy_vm(&self, vm: &str, method: &str, duration: Duration) -> anyhow::Result<String> {
        let body = serde_json::json!({ "method": method, "durationMs": millis(duration) });
        Ok(self.post::<TaskAnswer>(&["vms", vm, "task"], &body).await?.task)
    }

    /// Adds a row to the task histories that says that this task of the host is queued, for two years now, and returns its moref. There
    /// is no such task.
    pub async fn add_stale_row_of_host(&self, host: &str, method: &str) -> anyhow::Result<String> {
        let body = serde_json::json!({ "method": method, "stale": true });
        Ok(self
            .post::<TaskAnswer>(&["hosts", host, "task"], &body)
            .await?
            .task)
    }

    /// As [`Self::add_stale_row_of_host`], of a VM.
    pub async fn add_stale_row_of_vm(&self, vm: &str, method: &str) -> anyhow::Result<String> {
        let body = serde_json::json!({ "method": method, "stale": true });
        Ok(self.post::<TaskAnswer>(&["vms", vm, "task"], &body).await?.task)
    }

    /// Withholds the properties of all tasks that are read from now on, as from an account without rights at the root, or shows them
    /// again.
    pub async fn withhold_tasks(&self, withheld: bool) -> anyhow::Result<()> {
        self.set(&serde_json::json!({ "withholdTasks": withheld })).await
    }

    /// Defines a custom attribute, as an administrator, for all types of objects.
    pub async fn define_attribute(&self, name: &str) -> anyhow::Result<()> {
        self.act(&["attributes"], &serde_json::json!({ "name": name }))
            .await
    }

    /// Defines a custom attribute, and gives this VM a value.
    pub async fn give_attribute(&self, name: &str, vm: &str, value: &str) -> anyhow::Result<()> {
        let body = serde_json::json!({ "name": name, "values": { vm: value } });
        self.act(&["attributes"], &body).await
    }

    /// Sets a partial maintenance mode of the host, with a status of `HostPartialMaintenanceModeStatus`.
    pub async fn set_partial_maintenance(&self, host: &str, mode: &str, status: &str) -> anyhow::Result<()> {
        let body = serde_json::json!({ "mode": mode, "status": status });
        self.act(&["hosts", host, "partial"], &body).await
    }

    /// The same on a VM.
    pub async fn run_vm_task(&self, vm: &str, result: TaskResult) -> anyhow::Result<String> {
        Ok(self.post::<TaskAnswer>(&["vms", vm, "task"], &result).await?.task)
    }

    /// Adds a host to a cluster; its moref comes back.
    pub async fn add_host(&self, cluster: &str, host: &HostSpec) -> anyhow::Result<String> {
        let mut body = serde_json::to_value(host).context("writing a host as JSON")?;
        if let Some(object) = body.as_object_mut() {
            object.insert("cluster".into(), cluster.into());
        }
        Ok(self.post::<RefAnswer>(&["hosts"], &body).await?.reference)
    }

    /// Removes a host and its VMs.
    pub async fn remove_host(&self, host: &str) -> anyhow::Result<()> {
        self.delete(&["hosts", host]).await
    }

    pub async fn rename_host(&self, host: &str, name: &str) -> anyhow::Result<()> {
        self.act(&["hosts", host, "rename"], &serde_json::json!({ "name": name }))
            .await
    }

    /// Sets the connection state of a host.
    pub async fn set_connection(&self, host: &str, state: Connection) -> anyhow::Result<()> {
        self.act(
            &["hosts", host, "connection"],
            &serde_json::json!({ "state": state }),
        )
        .await
    }

    /// Connects the host again; it reports that it is out of maintenance, and no user has taken it out.
    pub async fn return_out_of_maintenance(&self, host: &str) -> anyhow::Result<()> {
        let body = serde_json::json!({ "state": Connection::Connected, "inMaintenance": false });
        self.act(&["hosts", host, "connection"], &body).await
    }

    pub async fn add_device(&self, host: &str, device: &DeviceSpec) -> anyhow::Result<()> {
        self.act(&["hosts", host, "devices"], device).await
    }

    pub async fn remove_device(&self, host: &str, id: &str) -> anyhow::Result<()> {
        self.delete(&["hosts", host, "devices", id]).await
    }

    /// Adds a VM, powered on if its spec says so, and returns its moref.
    pub async fn add_vm(&self, vm: &VmSpec) -> anyhow::Result<String> {
        Ok(self.post::<RefAnswer>(&["vms"], vm).await?.reference)
    }

    pub async fn remove_vm(&self, vm: &str) -> anyhow::Result<()> {
        self.delete(&["vms", vm]).await
    }

    /// Powers a VM on as the operator, on its host; the task may still fail.
    pub async fn power_on(&self, vm: &str) -> anyhow::Result<String> {
        Ok(self
            .post::<TaskAnswer>(&["vms", vm, "on"], &serde_json::json!({}))
            .await?
            .task)
    }

    /// Powers a VM off as the operator.
    pub async fn power_off(&self, vm: &str) -> anyhow::Result<String> {
        Ok(self
            .post::<TaskAnswer>(&["vms", vm, "off"], &serde_json::json!({}))
            .await?
            .task)
    }

    /// Resets a VM as the operator: a reboot without a change of its power state.
    pub async fn reset_vm(&self, vm: &str) -> anyhow::Result<String> {
        Ok(self
            .post::<TaskAnswer>(&["vms", vm, "reset"], &serde_json::json!({}))
            .await?
            .task)
    }

    /// Requests a guest shutdown as the operator.
    pub async fn shutdown_guest(&self, vm: &str) -> anyhow::Result<()> {
        self.act(&["vms", vm, "shutdown"], &serde_json::json!({})).await
    }

    /// Takes a VM that is off from its host, so that it is on none.
    pub async fn unassign_vm(&self, vm: &str) -> anyhow::Result<()> {
        self.act(&["vms", vm, "move"], &serde_json::json!({ "host": "" }))
            .await
    }

    /// Moves a VM to another host without any checks.
    pub async fn move_vm(&self, vm: &str, host: &str) -> anyhow::Result<()> {
        self.act(&["vms", vm, "move"], &serde_json::json!({ "host": host }))
            .await
    }

    /// Changes a guest's behaviour.
    pub async fn patch_vm(&self, vm: &str, patch: GuestPatch) -> anyhow::Result<()> {
        self.call::<Nothing>(Method::PATCH, &["vms", vm], &[], Some(&patch), Duration::ZERO)
            .await?;
        Ok(())
    }

    /// Sets on which hosts a datastore is not accessible.
    pub async fn set_inaccessible(&self, datastore: &str, hosts: &[&str]) -> anyhow::Result<()> {
        let body = serde_json::json!({ "inaccessible": hosts });
        self.call::<Nothing>(
            Method::PATCH,
            &["datastores", datastore],
            &[],
            Some(&body),
            Duration::ZERO,
        )
        .await?;
        Ok(())
    }

    /// Adds a fault rule and returns its id.
    pub async fn fault(&self, rule: &FaultRule) -> anyhow::Result<u32> {
        Ok(self.post::<FaultRule>(&["faults"], rule).await?.id)
    }

    /// All rules with their hits.
    pub async fn faults(&self) -> anyhow::Result<Vec<FaultRule>> {
        #[derive(Deserialize)]
        struct Answer {
            faults: Vec<FaultRule>,
        }
        Ok(self.get::<Answer>(&["faults"], &[], Duration::ZERO).await?.faults)
    }

    /// Removes one rule.
    pub async fn remove_fault(&self, id: u32) -> anyhow::Result<()> {
        self.delete(&["faults", &id.to_string()]).await
    }

    /// Removes all rules.
    pub async fn clear_faults(&self) -> anyhow::Result<()> {
        self.delete(&["faults"]).await
    }

    /// Ends all sessions; waiting calls end with `RequestCanceled`.
    pub async fn kill_sessions(&self) -> anyhow::Result<()> {
        self.act(&["sessions", "kill"], &serde_json::json!({})).await
    }

    /// Ends all sessions; waiting calls hang.
    pub async fn kill_sessions_silently(&self) -> anyhow::Result<()> {
        self.act(&["sessions", "kill"], &serde_json::json!({ "silent": true }))
            .await
    }

    /// Restarts the SDK: connections are cut and sessions forgotten; the inventory and running maintenance stay.
    /// Returns when it serves again on the same port.
    pub async fn restart(&self, down: Down, for_how_long: Duration) -> anyhow::Result<()> {
        self.restart_with(down, for_how_long, RestartEffects::default())
            .await
    }

    /// As [`VcenterSimulator::restart`], with more effects.
    pub async fn restart_with(
        &self,
        down: Down,
        for_how_long: Duration,
        effects: RestartEffects,
    ) -> anyhow::Result<()> {
        let body = serde_json::json!({
            "downMs": millis(for_how_long),
            "with503": down == Down::Unavailable,
            "refuseLoginsMs": millis(effects.refuse_logins),
            "loseTasks": effects.lose_tasks,
        });
        self.call::<Nothing>(Method::POST, &["restart"], &[], Some(&body), for_how_long)
            .await?;
        Ok(())
    }

    /// Whether updates of `recentTask` are pushed.
    pub async fn push_recent_task(&self, push: bool) -> anyhow::Result<()> {
        self.set(&serde_json::json!({ "pushRecentTask": push })).await
    }

    /// Whether task histories push the later states of tasks.
    pub async fn push_task_end(&self, push: bool) -> anyhow::Result<()> {
        self.set(&serde_json::json!({ "pushTaskEnd": push })).await
    }

    /// Sets the durations of tasks.
    pub async fn set_delays(&self, delays: Delays) -> anyhow::Result<()> {
        self.set(&serde_json::json!({ "delays": delays })).await
    }

    /// Withholds these privileges, each on the object of this name or on every object. This replaces the previous
    /// list.
    pub async fn withhold(&self, privileges: &[(&str, Option<&str>)]) -> anyhow::Result<()> {
        let withheld: Vec<_> = privileges
            .iter()
            .map(|(privilege, object)| serde_json::json!({ "privilege": privilege, "object": object }))
            .collect();
        self.set(&serde_json::json!({ "withheld": withheld })).await
    }

    /// The current state.
    pub async fn state(&self) -> anyhow::Result<State> {
        self.get(&["state"], &[], Duration::ZERO).await
    }

    /// The state once it is newer than revision `rev`, or after `wait`.
    pub async fn state_after(&self, rev: i64, wait: Duration) -> anyhow::Result<State> {
        self.get(
            &["state"],
            &[("after", rev.to_string()), ("waitMs", millis(wait).to_string())],
            wait,
        )
        .await
    }

    /// Waits until `wanted` holds for the state. `what` is in the error of a timeout.
    pub async fn wait_until(
        &self,
        description: &str,
        deadline: Duration,
        mut wanted: impl FnMut(&State) -> bool,
    ) -> anyhow::Result<State> {
        let end = Instant::now() + deadline;
        let mut state = self.state().await?;
        while !wanted(&state) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("vcenter: waited {deadline:?} in vain until {description}; it is {state:#?}");
            }
            state = self.state_after(state.rev, left.min(POLL)).await?;
        }
        Ok(state)
    }

    /// Sends every new state to `sender` until it has no receiver.
    pub fn follow(&self, sender: watch::Sender<State>) -> impl Future<Output = ()> + Send + use<> {
        let control = self.control.clone();
        async move {
            while !sender.is_closed() {
                let query = [
                    ("after", sender.borrow().rev.to_string()),
                    ("waitMs", millis(POLL).to_string()),
                ];
                match control
                    .call(Method::GET, &["state"], &query, None::<&()>, POLL)
                    .await
                {
                    Ok(state) => {
                        sender.send_replace(state);
                    }
                    // The program has been stopped.
                    Err(_) => return,
                }
            }
        }
    }

    /// The whole journal.
    pub async fn journal(&self) -> anyhow::Result<Vec<Entry>> {
        self.journal_after(0, Duration::ZERO).await
    }

    /// The journal after `seq`; waits for the next entry if there is none.
    pub async fn journal_after(&self, seq: u64, wait: Duration) -> anyhow::Result<Vec<Entry>> {
        #[derive(Deserialize)]
        struct Answer {
            entries: Vec<Entry>,
        }
        let query = [("after", seq.to_string()), ("waitMs", millis(wait).to_string())];
        Ok(self.get::<Answer>(&["journal"], &query, wait).await?.entries)
    }

    /// Waits for a journal entry, searching from the beginning.
    pub async fn wait_for_entry(
        &self,
        description: &str,
        deadline: Duration,
        mut wanted: impl FnMut(&Entry) -> bool,
    ) -> anyhow::Result<Entry> {
        let end = Instant::now() + deadline;
        let mut seq = 0;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            for entry in self.journal_after(seq, left.min(POLL)).await? {
                seq = entry.seq;
                if wanted(&entry) {
                    return Ok(entry);
                }
            }
            if left.is_zero() {
                bail!("vcenter: waited {deadline:?} in vain for {description} in the journal of {seq} lines");
            }
        }
    }

    /// The guest of a VM that something else runs.
    pub async fn own_guest(&self, vm: &str) -> anyhow::Result<Guest> {
        let patch = GuestPatch {
            own_guest: Some(true),
            ..GuestPatch::default()
        };
        self.patch_vm(vm, patch).await?;
        Ok(Guest {
            control: self.control.clone(),
            vm: vm.to_owned(),
        })
    }

    /// Acts as the user of this name.
    pub fn as_user(&self, name: impl Into<String>) -> OtherUser {
        OtherUser {
            control: self.control.clone(),
            name: name.into(),
        }
    }

    async fn set(&self, body: &serde_json::Value) -> anyhow::Result<()> {
        self.call::<Nothing>(Method::PATCH, &["settings"], &[], Some(body), Duration::ZERO)
            .await?;
        Ok(())
    }

    async fn act(&self, path: &[&str], body: &impl Serialize) -> anyhow::Result<()> {
        // The response is not needed.
        self.post::<serde_json::Value>(path, body).await?;
        Ok(())
    }

    async fn delete(&self, path: &[&str]) -> anyhow::Result<()> {
        self.call::<Nothing>(Method::DELETE, path, &[], None::<&()>, Duration::ZERO)
            .await?;
        Ok(())
    }

    async fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        wait: Duration,
    ) -> anyhow::Result<T> {
        self.call(Method::GET, path, query, None::<&()>, wait).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &[&str], body: &impl Serialize) -> anyhow::Result<T> {
        self.call(Method::POST, path, &[], Some(body), Duration::ZERO)
            .await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<&impl Serialize>,
        wait: Duration,
    ) -> anyhow::Result<T> {
        self.control.call(method, path, query, body, wait).await
    }
}

impl OtherUser {
    /// The present state.
    pub async fn state(&self) -> anyhow::Result<State> {
        self.control
            .call(Method::GET, &["state"], &[], None::<&()>, Duration::ZERO)
            .await
    }

    /// Starts `PowerOnVM_Task`, with which DRS may place the VM on another host. The task may fail.
    pub async fn power_on(&self, vm: &str) -> anyhow::Result<()> {
        self.change(Method::POST, &["vms", vm, "on"], &[("drs", "true".to_owned())])
            .await
    }

    /// Starts `PowerOffVM_Task`. The task may fail.
    pub async fn power_off(&self, vm: &str) -> anyhow::Result<()> {
        self.change(Method::POST, &["vms", vm, "off"], &[]).await
    }

    /// Destroys a VM.
    pub async fn remove_vm(&self, vm: &str) -> anyhow::Result<()> {
        self.change(Method::DELETE, &["vms", vm], &[]).await
    }

    async fn change(&self, method: Method, path: &[&str], query: &[(&str, String)]) -> anyhow::Result<()> {
        let mut query = query.to_vec();
        query.push(("user", self.name.clone()));
        let _: serde_json::Value = self
            .control
            .call(method, path, &query, None::<&()>, Duration::ZERO)
            .await?;
        Ok(())
    }
}

impl Guest {
    /// Says that it has ended by itself in this boot, so that its VM is off.
    pub async fn ended(&self, boots: u64) -> anyhow::Result<()> {
        let body = serde_json::json!({ "boots": boots });
        let path = ["vms", &self.vm, "ended"];
        let _: serde_json::Value = self
            .control
            .call(Method::POST, &path, &[], Some(&body), Duration::ZERO)
            .await?;
        Ok(())
    }
}

impl Control {
    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<&impl Serialize>,
        wait: Duration,
    ) -> anyhow::Result<T> {
        let mut url = self.ctl.clone();
        match url.path_segments_mut() {
            Ok(mut segments) => {
                segments.clear().extend(path);
            }
            Err(()) => bail!("vcenter's control address {} has no path", self.ctl),
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let what = format!("vcenter: {method} {}", url.path());
        let mut request = self.http.request(method, url).timeout(wait + SLACK);
        if let Some(body) = body {
            let json = serde_json::to_vec(body).with_context(|| format!("{what}: writing the body"))?;
            request = request.header("content-type", "application/json").body(json);
        }
        let response = request.send().await.with_context(|| what.clone())?;
        let status = response.status();
        let text = response
            .text()
            .await
            .with_context(|| format!("{what}: reading the answer"))?;
        ensure!(status.is_success(), "{what}: {status}: {}", text.trim());
        serde_json::from_str(&text).with_context(|| format!("{what}: the answer {text:?}"))
    }
}

impl Drop for VcenterSimulator {
    fn drop(&mut self) {
        let _ = self.child.start_kill();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A private directory: the inventory may contain a test's secrets.
fn private_dir() -> anyhow::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt as _;

    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!(
        "haulout-vcenter-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    );
    let dir = std::env::temp_dir().join(name);
    // It may be left from a killed process with the same id.
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&dir)
        .with_context(|| format!("creating {}", dir.display()))?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_is_written_as_the_program_reads_it() -> anyhow::Result<()> {
        let spec = VmSpec {
            name: "gpu1".into(),
            host: "esx1".into(),
            gpu: Gpu::nvidia(0x2235),
            ..VmSpec::default()
        };
        assert_eq!(
            serde_json::to_value(&spec)?,
            serde_json::json!({
                "name": "gpu1", "host": "esx1", "gpu": { "kind": "dynamic", "vendor": 0x10de, "device": 0x2235, "subDevice": 0, "label": "" },
                "poweredOn": true, "tools": true, "shutdownMs": 50, "ignoreShutdown": false,
            })
        );
        Ok(())
    }

    #[test]
    fn rules_and_lines_keep_their_names() -> anyhow::Result<()> {
        let rule = serde_json::to_value(FaultRule::new("PowerOffVM_Task", FaultRuleKind::Http503).times(1))?;
        assert_eq!(rule.get("kind"), Some(&"http503".into()));
        let entry: Entry = serde_json::from_str(
            r#"{"seq":1,"time":"2026-01-02T03:04:05.678901234Z","kind":"call","user":"u","session":"s","method":"PowerOffVM_Task"}"#,
        )?;
        assert!(entry.is_call("PowerOffVM_Task"));
        Ok(())
    }
}
