//! When refused evictions are asked for again: as late as `Retry-After` says, and less often for a budget that stays blocked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::clock::Monotonic;
use super::observed::{DrainReport, PendingEviction, PendingReason};

/// The first pause after a budget refused an eviction; it doubles with each refusal in a row. It is also the shortest
/// time between two rounds that ask a budget: twenty evictions a second are little for a kube-apiserver.
pub const BUDGET_RETRY_MIN: Duration = Duration::from_millis(50);

/// What the rounds of a drain have learned about refused evictions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvictionBackoff {
    /// By pod, the end of the pause that `Retry-After` asked for.
    pub retry_at: BTreeMap<String, Monotonic>,
    /// The pods that the latest round listed and did not ask, because it was too early.
    pub deferred: BTreeSet<String>,
    /// The budgets that held pods in the latest round.
    budgets: BTreeMap<BudgetKey, BlockedBudget>,
}

/// The namespace, and the names as far as the kube-apiserver told them.
type BudgetKey = (String, Vec<String>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct BlockedBudget {
    /// How many pods it holds.
    pods: usize,
    /// How many rounds in a row it let none of them go.
    refusals: u32,
    /// When the round began in which it was asked last.
    asked_at: Monotonic,
    /// It is watched and allows no eviction: the watch tells when that changes.
    is_watched: bool,
}

impl EvictionBackoff {
    /// What a round learned that did not ask the pods in `deferred`.
    pub fn of_round(retry_at: BTreeMap<String, Monotonic>, deferred: BTreeSet<String>) -> Self {
        Self {
            retry_at,
            deferred,
            budgets: BTreeMap::new(),
        }
    }

    /// Takes what a watch told of one budget. Gives whether it holds a pod of this drain.
    pub fn budget_changed(&mut self, namespace: &str, name: &str, is_blocked: bool, allows: bool) -> bool {
        let mut is_held = false;
        for ((of, names), budget) in &mut self.budgets {
            if of == namespace && names.iter().any(|held| held == name) {
                is_held = true;
                budget.is_watched = is_blocked && names.len() == 1;
                if allows {
                    budget.refusals = 0;
                }
            }
        }
        is_held
    }
}

impl DrainReport {
    /// Carries on from the report `before`. A budget is watched where `is_watched` says so of its namespace and name.
    pub fn follow(&mut self, before: Option<&Self>, is_watched: impl Fn(&str, &str) -> bool) {
        let none = EvictionBackoff::default();
        let before = before.map_or(&none, |before| &before.backoff);
        let mut held: BTreeMap<BudgetKey, (usize, bool)> = BTreeMap::new();
        for pod in &self.left {
            let is_deferred = self.backoff.deferred.contains(&pod.name);
            if is_deferred && let Some(at) = before.retry_at.get(&pod.name) {
                self.backoff.retry_at.entry(pod.name.clone()).or_insert(*at);
            }
            if let Some(key) = budget(pod) {
                let (pods, is_asked) = held.entry(key).or_default();
                *pods += 1;
                *is_asked |= !is_deferred;
            }
        }
        let listed_at = self.listed_at;
        let blocked = held.into_iter().map(|(key, (pods, is_asked))| {
            let last = before.budgets.get(&key);
            let (refusals, asked_at) = match last {
                Some(last) if !is_asked => (last.refusals, last.asked_at),
                Some(last) if pods >= last.pods => (last.refusals.saturating_add(1), listed_at),
                // It let a pod go.
                Some(_) | None => (1, listed_at),
            };
            let is_watched = match key.1.as_slice() {
                [name] => is_watched(&key.0, name),
                // One that is not named cannot be watched; of several, each would have to allow it.
                _ => false,
            };
            let budget = BlockedBudget {
                pods,
                refusals,
                asked_at,
                is_watched,
            };
            (key, budget)
        });
        self.backoff.budgets = blocked.collect();
    }

    /// When the eviction of `pod` is asked for again; `None` where the pod leaves by itself. That is when the
    /// kube-apiserver says so, or else after `retry`, and at the latest after that where a budget refused it.
    pub fn retry_at(&self, pod: &PendingEviction, retry: Duration) -> Option<Monotonic> {
        let told = self.backoff.retry_at.get(&pod.name).copied();
        match &pod.why {
            PendingReason::Leaving => None,
            PendingReason::Budget { .. } => Some(self.budget_due(pod, retry)).max(told),
            PendingReason::Migrating { .. } | PendingReason::Refused { .. } | PendingReason::NotReached => {
                told.or_else(|| Some(self.listed_at.after(retry)))
            }
        }
    }

    /// The pods that a round at `now` does not ask, each with the reason why it is still there.
    pub fn deferred(&self, now: Monotonic, retry: Duration) -> BTreeMap<String, PendingReason> {
        let is_early = |pod: &&PendingEviction| {
            let told = self.backoff.retry_at.get(&pod.name).copied();
            let of_budget = budget(pod).map(|_| self.budget_due(pod, retry));
            told.max(of_budget) > Some(now)
        };
        let early = self.left.iter().filter(is_early);
        early.map(|pod| (pod.name.clone(), pod.why.clone())).collect()
    }

    /// Whether a budget holds pods.
    pub fn is_held(&self) -> bool {
        self.left.iter().any(|pod| budget(pod).is_some())
    }

    fn budget_due(&self, pod: &PendingEviction, retry: Duration) -> Monotonic {
        let blocked = budget(pod).and_then(|key| self.backoff.budgets.get(&key));
        let Some(blocked) = blocked else {
            return self.listed_at.after(BUDGET_RETRY_MIN);
        };
        let longest = retry.max(BUDGET_RETRY_MIN);
        let pause = if blocked.is_watched && blocked.refusals > 0 {
            longest
        } else {
            // Sixteen doublings make most of an hour, and keep the multiplication from overflowing.
            let doublings = blocked.refusals.saturating_sub(1).min(16);
            BUDGET_RETRY_MIN.saturating_mul(1 << doublings).min(longest)
        };
        blocked.asked_at.after(pause)
    }
}

/// The budgets that hold `pod`, where a budget is why it is still there.
fn budget(pod: &PendingEviction) -> Option<BudgetKey> {
    match &pod.why {
        PendingReason::Budget { names, .. } => {
            let namespace = pod.name.split_once('/').map_or("", |(namespace, _)| namespace);
            Some((namespace.to_owned(), names.clone()))
        }
        PendingReason::Leaving
        | PendingReason::Migrating { .. }
        | PendingReason::Refused { .. }
        | PendingReason::NotReached => None,
    }
}

#[cfg(test)]
mod tests;
