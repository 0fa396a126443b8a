//! Would a node get through a maintenance by itself? What stands against it, or would cost more than expected.

use crate::maintenance::observed::{BoundVm, NodeOverrides, PowerState};

named_enum! {
    /// What stands against the maintenance of a node, or what it would cost.
    pub enum Obstacle {
        /// vCenter has no VM for the node, several, or one of another node.
        VmNotFound = "vm-not-found",
        /// vCenter knows no VM of the node, and nothing says that it is one.
        NoVm = "no-vm",
        VmOutOfScope = "vm-out-of-scope",
        VmSuspended = "vm-suspended",
        /// vCenter waits for an answer about the VM.
        Question = "vcenter-question",
        /// The Node is annotated to be left alone.
        Skip = "skip",
        /// A PodDisruptionBudget that never allows a disruption, or none at present.
        DisruptionBudget = "disruption-budget",
        /// More than one PodDisruptionBudget selects a pod: the eviction API refuses it with status 500 for ever.
        SeveralBudgets = "several-budgets",
        /// vCenter refuses Haulout's user what the maintenance of the VM needs.
        VcenterPrivilege = "vcenter-privilege",
        NoVmwareTools = "no-vmware-tools",
        /// vCenter itself shuts the VM down, and so races the drain.
        EvacuationPolicy = "evacuation-policy",
        /// No other host can take the VM, so the node is away as long as its host.
        NoOtherHost = "no-other-host",
        /// The grace period of a pod is longer than the drain timeout.
        LongGracePeriod = "long-grace-period",
        /// Nothing starts the pod again.
        NoController = "no-controller",
        /// The pod has data in an emptyDir.
        EmptyDir = "empty-dir",
        /// The annotation of a pod is not fulfilled as it stands.
        PodPolicy = "pod-policy",
        /// The guards on the Machine of the node cannot be set.
        MachineGuard = "machine-guard",
    }
}

impl Obstacle {
    /// Whether the maintenance stops there until a person acts.
    pub fn blocks(self) -> bool {
        match self {
            Self::VmNotFound
            | Self::VmOutOfScope
            | Self::VmSuspended
            | Self::Question
            | Self::Skip
            | Self::DisruptionBudget
            | Self::SeveralBudgets
            | Self::VcenterPrivilege => true,
            Self::NoVm
            | Self::NoVmwareTools
            | Self::EvacuationPolicy
            | Self::NoOtherHost
            | Self::LongGracePeriod
            | Self::NoController
            | Self::EmptyDir
            | Self::PodPolicy
            | Self::MachineGuard => false,
        }
    }

    /// What it means, as a sentence without its object.
    pub fn words(self) -> &'static str {
        match self {
            Self::VmNotFound => "no VM, or more than one, belongs to the node",
            Self::NoVm => "it is no VM that vCenter knows, and is left alone",
            Self::VmOutOfScope => "the VM is outside VCENTER_SCOPE",
            Self::VmSuspended => "the VM is suspended",
            Self::Question => "vCenter waits for an answer about the VM",
            Self::Skip => "the Node has the annotation haulout.dev/skip",
            Self::DisruptionBudget => "a PodDisruptionBudget allows no disruption",
            Self::SeveralBudgets => {
                "more than one PodDisruptionBudget selects a pod, which is then never evicted"
            }
            Self::VcenterPrivilege => "Haulout's user lacks a privilege on the VM in vCenter",
            Self::NoVmwareTools => "VMware Tools do not run: power is cut without a shutdown of the guest",
            Self::EvacuationPolicy => "vCenter itself powers the VM off when its host enters maintenance",
            Self::NoOtherHost => "no other host can take the VM: the node is away as long as its host",
            Self::LongGracePeriod => "a grace period is longer than the drain timeout",
            Self::NoController => "a pod has no controller: nothing starts it again",
            Self::EmptyDir => "a pod loses the data in its emptyDir",
            Self::PodPolicy => "an annotation of a pod is not fulfilled as it stands",
            Self::MachineGuard => {
                "its Machine cannot be guarded: another controller may replace the node or power its VM on"
            }
        }
    }

    /// What the VM and the Node show. The pods of a node are not part of it, because they are read in a drain only.
    pub fn of(vm: &BoundVm, overrides: Option<&NodeOverrides>) -> Vec<Self> {
        let mut found = Vec::new();
        match vm {
            BoundVm::Found(vm) => {
                found.extend((vm.power == Some(PowerState::Suspended)).then_some(Self::VmSuspended));
                found.extend(vm.question.is_some().then_some(Self::Question));
                let lacks_tools = vm.power == Some(PowerState::On) && vm.tools_running == Some(false);
                found.extend(lacks_tools.then_some(Self::NoVmwareTools));
                found.extend(vm.evacuation_power_off.then_some(Self::EvacuationPolicy));
            }
            BoundVm::NoVm => found.push(Self::NoVm),
            BoundVm::OutOfScope => found.push(Self::VmOutOfScope),
            // It is being looked up, or vCenter is not connected.
            BoundVm::NotLookedUp => {}
            BoundVm::Missing { .. }
            | BoundVm::Ambiguous(_)
            | BoundVm::Shared(_)
            | BoundVm::HeldByDeadNode { .. }
            | BoundVm::NoUuid => found.push(Self::VmNotFound),
        }
        found.extend(
            overrides
                .is_some_and(|overrides| overrides.skip)
                .then_some(Self::Skip),
        );
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::maintenance::observed::{HostState, ObservedVm};

    #[test]
    fn each_obstacle_of_vm_and_node_is_found() {
        let sound = || ObservedVm {
            tools_running: Some(true),
            ..fixtures::vm(Some(PowerState::On), HostState::InService)
        };
        let of = |vm: ObservedVm| Obstacle::of(&BoundVm::Found(vm), None);
        assert!(of(sound()).is_empty());
        let without_tools = |power| ObservedVm {
            power,
            tools_running: Some(false),
            ..sound()
        };
        assert_eq!(of(without_tools(Some(PowerState::On))), [Obstacle::NoVmwareTools]);
        assert!(of(without_tools(Some(PowerState::Off))).is_empty());
        let suspended = ObservedVm {
            power: Some(PowerState::Suspended),
            question: Some("?".to_owned()),
            evacuation_power_off: true,
            ..sound()
        };
        assert_eq!(
            of(suspended),
            [
                Obstacle::VmSuspended,
                Obstacle::Question,
                Obstacle::EvacuationPolicy
            ]
        );
        assert!(Obstacle::of(&BoundVm::NotLookedUp, None).is_empty());
        let skip = NodeOverrides {
            skip: true,
            ..NodeOverrides::default()
        };
        assert_eq!(
            Obstacle::of(&BoundVm::Missing { was_known: false }, Some(&skip)),
            [Obstacle::VmNotFound, Obstacle::Skip]
        );
        assert_eq!(Obstacle::of(&BoundVm::OutOfScope, None), [Obstacle::VmOutOfScope]);
        assert_eq!(Obstacle::of(&BoundVm::NoVm, None), [Obstacle::NoVm]);
    }
}
