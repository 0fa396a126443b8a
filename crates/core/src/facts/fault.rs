//! The faults vCenter answers with.

/// A fault: its type on the wire, and what vCenter said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What kind it is.
    pub kind: FaultKind,
    /// vCenter's own words, with the privilege, object or device they are about.
    pub said: String,
}

/// The faults that ask for different conduct. The name is the fault's type on the wire, except where it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each variant without a comment is the fault of that name in the vSphere API reference"
)]
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
    /// The family of `InsufficientResourcesFault`, less what is of the whole cluster.
    InsufficientResources,
    /// What every host of the cluster would answer: `InsufficientFailoverResourcesFault`, `InsufficientStandbyResource` and those that
    /// extend it, `NoActiveHostInCluster`, `NotEnoughLicenses`.
    ClusterWide,
    /// The host is set aside for failover (`ClusterFailoverHostAdmissionControlPolicy`): nothing is powered on there.
    DisallowedOperationOnFailoverHost,
    /// The family of `VmConfigFault`, by the names known of it.
    VmConfig,
    /// The family of `MigrationFault`, by the names known of it.
    Migration,
    NoCompatibleHost,
    ConcurrentAccess,
    NotSupported,
    /// With `HostNotReachable` and `HostCommunication`.
    HostNotConnected,
    /// A request that this server cannot take: `InvalidArgument`, `InvalidRequest`, `InvalidType`, `InvalidProperty`.
    InvalidArgument,
    /// `PowerOnMultiVM_Task` ended well and started nothing: DRS left a recommendation for a person to apply. Not a
    /// fault on the wire.
    OnlyRecommended,
    /// What asked for a VM's power to be cut does so no more, so nothing was sent. Not a fault on the wire.
    NotLeaving,
    /// A value that breaks a limit of this client. Not a fault on the wire.
    Unreadable,
    /// Any other, by its name.
    Other(String),
}

/// Why a call to vCenter did not do what was asked.
#[derive(Clone, Copy, Debug)]
pub enum Failure<'a> {
    /// There was no session, so nothing was sent.
    NotSent,
    /// No usable answer: the call may have been carried out.
    Unanswered,
    /// vCenter refused.
    Refused(&'a Fault),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let FaultKind::Other(name) = &self.kind {
            return write!(f, "{name}: {}", self.said);
        }
        write!(f, "{:?}: {}", self.kind, self.said)
    }
}

impl std::error::Error for Fault {}
