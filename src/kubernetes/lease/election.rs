//! Who leads, decided from what was read of the Lease and when: no I/O, no clock.
//!
//! The rules are client-go's (`tools/leaderelection`): another's Lease counts from the moment at which this process saw
//! it change, on this process's clock, so that clocks may differ by any offset. What is stricter here is the leader's
//! own side: it counts from the moment its last renewal was *sent*, and what may begin late in a term is bounded.

use std::time::Duration;

use jiff::Timestamp;

use crate::fence::BoottimeInstant;

/// The most that another's `leaseDurationSeconds` is believed: what may be configured at most. Anybody who may write
/// the Lease could otherwise keep every replica from leading for years.
const FOREIGN_LEASE_MAX: Duration = Duration::from_secs(600);

/// How long a Lease lasts that was released, as client-go leaves it: nobody holds it, and zero is not valid.
pub(super) const RELEASED: Duration = Duration::from_secs(1);

/// How long a leader that cannot do its work keeps the leadership to itself. A session that is renewed and a set that is
/// told anew take seconds; a vCenter that restarts takes minutes, and is down for every replica alike.
pub const YIELD_AFTER: Duration = Duration::from_secs(30);

/// The greatest `leaseTransitions` that the API holds.
pub(super) const TRANSITIONS_MAX: u64 = i32::MAX as u64;

/// 2020-01-01T00:00:00Z, from which the number of a leadership that follows none is counted in seconds: it then fits
/// the API's 32 bits until 2088.
pub(super) const EPOCHS_BEGIN: i64 = 1_577_836_800;

/// How long there has to be no Lease before one is created. Its epoch is that of a later second than that of any Lease which
/// was deleted before.
const NEW_LEASE_AFTER: Duration = Duration::from_secs(1);

/// The number of a leadership that begins now and follows none: greater than 1, and of every second another.
pub(super) fn new_epoch(now: Timestamp) -> u64 {
    let seconds = now.as_second().saturating_sub(EPOCHS_BEGIN);
    u64::try_from(seconds)
        .unwrap_or_default()
        .clamp(2, TRANSITIONS_MAX)
}

/// The durations of an election. `config` holds their relations: `lease` is at least one and a half times
/// `renew_deadline`, and that at least three times `retry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long others wait after the last renewal they saw, 15 s.
    pub lease: Duration,
    /// How long a leader leads after the last renewal it sent, 10 s.
    pub renew_deadline: Duration,
    /// How often a leader renews and others look, 2 s.
    pub retry: Duration,
    /// How long a leader that cannot do its work keeps the leadership to itself, [`YIELD_AFTER`].
    pub yield_after: Duration,
}

impl Timing {
    /// How much of a term has to be left for something to begin, 3 s of 10: time to make a connection and send. A
    /// leader renews every third of its deadline or more often, so that one lost renewal does not shut the gate.
    pub fn margin(self) -> Duration {
        self.renew_deadline * 3 / 10
    }

    /// How long after a takeover no effect begins, 5 s of 10: the margin, and two seconds for what is on its way.
    pub fn quarantine(self) -> Duration {
        self.renew_deadline / 2
    }

    /// The longest wait for one answer about the Lease, 5 s of 10: two tries fit into a term.
    pub fn call_deadline(self) -> Duration {
        self.renew_deadline / 2
    }
}

/// A Lease as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedLease {
    /// Who holds it; empty where it was released.
    pub holder: String,
    /// How often it has changed hands.
    pub transitions: u64,
    /// What its holder says how long it lasts.
    pub duration: Duration,
    /// When its holder says to have renewed it: compared, never reckoned with.
    pub renewed: Option<String>,
    /// Its resource version, on which the next write is based.
    pub version: String,
    /// Its holder cannot do its work and asks for another to lead.
    pub yields: bool,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElectionStep {
    /// Nothing.
    Wait,
    /// Write the Lease.
    Bid(Bid),
    /// End: this replica leads no longer.
    StepDown(LeadershipLost),
}

/// A write of the Lease with our name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bid {
    /// The version to replace; `None` creates it.
    pub version: Option<String>,
    /// Its `leaseTransitions`, which is the epoch of the leadership.
    pub transitions: u64,
    /// For how long after it no effect begins; a renewal changes nothing about that.
    pub quarantine: Duration,
    /// Whether it says that another may lead: no effect may begin from the moment at which it is sent.
    pub yields: bool,
}

/// How a leadership ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeadershipLost {
    /// It could not be renewed in time.
    Deadline,
    /// Somebody else holds the Lease.
    To(String),
    /// The Lease was deleted while others were allowed to take it.
    Deleted,
}

