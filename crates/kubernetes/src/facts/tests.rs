use serde_json::{Value, json};

use super::*;

fn facts(node: Value) -> NodeFacts {
    let gpus = GpuResources::parse("nvidia.com/*, amd.com/gpu").unwrap();
    node_facts(&serde_json::from_value(node).unwrap(), None, &gpus)
}

fn cordoned_with(managed_fields: Value) -> Option<String> {
    facts(json!({
        "metadata": {"name": "n", "managedFields": managed_fields},
        "spec": {"unschedulable": true},
    }))
    .cordoned_by
}

#[test]
fn the_facts_of_a_node_are_read() {
    let node = facts(json!({
        "metadata": {
            "name": "gpu-1", "uid": "uid-1", "resourceVersion": "12345",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {
                "haulout.dev/state": "migrated",
                "haulout.dev/migrated-to-host": "esx-2",
                "haulout.dev/keep-cordoned": "true",
                "other/state": "x",
            },
        },
        "spec": {"providerID": "vsphere://4215e1a2-7c3d-9e4f-0102-030405060708"},
        "status": {
            "allocatable": {"cpu": "8", "nvidia.com/gpu": "4", "nvidia.com/mig": "1k", "amd.com/gpu": "0", "amd.com/vgpu": "2"},
            "conditions": [
                {"type": "DiskPressure", "status": "True"},
                {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-02T03:04:05Z",
                    "lastTransitionTime": "2026-01-01T00:01:00Z"},
            ],
            "nodeInfo": {
                "architecture": "", "bootID": "boot-1", "containerRuntimeVersion": "", "kernelVersion": "",
                "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
                "systemUUID": "a2e11542-3d7c-4f9e-0102-030405060708",
            },
        },
    }));
    assert_eq!(node.name.as_str(), "gpu-1");
    assert_eq!(node.uid.as_str(), "uid-1");
    assert_eq!(node.resource_version, 12_345);
    assert_eq!(node.created_at, "2026-01-01T00:00:00Z".parse().unwrap());
    assert!(
        node.provider_uuid
            .unwrap()
            .same_machine(node.system_uuid.unwrap())
    );
    assert!(!node.unschedulable);
    assert_eq!(
        node.ready,
        ReadyCondition {
            is_true: true,
            is_unknown: false,
            heartbeat: Some("2026-01-02T03:04:05Z".parse().unwrap()),
            since: Some("2026-01-01T00:01:00Z".parse().unwrap())
        }
    );
    assert_eq!(node.boot_id, Some(BootId::new("boot-1")));
    let expected = [
        ("nvidia.com/gpu".to_owned(), 4),
        ("nvidia.com/mig".to_owned(), 1_000),
    ];
    assert_eq!(*node.gpus, BTreeMap::from(expected));
    assert_eq!(
        node.annotations,
        NodeAnnotations {
            state: Some("migrated".to_owned()),
            migrated_to_host: Some("esx-2".to_owned()),
            keep_cordoned: Some("true".to_owned()),
            ..NodeAnnotations::default()
        }
    );
}

