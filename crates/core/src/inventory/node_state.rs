//! What this process knows of a node beyond what vCenter and Kubernetes report. A restart loses it, and only the limit of power-offs
//! per hour is weaker then.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::dry_run;
use super::last_gpus::LastGpus;
use super::power_offs::PowerOffs;
use super::slots::Slot;
use crate::ids::{EpisodeId, HostRef};
use crate::maintenance::clock::{Elapsed, Monotonic, Now};
use crate::maintenance::effect::EffectKind;
use crate::maintenance::episode::{Episode, InFlight, Record};
use crate::maintenance::machine_guard::MachineGuardReport;
use crate::maintenance::observed::{DrainReport, EffectAttempt, LATE_POWER_OFF_WINDOW, RecordAge};
use crate::maintenance::record::LastEpisode;
use crate::maintenance::volumes::VolumeReport;

#[derive(Clone, Debug, Default)]
pub(super) struct NodeState {
    pub(super) attempts: BTreeMap<EffectKind, EffectAttempt>,
    pub(super) drain: Option<DrainReport>,
    pub(super) volumes: Option<VolumeReport>,
    pub(super) pods_revision: u64,
    pub(super) machine_guards: Option<MachineGuardReport>,
    pub(super) offered: Option<HostRef>,
    /// The record on the Node, parsed once per update, because snapshots are built far more often.
    pub(super) on_node: Option<Record>,
    /// The last episode that was on the Node, unless the Node has named it as ended. Its copy may be older.
    pub(super) last_on_node: Option<Arc<Episode>>,
    /// The ended episode that the Node names, parsed once per update as well.
    pub(super) last_episode: Option<Arc<LastEpisode>>,
    /// The last record of a deleted Node.
    pub(super) record_of_gone: Option<Record>,
    /// The group of a deleted Node for the limits.
    pub(super) group_of_gone: Option<String>,
    /// When the last episode requested a guest shutdown that had not taken effect at its end.
    pub(super) asked_guest: Option<Timestamp>,
    /// When the last episode ended that its Node has named so far. It is kept when the annotation is removed or goes back.
    pub(super) last_ended: Option<Timestamp>,
    /// Until when the VM may be off because of the last episode: [`LATE_POWER_OFF_WINDOW`] after this process has read of its end, in
    /// elapsed time, so that a stepped clock neither opens nor closes the window.
    pub(super) late_power_off_until: Option<Monotonic>,
    /// When this process first saw the record.
    pub(super) observed_record: ObservedRecord,
    /// The node has been bound to a VM.
    pub(super) has_known_vm: bool,
    pub(super) slot: Slot,
    /// When the UUIDs of its Node last changed.
    pub(super) identity_changed_at: Option<Monotonic>,
    pub(super) dry_run: dry_run::DryRunOverlay,
    pub(super) gpus: LastGpus,
    pub(super) power_offs: PowerOffs,
}

/// How far the clock of the process that ended an episode may differ from ours, plus [`LATE_POWER_OFF_WINDOW`]. Its end may seem that
/// old, or that far in the future, and still be recent. A hardware clock that is set to local time differs by up to 14 hours.
const WRITER_CLOCK_DIFFERENCE: SignedDuration = SignedDuration::from_hours(24);

impl NodeState {
    /// Opens the window in which a power-off of an episode that ended at `ended_at` may still arrive.
    pub(super) fn open_late_power_off(&mut self, ended_at: Option<Timestamp>, now: Now) {
        let is_recent = ended_at
            .is_some_and(|ended_at| now.wall.duration_since(ended_at).abs() < WRITER_CLOCK_DIFFERENCE);
        self.late_power_off_until =
            is_recent.then(|| now.monotonic.after(LATE_POWER_OFF_WINDOW.unsigned_abs()));
    }

    /// When the last episode requested a guest shutdown, while that may still take effect.
    pub(super) fn asked_guest(&self, now: Monotonic) -> Option<Timestamp> {
        self.asked_guest.filter(|_| self.may_power_off_late(now))
    }

    /// Whether the episode of `record` is on the Node.
    pub(super) fn has_on_node(&self, record: &Record) -> bool {
        let on_node = self.on_node.as_ref().and_then(Record::episode);
        on_node.map(|it| &it.id) == record.episode().map(|it| &it.id)
    }

    pub(super) fn may_power_off_late(&self, now: Monotonic) -> bool {
        self.late_power_off_until.is_some_and(|until| now < until)
    }
}

/// When this process first saw the current record of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedRecord {
    /// The episode, the phase, and when the phase began; `None` for a node in service.
    pub(super) phase: Option<(EpisodeId, &'static str, Timestamp)>,
    /// The elapsed times in the record.
    pub(super) elapsed: (Elapsed, InFlight, Elapsed),
    pub(super) seen: Option<RecordAge>,
    /// The previous record was seen while this process was acting.
    pub(super) is_watched: bool,
    /// When the episode was last seen held.
    held_at: Option<Now>,
}

impl ObservedRecord {
    /// Notes the current record. `acting` is the epoch of this process, if it acts; without leader election it is 0. While it is held,
    /// because a person has paused the node or a drain cannot evict, nothing of its episode counts as elapsed.
    pub(super) fn update(&mut self, record: &Record, now: Now, acting: Option<u64>, is_held: bool) {
        if let (Some(held_at), Some(seen)) = (self.held_at, &mut self.seen) {
            seen.at = seen.at.after(now.monotonic.since(held_at.monotonic));
        }
        self.held_at = is_held.then_some(now);
        let phase = record.episode().map(phase_of);
        let elapsed = record.episode().map_or_else(Default::default, |episode| {
            (episode.elapsed, episode.in_flight, episode.drained_for)
        });
        // A watch that is behind shows what the previous leader wrote after this process began to lead.
        let is_own =
            |acting: u64| acting == 0 || record.episode().is_none_or(|episode| episode.epoch == acting);
        self.seen = Some(match self.seen {
            Some(seen) if self.phase == phase && self.elapsed == elapsed => seen,
            Some(seen) if self.phase == phase => RecordAge { at: now, ..seen },
            Some(_) | None => RecordAge {
                at: now,
                phase_at: now.monotonic,
                from_the_start: self.is_watched && acting.is_some_and(is_own),
            },
        });
        self.phase = phase;
        self.elapsed = elapsed;
        self.is_watched = acting.is_some();
    }

    /// Another process may have written the current record.
    pub(super) fn forget_origin(&mut self) {
        self.is_watched = false;
        if let Some(seen) = &mut self.seen {
            seen.from_the_start = false;
        }
    }
}

/// Identifies one stay of an episode in a phase. Parking does not end it.
fn phase_of(episode: &Episode) -> (EpisodeId, &'static str, Timestamp) {
    let phase = episode.phase.at_work().name();
    (episode.id.clone(), phase, episode.worked_since())
}
