use super::*;
use crate::fence::{WriteFence, WriteKind};
use crate::node_guard::NodeGuard;
use crate::stand_in::{ScriptedReply, refusal, server};

const DEADLINE: Duration = Duration::from_secs(3);

fn gpus() -> GpuResources {
    GpuResources::parse("nvidia.com/*").unwrap()
}

fn cordon() -> NodePatch {
    NodePatch {
        uid: NodeUid::new("uid-1"),
        resource_version: 41,
        annotations: NodeAnnotations {
            state: Some("draining".to_owned()),
            host: Some("esx-1".to_owned()),
            migrated_to_host: None,
            transition_time: Some("2026-01-02T03:04:05Z".to_owned()),
            episode: Some("{}".to_owned()),
            last_episode: None,
            keep_cordoned: Some("true".to_owned()),
            ..NodeAnnotations::default()
        },
        is_adoption: false,
        is_end: false,
        ends_approval: false,
        unschedulable: Some(true),
        guards: GuardChanges::default(),
        taints: Arc::default(),
    }
}

async fn patched(
    with: &NodePatch,
    reply: ScriptedReply,
) -> (
    Result<NodeFacts, NodeError>,
    Vec<super::super::stand_in::SeenRequest>,
) {
    let mut reply = Some(reply);
    let (client, log) = server(move |_| reply.take().unwrap());
    let permit = WriteFence::without_election().permit(WriteKind::Record).unwrap();
    let result = patch(
        &permit,
        &client,
        (None, &gpus()),
        &NodeName::new("gpu-1"),
        with,
        DEADLINE,
    )
    .await;
    (result, log.all())
}

fn node() -> ScriptedReply {
    ScriptedReply::Json(
        200,
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "gpu-1", "uid": "uid-1", "resourceVersion": "42",
                "annotations": {"haulout.dev/state": "draining"}},
            "spec": {"unschedulable": true},
        }),
    )
}

#[tokio::test]
async fn a_transition_is_one_patch_that_only_the_view_it_was_decided_on_accepts() {
    let (result, seen) = patched(&cordon(), node()).await;
    let node = result.unwrap();
    assert_eq!((node.resource_version, node.unschedulable), (42, true));
    assert_eq!(node.annotations.state.as_deref(), Some("draining"));
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].line, "PATCH /api/v1/nodes/gpu-1");
    assert_eq!(seen[0].query, "&fieldManager=haulout");
    assert_eq!(seen[0].content_type, "application/merge-patch+json");
    assert_eq!(
        seen[0].body,
        json!({
            "metadata": {
                "uid": "uid-1",
                "resourceVersion": "41",
                "annotations": {
                    "haulout.dev/state": "draining",
                    "haulout.dev/host": "esx-1",
                    "haulout.dev/migrated-to-host": null,
                    "haulout.dev/transition-time": "2026-01-02T03:04:05Z",
                    "haulout.dev/episode": "{}",
                    "haulout.dev/last-episode": null,
                },
            },
            "spec": {"unschedulable": true},
        })
    );
}

