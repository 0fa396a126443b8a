//! What an operator should know of a pod before it is evicted.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use crate::keys::DRAIN;
use crate::kubernetes::drain::PodPolicy;
use crate::kubernetes::policy::DrainPolicy;
use crate::maintenance::policy::DrainTimeoutAction;
use crate::status::Obstacle;

/// The settings of a drain that warnings depend on.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct DrainLimits {
    pub(in crate::cli) timeout: Duration,
    pub(in crate::cli) action: DrainTimeoutAction,
    pub(in crate::cli) wait_max: Duration,
    pub(in crate::cli) guest_shutdown: Duration,
}

/// A warning about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct PodWarning {
    pub(in crate::cli) obstacle: Obstacle,
    pub(in crate::cli) text: String,
}

/// The warning about a kubelet that delays the shutdown of its machine by `grace`.
pub(in crate::cli) fn of_kubelet(grace: Duration, limits: DrainLimits) -> Option<String> {
    let (grace, timeout) = (grace.as_secs(), limits.guest_shutdown.as_secs());
    (grace > timeout).then(|| {
        format!(
            "its kubelet delays a shutdown by up to {grace} s (shutdownGracePeriod), and its power is cut after {timeout} s \
             (GUEST_SHUTDOWN_TIMEOUT_SECONDS)"
        )
    })
}

/// The warnings about a pod that would be evicted.
pub(in crate::cli) fn of_pod(pod: &Pod, policy: &PodPolicy, limits: DrainLimits) -> Vec<PodWarning> {
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
            guest_shutdown: Duration::from_secs(120),
        }
    }

    #[test]
    fn kubelet_that_delays_the_shutdown_for_too_long_is_told() {
        let limits = limits(Duration::ZERO, DrainTimeoutAction::Hold, 0);
        let told = |seconds| of_kubelet(Duration::from_secs(seconds), limits);
        assert_eq!(told(120), None);
        let expected = "its kubelet delays a shutdown by up to 121 s (shutdownGracePeriod), and its power is cut after 120 s \
                        (GUEST_SHUTDOWN_TIMEOUT_SECONDS)";
        assert_eq!(told(121).as_deref(), Some(expected));
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
