//! Decides who leads from the observed Lease. No I/O, no clock.
//!
//! The rules are those of client-go (`tools/leaderelection`): the Lease of another replica counts from the moment at which this
//! process saw it change, on its own clock, so that clocks may differ by any offset. For the leader the rules are stricter: its
//! time counts from the moment at which the last renewal was *sent*, and nothing begins within the margin at its end.

use std::time::Duration;

use jiff::Timestamp;

use crate::fence::BoottimeInstant;

/// The longest `leaseDurationSeconds` of another replica that is accepted, which is the longest that can be configured. Otherwise
/// anybody who may write the Lease could keep all replicas from leading for years.
const FOREIGN_LEASE_MAX: Duration = Duration::from_secs(600);

/// The duration of a released Lease, as client-go writes it: it has no holder, and zero is not valid.
pub(super) const RELEASED: Duration = Duration::from_secs(1);

/// After how long a leader that cannot work lets another replica take the Lease. A new session and a full sync take seconds; a
/// restart of vCenter takes minutes and concerns all replicas.
pub const YIELD_AFTER: Duration = Duration::from_secs(30);

/// The greatest `leaseTransitions` that the API holds.
pub(super) const TRANSITIONS_MAX: u64 = i32::MAX as u64;

/// 2020-01-01T00:00:00Z. The epoch of the first leadership counts seconds from there, so that it fits 32 bits until 2088.
pub(super) const EPOCHS_BEGIN: i64 = 1_577_836_800;

/// How long there has to be no Lease before one is created, so that its epoch differs from that of a deleted Lease.
const NEW_LEASE_AFTER: Duration = Duration::from_secs(1);

/// The epoch of a leadership without a predecessor: greater than 1, and different in every second.
pub(super) fn new_epoch(now: Timestamp) -> u64 {
    let seconds = now.as_second().saturating_sub(EPOCHS_BEGIN);
    u64::try_from(seconds)
        .unwrap_or_default()
        .clamp(2, TRANSITIONS_MAX)
}

/// The durations of an election. `config` ensures that `lease` is at least one and a half times `renew_deadline`, and
/// `renew_deadline` at least three times `retry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long other replicas wait after the last renewal that they saw; default 15 s.
    pub lease: Duration,
    /// How long a leader leads after the last renewal that it sent; default 10 s.
    pub renew_deadline: Duration,
    /// How often a leader renews and other replicas read; default 2 s.
    pub retry: Duration,
    /// [`YIELD_AFTER`].
    pub yield_after: Duration,
}

impl Timing {
    /// How much time of the leadership has to be left for a permit: 3 s of 10, enough to connect and send. A leader renews at least
    /// three times per deadline, so that one renewal that is refused does not close the fence. One that hangs does, for some seconds.
    pub fn margin(self) -> Duration {
        self.renew_deadline * 3 / 10
    }

    /// How long after a takeover no effect begins: 5 s of 10, which is the margin and two seconds for requests in transit.
    pub fn quarantine(self) -> Duration {
        self.renew_deadline / 2
    }

    /// The deadline of one call: 5 s of 10. A leader whose renewal hangs for so long has time for another attempt.
    pub fn call_deadline(self) -> Duration {
        self.renew_deadline / 2
    }
}

/// The fields of a Lease that the election needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedLease {
    /// `holderIdentity`; empty if released.
    pub holder: String,
    /// `leaseTransitions`.
    pub transitions: u64,
    /// `leaseDurationSeconds`.
    pub duration: Duration,
    /// `renewTime`, as text: it is only compared for equality.
    pub renewed: Option<String>,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// Its holder cannot work and lets another replica lead.
    pub yields: bool,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElectionStep {
    Wait,
    Bid(Bid),
    /// Exit: the leadership is lost.
    StepDown(LeadershipLost),
}

/// A write of the Lease with this replica as the holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bid {
    /// The version to replace; `None` creates it.
    pub version: Option<String>,
    /// The `leaseTransitions`, which is the epoch of the leadership.
    pub transitions: u64,
    /// How long after it no effect begins; not used by a renewal.
    pub quarantine: Duration,
    /// Whether it lets another replica lead: no effect may begin once it is sent.
    pub yields: bool,
}

