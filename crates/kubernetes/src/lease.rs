//! Leader election by a Lease of `coordination.k8s.io/v1`: reads and writes it, and opens the fence while it is held.
//!
//! [`election`] decides and does no I/O. Every call here has a deadline. Every write replaces the `resourceVersion` that was read,
//! so that the kube-apiserver accepts one of two concurrent bids.

pub mod election;
mod refused;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::PostParams;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use self::election::{
    Bid, Election, ElectionStep, Leadership, LeadershipLost, ObservedLease, Timing, new_epoch, whole_seconds,
};
use super::answer;
use crate::fence::{BoottimeInstant, LeadershipWindow, WriteFence};
use crate::keys::{FIELD_MANAGER, YIELDS};

pub use refused::{LoginNote, RefusedLogin};

/// The longest wait for the release of the Lease at shutdown. A Lease that is not released expires.
const RELEASE_DEADLINE: Duration = Duration::from_secs(1);

/// The Lease and the rules of the election.
#[derive(Clone, Debug)]
pub struct Settings {
    pub namespace: String,
    pub name: String,
    /// The `holderIdentity` of this replica. No other process may have it.
    pub identity: String,
    pub timing: Timing,
    /// The wall clock, for the times in the Lease and for [`new_epoch`].
    pub clock: fn() -> Timestamp,
}

/// The state of the election.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElectionStatus {
    /// The name of the Lease; `None` without leader election.
    pub lease: Option<String>,
    /// The holder of the Lease, as far as known.
    pub leader: Option<String>,
    /// The leadership of this replica.
    pub leadership: Option<HeldLeadership>,
    /// The login that vCenter refused, as noted on the Lease.
    pub refused: Option<RefusedLogin>,
}

/// The input of this replica to the election.
#[derive(Clone, Debug)]
pub struct Abilities {
    /// Whether this replica could work as the leader now.
    pub can_work: watch::Receiver<bool>,
    /// What to note on the Lease about logins.
    pub login: watch::Receiver<LoginNote>,
}

/// A leadership that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLeadership {
    /// The `leaseTransitions` of the Lease; 0 without leader election.
    pub epoch: u64,
    /// How long no effect begins after the takeover.
    pub quarantine: Duration,
    /// This replica cannot work and lets another one lead: nothing begins.
    pub yields: bool,
}

impl ElectionStatus {
    /// The state of a process without leader election.
    pub fn alone() -> Self {
        Self {
            lease: None,
            leader: None,
            leadership: Some(HeldLeadership {
                epoch: 0,
                quarantine: Duration::ZERO,
                yields: false,
            }),
            refused: None,
        }
    }

    /// The state before the first read of the Lease.
    pub fn candidate(lease: &str) -> Self {
        Self {
            lease: Some(lease.to_owned()),
            ..Self::default()
        }
    }
}

/// Why a write of the Lease failed.
#[derive(Debug)]
enum LeaseError {
    /// Another replica wrote the Lease first.
    Conflict,
    Failed(String),
}

/// Takes part in the election until `stop`, or until a leadership is lost; the process has to exit then. At `stop`, the Lease is
/// released if no permit is in use.
///
/// A leader that could not work for [`YIELD_AFTER`](election::YIELD_AFTER) lets another replica take the Lease, and begins nothing
/// meanwhile.
pub async fn run(
    client: kube::Client,
    settings: Settings,
    fence: WriteFence,
    abilities: Abilities,
    status: watch::Sender<ElectionStatus>,
    stop: CancellationToken,
) {
    let Settings {
        namespace,
        name,
        identity,
        timing,
        ..
    } = &settings;
    info!(
        "leader election by the Lease {namespace}/{name} as {identity}: it lasts {:?}, is renewed every {:?}, and is \
         given up {:?} after the last renewal",
        timing.lease, timing.retry, timing.renew_deadline
    );
    let mut candidate = Candidate {
        leases: Api::namespaced(client, namespace),
        election: Election::of(identity.clone(), *timing),
        settings: &settings,
        fence: &fence,
        abilities,
        last: None,
        is_read: false,
        outage: LeaseOutage::default(),
    };
    loop {
        // A bid is finished before the stop, because the release needs its result.
        if candidate.reconcile(&status).await.is_break() {
            return;
        }
        let pause = candidate.election.pause(fence.now());
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = candidate.abilities_changed() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
    candidate.release().await;
}

struct Candidate<'a> {
    leases: Api<Lease>,
    settings: &'a Settings,
    fence: &'a WriteFence,
    abilities: Abilities,
    election: Election,
    /// The Lease as it was last read or written. Foreign fields, such as labels, are written back unchanged.
    last: Option<Lease>,
    /// Whether `last` is current, as far as known.
    is_read: bool,
    outage: LeaseOutage,
}

