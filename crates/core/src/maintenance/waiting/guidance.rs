//! What an operator can do about a wait: its deadline, and the next step.

use jiff::Timestamp;

use super::ParkReason;
use super::sentences::list;
use crate::ids::NodeName;
use crate::maintenance::drain::{PendingEviction, PendingReason};
use crate::maintenance::request::RequestIdentity;

/// The end of a wait, whatever happens until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitDeadline {
    pub at: Timestamp,
    /// What happens then.
    pub then: &'static str,
}

/// What a person can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// A command to copy.
    Command(String),
    /// A step outside of a shell.
    Words(String),
}

impl NextStep {
    /// The command or the words.
    pub fn text(&self) -> &str {
        match self {
            Self::Command(text) | Self::Words(text) => text,
        }
    }
}

/// The deadline of a wait that ends `at` this time.
pub(super) fn at(at: Timestamp, then: &'static str) -> Option<WaitDeadline> {
    Some(WaitDeadline { at, then })
}

pub(super) fn command(text: impl Into<String>) -> Option<NextStep> {
    Some(NextStep::Command(text.into()))
}

pub(super) fn words(text: &str) -> Option<NextStep> {
    Some(NextStep::Words(text.to_owned()))
}

pub(super) fn delete(request: &RequestIdentity, node: &NodeName) -> Option<NextStep> {
    command(if request.foreign.is_some() {
        format!("kubectl haulout status {node}")
    } else {
        format!("kubectl haulout resume {node} --request {}", request.name)
    })
}

/// The budget of the first pod that one holds, else the pods of the node.
pub(super) fn about_pods(left: &[PendingEviction], node: &NodeName) -> Option<NextStep> {
    let held = left.iter().find_map(|pod| match &pod.why {
        PendingReason::Budget { names, .. } => {
            let (namespace, _) = pod.name.split_once('/')?;
            Some((namespace, names.first()?))
        }
        PendingReason::Leaving
        | PendingReason::Migrating { .. }
        | PendingReason::Refused { .. }
        | PendingReason::NotReached
        | PendingReason::Last
        | PendingReason::Waits { .. } => None,
    });
    command(match held {
        Some((namespace, budget)) => format!("kubectl -n {namespace} describe poddisruptionbudget {budget}"),
        None => format!("kubectl get pods -A -o wide --field-selector spec.nodeName={node}"),
    })
}

pub(super) fn about_parked(reason: &ParkReason, node: &NodeName) -> NextStep {
    let words = |text: &str| NextStep::Words(text.to_owned());
    match reason {
        ParkReason::Uncordoned => NextStep::Command(format!("kubectl cordon {node}")),
        ParkReason::VmSuspended => words("resume the VM in vCenter"),
        ParkReason::PowerLost { .. } => words("find out in vCenter why the VM goes off, and power it on"),
        ParkReason::VmOutOfScope => {
            words("add the folder of the VM to VCENTER_SCOPE, if it is of this cluster")
        }
        ParkReason::VmAmbiguous { .. } => words("give each VM a BIOS UUID of its own in vCenter"),
        ParkReason::VmShared { .. } => {
            words("delete the Node that is no machine any more, or correct the UUID that it reports")
        }
        ParkReason::VmHeldByDeadNode { node, is_deleted } => NextStep::Words(if *is_deleted {
            format!(
                "if {node} was this machine: kubectl delete nodemaintenance NAME, with the open one of {node}"
            )
        } else {
            format!("if {node} was this machine: kubectl delete node {node}")
        }),
        ParkReason::NodeNotReady { nodes } => NextStep::Words(format!(
            "if {node} is {} now: kubectl delete node {node}; else make it Ready",
            list(nodes)
        )),
        ParkReason::PoweredOn { request } => {
            NextStep::Command(format!("kubectl haulout resume {node} --request {request}"))
        }
        ParkReason::NoUuid
        | ParkReason::VmMissing
        | ParkReason::VmReplaced { .. }
        | ParkReason::AnotherNode
        | ParkReason::UnreadableRecord { .. }
        | ParkReason::Overdue { .. } => NextStep::Command(format!("kubectl haulout status {node}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        assert_eq!(step.text(), "kubectl -n ml describe poddisruptionbudget train");
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
