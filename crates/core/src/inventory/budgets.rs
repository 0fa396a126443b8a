//! Which PodDisruptionBudgets hold drains, and which of them tell by themselves when they allow the next eviction.

use std::collections::BTreeSet;

use super::Inventory;
use crate::facts::kubernetes::{Budget, BudgetState};
use crate::maintenance::observed::{DrainReport, PendingEviction, PendingReason};

/// The most budgets that are watched at once. Each is a request that state; a fleet that is drained at once may be held by
/// hundreds, and those beyond are asked from time to time.
const WATCHED_MAX: usize = 64;

impl Inventory {
    /// The budgets that hold a drain, for the watch of budgets.
    pub(super) fn blocking_budgets(&mut self) -> BTreeSet<Budget> {
        let reports = self.node_states.values().filter_map(|local| local.drain.as_ref());
        // One budget holds many pods, and takes one place.
        let all: BTreeSet<Budget> = reports.flat_map(holding).collect();
        let holding: BTreeSet<Budget> = all.into_iter().take(WATCHED_MAX).collect();
        self.blocked_budgets.retain(|budget| holding.contains(budget));
        holding
    }

    /// Takes what is told of a budget: where it allows an eviction, the rounds of the drains that it held are out of date.
    pub(super) fn apply_budget(&mut self, budget: Budget, state: BudgetState) {
        let (is_blocked, allows) = (state == BudgetState::Blocks, state == BudgetState::Allows);
        for local in self.node_states.values_mut() {
            let Some(report) = &mut local.drain else { continue };
            let backoff = &mut report.backoff;
            let is_held = backoff.budget_changed(&budget.namespace, &budget.name, is_blocked, allows);
            if is_held && allows {
                local.pods_revision = local.pods_revision.wrapping_add(1);
            }
        }
        if is_blocked {
            self.blocked_budgets.insert(budget);
        } else {
            self.blocked_budgets.remove(&budget);
        }
    }
}

/// The budgets that hold pods in this report. Their names are read out of the words of a refusal; what cannot be the name
/// of an object is left out.
fn holding(report: &DrainReport) -> impl Iterator<Item = Budget> {
    report.left.iter().flat_map(|pod| {
        let namespace = pod.name.split_once('/').map_or("", |(namespace, _)| namespace);
        let names = names(pod).unwrap_or_default().iter().filter(|name| is_name(name));
        names.map(move |name| Budget {
            namespace: namespace.to_owned(),
            name: name.clone(),
        })
    })
}

/// The budgets that a refusal names, where a budget is why the pod is still there.
fn names(pod: &PendingEviction) -> Option<&[String]> {
    match &pod.why {
        PendingReason::Budget { names, .. } => Some(names),
        PendingReason::Leaving
        | PendingReason::Migrating { .. }
        | PendingReason::Refused { .. }
        | PendingReason::NotReached => None,
    }
}

/// Whether it can be the name of an object: a DNS subdomain.
fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    (1..=253).contains(&name.len()) && name.chars().all(is_allowed)
}
