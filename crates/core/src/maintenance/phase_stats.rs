//! Collects the statistics of a phase in this process, and closes the phase in the episode's history when it ends. Pure; nothing
//! is decided from it.

use std::sync::Arc;

use jiff::Timestamp;

use super::clock::Monotonic;
use super::decide::{Decision, Transition};
use super::effect::EffectKind;
use super::episode::{
    Episode, EpisodeOrigin, Phase, PhaseHistory, PhaseStats, QueuePosition, Record, RefusedHost,
};
use super::observed::{DrainReport, Observed, PendingEviction, SlotLimit};
use super::placement::RejectedHost;
use super::waiting::WaitingOn;

/// The maximum number of recorded budgets of a drain.
const MAX_BUDGETS: usize = 10;

/// The maximum number of recorded hosts that did not fit; a cluster has up to 96.
const MAX_REFUSED: usize = 16;

/// The maximum length of a recorded reason, in characters.
const MAX_REASON: usize = 200;

/// Collects the statistics of the phase that a node is in.
#[derive(Debug, Default)]
pub struct StatsCollector {
    phase: Option<(String, &'static str, Timestamp)>,
    stats: PhaseStats,
    /// When the last counted drain round began.
    round: Option<Monotonic>,
}

impl StatsCollector {
    /// Processes the decision about `record` at `now`.
    pub fn decided(&mut self, record: &Record, seen: &Observed, decision: &Decision, now: Timestamp) {
        self.enter_phase(record);
        self.stats.from_the_start = seen.record_seen.from_the_start;
        self.count_round(seen.drain.as_ref());
        let attempt = record.phase().and_then(|phase| seen.attempt(effect_of(phase)?));
        let task = attempt.and_then(|attempt| attempt.task.clone());
        self.stats.task = task.or(self.stats.task.take());
        match decision {
            Decision::Idle => {}
            Decision::Write(transition) => {
                if let Some(Phase::Relocating { .. } | Phase::PoweringOn { by_drs: true }) =
                    transition.record.phase()
                {
                    self.keep_refusals(&seen.offer.refused);
                }
            }
            Decision::Wait { waiting_on, .. } => self.waits(waiting_on, seen, now),
            Decision::Act {
                effect, waiting_on, ..
            } => {
                self.stats.guest_asked |= effect.kind() == EffectKind::ShutdownGuest;
                if effect.kind() == EffectKind::PowerOff {
                    self.stats.power_cut.get_or_insert(now);
                }
                self.waits(waiting_on, seen, now);
            }
        }
    }

    /// Records the part of a wait that spans show.
    fn waits(&mut self, waiting_on: &WaitingOn, seen: &Observed, now: Timestamp) {
        if let WaitingOn::Slot { position, limit, .. } = waiting_on {
            self.stats.ahead_traceparent = seen
                .ahead_traceparent
                .clone()
                .or(self.stats.ahead_traceparent.take());
            self.stats
                .queue
                .get_or_insert_with(|| queue_position(*position, *limit));
        } else if let WaitingOn::Pods { left, .. } | WaitingOn::DrainHeld { left } = waiting_on {
            self.keep_budgets(left);
        } else if let WaitingOn::HostExit { refused, .. } | WaitingOn::HostEntry { refused, .. } = waiting_on
        {
            self.stats.host_awaited.get_or_insert(now);
            self.keep_refusals(refused);
        } else if let WaitingOn::Gpus { .. } = waiting_on {
            self.stats.gpus_awaited.get_or_insert(now);
        } else if let WaitingOn::NodeReady { .. } = waiting_on {
            // It was Ready only briefly.
            self.stats.gpus_awaited = None;
        }
    }

    /// The statistics of the phase in `record`.
    pub fn stats_of(&mut self, record: &Record) -> PhaseStats {
        self.enter_phase(record);
        self.stats.clone()
    }

    fn enter_phase(&mut self, record: &Record) {
        let phase = key(record);
        if self.phase != phase {
            self.phase = phase;
            self.stats = PhaseStats::default();
        }
    }

    /// Counts each round once.
    fn count_round(&mut self, report: Option<&DrainReport>) {
        let drains = self
            .phase
            .as_ref()
            .is_some_and(|(_, phase, _)| *phase == Phase::Draining.name());
        let Some(report) = report.filter(|report| drains && self.round != Some(report.listed_at)) else {
            return;
        };
        self.round = Some(report.listed_at);
        let pods = self.stats.pods.get_or_insert_default();
        pods.listed = pods.listed.max(report.listed);
        pods.ignored = report.ignored;
        pods.evicted += report.evicted;
    }

    /// Records why the other hosts did not fit at the first decision.
    fn keep_refusals(&mut self, refused: &[RejectedHost]) {
        if !self.stats.refused.is_empty() {
            return;
        }
        let hosts = refused.iter().take(MAX_REFUSED).map(|refused| RefusedHost {
            host: refused.host.clone(),
            why: refused.why.to_string().chars().take(MAX_REASON).collect(),
        });
        self.stats.refused.extend(hosts);
    }

    fn keep_budgets(&mut self, left: &[PendingEviction]) {
        for (_, names) in left.iter().filter_map(PendingEviction::budgets) {
            let room = MAX_BUDGETS.saturating_sub(self.stats.budgets.len());
            self.stats.budgets.extend(names.iter().take(room).cloned());
        }
    }
}

/// Adds the history to `transition`, which replaces `record` at `now`: with `stats` of the phase that ends, or with `origin` for a new
/// episode. `writer` is when this process started. Returns `record` with the history that includes the ended phase.
pub fn close(
    record: &Record,
    transition: &mut Transition,
    stats: PhaseStats,
    origin: &EpisodeOrigin,
    writer: Timestamp,
    now: Timestamp,
) -> Record {
    let mut closed = record.clone();
    let next = match &mut transition.record {
        Record::Episode(next) => Some(Arc::make_mut(next)),
        Record::InService | Record::Python(_) | Record::Unreadable { .. } => None,
    };
    let goes_on = |was: &Episode, next: &Episode| next.id == was.id;
    if let Record::Episode(was) = &mut closed {
        let was = Arc::make_mut(was);
        let next = next.as_deref().filter(|next| goes_on(was, next));
        let epoch = next.map_or(was.epoch, |next| next.epoch);
        was.history.written_by(writer, was.epoch, epoch, now);
        was.finish_phase(next, stats, now);
    }
    if let Some(next) = next {
        next.history = match closed.episode().filter(|was| goes_on(was, next)) {
            Some(was) => was.history.clone(),
            None => {
                let origin = EpisodeOrigin {
                    adopted: matches!(record, Record::Python(_)),
                    ..origin.clone()
                };
                PhaseHistory::begun(origin, writer)
            }
        };
    }
    closed
}

fn queue_position(position: usize, limit: SlotLimit) -> QueuePosition {
    QueuePosition {
        position,
        limit: limit.value(),
        setting: limit.setting().to_owned(),
    }
}

/// The effect of a phase that has a task.
fn effect_of(phase: &Phase) -> Option<EffectKind> {
    if let Phase::ShuttingDown(_) = phase {
        Some(EffectKind::PowerOff)
    } else if let Phase::Relocating { .. } = phase {
        Some(EffectKind::Relocate)
    } else if let Phase::PoweringOn { .. } = phase {
        Some(EffectKind::PowerOn)
    } else {
        None
    }
}

fn key(record: &Record) -> Option<(String, &'static str, Timestamp)> {
    let episode = record.episode()?;
    Some((episode.id.to_string(), episode.phase.name(), episode.since))
}

#[cfg(test)]
mod tests;
