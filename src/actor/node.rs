//! The actor of one node: look, decide, do one thing, look again.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::perform::{NotRecorded, Perform};
use crate::ids::NodeName;
use crate::maintenance::decide::{Decision, Transition, decide};
use crate::maintenance::effect::{Effect, EffectKind};
use crate::maintenance::episode::{Ended, Phase, Record};
use crate::maintenance::observed::Sight;
use crate::maintenance::policy::Policy;
use crate::maintenance::waiting::WaitingOn;

/// How long an actor waits to see what it did itself before it goes by what it sees. Its own write and its own try come
/// back through the hub within milliseconds; if they do not, the write was overtaken or lost, and because every write
/// is checked by the kube-apiserver and every effect looks first, going on is safe.
const OWN_ECHO: Duration = Duration::from_secs(5);

/// The longest sleep between two looks when nothing happens. Every deadline has its own time to look again; this one
/// repairs what nobody thought of, at a cost of two decisions an hour and node.
const LONGEST_SLEEP: Duration = Duration::from_secs(30 * 60);

/// What every actor of a process shares.
#[derive(Debug)]
pub struct Shared<P> {
    /// The way to the world.
    pub perform: P,
    /// The configured part of each decision.
    pub policy: Policy,
    /// The one clock that decisions are made by.
    pub clock: fn() -> Timestamp,
}

/// The actor of one node.
#[derive(Debug)]
pub struct NodeActor<P> {
    name: NodeName,
    shared: Arc<Shared<P>>,
    sights: watch::Receiver<Arc<Sight>>,
    stop: CancellationToken,
    /// What this actor did and has not seen yet.
    echo: Option<Echo>,
    /// What was last said about this node, so that nothing is said twice.
    told: Option<String>,
    /// How many writes in a row were refused.
    refused_writes: u32,
}

/// Something this actor did itself, to be seen before it decides again.
#[derive(Debug)]
struct Echo {
    of: Own,
    until: Instant,
}

#[derive(Debug)]
enum Own {
    Write { resource_version: u64 },
    PaperWrite(Box<Record>),
    Try { kind: EffectKind, at: Timestamp },
}

impl<P: Perform> NodeActor<P> {
    /// An actor for `name` that goes by `sights` until `stop`.
    pub fn new(
        name: NodeName,
        shared: Arc<Shared<P>>,
        sights: watch::Receiver<Arc<Sight>>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            name,
            shared,
            sights,
            stop,
            echo: None,
            told: None,
            refused_writes: 0,
        }
    }

    /// Runs until the node is forgotten or the house closes.
    pub async fn run(mut self) {
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
        let decision = decide(&sight.record, &sight.seen, &self.shared.policy, now);
        match decision {
            Decision::Record(transition) => self.record(&sight, &transition, now).await,
            Decision::Act {
                effect,
                waiting_on,
                recheck,
            } => {
                self.tell(&sight, &waiting_on);
                tell_effect(&self.name, &effect);
                self.shared.perform.perform(&self.name, &effect, now).await;
                let of = Own::Try {
                    kind: effect.kind(),
                    at: now,
                };
                self.echo = Some(Echo {
                    of,
                    until: Instant::now() + OWN_ECHO,
                });
                self.wake_at(recheck, now)
            }
            Decision::Wait { waiting_on, recheck } => {
                self.tell(&sight, &waiting_on);
                self.wake_at(recheck, now)
            }
            Decision::Rest => {
                self.told = None;
                self.wake_at(None, now)
            }
        }
    }

    async fn record(&mut self, sight: &Sight, transition: &Transition, now: Timestamp) -> Instant {
        let Some(node) = &sight.seen.node else {
            return self.wake_at(None, now);
        };
        let written = self
            .shared
            .perform
            .record(&self.name, node, &sight.record, transition, now)
            .await;
        match written {
            Ok(recorded) => {
                self.refused_writes = 0;
                self.told = None;
                tell_transition(&self.name, &sight.record, transition);
                let of = if recorded.resource_version == 0 {
                    Own::PaperWrite(Box::new(transition.record.clone()))
                } else {
                    Own::Write {
                        resource_version: recorded.resource_version,
                    }
                };
                let until = Instant::now() + OWN_ECHO;
                self.echo = Some(Echo { of, until });
                until
            }
            Err(NotRecorded::Outdated) => self.wake_at(Some(now), now),
            Err(NotRecorded::Refused(said)) => {
                self.refused_writes = self.refused_writes.saturating_add(1);
                let pause = self.shared.policy.backoff(self.refused_writes);
                warn!(
                    node = %self.name,
                    phase = sight.record.phase_name(),
                    "could not record {} on the Node: {said}; trying again in {pause:?}",
                    transition.record.phase_name(),
                );
                Instant::now() + pause
            }
        }
    }

    fn wake_at(&self, recheck: Option<Timestamp>, now: Timestamp) -> Instant {
        let sleep = recheck
            .and_then(|at| Duration::try_from(at.duration_since(now)).ok())
            // A time that has passed is looked at soon, not at once: were a decision ever to ask for the past again and
            // again, it would not spin.
            .map(|sleep| sleep.max(Duration::from_millis(50)))
            .unwrap_or(if recheck.is_some() {
                Duration::from_millis(50)
            } else {
                LONGEST_SLEEP
            })
            .min(LONGEST_SLEEP);
        Instant::now() + sleep
    }

    /// Says what the node waits for, once each time it changes.
    fn tell(&mut self, sight: &Sight, waiting_on: &WaitingOn) {
        let words = waiting_on.to_string();
        if self.told.as_ref() == Some(&words) {
            return;
        }
        let episode = sight.record.episode();
        info!(
            node = %self.name,
            host = episode.map(|episode| episode.host.name.as_str()),
            episode = episode.map(|episode| episode.id.as_str()),
            phase = sight.record.phase_name(),
            waiting_on = waiting_on.kind(),
            "waiting for {words}"
        );
        self.told = Some(words);
    }
}

