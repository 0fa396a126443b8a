//! The one loop that gives facts to the inventory and snapshots to the actors.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::observer::{ConnectionState, Observers, WatchedApi};
use super::run_effect::RunEffect;
use super::supervisor::{Supervisor, send_if_changed};
use crate::failure_log::FailureStreak;
use haulout_core::ids::NodeName;
use haulout_core::inventory::{Changes, Fact, Inventory};
use haulout_core::maintenance::clock::{Deadline, Monotonic, Now, whole_second};
use haulout_core::maintenance::effect_report::EffectReport;
use haulout_core::maintenance::observed::LeadershipEpoch;
use haulout_core::status::statuses;
use haulout_kubernetes::lease::ElectionStatus;
use haulout_kubernetes::update::{Budget, KubernetesUpdate};
use haulout_vsphere::update::{VsphereUpdate, WatchSet};

/// The maximum number of facts that are applied before snapshots are built. The initial set of 2,500 hosts is at least 2,500 facts: a
/// build after each would build every snapshot each time, and a build after all of them would delay the actors.
const BATCH: usize = 1024;

/// The longest time between two turns of the loop, which `/livez` checks.
pub(crate) const LIVENESS_TICK: Duration = Duration::from_secs(1);

/// A request for a copy of the inventory.
pub type InventoryRequest = oneshot::Sender<Inventory>;

/// The receivers of the loop.
#[derive(Debug)]
pub struct EventSources {
    pub vsphere: mpsc::Receiver<VsphereUpdate>,
    pub kubernetes: mpsc::Receiver<KubernetesUpdate>,
    pub reports: mpsc::Receiver<EffectReport>,
    pub election: watch::Receiver<ElectionStatus>,
    pub copies: mpsc::Receiver<InventoryRequest>,
}

/// What the streams have to watch.
#[derive(Debug, Default)]
pub struct WatchSenders {
    pub watch_set: watch::Sender<WatchSet>,
    pub draining: watch::Sender<BTreeSet<NodeName>>,
    pub budgets: watch::Sender<BTreeSet<Budget>>,
    /// Nodes with an open episode that the selector does not match any more.
    pub followed: watch::Sender<BTreeSet<NodeName>>,
}

/// Runs until `stop`. No stream ends before that.
pub async fn run<P: RunEffect>(
    mut sources: EventSources,
    subscriptions: WatchSenders,
    mut inventory: Inventory,
    mut supervisor: Supervisor<P>,
    observers: Observers,
    clock: fn() -> Now,
    stop: CancellationToken,
) {
    let mut connections = ConnectionLog::default();
    let mut epoch = None;
    let mut tick = interval(LIVENESS_TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    sources.election.mark_changed();
    loop {
        observers.tell(|it| it.turned());
        let timer = time_until(inventory.next_at(), clock);
        // Priority: shutdown, leadership, effect results (actors wait for them), actor exits, API updates, timers, copies of the inventory, tick.
        let first = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Ok(()) = sources.election.changed() => {
                let status = sources.election.borrow_and_update();
                tell_election(&status, &observers);
                leadership(&status, &mut epoch, clock())
            }
            Some(report) = sources.reports.recv() => Some(Fact::Effect(report)),
            () = supervisor.reap() => None,
            Some(update) = sources.kubernetes.recv() => Some(Fact::Kubernetes(update)),
            Some(update) = sources.vsphere.recv() => Some(Fact::Vsphere(update)),
            () = timer => None,
            Some(asker) = sources.copies.recv() => {
                if !asker.is_closed() {
                    let _ = asker.send(inventory.clone());
                }
                None
            }
            _ = tick.tick() => {
                if epoch.is_some() {
                    observers.tell(|it| it.leader_tick(&inventory));
                }
                None
            }
        };
        let more = std::iter::from_fn(|| sources.try_next()).take(if first.is_some() { BATCH } else { 0 });
        let facts = first.into_iter().chain(more);
        let facts = facts.inspect(|fact| tell_fact(fact, &mut connections, &observers));
        let began = clock();
        let Changes { requested, built } = inventory.advance(facts, began);
        if let Some(requested) = requested {
            send_if_changed(&subscriptions.followed, requested.followed);
            send_if_changed(&subscriptions.watch_set, requested.watch_set);
            observers.tell(|it| it.applied(&inventory));
        }
        let Some(mut built) = built else { continue };
        send_if_changed(&subscriptions.draining, std::mem::take(&mut built.draining));
        send_if_changed(&subscriptions.budgets, std::mem::take(&mut built.budgets));
        let statuses = Arc::new(statuses(&built.snapshots));
        observers.tell(|it| it.built(&statuses));
        // The actors of a replica that loses the leadership keep their last snapshots: the write fence is closed, and the process exits.
        if !built.is_standby {
            observers.tell(|it| it.built_by_leader(&statuses, &inventory));
            supervisor.update_snapshots(built.snapshots);
        }
        let now = clock();
        inventory.record_build_time(now, now.monotonic.since(began.monotonic));
    }
    supervisor.close().await;
}

fn tell_election(status: &ElectionStatus, observers: &Observers) {
    if let Some(lease) = &status.lease {
        observers.tell(|it| it.election(lease, status));
    }
}

fn tell_fact(fact: &Fact, connections: &mut ConnectionLog, observers: &Observers) {
    if let Some((api, state)) = ConnectionState::of_fact(fact) {
        connections.log_state(api, state);
        observers.tell(|it| it.connection(api, state));
    }
    observers.tell(|it| it.fact(fact));
}

/// Ends at `at`, if that is a time.
async fn time_until(at: Option<Monotonic>, clock: fn() -> Now) {
    match at {
        Some(at) => tokio::time::sleep(at.since(clock().monotonic)).await,
        None => std::future::pending().await,
    }
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
    fn log_state(&mut self, api: WatchedApi, state: ConnectionState<'_>) {
        let connection = match api {
            WatchedApi::Vcenter => &mut self.vcenter,
            WatchedApi::Kubernetes => &mut self.kubernetes,
        };
        match state {
            ConnectionState::Synced => connection.log_change(api, None),
            ConnectionState::Lost { why } => connection.log_change(api, Some(why)),
            ConnectionState::Reading { .. } => {}
        }
    }
}

impl SourceConnection {
    fn log_change(&mut self, api: WatchedApi, lost: Option<&str>) {
        let api = api.name();
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
