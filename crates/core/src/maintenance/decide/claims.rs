//! Other Nodes that match the VM of a node: a machine that is registered under another name now, or a kubelet that lies.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::context::{PhaseContext, PhaseStep};
use crate::maintenance::observed::{ObservedNode, ObservedVm, OtherClaimant};
use crate::maintenance::waiting::{ParkReason, WaitingOn};

/// How much earlier than the request to the guest another Node may seem to have become Ready: its kubelet has its own clock.
const CLOCK_DIFFERENCE: SignedDuration = SignedDuration::from_secs(60);

/// How long a Node may look Ready after its machine was registered under another name: kube-controller-manager misses its kubelet
/// after 50 seconds (`--node-monitor-grace-period`).
const LOOKS_READY: Duration = Duration::from_secs(60);

/// Why the VM of `node` is not stopped while it is on: the Node is not Ready and another one matches the VM, so the pods of the
/// machine may be there. A Node that is Ready keeps its VM whatever others report.
///
/// A guest that was asked to shut down at `asked` stops its kubelet first. Then only a Node counts that became Ready since, as after a
/// restart under another name.
pub fn dead_node(node: &ObservedNode, vm: &ObservedVm, asked: Option<Timestamp>) -> Option<ParkReason> {
    if node.ready {
        return None;
    }
    let may_have_it = |other: &&OtherClaimant| {
        asked.is_none_or(|asked| {
            let is_later = |since: Timestamp| asked.duration_since(since) <= CLOCK_DIFFERENCE;
            other.ready && other.ready_since.is_none_or(is_later)
        })
    };
    let others = vm.other_claimants.iter().filter(may_have_it);
    let nodes: Vec<_> = others.map(|other| other.node.clone()).collect();
    (!nodes.is_empty()).then_some(ParkReason::NodeNotReady { nodes })
}

impl PhaseContext<'_> {
    /// Parks the episode, VM on, if the Node may be an earlier name of the machine.
    pub(super) fn park_if_dead(self) -> Option<PhaseStep> {
        let asked = self.in_flight().guest_shutdown.map(|asked| asked.since);
        dead_node(self.node, self.vm, asked).map(PhaseStep::park)
    }

    /// Waits, before the guest is asked, while another Ready Node with the same VM is so new that this one may only look Ready. Each
    /// Node is waited for once, so a kubelet that lies delays a maintenance by a minute.
    pub(super) fn until_ready_counts(self) -> Option<PhaseStep> {
        let left = self
            .vm
            .other_claimants
            .iter()
            .filter(|other| other.ready)
            .filter_map(|other| {
                let age = self.now.wall.duration_since(other.registered_at).unsigned_abs();
                LOOKS_READY.checked_sub(age).filter(|left| !left.is_zero())
            });
        let waiting_on = WaitingOn::NodeReady {
            missing: "whether it stays Ready: another Node with its VM was registered a moment ago",
        };
        let at = self.now.monotonic.after(left.max()?);
        Some(PhaseStep::wait_until(waiting_on, at))
    }
}
