//! The faults vCenter answers with, and what each asks of the caller.

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

/// What a fault asks of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The session is gone: log in, read all anew, decide anew.
    Relogin,
    /// The object is in another state than was believed: look, then decide anew.
    LookAgain,
    /// Something else is at work on the object: the same call may do within seconds.
    Soon,
    /// Nothing is wrong with the call: it may do when the surroundings have changed, minutes rather than seconds.
    Later,
    /// Not on this host; on another one it may do.
    OtherPlace,
    /// Not in this cluster as it is: every host of it would refuse.
    Cluster,
    /// A person has to change something first: a privilege, a password, the VM's configuration.
    Person,
    /// The fault is not known here: it may be about the host, the VM or a passing state.
    Unknown,
}

impl Fault {
    /// What it asks of the caller.
    pub fn retry(&self) -> Retry {
        match &self.kind {
            FaultKind::NotAuthenticated => Retry::Relogin,
            FaultKind::ManagedObjectNotFound
            | FaultKind::InvalidState
            | FaultKind::InvalidPowerState
            | FaultKind::RequestCanceled
            | FaultKind::InvalidCollectorVersion
            | FaultKind::NotLeaving => Retry::LookAgain,
            FaultKind::TaskInProgress | FaultKind::ConcurrentAccess => Retry::Soon,
            FaultKind::MethodDisabled
            | FaultKind::Timedout
            | FaultKind::HostNotConnected
            | FaultKind::ToolsUnavailable
            | FaultKind::Unreadable => Retry::Later,
            FaultKind::ClusterWide => Retry::Cluster,
            FaultKind::Other(_) => Retry::Unknown,
            FaultKind::InvalidHostState
            | FaultKind::InsufficientResources
            | FaultKind::DisallowedOperationOnFailoverHost
            | FaultKind::VmConfig
            | FaultKind::Migration
            | FaultKind::NoCompatibleHost
            | FaultKind::NotSupported
            | FaultKind::OnlyRecommended => Retry::OtherPlace,
            FaultKind::InvalidLogin
            | FaultKind::NoPermission
            | FaultKind::QuestionPending
            | FaultKind::InvalidArgument => Retry::Person,
        }
    }
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
