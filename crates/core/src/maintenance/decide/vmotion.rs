//! VMs that vCenter can move by vMotion although they have a GPU: it gets time to do so before their nodes are drained.

use std::time::Duration;

use super::context::{PhaseContext, PhaseStep};
use crate::maintenance::host::HostState;
use crate::maintenance::observed::ObservedVm;
use crate::maintenance::policy::VmotionGrace;
use crate::maintenance::request::Request;
use crate::maintenance::waiting::WaitingOn;

/// How much longer a vMotion that is under way is awaited. vCenter copies some terabytes of memory in that time.
const UNDER_WAY: Duration = Duration::from_secs(1800);

/// How long the node waits before it is drained, so that vCenter can move its VM by vMotion. Zero where none is expected: a request
/// asks for more, or the host does not enter maintenance mode.
pub fn vmotion_grace(vm: &ObservedVm, request: Option<&Request>, grace: VmotionGrace) -> Duration {
    match (&vm.vmotion, &vm.host, request) {
        (Some(vmotion), HostState::Entering { .. }, None) => {
            let more = if vmotion.is_under_way {
                UNDER_WAY
            } else {
                Duration::ZERO
            };
            grace.limit() + more
        }
        (_, _, _) => Duration::ZERO,
    }
}

impl PhaseContext<'_> {
    /// Waits for a vMotion by vCenter, if one is expected.
    pub(super) fn await_vmotion(self) -> Option<PhaseStep> {
        let grace = vmotion_grace(self.vm, self.seen.request.as_ref(), self.policy.vmotion_grace);
        self.await_vmotion_for(grace)
    }

    /// Waits for a vMotion that is under way. It began although the node was drained meanwhile.
    pub(super) fn await_running_vmotion(self) -> Option<PhaseStep> {
        self.vm.vmotion.filter(|vmotion| vmotion.is_under_way)?;
        self.await_vmotion_for(UNDER_WAY + self.policy.vmotion_grace.limit())
    }

    fn await_vmotion_for(self, grace: Duration) -> Option<PhaseStep> {
        let device = self.vm.vmotion?.device;
        let deadline = self.phase_deadline(grace);
        let waiting_on = WaitingOn::Vmotion {
            device,
            until: deadline.shown,
        };
        (!self.is_past(deadline)).then(|| PhaseStep::wait_until(waiting_on, deadline.at))
    }
}
