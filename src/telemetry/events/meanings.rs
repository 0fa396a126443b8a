//! When each Event is written, for the reference documentation.

use super::Reason;

impl Reason {
    /// When it is written.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::HostMaintenanceDetected => {
                "an episode began: which host, which task, who clicked, how late it was noticed, the trace's id or its link"
            }
            Self::MaintenanceQueued => "the node waits for its turn",
            Self::MaintenanceAdopted => "an episode of the Python controller was taken over",
            Self::DrainStarted => "the node is drained after its time in the queue, or once more",
            Self::CordonRestored => {
                "the node was uncordoned in mid-drain, or while its VM was off or booting; it was cordoned again"
            }
            Self::GuestRestarted => "the guest restarted where it was to stop; the node is drained again",
            Self::EvictionBlocked => {
                "a PodDisruptionBudget allows no disruption: which one, how many healthy pods it needs and has; written again \
                 when it begins to lack some"
            }
            Self::EvictionRefused => "evictions are refused for another reason, or the pods cannot be listed",
            Self::DrainSucceeded => "no pod is left to evict",
            Self::DrainTimedOut => "`DRAIN_TIMEOUT_SECONDS` passed; the pods that are left are named",
            Self::GuestShutdownTimedOut => "the guest did not stop in time; its power is cut",
            Self::GuestShutdownUnavailable => "VMware Tools do not run; the power is cut",
            Self::VMPoweredOff => "the VM is off",
            Self::WaitingForHost => "the VM waits for its own host",
            Self::NoCompatibleHost => "the VM waits for its own host, because no other can take it, and why",
            Self::HostNotVisible => "the state of the host is not known",
            Self::VMRelocated => "the VM is registered on another host",
            Self::VMQuestionPending => "vCenter asks a question about the VM",
            Self::VMPoweredOn => "the VM is on, and on which host",
            Self::NodeNotReadyAfterPowerOn => {
                "`POWER_ON_TIMEOUT_SECONDS` passed, and the node or its GPUs are not back"
            }
            Self::VCenterRequestFailed => "vCenter refused a request; when it is tried again",
            Self::NodeWriteFailed => "the record could not be written on the Node",
            Self::MaintenanceInterrupted => {
                "Enter Maintenance Mode of the host failed; the node stays cordoned for a while in case it is tried again"
            }
            Self::VMPowerLost => {
                "the VM went off again after it was powered on, and how many times; the next power-on waits"
            }
            Self::MaintenanceParked => {
                "it cannot go on, a node could not begin, or the episode belongs to another release, and why"
            }
            Self::MaintenanceResumed => "it goes on",
            Self::ApprovalNeeded => "the drain waits for a person to approve it",
            Self::MaintenanceSkipped => "the node is left alone, because `haulout.dev/skip` is set on it",
            Self::MaintenanceSucceeded => "the node is back in service, and where the time went",
            Self::MaintenanceFailed => {
                "the node is back in service, and what was asked for could not be had, and why"
            }
            Self::MaintenanceCancelled => "the maintenance was called off before the VM was off",
        }
    }
}
