//! The actor of one node: look, decide, do one thing, look again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::run_effect::{NotRecorded, Recorded, RunEffect, TRACEPARENT};
use crate::ids::NodeName;
use crate::maintenance::clock::{Monotonic, Now, wall_after, whole_second};
use crate::maintenance::decide::{Decision, Transition, decide};
use crate::maintenance::effect::EffectKind;
use crate::maintenance::episode::Record;
use crate::maintenance::observed::NodeSnapshot;
use crate::maintenance::phase_stats::{StatsCollector, close};
use crate::maintenance::policy::Policy;
use crate::maintenance::waiting::WaitingOn;
use crate::status::observer::{NodeEvent, Observer, ReconcileOutcome};

/// How long an actor waits to see what it did itself before it goes by what it sees. Its own write and its own try come
/// back through the hub within milliseconds; if they do not, the write was overtaken or lost, and because every write
/// is checked by the kube-apiserver and every effect looks first, going on is safe.
const OWN_ECHO: Duration = Duration::from_secs(5);

/// The longest sleep between two looks when nothing happens. Every deadline has its own time to look again; this one
/// repairs what nobody thought of, at a cost of two decisions an hour and node.
const LONGEST_SLEEP: Duration = Duration::from_secs(30 * 60);

/// The shortest: a time that has passed is looked at soon, not at once. Were a decision ever to ask for the past again and
/// again, it would be asked fifty times a second and not spin; no pause that a decision asks for is shorter.
const SHORTEST_SLEEP: Duration = Duration::from_millis(20);

/// How many writes and effects in a row go without a pause. An episode through every phase, with a few refusals, is below it.
const BURST: u32 = 30;

/// How long one of them takes to be earned again. Where another controller undoes each write, or a kubelet rewrites the record, this
/// is the pace of the quarrel.
const EARNED_EVERY: Duration = Duration::from_secs(2);

/// How many conflicts in a row are told to people: one or two are the watch being late.
const CONFLICTS_TOLD: u32 = 4;

/// What every actor of a process shares.
#[derive(Debug)]
pub struct ActorContext<P> {
    /// The way to the world.
    pub perform: P,
    /// Who is told what happens.
    pub tell: Box<dyn Observer>,
    /// The configured part of each decision.
    pub policy: Policy,
    /// The clocks that decisions are made by.
    pub clock: fn() -> Now,
}

/// The actor of one node.
#[derive(Debug)]
pub struct NodeActor<P> {
    name: NodeName,
    shared: Arc<ActorContext<P>>,
    sights: watch::Receiver<Arc<NodeSnapshot>>,
    stop: CancellationToken,
    /// What this actor did and has not seen yet.
    echo: Option<PendingWrite>,
    /// What was last told to be waited for, so that nothing is told twice.
    waited_on: Option<WaitingOn>,
    /// What this actor has seen of the phase that the node is in, for the history of the episode.
    stats: StatsCollector,
    /// How many writes in a row were refused.
    refused_writes: u32,
    pace: WritePacer,
}

/// Bounds how often a node is written and acted on.
#[derive(Debug)]
struct WritePacer {
    left: u32,
    since: Instant,
}

impl WritePacer {
    /// Takes one; when there is one again, where there is none.
    fn take(&mut self, now: Instant) -> Result<(), Instant> {
        while self.left < BURST && now >= self.since + EARNED_EVERY {
            self.left += 1;
            self.since += EARNED_EVERY;
        }
        if self.left == BURST {
            self.since = now;
        }
        self.left = self.left.checked_sub(1).ok_or(self.since + EARNED_EVERY)?;
        Ok(())
    }
}

/// Something this actor did itself, to be seen before it decides again.
#[derive(Debug)]
struct PendingWrite {
    of: ActorState,
    until: Instant,
}

#[derive(Debug)]
enum ActorState {
    Write { resource_version: u64 },
    WriteElsewhere(Box<Record>),
    Try { kind: EffectKind, at: Monotonic },
}

