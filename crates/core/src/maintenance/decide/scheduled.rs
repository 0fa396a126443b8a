//! A request that may not begin yet.

use jiff::Timestamp;

use super::{Decision, of_record};
use crate::maintenance::clock::Now;
use crate::maintenance::episode::{EpisodeResult, Record};
use crate::maintenance::observed::{Observed, PowerState};
use crate::maintenance::policy::Policy;
use crate::maintenance::request::{NotDue, Request};

/// The decision while the node's request may not begin: as without the request. But an episode that is still queued for it when its
/// window closes stays until the window opens again: it would begin anew then, and a person would have to approve it again.
pub(super) fn before_its_time(
    record: &Record,
    seen: &Observed,
    policy: &Policy,
    now: Now,
) -> Option<Decision> {
    let request = seen.request.as_ref()?;
    let not_due = request.not_due(record.episode(), now.wall)?;
    let waiting_on = request.awaits(record.episode(), now.wall)?;
    let without = Observed {
        request: None,
        ..seen.clone()
    };
    let decision = of_record(record, &without, policy, now, &|_, _| {});
    let at = match not_due {
        NotDue::NotBefore(at) | NotDue::Window(at) => Some(at),
        NotDue::InvalidWindow(_) => None,
    };
    let stays_queued = at.is_some() && is_end_of_queued(&decision, record, seen, request);
    if decision != Decision::Idle && !stays_queued {
        return Some(decision);
    }
    let left = |at: Timestamp| at.duration_since(now.wall).unsigned_abs();
    Some(Decision::Wait {
        waiting_on,
        recheck: at.map(|at| now.monotonic.after(left(at))),
    })
}

/// Whether the decision ends the episode that is queued for `request`, because nothing else asks for it. One whose VM is elsewhere
/// by now, or off, begins anew.
fn is_end_of_queued(decision: &Decision, record: &Record, seen: &Observed, request: &Request) -> bool {
    let is_cancel =
        matches!(decision, Decision::Write(transition) if transition.ended == Some(EpisodeResult::Cancelled));
    let vm = seen.vm.found();
    let is_as_it_was = vm.is_some_and(|vm| vm.power == Some(PowerState::On) && vm.host.is_out());
    is_cancel
        && is_as_it_was
        && record
            .episode()
            .is_some_and(|episode| request.is_queued_in(episode))
}
