use std::path::Path;
use std::sync::Arc;

use haulout_core::fixtures::{episode, moment, node as observed_node, record, snapshot};
use serde_json::Value;

use super::*;
use crate::fence::WriteFence;
use crate::ids::{BootId, EpisodeId};
use crate::kubernetes::stand_in::{RequestLog, ScriptedReply, refusal, server};
use crate::maintenance::episode::{HeldStep, Phase};
use crate::maintenance::observed::HostState;

const TEMPLATE: &str = r#"{
    "metadata": {"namespace": "gpu", "labels": {"app": "cuda"}, "generateName": "x-"},
    "spec": {"backoffLimit": 0, "template": {"spec": {
        "restartPolicy": "Never",
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "containers": [{"name": "cuda", "image": "registry.invalid/cuda"}]
    }}}
}"#;

fn template() -> ValidationTemplate {
    ValidationTemplate::parse(TEMPLATE, "default").unwrap()
}

#[test]
fn job_is_bound_to_its_node_and_tolerates_the_maintenance() {
    let job = template().job("haulout-validation-1", &NodeName::new("gpu-7"));
    let job = serde_json::to_value(&job).unwrap();
    assert_eq!(job["metadata"]["name"], "haulout-validation-1");
    assert_eq!(job["metadata"]["labels"], json!({"app": "cuda"}));
    assert_eq!(
        job["metadata"]["annotations"],
        json!({"haulout.dev/node": "gpu-7"})
    );
    assert_eq!(job["metadata"].get("generateName"), None);
    let pod = &job["spec"]["template"]["spec"];
    let tolerated: Vec<&str> = pod["tolerations"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|it| it["key"].as_str())
        .collect();
    assert_eq!(
        tolerated,
        [
            "nvidia.com/gpu",
            "node.kubernetes.io/unschedulable",
            "haulout.dev/maintenance"
        ]
    );
    let affinity = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let fields = json!([{"key": "metadata.name", "operator": "In", "values": ["gpu-7"]}]);
    assert_eq!(affinity["nodeSelectorTerms"], json!([{"matchFields": fields}]));
    assert!(pod["affinity"].get("podAntiAffinity").is_some());
}