impl<P: RunEffect> NodeActor<P> {
    /// An actor for `name` that goes by `sights` until `stop`.
    pub fn new(
        name: NodeName,
        shared: Arc<ActorContext<P>>,
        sights: watch::Receiver<Arc<NodeSnapshot>>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            name,
            shared,
            sights,
            stop,
            echo: None,
            waited_on: None,
            stats: StatsCollector::default(),
            refused_writes: 0,
            pace: WritePacer {
                left: BURST,
                since: Instant::now(),
            },
        }
    }

    /// Runs until the node is forgotten or the house closes.
    pub async fn run(mut self) {
        self.take_turns().await;
        self.shared.tell.gone(&self.name);
    }

    async fn take_turns(&mut self) {
        let stop = self.stop.clone();
        loop {
            let turn = async {
                let wake = self.turn().await;
                // Order: a fact that is there already is worth more than any sleep.
                tokio::select! {
                    biased;
                    changed = self.sights.changed() => changed.is_ok(),
                    () = tokio::time::sleep_until(wake) => true,
                }
            };
            // Order: a closing house starts nothing more. Dropping a turn in the middle is what a crash would do, and
            // every write and effect is made to be met half done.
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                goes_on = turn => if !goes_on { return },
            }
        }
    }

    /// Looks once and does one thing. Gives the time of the next look if no fact comes before.
    async fn turn(&mut self) -> Instant {
        let sight = Arc::clone(&self.sights.borrow_and_update());
        let begun = Instant::now();
        if let Some(echo) = &self.echo
            && begun < echo.until
            && !echo.of.is_seen(&sight)
        {
            return echo.until;
        }
        self.echo = None;
        let now = (self.shared.clock)();
        let decision = decide(&sight.record, &sight.observed, &self.shared.policy, now);
        self.stats
            .decided(&sight.record, &sight.observed, &decision, now.wall);
        let (turn, wake) = self.carry_out(decision, &sight, now).await;
        self.shared.tell.reconciled(turn, begun.elapsed());
        wake
    }

    async fn carry_out(
        &mut self,
        decision: Decision,
        sight: &NodeSnapshot,
        now: Now,
    ) -> (ReconcileOutcome, Instant) {
        let is_paced = match &decision {
            Decision::Record(_) => true,
            // Rounds have a pace of their own.
            Decision::Act { effect, .. } => effect.kind() != EffectKind::DrainRound,
            Decision::Wait { .. } | Decision::Idle => false,
        };
        if is_paced && let Err(at) = self.pace.take(Instant::now()) {
            let pause = at.saturating_duration_since(Instant::now());
            let at_wall = whole_second(wall_after(now.wall, pause));
            self.waits(sight, &WaitingOn::WritePace { at: at_wall });
            return (ReconcileOutcome::Waited, at);
        }
        match decision {
            Decision::Record(transition) => self.record(sight, *transition, now).await,
            Decision::Act {
                effect,
                waiting_on,
                recheck,
            } => {
                self.waits(sight, &waiting_on);
                self.tell(NodeEvent::Asks {
                    record: &sight.record,
                    effect: &effect,
                });
                let trace = traceparent(&sight.record);
                let performed = self
                    .shared
                    .perform
                    .perform(&self.name, &sight.record, &effect, now);
                TRACEPARENT.scope(trace, performed).await;
                let of = ActorState::Try {
                    kind: effect.kind(),
                    at: now.monotonic,
                };
                self.echo = Some(PendingWrite {
                    of,
                    until: Instant::now() + OWN_ECHO,
                });
                (ReconcileOutcome::Acted, self.wake_at(recheck, now))
            }
            Decision::Wait { waiting_on, recheck } => {
                self.waits(sight, &waiting_on);
                (ReconcileOutcome::Waited, self.wake_at(recheck, now))
            }
            Decision::Idle => {
                self.waited_on = None;
                (ReconcileOutcome::Idle, self.wake_at(None, now))
            }
        }
    }

    async fn record(
        &mut self,
        sight: &NodeSnapshot,
        mut transition: Transition,
        now: Now,
    ) -> (ReconcileOutcome, Instant) {
        let node = sight.observed.node.as_ref();
        let stats = self.stats.of(&sight.record);
        let seen = &sight.observed;
        let before = close(
            &sight.record,
            &mut transition,
            stats,
            &seen.origin,
            seen.process_began,
            now.wall,
        );
        let trace = traceparent(&transition.record).or_else(|| traceparent(&before));
        let writing = self
            .shared
            .perform
            .record(&self.name, node, &before, &transition, now);
        let written = TRACEPARENT.scope(trace, writing).await;
        match written {
            Ok(recorded) => {
                self.refused_writes = 0;
                // What it waits for is not told again because of a note in the record.
                if !transition.is_bookkeeping(&before) {
                    self.waited_on = None;
                }
                let wrote = (now.wall, (self.shared.clock)().wall);
                self.tell(NodeEvent::Recorded {
                    node,
                    before: &before,
                    transition: &transition,
                    wrote,
                });
                let of = match recorded {
                    Recorded::OnNode { resource_version } => ActorState::Write { resource_version },
                    Recorded::Elsewhere => ActorState::WriteElsewhere(Box::new(transition.record.clone())),
                };
                let until = Instant::now() + OWN_ECHO;
                self.echo = Some(PendingWrite { of, until });
                (ReconcileOutcome::Recorded, until)
            }
            Err(NotRecorded::Outdated) => {
                // The Node has been read anew and is looked at again at once. One whose writes are always a conflict is not
                // what it seems to be, and is not asked at the speed of the network.
                self.refused_writes = self.refused_writes.saturating_add(1);
                let pause = match self.refused_writes {
                    1 => SHORTEST_SLEEP,
                    writes => self.shared.policy.backoff(writes - 1),
                };
                if self.refused_writes >= CONFLICTS_TOLD {
                    let said = format!(
                        "each of {} writes was a conflict with another version of the Node; trying again in {pause:?}",
                        self.refused_writes
                    );
                    self.tell(NodeEvent::NotRecorded {
                        before: &sight.record,
                        transition: &transition,
                        said: &said,
                    });
                }
                (ReconcileOutcome::Outdated, Instant::now() + pause)
            }
            Err(NotRecorded::Refused(said)) => {
                self.refused_writes = self.refused_writes.saturating_add(1);
                let pause = self.shared.policy.backoff(self.refused_writes);
                let said = format!("{said}; trying again in {pause:?}");
                self.tell(NodeEvent::NotRecorded {
                    before: &sight.record,
                    transition: &transition,
                    said: &said,
                });
                (ReconcileOutcome::Refused, Instant::now() + pause)
            }
        }
    }

    fn wake_at(&self, recheck: Option<Monotonic>, now: Now) -> Instant {
        let sleep = recheck.map_or(LONGEST_SLEEP, |at| at.since(now.monotonic));
        Instant::now() + sleep.clamp(SHORTEST_SLEEP, LONGEST_SLEEP)
    }

    /// Tells what the node waits for, once each time it changes.
    fn waits(&mut self, sight: &NodeSnapshot, on: &WaitingOn) {
        if self.waited_on.as_ref() != Some(on) {
            self.tell(NodeEvent::Waits {
                node: sight.observed.node.as_ref(),
                record: &sight.record,
                on,
            });
            self.waited_on = Some(on.clone());
        }
    }

    fn tell(&self, told: NodeEvent<'_>) {
        self.shared.tell.observe(&self.name, told);
    }
}

/// By which name the calls for an episode join its trace.
fn traceparent(record: &Record) -> Option<Arc<str>> {
    record.episode().map(|episode| episode.traceparent.clone())
}

impl ActorState {
    fn is_seen(&self, sight: &NodeSnapshot) -> bool {
        match self {
            Self::Write { resource_version } => sight
                .observed
                .node
                .as_ref()
                .is_none_or(|node| node.resource_version >= *resource_version),
            Self::WriteElsewhere(record) => sight.record == **record,
            Self::Try { kind, at } => {
                let attempt = sight.observed.attempts.get(kind);
                attempt.is_some_and(|attempt| attempt.at.monotonic >= *at)
            }
        }
    }
}
