//! The Event reasons. People filter by them, so they are stable.

use crate::kubernetes::events::Severity;

macro_rules! reasons {
    ($($Reason:ident: $action:literal, $severity:ident;)+) => {
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
        }
    };
}

reasons! {
    HostMaintenanceDetected: "Begin", Normal;
    MaintenanceQueued: "Queue", Normal;
    MaintenanceAdopted: "Begin", Normal;
    DrainStarted: "Drain", Normal;
    CordonRestored: "Drain", Warning;
    GuestRestarted: "Drain", Warning;
    EvictionBlocked: "Drain", Warning;
    EvictionRefused: "Drain", Warning;
    DrainSucceeded: "Drain", Normal;
    DrainTimedOut: "Drain", Warning;
    GuestShutdownTimedOut: "ShutDown", Warning;
    GuestShutdownUnavailable: "ShutDown", Warning;
    VMPoweredOff: "ShutDown", Normal;
    WaitingForHost: "Place", Normal;
    NoCompatibleHost: "Place", Warning;
    HostNotVisible: "Place", Warning;
    VMRelocated: "Place", Normal;
    VMQuestionPending: "PowerOn", Warning;
    VMPoweredOn: "PowerOn", Normal;
    NodeNotReadyAfterPowerOn: "Rejoin", Warning;
    VCenterRequestFailed: "AskVCenter", Warning;
    NodeWriteFailed: "Record", Warning;
    MaintenanceInterrupted: "Drain", Warning;
    VMPowerLost: "PowerOn", Warning;
    MaintenanceParked: "Park", Warning;
    MaintenanceResumed: "Resume", Normal;
    ApprovalNeeded: "Queue", Normal;
    MaintenanceSkipped: "Skip", Warning;
    MaintenanceSucceeded: "End", Normal;
    MaintenanceFailed: "End", Warning;
    MaintenanceCancelled: "End", Normal;
}
