//! Turns at vCenter's login: one replica at a time sends the credentials, and after a refusal none does for a while.
//!
//! A Lease of its own says whose turn it is. Whoever logs in takes it before and gives it back after; whoever was refused
//! keeps it for as long as the account is to be spared. It asks for no leader, because a standby logs in as well, and for
//! nothing that tells of the credentials: a replica that has other ones waits like everybody else.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::PostParams;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::answer::{self, Refusal};
use super::lease::election::{FOREIGN_LEASE_MAX, RELEASED, Seen, whole_seconds};
use super::lease::{Settings, seen};
use crate::keys::FIELD_MANAGER;

/// The longest wait for one answer about the Lease, as a leader's with the defaults.
const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// How long a login of somebody else is waited for before that is told as an error: most take a tenth of that.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often is looked whether it is over.
const LOOK: Duration = Duration::from_millis(250);

/// How often the Lease of a refusal is written where the kube-apiserver does not answer: it is what spares the account.
const TRIES: usize = 3;

/// This replica's part in taking turns.
pub struct Turns {
    leases: Api<Lease>,
    settings: Settings,
    known: Mutex<Known>,
}

/// The Lease as it was last seen, and since when it has not changed.
#[derive(Default)]
struct Known(Option<(Seen, Instant)>);

/// Whose turn it is.
#[derive(Debug, PartialEq, Eq)]
enum Whose {
    /// Ours, if we want it.
    Free,
    /// Somebody else's, who gives it back or lets it run out.
    Taken { holder: String, left: Duration },
}

/// Why it is not our turn.
#[derive(Debug, thiserror::Error)]
pub enum NotYet {
    /// Somebody else has it.
    #[error(
        "{holder} has the turn to log in, or its credentials were refused; this replica tries in {} s at the latest, and not \
         before, because repeated failures lock the account", .left.as_secs()
    )]
    Taken {
        /// Who.
        holder: String,
        /// For how long at most.
        left: Duration,
    },
    /// Nobody says whose turn it is.
    #[error("the Lease {name}, by which replicas take turns to log in, is out of reach: {said}")]
    OutOfReach {
        /// Which.
        name: String,
        /// What was said instead.
        said: String,
    },
}

impl Turns {
    /// Among the replicas that share the Lease of `election`, by another whose name is that one's and `-login`.
    pub fn beside(client: kube::Client, election: &Settings) -> Self {
        let settings = Settings {
            name: format!("{}-login", election.name),
            ..election.clone()
        };
        Self {
            leases: Api::namespaced(client, &settings.namespace),
            settings,
            known: Mutex::default(),
        }
    }

    /// Takes the turn, which is ours for `longest` then, and waits a little for somebody else to end theirs.
    ///
    /// # Errors
    /// Where it is somebody else's for longer than that, or nobody says whose it is.
    pub async fn take(&self, longest: Duration) -> Result<(), NotYet> {
        let began = Instant::now();
        loop {
            let read = answer::within(CALL_DEADLINE, self.leases.get_opt(&self.settings.name)).await;
            let lease = read.map_err(|refusal| self.out_of_reach(&refusal))?;
            let now = Instant::now();
            let whose = {
                let mut known = self.known();
                known.read(lease.as_ref().map(seen), now);
                known.whose(&self.settings.identity, now)
            };
            match whose {
                Whose::Free => match self.put(lease.as_ref(), &self.settings.identity, longest).await {
                    Ok(()) => return Ok(()),
                    Err(refusal) if was_overtaken(&refusal) => {}
                    Err(refusal) => return Err(self.out_of_reach(&refusal)),
                },
                Whose::Taken { holder, left } if now.duration_since(began) >= PATIENCE || left > longest => {
                    return Err(NotYet::Taken { holder, left });
                }
                Whose::Taken { .. } => {}
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Gives the turn back, or, after a refusal, keeps it for `hold`.
    pub async fn end(&self, hold: Option<Duration>) {
        let (holder, lasts) = match hold {
            Some(hold) => (self.settings.identity.as_str(), hold),
            None => ("", RELEASED),
        };
        for _ in 0..TRIES {
            let said = match self.write_ours(holder, lasts).await {
                Ok(()) => return,
                Err(refusal) if was_overtaken(&refusal) => {
                    debug!("the turn to log in had run out and is somebody else's");
                    return;
                }
                Err(refusal) => refusal.said(),
            };
            let name = &self.settings.name;
            warn!("the end of the turn to log in could not be written to the Lease {name}: {said}");
        }
    }

    /// Replaces the Lease as long as it is the one that was written last.
    async fn write_ours(&self, holder: &str, lasts: Duration) -> Result<(), Refusal> {
        let read = answer::within(CALL_DEADLINE, self.leases.get_opt(&self.settings.name)).await?;
        let is_ours = read
            .as_ref()
            .is_some_and(|lease| seen(lease).holder == self.settings.identity);
        if !is_ours {
            debug!("the turn to log in is somebody else's by now");
            return Ok(());
        }
        self.put(read.as_ref(), holder, lasts).await
    }

    async fn put(&self, replaced: Option<&Lease>, holder: &str, lasts: Duration) -> Result<(), Refusal> {
        let now = MicroTime((self.settings.clock)());
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.settings.name.clone()),
                namespace: Some(self.settings.namespace.clone()),
                resource_version: replaced.and_then(|lease| lease.metadata.resource_version.clone()),
                labels: replaced.and_then(|lease| lease.metadata.labels.clone()),
                annotations: replaced.and_then(|lease| lease.metadata.annotations.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                lease_duration_seconds: i32::try_from(whole_seconds(lasts).as_secs()).ok(),
                acquire_time: Some(now.clone()),
                renew_time: Some(now),
                ..LeaseSpec::default()
            }),
        };
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let written = if replaced.is_some() {
            let replace = self.leases.replace(&self.settings.name, &params, &lease);
            answer::within(CALL_DEADLINE, replace).await
        } else {
            answer::within(CALL_DEADLINE, self.leases.create(&params, &lease)).await
        };
        written.map(|_| ())
    }

    fn out_of_reach(&self, refusal: &Refusal) -> NotYet {
        NotYet::OutOfReach {
            name: self.settings.name.clone(),
            said: refusal.said(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Takes what was read at `now`. Another's turn counts from when this process saw it begin, on its own clock.
    fn read(&mut self, seen: Option<Seen>, now: Instant) {
        self.0 = seen.map(|seen| match &self.0 {
            Some((before, since)) if before.is_as_old_as(&seen) => (seen, *since),
            Some(_) | None => (seen, now),
        });
    }

    fn whose(&self, me: &str, now: Instant) -> Whose {
        let Some((seen, since)) = &self.0 else {
            return Whose::Free;
        };
        let lasts = seen.duration.min(FOREIGN_LEASE_MAX);
        let left = lasts.saturating_sub(now.duration_since(*since));
        if seen.holder.is_empty() || seen.holder == me || left.is_zero() {
            return Whose::Free;
        }
        Whose::Taken {
            holder: seen.holder.clone(),
            left,
        }
    }
}

/// 409 is both a conflict and "already exists"; 404 is a replace of what was deleted meanwhile.
fn was_overtaken(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::Status(status) => matches!(status.code, 404 | 409),
        Refusal::Unreachable(_) => false,
    }
}

#[cfg(test)]
mod tests;
