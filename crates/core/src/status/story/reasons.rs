//! The reasons of Events. People filter by them, so they are stable.

/// The type of an Event, and the level of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Expected.
    Normal,
    /// Not expected.
    Warning,
}

impl Severity {
    /// Its name in the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

macro_rules! reasons {
    ($($Reason:ident: $action:literal, $severity:ident, $meaning:literal;)+) => {
        /// The reason of an Event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reason {
            $($Reason),+
        }

        impl Reason {
            /// All reasons, in the order of an episode.
            pub const ALL: [Self; [$($action),+].len()] = [$(Self::$Reason),+];

            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$Reason => stringify!($Reason)),+
                }
            }

            /// The `action` of the Event.
            pub fn action(self) -> &'static str {
                match self {
                    $(Self::$Reason => $action),+
                }
            }

            /// Whether the Event is a warning.
            pub fn severity(self) -> Severity {
                match self {
                    $(Self::$Reason => Severity::$severity),+
                }
            }

            /// When it is written, for the reference documentation.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$Reason => $meaning),+
                }
            }
        }
    };
}

reasons! {
    HostMaintenanceDetected: "Begin", Normal,
        "an episode began: host, task and its user, detection latency, and the trace's id or link";
    EvacuationPolicy: "Begin", Warning,
        "vCenter itself shuts the VM down for the maintenance of its host, because `maintenance.vm.evacuation.poweroff` is set or a \
         compute policy says so; \
         its pods may end before they are evicted";
    MaintenanceQueued: "Queue", Normal, "the node waits for a slot";
    WaitingForVMotion: "Queue", Normal,
        "vCenter can move the VM by vMotion; the node is drained if it has not done so in time";
    MaintenanceAdopted: "Begin", Normal, "an episode of the Python controller was taken over";
    PlacementExpected: "Drain", Normal,
        "another host is likely to take the VM after the drain, or DRS will choose one";
    NoOtherHostExpected: "Drain", Normal,
        "no other host can take the VM after the drain, and why; it will wait for its own";
    DrainStarted: "Drain", Normal, "the drain begins after the wait for a slot, or begins again";
    CordonRestored: "Drain", Warning,
        "the node was uncordoned during the drain, or while its VM was off or booting; it is cordoned again";
    GuestRestarted: "Drain", Warning, "the guest rebooted instead of shutting down; the node is drained again";
    EvictionBlocked: "Drain", Warning,
        "a PodDisruptionBudget allows no disruption: its name, and how many healthy pods it needs and has; written again \
         when it begins to have too few";
    EvictionRefused: "Drain", Warning, "evictions are refused for another reason, or the pods cannot be listed";
    DrainSucceeded: "Drain", Normal, "no pod is left to evict";
    DrainTimedOut: "Drain", Warning, "`DRAIN_TIMEOUT_SECONDS` passed; the remaining pods are named";
    VolumesAttached: "ShutDown", Normal,
        "volumes of evicted pods are still attached: their names; written again when they are not waited for any more";
    GuestShutdownTimedOut: "ShutDown", Warning, "the guest did not shut down in time; its power is cut";
    GuestShutdownUnavailable: "ShutDown", Warning, "VMware Tools do not run; the power is cut";
    VMPoweredOff: "ShutDown", Normal, "the VM is powered off";
    WaitingForHost: "Place", Normal, "the VM waits for its own host";
    NoCompatibleHost: "Place", Warning, "the VM waits for its own host, because no other can take it, and why";
    HostNotVisible: "Place", Warning, "the state of the host is unknown";
    HostNotEntering: "Place", Warning,
        "the VM is off, and its host still does not get into maintenance mode: another VM on it is on, or \"Move powered-off \
         VMs\" was selected";
    HostSettling: "Place", Normal,
        "the host came back by itself, and is used when it has stayed for `HOST_SETTLE_SECONDS`";
    VMRelocated: "Place", Normal, "the VM is registered on another host";
    VMQuestionPending: "PowerOn", Warning, "vCenter has a question about the VM that a person must answer";
    VMPoweredOn: "PowerOn", Normal, "the VM is powered on, and on which host";
    NodeNotReadyAfterPowerOn: "Rejoin", Warning,
        "`POWER_ON_TIMEOUT_SECONDS` passed, and the node or its GPUs are not back";
    VCenterRequestFailed: "AskVCenter", Warning, "vCenter refused a request; when it is retried";
    GpuCountNotCleared: "PowerOn", Warning,
        "the GPU count of the last boot could not be set to 0 on the Node; when that is retried";
    GuardFailed: "Guard", Warning,
        "the guards on the Machine of the node could not be set or removed; when that is retried, or on which objects they are \
         left, and the commands that remove them";
    NodeWriteFailed: "Record", Warning, "the record could not be written to the Node";
    MaintenanceInterrupted: "Drain", Warning,
        "Enter Maintenance Mode of the host failed; the node stays cordoned for a while in case it is retried";
    VMPowerLost: "PowerOn", Warning,
        "the VM was powered off again after its power-on, and how many times; the next power-on waits";
    MaintenanceParked: "Park", Warning,
        "the episode cannot continue, cannot begin, or belongs to another release, and why";
    MaintenanceResumed: "Resume", Normal, "a parked episode continues";
    WaitingForHook: "Hold", Normal, "hooks on the Node hold a step; their annotations are named";
    ApprovalNeeded: "Queue", Normal, "the drain waits for the approval of a person";
    MaintenanceSkipped: "Skip", Warning, "the node is skipped, because it has the annotation `haulout.dev/skip`";
    HostStandbyRequested: "Ignore", Warning,
        "a task is to put the host into standby mode, which waits until the VM is off; Haulout reacts to maintenance mode only";
    HostPartialMaintenance: "Ignore", Warning,
        "the host is in a partial maintenance mode, or enters or leaves it; Haulout reacts to maintenance mode only";
    MaintenanceSucceeded: "End", Normal, "the node is back in service, and the duration of each part";
    MaintenanceFailed: "End", Warning, "the node is back in service, but the request was not fulfilled, and why";
    MaintenanceCancelled: "End", Normal, "the maintenance was cancelled before the VM was off";
}