#[test]
fn what_is_absent_reads_as_the_careful_answer() {
    for version in ["abc", "0", "-1", "", "99999999999999999999"] {
        let node = facts(json!({"metadata": {"resourceVersion": version}}));
        assert_eq!(node.resource_version, 0, "{version}");
    }
    let node = facts(json!({"metadata": {}}));
    assert_eq!(node.created_at, Timestamp::UNIX_EPOCH);
    assert!(!node.ready.is_true && !node.unschedulable && node.gpus.is_empty());
    assert_eq!(
        (node.boot_id, node.provider_uuid, node.system_uuid),
        (None, None, None)
    );
    let unknown =
        facts(json!({"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}));
    assert!(!unknown.ready.is_true);
}

#[test]
fn the_cordon_belongs_to_the_manager_that_wrote_it_last() {
    let owns = json!({"f:spec": {"f:unschedulable": {}}});
    let entry = |manager: &str, time: &str, fields: &Value| json!({"manager": manager, "operation": "Update", "time": time, "fieldsType": "FieldsV1", "fieldsV1": fields});
    let fields = json!([
        entry("kubelet", "2026-01-03T00:00:00Z", &json!({"f:metadata": {}})),
        entry("kubectl", "2026-01-01T00:00:00Z", &owns),
        entry("haulout", "2026-01-02T00:00:00Z", &owns),
    ]);
    assert_eq!(cordoned_with(fields).as_deref(), Some("haulout"));
    assert_eq!(cordoned_with(json!([])), None);
    let mut schedulable =
        json!({"metadata": {"managedFields": [entry("kubectl", "2026-01-01T00:00:00Z", &owns)]}});
    assert_eq!(facts(schedulable.take()).cordoned_by, None);
}

#[test]
fn guard_is_ours_by_its_field_manager_and_anothers_by_value_or_manager() {
    let key = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
    let guards = |value: &str, managers: &[(&str, &str)]| {
        let owns = json!({"f:metadata": {"f:annotations": {format!("f:{key}"): {}}}});
        let entry = |(manager, time): &(&str, &str)| json!({"manager": manager, "operation": "Update", "time": time, "fieldsType": "FieldsV1", "fieldsV1": owns});
        let managed: Vec<Value> = managers.iter().map(entry).collect();
        let node = facts(json!({"metadata": {"annotations": {key: value}, "managedFields": managed}}));
        node.guards.get(&NodeGuard::ClusterAutoscaler).copied()
    };
    let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    assert_eq!(guards("true", &[("haulout", early)]), Some(GuardState::Ours));
    assert_eq!(guards("true", &[]), Some(GuardState::Set));
    assert_eq!(guards("true", &[("kubectl", early)]), Some(GuardState::Other));
    let both = [("haulout", early), ("kubectl", late)];
    assert_eq!(guards("true", &both), Some(GuardState::Other));
    assert_eq!(guards("false", &[("haulout", early)]), Some(GuardState::Other));
    let none = facts(json!({"metadata": {}}));
    let found: Vec<_> = none.guards.into_iter().collect();
    let needless = [NodeGuard::Nvsentinel, NodeGuard::Gardener].map(|guard| (guard, GuardState::NotNeeded));
    assert_eq!(found, needless);
}

#[test]
fn taints_and_labels_are_guards_where_key_and_effect_are_those() {
    let node = facts(json!({
        "metadata": {
            "labels": {
                "remediation.medik8s.io/exclude-from-remediation": "true",
                "nvsentinel.dgxc.nvidia.com/driver.installed": "true",
            },
            "annotations": {"node.machine.sapcloud.io/last-applied-anno-labels-taints": "{}"},
        },
        "spec": {"taints": [
            {"key": "haulout.dev/maintenance", "effect": "NoSchedule"},
            {"key": "haulout.dev/queued", "effect": "NoExecute"},
            {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
        ]},
    }));
    let found: Vec<_> = node.guards.into_iter().collect();
    let expected = [
        (NodeGuard::MaintenanceTaint, GuardState::Set),
        (NodeGuard::Medik8s, GuardState::Set),
    ];
    assert_eq!(found, expected);
    let added: Vec<_> = node.taints.iter().map(|taint| taint.time_added).collect();
    assert_eq!(added, [None, None, "2026-01-01T00:00:00Z".parse().ok()]);
}

#[test]
fn gpu_resources_are_names_and_prefixes() {
    let gpus = GpuResources::parse(" nvidia.com/*,gpu.intel.com/i915 ").unwrap();
    assert!(gpus.matches("nvidia.com/gpu") && gpus.matches("gpu.intel.com/i915"));
    assert!(
        !gpus.matches("nvidia.com/") && !gpus.matches("gpu.intel.com/xe") && !gpus.matches("xnvidia.com/gpu")
    );
    assert_eq!(gpus.to_string(), "nvidia.com/*,gpu.intel.com/i915");
    assert!(!gpus.has_drivers());
    let with_driver = GpuResources::parse("nvidia.com/gpu,gpu.nvidia.com").unwrap();
    assert!(with_driver.has_drivers() && with_driver.matches("gpu.nvidia.com"));
    assert!(!with_driver.matches("gpu.nvidia.com/x") && !with_driver.matches("dra.net"));
    for wrong in [
        "",
        "nvidia",
        "*",
        "nvidia.com/",
        "/gpu",
        "nvidia.com/g*",
        "a/b/c",
        "a/b,,c/d",
        "a/b c",
    ] {
        let error = GpuResources::parse(wrong).unwrap_err().to_string();
        assert!(error.contains("comma-separated list"), "{wrong}: {error}");
    }
}
