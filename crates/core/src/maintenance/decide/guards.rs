//! The guards of an episode.

use std::sync::Arc;
use std::time::Duration;

use super::{Decision, write};
use crate::maintenance::clock::Now;
use crate::maintenance::effect::{Effect, EffectKind};
use crate::maintenance::episode::{Episode, Phase, Record};
use crate::maintenance::node_guard::{NodeGuard, guards_after, has_out_of_service_taint, is_wanted};
use crate::maintenance::observed::{Observed, ObservedNode, RetryAdvice, Strategy};
use crate::maintenance::policy::Policy;

/// How often the guards of a node whose VM is off are looked at: somebody may have removed one.
pub(super) const GUARDS_LOOKED_AT_EVERY: Duration = Duration::from_secs(180);

/// `decision`, or the write of the guards that comes first while the VM is off.
///
/// No power-on is asked for under the out-of-service taint, which would evict pods and detach volumes of the node that boots. It is
/// set again where the power-on was refused. A guard that somebody removed is set again after a while.
pub(super) fn guards_first(
    decision: Decision,
    episode: &Episode,
    node: &ObservedNode,
    seen: &Observed,
    now: Now,
) -> Decision {
    let asks = matches!(
        decision,
        Decision::Act {
            effect: Effect::PowerOn { .. },
            ..
        }
    );
    if asks && has_out_of_service_taint(episode, node) {
        return write(Episode {
            power_on_due: true,
            ..episode.clone()
        });
    }
    let Decision::Wait { waiting_on, recheck } = decision else {
        return decision;
    };
    if episode.power_on_due && !may_power_on(seen) {
        return write(Episode {
            power_on_due: false,
            ..episode.clone()
        });
    }
    let is_missing = |guard| !node.guards.contains_key(guard);
    let is_away = episode.phase.vm_is_off() || *episode.phase.at_work() == Phase::Rejoining;
    if !is_away || !episode.guards.iter().any(is_missing) {
        return Decision::Wait { waiting_on, recheck };
    }
    let at = seen.record_seen.at.monotonic.after(GUARDS_LOOKED_AT_EVERY);
    if now.monotonic >= at {
        return write(episode.clone());
    }
    Decision::Wait {
        waiting_on,
        recheck: recheck.into_iter().chain([at]).min(),
    }
}

/// Whether a power-on that was asked for may still take effect, also one of an earlier process.
fn may_power_on(seen: &Observed) -> bool {
    let attempt = seen.attempts.get(&EffectKind::PowerOn);
    let refusal = attempt.and_then(|attempt| attempt.outcome.refusal());
    refusal.is_none_or(|refusal| refusal.advice == RetryAdvice::Unanswered)
}

/// Whether this write takes the node out of service or begins another drain. Guards that were removed because the node was about to
/// be back have to be set again.
fn needs_machine_guards(before: &Record, next: &Episode) -> bool {
    let was = before.phase().map(Phase::at_work);
    match next.phase.at_work() {
        Phase::Queued => false,
        Phase::Draining => was != Some(&Phase::Draining),
        Phase::Drained
        | Phase::ShuttingDown(_)
        | Phase::Relocating { .. }
        | Phase::AwaitingHost
        | Phase::PoweringOn { .. }
        | Phase::Rejoining
        | Phase::Parked { .. } => matches!(was, None | Some(Phase::Queued)),
    }
}

/// The decision, or first a write that removes the guards which the settings do not want any more: in some phases, nothing else is
/// written for hours.
pub(super) fn unless_unwanted(decision: Decision, episode: &Episode, policy: &Policy) -> Decision {
    let is_record = matches!(decision, Decision::Write(_));
    let is_wanted = |guard: &NodeGuard| is_wanted(*guard, episode, &policy.guards);
    if is_record || episode.guards.iter().all(is_wanted) {
        return decision;
    }
    write(episode.clone())
}

/// Records the guards that the episode owns after this write.
pub(super) fn with_guards(
    mut decision: Decision,
    before: &Record,
    seen: &Observed,
    policy: &Policy,
) -> Decision {
    let is_takeover = |next: &Episode| {
        let before = before.episode().map(|before| (before.epoch, &before.release));
        before.is_some_and(|before| before != (next.epoch, &next.release))
    };
    if let Decision::Write(transition) = &mut decision
        && let Record::Episode(next) = &mut transition.record
        && let Some(node) = &seen.node
        // A takeover changes nothing else.
        && !is_takeover(next)
    {
        let guards = guards_after(before, next, node, &policy.guards);
        if next.guards != guards {
            Arc::make_mut(next).guards = guards;
        }
        // The Node may be deleted while the VM is off or goes off.
        let waits_for_home = node.overrides.strategy == Strategy::Wait;
        if next.waits_for_home != waits_for_home {
            Arc::make_mut(next).waits_for_home = waits_for_home;
        }
        // A copy of the record may be from before the guards were removed.
        let is_from_copy = !seen.is_record_on_node && *next.phase.at_work() != Phase::Queued;
        if policy.guards.machines && (is_from_copy || needs_machine_guards(before, next)) {
            Arc::make_mut(next).machine_guards.is_due = true;
        }
    }
    decision
}
