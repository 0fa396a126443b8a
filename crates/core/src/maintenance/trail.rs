//! What the record keeps for whoever tells the episode's story: which of its parts are not known to have been told, and
//! what happened to it besides. Pure; nothing is ever decided from it.
//!
//! A part of the story ends with a change of record, so it is written down in that very PATCH, with all that its telling
//! needs. A process that dies before it has told the part, or before it has heard that its telling arrived, leaves it to
//! the next one, which tells the same from the same words.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::clock::Monotonic;
use super::decide::{Decision, Transition};
use super::effect::EffectKind;
use super::episode::{Ended, Episode, Phase, Record};
use super::observed::{DrainReport, Limit, Observed, PodLeft, PodLeftBecause};
use super::placement::Refused;
use super::waiting::WaitingOn;
use crate::ids::TaskRef;

/// The most that a record may owe, as JSON. A part is about 200 bytes, so this is several episodes' worth; what is more
/// belongs to a collector that has been away for long, and the oldest goes first.
const MAX_OWED_JSON: usize = 8 * 1024;

/// The most budgets that are named for one drain, which may meet one after the other for days.
const MAX_BUDGETS: usize = 10;

/// The most incidents that are kept: a controller in a crash loop must not fill its own record.
const MAX_INCIDENTS: usize = 20;

/// The most hosts that are named with the reason why the VM could not go there: a cluster has up to 96, and the reasons
/// repeat themselves.
const MAX_REFUSED: usize = 16;

/// The longest of these reasons, in characters: vCenter's own words may be among them.
const MAX_REASON: usize = 200;

/// What the record keeps for whoever tells the story; empty where nobody does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Trail {
    /// What the episode comes from.
    #[serde(skip_serializing_if = "Origin::is_empty")]
    pub origin: Origin,
    /// The parts of the story that are not known to have been told, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owed: Vec<Owed>,
    /// What happened besides, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incidents: Vec<Incident>,
    /// When the process began that wrote the record last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer: Option<Timestamp>,
    /// The leadership under which the record was last written, as this trail has noted it.
    #[serde(skip_serializing_if = "is_zero")]
    pub epoch: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What is known of an episode's surroundings when it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Origin {
    /// The name of the host's cluster, which no episode leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The VM's name in the inventory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// The traceparent of the episode that was about the same host and ended last, whichever node's it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

impl Origin {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A part of the story that is over, with all that its telling needs and the rest of the record may lose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owed {
    /// The host that the episode was about then, by name.
    pub host: String,
    /// Which part.
    pub part: Part,
}

/// A part of the story.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Part {
    /// The episode was begun.
    Begun,
    /// The Node was cordoned, in the PATCH that began the phase of this name.
    Cordoned {
        /// The phase's name.
        phase: String,
        /// When.
        at: Timestamp,
    },
    /// A phase has ended.
    Passed(Box<Passed>),
}

/// A phase that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Passed {
    /// The phase.
    pub phase: Phase,
    /// When it began.
    pub since: Timestamp,
    /// When it ended.
    pub until: Timestamp,
    /// What came after it; `None` where the episode ended.
    pub next: Option<Phase>,
    /// How many pods it left behind.
    #[serde(default)]
    pub left_behind: usize,
    /// What was seen of it.
    #[serde(default)]
    pub saw: Saw,
}

/// What the process in which a phase ended has seen of it. It only refines what the times tell: what is lost with a
/// process is missing, and nothing is invented in its place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Saw {
    /// This process began the phase itself. What it has seen of one begun before says nothing of its earlier part.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub from_the_start: bool,
    /// The guest was asked to shut down.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub guest_asked: bool,
    /// When the power was first to be cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_cut: Option<Timestamp>,
    /// When it was first clear that only the own host will do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_awaited: Option<Timestamp>,
    /// When the node was first Ready and its GPUs were still missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus_awaited: Option<Timestamp>,
    /// The PodDisruptionBudgets that held pods back.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub budgets: BTreeSet<String>,
    /// The traceparent of the episode whose place was waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<Arc<str>>,
    /// How it stood in the queue at first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
    /// What the drain met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<Pods>,
    /// The latest task of vCenter that was at work on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskRef>,
    /// The other hosts of the cluster and why the VM could not go there, when its place was decided on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<NoPlace>,
    /// What an episode that begins where this phase ends comes from; it is kept there and not here.
    #[serde(skip)]
    pub origin: Origin,
}

