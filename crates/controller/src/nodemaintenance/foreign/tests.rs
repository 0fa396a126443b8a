use haulout_core::fixtures::at;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::*;
use crate::nodemaintenance::kind::{NodeMaintenanceStatus, WaitStatus};
use haulout_core::facts::foreign_maintenance::ForeignMaintenance;
use haulout_kubernetes::update::NodeMaintenanceRole;

/// An object with this spec and status, and other fields of its metadata.
fn object(spec: &Value, status: &Value, metadata: Value) -> DynamicObject {
    let mut all = json!({
        "name": "psu", "uid": "uid-1", "resourceVersion": "7", "generation": 3, "creationTimestamp": at(5).to_string(),
    });
    if let (Some(all), Value::Object(more)) = (all.as_object_mut(), metadata) {
        all.extend(more);
    }
    serde_json::from_value(json!({"metadata": all, "spec": spec, "status": status})).unwrap()
}

fn stands(api: ForeignApi, object: &DynamicObject) -> NodeMaintenanceFacts {
    match read_foreign(api, object) {
        Reading::Stands(facts) => facts,
        Reading::Withdrawn(facts) => panic!("withdrawn: {facts:?}"),
    }
}

fn foreign(facts: &NodeMaintenanceFacts) -> &ForeignMaintenance {
    match &facts.role {
        NodeMaintenanceRole::Foreign(foreign) => foreign,
        NodeMaintenanceRole::Request(_) | NodeMaintenanceRole::Episode { .. } => panic!("{facts:?}"),
    }
}

/// What an object with this spec asks for: nothing to complain about, or why it is not done.
fn refusal(api: ForeignApi, spec: &Value) -> Option<String> {
    foreign(&stands(api, &object(spec, &Value::Null, json!({}))))
        .asked
        .clone()
        .err()
}

/// The spec with which NVIDIA's network operator asks for the maintenance of a node by default.
fn whole_drain() -> Value {
    json!({
        "nodeName": "gpu-1", "requestorID": "network.nvidia.com", "cordon": true,
        "drainSpec": {"force": true, "deleteEmptyDir": true, "podSelector": "", "timeoutSeconds": 300},
    })
}

#[test]
fn foreign_objects_are_read_as_drains_of_their_node() {
    for api in ForeignApi::ALL.iter().copied() {
        let is_namespaced = api == ForeignApi::Nvidia;
        let metadata = if is_namespaced {
            json!({"namespace": "ops"})
        } else {
            json!({})
        };
        let facts = stands(api, &object(&whole_drain(), &Value::Null, metadata));
        let name = if is_namespaced {
            "nvidia/ops/psu".to_owned()
        } else {
            format!("{api}/psu")
        };
        assert_eq!(
            (facts.name.as_str(), facts.uid.as_str()),
            (name.as_str(), "uid-1")
        );
        assert_eq!((facts.node.as_str(), facts.created_at), ("gpu-1", at(5)));
        assert_eq!((facts.resource_version, facts.generation), (7, 3));
        assert!(facts.role.asked().is_some(), "{facts:?}");
        assert!(!foreign(&facts).has_operator && !facts.is_over);
    }
}

#[test]
fn node_names_that_are_none_are_refused_and_reasons_are_cut() {
    for api in ForeignApi::ALL.iter().copied() {
        for node in [
            json!("a/../b"),
            json!(""),
            json!(7),
            json!(null),
            json!("x".repeat(254)),
            json!(["a"]),
        ] {
            let mut spec = whole_drain();
            spec["nodeName"] = node.clone();
            let why = refusal(api, &spec);
            assert_eq!(
                why.as_deref(),
                Some("spec.nodeName is not the name of a Node"),
                "{node}"
            );
        }
    }
    let spec = json!({"nodeName": "gpu-1", "reason": "x".repeat(5_000)});
    let facts = stands(ForeignApi::Medik8s, &object(&spec, &Value::Null, json!({})));
    assert_eq!(facts.role.asked().map(|asked| asked.reason.len()), Some(1_024));
    for data in [json!(null), json!([]), json!("spec")] {
        assert!(refusal(ForeignApi::Kubevirt, &data).is_some());
    }
}

