//! Why hosts do not fit, with the words for it.

use std::fmt;
use std::sync::Arc;

use crate::facts::vsphere::{DeviceMismatch, DeviceRequirement, VgpuProfile};

/// A host that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedHost {
    pub host: String,
    pub why: RejectionReason,
}

/// Why a host does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RejectionReason {
    /// It does not take VMs: the state, in words.
    State(&'static str),
    /// It does not see these datastores, where files of the VM are.
    Datastores(Vec<Arc<str>>),
    /// vCenter has not reported the datastores of the VM.
    UnknownDatastores,
    /// It has mounted this datastore of the VM, but cannot access it now.
    DatastoreInaccessible(Arc<str>),
    /// This datastore of the VM is in maintenance mode.
    DatastoreInMaintenance(Arc<str>),
    /// vSphere HA keeps it for failover.
    FailoverHost,
    /// The mandatory VM-Host rule of this name keeps the VM off it.
    VmHostRule(Arc<str>),
    /// A VM runs there, or will, that the anti-affinity rule of this name keeps apart from the VM.
    AntiAffinity(Arc<str>),
    /// It does not run this hardware version, which the VM has.
    HardwareVersion(Arc<str>),
    /// It does not have this network of the VM.
    Network(Arc<str>),
    /// It has no active SR-IOV for a network card of the VM: at this address, or at all.
    Sriov(Option<String>),
    /// Less memory is unreserved there than the VM reserves.
    Memory {
        /// The memory of the VM.
        mib: u64,
    },
    /// vCenter has not reported its devices.
    DevicesUnreported,
    /// It has too few devices with the ids that the VM accepts.
    NoMatchingDevice,
    /// It has devices with these vendor and device ids, but of another subsystem.
    OtherSubsystem,
    /// It has such devices, but none with this hardware label.
    OtherLabel(Arc<str>),
    /// Its matching devices are held by other VMs or reserved for other nodes.
    DevicesTaken,
    /// It offers no vGPU of this profile.
    NoVgpuProfile(VgpuProfile),
    /// Its GPUs have no room for a vGPU of this profile, or that is not known while another VM is to get one there.
    VgpuTaken(VgpuProfile),
    /// It is unknown which devices are held, for this reason.
    Unreadable(String),
    /// A device of the VM is bound to an address of its own host.
    StaticDevice,
    /// A device of the VM is of an unsupported kind.
    ForeignDevice(String),
    /// The VM's configuration is not readable.
    UnknownDevice,
    /// There is no other host of that name in the VM's cluster.
    NotThere,
    /// vCenter refused the VM there.
    RefusedByVcenter(String),
    /// The VM is registered there, and could not be powered on.
    PowerOnRefused(String),
}

impl RejectionReason {
    /// The reason for a host without enough devices that match.
    pub(super) fn of_mismatch(nearest: Option<(DeviceMismatch, &DeviceRequirement)>) -> Self {
        let (mismatch, label) = match nearest {
            Some((mismatch, requirement)) => (mismatch, requirement.label.clone()),
            None => (DeviceMismatch::Model, None),
        };
        match (mismatch, label) {
            (DeviceMismatch::Label, Some(label)) => Self::OtherLabel(label),
            (DeviceMismatch::Subsystem, _) => Self::OtherSubsystem,
            (DeviceMismatch::Model | DeviceMismatch::Label, _) => Self::NoMatchingDevice,
        }
    }

    /// Whether the host was surveyed, and the next survey may have another result.
    pub(super) fn may_change(&self) -> bool {
        match self {
            Self::Memory { .. }
            | Self::AntiAffinity(_)
            | Self::HardwareVersion(_)
            | Self::Network(_)
            | Self::DevicesTaken
            | Self::NoVgpuProfile(_)
            | Self::VgpuTaken(_)
            | Self::Unreadable(_)
            | Self::RefusedByVcenter(_)
            | Self::PowerOnRefused(_) => true,
            Self::State(_)
            | Self::FailoverHost
            | Self::VmHostRule(_)
            | Self::Datastores(_)
            | Self::UnknownDatastores
            | Self::DatastoreInaccessible(_)
            | Self::DatastoreInMaintenance(_)
            | Self::DevicesUnreported
            | Self::Sriov(_)
            | Self::NoMatchingDevice
            | Self::OtherSubsystem
            | Self::OtherLabel(_)
            | Self::StaticDevice
            | Self::ForeignDevice(_)
            | Self::UnknownDevice
            | Self::NotThere => false,
        }
    }
}

impl fmt::Display for RejectedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.host, self.why)
    }
}

impl fmt::Display for RejectionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State(state) => write!(f, "is {state}"),
            Self::Datastores(names) => {
                let plural = if names.len() == 1 { "" } else { "s" };
                write!(
                    f,
                    "does not see datastore{plural} {} of the VM's files",
                    names.join(", ")
                )
            }
            Self::UnknownDatastores => f.write_str("cannot be judged while the VM's datastores are unknown"),
            Self::DatastoreInaccessible(name) => write!(f, "cannot access datastore {name}"),
            Self::DatastoreInMaintenance(name) => {
                write!(f, "cannot use datastore {name}, which is in maintenance mode")
            }
            Self::FailoverHost => f.write_str("is a dedicated failover host of vSphere HA"),
            Self::VmHostRule(rule) => write!(f, "is excluded by the VM-Host rule {rule}"),
            Self::AntiAffinity(rule) => {
                write!(f, "has a VM that the rule {rule} keeps apart from this one")
            }
            Self::HardwareVersion(version) => write!(f, "does not run the VM's hardware version {version}"),
            Self::Network(name) => write!(f, "lacks network {name}"),
            Self::Sriov(None) => f.write_str("has no network card with active SR-IOV"),
            Self::Sriov(Some(address)) => write!(
                f,
                "has no network card with active SR-IOV at {address}, which the VM names"
            ),
            // Without the memory that is free: it would change the words at each survey.
            Self::Memory { mib } => {
                write!(
                    f,
                    "has less unreserved memory than the {mib} MiB that the VM reserves"
                )
            }
            Self::DevicesUnreported => f.write_str("has not reported its devices"),
            Self::NoMatchingDevice => f.write_str("has no matching passthrough device"),
            Self::OtherSubsystem => {
                f.write_str("has no matching passthrough device: their subsystem ids differ")
            }
            Self::OtherLabel(label) => {
                write!(
                    f,
                    "has no matching passthrough device with the hardware label {label}"
                )
            }
            Self::DevicesTaken => f.write_str("has no matching device free"),
            Self::NoVgpuProfile(profile) => write!(f, "has no vGPU profile {profile}"),
            Self::VgpuTaken(profile) => write!(f, "has no vGPU {profile} free"),
            Self::Unreadable(why) => write!(f, "cannot be judged: {why}"),
            Self::StaticDevice => f.write_str("would need the VM's fixed device address re-pointed"),
            Self::ForeignDevice(backing) => write!(f, "cannot be judged for a {backing}"),
            Self::UnknownDevice => f.write_str("cannot be judged while the VM's devices are unreadable"),
            Self::NotThere => f.write_str("is no other host of the VM's cluster"),
            Self::RefusedByVcenter(message) => write!(f, "was refused by vCenter: {message}"),
            Self::PowerOnRefused(message) => {
                write!(f, "could not power the VM on and is tried again: {message}")
            }
        }
    }
}
