//! When refused evictions are retried: after `Retry-After`, and less often for a budget that stays blocked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{DrainReport, PendingEviction, PendingReason};
use crate::maintenance::clock::{Monotonic, doubled};

/// The first pause after a budget refused an eviction, which doubles with each refusal in a row. It is also the shortest time between
/// two rounds with a blocked budget.
pub const BUDGET_RETRY_MIN: Duration = Duration::from_millis(50);

/// The state of refused evictions over the rounds of a drain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvictionBackoff {
    /// By pod, the end of the pause that `Retry-After` set.
    pub retry_at: BTreeMap<String, Monotonic>,
    /// The pods whose eviction was not due in the latest round.
    pub deferred: BTreeSet<String>,
    /// The budgets that blocked pods in the latest round.
    budgets: BTreeMap<BudgetKey, BlockedBudget>,
}

/// The namespace, and the names as far as the kube-apiserver reports them.
type BudgetKey = (String, Vec<String>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct BlockedBudget {
    /// The number of pods that it blocks.
    pods: usize,
    /// The number of rounds in a row in which it allowed no eviction.
    refusals: u32,
    /// When the last round began that requested an eviction.
    asked_at: Monotonic,
    /// It is watched and allows no eviction; the watch reports a change.
    is_watched: bool,
}

impl EvictionBackoff {
    /// The state after a round that did not request evictions of `deferred`.
    pub fn of_round(retry_at: BTreeMap<String, Monotonic>, deferred: BTreeSet<String>) -> Self {
        Self {
            retry_at,
            deferred,
            budgets: BTreeMap::new(),
        }
    }

    /// Processes a change of a watched budget. Returns whether it blocks a pod of this drain.
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
    /// Continues the backoff and the terminating pods of the report `before`. `is_watched` takes the namespace and the name of a budget.
    pub fn follow(&mut self, before: Option<&Self>, is_watched: impl Fn(&str, &str) -> bool) {
        let none = EvictionBackoff::default();
        for (name, pod) in &mut self.terminating {
            let known = before.and_then(|before| before.terminating.get(name));
            if let Some(known) = known.filter(|known| known.uid == pod.uid) {
                pod.since = known.since;
            }
        }
        let before = before.map_or(&none, |before| &before.backoff);
        let mut held: BTreeMap<BudgetKey, (usize, bool)> = BTreeMap::new();
        for pod in &self.left {
            let is_deferred = self.backoff.deferred.contains(&pod.name);
            if is_deferred && let Some(at) = before.retry_at.get(&pod.name) {
                self.backoff.retry_at.entry(pod.name.clone()).or_insert(*at);
            }
            if let Some(key) = budget_key(pod) {
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
                // It allowed an eviction.
                Some(_) | None => (1, listed_at),
            };
            let is_watched = match key.1.as_slice() {
                [name] => is_watched(&key.0, name),
                // A budget without a name cannot be watched. If several block a pod, all of them have to allow it.
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

    /// When the eviction of `pod` is retried: at the time that the kube-apiserver set, or after at most `retry`. `None` for a
    /// terminating pod, and for one that waits for the others.
    pub fn retry_at(&self, pod: &PendingEviction, retry: Duration) -> Option<Monotonic> {
        let by_server = self.backoff.retry_at.get(&pod.name).copied();
        match &pod.why {
            PendingReason::Leaving | PendingReason::Last | PendingReason::Waits { .. } => None,
            PendingReason::Budget { .. } => Some(self.budget_due(pod, retry)).max(by_server),
            PendingReason::Migrating { .. } | PendingReason::Refused { .. } | PendingReason::NotReached => {
                by_server.or_else(|| Some(self.listed_at.after(retry)))
            }
        }
    }

    /// The pods whose eviction is not due at `now`, each with the reason why it is still there.
    pub fn deferred(&self, now: Monotonic, retry: Duration) -> BTreeMap<String, PendingReason> {
        let is_early = |pod: &&PendingEviction| {
            let by_server = self.backoff.retry_at.get(&pod.name).copied();
            let of_budget = pod.budgets().map(|_| self.budget_due(pod, retry));
            by_server.max(of_budget) > Some(now)
        };
        let early = self.left.iter().filter(is_early);
        early.map(|pod| (pod.name.clone(), pod.why.clone())).collect()
    }

    /// Whether a budget blocks pods.
    pub fn is_held(&self) -> bool {
        self.left.iter().any(|pod| pod.budgets().is_some())
    }

    fn budget_due(&self, pod: &PendingEviction, retry: Duration) -> Monotonic {
        let blocked = budget_key(pod).and_then(|key| self.backoff.budgets.get(&key));
        let Some(blocked) = blocked else {
            return self.listed_at.after(BUDGET_RETRY_MIN);
        };
        let longest = retry.max(BUDGET_RETRY_MIN);
        let pause = if blocked.is_watched && blocked.refusals > 0 {
            longest
        } else {
            doubled(BUDGET_RETRY_MIN, blocked.refusals.saturating_sub(1), longest)
        };
        blocked.asked_at.after(pause)
    }
}

/// The budgets that block `pod`.
fn budget_key(pod: &PendingEviction) -> Option<BudgetKey> {
    let (namespace, names) = pod.budgets()?;
    Some((namespace.to_owned(), names.to_vec()))
}

#[cfg(test)]
mod tests;
