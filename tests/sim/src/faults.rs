//! Which faults a run draws, and when they fire.

use std::time::Duration;

use fastrand::Rng;

use crate::account::Account;

/// The kinds of faults, in the order of their probabilities.
pub const FAULTS: &[&str] = &[
    "vcenter: connection refused",
    "vcenter: reply lost",
    "vcenter: HTTP 503",
    "vcenter: no reply",
    "vcenter: long poll cut",
    "vcenter: task fails",
    "vcenter: sessions expire",
    "vcenter: restart",
    "vcenter: host not responding",
    "vcenter: VM dies",
    "kubernetes: connection refused",
    "kubernetes: reply lost",
    "kubernetes: HTTP 5xx",
    "kubernetes: HTTP 429",
    "kubernetes: no reply",
    "kubernetes: watch cut",
    "kubernetes: watch lags",
    "kubernetes: history compacted",
    "kubernetes: conflict",
    "kubernetes: outage",
    "kubernetes: Node loses its label",
    "kubernetes: Node deleted",
    "replica: killed",
    "replica: stopped",
    "replica: wall clock steps",
    "guest: ignores the shutdown",
    "pod: ends late",
    "adversary: kubelet",
    "adversary: tenant",
];

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is answered.
    Answered,
    /// It does not arrive.
    Refused,
    /// It is carried out, and its reply is lost.
    ReplyLost,
    /// A proxy or the server answers with this status, and nothing is carried out.
    Status(u16),
    /// It is never answered, and not carried out.
    Silence,
}

/// The faults of a run.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The probability of each fault in 10,000, by its index in [`FAULTS`].
    chances: Vec<u32>,
    /// Faults have ended, and liveness is checked.
    pub is_calm: bool,
}

impl Faults {
    /// A fifth of the seeds has no faults, and one has a part of them.
    pub fn draw(rng: &mut Rng, is_calm: bool) -> Self {
        let chances = FAULTS.iter().map(|name| {
            if is_calm || rng.u32(0..100) < 50 {
                return 0;
            }
            let most = if is_frequent(name) { 100 } else { 2_500 };
            rng.u32(1..=most)
        });
        Self {
            chances: chances.collect(),
            is_calm,
        }
    }

    /// The names of the faults that may fire.
    pub fn names(&self) -> Vec<&'static str> {
        let drawn = FAULTS.iter().zip(&self.chances);
        drawn
            .filter(|(_, chance)| **chance > 0)
            .map(|(name, _)| *name)
            .collect()
    }

    /// Whether a fault fires now.
    pub fn fires(&self, name: &'static str, rng: &mut Rng, account: &mut Account) -> bool {
        let index = FAULTS.iter().position(|it| *it == name);
        let chance = index.and_then(|index| self.chances.get(index)).copied();
        let fires = !self.is_calm && chance.is_some_and(|chance| chance > 0 && rng.u32(0..10_000) < chance);
        if fires {
            account.count("fault", name);
        }
        fires
    }

    /// Whether a fault was drawn for this run.
    pub fn has(&self, name: &str) -> bool {
        !self.is_calm && self.names().contains(&name)
    }

    /// The fate of a call to vCenter.
    pub fn of_vcenter(&self, is_poll: bool, rng: &mut Rng, account: &mut Account) -> Fate {
        let fires = |name, rng: &mut Rng, account: &mut Account| self.fires(name, rng, account);
        if fires("vcenter: connection refused", rng, account) {
            Fate::Refused
        } else if !is_poll && fires("vcenter: reply lost", rng, account) {
            Fate::ReplyLost
        } else if fires("vcenter: HTTP 503", rng, account) {
            Fate::Status(503)
        } else if fires("vcenter: no reply", rng, account) {
            Fate::Silence
        } else {
            Fate::Answered
        }
    }

    /// The fate of a request to the kube-apiserver.
    pub fn of_kubernetes(&self, is_write: bool, rng: &mut Rng, account: &mut Account) -> Fate {
        let fires = |name, rng: &mut Rng, account: &mut Account| self.fires(name, rng, account);
        if fires("kubernetes: connection refused", rng, account) {
            Fate::Refused
        } else if is_write && fires("kubernetes: reply lost", rng, account) {
            Fate::ReplyLost
        } else if fires("kubernetes: HTTP 5xx", rng, account) {
            Fate::Status(if rng.bool() { 500 } else { 503 })
        } else if fires("kubernetes: HTTP 429", rng, account) {
            Fate::Status(429)
        } else if fires("kubernetes: no reply", rng, account) {
            Fate::Silence
        } else {
            Fate::Answered
        }
    }

    /// Whether a task of the controller fails.
    pub fn task_fails(&self, rng: &mut Rng, account: &mut Account) -> bool {
        self.fires("vcenter: task fails", rng, account)
    }

    /// How long a guest takes to shut down; `None` for one that does not.
    pub fn guest_shutdown(&self, rng: &mut Rng, account: &mut Account) -> Option<Duration> {
        let ignores = self.fires("guest: ignores the shutdown", rng, account);
        (!ignores).then(|| Duration::from_millis(rng.u64(2_000..20_000)))
    }

    /// How long a pod takes to end.
    pub fn pod_ends(&self, rng: &mut Rng, account: &mut Account) -> Duration {
        match self.fires("pod: ends late", rng, account) {
            true => Duration::from_millis(rng.u64(30_000..400_000)),
            false => Duration::from_millis(rng.u64(200..5_000)),
        }
    }
}

/// Whether a fault is drawn for each request, and not for each chance of a whole run.
fn is_frequent(name: &str) -> bool {
    let rare = [
        "vcenter: task fails",
        "vcenter: sessions expire",
        "vcenter: restart",
        "kubernetes: outage",
        "kubernetes: watch cut",
        "kubernetes: history compacted",
        "replica: killed",
        "replica: stopped",
        "replica: wall clock steps",
        "guest: ignores the shutdown",
        "pod: ends late",
    ];
    !rare.contains(&name)
}