/// A leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// Which: the Lease's `leaseTransitions`.
    pub epoch: u64,
    /// When it ends unless it is renewed, since boot.
    pub until: Duration,
    /// When effects may begin, since boot.
    pub effects_from: Duration,
    /// The Lease says that another may lead, or may say so: no effect begins.
    pub yields: bool,
}

/// One replica's part in the election.
#[derive(Debug)]
pub struct Election {
    me: String,
    timing: Timing,
    lease: LeaseRead,
    tenure: Option<Leadership>,
    /// Since when this replica cannot do its work, since boot; `None` while it can.
    unable_since: Option<Duration>,
    /// The greatest `leaseTransitions` that was ever seen.
    greatest: u64,
}

#[derive(Debug)]
enum LeaseRead {
    NotYet,
    Absent {
        /// When this process first saw that there is none, awake.
        since: Duration,
    },
    Present {
        seen: ObservedLease,
        /// When this process first saw it like that, awake.
        since: Duration,
    },
}

impl Election {
    /// A candidate of a name that no other process has, not even one that ran in the same pod before.
    pub fn of(me: String, timing: Timing) -> Self {
        Self {
            me,
            timing,
            lease: LeaseRead::NotYet,
            tenure: None,
            unable_since: None,
            greatest: 0,
        }
    }

    /// Takes whether this replica can do its work at `now`.
    pub fn is_able(&mut self, is_able: bool, now: BoottimeInstant) {
        self.unable_since = match (is_able, self.unable_since) {
            (true, _) => None,
            (false, since) => Some(since.unwrap_or(now.since_boot)),
        };
    }

    /// The leadership, where this replica has one.
    pub fn tenure(&self) -> Option<Leadership> {
        self.tenure
    }

    /// Who holds the Lease, as far as is known; `None` for nobody.
    pub fn holder(&self) -> Option<&str> {
        match &self.lease {
            LeaseRead::Present { seen, .. } if !seen.holder.is_empty() => Some(&seen.holder),
            LeaseRead::Present { .. } | LeaseRead::NotYet | LeaseRead::Absent { .. } => None,
        }
    }

    /// Takes what was read at `now`.
    pub fn read(&mut self, lease: Option<ObservedLease>, now: BoottimeInstant) {
        let Some(seen) = lease else {
            let since = match &self.lease {
                LeaseRead::Absent { since } => *since,
                LeaseRead::Present { .. } | LeaseRead::NotYet => now.awake,
            };
            self.lease = LeaseRead::Absent { since };
            return;
        };
        self.greatest = self.greatest.max(seen.transitions);
        let since = match &self.lease {
            LeaseRead::Present { seen: before, since } if before.is_as_old_as(&seen) => *since,
            LeaseRead::Present { .. } | LeaseRead::NotYet | LeaseRead::Absent { .. } => now.awake,
        };
        self.lease = LeaseRead::Present { seen, since };
    }

    /// What to do at `now`. A leadership that follows none that is known takes `new_epoch`, which no leadership before
    /// may have had: the clock tells one.
    pub fn step(&self, now: BoottimeInstant, new_epoch: u64) -> ElectionStep {
        if let Some(tenure) = self.tenure {
            return self.lead_on(tenure, now);
        }
        let new_epoch = new_epoch.max(self.greatest.saturating_add(1));
        let (seen, since) = match &self.lease {
            LeaseRead::Present { seen, since } => (seen, *since),
            LeaseRead::NotYet => return ElectionStep::Wait,
            // Either there never was one, or somebody deleted it under a leader, who then leads to the end of its term.
            LeaseRead::Absent { since } if now.awake.saturating_sub(*since) < NEW_LEASE_AFTER => {
                return ElectionStep::Wait;
            }
            LeaseRead::Absent { .. } => return self.take(None, new_epoch, self.timing.lease),
        };
        let next = match seen.transitions.saturating_add(1) {
            next if next > TRANSITIONS_MAX => new_epoch,
            next => next,
        };
        if seen.holder.is_empty() {
            return if self.is_released(seen) {
                self.take(Some(seen), next, Duration::ZERO)
            } else {
                self.take(Some(seen), new_epoch, self.timing.lease)
            };
        }
        // A bid of ours whose answer was lost. What it replaced is not known any more; it may have been nothing, under a
        // leader whose Lease somebody deleted.
        if seen.holder == self.me {
            return self.take(Some(seen), seen.transitions, self.timing.lease);
        }
        if now.awake.saturating_sub(since) >= self.lasts(seen) {
            return self.take(Some(seen), next, self.timing.quarantine());
        }
        // What its holder had under way may go on until its term ends, which is before its Lease would have run out.
        if seen.yields && self.unable_since.is_none() {
            return self.take(Some(seen), next, self.lasts(seen));
        }
        ElectionStep::Wait
    }

