//! The actor of one node: reads the snapshot, decides, does one thing, and repeats.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::observer::Observers;
use super::run_effect::{NotRecorded, Recorded, RunEffect, TRACEPARENT};
use haulout_core::ids::NodeName;
use haulout_core::maintenance::clock::{Monotonic, Now, wall_after, whole_second};
use haulout_core::maintenance::decide::{Decision, Transition, decide};
use haulout_core::maintenance::effect::EffectKind;
use haulout_core::maintenance::episode::Record;
use haulout_core::maintenance::observed::NodeSnapshot;
use haulout_core::maintenance::phase_stats::{StatsCollector, close};
use haulout_core::maintenance::placement::PlacementForecast;
use haulout_core::maintenance::policy::Policy;
use haulout_core::maintenance::waiting::WaitingOn;
use haulout_core::status::node_event::{NodeEvent, ReconcileOutcome};
use haulout_core::status::story::NodeStory;

/// How long an actor waits for a snapshot with its own write or attempt, which the inventory normally has within milliseconds.
/// Without it the actor decides on the snapshot it has. That is safe, because the kube-apiserver checks the version of every
/// write, and every effect checks the state first.
const OWN_RESULT_WAIT: Duration = Duration::from_secs(5);

/// The longest sleep between two decisions without a new snapshot. Deadlines wake the actor earlier; this is a fallback.
const LONGEST_SLEEP: Duration = Duration::from_secs(30 * 60);

/// The shortest sleep, so that a decision that always asks for a time in the past cannot spin.
const SHORTEST_SLEEP: Duration = Duration::from_millis(20);

/// The number of writes and effects in a row without a pause. A whole episode with some refusals needs fewer.
const BURST: u32 = 30;

/// The interval at which one more is allowed. It limits a conflict with another controller that undoes each write.
const REFILL_EVERY: Duration = Duration::from_secs(2);

/// The number of conflicts in a row that is reported. Fewer are normal: the watch may be late.
const CONFLICTS_REPORTED: u32 = 4;

/// The number of writes without an answer that are kept.
const UNANSWERED_MAX: usize = 8;

/// What all actors share.
#[derive(Debug)]
pub struct ActorContext<P> {
    /// Performs decisions.
    pub executor: P,
    pub observers: Observers,
    /// The settings of decisions.
    pub policy: Policy,
    /// The clocks of decisions.
    pub clock: fn() -> Now,
}

#[derive(Debug)]
pub struct NodeActor<P> {
    name: NodeName,
    shared: Arc<ActorContext<P>>,
    snapshots: watch::Receiver<Arc<NodeSnapshot>>,
    stop: CancellationToken,
    /// The last write or attempt, until a snapshot shows it.
    pending: Option<PendingWrite>,
    /// The first writes that were decided on the same record and not accepted. One may have been carried out although its answer was
    /// lost.
    unanswered: Vec<RecordWrite>,
    /// The wait that was reported last. Each is reported once.
    waited_on: Option<WaitingOn>,
    /// The forecast that was reported last. Each is reported once.
    forecast: Option<PlacementForecast>,
    /// What was told of the node.
    story: NodeStory,
    /// Statistics of the current phase, for the history of the episode.
    stats: StatsCollector,
    /// The number of writes in a row that were refused.
    refused_writes: u32,
    pace: WritePacer,
}

/// Limits the rate of writes and effects of one node.
#[derive(Debug)]
struct WritePacer {
    left: u32,
    since: Instant,
}

impl WritePacer {
    /// Takes one; if there is none, returns when there is one again.
    fn take(&mut self, now: Instant) -> Result<(), Instant> {
        while self.left < BURST && now >= self.since + REFILL_EVERY {
            self.left += 1;
            self.since += REFILL_EVERY;
        }
        if self.left == BURST {
            self.since = now;
        }
        self.left = self.left.checked_sub(1).ok_or(self.since + REFILL_EVERY)?;
        Ok(())
    }
}

/// A write or attempt of this actor that a snapshot has to show before the next decision.
#[derive(Debug)]
struct PendingWrite {
    of: ActorState,
    /// The longest wait.
    until: Instant,
}

/// A write of the record.
#[derive(Debug)]
struct RecordWrite {
    /// The record on which it was decided.
    decided_on: Record,
    before: Record,
    transition: Transition,
    asked: Timestamp,
}

#[derive(Debug)]
enum ActorState {
    Write { resource_version: u64 },
    WriteElsewhere(Box<Record>),
    Try { kind: EffectKind, at: Monotonic },
}

