//! From values on the wire to plain data. A value of an unknown kind is unknown, never an error; a task without its
//! mandatory parts is one.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::fault::{self, Fault, FaultKind};
use super::soap::{Moref, ReplyError};
use super::text::for_people;
use super::update::{Connection, Drs, DrsBehavior, DrsOverride, Passthrough, PciDevice, Power, TaskState};
use super::xml::Element;
use crate::ids::TaskRef;

/// `TaskInfo`, as far as it matters.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskInfo {
    /// The task.
    pub moref: TaskRef,
    /// `name`, such as `EnterMaintenanceMode_Task`; unset for vCenter's internal tasks.
    pub name: Option<String>,
    /// `descriptionId`, such as `HostSystem.enterMaintenanceMode`.
    pub description_id: String,
    /// What it works on.
    pub entity: Option<Moref>,
    /// Where it stands.
    pub state: TaskState,
    /// `reason.userName`, where a user started it.
    pub user: Option<String>,
    /// `queueTime`.
    pub queued_at: Timestamp,
}

impl TaskInfo {
    /// Whether it is over.
    pub fn has_ended(&self) -> bool {
        match self.state {
            TaskState::Queued | TaskState::Running => false,
            TaskState::Success | TaskState::Error(_) => true,
        }
    }

    /// Whether it puts a host into maintenance: by `descriptionId`, because names and messages differ by language and
    /// by who started it (`proto-notes/property-collector.md`).
    pub fn enters_maintenance(&self) -> bool {
        self.description_id == "HostSystem.enterMaintenanceMode"
    }
}

/// Reads a `TaskInfo`.
///
/// # Errors
/// Where the reference, the description id, the state or the queue time is missing or ill-formed.
pub fn task_info(info: Element<'_>) -> Result<TaskInfo, ReplyError> {
    let missing = |what: &'static str, expected| ReplyError::value(what, expected);
    let moref = info.child("task").and_then(Moref::read);
    let moref = moref
        .and_then(|moref| moref.task())
        .ok_or_else(|| missing("TaskInfo.task", "a Task"))?;
    let queued_at = info
        .text_of("queueTime")
        .and_then(timestamp)
        .ok_or_else(|| missing("TaskInfo.queueTime", "a time"))?;
    let reason = info.child("reason");
    Ok(TaskInfo {
        moref,
        name: info.text_of("name").map(str::to_owned),
        description_id: info
            .text_of("descriptionId")
            .ok_or_else(|| missing("TaskInfo.descriptionId", "a text"))?
            .to_owned(),
        entity: info.child("entity").and_then(Moref::read),
        state: task_state(info)?,
        user: reason
            .and_then(|reason| reason.text_of("userName"))
            .filter(|user| !user.is_empty())
            .map(for_people),
        queued_at,
    })
}

fn task_state(info: Element<'_>) -> Result<TaskState, ReplyError> {
    match info.text_of("state") {
        Some("queued") => Ok(TaskState::Queued),
        Some("running") => Ok(TaskState::Running),
        Some("success") => Ok(match info.child("result").and_then(not_started) {
            Some(fault) => TaskState::Error(fault),
            None => TaskState::Success,
        }),
        Some("error") => Ok(TaskState::Error(match info.child("error") {
            Some(error) => fault::read_localized(error),
            None => Fault {
                kind: FaultKind::Other("without a type".to_owned()),
                said: "the task failed and does not say why".to_owned(),
            },
        })),
        _ => Err(ReplyError::value(
            "TaskInfo.state",
            "queued, running, success or error",
        )),
    }
}

/// Why a `PowerOnMultiVM_Task` that ended well started nothing, if it did not.
fn not_started(result: Element<'_>) -> Option<Fault> {
    if result.xsi_type() != Some("ClusterPowerOnVmResult") {
        return None;
    }
    if let Some(refused) = result.child("notAttempted") {
        return Some(refused.child("fault").map_or_else(
            || Fault {
                kind: FaultKind::Other("without a type".to_owned()),
                said: "DRS did not start the VM and does not say why".to_owned(),
            },
            fault::read_localized,
        ));
    }
    let only_recommended = result.child("attempted").is_none() && result.child("recommendations").is_some();
    only_recommended.then(|| Fault {
        kind: FaultKind::OnlyRecommended,
        said: "DRS only recommends where to start the VM: it is not fully automated".to_owned(),
    })
}