/// How an episode stood in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Queue {
    /// 1 for the next to be let in.
    pub position: usize,
    /// How many are let in at once.
    pub limit: u32,
    /// The setting that says so.
    pub setting: String,
}

/// What a drain met.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pods {
    /// The most pods that one list showed.
    pub listed: usize,
    /// How many of the latest list do not stand in the way.
    pub ignored: usize,
    /// How many evictions were accepted.
    pub evicted: usize,
}

/// A host where the VM could not go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NoPlace {
    /// Its name.
    pub host: String,
    /// Why not, in words that follow its name.
    pub why: String,
}

/// Something that happened to an episode, beside its phases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Incident {
    /// Another process took it up.
    Restarted {
        /// When that process began.
        at: Timestamp,
    },
    /// It was taken up under another leadership.
    LeaderChanged {
        /// When the record was first written under it.
        at: Timestamp,
        /// The leadership before.
        old: u64,
        /// The leadership since.
        new: u64,
    },
}

/// An episode that has ended, as it stands on the Node until the next one begins there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Last {
    /// How it ended; `None` where another episode took its place.
    pub ended: Option<Ended>,
    /// When.
    pub at: Timestamp,
    /// Whether the Node was uncordoned with it.
    pub uncordoned: bool,
    /// The episode as it stood, its last phase among what it owes.
    pub episode: Episode,
}

impl Trail {
    /// Whether it holds nothing, and need not be written.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn meet(&mut self, writer: Timestamp, epoch: u64, now: Timestamp) {
        // A trail that was never written in has nobody who reads it.
        if let Some(before) = self.writer
            && before != writer
        {
            self.incidents.push(Incident::Restarted {
                at: writer.clamp(before, now.max(before)),
            });
            self.writer = Some(writer);
        }
        if self.epoch != epoch {
            // 0 is no leadership that could have been lost.
            if self.epoch != 0 {
                self.incidents.push(Incident::LeaderChanged {
                    at: now,
                    old: self.epoch,
                    new: epoch,
                });
            }
            self.epoch = epoch;
        }
        let over = self.incidents.len().saturating_sub(MAX_INCIDENTS);
        self.incidents.drain(..over);
    }

    fn keep(&mut self, episode: &Episode, owes: &impl Fn(&Episode, &Owed) -> bool) {
        self.owed.retain(|owed| owes(episode, owed));
        while serde_json::to_string(&self.owed).is_ok_and(|json| json.len() > MAX_OWED_JSON) {
            self.owed.remove(0);
        }
    }
}

impl Last {
    /// The end that `transition` brings at `at` to the episode in `closed`; `None` where it goes on or there is none.
    pub fn of(closed: &Record, transition: &Transition, at: Timestamp) -> Option<Self> {
        let episode = closed.episode()?;
        let goes_on = transition
            .record
            .episode()
            .is_some_and(|next| next.id == episode.id);
        (!goes_on).then(|| Self {
            ended: transition.ended,
            at,
            uncordoned: transition.unschedulable == Some(false),
            episode: episode.clone(),
        })
    }
}