/// How a leadership ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeadershipLost {
    /// It was not renewed in time.
    Deadline,
    /// Another holder has the Lease.
    To(String),
    /// The Lease was deleted while this replica yielded.
    Deleted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// The `leaseTransitions` of the Lease.
    pub epoch: u64,
    /// When it ends unless it is renewed, since boot.
    pub until: Duration,
    /// When effects may begin, since boot.
    pub effects_from: Duration,
    /// The Lease lets another replica lead, or a write that says so was sent: no effect begins.
    pub yields: bool,
}

/// The election from the view of one replica.
#[derive(Debug)]
pub struct Election {
    me: String,
    timing: Timing,
    lease: LeaseRead,
    leadership: Option<Leadership>,
    /// Since when this replica cannot work, since boot; `None` while it can.
    unable_since: Option<Duration>,
    /// The greatest `leaseTransitions` seen so far.
    greatest: u64,
}

#[derive(Debug)]
enum LeaseRead {
    NotYet,
    Absent {
        /// When this process first saw that there is none, on the clock without suspensions.
        since: Duration,
    },
    Present {
        seen: ObservedLease,
        /// When this process first saw this content, on the clock without suspensions.
        since: Duration,
    },
}

impl Election {
    /// A candidate. `me` must be unique, also among earlier processes of the same pod.
    pub fn of(me: String, timing: Timing) -> Self {
        Self {
            me,
            timing,
            lease: LeaseRead::NotYet,
            leadership: None,
            unable_since: None,
            greatest: 0,
        }
    }

    /// Sets whether this replica can work.
    pub fn set_able(&mut self, is_able: bool, now: BoottimeInstant) {
        self.unable_since = match (is_able, self.unable_since) {
            (true, _) => None,
            (false, since) => Some(since.unwrap_or(now.since_boot)),
        };
    }

    pub fn leadership(&self) -> Option<Leadership> {
        self.leadership
    }

    /// The holder of the Lease, as far as known.
    pub fn holder(&self) -> Option<&str> {
        match &self.lease {
            LeaseRead::Present { seen, .. } if !seen.holder.is_empty() => Some(&seen.holder),
            LeaseRead::Present { .. } | LeaseRead::NotYet | LeaseRead::Absent { .. } => None,
        }
    }

    /// Processes the Lease that was read at `now`.
    pub fn update_lease(&mut self, lease: Option<ObservedLease>, now: BoottimeInstant) {
        let Some(seen) = lease else {
            let since = match &self.lease {
                LeaseRead::Absent { since } => *since,
                LeaseRead::Present { .. } | LeaseRead::NotYet => now.monotonic,
            };
            self.lease = LeaseRead::Absent { since };
            return;
        };
        self.greatest = self.greatest.max(seen.transitions);
        let since = match &self.lease {
            LeaseRead::Present { seen: before, since } if before.is_same_renewal(&seen) => *since,
            LeaseRead::Present { .. } | LeaseRead::NotYet | LeaseRead::Absent { .. } => now.monotonic,
        };
        self.lease = LeaseRead::Present { seen, since };
    }

    /// The step at `now`. A leadership without a known predecessor gets `new_epoch`, which no earlier leadership may have had.
    pub fn step(&self, now: BoottimeInstant, new_epoch: u64) -> ElectionStep {
        if let Some(leadership) = self.leadership {
            return self.renew(leadership, now);
        }
        // A restore of etcd takes leaderships back. The epochs of those that were seen are not used again.
        let (next_epoch, new_epoch) = match self.greatest.saturating_add(1) {
            next if next > TRANSITIONS_MAX => (new_epoch, new_epoch),
            next => (next, new_epoch.max(next)),
        };
        let (seen, since) = match &self.lease {
            LeaseRead::Present { seen, since } => (seen, *since),
            LeaseRead::NotYet => return ElectionStep::Wait,
            LeaseRead::Absent { since } if now.monotonic.saturating_sub(*since) < NEW_LEASE_AFTER => {
                return ElectionStep::Wait;
            }
            // There never was a Lease, or it was deleted under a leader, which still leads until its time ends.
            LeaseRead::Absent { .. } => return self.take(None, new_epoch, self.timing.lease),
        };
        if seen.holder.is_empty() {
            return if self.is_released(seen) {
                self.take(Some(seen), next_epoch, Duration::ZERO)
            } else {
                self.take(Some(seen), new_epoch, self.timing.lease)
            };
        }
        // The reply to our own bid was lost. The Lease that it replaced is unknown; there may have been a leader whose Lease was
        // deleted.
        if seen.holder == self.me {
            return self.take(Some(seen), seen.transitions, self.timing.lease);
        }
        if now.monotonic.saturating_sub(since) >= self.lasts(seen) {
            return self.take(Some(seen), next_epoch, self.timing.quarantine());
        }
        // Running effects of its holder may continue until its leadership ends, which is before its Lease expires.
        if seen.yields && self.unable_since.is_none() {
            return self.take(Some(seen), next_epoch, self.lasts(seen));
        }
        ElectionStep::Wait
    }