/// Reads an `xsd:dateTime`.
pub fn timestamp(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// Reads a `VirtualMachinePowerState`.
pub fn power(text: &str) -> Option<Power> {
    match text {
        "poweredOn" => Some(Power::On),
        "poweredOff" => Some(Power::Off),
        "suspended" => Some(Power::Suspended),
        _ => None,
    }
}

/// Reads a `HostSystemConnectionState`.
pub fn connection(text: &str) -> Option<Connection> {
    match text {
        "connected" => Some(Connection::Connected),
        "disconnected" => Some(Connection::Disconnected),
        "notResponding" => Some(Connection::NotResponding),
        _ => None,
    }
}

/// Reads an `xsd:boolean`.
pub fn boolean(text: &str) -> Option<bool> {
    match text {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

/// Reads an `ArrayOfManagedObjectReference`; an unset one is empty.
pub fn morefs(value: Option<Element<'_>>) -> Vec<Moref> {
    value.map_or_else(Vec::new, |value| {
        value.children().filter_map(Moref::read).collect()
    })
}

/// A passthrough device of a VM, with the address it was given at power-on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// What it is.
    pub what: Passthrough,
    /// `assignedId` of a dynamic backing, set while the VM runs.
    pub assigned: Option<String>,
}

/// The passthrough devices in `config.hardware.device`.
pub fn passthrough(devices: Element<'_>) -> Vec<Device> {
    let passthrough = |device: &Element<'_>| device.xsi_type() == Some("VirtualPCIPassthrough");
    devices.children().filter(passthrough).map(device).collect()
}

fn device(device: Element<'_>) -> Device {
    let Some(backing) = device.child("backing") else {
        return Device {
            what: Passthrough::Other {
                backing: "none".to_owned(),
            },
            assigned: None,
        };
    };
    let kind = backing.xsi_type().unwrap_or("without a type");
    let text = |name: &str| backing.text_of(name).filter(|text| !text.is_empty());
    let what = match kind {
        "VirtualPCIPassthroughDeviceBackingInfo" => match text("id") {
            Some(address) => Passthrough::Static {
                address: pci_address(address),
                vendor: text("vendorId").and_then(pci_id).unwrap_or_default(),
                device: text("deviceId").and_then(backing_device_id),
            },
            None => Passthrough::Other {
                backing: kind.to_owned(),
            },
        },
        "VirtualPCIPassthroughDynamicBackingInfo" => Passthrough::Dynamic {
            allowed: backing
                .children_named("allowedDevice")
                .filter_map(allowed)
                .collect(),
        },
        other => Passthrough::Other {
            backing: for_people(other),
        },
    };
    Device {
        what,
        assigned: text("assignedId").map(pci_address),
    }
}

fn allowed(device: Element<'_>) -> Option<(u16, u16)> {
    Some((
        pci_id(device.text_of("vendorId")?)?,
        pci_id(device.text_of("deviceId")?)?,
    ))
}

/// A PCI id. The wire has it as a signed short on hosts and as an int in VMs: both are masked to 16 bits.
fn pci_id(text: &str) -> Option<u16> {
    let wide = text.parse::<i32>().ok()?;
    u16::try_from(wide & 0xffff).ok()
}

/// The device id of a static backing, a text whose writers disagree: hex with `0x` or without, decimal and signed. It is
/// read only where no other reading is possible.
fn backing_device_id(text: &str) -> Option<u16> {
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return u16::from_str_radix(hex, 16).ok();
    }
    if text.starts_with('-') || (text.len() > 4 && text.bytes().all(|byte| byte.is_ascii_digit())) {
        return pci_id(text);
    }
    let hex_only = text.bytes().any(|byte| byte.is_ascii_alphabetic());
    hex_only.then(|| u16::from_str_radix(text, 16).ok()).flatten()
}

/// A PCI address in one notation: lower case, with the domain.
fn pci_address(text: &str) -> String {
    let text = for_people(text).to_ascii_lowercase();
    match text.matches(':').count() {
        1 => format!("0000:{text}"),
        _ => text,
    }
}

/// The addresses in `config.pciPassthruInfo` for which passthrough is active: enabled, and the host rebooted since.
pub fn active_addresses(info: Element<'_>) -> BTreeSet<String> {
    let active = info
        .children()
        .filter(|device| device.text_of("passthruActive") == Some("true"));
    active
        .filter_map(|device| device.text_of("id"))
        .map(pci_address)
        .collect()
}

/// The devices in `hardware.pciDevice`.
pub fn pci_devices(devices: Element<'_>) -> Vec<PciDevice> {
    let device = |device: Element<'_>| {
        Some(PciDevice {
            address: pci_address(device.text_of("id")?),
            vendor: pci_id(device.text_of("vendorId")?)?,
            device: pci_id(device.text_of("deviceId")?)?,
        })
    };
    devices.children().filter_map(device).collect()
}

/// The DRS settings in `configurationEx`; `None` for a standalone host's compute resource, which has none.
///
/// Unset is what the API reference gives as default: DRS off, fully automated, overrides allowed.
pub fn drs(configuration: Element<'_>) -> Option<Drs> {
    if configuration.xsi_type() != Some("ClusterConfigInfoEx") {
        return None;
    }
    let config = configuration.child("drsConfig")?;
    let flag = |element: Element<'_>, name: &str| element.text_of(name).and_then(boolean);
    let mut overrides = BTreeMap::new();
    if flag(config, "enableVmBehaviorOverrides").unwrap_or(true) {
        for vm in configuration.children_named("drsVmConfig") {
            let Some(key) = vm.child("key").and_then(Moref::read).and_then(|key| key.vm()) else {
                continue;
            };
            let own = DrsOverride {
                enabled: flag(vm, "enabled").unwrap_or(true),
                behavior: vm.text_of("behavior").and_then(behavior),
            };
            overrides.insert(key, own);
        }
    }
    Some(Drs {
        enabled: flag(config, "enabled").unwrap_or(false),
        behavior: match config.text_of("defaultVmBehavior") {
            None => DrsBehavior::FullyAutomated,
            // An automation level that is not known here must not be taken for one that acts by itself.
            Some(text) => behavior(text).unwrap_or(DrsBehavior::Manual),
        },
        overrides,
    })
}

fn behavior(text: &str) -> Option<DrsBehavior> {
    match text {
        "manual" => Some(DrsBehavior::Manual),
        "partiallyAutomated" => Some(DrsBehavior::PartiallyAutomated),
        "fullyAutomated" => Some(DrsBehavior::FullyAutomated),
        _ => None,
    }
}
