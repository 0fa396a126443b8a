//! What an operator can do about a wait: its deadline, and the next step.

use std::fmt::Display;

use jiff::Timestamp;

use super::ParkReason;
use super::sentences::list;
use crate::ids::NodeName;
use crate::maintenance::drain::PendingEviction;
use crate::maintenance::request_identity::RequestIdentity;

/// The end of a wait, whatever happens until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitDeadline {
    pub at: Timestamp,
    /// What happens then.
    pub then: &'static str,
}

/// The program of all steps that are commands.
const KUBECTL: &str = "kubectl ";

/// Whether the next step is a command to copy. Otherwise it is a step outside of a shell.
pub fn is_command(step: &str) -> bool {
    step.starts_with(KUBECTL)
}

/// The deadline of a wait that ends `at` this time.
pub(super) fn at(at: Timestamp, then: &'static str) -> Option<WaitDeadline> {
    Some(WaitDeadline { at, then })
}

/// A command, by the arguments of kubectl.
pub(super) fn kubectl(arguments: impl Display) -> Option<String> {
    Some(format!("{KUBECTL}{arguments}"))
}

pub(super) fn words(text: &str) -> Option<String> {
    Some(text.to_owned())
}

pub(super) fn delete(request: &RequestIdentity, node: &NodeName) -> Option<String> {
    kubectl(if request.foreign.is_some() {
        format!("haulout status {node}")
    } else {
        format!("haulout resume {node} --request {}", request.name)
    })
}

/// The budget of the first pod that one holds, else the pods of the node.
pub(super) fn about_pods(left: &[PendingEviction], node: &NodeName) -> Option<String> {
    let held = left.iter().find_map(|pod| {
        let (namespace, names) = pod.budgets()?;
        Some((namespace, names.first()?))
    });
    kubectl(match held {
        Some((namespace, budget)) => format!("-n {namespace} describe poddisruptionbudget {budget}"),
        None => format!("get pods -A -o wide --field-selector spec.nodeName={node}"),
    })
}

pub(super) fn about_parked(reason: &ParkReason, node: &NodeName) -> Option<String> {
    match reason {
        ParkReason::Uncordoned => kubectl(format!("cordon {node}")),
        ParkReason::VmSuspended => words("resume the VM in vCenter"),
        ParkReason::PowerLost { .. } => words("find out in vCenter why the VM goes off, and power it on"),
        ParkReason::VmOutOfScope => {
            words("add the folder of the VM to VCENTER_SCOPE, if it is of this cluster")
        }
        ParkReason::VmAmbiguous { .. } => words("give each VM a BIOS UUID of its own in vCenter"),
        ParkReason::VmShared { .. } => {
            words("delete the Node that is no machine any more, or correct the UUID that it reports")
        }
        ParkReason::VmHeldByDeadNode { node, is_deleted } => Some(if *is_deleted {
            format!(
                "if {node} was this machine: kubectl delete nodemaintenance NAME, with the open one of {node}"
            )
        } else {
            format!("if {node} was this machine: kubectl delete node {node}")
        }),
        ParkReason::NodeNotReady { nodes } => Some(format!(
            "if {node} is {} now: kubectl delete node {node}; else make it Ready",
            list(nodes)
        )),
        ParkReason::PoweredOn { request } => kubectl(format!("haulout resume {node} --request {request}")),
        ParkReason::NoUuid
        | ParkReason::VmMissing
        | ParkReason::VmReplaced { .. }
        | ParkReason::AnotherNode
        | ParkReason::UnreadableRecord { .. }
        | ParkReason::Overdue { .. } => kubectl(format!("haulout status {node}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintenance::drain::PendingReason;
    use crate::maintenance::policy::DrainTimeoutAction;
    use crate::maintenance::waiting::{DrainTimeout, WaitKind, WaitingOn};

    fn held() -> Vec<PendingEviction> {
        vec![PendingEviction {
            name: "ml/train-0".to_owned(),
            why: PendingReason::Budget {
                names: vec!["train".to_owned()],
                message: String::new(),
            },
        }]
    }

    #[test]
    fn drain_says_when_power_is_cut_and_which_budget_to_look_at() {
        let at: Timestamp = "2026-11-23T03:24:00Z".parse().unwrap();
        let of = |action| WaitingOn::Pods {
            left: held(),
            timeout: Some(DrainTimeout { at, action }),
        };
        let cut = of(DrainTimeoutAction::PowerOff);
        let deadline = cut.deadline().unwrap();
        assert_eq!(
            (deadline.at, deadline.then),
            (at, "the VM is shut down with the pods that are left")
        );
        assert_eq!(
            of(DrainTimeoutAction::Hold).deadline().unwrap().then,
            "a person is needed"
        );
        let step = cut.next_step(&NodeName::new("gpu-1")).unwrap();
        assert_eq!(step, "kubectl -n ml describe poddisruptionbudget train");
    }

    #[test]
    fn every_runbook_exists_and_everything_for_a_person_has_one() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/runbooks");
        for kind in WaitKind::ALL {
            match kind.runbook() {
                Some(name) => assert!(docs.join(format!("{name}.md")).is_file(), "{name}"),
                None => assert!(!kind.needs_person(), "{kind}"),
            }
        }
    }
}