#[tokio::test]
async fn end_removes_our_annotations_and_the_cordon_as_kubectl_does() {
    let end = NodePatch {
        annotations: NodeAnnotations::default(),
        unschedulable: Some(false),
        ..cordon()
    };
    let (_, seen) = patched(&end, node()).await;
    assert_eq!(seen[0].body["spec"], json!({"unschedulable": null}));
    let annotations = seen[0].body["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(annotations.len(), 6);
    assert!(annotations.values().all(Value::is_null));
}

#[tokio::test]
async fn adoption_removes_the_annotations_of_the_python_controller() {
    let adoption = NodePatch {
        is_adoption: true,
        ..cordon()
    };
    let (_, seen) = patched(&adoption, node()).await;
    let annotations = seen[0].body["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(annotations["haulout.dev/state"], "draining");
    let python = annotations
        .iter()
        .filter(|(key, _)| key.starts_with("vsphere-maintenance."));
    let python: Vec<&Value> = python.map(|(_, value)| value).collect();
    assert_eq!(python, [&Value::Null; 4]);
}

#[tokio::test]
async fn a_view_without_a_version_is_never_written_on() {
    let unversioned = NodePatch {
        resource_version: 0,
        ..cordon()
    };
    let (result, seen) = patched(&unversioned, node()).await;
    let error = result.unwrap_err().to_string();
    assert!(error.contains("resourceVersion"), "{error}");
    assert!(seen.is_empty(), "{seen:?}");
}

#[tokio::test]
async fn a_transition_that_leaves_the_cordon_alone_does_not_speak_of_it() {
    let step = NodePatch {
        unschedulable: None,
        ..cordon()
    };
    let (_, seen) = patched(&step, node()).await;
    assert_eq!(seen[0].body.get("spec"), None);
}

#[tokio::test(start_paused = true)]
async fn each_refusal_of_a_patch_says_what_happens_next() {
    let uid = json!({"causes": [{"field": "metadata.uid", "message": "field is immutable"}]});
    let conflict = "the object has been modified; please apply your changes to the latest version";
    for (reply, kind, words) in [
        (
            refusal(409, "Conflict", conflict, Value::Null),
            NodeErrorKind::Conflict,
            "decided again",
        ),
        (
            refusal(404, "NotFound", "nodes \"gpu-1\" not found", Value::Null),
            NodeErrorKind::Gone,
            "it is gone",
        ),
        (
            refusal(422, "Invalid", "Node is invalid", uid),
            NodeErrorKind::Gone,
            "another node has its name",
        ),
        (
            refusal(
                403,
                "Forbidden",
                "User \"x\" cannot patch resource \"nodes\"",
                Value::Null,
            ),
            NodeErrorKind::Forbidden,
            "`patch` on nodes",
        ),
        (
            refusal(401, "Unauthorized", "Unauthorized", Value::Null),
            NodeErrorKind::Forbidden,
            "HTTP 401",
        ),
        (
            refusal(
                403,
                "",
                "admission webhook \"guard\" denied the request: frozen",
                Value::Null,
            ),
            NodeErrorKind::Rejected,
            "denied the request: frozen",
        ),
        (
            refusal(
                422,
                "Invalid",
                "ValidatingAdmissionPolicy 'p' denied request: frozen",
                Value::Null,
            ),
            NodeErrorKind::Rejected,
            "frozen",
        ),
        (
            refusal(500, "InternalError", "etcd", Value::Null),
            NodeErrorKind::Unreachable,
            "is unknown",
        ),
        (
            refusal(429, "TooManyRequests", "busy", Value::Null),
            NodeErrorKind::Unreachable,
            "busy",
        ),
        (
            ScriptedReply::Silence,
            NodeErrorKind::Unreachable,
            "no answer within 3 s",
        ),
        (
            ScriptedReply::Text(200, "<html>"),
            NodeErrorKind::Unreachable,
            "is unknown",
        ),
    ] {
        let error = patched(&cordon(), reply).await.0.unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[tokio::test]
async fn absent_node_is_distinguished_from_an_unreadable_one() {
    let name = NodeName::new("gpu-1");
    for (code, kind) in [
        (404, NodeErrorKind::Gone),
        (403, NodeErrorKind::Forbidden),
        (503, NodeErrorKind::Unreachable),
    ] {
        let (client, _) = server(move |_| refusal(code, "", "no", Value::Null));
        let error = get(&client, (None, &gpus()), &name, DEADLINE).await.unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
    }
}

#[tokio::test]
async fn guards_are_part_of_the_patch_and_other_taints_stay() {
    let foreign = NodeTaint {
        key: "node.kubernetes.io/unreachable".to_owned(),
        value: None,
        effect: "NoExecute".to_owned(),
        time_added: Some("2026-01-02T03:04:05Z".parse().unwrap()),
    };
    let queued = NodeTaint {
        key: "haulout.dev/queued".to_owned(),
        value: None,
        effect: "PreferNoSchedule".to_owned(),
        time_added: None,
    };
    let with = NodePatch {
        guards: GuardChanges {
            set: [NodeGuard::MaintenanceTaint, NodeGuard::Medik8s].into(),
            remove: [NodeGuard::QueuedTaint, NodeGuard::ClusterAutoscaler].into(),
        },
        taints: [foreign, queued].into(),
        ..cordon()
    };
    let (_, seen) = patched(&with, node()).await;
    let body = &seen[0].body;
    assert_eq!(
        body["spec"],
        json!({
            "unschedulable": true,
            "taints": [
                {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"},
                {"key": "haulout.dev/maintenance", "effect": "NoSchedule"},
            ],
        })
    );
    assert_eq!(
        body["metadata"]["labels"],
        json!({"remediation.medik8s.io/exclude-from-remediation": "true"})
    );
    let autoscaler = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
    assert!(
        body["metadata"]["annotations"]
            .as_object()
            .unwrap()
            .contains_key(autoscaler)
    );
    assert_eq!(body["metadata"]["annotations"][autoscaler], Value::Null);
}

#[tokio::test]
async fn last_taint_is_removed_by_an_empty_list() {
    let taint = NodeTaint {
        key: "haulout.dev/maintenance".to_owned(),
        value: None,
        effect: "NoSchedule".to_owned(),
        time_added: None,
    };
    let with = NodePatch {
        unschedulable: Some(false),
        guards: GuardChanges {
            set: [].into(),
            remove: [NodeGuard::MaintenanceTaint].into(),
        },
        taints: [taint].into(),
        ..cordon()
    };
    let (_, seen) = patched(&with, node()).await;
    assert_eq!(seen[0].body["spec"], json!({"unschedulable": null, "taints": []}));
}

#[tokio::test]
async fn gpu_counts_are_cleared_on_the_version_that_shows_them() {
    let cleared = async |reply: ScriptedReply| {
        let mut reply = Some(reply);
        let (client, log) = server(move |_| reply.take().unwrap());
        let permit = WriteFence::without_election().permit(WriteKind::Effect).unwrap();
        let resources = BTreeSet::from(["nvidia.com/gpu".to_owned()]);
        let of = (&NodeUid::new("uid-1"), 41);
        let (read, name) = ((None, &gpus()), NodeName::new("gpu-1"));
        let result = clear_gpus(&permit, &client, read, &name, of, &resources, DEADLINE).await;
        (result, log.all())
    };
    let (result, seen) = cleared(node()).await;
    assert_eq!(result.unwrap().resource_version, 42);
    assert_eq!(seen[0].line, "PATCH /api/v1/nodes/gpu-1/status");
    assert_eq!(
        seen[0].body,
        json!({
            "metadata": {"uid": "uid-1", "resourceVersion": "41"},
            "status": {"capacity": {"nvidia.com/gpu": "0"}, "allocatable": {"nvidia.com/gpu": "0"}},
        })
    );
    for (code, message, kind, words) in [
        (
            403,
            "nodes is forbidden",
            NodeErrorKind::Forbidden,
            "`patch` on nodes/status",
        ),
        (401, "no", NodeErrorKind::Forbidden, "goes on without"),
        (422, "invalid", NodeErrorKind::Rejected, "goes on without"),
        (409, "modified", NodeErrorKind::Conflict, "decided again"),
        (503, "no", NodeErrorKind::Unreachable, "tried again"),
    ] {
        let (result, _) = cleared(refusal(code, "It", message, Value::Null)).await;
        let error = result.unwrap_err();
        assert_eq!(error.kind, kind, "{code}");
        assert!(error.to_string().contains(words), "{error}");
    }
}