/// Says what is done to the node. Drain rounds and surveys come again and again and change little each, so they are for
/// those who look closer.
fn tell_effect(name: &NodeName, effect: &Effect) {
    let kind = effect.kind();
    match kind {
        EffectKind::DrainRound | EffectKind::Survey => debug!(node = %name, "asking to {}", kind.words()),
        EffectKind::ShutdownGuest | EffectKind::PowerOff | EffectKind::Relocate | EffectKind::PowerOn => {
            info!(node = %name, "asking to {}", kind.words());
        }
    }
}

impl Own {
    fn is_seen(&self, sight: &Sight) -> bool {
        match self {
            Self::Write { resource_version } => sight
                .seen
                .node
                .as_ref()
                .is_none_or(|node| node.resource_version >= *resource_version),
            Self::PaperWrite(record) => sight.record == **record,
            Self::Try { kind, at } => sight.seen.attempt(*kind, *at).is_some(),
        }
    }
}

fn tell_transition(name: &NodeName, before: &Record, transition: &Transition) {
    let episode = transition.record.episode().or(before.episode());
    let cordon = match transition.unschedulable {
        Some(true) => ", cordoned",
        Some(false) => ", uncordoned",
        None => "",
    };
    let ended = match transition.ended {
        Some(Ended::Succeeded) => ": the episode ended well",
        Some(Ended::Cancelled) => ": the episode was called off",
        None => "",
    };
    info!(
        node = %name,
        host = episode.map(|episode| episode.host.name.as_str()),
        episode = episode.map(|episode| episode.id.as_str()),
        phase = transition.record.phase_name(),
        from = before.phase_name(),
        "{} -> {}{}{cordon}{ended}",
        before.phase_name(),
        transition.record.phase_name(),
        transition.record.phase().map(Phase::whereto).unwrap_or_default(),
    );
    if let Some(episode) = transition.record.episode()
        && !episode.left_behind.is_empty()
        && before
            .episode()
            .is_some_and(|before| before.left_behind.is_empty())
    {
        warn!(
            node = %name,
            episode = episode.id.as_str(),
            "the drain timeout passed; {} pods are left behind: {}",
            episode.left_behind.len(),
            episode.left_behind.join(", ")
        );
    }
}
