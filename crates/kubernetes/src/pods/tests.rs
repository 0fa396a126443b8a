use serde_json::{Value, json};

use super::*;

fn judged(pod: Value) -> PodVerdict {
    verdict(&serde_json::from_value(pod).unwrap())
}

fn with(path: &str, value: Value) -> Value {
    let mut pod = crate::stand_in::pod("web-1");
    let (parent, key) = path.rsplit_once('/').unwrap();
    pod.pointer_mut(parent).unwrap()[key] = value;
    pod
}

fn owner(api_version: &str, kind: &str, is_controller: bool) -> Value {
    json!([{"apiVersion": api_version, "kind": kind, "name": "o", "uid": "u", "controller": is_controller}])
}

#[test]
fn each_kind_of_pod_gets_the_verdict_of_kubectl_or_the_documented_other() {
    use SkipReason::{DaemonSet, Finished, Mirror};
    let owners = "/metadata/ownerReferences";
    for (what, pod, expected) in [
        (
            "a ReplicaSet's pod",
            with("/spec/x", Value::Null),
            PodVerdict::Evict,
        ),
        ("an unmanaged pod", with(owners, json!([])), PodVerdict::Evict),
        (
            "a StatefulSet's pod",
            with(owners, owner("apps/v1", "StatefulSet", true)),
            PodVerdict::Evict,
        ),
        (
            "a Job's pod",
            with(owners, owner("batch/v1", "Job", true)),
            PodVerdict::Evict,
        ),
        (
            "a pod with an emptyDir",
            with("/spec/volumes", json!([{"name": "scratch", "emptyDir": {}}])),
            PodVerdict::Evict,
        ),
        (
            "a pod that is bound but pending",
            with("/status/phase", json!("Pending")),
            PodVerdict::Evict,
        ),
        (
            "a pod of unknown phase",
            with("/status/phase", json!("Unknown")),
            PodVerdict::Evict,
        ),
        (
            "a pod without a phase",
            with("/status/phase", Value::Null),
            PodVerdict::Evict,
        ),
        (
            "a DaemonSet's pod",
            with(owners, owner("apps/v1", "DaemonSet", true)),
            PodVerdict::Skip(DaemonSet),
        ),
        (
            "a DaemonSet's pod of an old API version",
            with(owners, owner("extensions/v1beta1", "DaemonSet", true)),
            PodVerdict::Skip(DaemonSet),
        ),
        (
            "a pod of OpenKruise's DaemonSet",
            with(owners, owner("apps.kruise.io/v1alpha1", "DaemonSet", true)),
            PodVerdict::Skip(DaemonSet),
        ),
        (
            "a pod of Datadog's ExtendedDaemonSet",
            with(
                owners,
                owner("datadoghq.com/v1alpha1", "ExtendedDaemonSetReplicaSet", true),
            ),
            PodVerdict::Skip(DaemonSet),
        ),
        (
            "a pod that a DaemonSet owns but does not control",
            with(owners, owner("apps/v1", "DaemonSet", false)),
            PodVerdict::Evict,
        ),
        (
            "a static pod",
            with(
                "/metadata/annotations",
                json!({"kubernetes.io/config.mirror": "x"}),
            ),
            PodVerdict::Skip(Mirror),
        ),
        (
            "a succeeded pod",
            with("/status/phase", json!("Succeeded")),
            PodVerdict::Skip(Finished),
        ),
        (
            "a failed pod",
            with("/status/phase", json!("Failed")),
            PodVerdict::Skip(Finished),
        ),
        (
            "a DaemonSet's pod that its kubelet rejected in a shutdown",
            {
                let mut pod = with(owners, owner("apps/v1", "DaemonSet", true));
                pod["status"] = json!({"phase": "Failed", "reason": "NodeShutdown"});
                pod
            },
            PodVerdict::Skip(Finished),
        ),
    ] {
        assert_eq!(judged(pod), expected, "{what}");
    }
}

