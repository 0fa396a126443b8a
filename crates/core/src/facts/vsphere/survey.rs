//! The result of a survey: what is read of hosts only while a VM looks for one.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{ClaimedDevice, HostVgpus, VgpuProfile};
use crate::ids::{NetworkRef, VmRef};

/// The result of a survey of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostSurvey {
    Read(HostReading),
    /// Unknown, for this reason. A VM that cannot be read may hold any device.
    Unreadable(String),
}

/// What placement compares with the requirements of a VM. The default is a host without VMs, of which nothing else is reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostReading {
    /// One entry for each passthrough device of each VM registered there, ours or not, powered on or off.
    pub claims: Vec<Claim>,
    /// The VMs that run there, ours or not.
    pub running: BTreeSet<VmRef>,
    /// `network`; `None` if it is not reported.
    pub networks: Option<Arc<BTreeSet<NetworkRef>>>,
    /// The memory that no VM that runs there has reserved; `None` if the memory of the host is not reported. What the host itself
    /// needs is not known, so less than this is available.
    pub unreserved_mib: Option<u64>,
    /// Its vGPUs; `None` if they cannot be read.
    pub vgpus: Option<Arc<HostVgpus>>,
    /// The hardware versions of VMs that it runs, such as `vmx-21`; `None` if they are not known.
    pub hardware_versions: Option<Arc<BTreeSet<Arc<str>>>>,
}

impl HostSurvey {
    /// Whether the VM is known to run there.
    pub fn runs(&self, vm: &VmRef) -> bool {
        match self {
            Self::Read(reading) => reading.running.contains(vm),
            Self::Unreadable(_) => false,
        }
    }

    /// The known claims of VMs on its devices.
    pub fn claims(&self) -> &[Claim] {
        match self {
            Self::Read(reading) => &reading.claims,
            Self::Unreadable(_) => &[],
        }
    }
}

impl HostReading {
    /// The vGPUs that VMs there have.
    pub fn claimed_vgpus(&self) -> impl Iterator<Item = (&VmRef, &VgpuProfile)> {
        self.claims.iter().filter_map(|claim| match &claim.device {
            ClaimedDevice::Vgpu(profile) => Some((&claim.vm, profile)),
            ClaimedDevice::Address(_) | ClaimedDevice::AnyOf(_) => None,
        })
    }
}

/// One VM's hold on one passthrough device of the host it is registered on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub vm: VmRef,
    /// The device: by address where it is known (static backing, or assigned while powered on), else by its ids or profile.
    pub device: ClaimedDevice,
}

impl From<Vec<Claim>> for HostReading {
    fn from(claims: Vec<Claim>) -> Self {
        Self {
            claims,
            ..Self::default()
        }
    }
}
