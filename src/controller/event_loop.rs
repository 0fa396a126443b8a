//! The one loop that gives facts to the inventory and snapshots to the actors.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::run_effect::RunEffect;
use super::supervisor::{Supervisor, send_if_changed};
use crate::failure_log::FailureStreak;
use crate::ids::NodeName;
use crate::inventory::{Built, Changes, Fact, Inventory};
use crate::kubernetes::lease::ElectionStatus;
use crate::kubernetes::update::{Budget, KubernetesUpdate};
use crate::maintenance::clock::{Deadline, Now, whole_second};
use crate::maintenance::effect_report::EffectReport;
use crate::maintenance::observed::LeadershipEpoch;
use crate::vsphere::update::{VsphereUpdate, WatchSet};

/// The maximum number of facts that are applied before snapshots are built. The initial set of 2,500 hosts is as many facts: a
/// build after each would build every snapshot each time, and no build until all are applied would delay the actors.
const BATCH: usize = 1024;

/// The longest time between two turns of the loop, which `/livez` checks.
pub(crate) const LIVENESS_TICK: Duration = Duration::from_secs(1);

/// The receivers of the loop.
#[derive(Debug)]
pub(crate) struct EventSources {
    pub(crate) vsphere: mpsc::Receiver<VsphereUpdate>,
    pub(crate) kubernetes: mpsc::Receiver<KubernetesUpdate>,
    pub(crate) reports: mpsc::Receiver<EffectReport>,
    pub(crate) election: watch::Receiver<ElectionStatus>,
}

/// What the streams have to watch.
#[derive(Debug)]
pub(crate) struct Subscriptions {
    watch_set: watch::Sender<WatchSet>,
    draining: watch::Sender<BTreeSet<NodeName>>,
    budgets: watch::Sender<BTreeSet<Budget>>,
    followed: watch::Sender<BTreeSet<NodeName>>,
}

/// The streams' side of [`Subscriptions`].
pub(crate) struct Wanted {
    pub(crate) watch_set: watch::Receiver<WatchSet>,
    pub(crate) draining: watch::Receiver<BTreeSet<NodeName>>,
    pub(crate) budgets: watch::Receiver<BTreeSet<Budget>>,
    /// Nodes with an open episode that the selector does not match any more.
    pub(crate) followed: watch::Receiver<BTreeSet<NodeName>>,
}

/// Observes the loop. No method may wait.
pub(crate) trait LoopObserver {
    fn turned(&self);
    fn election(&self, status: &ElectionStatus);
    fn fact(&self, fact: &Fact);
    /// Facts were applied; snapshots are not built yet.
    fn applied(&self, inventory: &Inventory);
    fn built(&self, built: &Built, inventory: &Inventory);
    /// Every [`LIVENESS_TICK`], on the leader.
    fn liveness_tick(&self, inventory: &Inventory);
}

impl Subscriptions {
    pub(crate) fn channels() -> (Self, Wanted) {
        let (watch_set_sender, watch_set) = watch::channel(WatchSet::default());
        let (draining_sender, draining) = watch::channel(BTreeSet::new());
        let (budgets_sender, budgets) = watch::channel(BTreeSet::new());
        let (followed_sender, followed) = watch::channel(BTreeSet::new());
        let senders = Self {
            watch_set: watch_set_sender,
            draining: draining_sender,
            budgets: budgets_sender,
            followed: followed_sender,
        };
        let wanted = Wanted {
            watch_set,
            draining,
            budgets,
            followed,
        };
        (senders, wanted)
    }
}