/// Whether the Lease is unreachable, so that each outage is logged once.
#[derive(Default)]
struct LeaseOutage(bool);

impl Candidate<'_> {
    /// Reads the Lease if needed, writes it if due, and publishes the state. Breaks when the leadership is lost.
    async fn reconcile(&mut self, status: &watch::Sender<ElectionStatus>) -> ControlFlow<()> {
        // A leader writes on the version that it wrote last; a standby reads first.
        if !self.is_read || self.election.leadership().is_none() {
            let name = &self.settings.name;
            match answer::within(self.deadline(), self.leases.get_opt(name)).await {
                Ok(lease) => self.observe(lease, self.fence.now()),
                Err(refusal) => self
                    .outage
                    .report("read", &refusal.to_string(), self.election.leadership()),
            }
        }
        let can_work = *self.abilities.can_work.borrow_and_update();
        self.election.set_able(can_work, self.fence.now());
        match self.step() {
            ElectionStep::Wait => {}
            ElectionStep::StepDown(lost) => {
                self.step_down(&lost, status);
                return ControlFlow::Break(());
            }
            ElectionStep::Bid(bid) if self.is_read => self.bid(&bid).await,
            ElectionStep::Bid(_) => {}
        }
        self.publish(status);
        ControlFlow::Continue(())
    }

    fn step(&self) -> ElectionStep {
        let new_epoch = new_epoch((self.settings.clock)());
        self.election.step(self.fence.now(), new_epoch)
    }

    fn is_yielding(&self) -> bool {
        self.election
            .leadership()
            .is_some_and(|leadership| leadership.yields)
    }

    /// Waits for a change that a leader has to write before its next renewal: that it can work again after it yielded, or the
    /// result of a login, which other replicas need before they log in.
    async fn abilities_changed(&mut self) {
        let (leads, yields) = (self.election.leadership().is_some(), self.is_yielding());
        let Abilities { can_work, login } = &mut self.abilities;
        tokio::select! {
            biased;
            Ok(()) = login.changed(), if leads => {}
            Ok(()) = can_work.changed(), if yields => {}
            else => std::future::pending().await,
        }
    }

    fn observe(&mut self, lease: Option<Lease>, now: BoottimeInstant) {
        self.election.update_lease(lease.as_ref().map(seen), now);
        self.last = lease;
        self.is_read = true;
        self.outage.end_outage();
    }

    async fn bid(&mut self, bid: &Bid) {
        let led = self.election.leadership().is_some();
        let yielded = self.is_yielding();
        self.election.sending(bid);
        if bid.yields {
            self.fence.pause();
        }
        let sent = self.fence.now();
        let lease = self.lease(bid, self.settings.identity.clone(), self.settings.timing.lease);
        match self.put(&lease, self.deadline()).await {
            Ok(lease) => {
                self.election.won(bid, seen(&lease), sent);
                self.last = Some(lease);
                self.outage.end_outage();
                self.open_fence(led, bid);
                if led && yielded && !bid.yields {
                    info!("this replica can do its work again and goes on as the leader");
                }
            }
            Err(LeaseError::Conflict) => {
                debug!("another replica wrote the Lease first");
                self.is_read = false;
            }
            Err(LeaseError::Failed(message)) => {
                // The write may have been accepted nevertheless.
                self.is_read = false;
                self.outage.report("write", &message, self.election.leadership());
            }
        }
        if bid.yields && !yielded {
            warn!(
                "this replica leads and has had no vCenter connection for {:?}: it starts nothing more and lets a replica that \
                 is connected to vCenter take the Lease; if there is none, it continues when vCenter is back",
                self.settings.timing.yield_after
            );
        }
    }

    fn open_fence(&self, led: bool, bid: &Bid) {
        let Some(leadership) = self.election.leadership() else {
            return;
        };
        self.fence.open(LeadershipWindow {
            epoch: leadership.epoch,
            until: leadership.until,
            margin: self.settings.timing.margin(),
            effects_from: leadership.effects_from,
            yields: leadership.yields,
        });
        if !led {
            info!(
                epoch = leadership.epoch,
                "this replica leads; the first effect begins in {:?} at the earliest", bid.quarantine
            );
        }
    }

    fn step_down(&self, lost: &LeadershipLost, status: &watch::Sender<ElectionStatus>) {
        self.fence.close();
        status.send_replace(ElectionStatus {
            lease: Some(self.settings.name.clone()),
            leader: self.election.holder().map(str::to_owned),
            leadership: None,
            refused: None,
        });
        let why = match lost {
            LeadershipLost::Deadline => format!(
                "the Lease could not be renewed within {:?}",
                self.settings.timing.renew_deadline
            ),
            LeadershipLost::To(holder) if holder.is_empty() => "somebody has emptied the Lease".to_owned(),
            LeadershipLost::To(holder) => format!("{holder} holds the Lease"),
            LeadershipLost::Deleted => "somebody has deleted the Lease".to_owned(),
        };
        error!(
            "{why}: this replica lost its leadership and exits, so that nothing of its leadership is left; it restarts as a \
             standby"
        );
    }

    fn publish(&self, status: &watch::Sender<ElectionStatus>) {
        let leader = self.election.holder().map(str::to_owned);
        let refused = self.last.as_ref().and_then(RefusedLogin::read);
        status.send_if_modified(|status| {
            if leader != status.leader {
                match &leader {
                    Some(leader) if *leader != self.settings.identity => info!("{leader} leads"),
                    Some(_) => {}
                    None => info!("nobody leads"),
                }
            }
            let leadership = self.election.leadership().map(|leadership| HeldLeadership {
                epoch: leadership.epoch,
                quarantine: match status.leadership {
                    Some(leadership) => leadership.quarantine,
                    None => leadership
                        .effects_from
                        .saturating_sub(self.fence.now().since_boot),
                },
                yields: leadership.yields,
            });
            let next = ElectionStatus {
                lease: Some(self.settings.name.clone()),
                leader,
                leadership,
                refused,
            };
            let changed = *status != next;
            *status = next;
            changed
        });
    }

    /// The deadline of one call: for a leader at most until its leadership ends.
    fn deadline(&self) -> Duration {
        let longest = self.settings.timing.call_deadline();
        self.election.leadership().map_or(longest, |leadership| {
            let left = leadership.until.saturating_sub(self.fence.now().since_boot);
            longest.min(left)
        })
    }

    async fn put(&self, lease: &Lease, deadline: Duration) -> Result<Lease, LeaseError> {
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let written = if lease.metadata.resource_version.is_some() {
            let replace = self.leases.replace(&self.settings.name, &params, lease);
            answer::within(deadline, replace).await
        } else {
            answer::within(deadline, self.leases.create(&params, lease)).await
        };
        written.map_err(|refusal| match refusal.code() {
            // 409 is a conflict or "already exists"; 404 means that the Lease was deleted meanwhile.
            Some(404 | 409) => LeaseError::Conflict,
            Some(_) | None => LeaseError::Failed(refusal.to_string()),
        })
    }

    /// The Lease that `bid` writes.
    fn lease(&self, bid: &Bid, holder: String, lasts: Duration) -> Lease {
        let now = MicroTime((self.settings.clock)());
        let base = self.last.clone().filter(|_| bid.version.is_some());
        let base = base.unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.settings.name.clone()),
                namespace: Some(self.settings.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        let spec = base.spec.unwrap_or_default();
        let acquired = match self.election.leadership() {
            Some(_) => spec.acquire_time.clone(),
            None => Some(now.clone()),
        };
        Lease {
            metadata: ObjectMeta {
                resource_version: bid.version.clone(),
                managed_fields: None,
                annotations: annotations(
                    base.metadata.annotations,
                    bid.yields,
                    &self.abilities.login.borrow(),
                ),
                ..base.metadata
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder),
                lease_duration_seconds: i32::try_from(whole_seconds(lasts).as_secs()).ok(),
                lease_transitions: i32::try_from(bid.transitions).ok(),
                renew_time: Some(now),
                acquire_time: acquired,
                ..spec
            }),
        }
    }

    /// Releases the Lease, so that the next leader need not wait. Only if no permit is in use, because the next leader acts at
    /// once.
    async fn release(&mut self) {
        if self.election.leadership().is_none() {
            return;
        }
        self.fence.close();
        if tokio::time::timeout(Duration::ZERO, self.fence.idle())
            .await
            .is_err()
        {
            warn!(
                "the Lease is not released, because an effect or a write is still running; it expires by itself"
            );
            return;
        }
        let Some(bid) = self.election.release(self.fence.now()) else {
            info!(
                "the Lease is not released, because it is lost or an earlier leader may still act; it expires by itself"
            );
            return;
        };
        let released = self.lease(&bid, String::new(), election::RELEASED);
        match self.put(&released, RELEASE_DEADLINE).await {
            Ok(_) => info!("released the Lease"),
            Err(LeaseError::Conflict) => debug!("another replica wrote the Lease meanwhile"),
            Err(LeaseError::Failed(message)) => {
                warn!("the Lease could not be released and expires by itself: {message}");
            }
        }
    }
}