#[test]
fn terminating_pod_is_waited_for_since_its_deletion_began() {
    let mut pod = with("/metadata/deletionTimestamp", json!("2026-01-02T03:04:35Z"));
    pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    assert_eq!(judged(pod.clone()), PodVerdict::Wait);
    pod["metadata"]["ownerReferences"] = owner("apps/v1", "DaemonSet", true);
    assert_eq!(judged(pod), PodVerdict::Skip(SkipReason::DaemonSet));
}

/// A kubelet writes the terminal phase when the containers are dead, and deletes the Pod with a grace period of 0 when the volumes are
/// unmounted. Until then a controller makes no replacement.
#[test]
fn pod_that_was_evicted_is_finished_when_its_kubelet_is_done_with_it() {
    let waits = PodVerdict::Wait;
    let finished = PodVerdict::Skip(SkipReason::Finished);
    for phase in ["Succeeded", "Failed"] {
        let judged = |grace: Option<i64>| {
            let mut pod = with("/status/phase", json!(phase));
            if let Some(grace) = grace {
                let ends = if grace == 0 {
                    "2026-01-02T03:04:05Z"
                } else {
                    "2026-01-02T03:04:35Z"
                };
                pod["metadata"]["deletionTimestamp"] = json!(ends);
                pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
            }
            judged(pod)
        };
        assert_eq!(judged(None), finished, "{phase}: it ended by itself");
        assert_eq!(
            judged(Some(30)),
            waits,
            "{phase}: its kubelet still unmounts its volumes"
        );
        assert_eq!(judged(Some(0)), finished, "{phase}: a finalizer keeps it");
    }
}

/// The expected result of the chain of rules, computed without the chain.
#[test]
fn only_a_living_evictable_pod_stands_in_the_way() {
    for bits in 0_u8..32 {
        let has = |bit: u8| bits & (1 << bit) != 0;
        let mut pod = crate::stand_in::pod("web-1");
        if has(0) {
            pod["status"]["phase"] = json!("Failed");
        }
        if has(1) {
            pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        }
        if has(2) {
            pod["metadata"]["ownerReferences"] = owner("apps/v1", "DaemonSet", true);
        }
        if has(3) {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:35Z");
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(if has(4) { 30 } else { 0 });
        }
        let verdict = judged(pod);
        let is_with_kubelet = has(3) && has(4);
        let is_skipped = has(0) && !is_with_kubelet || has(1) || has(2);
        assert_eq!(verdict.blocks_drain(), !is_skipped, "{bits:05b}");
        assert_eq!(verdict == PodVerdict::Evict, !is_skipped && !has(3), "{bits:05b}");
    }
}

#[test]
fn tolerations_of_the_cordon_are_those_that_the_scheduler_accepts() {
    let tolerates = |toleration: serde_json::Value| {
        let pod = serde_json::json!({"spec": {"containers": [], "tolerations": [toleration]}});
        tolerates_cordon(&serde_json::from_value(pod).unwrap())
    };
    let key = "node.kubernetes.io/unschedulable";
    for toleration in [
        serde_json::json!({"operator": "Exists"}),
        serde_json::json!({"operator": "Exists", "effect": "NoSchedule"}),
        serde_json::json!({"key": key, "operator": "Exists"}),
        serde_json::json!({"key": key, "effect": "NoSchedule"}),
    ] {
        assert!(tolerates(toleration.clone()), "{toleration}");
    }
    for toleration in [
        serde_json::json!({"operator": "Exists", "effect": "NoExecute"}),
        serde_json::json!({"key": "nvidia.com/gpu", "operator": "Exists"}),
        serde_json::json!({"key": key, "value": "x", "operator": "Equal"}),
        serde_json::json!({"key": key, "operator": "Exists", "effect": "PreferNoSchedule"}),
    ] {
        assert!(!tolerates(toleration.clone()), "{toleration}");
    }
    assert!(!tolerates_cordon(&Pod::default()));
}
