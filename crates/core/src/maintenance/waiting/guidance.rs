//! What an operator can do about a wait: its deadline, and the next step.

use jiff::Timestamp;

use super::sentences::list;
use super::{ParkReason, WaitingOn};
use crate::ids::NodeName;
use crate::keys::{HOOK_SUFFIX, SKIP};
use crate::maintenance::drain::{PendingEviction, PendingReason};
use crate::maintenance::policy::DrainTimeoutAction;
use crate::maintenance::request::RequestIdentity;

/// The end of a wait, whatever happens until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitDeadline {
    /// When it is.
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

impl WaitingOn {
    /// When the wait ends by itself, and what happens then.
    pub fn deadline(&self) -> Option<WaitDeadline> {
        let of = |at: Timestamp, then| Some(WaitDeadline { at, then });
        match self {
            Self::Pods {
                timeout: Some(timeout),
                ..
            } => match timeout.action {
                DrainTimeoutAction::PowerOff => {
                    of(timeout.at, "the VM is shut down with the pods that are left")
                }
                DrainTimeoutAction::Hold => of(timeout.at, "a person is needed"),
            },
            Self::Volumes { until, .. } => of(*until, "the VM is shut down although volumes are attached"),
            Self::GuestShutdown { until } => of(*until, "power is cut"),
            Self::GuestShutdownAfterCancel { until } => of(*until, "the guest is taken for running"),
            Self::Vmotion { until, .. } => of(*until, "the node is drained"),
            Self::Hook {
                until: Some(until), ..
            } => of(*until, "the step is made"),
            Self::HostSettling { until, .. } => of(*until, "the host is used"),
            Self::Takeover { until } => of(*until, "the first effect begins"),
            Self::MaintenanceRetry { until, .. } => of(*until, "the node is uncordoned"),
            Self::WritePace { at } => of(*at, "the Node is written again"),
            Self::PowerOnPause { at, .. } => of(*at, "the VM is powered on"),
            Self::Retry { at, .. } => of(*at, "it is tried again"),
            Self::NotBefore { at, .. } | Self::Window { at, .. } => of(*at, "the request may begin"),
            Self::Vcenter { .. }
            | Self::Kubernetes { .. }
            | Self::NodeObject
            | Self::OtherRelease { .. }
            | Self::VmLookup
            | Self::Slot { .. }
            | Self::Pods { timeout: None, .. }
            | Self::DrainRound
            | Self::DrainHeld(_)
            | Self::Task(_)
            | Self::HostVisible { .. }
            | Self::HostExit { .. }
            | Self::HostEntry { .. }
            | Self::Request { .. }
            | Self::InvalidWindow { .. }
            | Self::Approval { .. }
            | Self::Hook { until: None, .. }
            | Self::Skip
            | Self::PoweredOn { .. }
            | Self::AlreadyThere { .. }
            | Self::Place { .. }
            | Self::Survey
            | Self::Question(_)
            | Self::PowerState
            | Self::NodeReady { .. }
            | Self::Gpus { .. }
            | Self::MachineGuards { .. }
            | Self::Parked(_) => None,
        }
    }

    /// What a person can do about it on `node`; `None` where it ends by itself or has its reason elsewhere.
    pub fn next_step(&self, node: &NodeName) -> Option<NextStep> {
        let command = |text: String| Some(NextStep::Command(text));
        let words = |text: &str| Some(NextStep::Words(text.to_owned()));
        match self {
            Self::Vcenter { .. } => command("kubectl haulout check".to_owned()),
            Self::Pods { left, .. } | Self::DrainHeld(left) => Some(about_pods(left, node)),
            Self::Volumes { .. } => command(format!("kubectl get volumeattachments | grep {node}")),
            Self::Request { request, .. } | Self::AlreadyThere { request, .. } => {
                command(delete(request, node))
            }
            Self::InvalidWindow { request, .. } => {
                command(format!("kubectl edit nodemaintenance {}", request.name))
            }
            Self::Approval { .. } => command(format!("kubectl haulout approve {node}")),
            Self::Hook { point, names, .. } => {
                let name = names.first()?;
                command(format!(
                    "kubectl annotate node {node} {point}{HOOK_SUFFIX}/{name}-"
                ))
            }
            Self::Skip => command(format!("kubectl annotate node {node} {SKIP}-")),
            Self::PoweredOn { .. } => words("power the VM on in vCenter, or delete the request"),
            Self::Question(_) => words("answer the question in vCenter, on the page of the VM"),
            Self::HostEntry { .. } => words(
                "look in vCenter which VMs are still on the host; if only this one is, enter maintenance mode again without \
                 \"Move powered-off VMs\", or free a device on another host",
            ),
            Self::HostExit { .. } => {
                words("when the work on the host is done, take it out of maintenance mode")
            }
            Self::HostVisible { .. } => words("look in vCenter why the host does not respond"),
            Self::Gpus { .. } => command(format!("kubectl haulout accept {node}")),
            Self::NodeReady { .. } => command(format!("kubectl describe node {node}")),
            Self::NodeObject | Self::OtherRelease { .. } | Self::Retry { .. } => {
                command(format!("kubectl haulout status {node}"))
            }
            Self::Parked(reason) => Some(about_parked(reason, node)),
            Self::Kubernetes { .. }
            | Self::Takeover { .. }
            | Self::MaintenanceRetry { .. }
            | Self::PowerOnPause { .. }
            | Self::WritePace { .. }
            | Self::VmLookup
            | Self::Vmotion { .. }
            | Self::Slot { .. }
            | Self::DrainRound
            | Self::GuestShutdown { .. }
            | Self::GuestShutdownAfterCancel { .. }
            | Self::Task(_)
            | Self::HostSettling { .. }
            | Self::NotBefore { .. }
            | Self::Window { .. }
            | Self::Place { .. }
            | Self::Survey
            | Self::PowerState
            | Self::MachineGuards { .. } => None,
        }
    }
}

fn delete(request: &RequestIdentity, node: &NodeName) -> String {
    if request.foreign.is_some() {
        return format!("kubectl haulout status {node}");
    }
    format!("kubectl haulout resume {node} --request {}", request.name)
}

/// The budget of the first pod that one holds, else the pods of the node.
fn about_pods(left: &[PendingEviction], node: &NodeName) -> NextStep {
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
    NextStep::Command(match held {
        Some((namespace, budget)) => format!("kubectl -n {namespace} describe poddisruptionbudget {budget}"),
        None => format!("kubectl get pods -A -o wide --field-selector spec.nodeName={node}"),
    })
}

fn about_parked(reason: &ParkReason, node: &NodeName) -> NextStep {
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
    use crate::maintenance::kinds::WaitKind;
    use crate::maintenance::waiting::DrainTimeout;

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
