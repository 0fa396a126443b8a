//! The faults vCenter answers with, and what each asks of the caller.

use super::soap::Moref;
use super::text::for_people;
use super::update::Power;
use super::xml::Element;

mod families;

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

    /// Whether it says that the session is no more (`proto-notes/session.md`): directly, or by denying one of the
    /// objects that live in the session.
    pub fn ends_session(&self, about: &Moref) -> bool {
        match &self.kind {
            FaultKind::NotAuthenticated => true,
            FaultKind::ManagedObjectNotFound => about.is_of_session(),
            FaultKind::InvalidLogin
            | FaultKind::NoPermission
            | FaultKind::InvalidState
            | FaultKind::InvalidPowerState
            | FaultKind::InvalidHostState
            | FaultKind::QuestionPending
            | FaultKind::TaskInProgress
            | FaultKind::ToolsUnavailable
            | FaultKind::RequestCanceled
            | FaultKind::InvalidCollectorVersion
            | FaultKind::MethodDisabled
            | FaultKind::Timedout
            | FaultKind::InsufficientResources
            | FaultKind::ClusterWide
            | FaultKind::DisallowedOperationOnFailoverHost
            | FaultKind::VmConfig
            | FaultKind::Migration
            | FaultKind::NoCompatibleHost
            | FaultKind::ConcurrentAccess
            | FaultKind::NotSupported
            | FaultKind::HostNotConnected
            | FaultKind::InvalidArgument
            | FaultKind::OnlyRecommended
            | FaultKind::NotLeaving
            | FaultKind::Unreadable
            | FaultKind::Other(_) => false,
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

/// Reads `soapenv:Fault`, with the power state that an `InvalidPowerState` found.
///
/// The type is `xsi:type` of the only child of `detail`; without it, that child's name less `Fault`; without a detail,
/// nothing but the words are known.
pub fn read_soap(fault: Element<'_>) -> (Fault, Option<Power>) {
    // `faultstring` and `detail` belong to no namespace in SOAP 1.1, but some servers let them inherit one.
    let part = |name: &str| fault.children().find(|child| child.name() == name);
    let words = part("faultstring").map_or("", Element::text);
    let Some(detail) = part("detail").and_then(|detail| detail.children().next()) else {
        return (of_name("without a type", words, None), None);
    };
    let name = detail
        .xsi_type()
        .unwrap_or_else(|| detail.name().strip_suffix("Fault").unwrap_or(detail.name()));
    let existing = detail.text_of("existingState").and_then(super::decode::power);
    (of_name(name, words, Some(detail)), existing)
}

/// Reads a `LocalizedMethodFault`: a task's `error`, a property's `fault`, one of a placement's refusals.
pub fn read_localized(fault: Element<'_>) -> Fault {
    let detail = fault.child("fault");
    let name = detail.and_then(Element::xsi_type).unwrap_or("without a type");
    of_name(name, fault.text_of("localizedMessage").unwrap_or(""), detail)
}

/// A fault by its type's name on the wire, with all the words that were said about it.
fn of_name(wire: &str, words: &str, detail: Option<Element<'_>>) -> Fault {
    let kind = kind(wire);
    let mut said = Vec::new();
    if !matches!(&kind, FaultKind::Other(_)) && format!("{kind:?}") != wire {
        said.push(format!("({})", for_people(wire)));
    }
    said.push(for_people(words));
    if let Some(detail) = detail {
        about(detail, &mut said);
    }
    let mut seen = std::collections::BTreeSet::new();
    said.retain(|part| !part.is_empty() && seen.insert(part.clone()));
    if said.is_empty() {
        said.push("vCenter gave no words".to_owned());
    }
    Fault {
        kind,
        said: said.join(" "),
    }
}

/// What a fault's own fields say: the messages, the missing privilege, the object, the states, the reason.
fn about(detail: Element<'_>, said: &mut Vec<String>) {
    for message in detail.children_named("faultMessage") {
        said.push(for_people(message.text_of("message").unwrap_or("")));
    }
    for (field, words) in [
        ("privilegeId", "privilege"),
        ("object", "on"),
        ("obj", "object"),
        ("requestedState", "asked for"),
        ("existingState", "found"),
        ("expectedState", "expected"),
        ("task", "task"),
        ("device", "device"),
        ("reason", "reason"),
        ("name", "name"),
        ("invalidProperty", "property"),
    ] {
        let text = detail.text_of(field).map_or_else(String::new, for_people);
        if !text.is_empty() {
            said.push(format!("[{words} {text}]"));
        }
    }
    let cause = detail.child("faultCause");
    if let Some(cause) = cause.filter(|cause| cause.child("fault").is_some()) {
        said.push(format!("because of {}", read_localized(cause)));
    }
}

fn kind(wire: &str) -> FaultKind {
    match wire {
        "NotAuthenticated" => FaultKind::NotAuthenticated,
        "InvalidLogin" | "PasswordExpired" | "InvalidClientCertificate" => FaultKind::InvalidLogin,
        "NoPermission" | "NoPermissionOnHost" => FaultKind::NoPermission,
        "ManagedObjectNotFound" => FaultKind::ManagedObjectNotFound,
        "InvalidPowerState" => FaultKind::InvalidPowerState,
        "InvalidHostState" | "InvalidHostConnectionState" => FaultKind::InvalidHostState,
        "QuestionPending" => FaultKind::QuestionPending,
        "InvalidState"
        | "InvalidVmState"
        | "InvalidDatastoreState"
        | "CannotPowerOffVmInCluster"
        | "EncryptionKeyRequired"
        | "VmPowerOnDisabled" => FaultKind::InvalidState,
        "TaskInProgress" | "VAppTaskInProgress" => FaultKind::TaskInProgress,
        "ToolsUnavailable" => FaultKind::ToolsUnavailable,
        "RequestCanceled" => FaultKind::RequestCanceled,
        "InvalidCollectorVersion" => FaultKind::InvalidCollectorVersion,
        "MethodDisabled" => FaultKind::MethodDisabled,
        "Timedout" => FaultKind::Timedout,
        "NoCompatibleHost" => FaultKind::NoCompatibleHost,
        "ConcurrentAccess" => FaultKind::ConcurrentAccess,
        "NotSupported" | "HostAccessRestrictedToManagementServer" | "MethodNotFound" => {
            FaultKind::NotSupported
        }
        "HostNotConnected" | "HostNotReachable" | "HostCommunication" => FaultKind::HostNotConnected,
        "InvalidArgument" | "InvalidRequest" | "InvalidType" | "InvalidProperty" => {
            FaultKind::InvalidArgument
        }
        "DisallowedOperationOnFailoverHost" => FaultKind::DisallowedOperationOnFailoverHost,
        name if families::CLUSTER.contains(&name) => FaultKind::ClusterWide,
        name if name.starts_with("Insufficient") || families::INSUFFICIENT_RESOURCES.contains(&name) => {
            FaultKind::InsufficientResources
        }
        name if families::VM_CONFIG.contains(&name) => FaultKind::VmConfig,
        name if families::MIGRATION.contains(&name) => FaultKind::Migration,
        name => FaultKind::Other(for_people(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_asks_what_its_family_asks() {
        for (wire, retry) in [
            // Thrown where a passthrough device does not come up: "Module 'DevicePowerOn' power on failed".
            ("GenericVmConfigFault", Retry::OtherPlace),
            ("QuarantineModeFault", Retry::OtherPlace),
            ("VirtualEthernetCardNotSupported", Retry::OtherPlace),
            ("VmHostAffinityRuleViolation", Retry::OtherPlace),
            ("CannotAccessFile", Retry::OtherPlace),
            ("DisallowedOperationOnFailoverHost", Retry::OtherPlace),
            ("InsufficientMemoryResourcesFault", Retry::OtherPlace),
            ("NumVirtualCpusExceedsLimit", Retry::OtherPlace),
            ("VMotionLinkDown", Retry::OtherPlace),
            ("InsufficientFailoverResourcesFault", Retry::Cluster),
            ("InsufficientStandbyMemoryResource", Retry::Cluster),
            ("NoActiveHostInCluster", Retry::Cluster),
            ("NotEnoughLicenses", Retry::Cluster),
            ("SystemError", Retry::Unknown),
            ("NeverHeardOf", Retry::Unknown),
        ] {
            let fault = of_name(wire, "words", None);
            assert_eq!(fault.retry(), retry, "{wire}: {fault}");
            assert!(fault.to_string().contains(wire), "{wire}: {fault}");
        }
    }
}