    /// What a leader does: it renews until it is deposed or its term ends.
    fn lead_on(&self, tenure: Leadership, now: BoottimeInstant) -> ElectionStep {
        if now.since_boot >= tenure.until {
            return ElectionStep::StepDown(LeadershipLost::Deadline);
        }
        let version = match &self.lease {
            LeaseRead::NotYet => return ElectionStep::Wait,
            // Whoever had taken it may have been deposed by whoever deleted it; its epoch must not be used again.
            LeaseRead::Absent { .. } if tenure.yields => {
                return ElectionStep::StepDown(LeadershipLost::Deleted);
            }
            LeaseRead::Absent { .. } => None,
            LeaseRead::Present { seen, .. } if seen.holder != self.me => {
                return ElectionStep::StepDown(LeadershipLost::To(seen.holder.clone()));
            }
            LeaseRead::Present { seen, .. } => Some(seen.version.clone()),
        };
        let is_long = |since| now.since_boot.saturating_sub(since) >= self.timing.yield_after;
        ElectionStep::Bid(Bid {
            version,
            transitions: tenure.epoch,
            quarantine: Duration::ZERO,
            yields: self.unable_since.is_some_and(is_long),
        })
    }

    /// Whether a Lease that nobody holds was given back: then nothing is under way. One that was emptied otherwise may
    /// have been so under a leader, as one that is gone. With a configured duration as short as that of a released Lease,
    /// the two cannot be told apart.
    fn is_released(&self, seen: &ObservedLease) -> bool {
        seen.duration == RELEASED && seen.renewed.is_some() && whole_seconds(self.timing.lease) > RELEASED
    }

    /// Takes that `bid` is about to be sent.
    pub fn sends(&mut self, bid: &Bid) {
        if let Some(tenure) = &mut self.tenure {
            tenure.yields |= bid.yields;
        }
    }

    /// Takes that `bid`, sent at `sent`, was accepted and left the Lease as `seen`.
    pub fn won(&mut self, bid: &Bid, seen: ObservedLease, sent: BoottimeInstant) {
        let until = sent.since_boot + self.timing.renew_deadline;
        let effects_from = match self.tenure {
            Some(tenure) => tenure.effects_from,
            None => sent.since_boot + bid.quarantine,
        };
        self.tenure = Some(Leadership {
            epoch: bid.transitions,
            until,
            effects_from,
            yields: bid.yields,
        });
        self.read(Some(seen), sent);
    }

    /// How long to wait until the next step.
    pub fn pause(&self, now: BoottimeInstant) -> Duration {
        let left = match (&self.tenure, &self.lease) {
            (Some(tenure), _) => tenure.until.saturating_sub(now.since_boot),
            (None, LeaseRead::Present { seen, since }) if !seen.holder.is_empty() => {
                (*since + self.lasts(seen)).saturating_sub(now.awake)
            }
            (None, LeaseRead::Absent { since }) => (*since + NEW_LEASE_AFTER).saturating_sub(now.awake),
            (None, LeaseRead::Present { .. } | LeaseRead::NotYet) => self.timing.retry,
        };
        // A lease that runs out while it cannot be read must not be asked for in a circle.
        left.clamp(self.timing.retry / 10, self.timing.retry)
    }

    /// How long another's Lease lasts: as long as ours, or as it says where that is longer, so that replicas of two
    /// configurations agree on the longer one. The API knows whole seconds, and ours may be fractions that were
    /// rounded up.
    fn lasts(&self, seen: &ObservedLease) -> Duration {
        let said = seen.duration.min(FOREIGN_LEASE_MAX);
        if said > whole_seconds(self.timing.lease) {
            said
        } else {
            self.timing.lease
        }
    }

    fn take(&self, replaces: Option<&ObservedLease>, transitions: u64, quarantine: Duration) -> ElectionStep {
        ElectionStep::Bid(Bid {
            version: replaces.map(|seen| seen.version.clone()),
            transitions,
            quarantine,
            yields: false,
        })
    }
}

impl ObservedLease {
    /// Whether nobody has renewed it between the two. Its version is no part of that: who annotates it does not renew.
    fn is_as_old_as(&self, later: &Self) -> bool {
        (&self.holder, self.transitions, self.duration, &self.renewed)
            == (&later.holder, later.transitions, later.duration, &later.renewed)
    }
}

/// `duration` in whole seconds, rounded up, as the API writes it.
pub(super) fn whole_seconds(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs() + u64::from(duration.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests;
