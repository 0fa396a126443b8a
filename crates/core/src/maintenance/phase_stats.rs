//! Collects what this process sees of a phase, and closes the phase in the episode's history when it ends. Pure; nothing is
//! decided from it.

use std::sync::Arc;

use jiff::Timestamp;

use super::clock::Monotonic;
use super::decide::{Decision, Transition};
use super::effect::EffectKind;
use super::episode::{
    Episode, EpisodeOrigin, Phase, PhaseHistory, PhaseStats, QueuePosition, Record, RefusedHost,
};
use super::observed::{DrainReport, Observed, PendingEviction, PendingReason, SlotLimit};
use super::placement::RejectedHost;
use super::waiting::WaitingOn;

/// The most budgets that are named for one drain, which may meet one after the other for days.
const MAX_BUDGETS: usize = 10;

/// The most hosts that are named with the reason why the VM could not go there: a cluster has up to 96, and the reasons
/// repeat themselves.
const MAX_REFUSED: usize = 16;

/// The longest of these reasons, in characters: vCenter's own words may be among them.
const MAX_REASON: usize = 200;

/// Collects the statistics of the phase that a node is in.
#[derive(Debug, Default)]
pub struct StatsCollector {
    phase: Option<(String, &'static str, Timestamp)>,
    stats: PhaseStats,
    /// When the drain round began that was counted last.
    round: Option<Monotonic>,
}

impl StatsCollector {
    /// Takes what was decided about `record` at `now`.
    pub fn decided(&mut self, record: &Record, seen: &Observed, decision: &Decision, now: Timestamp) {
        self.meet(record);
        self.stats.from_the_start = seen.record_seen.from_the_start;
        self.counts(seen.drain.as_ref());
        let attempt = record.phase().and_then(|phase| seen.attempt(effect_of(phase)?));
        let task = attempt.and_then(|attempt| attempt.task.clone());
        self.stats.task = task.or(self.stats.task.take());
        match decision {
            Decision::Rest => {}
            Decision::Record(transition) => {
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

    /// Takes what spans show of a wait, which is little.
    fn waits(&mut self, waiting_on: &WaitingOn, seen: &Observed, now: Timestamp) {
        if let WaitingOn::Slot { ahead, limit } = waiting_on {
            self.stats.behind = seen.behind.clone().or(self.stats.behind.take());
            self.stats
                .queue
                .get_or_insert_with(|| position(ahead.len(), *limit));
        } else if let WaitingOn::Pods(left) | WaitingOn::DrainHeld(left) = waiting_on {
            self.keep_budgets(left);
        } else if let WaitingOn::HostExit { refused, .. } = waiting_on {
            self.stats.host_awaited.get_or_insert(now);
            self.keep_refusals(refused);
        } else if let WaitingOn::Gpus { .. } = waiting_on {
            self.stats.gpus_awaited.get_or_insert(now);
        } else if let WaitingOn::NodeReady { .. } = waiting_on {
            // It was Ready for a moment only: the wait for it goes on.
            self.stats.gpus_awaited = None;
        }
    }

    /// What was seen of the phase in `record`.
    pub fn of(&mut self, record: &Record) -> PhaseStats {
        self.meet(record);
        self.stats.clone()
    }

    fn meet(&mut self, record: &Record) {
        let met = key(record);
        if self.phase != met {
            self.phase = met;
            self.stats = PhaseStats::default();
        }
    }

    /// Each round is counted once, however often it is looked at.
    fn counts(&mut self, report: Option<&DrainReport>) {
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

    /// What spoke against the other hosts when the place was decided on; what changes later is another decision.
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
        for pod in left {
            if let PendingReason::Budget { names, .. } = &pod.why {
                let room = MAX_BUDGETS.saturating_sub(self.stats.budgets.len());
                self.stats.budgets.extend(names.iter().take(room).cloned());
            }
        }
    }
}

/// Completes `transition`, which the process that began at `writer` is to write at `now` in the place of `record`: its episode
/// gets its history, with `stats` of the phase that ends, or with `origin` where it begins. Gives the record as it was, its
/// history with what the transition ends.
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

fn position(ahead: usize, limit: SlotLimit) -> QueuePosition {
    let (setting, limit) = match limit {
        SlotLimit::ConcurrentDrains(limit) => ("MAX_CONCURRENT_DRAINS", limit),
        SlotLimit::Unavailable(limit) => ("MAX_UNAVAILABLE", limit),
    };
    // Those ahead are the ones let in, as many as the limit allows, and the ones before it in the queue.
    let let_in = usize::try_from(limit).unwrap_or(usize::MAX);
    QueuePosition {
        position: ahead.saturating_sub(let_in) + 1,
        limit,
        setting: setting.to_owned(),
    }
}

/// The effect whose task a phase is about.
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
