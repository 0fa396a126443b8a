//! Which PodDisruptionBudgets block drains, and which of them are watched.

use std::collections::BTreeSet;

use super::Inventory;
use crate::facts::kubernetes::{Budget, BudgetState};
use crate::maintenance::observed::{DrainReport, PendingEviction};

/// The maximum number of watched budgets, because each watch is an open request. Evictions that other budgets block are retried
/// at intervals.
const WATCHED_MAX: usize = 64;

impl Inventory {
    /// The budgets that block a drain, to be watched.
    pub(super) fn blocking_budgets(&mut self) -> BTreeSet<Budget> {
        let reports = self.node_states.values().filter_map(|local| local.drain.as_ref());
        // A budget that blocks many pods counts once.
        let all: BTreeSet<Budget> = reports.flat_map(blocking).collect();
        let watched: BTreeSet<Budget> = all.into_iter().take(WATCHED_MAX).collect();
        self.blocked_budgets.retain(|budget| watched.contains(budget));
        watched
    }

    /// Applies the state of a budget. Where it allows an eviction, the reports of the drains that it blocked are out of date.
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

/// The budgets that block pods in this report. Their names come from the text of a refusal, so invalid names are left out.
fn blocking(report: &DrainReport) -> impl Iterator<Item = Budget> {
    let held = report.left.iter().filter_map(PendingEviction::budgets);
    held.flat_map(|(namespace, names)| {
        let names = names.iter().filter(|name| is_name(name));
        names.map(move |name| Budget {
            namespace: namespace.to_owned(),
            name: name.clone(),
        })
    })
}

/// Whether it is a valid object name: a DNS subdomain.
fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    (1..=253).contains(&name.len()) && name.chars().all(is_allowed)
}
