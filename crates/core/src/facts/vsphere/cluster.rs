//! The configuration of a cluster: DRS, vSphere HA, and its rules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ids::{ComputeRef, HostRef, VmRef};

/// A cluster, or the compute resource around a standalone host (which has no DRS).
#[derive(Clone, Debug, PartialEq)]
pub struct Compute {
    pub moref: ComputeRef,
    /// Its name in the inventory; `None` while unreadable.
    pub name: Option<String>,
    /// `drsConfig`, `None` where there is none or it is unreadable.
    pub drs: Option<Drs>,
    /// Which hosts it forbids to VMs. Empty where there is none or they are unreadable.
    pub rules: Arc<ClusterRules>,
}

/// What the configuration of a cluster says against VMs on its hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterRules {
    /// The hosts that vSphere HA keeps for failover (`ClusterFailoverHostAdmissionControlPolicy`): no VM can be powered on there.
    /// Empty where vSphere HA or its admission control is off.
    pub failover_hosts: BTreeSet<HostRef>,
    /// The VM-Host rules that are enabled and mandatory.
    pub vm_host: Vec<VmHostRule>,
    /// The VM anti-affinity rules that are enabled. Empty where DRS is off, because nothing else applies them.
    pub anti_affinity: Vec<AntiAffinityRule>,
}

/// A mandatory `ClusterVmHostRuleInfo`, with the members of its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmHostRule {
    pub name: Arc<str>,
    /// The VMs that it concerns.
    pub vms: Arc<BTreeSet<VmRef>>,
    /// The only hosts where they may run, if it names any.
    pub only_on: Option<Arc<BTreeSet<HostRef>>>,
    /// The hosts where they may not run.
    pub never_on: Arc<BTreeSet<HostRef>>,
}

/// A `ClusterAntiAffinityRuleSpec`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AntiAffinityRule {
    pub name: Arc<str>,
    /// The VMs of which no two may run on one host.
    pub vms: BTreeSet<VmRef>,
}

impl VmHostRule {
    /// Whether it forbids `vm` to run on `host`.
    pub fn forbids(&self, vm: &VmRef, host: &HostRef) -> bool {
        let is_outside = self.only_on.as_ref().is_some_and(|hosts| !hosts.contains(host));
        self.vms.contains(vm) && (is_outside || self.never_on.contains(host))
    }
}

impl AntiAffinityRule {
    /// Whether it keeps these VMs apart.
    pub fn separates(&self, vm: &VmRef, other: &VmRef) -> bool {
        vm != other && self.vms.contains(vm) && self.vms.contains(other)
    }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrsBehavior {
    /// DRS only recommends.
    Manual,
    /// DRS places at power-on, and recommends afterwards.
    PartiallyAutomated,
    /// DRS places and moves.
    FullyAutomated,
}

/// The DRS settings of one VM.
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