#[test]
fn template_that_is_no_job_is_refused_with_the_reason() {
    for (text, why) in [
        ("kind: Job", "a Job as JSON is expected"),
        ("{}", "the Job has no spec"),
        (r#"{"spec": {"template": {}}}"#, "the Job has no pod template"),
        (
            r#"{"spec": {"template": {"spec": {"containers": []}}}}"#,
            "the Job has no container",
        ),
    ] {
        let error = ValidationTemplate::parse(text, "default").unwrap_err();
        assert!(error.starts_with(why), "{error}");
    }
    assert!(ValidationTemplate::read(Path::new("/nonexistent/job.json"), "default").is_err());
    let own = r#"{"spec": {"template": {"spec": {"containers": [{"name": "a"}]}}}}"#;
    assert_eq!(
        ValidationTemplate::parse(own, "default").unwrap().namespace(),
        "default"
    );
}

#[test]
fn name_of_a_job_follows_from_episode_and_boot() {
    let episode = EpisodeId::new("0011223344556677889900aabbccddee");
    for (boot, expected) in [
        (
            Some("AB12-cd34/ef56-7890"),
            "haulout-validation-001122334455-ab12cd34ef56",
        ),
        (Some("../x"), "haulout-validation-001122334455"),
        (None, "haulout-validation-001122334455"),
    ] {
        let boot = boot.map(BootId::new);
        assert_eq!(job_name(&episode, boot.as_ref()), expected);
    }
}

fn due(held: Option<HookPoint>, hook: Option<&str>) -> NodeSnapshot {
    let mut back = episode(Phase::Rejoining, 0);
    back.held = held.map(|point| HeldStep::begin(point, moment(0)));
    let mut snapshot = snapshot(record(back), HostState::InService);
    let mut node = observed_node();
    if let Some(hook) = hook {
        node.hooks
            .insert(HookPoint::PreUncordon, [hook.to_owned()].into());
    }
    snapshot.observed.node = Some(node);
    snapshot
}

#[test]
fn node_is_due_while_the_hook_holds_its_uncordon() {
    let board = ValidationBoard::default();
    let show = |snapshot: NodeSnapshot| {
        let snapshots = BTreeMap::from([(NodeName::new("gpu1"), Arc::new(snapshot))]);
        board.show(&SnapshotBatch {
            snapshots,
            are_all: true,
            hosts: BTreeMap::new(),
        });
        board.first(9).len()
    };
    let own = Some("haulout-validation");
    assert_eq!(show(due(None, own)), 0, "the node is not back");
    assert_eq!(show(due(Some(HookPoint::PreDrain), own)), 0);
    assert_eq!(show(due(Some(HookPoint::PreUncordon), Some("ticket"))), 0);
    assert_eq!(show(due(Some(HookPoint::PreUncordon), own)), 1);
    assert_eq!(show(due(Some(HookPoint::PreUncordon), None)), 0);
}

/// Does one step, while a GET of the Job and a change are answered so.
async fn step(found: ScriptedReply, changed: ScriptedReply) -> (Result<(), ApiRefusal>, RequestLog) {
    let (mut found, mut changed) = (Some(found), Some(changed));
    let (client, log) = server(move |seen| {
        let reply = if seen.line.starts_with("GET") {
            &mut found
        } else {
            &mut changed
        };
        reply.take().unwrap()
    });
    let template = template();
    let mut runner = ValidationRunner {
        jobs: Api::namespaced(client.clone(), template.namespace()),
        nodes: Api::all(client),
        template,
        told: BTreeSet::new(),
    };
    let due = DueValidation {
        uid: NodeUid::new("uid-1"),
        job: "haulout-validation-1".to_owned(),
    };
    let permit = WriteFence::without_election().permit(WriteKind::Effect).unwrap();
    let done = runner.step(&permit, &NodeName::new("gpu-7"), &due).await;
    (done, log)
}

fn job(condition: Option<&str>) -> ScriptedReply {
    let conditions: Vec<Value> = condition
        .iter()
        .map(|kind| json!({"type": kind, "status": "True", "message": "exit code 1"}))
        .collect();
    ScriptedReply::Json(
        200,
        json!({"metadata": {"name": "j"}, "status": {"conditions": conditions}}),
    )
}

#[tokio::test]
async fn job_is_created_once_and_its_success_removes_the_hook() {
    let absent = || refusal(404, "NotFound", "no such Job", Value::Null);
    let (done, log) = step(absent(), job(None)).await;
    done.unwrap();
    assert_eq!(log.lines()[1], "POST /apis/batch/v1/namespaces/gpu/jobs");
    for (condition, changes) in [
        (None, 0),
        (Some("Suspended"), 0),
        (Some("Failed"), 0),
        (Some("Complete"), 1),
    ] {
        let node = json!({"metadata": {"name": "gpu-7"}});
        let (done, log) = step(job(condition), ScriptedReply::Json(200, node)).await;
        done.unwrap();
        assert_eq!(log.count(), 1 + changes, "{condition:?}");
        if changes == 1 {
            let seen = &log.all()[1];
            assert_eq!(seen.line, "PATCH /api/v1/nodes/gpu-7");
            let hook = json!({(VALIDATION_HOOK): null});
            assert_eq!(
                seen.body,
                json!({"metadata": {"uid": "uid-1", "annotations": hook}})
            );
        }
    }
    let forbidden = refusal(403, "Forbidden", "jobs is forbidden", Value::Null);
    let (done, _) = step(absent(), forbidden).await;
    assert_eq!(done.unwrap_err().code(), Some(403));
}