#[test]
fn nvidia_requests_that_protect_pods_are_refused_with_the_field() {
    assert_eq!(refusal(ForeignApi::Nvidia, &whole_drain()), None);
    let cases = [
        ("/cordon", json!(false), "cordon is false"),
        ("/cordon", json!("no"), "cordon is false"),
        (
            "/waitForPodCompletion",
            json!({"podSelector": "app=train"}),
            "waitForPodCompletion is set",
        ),
        ("/waitForPodCompletion", json!({}), "waitForPodCompletion is set"),
        ("/drainSpec", json!(null), "drainSpec is absent"),
        ("/drainSpec/force", json!(false), "drainSpec.force is not true"),
        (
            "/drainSpec/deleteEmptyDir",
            json!(null),
            "drainSpec.deleteEmptyDir is not true",
        ),
        (
            "/drainSpec/podSelector",
            json!("app=train"),
            "drainSpec.podSelector is set",
        ),
        (
            "/drainSpec/podEvictionFilters",
            json!([{"byResourceNameRegex": "nvidia.com/gpu-*"}]),
            "drainSpec.podEvictionFilters is set",
        ),
    ];
    for (path, value, why) in cases {
        let mut spec = whole_drain();
        let (parent, field) = path.rsplit_once('/').unwrap();
        spec.pointer_mut(parent).unwrap()[field] = value;
        let refused = refusal(ForeignApi::Nvidia, &spec).unwrap_or_default();
        assert!(
            refused.starts_with(&format!("Haulout does not do it, because {why}")),
            "{path}: {refused}"
        );
    }
    let mut both = whole_drain();
    (both["cordon"], both["drainSpec"]["force"]) = (json!(false), json!(false));
    assert_eq!(
        refusal(ForeignApi::Nvidia, &both).unwrap().matches(';').count(),
        1
    );
}

#[test]
fn deletion_withdraws_a_request_unless_others_share_it() {
    let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    for api in ForeignApi::ALL.iter().copied() {
        for others in [json!([]), json!(["gpu.nvidia.com"])] {
            let mut spec = whole_drain();
            spec["additionalRequestors"] = others.clone();
            let reading = read_foreign(api, &object(&spec, &Value::Null, deleted.clone()));
            let is_shared = api == ForeignApi::Nvidia && others != json!([]);
            assert_eq!(matches!(reading, Reading::Stands(_)), is_shared, "{api} {others}");
        }
    }
}

#[test]
fn operator_of_the_kind_is_known_by_finalizer_or_field_of_the_phase() {
    let written_by = |manager: &str, fields: Value| {
        json!({"managedFields": [
            {"manager": manager, "operation": "Update", "apiVersion": "v1", "subresource": "status", "fieldsType": "FieldsV1", "fieldsV1": fields},
        ]})
    };
    let phase = json!({"f:status": {"f:phase": {}}});
    let ready = json!({"f:status": {"f:conditions": {"k:{\"type\":\"Ready\"}": {"f:reason": {}}}}});
    let failed = json!({"f:status": {"f:conditions": {"k:{\"type\":\"RequestorFailed\"}": {".": {}}}}});
    let (medik8s, kubevirt, nvidia) = (ForeignApi::Medik8s, ForeignApi::Kubevirt, ForeignApi::Nvidia);
    let finalizer = |name: &str| json!({"finalizers": [name]});
    for (api, metadata, expected) in [
        (medik8s, finalizer("foregroundDeleteNodeMaintenance"), true),
        (kubevirt, finalizer("foregroundDeleteNodeMaintenance"), true),
        (nvidia, finalizer("maintenance.nvidia.com/finalizer"), true),
        (medik8s, finalizer("example.com/other"), false),
        (nvidia, finalizer("foregroundDeleteNodeMaintenance"), false),
        (medik8s, written_by("manager", phase.clone()), true),
        (kubevirt, written_by("manager", phase.clone()), true),
        (medik8s, written_by(FIELD_MANAGER, phase), false),
        (
            medik8s,
            written_by("kubectl", json!({"f:spec": {"f:reason": {}}})),
            false,
        ),
        (nvidia, written_by("maintenance-manager", ready.clone()), true),
        (nvidia, written_by(FIELD_MANAGER, ready), false),
        (nvidia, written_by("network-operator", failed), false),
        (nvidia, json!({"managedFields": [{"manager": "x"}]}), false),
    ] {
        let facts = stands(api, &object(&whole_drain(), &Value::Null, metadata.clone()));
        assert_eq!(foreign(&facts).has_operator, expected, "{api}: {metadata}");
    }
}

