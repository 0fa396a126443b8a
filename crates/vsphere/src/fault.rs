//! How the faults vCenter answers with are read.

use haulout_core::facts::vsphere::PowerState;

pub use haulout_core::facts::fault::{Failure, Fault, FaultKind};

use super::moref::Moref;
use super::text::for_people;
use super::xml::Element;

mod families;

/// Whether it says that the session is no more (`proto-notes/session.md`): directly, or by denying one of the
/// objects that live in the session.
pub(crate) fn ends_session(fault: &Fault, about: &Moref) -> bool {
    match &fault.kind {
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

/// Reads `soapenv:Fault`, with the power state that an `InvalidPowerState` found.
///
/// The type is `xsi:type` of the only child of `detail`; without it, that child's name less `Fault`; without a detail,
/// nothing but the words are known.
pub(crate) fn read_soap(fault: &Element<'_>) -> (Fault, Option<PowerState>) {
    // `faultstring` and `detail` belong to no namespace in SOAP 1.1, but some servers let them inherit one.
    let words = fault.child_of_any_space("faultstring").map_or("", Element::text);
    let detail = fault.child_of_any_space("detail");
    let Some(detail) = detail.and_then(|detail| detail.children().next()) else {
        return (of_name("without a type", words, None), None);
    };
    let name = detail
        .xsi_type()
        .unwrap_or_else(|| detail.name().strip_suffix("Fault").unwrap_or(detail.name()));
    let existing = detail.text_of("existingState").and_then(super::decode::power);
    (of_name(name, words, Some(detail)), existing)
}

/// Reads a `LocalizedMethodFault`: a task's `error`, a property's `fault`, one of a placement's refusals.
pub(crate) fn read_localized(fault: &Element<'_>) -> Fault {
    let detail = fault.child("fault");
    let name = detail.and_then(Element::xsi_type).unwrap_or("without a type");
    of_name(name, fault.text_of("localizedMessage").unwrap_or(""), detail)
}

/// Why a `PowerOnMultiVM_Task` that ended well started nothing, if it did not.
pub(crate) fn not_started(result: &Element<'_>) -> Option<Fault> {
    if result.xsi_type() != Some("ClusterPowerOnVmResult") {
        return None;
    }
    if let Some(refused) = result.child("notAttempted") {
        return Some(refused.child("fault").map_or_else(
            || Fault {
                kind: FaultKind::Other("without a type".to_owned()),
                said: "DRS did not start the VM and does not say why".to_owned(),
            },
            read_localized,
        ));
    }
    let only_recommended = result.child("attempted").is_none() && result.child("recommendations").is_some();
    only_recommended.then(|| Fault {
        kind: FaultKind::OnlyRecommended,
        said: "DRS only recommends where to start the VM: it is not fully automated".to_owned(),
    })
}

/// A fault by its type's name on the wire, with all the words that were said about it.
fn of_name(wire: &str, words: &str, detail: Option<&Element<'_>>) -> Fault {
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
fn about(detail: &Element<'_>, said: &mut Vec<String>) {
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
    fn fault_is_of_its_family() {
        for (wire, kind) in [
            // Thrown where a passthrough device does not come up: "Module 'DevicePowerOn' power on failed".
            ("GenericVmConfigFault", FaultKind::VmConfig),
            ("QuarantineModeFault", FaultKind::VmConfig),
            ("VirtualEthernetCardNotSupported", FaultKind::VmConfig),
            ("VmHostAffinityRuleViolation", FaultKind::VmConfig),
            ("CannotAccessFile", FaultKind::VmConfig),
            (
                "DisallowedOperationOnFailoverHost",
                FaultKind::DisallowedOperationOnFailoverHost,
            ),
            (
                "InsufficientMemoryResourcesFault",
                FaultKind::InsufficientResources,
            ),
            ("NumVirtualCpusExceedsLimit", FaultKind::InsufficientResources),
            ("VMotionLinkDown", FaultKind::Migration),
            ("InsufficientFailoverResourcesFault", FaultKind::ClusterWide),
            ("InsufficientStandbyMemoryResource", FaultKind::ClusterWide),
            ("NoActiveHostInCluster", FaultKind::ClusterWide),
            ("NotEnoughLicenses", FaultKind::ClusterWide),
            ("SystemError", FaultKind::Other("SystemError".to_owned())),
            ("NeverHeardOf", FaultKind::Other("NeverHeardOf".to_owned())),
        ] {
            let fault = of_name(wire, "words", None);
            assert_eq!(fault.kind, kind, "{wire}: {fault}");
            assert!(fault.said.contains("words"), "{wire}: {fault}");
        }
    }
}
