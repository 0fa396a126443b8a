//! Whose cordon is on the Node.

use super::{Decision, is_to_be_taken_over, write};
use crate::maintenance::clock::Now;
use crate::maintenance::episode::{CordonOwner, Episode, Phase, Record};
use crate::maintenance::observed::{CordonedBy, Observed, ObservedNode};
use crate::maintenance::policy::Policy;

/// Records a person's cordon on a node whose VM is off or boots although vCenter is not connected: an operator on the node may
/// remove the cordon before the connection is back, and then nothing would show whose it was.
pub(super) fn record_foreign_cordon(
    record: &Record,
    seen: &Observed,
    policy: &Policy,
    now: Now,
) -> Option<Decision> {
    let (Record::Episode(episode), Some(node)) = (record, &seen.node) else {
        return None;
    };
    let is_ours = episode.node_uid == node.uid && !is_to_be_taken_over(episode, seen.leadership, policy);
    let is_away = episode.phase.vm_is_off() || episode.phase == Phase::Rejoining;
    let is_foreign = is_foreign_cordon(&episode.cordon, node) && !node.overrides.skip;
    let aged_by = now.monotonic.since(seen.record_seen.at.monotonic);
    (is_ours && is_away && is_foreign).then(|| {
        write(Episode {
            cordon: CordonOwner::Theirs,
            ..episode.aged(aged_by)
        })
    })
}

/// The episode with our cordon, where only its copy is left, and that is older than the record that was removed from the Node: we
/// cordoned the Node after the copy was written.
pub(super) fn of_older_copy(episode: &Episode, node: &ObservedNode, seen: &Observed) -> Option<Episode> {
    let is_behind = !seen.is_record_on_node && episode.cordon == CordonOwner::NotYet;
    let is_ours = node.unschedulable && node.cordoned_by == CordonedBy::Haulout;
    (is_behind && is_ours).then(|| Episode {
        cordon: CordonOwner::Ours,
        ..episode.clone()
    })
}

/// Whether the Node is cordoned by another client, so that the episode must not uncordon it.
pub(super) fn is_foreign_cordon(cordon: &CordonOwner, node: &ObservedNode) -> bool {
    node.unschedulable
        && match (cordon, &node.cordoned_by) {
            (CordonOwner::NotYet, _) | (CordonOwner::Ours, CordonedBy::Other(_)) => true,
            (CordonOwner::Adopted(manager), CordonedBy::Other(by)) => manager.as_ref() != Some(by),
            (CordonOwner::Theirs | CordonOwner::Ours | CordonOwner::Adopted(_), _) => false,
        }
}
