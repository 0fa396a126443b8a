//! Leader election by a Lease of `coordination.k8s.io/v1`: reads and writes it, and opens the gate while it is held.
//!
//! What to do is decided by [`election`], which does no I/O. Here are the calls: each under a deadline of ours, each
//! write a replace with the `resourceVersion` that was read, so that of two bids the kube-apiserver accepts one.

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
use super::answer::{self, ApiRefusal};
use crate::fence::{BoottimeInstant, FenceTerm, WriteFence};
use crate::keys::{FIELD_MANAGER, YIELDS};

pub use refused::{LoginNote, RefusedLogin};

/// The longest wait for the release of the Lease at an orderly end. Who cannot be told waits for it to run out.
const RELEASE_DEADLINE: Duration = Duration::from_secs(1);

/// Which Lease, and by which rules.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Our name in it. No other process may have it.
    pub identity: String,
    /// The durations.
    pub timing: Timing,
    /// The wall clock: for people who read the Lease, and for the number of a leadership that follows none.
    pub clock: fn() -> Timestamp,
}

/// How the election stands, for whoever goes by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElectionStatus {
    /// Who leads, as far as is known; `None` for nobody.
    pub leader: Option<String>,
    /// Our own leadership, where we have one.
    pub lead: Option<HeldLeadership>,
    /// The login that vCenter refused, as the Lease has it.
    pub refused: Option<RefusedLogin>,
}

/// What this replica tells the election.
#[derive(Clone, Debug)]
pub struct Abilities {
    /// Whether it could do a leader's work at the moment, as far as it knows.
    pub can_work: watch::Receiver<bool>,
    /// What the Lease is to say of its logins.
    pub login: watch::Receiver<LoginNote>,
}

/// A leadership that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLeadership {
    /// Which; 0 without an election.
    pub epoch: u64,
    /// How long after its beginning no effect begins.
    pub quarantine: Duration,
    /// This replica cannot do its work and lets another one lead: nothing begins.
    pub yields: bool,
}

impl ElectionStatus {
    /// That of a process without an election.
    pub fn alone() -> Self {
        Self {
            leader: None,
            lead: Some(HeldLeadership {
                epoch: 0,
                quarantine: Duration::ZERO,
                yields: false,
            }),
            refused: None,
        }
    }
}

/// Why a call about the Lease brought nothing.
#[derive(Debug)]
enum LeaseError {
    /// Somebody else wrote it first.
    Overtaken,
    /// What was said, or that nothing was.
    Said(String),
}

/// Takes part in the election until `stop`, or until a leadership was lost, after which nobody knows better than a
/// process that begins anew. At `stop`, the Lease is released if nothing is under way under it.
///
/// A leader that could not do its work for 30 s lets a replica that can take the Lease, and begins nothing meanwhile.
pub async fn run(
    client: kube::Client,
    settings: Settings,
    gate: WriteFence,
    abilities: Abilities,
    standing: watch::Sender<ElectionStatus>,
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
        gate: &gate,
        abilities,
        last: None,
        is_read: false,
        trouble: LeaseTrouble::default(),
    };
    loop {
        // A bid that is under way at the stop is finished within its own deadline, or the release would not know what it
        // releases.
        if candidate.turn(&standing).await.is_break() {
            return;
        }
        let pause = candidate.election.pause(gate.now());
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = candidate.has_news() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
    candidate.release().await;
}

/// One replica and the Lease.
struct Candidate<'a> {
    leases: Api<Lease>,
    settings: &'a Settings,
    gate: &'a WriteFence,
    abilities: Abilities,
    election: Election,
    /// The Lease as it was last read or written. What is not ours in it, labels say, is written back as it was.
    last: Option<Lease>,
    /// Whether `last` is what stands there, as far as is known.
    is_read: bool,
    trouble: LeaseTrouble,
}

/// Whether the Lease is out of reach, so that it is said once each time.
#[derive(Default)]
struct LeaseTrouble(bool);