/// What stands behind and before a change of record, with what it ends written down in both: the record as it was, its
/// trail closed, and the transition that is to be written. `owes` tells of a part whether it is still to be told.
pub fn close(
    before: &Record,
    mut transition: Transition,
    mut saw: Saw,
    process_began: Timestamp,
    now: Timestamp,
    owes: impl Fn(&Episode, &Owed) -> bool,
) -> (Record, Transition) {
    let mut closed = before.clone();
    let cordons = transition.unschedulable == Some(true);
    let next = match &mut transition.record {
        Record::Episode(next) => Some(Arc::make_mut(next)),
        Record::InService | Record::Python(_) | Record::Unreadable { .. } => None,
    };
    let mut standing = Trail {
        writer: Some(process_began),
        epoch: next.as_ref().map_or(0, |next| next.epoch),
        ..Trail::default()
    };
    let origin = std::mem::take(&mut saw.origin);
    let mut goes_on = false;
    if let Record::Episode(was) = &mut closed {
        goes_on = next.as_ref().is_some_and(|next| next.id == was.id);
        let next = next.as_ref().filter(|_| goes_on);
        let epoch = next.map_or(was.epoch, |next| next.epoch.max(was.epoch));
        let was = Arc::make_mut(was);
        let mut trail = std::mem::take(&mut was.trail);
        trail.meet(process_began, epoch, now);
        let is_over =
            next.is_none_or(|next| (next.phase.name(), next.since) != (was.phase.name(), was.since));
        if is_over {
            trail.owed.push(Owed {
                host: was.host.name.to_string(),
                part: Part::Passed(Box::new(Passed {
                    phase: was.phase.clone(),
                    since: was.since,
                    until: next.map_or(now, |next| next.since),
                    next: next.map(|next| next.phase.clone()),
                    left_behind: next.map_or(0, |next| next.left_behind.len()),
                    saw,
                })),
            });
        }
        trail.keep(was, &owes);
        was.trail = trail.clone();
        if goes_on {
            standing = trail;
        }
    }
    if let Some(next) = next {
        let owed = |part| Owed {
            host: next.host.name.to_string(),
            part,
        };
        if !goes_on {
            standing.origin = origin;
            standing.owed.push(owed(Part::Begun));
        }
        if cordons {
            standing.owed.push(owed(Part::Cordoned {
                phase: next.phase.name().to_owned(),
                at: next.since,
            }));
        }
        standing.keep(next, &owes);
        // Where nobody tells the story, the record keeps nothing for its telling.
        let is_told = goes_on || !standing.owed.is_empty();
        next.trail = if is_told { standing } else { Trail::default() };
    }
    (closed, transition)
}

/// Sees a phase pass.
#[derive(Debug, Default)]
pub struct Witness {
    phase: Option<(String, &'static str, Timestamp)>,
    saw: Saw,
    /// When the drain round began that was counted last.
    round: Option<Monotonic>,
}

impl Witness {
    /// Sees what was decided about `record` at `now`.
    pub fn sees(&mut self, record: &Record, seen: &Observed, decision: &Decision, now: Timestamp) {
        self.meet(record);
        self.counts(seen.drain.as_ref());
        let task = record.episode().and_then(|episode| {
            let attempt = seen.attempt(at_work(&episode.phase)?)?;
            attempt.task.clone()
        });
        self.saw.task = task.or(self.saw.task.take());
        let waiting_on = match decision {
            Decision::Rest => return,
            Decision::Record(transition) => {
                self.saw.origin.clone_from(&seen.origin);
                if transition.record.phase().and_then(Phase::placed_by).is_some() {
                    self.meets_refusals(&seen.offer.refused);
                }
                return;
            }
            Decision::Wait { waiting_on, .. } => waiting_on,
            Decision::Act {
                effect, waiting_on, ..
            } => {
                match effect.kind() {
                    EffectKind::ShutdownGuest => self.saw.guest_asked = true,
                    EffectKind::PowerOff => {
                        self.saw.power_cut.get_or_insert(now);
                    }
                    EffectKind::DrainRound
                    | EffectKind::Survey
                    | EffectKind::Relocate
                    | EffectKind::PowerOn => {}
                }
                waiting_on
            }
        };
        match waiting_on {
            WaitingOn::Slot { ahead, limit } => {
                self.saw.behind = seen.behind.clone().or(self.saw.behind.take());
                self.saw
                    .queue
                    .get_or_insert_with(|| Queue::of(ahead.len(), *limit));
            }
            WaitingOn::Pods(left) | WaitingOn::DrainHeld(left) => self.meets(left),
            WaitingOn::HostExit { refused, .. } => {
                self.saw.host_awaited.get_or_insert(now);
                self.meets_refusals(refused);
            }
            WaitingOn::Gpus { .. } => {
                self.saw.gpus_awaited.get_or_insert(now);
            }
            // It was Ready for a moment only: the wait for it goes on.
            WaitingOn::NodeReady { .. } => self.saw.gpus_awaited = None,
            WaitingOn::Vcenter { .. }
            | WaitingOn::Kubernetes { .. }
            | WaitingOn::Takeover { .. }
            | WaitingOn::NodeObject
            | WaitingOn::OtherRelease { .. }
            | WaitingOn::MaintenanceRetry { .. }
            | WaitingOn::PowerOnPause { .. }
            | WaitingOn::WritePace { .. }
            | WaitingOn::VmLookup
            | WaitingOn::DrainRound
            | WaitingOn::GuestShutdown { .. }
            | WaitingOn::GuestShutdownAfterCancel { .. }
            | WaitingOn::Task(_)
            | WaitingOn::Retry { .. }
            | WaitingOn::HostVisible { .. }
            | WaitingOn::Request { .. }
            | WaitingOn::Approval
            | WaitingOn::Skip
            | WaitingOn::PoweredOn { .. }
            | WaitingOn::AlreadyThere { .. }
            | WaitingOn::Place { .. }
            | WaitingOn::Survey
            | WaitingOn::Question(_)
            | WaitingOn::PowerState
            | WaitingOn::Parked(_) => {}
        }
    }