/// The status of a request in `state`, of which two pods are left.
fn in_state(state: Option<&str>, phase: &str) -> NodeMaintenanceStatus {
    let is_draining = state == Some("Draining");
    let pods = ["train/worker-0", "web/api"].map(str::to_owned);
    NodeMaintenanceStatus {
        phase: Some(phase.to_owned()),
        state: state.map(str::to_owned),
        pending_pods: if is_draining { pods.into() } else { Vec::new() },
        total_pods: state.map(|_| 9),
        eviction_pods: state.map(|_| 8),
        drain_progress: is_draining.then_some(75),
        waiting_on: Some(WaitStatus {
            reason: "Pods".to_owned(),
            message: "2 pods to go".to_owned(),
            since: "2026-01-01T00:00:00Z".to_owned(),
            deadline: None,
            then: None,
            next_step: None,
        }),
        ..NodeMaintenanceStatus::default()
    }
}

/// The status that is written for `status`, after that of `current`.
fn written(api: ForeignApi, current: &Value, status: &NodeMaintenanceStatus) -> Value {
    let facts = stands(api, &object(&whole_drain(), current, json!({})));
    let wanted = status_of(foreign(&facts), &facts, status, at(60));
    let value = serde_json::to_value(&wanted).unwrap();
    // What was written is read again without a difference.
    let again = stands(api, &object(&whole_drain(), &value, json!({})));
    assert_eq!(foreign(&again).status, wanted);
    assert_eq!(status_of(foreign(&again), &again, status, at(90)), wanted);
    value
}

#[test]
fn medik8s_and_kubevirt_statuses_have_the_fields_of_their_operators() {
    let draining = json!({
        "phase": "Running", "drainProgress": 75, "lastError": "waiting for 2 pods to go", "totalpods": 9, "evictionPods": 8,
        "pendingPods": ["worker-0", "api"],
        "pendingPodsRefs": [{"namespace": "train", "name": "worker-0"}, {"namespace": "web", "name": "api"}],
    });
    let queued = json!({"phase": "Running", "lastError": "waiting for 2 pods to go"});
    let drained = json!({"phase": "Succeeded", "drainProgress": 100, "totalpods": 9, "evictionPods": 8});
    for (state, phase, expected) in [
        (Some("Draining"), "Running", draining),
        (None, "Running", queued),
        (Some("Drained"), "Succeeded", drained),
    ] {
        let status = in_state(state, phase);
        assert_eq!(written(ForeignApi::Medik8s, &Value::Null, &status), expected);
        let mut of_kubevirt = expected.clone();
        for field in ["drainProgress", "pendingPodsRefs"] {
            of_kubevirt.as_object_mut().unwrap().remove(field);
        }
        assert_eq!(written(ForeignApi::Kubevirt, &Value::Null, &status), of_kubevirt);
    }
    let mut parked = in_state(Some("Parked"), "Running");
    parked.last_error = Some("the VM is gone".to_owned());
    let parked = written(ForeignApi::Medik8s, &Value::Null, &parked);
    assert_eq!(
        (&parked["phase"], &parked["lastError"]),
        (&json!("Running"), &json!("the VM is gone"))
    );
    let mut missing = in_state(None, "Running");
    missing.last_error = Some("no Node gpu-1".to_owned());
    missing.waiting_on.as_mut().unwrap().reason = "NodeNotFound".to_owned();
    let missing = written(ForeignApi::Medik8s, &Value::Null, &missing);
    assert_eq!(
        (&missing["phase"], &missing["lastError"]),
        (&json!("Failed"), &json!("no Node gpu-1"))
    );
}