impl<P: RunEffect> NodeActor<P> {
    /// An actor for `name` that decides on `snapshots` until `stop`.
    pub fn new(
        name: NodeName,
        shared: Arc<ActorContext<P>>,
        snapshots: watch::Receiver<Arc<NodeSnapshot>>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            name,
            shared,
            snapshots,
            stop,
            pending: None,
            unanswered: Vec::new(),
            waited_on: None,
            forecast: None,
            story: NodeStory::default(),
            stats: StatsCollector::default(),
            refused_writes: 0,
            pace: WritePacer {
                left: BURST,
                since: Instant::now(),
            },
        }
    }

    /// Runs until the node is gone or the process stops.
    pub async fn run(mut self) {
        self.take_turns().await;
        self.shared.observers.tell(|it| it.actor_ended(&self.name));
    }

    async fn take_turns(&mut self) {
        let stop = self.stop.clone();
        loop {
            let turn = async {
                let wake = self.turn().await;
                // Priority: a new snapshot, before any sleep.
                tokio::select! {
                    biased;
                    changed = self.snapshots.changed() => changed.is_ok(),
                    () = tokio::time::sleep_until(wake) => true,
                }
            };
            // Priority: shutdown. A turn may be dropped at any point, as in a crash.
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                goes_on = turn => if !goes_on { return },
            }
        }
    }

    /// Decides once and does one thing. Returns the time of the next turn if there is no new snapshot before.
    async fn turn(&mut self) -> Instant {
        let snapshot = Arc::clone(&self.snapshots.borrow_and_update());
        let begun = Instant::now();
        if let Some(pending) = &self.pending
            && begun < pending.until
            && !pending.of.is_seen(&snapshot)
        {
            return pending.until;
        }
        self.pending = None;
        self.tell_late(&snapshot);
        let now = (self.shared.clock)();
        let decision = decide(&snapshot.record, &snapshot.observed, &self.shared.policy, now);
        self.stats
            .decided(&snapshot.record, &snapshot.observed, &decision, now.wall);
        self.report_forecast(&snapshot);
        let (turn, wake) = self.carry_out(decision, &snapshot, now).await;
        let took = begun.elapsed();
        self.shared.observers.tell(|it| it.reconciled(turn, took));
        wake
    }

    async fn carry_out(
        &mut self,
        decision: Decision,
        snapshot: &NodeSnapshot,
        now: Now,
    ) -> (ReconcileOutcome, Instant) {
        let is_paced = match &decision {
            Decision::Write(_) => true,
            // Drain rounds have their own pace.
            Decision::Act { effect, .. } => effect.kind() != EffectKind::DrainRound,
            Decision::Wait { .. } | Decision::Idle => false,
        };
        if is_paced && let Err(at) = self.pace.take(Instant::now()) {
            let pause = at.saturating_duration_since(Instant::now());
            let at_wall = whole_second(wall_after(now.wall, pause));
            self.report_wait(snapshot, &WaitingOn::WritePace { at: at_wall });
            return (ReconcileOutcome::Waited, at);
        }
        match decision {
            Decision::Write(transition) => self.record(snapshot, *transition, now).await,
            Decision::Act {
                effect,
                waiting_on,
                recheck,
            } => {
                self.report_wait(snapshot, &waiting_on);
                self.notify(NodeEvent::Asks {
                    record: &snapshot.record,
                    effect: &effect,
                });
                let trace = traceparent(&snapshot.record);
                let performed = self
                    .shared
                    .executor
                    .perform(&self.name, &snapshot.record, &effect, now);
                TRACEPARENT.scope(trace, performed).await;
                let of = ActorState::Try {
                    kind: effect.kind(),
                    at: now.monotonic,
                };
                self.pending = Some(PendingWrite {
                    of,
                    until: Instant::now() + OWN_RESULT_WAIT,
                });
                (ReconcileOutcome::Acted, self.wake_at(recheck, now))
            }
            Decision::Wait { waiting_on, recheck } => {
                self.report_wait(snapshot, &waiting_on);
                (ReconcileOutcome::Waited, self.wake_at(recheck, now))
            }
            Decision::Idle => {
                self.waited_on = None;
                self.story.rests();
                (ReconcileOutcome::Idle, self.wake_at(None, now))
            }
        }
    }

    async fn record(
        &mut self,
        snapshot: &NodeSnapshot,
        mut transition: Transition,
        now: Now,
    ) -> (ReconcileOutcome, Instant) {
        let stats = self.stats.stats_of(&snapshot.record);
        let seen = &snapshot.observed;
        let before = close(
            &snapshot.record,
            &mut transition,
            stats,
            &seen.origin,
            seen.acting_since,
            now.wall,
        );
        let trace = traceparent(&transition.record).or_else(|| traceparent(&before));
        let writing = self
            .shared
            .executor
            .record(&self.name, seen, &before, &transition, now);
        let written = TRACEPARENT.scope(trace, writing).await;
        let write = RecordWrite {
            decided_on: snapshot.record.clone(),
            before,
            transition,
            asked: now.wall,
        };
        match written {
            Ok(recorded) => {
                self.unanswered.clear();
                self.recorded(snapshot, &write);
                let of = match recorded {
                    Recorded::OnNode { resource_version } => ActorState::Write { resource_version },
                    Recorded::Elsewhere => ActorState::WriteElsewhere(Box::new(write.transition.record)),
                };
                let until = Instant::now() + OWN_RESULT_WAIT;
                self.pending = Some(PendingWrite { of, until });
                (ReconcileOutcome::Recorded, until)
            }
            Err(why) => {
                let result = self.not_recorded(&snapshot.record, &write.transition, why);
                if self.unanswered.len() < UNANSWERED_MAX {
                    self.unanswered.push(write);
                }
                result
            }
        }
    }

    /// Reports a write whose answer was lost, when the Node shows it.
    fn tell_late(&mut self, snapshot: &NodeSnapshot) {
        let first = self.unanswered.first();
        if first.is_none_or(|write| write.decided_on == snapshot.record) {
            return;
        }
        let writes = std::mem::take(&mut self.unanswered);
        if let Some(write) = writes.iter().find(|write| write.is_seen(snapshot)) {
            self.recorded(snapshot, write);
        }
    }

    /// Reports a write that was accepted.
    fn recorded(&mut self, snapshot: &NodeSnapshot, write: &RecordWrite) {
        let RecordWrite {
            before,
            transition,
            asked,
            ..
        } = write;
        self.refused_writes = 0;
        // A change of notes in the record alone does not report the wait again.
        if !transition.is_bookkeeping(before) {
            self.waited_on = None;
        }
        self.notify(NodeEvent::Recorded {
            node: snapshot.observed.node.as_ref(),
            vm: &snapshot.observed.vm,
            before,
            transition,
            wrote: (*asked, (self.shared.clock)().wall),
        });
    }

    /// Reports a refused write, and says when to try again.
    fn not_recorded(
        &mut self,
        before: &Record,
        transition: &Transition,
        why: NotRecorded,
    ) -> (ReconcileOutcome, Instant) {
        self.refused_writes = self.refused_writes.saturating_add(1);
        let writes = self.refused_writes;
        let (outcome, pause, message) = match why {
            // The Node was read again, so the next turn is immediate; further conflicts in a row wait longer.
            NotRecorded::Outdated => {
                let pause = match writes {
                    1 => SHORTEST_SLEEP,
                    writes => self.shared.policy.backoff(writes - 1),
                };
                let message = "each was a conflict with another version of the Node";
                let message = (writes >= CONFLICTS_REPORTED).then(|| message.to_owned());
                (ReconcileOutcome::Outdated, pause, message)
            }
            NotRecorded::Refused(message) => {
                let pause = self.shared.policy.backoff(writes);
                (ReconcileOutcome::Refused, pause, Some(message))
            }
        };
        if let Some(message) = message {
            self.notify(NodeEvent::NotRecorded {
                before,
                transition,
                message: &format!("{message}; trying again in {pause:?}"),
                attempts: writes,
            });
        }
        (outcome, Instant::now() + pause)
    }

    fn wake_at(&self, recheck: Option<Monotonic>, now: Now) -> Instant {
        let sleep = recheck.map_or(LONGEST_SLEEP, |at| at.since(now.monotonic));
        Instant::now() + sleep.clamp(SHORTEST_SLEEP, LONGEST_SLEEP)
    }

    /// Reports what the node waits for when it changes.
    fn report_wait(&mut self, snapshot: &NodeSnapshot, on: &WaitingOn) {
        if self.waited_on.as_ref() != Some(on) {
            self.notify(NodeEvent::Waits {
                node: snapshot.observed.node.as_ref(),
                vm: &snapshot.observed.vm,
                record: &snapshot.record,
                on,
            });
            self.waited_on = Some(on.clone());
        }
    }

    /// Reports where the VM is likely to go when that changes.
    fn report_forecast(&mut self, snapshot: &NodeSnapshot) {
        let forecast = snapshot.observed.forecast.as_ref();
        if self.forecast.as_ref() == forecast {
            return;
        }
        if let Some(placement) = forecast {
            self.notify(NodeEvent::Forecasts {
                node: snapshot.observed.node.as_ref(),
                record: &snapshot.record,
                placement,
            });
        }
        self.forecast = forecast.cloned();
    }

    fn notify(&mut self, event: NodeEvent<'_>) {
        let beat = self.story.tell(event, (self.shared.clock)().wall);
        self.shared.observers.tell(|it| it.observe(&self.name, &beat));
    }
}

/// The traceparent of the episode.
fn traceparent(record: &Record) -> Option<Arc<str>> {
    record.episode().map(|episode| episode.traceparent.clone())
}

impl RecordWrite {
    /// Whether it was carried out, as the Node shows. Each record differs from all before; an end leaves none.
    fn is_seen(&self, snapshot: &NodeSnapshot) -> bool {
        let node = snapshot.observed.node.as_ref();
        let last = node.and_then(|node| Some(&node.last_episode.as_ref()?.episode.id));
        let ended = self.before.episode().map(|episode| &episode.id);
        let is_end = ended.is_some() && ended == last;
        snapshot.record == self.transition.record && (snapshot.record.episode().is_some() || is_end)
    }
}

impl ActorState {
    fn is_seen(&self, snapshot: &NodeSnapshot) -> bool {
        match self {
            Self::Write { resource_version } => snapshot
                .observed
                .node
                .as_ref()
                .is_none_or(|node| node.resource_version >= *resource_version),
            Self::WriteElsewhere(record) => snapshot.record == **record,
            Self::Try { kind, at } => {
                let attempt = snapshot.observed.attempts.get(kind);
                attempt.is_some_and(|attempt| attempt.at.monotonic >= *at)
            }
        }
    }
}
