//! A request that may not begin yet.

use jiff::Timestamp;

use super::{Decision, of_record};
use crate::maintenance::clock::Now;
use crate::maintenance::episode::Record;
use crate::maintenance::observed::Observed;
use crate::maintenance::policy::Policy;
use crate::maintenance::request::NotDue;
use crate::maintenance::waiting::WaitingOn;

/// The decision while the node's request may not begin: as without the request. So an episode that is still queued when the window
/// closes ends, and another begins when it opens again.
pub(super) fn before_its_time(
    record: &Record,
    seen: &Observed,
    policy: &Policy,
    now: Now,
) -> Option<Decision> {
    let request = seen.request.as_ref()?;
    let not_due = request.not_due(record.episode(), now.wall)?;
    let without = Observed {
        request: None,
        ..seen.clone()
    };
    let decision = of_record(record, &without, policy, now);
    if decision != Decision::Idle {
        return Some(decision);
    }
    let request = request.identity.clone();
    let (waiting_on, at) = match not_due {
        NotDue::NotBefore(at) => (WaitingOn::NotBefore { request, at }, Some(at)),
        NotDue::Window(at) => (WaitingOn::Window { request, at }, Some(at)),
        NotDue::InvalidWindow(why) => {
            let why = why.clone();
            (WaitingOn::InvalidWindow { request, why }, None)
        }
    };
    let left = |at: Timestamp| at.duration_since(now.wall).unsigned_abs();
    Some(Decision::Wait {
        waiting_on,
        recheck: at.map(|at| now.monotonic.after(left(at))),
    })
}