fn ready(value: &Value) -> Condition {
    serde_json::from_value(value["conditions"][0].clone()).unwrap()
}

#[test]
fn reason_of_the_nvidia_condition_ready_is_the_phase() {
    for (state, phase, expected) in [
        (None, "Running", ("False", "Pending", "waiting for 2 pods to go")),
        (
            Some("Queued"),
            "Running",
            ("False", "Pending", "waiting for 2 pods to go"),
        ),
        (
            Some("Draining"),
            "Running",
            ("False", "Draining", "waiting for 2 pods to go"),
        ),
        (
            Some("Drained"),
            "Running",
            ("False", "Cordon", "waiting for 2 pods to go"),
        ),
        (Some("Drained"), "Succeeded", ("True", "Ready", "")),
        (
            Some("ShuttingDown"),
            "Running",
            ("False", "Cordon", "waiting for 2 pods to go"),
        ),
        (
            Some("AwaitingHost"),
            "Running",
            ("False", "Cordon", "waiting for 2 pods to go"),
        ),
        (
            Some("Rejoining"),
            "Running",
            ("False", "Cordon", "waiting for 2 pods to go"),
        ),
        (
            Some("Parked"),
            "Running",
            ("False", "Cordon", "waiting for 2 pods to go"),
        ),
    ] {
        let value = written(ForeignApi::Nvidia, &Value::Null, &in_state(state, phase));
        let ready = ready(&value);
        assert_eq!(
            (&*ready.status, &*ready.reason, &*ready.message),
            expected,
            "{state:?}"
        );
        assert_eq!(
            (ready.type_.as_str(), ready.observed_generation),
            ("Ready", Some(3))
        );
        assert_eq!(value["conditions"].as_array().unwrap().len(), 1);
    }
    let value = written(
        ForeignApi::Nvidia,
        &Value::Null,
        &in_state(Some("Draining"), "Running"),
    );
    let drain = json!({"totalPods": 9, "evictionPods": 8, "drainProgress": 75, "waitForEviction": ["train/worker-0", "web/api"]});
    assert_eq!(value["drain"], drain);
    let queued = written(ForeignApi::Nvidia, &Value::Null, &in_state(None, "Running"));
    assert_eq!(queued.get("drain"), None);
}

