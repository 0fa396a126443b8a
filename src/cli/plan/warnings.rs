//! What an operator should know of a pod before it is evicted.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use crate::maintenance::policy::DrainTimeoutAction;

/// The settings of a drain that warnings depend on.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct DrainLimits {
    pub(in crate::cli) timeout: Duration,
    pub(in crate::cli) action: DrainTimeoutAction,
}

/// The warnings about a pod that would be evicted.
pub(super) fn of_pod(pod: &Pod, limits: DrainLimits) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut owners = pod.metadata.owner_references.iter().flatten();
    if !owners.any(|owner| owner.controller == Some(true)) {
        warnings.push("it has no controller: nothing starts it again".to_owned());
    }
    let Some(spec) = &pod.spec else { return warnings };
    let mut volumes = spec.volumes.iter().flatten();
    if volumes.any(|volume| volume.empty_dir.is_some()) {
        warnings.push("its emptyDir data is lost".to_owned());
    }
    let grace = spec.termination_grace_period_seconds.unwrap_or_default();
    let timeout = limits.timeout.as_secs();
    if u64::try_from(grace).is_ok_and(|grace| grace > timeout) {
        let then = match limits.action {
            DrainTimeoutAction::PowerOff => "the VM may be shut down before it has ended",
            DrainTimeoutAction::Hold => "the drain may be held meanwhile",
        };
        warnings.push(format!(
            "its grace period of {grace} s is longer than the drain timeout of {timeout} s: {then}"
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn warnings(pod: Value, action: DrainTimeoutAction) -> Vec<String> {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let timeout = Duration::from_secs(600);
        of_pod(&pod, DrainLimits { timeout, action })
    }

    #[test]
    fn pod_that_loses_data_or_its_grace_period_is_told() {
        let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "1", "controller": true}]);
        let calm = json!({
            "metadata": {"ownerReferences": owner},
            "spec": {"containers": [], "terminationGracePeriodSeconds": 600, "volumes": [{"name": "cm", "configMap": {}}]},
        });
        assert!(warnings(calm, DrainTimeoutAction::PowerOff).is_empty());
        let risky = || {
            json!({
                "metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1"}]},
                "spec": {"containers": [], "terminationGracePeriodSeconds": 601, "volumes": [{"name": "scratch", "emptyDir": {}}]},
            })
        };
        let first_two = [
            "it has no controller: nothing starts it again",
            "its emptyDir data is lost",
        ];
        for (action, then) in [
            (
                DrainTimeoutAction::PowerOff,
                "the VM may be shut down before it has ended",
            ),
            (DrainTimeoutAction::Hold, "the drain may be held meanwhile"),
        ] {
            let told = warnings(risky(), action);
            assert_eq!(told[..2], first_two);
            let grace =
                format!("its grace period of 601 s is longer than the drain timeout of 600 s: {then}");
            assert_eq!(told[2..], [grace]);
        }
    }
}
