//! Which PodDisruptionBudgets block the eviction of a pod, read from the budgets. Pure.
//!
//! This predicts the reply of the eviction API for the subcommands. It follows `pkg/registry/core/pod/storage/eviction.go` of
//! Kubernetes.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::{Selector, SelectorExt as _};

/// What blocks the eviction of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BudgetHold {
    /// One budget, which allows no disruption now.
    Budget {
        name: String,
        /// How many healthy pods it needs.
        needs: i32,
        /// How many there are.
        has: i32,
        /// It never allows one.
        is_for_ever: bool,
    },
    /// More than one budget selects it, which the eviction API refuses.
    Several(Vec<String>),
}

/// What blocks the eviction of `pod` now.
pub fn hold(pod: &Pod, budgets: &[PodDisruptionBudget]) -> Option<BudgetHold> {
    // Budgets do not apply to a pod that has not started.
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Pending" | "Succeeded" | "Failed")) || pod.metadata.deletion_timestamp.is_some()
    {
        return None;
    }
    let of_pod: Vec<&PodDisruptionBudget> = budgets.iter().filter(|budget| selects(budget, pod)).collect();
    match of_pod.as_slice() {
        [] => None,
        [budget] => blocks(budget, is_ready(pod)),
        several => Some(BudgetHold::Several(
            several.iter().map(|budget| name(budget)).collect(),
        )),
    }
}

/// Whether `budget` can never allow a disruption while it has pods: it needs as many healthy ones as it expects.
pub fn is_never_satisfied(budget: &PodDisruptionBudget) -> bool {
    let gives_none = |value: &IntOrString| match value {
        IntOrString::Int(number) => *number == 0,
        IntOrString::String(percent) => percent == "0%",
    };
    let by_spec = budget
        .spec
        .as_ref()
        .and_then(|spec| spec.max_unavailable.as_ref())
        .is_some_and(gives_none);
    budget.status.as_ref().is_some_and(|status| {
        let expected = status.expected_pods.unwrap_or(0);
        expected > 0 && (by_spec || status.desired_healthy.unwrap_or(0) >= expected)
    })
}

/// The budget's `namespace/name`.
pub fn full_name(budget: &PodDisruptionBudget) -> String {
    format!(
        "{}/{}",
        budget.metadata.namespace.as_deref().unwrap_or_default(),
        name(budget)
    )
}

fn name(budget: &PodDisruptionBudget) -> String {
    budget.metadata.name.clone().unwrap_or_default()
}

/// Whether `budget` selects `pod`. Without a selector it selects none, with an empty one all of its namespace.
pub fn selects(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    if budget.metadata.namespace != pod.metadata.namespace {
        return false;
    }
    let Some(selector) = budget.spec.as_ref().and_then(|spec| spec.selector.clone()) else {
        return false;
    };
    let none = BTreeMap::new();
    let labels = pod.metadata.labels.as_ref().unwrap_or(&none);
    // The kube-apiserver does not admit an invalid selector.
    Selector::try_from(selector).is_ok_and(|selector| selector.matches(labels))
}

fn blocks(budget: &PodDisruptionBudget, pod_is_ready: bool) -> Option<BudgetHold> {
    let status = budget.status.clone().unwrap_or_default();
    let (needs, has) = (
        status.desired_healthy.unwrap_or(0),
        status.current_healthy.unwrap_or(0),
    );
    let policy = budget
        .spec
        .as_ref()
        .and_then(|spec| spec.unhealthy_pod_eviction_policy.as_deref());
    let goes_as_unhealthy = !pod_is_ready
        && match policy {
            Some("AlwaysAllow") => true,
            Some(_) | None => has >= needs && needs > 0,
        };
    if goes_as_unhealthy || status.disruptions_allowed.unwrap_or(0) > 0 {
        return None;
    }
    Some(BudgetHold::Budget {
        name: name(budget),
        needs,
        has,
        is_for_ever: is_never_satisfied(budget),
    })
}

pub(super) fn is_ready(pod: &Pod) -> bool {
    pod.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

impl fmt::Display for BudgetHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Budget {
                name,
                needs,
                has,
                is_for_ever,
            } => {
                write!(
                    f,
                    "held by PodDisruptionBudget {name}, which needs {needs} healthy pods and has {has}"
                )?;
                if *is_for_ever {
                    f.write_str(": it can never allow a disruption")?;
                }
                Ok(())
            }
            Self::Several(names) => write!(
                f,
                "selected by PodDisruptionBudgets {}: no pod of more than one is evicted",
                names.join(", ")
            ),
        }
    }
}

#[cfg(test)]
mod tests;