    /// The step of a leader: it renews until it is deposed or its time ends.
    fn renew(&self, leadership: Leadership, now: BoottimeInstant) -> ElectionStep {
        if now.since_boot >= leadership.until {
            return ElectionStep::StepDown(LeadershipLost::Deadline);
        }
        let version = match &self.lease {
            LeaseRead::NotYet => return ElectionStep::Wait,
            // Another replica may have taken the Lease before it was deleted; its epoch must not be used again.
            LeaseRead::Absent { .. } if leadership.yields => {
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
            transitions: leadership.epoch,
            quarantine: Duration::ZERO,
            yields: self.unable_since.is_some_and(is_long),
        })
    }

    /// The write that releases the Lease at `now`. The next leader then acts at once, so there is none as long as this one may not
    /// act because of an earlier leader.
    pub fn release(&self, now: BoottimeInstant) -> Option<Bid> {
        let leadership = self.leadership.filter(|it| now.since_boot >= it.effects_from)?;
        match self.renew(leadership, now) {
            ElectionStep::Bid(bid) => Some(Bid { yields: false, ..bid }),
            ElectionStep::Wait | ElectionStep::StepDown(_) => None,
        }
    }

    /// Whether a Lease without a holder was released, so that no effect is running. If it was emptied by other means, or is the one
    /// from before a later leadership, a leader may still be active. With a configured duration as short as [`RELEASED`] a released
    /// and an emptied one cannot be distinguished.
    fn is_released(&self, seen: &ObservedLease) -> bool {
        let is_latest = seen.transitions == self.greatest;
        let is_as_released = seen.duration == RELEASED && seen.renewed.is_some();
        is_latest && is_as_released && whole_seconds(self.timing.lease) > RELEASED
    }

    /// Processes that `bid` is about to be sent.
    pub fn sending(&mut self, bid: &Bid) {
        if let Some(leadership) = &mut self.leadership {
            leadership.yields |= bid.yields;
        }
    }

    /// Processes that `bid`, sent at `sent`, was accepted; `seen` is the Lease after it.
    pub fn won(&mut self, bid: &Bid, seen: ObservedLease, sent: BoottimeInstant) {
        let until = sent.since_boot + self.timing.renew_deadline;
        let effects_from = match self.leadership {
            Some(leadership) => leadership.effects_from,
            None => sent.since_boot + bid.quarantine,
        };
        self.leadership = Some(Leadership {
            epoch: bid.transitions,
            until,
            effects_from,
            yields: bid.yields,
        });
        self.update_lease(Some(seen), sent);
    }

    /// How long to wait until the next step.
    pub fn pause(&self, now: BoottimeInstant) -> Duration {
        let left = match (&self.leadership, &self.lease) {
            (Some(leadership), _) => leadership.until.saturating_sub(now.since_boot),
            (None, LeaseRead::Present { seen, since }) if !seen.holder.is_empty() => {
                (*since + self.lasts(seen)).saturating_sub(now.monotonic)
            }
            (None, LeaseRead::Absent { since }) => (*since + NEW_LEASE_AFTER).saturating_sub(now.monotonic),
            (None, LeaseRead::Present { .. } | LeaseRead::NotYet) => self.timing.retry,
        };
        // An expired Lease that cannot be read must not be read in a busy loop.
        left.clamp(self.timing.retry / 10, self.timing.retry)
    }

    /// The duration of another replica's Lease: the longer one of its own and ours, so that replicas with different settings agree.
    /// The API has whole seconds; ours may have been rounded up.
    fn lasts(&self, seen: &ObservedLease) -> Duration {
        let foreign = seen.duration.min(FOREIGN_LEASE_MAX);
        if foreign > whole_seconds(self.timing.lease) {
            foreign
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
    /// Whether the Lease was not renewed in between. The resource version does not count: an annotation is no renewal.
    fn is_same_renewal(&self, later: &Self) -> bool {
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
