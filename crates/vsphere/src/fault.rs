//! Decodes faults.

use haulout_core::facts::vsphere::PowerState;

pub use haulout_core::facts::fault::{Failure, Fault, FaultKind};

use super::moref::Moref;
use super::text::for_people;
use super::xml::Element;

pub(crate) mod check_result;
mod families;

/// Whether the fault shows a dead session (`proto-notes/session.md`): directly, or because an object of
/// the session does not exist.
pub(crate) fn ends_session(fault: &Fault, about: &Moref) -> bool {
    fault.kind == FaultKind::NotAuthenticated
        || (fault.kind == FaultKind::ManagedObjectNotFound && about.is_of_session())
}

/// Decodes `soapenv:Fault`, and the current power state of an `InvalidPowerState`.
///
/// The type is the `xsi:type` of the only child of `detail`, otherwise the name of that child without
/// `Fault`. Without a detail only the message is known.
pub(crate) fn read_soap(fault: &Element<'_>) -> (Fault, Option<PowerState>) {
    // In SOAP 1.1 `faultstring` and `detail` have no namespace, but some servers let them inherit one.
    let text = fault.child_of_any_space("faultstring").map_or("", Element::text);
    let detail = fault.child_of_any_space("detail");
    let Some(detail) = detail.and_then(|detail| detail.children().next()) else {
        return (of_name("without a type", text, None), None);
    };
    let name = detail
        .xsi_type()
        .unwrap_or_else(|| detail.name().strip_suffix("Fault").unwrap_or(detail.name()));
    let existing = detail.text_of("existingState").and_then(super::decode::power);
    (of_name(name, text, Some(detail)), existing)
}

/// Decodes a `LocalizedMethodFault`: the `error` of a task, the `fault` of a property, a refused
/// placement.
pub(crate) fn read_localized(fault: &Element<'_>) -> Fault {
    let detail = fault.child("fault");
    let name = detail.and_then(Element::xsi_type).unwrap_or("without a type");
    of_name(name, fault.text_of("localizedMessage").unwrap_or(""), detail)
}

/// Why a successful `PowerOnMultiVM_Task` started nothing, if so.
pub(crate) fn not_started(result: &Element<'_>) -> Option<Fault> {
    if result.xsi_type() != Some("ClusterPowerOnVmResult") {
        return None;
    }
    if let Some(refused) = result.child("notAttempted") {
        return Some(refused.child("fault").map_or_else(
            || {
                let kind = FaultKind::Other("without a type".to_owned());
                Fault::new(kind, "DRS did not start the VM and gave no reason")
            },
            read_localized,
        ));
    }
    let only_recommended = result.child("attempted").is_none() && result.child("recommendations").is_some();
    let why = "DRS only recommends where to start the VM: it is not fully automated";
    only_recommended.then(|| Fault::new(FaultKind::OnlyRecommended, why))
}

/// A fault by its type name, with all its messages.
fn of_name(wire: &str, text: &str, detail: Option<&Element<'_>>) -> Fault {
    let kind = kind(wire);
    let mut parts = Vec::new();
    if !matches!(&kind, FaultKind::Other(_)) && format!("{kind:?}") != wire {
        parts.push(format!("({})", for_people(wire)));
    }
    parts.push(for_people(text));
    if let Some(detail) = detail {
        add_details(detail, &mut parts);
    }
    let mut seen = std::collections::BTreeSet::new();
    parts.retain(|part| !part.is_empty() && seen.insert(part.clone()));
    if parts.is_empty() {
        parts.push("vCenter gave no message".to_owned());
    }
    Fault::new(kind, parts.join(" "))
}

/// Adds the fields of a fault: messages, missing privilege, object, states, reason.
fn add_details(detail: &Element<'_>, parts: &mut Vec<String>) {
    for message in detail.children_named("faultMessage") {
        parts.push(for_people(message.text_of("message").unwrap_or("")));
    }
    for (field, label) in [
        ("privilegeId", "privilege"),
        ("object", "on"),
        ("obj", "object"),
        ("requestedState", "requested"),
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
            parts.push(format!("[{label} {text}]"));
        }
    }
    let cause = detail.child("faultCause");
    if let Some(cause) = cause.filter(|cause| cause.child("fault").is_some()) {
        parts.push(format!("because of {}", read_localized(cause)));
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
        "FileLocked" | "CannotAccessFile" | "FileFault" => FaultKind::FileLocked,
        "GenericVmConfigFault" => FaultKind::GenericVmConfigFault,
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
            // Thrown if a passthrough device fails: "Module 'DevicePowerOn' power on failed".
            ("GenericVmConfigFault", FaultKind::GenericVmConfigFault),
            ("QuarantineModeFault", FaultKind::VmConfig),
            ("VirtualEthernetCardNotSupported", FaultKind::VmConfig),
            ("VmHostAffinityRuleViolation", FaultKind::VmConfig),
            ("CannotAccessFile", FaultKind::FileLocked),
            ("FileLocked", FaultKind::FileLocked),
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
            assert!(fault.message.contains("words"), "{wire}: {fault}");
        }
    }
}
