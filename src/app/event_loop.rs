//! The one loop in which facts become sights: it takes what the streams and the effects tell, folds it in, and shows
//! each node's actor what has changed.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::observers::Observers;
use crate::controller::run_effect::RunEffect;
use crate::controller::supervisor::Supervisor;
use crate::http::health::PULSE;
use crate::ids::NodeName;
use crate::inventory::{Fact, Inventory};
use crate::kubernetes::lease::ElectionStatus;
use crate::kubernetes::update as kubernetes;
use crate::maintenance::clock::{Deadline, Now, whole_second};
use crate::maintenance::effect_report::EffectReport;
use crate::maintenance::observed::LeadershipTerm;
use crate::vsphere::update as vsphere;

/// The most facts that are folded in before the actors are shown a picture. An initial set of 2,500 hosts comes as as
/// many facts; showing after each would make a picture of every node each time, and never showing would starve them.
const BATCH: usize = 1024;

/// How long the rest of a set is waited for. It comes within milliseconds, or, where a VM was found and is not told of
/// yet, with the next answer of the poll; were it ever to stay away, nodes it has nothing to do with must not wait.
const REST_OF_A_SET: Duration = Duration::from_secs(2);

/// Pictures that took less to draw and show are followed by the next at once: a timer is no finer.
const NO_REST: Duration = Duration::from_millis(1);

/// The longest time that facts only come in, however busy the machine: an operator who waits for a node does not feel it.
const REST_MAX: Duration = Duration::from_secs(1);

/// What comes into the event loop.
#[derive(Debug)]
pub(super) struct EventSources {
    pub(super) vsphere: mpsc::Receiver<vsphere::VsphereUpdate>,
    pub(super) kubernetes: mpsc::Receiver<kubernetes::KubernetesUpdate>,
    pub(super) findings: mpsc::Receiver<EffectReport>,
    pub(super) standing: watch::Receiver<ElectionStatus>,
}

/// What the event loop asks the streams to follow.
#[derive(Debug)]
pub(super) struct Subscriptions {
    pub(super) watch_set: watch::Sender<vsphere::WatchSet>,
    pub(super) draining: watch::Sender<BTreeSet<NodeName>>,
    pub(super) holding: watch::Sender<BTreeSet<kubernetes::Budget>>,
    /// Nodes with an open episode that the selector does not match any more.
    pub(super) followed: watch::Sender<BTreeSet<NodeName>>,
}

/// What the streams are to follow, on their side.
pub(super) struct Wanted {
    pub(super) watch_set: watch::Receiver<vsphere::WatchSet>,
    pub(super) draining: watch::Receiver<BTreeSet<NodeName>>,
    pub(super) holding: watch::Receiver<BTreeSet<kubernetes::Budget>>,
    pub(super) followed: watch::Receiver<BTreeSet<NodeName>>,
}

impl Subscriptions {
    pub(super) fn channels() -> (Self, Wanted) {
        let (watch_set_sender, watch_set) = watch::channel(vsphere::WatchSet::default());
        let (draining_sender, draining) = watch::channel(BTreeSet::new());
        let (holding_sender, holding) = watch::channel(BTreeSet::new());
        let (followed_sender, followed) = watch::channel(BTreeSet::new());
        let senders = Self {
            watch_set: watch_set_sender,
            draining: draining_sender,
            holding: holding_sender,
            followed: followed_sender,
        };
        let wanted = Wanted {
            watch_set,
            draining,
            holding,
            followed,
        };
        (senders, wanted)
    }
}

