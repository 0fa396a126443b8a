use serde_json::json;

use super::*;

fn pod(labels: serde_json::Value, phase: &str, ready: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ml", "labels": labels},
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
    }))
    .unwrap()
}

fn budget(name: &str, spec: serde_json::Value, status: serde_json::Value) -> PodDisruptionBudget {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ml"}, "spec": spec, "status": status,
    }))
    .unwrap()
}

fn web(allowed: i32, needs: i32, has: i32, expected: i32) -> PodDisruptionBudget {
    budget(
        "web",
        json!({"minAvailable": needs, "selector": {"matchLabels": {"app": "web"}}}),
        json!({"disruptionsAllowed": allowed, "desiredHealthy": needs, "currentHealthy": has, "expectedPods": expected}),
    )
}

#[test]
fn a_budget_without_a_disruption_to_give_holds_its_pods_and_no_others() {
    let ours = pod(json!({"app": "web"}), "Running", "True");
    let held = hold(&ours, &[web(0, 2, 2, 3)]).unwrap();
    assert_eq!(
        held.to_string(),
        "held by PodDisruptionBudget web, which needs 2 healthy pods and has 2"
    );
    assert_eq!(hold(&ours, &[web(1, 2, 3, 3)]), None);
    assert_eq!(
        hold(&pod(json!({"app": "db"}), "Running", "True"), &[web(0, 2, 2, 3)]),
        None
    );
    let mut elsewhere = web(0, 2, 2, 3);
    elsewhere.metadata.namespace = Some("other".to_owned());
    assert_eq!(hold(&ours, &[elsewhere]), None);
}

#[test]
fn a_pod_that_does_not_run_yet_goes_whatever_a_budget_says() {
    assert_eq!(
        hold(
            &pod(json!({"app": "web"}), "Pending", "False"),
            &[web(0, 2, 2, 3)]
        ),
        None
    );
}

#[test]
fn a_pod_that_is_not_ready_goes_while_enough_others_are() {
    let sick = pod(json!({"app": "web"}), "Running", "False");
    assert_eq!(hold(&sick, &[web(0, 2, 2, 3)]), None);
    assert!(hold(&sick, &[web(0, 2, 1, 3)]).is_some());
}

#[test]
fn two_budgets_on_one_pod_hold_it_for_ever() {
    let all = budget(
        "all",
        json!({"maxUnavailable": 1, "selector": {}}),
        json!({"disruptionsAllowed": 1, "desiredHealthy": 1, "currentHealthy": 2, "expectedPods": 2}),
    );
    let held = hold(
        &pod(json!({"app": "web"}), "Running", "True"),
        &[web(1, 2, 3, 3), all],
    );
    assert_eq!(
        held,
        Some(BudgetHold::Several(vec!["web".to_owned(), "all".to_owned()]))
    );
}

#[test]
fn a_budget_that_wants_all_its_pods_can_never_be_satisfied() {
    assert!(is_never_satisfied(&web(0, 3, 3, 3)));
    assert!(
        !is_never_satisfied(&web(0, 2, 2, 3)),
        "one may go when the third is healthy"
    );
    assert!(!is_never_satisfied(&web(0, 1, 0, 0)), "it has no pods to hold");
    let none_may = budget(
        "none",
        json!({"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}}),
        json!({"disruptionsAllowed": 0, "desiredHealthy": 1, "currentHealthy": 1, "expectedPods": 1}),
    );
    assert!(is_never_satisfied(&none_may));
}
