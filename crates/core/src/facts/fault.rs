//! The faults of vCenter.

/// A fault with its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    /// The message, with the privilege, object or device that it concerns.
    pub message: String,
}

/// The faults that are handled differently. The name is the type of the fault in the vSphere API reference, except where noted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    NotAuthenticated,
    /// With `PasswordExpired` and `InvalidClientCertificate`, which extend it.
    InvalidLogin,
    /// With `NoPermissionOnHost`.
    NoPermission,
    ManagedObjectNotFound,
    /// With those of its kind that have no variant of their own.
    InvalidState,
    InvalidPowerState,
    /// The host is in a state that forbids the operation, such as maintenance. With `InvalidHostConnectionState`.
    InvalidHostState,
    /// A person has to answer a question of the VM first.
    QuestionPending,
    /// With `VAppTaskInProgress`.
    TaskInProgress,
    ToolsUnavailable,
    RequestCanceled,
    InvalidCollectorVersion,
    MethodDisabled,
    Timedout,
    /// The family of `InsufficientResourcesFault`, except those of the whole cluster.
    InsufficientResources,
    /// Faults of the whole cluster: `InsufficientFailoverResourcesFault`, `InsufficientStandbyResource` and those that extend it,
    /// `NoActiveHostInCluster`, `NotEnoughLicenses`.
    ClusterWide,
    /// The host is reserved for failover (`ClusterFailoverHostAdmissionControlPolicy`).
    DisallowedOperationOnFailoverHost,
    /// A file of the VM cannot be used, mostly because a backup or another host holds it. With `CannotAccessFile` and `FileFault`.
    FileLocked,
    /// What the host itself says at a power-on, such as a file that is locked or a device that another VM holds.
    GenericVmConfigFault,
    /// The family of `VmConfigFault`, by the names known of it.
    VmConfig,
    /// The family of `MigrationFault`, by the names known of it.
    Migration,
    NoCompatibleHost,
    ConcurrentAccess,
    NotSupported,
    /// With `HostNotReachable` and `HostCommunication`.
    HostNotConnected,
    /// `InvalidArgument`, `InvalidRequest`, `InvalidType`, `InvalidProperty`.
    InvalidArgument,
    /// `PowerOnMultiVM_Task` succeeded and started nothing: DRS left a recommendation for a person to apply. Not a fault of the API.
    OnlyRecommended,
    /// The cause of a power-off is gone, so nothing was sent. Not a fault of the API.
    NotLeaving,
    /// A value that exceeds a limit of this client. Not a fault of the API.
    Unreadable,
    /// Any other, by its name.
    Other(String),
}

/// Why a call to vCenter did not do what was asked.
#[derive(Clone, Copy, Debug)]
pub enum Failure<'a> {
    /// There was no session, or the check before the call got no usable reply, so nothing was sent.
    NotSent,
    /// No usable reply: the call may have been carried out.
    Unanswered,
    /// vCenter refused.
    Refused(&'a Fault),
}

impl Fault {
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind, message }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let FaultKind::Other(name) = &self.kind {
            return write!(f, "{name}: {}", self.message);
        }
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

impl std::error::Error for Fault {}
