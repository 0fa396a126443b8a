//! What this process knows of a node beyond what vCenter and Kubernetes report. Nothing here is needed after a restart.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::dry_run;
use super::slots::Slot;
use crate::ids::{EpisodeId, HostRef};
use crate::maintenance::clock::{Elapsed, Monotonic, Now};
use crate::maintenance::effect::EffectKind;
use crate::maintenance::episode::{Episode, InFlight, Record};
use crate::maintenance::observed::{DrainReport, EffectAttempt, GuestRequest, RecordAge};

/// The state of one node.
#[derive(Debug, Default)]
pub(super) struct NodeState {
    pub(super) attempts: BTreeMap<EffectKind, EffectAttempt>,
    pub(super) drain: Option<DrainReport>,
    pub(super) pods_revision: u64,
    pub(super) offered: Option<HostRef>,
    /// What stands on the Node, read when it was told: a picture is drawn far more often than a record is written.
    pub(super) on_node: Option<Record>,
    /// The record last seen on a Node that is gone since.
    pub(super) record_of_gone: Option<Record>,
    /// What the last episode asked of the guest, where it ended before the guest did.
    pub(super) asked_guest: Option<GuestRequest>,
    /// The record that stands there, and since when this process knows it.
    pub(super) observed_record: ObservedRecord,
    /// Exactly one VM was found for it.
    pub(super) has_known_vm: bool,
    /// Its place among those being drained.
    pub(super) slot: Slot,
    /// When its Node was last found to tell other UUIDs.
    pub(super) identity_changed_at: Option<Monotonic>,
    pub(super) dry_run: dry_run::DryRunOverlay,
}

/// Since when this process knows what stands on a Node.
#[derive(Debug, Default)]
pub(super) struct ObservedRecord {
    /// Which stay in which phase of which episode; `None` for a node in service.
    pub(super) phase: Option<(EpisodeId, &'static str, Timestamp)>,
    /// What the record says to have elapsed.
    pub(super) elapsed: (Elapsed, InFlight, Elapsed),
    pub(super) seen: Option<RecordAge>,
    /// What stood there before was seen while this process was acting.
    pub(super) is_watched: bool,
}

impl ObservedRecord {
    /// Takes the record that stands there now.
    pub(super) fn take(&mut self, record: &Record, now: Now, is_acting: bool) {
        let phase = record.episode().map(phase_of);
        let elapsed = record.episode().map_or_else(Default::default, |episode| {
            (episode.elapsed, episode.in_flight, episode.drained_for)
        });
        self.seen = Some(match self.seen {
            Some(seen) if self.phase == phase && self.elapsed == elapsed => seen,
            Some(seen) if self.phase == phase => RecordAge { at: now, ..seen },
            Some(_) | None => RecordAge {
                at: now,
                phase_at: now.monotonic,
                from_the_start: is_acting && self.is_watched,
            },
        });
        self.phase = phase;
        self.elapsed = elapsed;
        self.is_watched = is_acting;
    }

    /// Another may have done whatever was done so far.
    pub(super) fn forget_who(&mut self) {
        self.is_watched = false;
        if let Some(seen) = &mut self.seen {
            seen.from_the_start = false;
        }
    }
}

/// One stay of an episode in a phase. To be parked does not end it.
fn phase_of(episode: &Episode) -> (EpisodeId, &'static str, Timestamp) {
    let phase = episode.phase.at_work().name();
    (episode.id.clone(), phase, episode.worked_since())
}