#[test]
fn nvidia_requestor_that_failed_is_shown_in_the_condition_ready() {
    let failed = json!({"conditions": [{
        "type": "RequestorFailed", "status": "True", "reason": "FailedMaintenance", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]});
    let facts = stands(ForeignApi::Nvidia, &object(&whole_drain(), &failed, json!({})));
    for (state, reason) in [(Some("Drained"), "RequestorFailed"), (None, "Pending")] {
        let phase = if state.is_some() { "Succeeded" } else { "Running" };
        let wanted = status_of(foreign(&facts), &facts, &in_state(state, phase), at(60));
        let ready = ready(&serde_json::to_value(wanted).unwrap());
        assert_eq!((&*ready.status, &*ready.reason), ("False", reason));
    }
}

#[test]
fn ready_condition_keeps_its_time_while_its_status_stays() {
    let time = |value: &Value| ready(value).last_transition_time.0;
    let draining = written(
        ForeignApi::Nvidia,
        &Value::Null,
        &in_state(Some("Draining"), "Running"),
    );
    assert_eq!(time(&draining), at(60));
    let facts = stands(ForeignApi::Nvidia, &object(&whole_drain(), &draining, json!({})));
    let later = |state, phase| {
        let wanted = status_of(foreign(&facts), &facts, &in_state(state, phase), at(90));
        serde_json::to_value(wanted).unwrap()
    };
    assert_eq!(time(&later(Some("ShuttingDown"), "Running")), at(60));
    assert_eq!(time(&later(Some("Drained"), "Succeeded")), at(90));
}

#[test]
fn refused_foreign_request_says_why_in_the_field_that_its_users_read() {
    for api in ForeignApi::ALL.iter().copied() {
        let facts = stands(api, &object(&json!({}), &Value::Null, json!({})));
        let wanted = serde_json::to_value(refused(foreign(&facts), &facts, "no\nname", at(60))).unwrap();
        match api {
            ForeignApi::Medik8s | ForeignApi::Kubevirt => {
                assert_eq!(wanted, json!({"phase": "Failed", "lastError": "no name"}));
            }
            ForeignApi::Nvidia => {
                let ready = ready(&wanted);
                assert_eq!(
                    (&*ready.status, &*ready.reason, &*ready.message),
                    ("False", "Pending", "no name")
                );
            }
        }
    }
}

#[test]
fn statuses_of_unknown_form_are_read_as_none() {
    let odd = json!({"phase": 7, "drainProgress": -20, "conditions": [{"type": "Ready"}, 3], "drain": {"totalPods": "many"}});
    for api in ForeignApi::ALL.iter().copied() {
        for status in [&odd, &json!("done"), &json!([])] {
            let value = written(api, status, &in_state(Some("Draining"), "Running"));
            assert!(value.is_object(), "{value}");
        }
    }
    let many = json!({"pendingPods": vec!["p"; 1_000], "lastError": "x".repeat(100_000)});
    let facts = stands(ForeignApi::Medik8s, &object(&whole_drain(), &many, json!({})));
    let ForeignStatus::Medik8s(status) = &foreign(&facts).status else {
        panic!("{facts:?}")
    };
    assert_eq!(
        (
            status.pending_pods.len(),
            status.last_error.as_ref().unwrap().len()
        ),
        (100, 4_096)
    );
}

#[test]
fn change_of_pods_and_texts_is_progress_and_a_change_of_phase_is_not() {
    for api in ForeignApi::ALL.iter().copied() {
        let facts = stands(api, &object(&whole_drain(), &Value::Null, json!({})));
        let of = |status: &NodeMaintenanceStatus| status_of(foreign(&facts), &facts, status, at(60));
        let draining = in_state(Some("Draining"), "Running");
        let mut further = draining.clone();
        further.pending_pods.pop();
        further.drain_progress = Some(88);
        further.waiting_on.as_mut().unwrap().message = "1 pod to go".to_owned();
        assert!(is_progress(&of(&draining), &of(&further)));
        assert!(!is_progress(
            &of(&draining),
            &of(&in_state(Some("Drained"), "Succeeded"))
        ));
    }
}

#[test]
fn last_update_is_written_for_medik8s_alone() {
    for (api, expected) in [
        (ForeignApi::Medik8s, Some("1970-01-01T00:01:00Z")),
        (ForeignApi::Kubevirt, None),
        (ForeignApi::Nvidia, None),
    ] {
        let facts = stands(api, &object(&whole_drain(), &Value::Null, json!({})));
        let write = ForeignWrite {
            key: facts.name.clone(),
            origin: foreign(&facts).origin.clone(),
            name: "psu".to_owned(),
            uid: facts.uid.clone(),
            status: status_of(foreign(&facts), &facts, &in_state(None, "Running"), at(60)),
            at: Timestamp::from_millisecond(60_000).unwrap(),
        };
        assert_eq!(fields(&write).get("lastUpdate").and_then(Value::as_str), expected);
    }
}

#[test]
fn new_object_is_left_alone_for_three_seconds_unless_clocks_differ() {
    let facts = stands(
        ForeignApi::Medik8s,
        &object(&whole_drain(), &Value::Null, json!({})),
    );
    for (now, expected) in [
        (-600, false),
        (0, true),
        (5, true),
        (7, true),
        (8, false),
        (600, false),
    ] {
        assert_eq!(is_early(&facts, at(now)), expected, "{now}");
    }
}