/// Runs until `stop`, or until a stream has ended for good, which none does before `stop`.
pub(super) async fn run<P: RunEffect>(
    mut sources: EventSources,
    subscriptions: Subscriptions,
    mut inventory: Inventory,
    mut supervisor: Supervisor<P>,
    observers: Observers,
    clock: fn() -> Now,
    stop: CancellationToken,
) {
    let mut heard = SourceLog::default();
    let mut leads = take_standing(
        &sources.standing.borrow_and_update(),
        None,
        &mut inventory,
        &observers,
        clock,
    );
    let mut amid_until: Option<Instant> = None;
    let mut rests_until: Option<Instant> = None;
    let mut pulse = interval(PULSE);
    pulse.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        observers.health.hub_turns();
        let rests = rests_until.filter(|_| inventory.is_dirty());
        let is_time = async {
            match rests.or(amid_until) {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        // Order: a closing house first; then who leads, on which depends whether anybody acts; then what our own effects found, because actors wait for their echo; then the
        // reaping, which is rare and short; the pulse last, for whoever has something to do shows by that that he turns.
        let fact = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Ok(()) = sources.standing.changed() => {
                let standing = sources.standing.borrow_and_update().clone();
                leads = take_standing(&standing, leads, &mut inventory, &observers, clock);
                None
            }
            Some(finding) = sources.findings.recv() => Some(Fact::Finding(finding)),
            () = supervisor.reap() => continue,
            Some(update) = sources.kubernetes.recv() => Some(Fact::Kubernetes(update)),
            Some(update) = sources.vsphere.recv() => Some(Fact::Vsphere(update)),
            () = is_time => None,
            _ = pulse.tick() => {
                if leads.is_some() {
                    observers.pulse(&inventory);
                }
                None
            }
            else => break,
        };
        inventory.set_time(clock());
        if let Some(fact) = fact {
            heard.note(&fact);
            observers.note(&fact);
            inventory.apply(fact);
            for _ in 0..BATCH {
                let Some(fact) = sources.try_next() else { break };
                heard.note(&fact);
                observers.note(&fact);
                inventory.apply(fact);
            }
        }
        if !inventory.is_dirty() {
            amid_until = None;
            continue;
        }
        let begun = Instant::now();
        if rests_until.is_some_and(|until| begun < until) {
            continue;
        }
        rests_until = None;
        set(&subscriptions.followed, inventory.to_follow());
        set(&subscriptions.watch_set, inventory.watch_set());
        observers.degraded(&inventory);
        if inventory.is_set_incomplete() {
            // The rest of it is on its way, and half a set may show one of two clicks.
            let until = *amid_until.get_or_insert(begun + REST_OF_A_SET);
            if begun < until {
                continue;
            }
        }
        amid_until = None;
        // A standby follows everything and shows it to people alone: no actor runs, no place is granted.
        if leads.is_none() {
            set(&subscriptions.draining, inventory.draining());
            observers.show_standing_by(&inventory);
            rests_until = rest(begun);
            continue;
        }
        let pictures = inventory.build_snapshots();
        set(&subscriptions.draining, inventory.draining());
        set(&subscriptions.holding, inventory.blocking_budgets());
        observers.show(&pictures, &inventory);
        supervisor.show(pictures);
        rests_until = rest(begun);
    }
    supervisor.close().await;
}

/// Until when facts only come in, after pictures that were `begun` then: as long as those took. Nodes that are all on their
/// way are drawn together with whatever happens to one of them; so that takes half of one processor, however many they are.
/// The price are writes that are decided on a Node that has changed meanwhile, read and decided anew (`benches/README.md`).
fn rest(begun: Instant) -> Option<Instant> {
    let took = begun.elapsed();
    (took >= NO_REST).then(|| Instant::now() + took.min(REST_MAX))
}

/// Takes how the election stands, and gives the epoch under which this replica leads. One that led before and does not
/// now has its gate shut, and ends.
fn take_standing(
    standing: &ElectionStatus,
    led: Option<u64>,
    inventory: &mut Inventory,
    observers: &Observers,
    clock: fn() -> Now,
) -> Option<u64> {
    observers.stand(standing);
    let leads = standing.lead.map(|lead| lead.epoch);
    if let Some(lead) = standing.lead.filter(|_| leads != led) {
        let now = clock();
        inventory.set_time(now);
        let acts_from = now.after(lead.quarantine);
        inventory.take_leadership(LeadershipTerm {
            epoch: lead.epoch,
            acts_from: (!lead.quarantine.is_zero()).then_some(Deadline {
                at: acts_from.monotonic,
                shown: whole_second(acts_from.wall),
            }),
        });
    }
    leads
}

impl EventSources {
    fn try_next(&mut self) -> Option<Fact> {
        None.or_else(|| self.findings.try_recv().ok().map(Fact::Finding))
            .or_else(|| self.kubernetes.try_recv().ok().map(Fact::Kubernetes))
            .or_else(|| self.vsphere.try_recv().ok().map(Fact::Vsphere))
    }
}

fn set<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|standing| {
        let changed = *standing != value;
        if changed {
            *standing = value;
        }
        changed
    });
}

/// Says once each time when a world is heard, and when it falls silent.
#[derive(Debug, Default)]
struct SourceLog {
    vcenter: Option<bool>,
    kubernetes: Option<bool>,
}

impl SourceLog {
    fn note(&mut self, fact: &Fact) {
        let (standing, who, why) = match fact {
            Fact::Vsphere(vsphere::VsphereUpdate::Settled) => (&mut self.vcenter, "vCenter", None),
            Fact::Vsphere(vsphere::VsphereUpdate::Lost { why }) => (&mut self.vcenter, "vCenter", Some(why)),
            Fact::Kubernetes(kubernetes::KubernetesUpdate::Settled) => {
                (&mut self.kubernetes, "Kubernetes", None)
            }
            Fact::Kubernetes(kubernetes::KubernetesUpdate::Lost { why }) => {
                (&mut self.kubernetes, "Kubernetes", Some(why))
            }
            Fact::Vsphere(_) | Fact::Kubernetes(_) | Fact::Finding(_) => return,
        };
        let is_heard = why.is_none();
        if standing.replace(is_heard) == Some(is_heard) {
            return;
        }
        match why {
            None => info!("{who} synced"),
            Some(why) => warn!("{who} connection lost; maintenance paused until it is back: {why}"),
        }
    }
}
