//! Whose cordon is on the Node.

use super::{Decision, is_to_be_taken_over, write};
use crate::maintenance::clock::Now;
use crate::maintenance::episode::{CordonOwner, Episode, Phase, Record};
use crate::maintenance::observed::{CordonedBy, Observed, ObservedNode};
use crate::maintenance::policy::Policy;

/// Records a person's cordon although vCenter is not connected.
pub(super) fn record_without_vcenter(
    record: &Record,
    seen: &Observed,
    policy: &Policy,
    now: Now,
) -> Option<Decision> {
    let (Record::Episode(episode), Some(node)) = (record, &seen.node) else {
        return None;
    };
    let is_ours = episode.node_uid == node.uid && !is_to_be_taken_over(episode, seen.leadership, policy);
    if !is_ours || node.overrides.skip {
        return None;
    }
    let aged_by = now.monotonic.since(seen.record_seen.at.monotonic);
    record_foreign_cordon(&episode.aged(aged_by), node)
}

/// Records a person's cordon in the place of ours as soon as it is seen. Later nothing may show any more whose it was: a program on the
/// node removes it, or the Node is put back from a copy.
pub(super) fn record_foreign_cordon(episode: &Episode, node: &ObservedNode) -> Option<Decision> {
    // A node that is shut down is drained again, and that records it, once vCenter is connected: pods may have come in between the two
    // cordons, and only that ours is recorded and another one is there shows it.
    let is_shut_down = matches!(episode.phase.at_work(), Phase::ShuttingDown(_));
    let says_ours = episode.cordon_is_ours() && !is_shut_down;
    (says_ours && is_unrecorded_foreign_cordon(&episode.cordon, node)).then(|| {
        write(Episode {
            cordon: CordonOwner::Theirs,
            // Only removals of this cordon count from now on.
            recordoned: 0,
            ..episode.clone()
        })
    })
}

/// The episode with our cordon, where its record was removed from the Node, and the copy is from before we cordoned. The field manager
/// shows that the cordon is ours.
pub(super) fn of_older_copy(episode: &Episode, node: &ObservedNode, seen: &Observed) -> Option<Episode> {
    let is_behind = !seen.is_record_on_node && episode.cordon == CordonOwner::NotYet;
    let is_ours = node.unschedulable && node.cordoned_by == CordonedBy::Haulout;
    (is_behind && is_ours).then(|| Episode {
        cordon: CordonOwner::Ours,
        ..episode.clone()
    })
}

/// Whether the Node is cordoned by another client, and the record does not say so yet.
pub(super) fn is_unrecorded_foreign_cordon(cordon: &CordonOwner, node: &ObservedNode) -> bool {
    node.unschedulable
        && match (cordon, &node.cordoned_by) {
            (CordonOwner::NotYet, _) | (CordonOwner::Ours, CordonedBy::Other(_)) => true,
            (CordonOwner::Adopted(manager), CordonedBy::Other(by)) => manager.as_ref() != Some(by),
            (CordonOwner::Theirs | CordonOwner::Ours | CordonOwner::Adopted(_), _) => false,
        }
}
