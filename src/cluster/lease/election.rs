//! Who leads, decided from what was read of the Lease and when: no I/O, no clock.
//!
//! The rules are client-go's (`tools/leaderelection`): another's Lease counts from the moment at which this process saw
//! it change, on this process's clock, so that clocks may differ by any offset. What is stricter here is the leader's
//! own side: it counts from the moment its last renewal was *sent*, and what may begin late in a term is bounded.

use std::time::Duration;

use crate::gate::Moment;

/// The most that another's `leaseDurationSeconds` is believed: what may be configured at most. Anybody who may write
/// the Lease could otherwise keep every replica from leading for years.
pub(in crate::cluster) const FOREIGN_LEASE_MAX: Duration = Duration::from_secs(600);

/// How long a Lease lasts that was released, as client-go leaves it: nobody holds it, and zero is not valid.
pub(in crate::cluster) const RELEASED: Duration = Duration::from_secs(1);

/// The three durations of an election. `config` holds their relations: `lease` is at least one and a half times
/// `renew_deadline`, and that at least three times `retry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long others wait after the last renewal they saw, 15 s.
    pub lease: Duration,
    /// How long a leader leads after the last renewal it sent, 10 s.
    pub renew_deadline: Duration,
    /// How often a leader renews and others look, 2 s.
    pub retry: Duration,
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
pub struct Seen {
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
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Wait,
    /// Write the Lease.
    Bid(Bid),
    /// End: this replica leads no longer.
    StepDown(Lost),
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
}

/// How a leadership ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It could not be renewed in time.
    Deadline,
    /// Somebody else holds the Lease.
    To(String),
}

/// A leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenure {
    /// Which: the Lease's `leaseTransitions`.
    pub epoch: u64,
    /// When it ends unless it is renewed, since boot.
    pub until: Duration,
    /// When effects may begin, since boot.
    pub effects_from: Duration,
}

/// One replica's part in the election.
#[derive(Debug)]
pub struct Election {
    me: String,
    timing: Timing,
    lease: Read,
    tenure: Option<Tenure>,
}

#[derive(Debug)]
enum Read {
    NotYet,
    Absent,
    Present {
        seen: Seen,
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
            lease: Read::NotYet,
            tenure: None,
        }
    }

    /// The leadership, where this replica has one.
    pub fn tenure(&self) -> Option<Tenure> {
        self.tenure
    }

    /// Who holds the Lease, as far as is known; `None` for nobody.
    pub fn holder(&self) -> Option<&str> {
        match &self.lease {
            Read::Present { seen, .. } if !seen.holder.is_empty() => Some(&seen.holder),
            Read::Present { .. } | Read::NotYet | Read::Absent => None,
        }
    }

    /// Takes what was read at `now`.
    pub fn read(&mut self, lease: Option<Seen>, now: Moment) {
        let Some(seen) = lease else {
            self.lease = Read::Absent;
            return;
        };
        let since = match &self.lease {
            Read::Present { seen: before, since } if before.is_as_old_as(&seen) => *since,
            Read::Present { .. } | Read::NotYet | Read::Absent => now.awake,
        };
        self.lease = Read::Present { seen, since };
    }

    /// What to do at `now`.
    pub fn step(&self, now: Moment) -> Step {
        let (seen, since) = match &self.lease {
            Read::Present { seen, since } => (seen, *since),
            Read::NotYet => return Step::Wait,
            Read::Absent => {
                return match self.tenure {
                    Some(tenure) if now.since_boot >= tenure.until => Step::StepDown(Lost::Deadline),
                    Some(tenure) => self.bid(None, tenure.epoch, Duration::ZERO),
                    // Either there never was one, or somebody deleted it under a leader, who then leads to the end of
                    // its term.
                    None => self.bid(None, 1, self.timing.lease),
                };
            }
        };
        if let Some(tenure) = self.tenure {
            return if now.since_boot >= tenure.until {
                Step::StepDown(Lost::Deadline)
            } else if seen.holder != self.me {
                Step::StepDown(Lost::To(seen.holder.clone()))
            } else {
                self.bid(Some(seen), tenure.epoch, Duration::ZERO)
            };
        }
        let next = seen.transitions.saturating_add(1);
        if seen.holder.is_empty() {
            // Who releases it has nothing more under way. A Lease that was emptied otherwise may have been so under a
            // leader, as one that is gone.
            let is_released = seen.duration == RELEASED && seen.renewed.is_some();
            let quarantine = if is_released {
                Duration::ZERO
            } else {
                self.timing.lease
            };
            return self.bid(Some(seen), next, quarantine);
        }
        // A bid of ours whose answer was lost. What it replaced is not known any more; it may have been nothing, under a
        // leader whose Lease somebody deleted.
        if seen.holder == self.me {
            return self.bid(Some(seen), seen.transitions, self.timing.lease);
        }
        if now.awake.saturating_sub(since) >= self.lasts(seen) {
            return self.bid(Some(seen), next, self.timing.quarantine());
        }
        Step::Wait
    }

    /// Takes that `bid`, sent at `sent`, was accepted and left the Lease as `seen`.
    pub fn won(&mut self, bid: &Bid, seen: Seen, sent: Moment) {
        let until = sent.since_boot + self.timing.renew_deadline;
        let effects_from = match self.tenure {
            Some(tenure) => tenure.effects_from,
            None => sent.since_boot + bid.quarantine,
        };
        self.tenure = Some(Tenure {
            epoch: bid.transitions,
            until,
            effects_from,
        });
        self.read(Some(seen), sent);
    }

    /// How long to wait until the next step.
    pub fn pause(&self, now: Moment) -> Duration {
        let left = match (&self.tenure, &self.lease) {
            (Some(tenure), _) => tenure.until.saturating_sub(now.since_boot),
            (None, Read::Present { seen, since }) if !seen.holder.is_empty() => {
                (*since + self.lasts(seen)).saturating_sub(now.awake)
            }
            (None, Read::Present { .. } | Read::NotYet | Read::Absent) => self.timing.retry,
        };
        // A lease that runs out while it cannot be read must not be asked for in a circle.
        left.clamp(self.timing.retry / 10, self.timing.retry)
    }

    /// How long another's Lease lasts: as long as ours, or as it says where that is longer, so that replicas of two
    /// configurations agree on the longer one. The API knows whole seconds, and ours may be fractions that were
    /// rounded up.
    fn lasts(&self, seen: &Seen) -> Duration {
        let said = seen.duration.min(FOREIGN_LEASE_MAX);
        if said > whole_seconds(self.timing.lease) {
            said
        } else {
            self.timing.lease
        }
    }

    fn bid(&self, replaces: Option<&Seen>, transitions: u64, quarantine: Duration) -> Step {
        Step::Bid(Bid {
            version: replaces.map(|seen| seen.version.clone()),
            transitions,
            quarantine,
        })
    }
}

impl Seen {
    /// Whether nobody has renewed it between the two. Its version is no part of that: who annotates it does not renew.
    pub(in crate::cluster) fn is_as_old_as(&self, later: &Self) -> bool {
        (&self.holder, self.transitions, self.duration, &self.renewed)
            == (&later.holder, later.transitions, later.duration, &later.renewed)
    }
}

/// `duration` in whole seconds, rounded up, as the API writes it.
pub(in crate::cluster) fn whole_seconds(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs() + u64::from(duration.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests;
