//! What an operator should know of a pod before it is evicted.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use haulout_core::keys::DRAIN;
use haulout_core::maintenance::policy::DrainTimeoutAction;
use haulout_core::status::Obstacle;
use haulout_kubernetes::drain::PodPolicy;
use haulout_kubernetes::policy::DrainPolicy;

/// The settings of a drain that warnings depend on.
#[derive(Clone, Copy, Debug)]
pub struct DrainLimits {
    pub timeout: Duration,
    pub action: DrainTimeoutAction,
    pub wait_max: Duration,
}

/// A warning about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodWarning {
    pub(super) obstacle: Obstacle,
    pub(super) text: String,
}

/// The warnings about a pod that would be evicted.
pub(super) fn of_pod(pod: &Pod, policy: &PodPolicy, limits: DrainLimits) -> Vec<PodWarning> {
    let warning = |obstacle, text| PodWarning { obstacle, text };
    let of_policy = of_policy(policy, limits);
    let mut warnings: Vec<PodWarning> = of_policy
        .map(|text| warning(Obstacle::PodPolicy, text))
        .into_iter()
        .collect();
    let mut owners = pod.metadata.owner_references.iter().flatten();
    if !owners.any(|owner| owner.controller == Some(true)) {
        let text = "it has no controller: nothing starts it again".to_owned();
        warnings.push(warning(Obstacle::NoController, text));
    }
    let Some(spec) = &pod.spec else { return warnings };
    let mut volumes = spec.volumes.iter().flatten();
    if volumes.any(|volume| volume.empty_dir.is_some()) {
        warnings.push(warning(
            Obstacle::EmptyDir,
            "its emptyDir data is lost".to_owned(),
        ));
    }
    let grace = spec.termination_grace_period_seconds.unwrap_or_default();
    let timeout = limits.timeout.as_secs();
    if u64::try_from(grace).is_ok_and(|grace| grace > timeout) {
        let then = match limits.action {
            DrainTimeoutAction::PowerOff => "the VM may be shut down before it has ended",
            DrainTimeoutAction::Hold => "the drain may be held meanwhile",
        };
        let text =
            format!("its grace period of {grace} s is longer than the drain timeout of {timeout} s: {then}");
        warnings.push(warning(Obstacle::LongGracePeriod, text));
    }
    warnings
}

/// The warning about a policy that cannot be read, or is not fulfilled as it stands.
fn of_policy(policy: &PodPolicy, limits: DrainLimits) -> Option<String> {
    let max = limits.wait_max;
    match policy {
        PodPolicy::Unreadable(why) => Some(why.to_string()),
        PodPolicy::Unread(message) => Some(format!("its namespace could not be read: {message}")),
        PodPolicy::Read(DrainPolicy::Wait(_)) if max.is_zero() => {
            Some(format!("{DRAIN}=wait is ignored: DRAIN_WAIT_MAX_SECONDS is 0"))
        }
        PodPolicy::Read(DrainPolicy::Wait(Some(asked))) if *asked > max => Some(format!(
            "it asks to be waited for during {} s, and DRAIN_WAIT_MAX_SECONDS is {}",
            asked.as_secs(),
            max.as_secs()
        )),
        PodPolicy::Read(DrainPolicy::Evict | DrainPolicy::Wait(_) | DrainPolicy::Skip) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn warnings(pod: Value, action: DrainTimeoutAction) -> Vec<String> {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let timeout = Duration::from_secs(600);
        let found = of_pod(
            &pod,
            &PodPolicy::Read(DrainPolicy::Evict),
            limits(timeout, action, 60),
        );
        found.into_iter().map(|warning| warning.text).collect()
    }

    fn limits(timeout: Duration, action: DrainTimeoutAction, wait_max: u64) -> DrainLimits {
        DrainLimits {
            timeout,
            action,
            wait_max: Duration::from_secs(wait_max),
        }
    }

    #[test]
    fn wait_that_is_not_fulfilled_is_told() {
        let told = |seconds: Option<u64>, max| {
            let policy = PodPolicy::Read(DrainPolicy::Wait(seconds.map(Duration::from_secs)));
            of_policy(&policy, limits(Duration::ZERO, DrainTimeoutAction::Hold, max))
        };
        assert_eq!(told(Some(60), 60), None);
        assert_eq!(told(None, 60), None);
        let longer = "it asks to be waited for during 61 s, and DRAIN_WAIT_MAX_SECONDS is 60";
        assert_eq!(told(Some(61), 60).as_deref(), Some(longer));
        let ignored = "haulout.dev/drain=wait is ignored: DRAIN_WAIT_MAX_SECONDS is 0";
        assert_eq!(told(None, 0).as_deref(), Some(ignored));
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