impl LeaseOutage {
    fn report(&mut self, verb: &str, message: &str, leadership: Option<Leadership>) {
        if std::mem::replace(&mut self.0, true) {
            return;
        }
        let next = match leadership {
            Some(_) => "it is tried again until the leadership ends",
            None => "this replica cannot lead until that works; it may need get, create and update on leases",
        };
        warn!("cannot {verb} the Lease: {message}; {next}");
    }

    fn end_outage(&mut self) {
        if std::mem::take(&mut self.0) {
            info!("the Lease is reachable again");
        }
    }
}

/// The annotations of the Lease, with ours updated: whether its holder yields, and which login was refused.
fn annotations(
    status: Option<BTreeMap<String, String>>,
    yields: bool,
    login: &LoginNote,
) -> Option<BTreeMap<String, String>> {
    let mut annotations = status.unwrap_or_default();
    if yields {
        annotations.insert(YIELDS.to_owned(), "true".to_owned());
    } else {
        annotations.remove(YIELDS);
    }
    login.write(&mut annotations);
    (!annotations.is_empty()).then_some(annotations)
}

/// Reads a Lease. Its content is not trusted.
fn seen(lease: &Lease) -> ObservedLease {
    let spec = lease.spec.as_ref();
    let number = |number: Option<i32>| number.and_then(|it| u64::try_from(it).ok()).unwrap_or_default();
    ObservedLease {
        holder: spec
            .and_then(|spec| spec.holder_identity.as_deref())
            .map(answer::plain)
            .unwrap_or_default(),
        transitions: number(spec.and_then(|spec| spec.lease_transitions)),
        duration: Duration::from_secs(number(spec.and_then(|spec| spec.lease_duration_seconds))),
        renewed: spec
            .and_then(|spec| spec.renew_time.as_ref())
            .map(|MicroTime(time)| time.to_string()),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
        yields: lease
            .metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(YIELDS))
            .is_some_and(|yields| yields == "true"),
    }
}

#[cfg(test)]
mod stand_in;
#[cfg(test)]
mod tests;