    /// What was seen of the phase in `record`.
    pub fn saw(&mut self, record: &Record) -> Saw {
        self.meet(record);
        self.saw.clone()
    }

    /// This process wrote `record` in the place of `before`.
    pub fn wrote(&mut self, before: &Record, record: &Record) {
        self.meet(before);
        let (before, is) = (self.phase.clone(), key(record));
        if before != is {
            self.phase = is;
            self.saw = Saw {
                from_the_start: true,
                ..Saw::default()
            };
        }
    }

    fn meet(&mut self, record: &Record) {
        let met = key(record);
        if self.phase != met {
            self.phase = met;
            self.saw = Saw::default();
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
        let pods = self.saw.pods.get_or_insert_default();
        pods.listed = pods.listed.max(report.listed);
        pods.ignored = report.ignored;
        pods.evicted += report.evicted;
    }

    /// What spoke against the other hosts when the place was decided on; what changes later is another decision.
    fn meets_refusals(&mut self, refused: &[Refused]) {
        if !self.saw.refused.is_empty() {
            return;
        }
        let hosts = refused.iter().take(MAX_REFUSED).map(|refused| NoPlace {
            host: refused.host.clone(),
            why: refused.why.to_string().chars().take(MAX_REASON).collect(),
        });
        self.saw.refused.extend(hosts);
    }

    fn meets(&mut self, left: &[PodLeft]) {
        for pod in left {
            match &pod.why {
                PodLeftBecause::Budget { names, .. } => {
                    let room = MAX_BUDGETS.saturating_sub(self.saw.budgets.len());
                    self.saw.budgets.extend(names.iter().take(room).cloned());
                }
                PodLeftBecause::Leaving
                | PodLeftBecause::Migrating { .. }
                | PodLeftBecause::Refused { .. }
                | PodLeftBecause::NotReached => {}
            }
        }
    }
}

impl Queue {
    fn of(ahead: usize, limit: Limit) -> Self {
        let (setting, limit) = match limit {
            Limit::ConcurrentDrains(limit) => ("MAX_CONCURRENT_DRAINS", limit),
            Limit::Unavailable(limit) => ("MAX_UNAVAILABLE", limit),
        };
        // Those ahead are the ones let in, as many as the limit allows, and the ones before it in the queue.
        let let_in = usize::try_from(limit).unwrap_or(usize::MAX);
        Self {
            position: ahead.saturating_sub(let_in) + 1,
            limit,
            setting: setting.to_owned(),
        }
    }
}

/// The effect whose task a phase is about.
fn at_work(phase: &Phase) -> Option<EffectKind> {
    match phase {
        Phase::ShuttingDown(_) => Some(EffectKind::PowerOff),
        Phase::Relocating { .. } => Some(EffectKind::Relocate),
        Phase::PoweringOn { .. } => Some(EffectKind::PowerOn),
        Phase::Queued
        | Phase::Draining
        | Phase::Drained
        | Phase::AwaitingHost
        | Phase::Rejoining
        | Phase::Parked { .. } => None,
    }
}

fn key(record: &Record) -> Option<(String, &'static str, Timestamp)> {
    let episode = record.episode()?;
    Some((episode.id.to_string(), episode.phase.name(), episode.since))
}

#[cfg(test)]
mod tests;
