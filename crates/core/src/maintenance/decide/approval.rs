//! Whether a person has approved a drain.

use super::Transition;
use super::context::{PhaseContext, PhaseStep};
use crate::maintenance::episode::{Episode, Record};
use crate::maintenance::kinds::PhaseKind;
use crate::maintenance::observed::{Observed, ObservedNode, ObservedVm};
use crate::maintenance::request::{Approval, Request};
use crate::maintenance::waiting::WaitingOn;

/// Whether the drain of this episode may begin. An approval of another maintenance does not count.
pub(super) fn is_approved(
    node: &ObservedNode,
    vm: &ObservedVm,
    request: Option<&Request>,
    episode: Option<&Episode>,
    require_approval: bool,
) -> bool {
    match (&node.overrides.approved, episode) {
        _ if !require_approval => true,
        (None, _) | (_, None) => false,
        (Some(Approval::Episode(id)), Some(episode)) => *id == episode.id,
        // The host asks for more than the request, or for something else.
        (Some(Approval::Request(uid)), Some(_)) => {
            !vm.host.is_leaving() && request.is_some_and(|request| request.identity.uid == *uid)
        }
    }
}

impl Transition {
    /// Whether the approval on the Node is used up or void: it was for the drain that begins, or for what has ended.
    pub fn ends_approval(&self, before: &Record, seen: &Observed) -> bool {
        let phase = |record: &Record| record.phase().map(|phase| phase.at_work().kind());
        let is_before = matches!(
            phase(before),
            Some(PhaseKind::Queued | PhaseKind::Drained | PhaseKind::Rejoining)
        );
        let begins = is_before && phase(&self.record) == Some(PhaseKind::Draining);
        let is_leaving = seen.vm.found().is_some_and(|vm| vm.host.is_leaving());
        let request = seen.request.as_ref().map(|request| &request.identity.uid);
        let fulfilled = self.fulfilled.as_ref().map(|request| &request.uid);
        match seen
            .node
            .as_ref()
            .and_then(|node| node.overrides.approved.as_ref())
        {
            Some(Approval::Request(uid)) => {
                let is_open = request == Some(uid) && fulfilled != Some(uid);
                begins && is_open && !is_leaving || self.ended.is_some() && !is_open
            }
            Some(Approval::Episode(_)) | None => begins || self.ended.is_some(),
        }
    }
}

impl PhaseContext<'_> {
    /// Waits for a person to approve the drain, where that is needed. Until then the node is in no queue.
    pub(super) fn await_approval(self) -> Option<PhaseStep> {
        let is_approved = is_approved(
            self.node,
            self.vm,
            self.seen.request.as_ref(),
            Some(self.episode),
            self.policy.require_approval,
        );
        (!is_approved).then(|| {
            let episode = self.episode.id.clone();
            PhaseStep::wait(WaitingOn::Approval { episode })
        })
    }
}