/// Runs until `stop`, or until a stream has ended for good, which none does before `stop`.
pub(crate) async fn run<P: RunEffect>(
    mut sources: EventSources,
    subscriptions: Subscriptions,
    mut inventory: Inventory,
    mut supervisor: Supervisor<P>,
    observer: impl LoopObserver,
    clock: fn() -> Now,
    stop: CancellationToken,
) {
    let mut connections = ConnectionLog::default();
    let mut epoch = None;
    let mut tick = interval(LIVENESS_TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    sources.election.mark_changed();
    loop {
        observer.turned();
        let next_at = inventory.next_at();
        let timer = async {
            match next_at {
                Some(at) => tokio::time::sleep(at.since(clock().monotonic)).await,
                None => std::future::pending().await,
            }
        };
        // Priority: shutdown, leadership, effect results (actors wait for them), actor exits, API updates, timers, liveness tick.
        let first = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Ok(()) = sources.election.changed() => {
                let status = sources.election.borrow_and_update();
                observer.election(&status);
                leadership(&status, &mut epoch, clock())
            }
            Some(report) = sources.reports.recv() => Some(Fact::Effect(report)),
            () = supervisor.reap() => None,
            Some(update) = sources.kubernetes.recv() => Some(Fact::Kubernetes(update)),
            Some(update) = sources.vsphere.recv() => Some(Fact::Vsphere(update)),
            () = timer => None,
            _ = tick.tick() => {
                if epoch.is_some() {
                    observer.liveness_tick(&inventory);
                }
                None
            }
            else => break,
        };
        let more = std::iter::from_fn(|| sources.try_next()).take(if first.is_some() { BATCH } else { 0 });
        let facts = first.into_iter().chain(more).inspect(|fact| {
            connections.log_fact(fact);
            observer.fact(fact);
        });
        let began = clock();
        let Changes { requested, built } = inventory.advance(facts, began);
        if let Some(requested) = requested {
            send_if_changed(&subscriptions.followed, requested.followed);
            send_if_changed(&subscriptions.watch_set, requested.watch_set);
            observer.applied(&inventory);
        }
        let Some(mut built) = built else { continue };
        send_if_changed(&subscriptions.draining, std::mem::take(&mut built.draining));
        send_if_changed(&subscriptions.budgets, std::mem::take(&mut built.budgets));
        observer.built(&built, &inventory);
        if !built.is_standby {
            supervisor.update_snapshots(built.snapshots);
        }
        let now = clock();
        inventory.spent(now, now.monotonic.since(began.monotonic));
    }
    supervisor.close().await;
}

/// The fact that leadership has changed since `epoch`, if it has.
fn leadership(status: &ElectionStatus, epoch: &mut Option<u64>, now: Now) -> Option<Fact> {
    let before = std::mem::replace(
        epoch,
        status.leadership.as_ref().map(|leadership| leadership.epoch),
    );
    if before == *epoch {
        return None;
    }
    Some(Fact::Leadership(status.leadership.map(|leadership| {
        let acts_from = now.after(leadership.quarantine);
        LeadershipEpoch {
            epoch: leadership.epoch,
            acts_from: (!leadership.quarantine.is_zero()).then_some(Deadline {
                at: acts_from.monotonic,
                shown: whole_second(acts_from.wall),
            }),
        }
    })))
}

impl EventSources {
    fn try_next(&mut self) -> Option<Fact> {
        None.or_else(|| self.reports.try_recv().ok().map(Fact::Effect))
            .or_else(|| self.kubernetes.try_recv().ok().map(Fact::Kubernetes))
            .or_else(|| self.vsphere.try_recv().ok().map(Fact::Vsphere))
    }
}

/// Logs each change of a connection, and ever more rarely that it is still lost.
#[derive(Debug, Default)]
struct ConnectionLog {
    vcenter: SourceConnection,
    kubernetes: SourceConnection,
}

#[derive(Debug, Default)]
struct SourceConnection {
    is_synced: bool,
    failures: FailureStreak,
}

impl ConnectionLog {
    fn log_fact(&mut self, fact: &Fact) {
        let (connection, api, lost) = match fact {
            Fact::Vsphere(VsphereUpdate::Settled) => (&mut self.vcenter, "vCenter", None),
            Fact::Vsphere(VsphereUpdate::Lost { why }) => (&mut self.vcenter, "vCenter", Some(why)),
            Fact::Kubernetes(KubernetesUpdate::Settled) => (&mut self.kubernetes, "Kubernetes", None),
            Fact::Kubernetes(KubernetesUpdate::Lost { why }) => {
                (&mut self.kubernetes, "Kubernetes", Some(why))
            }
            Fact::Vsphere(_) | Fact::Kubernetes(_) | Fact::Effect(_) | Fact::Leadership(_) => return,
        };
        connection.log_change(api, lost.map(String::as_str));
    }
}

impl SourceConnection {
    fn log_change(&mut self, api: &str, lost: Option<&str>) {
        let was_synced = std::mem::replace(&mut self.is_synced, lost.is_none());
        match lost {
            None => match self.failures.ended().filter(|count| *count > 1) {
                None if was_synced => {}
                None => info!("{api} synced"),
                Some(count) => info!("{api} synced, after {count} attempts that failed"),
            },
            Some(why) => match self.failures.failed() {
                None => {}
                Some(1) => warn!("{api} connection lost; maintenance paused until it is back: {why}"),
                Some(count) => warn!("{api} connection still lost after {count} attempts: {why}"),
            },
        }
    }
}