impl Candidate<'_> {
    /// Reads where that is needed, writes where it is time, and tells what came of it. Breaks when it is over.
    async fn turn(&mut self, standing: &watch::Sender<ElectionStatus>) -> ControlFlow<()> {
        // A leader writes on what it wrote last; everybody else looks first.
        if !self.is_read || self.election.tenure().is_none() {
            let name = &self.settings.name;
            match answer::within(self.deadline(), self.leases.get_opt(name)).await {
                Ok(lease) => self.stands(lease, self.gate.now()),
                Err(refusal) => self.trouble.say("read", &refusal.said(), self.election.tenure()),
            }
        }
        let can_work = *self.abilities.can_work.borrow_and_update();
        self.election.is_able(can_work, self.gate.now());
        match self.step() {
            ElectionStep::Wait => {}
            ElectionStep::StepDown(lost) => {
                self.step_down(&lost, standing);
                return ControlFlow::Break(());
            }
            ElectionStep::Bid(bid) if self.is_read => self.bid(&bid).await,
            ElectionStep::Bid(_) => {}
        }
        self.tell(standing);
        ControlFlow::Continue(())
    }

    fn step(&self) -> ElectionStep {
        let new_epoch = new_epoch((self.settings.clock)());
        self.election.step(self.gate.now(), new_epoch)
    }

    fn is_yielding(&self) -> bool {
        self.election.tenure().is_some_and(|tenure| tenure.yields)
    }

    /// Waits until a leader has something to write that its next renewal would write too late: a host may be waiting for one
    /// that yields and may be able to work again, and another process may be about to log in.
    async fn has_news(&mut self) {
        let (leads, yields) = (self.election.tenure().is_some(), self.is_yielding());
        let Abilities { can_work, login } = &mut self.abilities;
        tokio::select! {
            biased;
            Ok(()) = login.changed(), if leads => {}
            Ok(()) = can_work.changed(), if yields => {}
            else => std::future::pending().await,
        }
    }

    fn stands(&mut self, lease: Option<Lease>, now: BoottimeInstant) {
        self.election.read(lease.as_ref().map(seen), now);
        self.last = lease;
        self.is_read = true;
        self.trouble.over();
    }

    async fn bid(&mut self, bid: &Bid) {
        let led = self.election.tenure().is_some();
        let yielded = self.is_yielding();
        self.election.sends(bid);
        if bid.yields {
            self.gate.pause();
        }
        let sent = self.gate.now();
        let lease = self.lease(bid, self.settings.identity.clone(), self.settings.timing.lease);
        match self.put(&lease, self.deadline()).await {
            Ok(lease) => {
                self.election.won(bid, seen(&lease), sent);
                self.last = Some(lease);
                self.trouble.over();
                self.opens(led, bid);
                if led && yielded && !bid.yields {
                    info!("this replica can do its work again and goes on as the leader");
                }
            }
            Err(LeaseError::Overtaken) => {
                debug!("another replica wrote the Lease first");
                self.is_read = false;
            }
            Err(LeaseError::Said(said)) => {
                // It may have been carried out all the same.
                self.is_read = false;
                self.trouble.say("write", &said, self.election.tenure());
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

    fn opens(&self, led: bool, bid: &Bid) {
        let Some(tenure) = self.election.tenure() else {
            return;
        };
        self.gate.open(FenceTerm {
            epoch: tenure.epoch,
            until: tenure.until,
            margin: self.settings.timing.margin(),
            effects_from: tenure.effects_from,
            yields: tenure.yields,
        });
        if !led {
            info!(
                epoch = tenure.epoch,
                "this replica leads; the first effect comes {:?} from here at the earliest", bid.quarantine
            );
        }
    }

    fn step_down(&self, lost: &LeadershipLost, standing: &watch::Sender<ElectionStatus>) {
        self.gate.close();
        standing.send_replace(ElectionStatus {
            leader: self.election.holder().map(str::to_owned),
            lead: None,
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
            "{why}: this replica leads no longer and ends, so that nothing of its leadership is left; it begins anew as a \
             standby"
        );
    }

    fn tell(&self, standing: &watch::Sender<ElectionStatus>) {
        let leader = self.election.holder().map(str::to_owned);
        let refused = self.last.as_ref().and_then(RefusedLogin::read);
        standing.send_if_modified(|standing| {
            if leader != standing.leader {
                match &leader {
                    Some(leader) if *leader != self.settings.identity => info!("{leader} leads"),
                    Some(_) => {}
                    None => info!("nobody leads"),
                }
            }
            let lead = self.election.tenure().map(|tenure| HeldLeadership {
                epoch: tenure.epoch,
                quarantine: match standing.lead {
                    Some(lead) => lead.quarantine,
                    None => tenure.effects_from.saturating_sub(self.gate.now().since_boot),
                },
                yields: tenure.yields,
            });
            let next = ElectionStatus {
                leader,
                lead,
                refused,
            };
            let changed = *standing != next;
            *standing = next;
            changed
        });
    }

    /// How long one call may take: a leader's not past the end of its term, at which it has to end.
    fn deadline(&self) -> Duration {
        let longest = self.settings.timing.call_deadline();
        self.election.tenure().map_or(longest, |tenure| {
            let left = tenure.until.saturating_sub(self.gate.now().since_boot);
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
        written.map_err(|refusal| match &refusal {
            // 409 is both a conflict and "already exists"; 404 is a replace of what was deleted meanwhile.
            ApiRefusal::Status(status) if matches!(status.code, 404 | 409) => LeaseError::Overtaken,
            ApiRefusal::Status(_) | ApiRefusal::Unreachable(_) => LeaseError::Said(refusal.said()),
        })
    }

    /// The Lease as it shall be.
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
        let acquired = match self.election.tenure() {
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

    /// Gives the Lease back, so that the next leader need not wait: only where nothing that passed the gate is under
    /// way, because the next leader acts at once.
    async fn release(&mut self) {
        if self.election.tenure().is_none() {
            return;
        }
        self.gate.close();
        if tokio::time::timeout(Duration::ZERO, self.gate.idle())
            .await
            .is_err()
        {
            warn!("the Lease is not released, because something is still under way; it runs out by itself");
            return;
        }
        let ElectionStep::Bid(bid) = self.step() else {
            return;
        };
        let bid = Bid { yields: false, ..bid };
        let released = self.lease(&bid, String::new(), election::RELEASED);
        match self.put(&released, RELEASE_DEADLINE).await {
            Ok(_) => info!("released the Lease"),
            Err(LeaseError::Overtaken) => debug!("the Lease was written by somebody else meanwhile"),
            Err(LeaseError::Said(said)) => {
                warn!("the Lease could not be released and runs out by itself: {said}");
            }
        }
    }
}

impl LeaseTrouble {
    fn say(&mut self, verb: &str, said: &str, tenure: Option<Leadership>) {
        if std::mem::replace(&mut self.0, true) {
            return;
        }
        let next = match tenure {
            Some(_) => "it is tried again until the leadership ends",
            None => "this replica cannot lead until it can; it may need get, create and update on leases",
        };
        warn!("cannot {verb} the Lease: {said}; {next}");
    }

    fn over(&mut self) {
        if std::mem::take(&mut self.0) {
            info!("the Lease is within reach again");
        }
    }
}

/// The annotations of a Lease as they shall be: ours say whether its holder yields, and which login was refused; the others
/// stay.
fn annotations(
    standing: Option<BTreeMap<String, String>>,
    yields: bool,
    login: &LoginNote,
) -> Option<BTreeMap<String, String>> {
    let mut annotations = standing.unwrap_or_default();
    if yields {
        annotations.insert(YIELDS.to_owned(), "true".to_owned());
    } else {
        annotations.remove(YIELDS);
    }
    login.write(&mut annotations);
    (!annotations.is_empty()).then_some(annotations)
}

/// What a Lease says, without trusting any of it.
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
