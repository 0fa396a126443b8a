//! What the owner of the cluster has decided beforehand.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// The configured part of every decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `DRAIN_TIMEOUT_SECONDS`, from the cordon.
    pub drain_timeout: Duration,
    /// `DRAIN_TIMEOUT_ACTION`.
    pub drain_timeout_action: DrainTimeoutAction,
    /// `EVICTION_RETRY_SECONDS`: how long after a round with refused evictions the next one comes, and at the latest after
    /// one in which a budget held pods.
    pub eviction_retry: Duration,
    /// `GUEST_SHUTDOWN_TIMEOUT_SECONDS`, from the record that the guest is being shut down.
    pub guest_shutdown_timeout: Duration,
    /// `RELOCATE_TIMEOUT_SECONDS`, from the record that the VM is being relocated.
    pub relocate_timeout: Duration,
    /// `POWER_ON_TIMEOUT_SECONDS`, for the power-on, and again for the node to be back.
    pub power_on_timeout: Duration,
    /// `POLL_INTERVAL_SECONDS`: how old a survey of other hosts may be.
    pub survey_every: Duration,
    /// `REQUIRE_APPROVAL`: no drain begins on a Node that no person has approved.
    pub require_approval: bool,
    /// The first wait after a refusal; it doubles with each refusal in a row.
    pub retry_min: Duration,
    /// `RETRY_MAX_SECONDS`: the longest wait after a refusal, and the pace of everything that waits for a person.
    pub retry_max: Duration,
}

/// What happens when the drain timeout passes with pods left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainTimeoutAction {
    /// Go on and cut the power; the pods left behind are named.
    PowerOff,
    /// Never cut the power on pods: wait on, visibly.
    Hold,
}

impl Policy {
    /// How long to wait after `refusals` refusals in a row.
    pub fn backoff(&self, refusals: u32) -> Duration {
        // Sixteen doublings exceed any `retry_max` that makes sense, and keep the multiplication from overflowing.
        let doublings = refusals.saturating_sub(1).min(16);
        self.retry_min.saturating_mul(1 << doublings).min(self.retry_max)
    }
}

/// `from` plus `span`, or the end of time where that does not exist.
pub fn after(from: Timestamp, span: Duration) -> Timestamp {
    SignedDuration::try_from(span)
        .ok()
        .and_then(|span| from.checked_add(span).ok())
        .unwrap_or(Timestamp::MAX)
}
