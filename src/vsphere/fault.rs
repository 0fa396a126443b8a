//! The faults vCenter answers with, and what each asks of the caller.

/// A fault: its type on the wire, and what vCenter said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What kind it is.
    pub kind: FaultKind,
    /// vCenter's own words, with the privilege, object or device they are about.
    pub said: String,
}

/// The faults that ask for different conduct. The name is the fault's type on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each variant is the fault of that name in the vSphere API reference"
)]
pub enum FaultKind {
    NotAuthenticated,
    InvalidLogin,
    NoPermission,
    ManagedObjectNotFound,
    InvalidState,
    InvalidPowerState,
    TaskInProgress,
    ToolsUnavailable,
    RequestCanceled,
    InvalidCollectorVersion,
    MethodDisabled,
    Timedout,
    InsufficientResources,
    VmConfig,
    Migration,
    NoCompatibleHost,
    ConcurrentAccess,
    NotSupported,
    HostNotConnected,
    /// Any other, by its name.
    Other(String),
}
