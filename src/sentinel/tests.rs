use serde_json::{Value, json};

use super::*;
use crate::keys::REBOOT_REQUIRED;
use crate::kubernetes::stand_in::{RequestLog, ScriptedReply, SeenRequest, refusal, server};

const NODE: &str = "GET /api/v1/nodes/gpu-1";
const REQUESTS: &str = "GET /apis/haulout.dev/v1alpha1/nodemaintenances";
const CREATE: &str = "POST /apis/haulout.dev/v1alpha1/nodemaintenances";

fn now() -> Timestamp {
    Timestamp::from_second(1_795_000_000).unwrap()
}

/// A sentinel of a node with the annotation, without a file.
fn sentinel(answer: impl FnMut(&SeenRequest) -> ScriptedReply + Send + 'static) -> (Sentinel, RequestLog) {
    use clap::FromArgMatches as _;
    let command = <SentinelArgs as clap::Args>::augment_args(clap::Command::new("sentinel"));
    let words = [
        "sentinel",
        "--node-name",
        "gpu-1",
        "--reboot-required-file",
        "off",
    ];
    let window = ["--sentinel-window", "Sat 22:00-04:00"];
    let matches = command.get_matches_from(words.iter().chain(&window));
    let (client, log) = server(answer);
    let sentinel = Sentinel {
        args: SentinelArgs::from_arg_matches(&matches).unwrap(),
        client,
        clock: now,
    };
    (sentinel, log)
}

fn node() -> ScriptedReply {
    ScriptedReply::Json(
        200,
        json!({
            "metadata": {"name": "gpu-1", "annotations": {REBOOT_REQUIRED: "true"}},
            "status": {"nodeInfo": {"bootID": "boot-1"}},
        }),
    )
}

fn requests(items: &[Value]) -> ScriptedReply {
    let list = json!({
        "apiVersion": "haulout.dev/v1alpha1", "kind": "NodeMaintenanceList",
        "metadata": {"resourceVersion": "9"}, "items": items,
    });
    ScriptedReply::Json(200, list)
}

fn object(status: Value) -> NodeMaintenance {
    serde_json::from_value(json!({
        "apiVersion": "haulout.dev/v1alpha1", "kind": "NodeMaintenance",
        "metadata": {"name": "r", "uid": "u", "resourceVersion": "3", "labels": {REQUESTED_BY: SENTINEL}},
        "spec": {"nodeName": "gpu-1", "action": "Reboot"}, "status": status,
    }))
    .unwrap()
}

#[tokio::test]
async fn request_is_created_with_the_window_under_the_name_of_the_boot() {
    let (sentinel, log) = sentinel(|seen| match seen.line.as_str() {
        NODE => node(),
        REQUESTS => requests(&[]),
        _ => ScriptedReply::Json(201, seen.body.clone()),
    });
    let step = sentinel.round(&mut ChangeLog::default()).await.unwrap();
    assert!(matches!(step, SentinelStep::Ask { .. }));
    let seen = log.all();
    assert_eq!(log.lines(), [NODE, REQUESTS, CREATE]);
    assert!(
        seen[1].query.contains("fieldSelector=spec.nodeName%3Dgpu-1"),
        "{}",
        seen[1].query
    );
    assert!(seen[2].query.contains("fieldValidation=Strict"));
    let asked = &seen[2].body;
    let name = decide::request_name(&NodeName::new("gpu-1"), &BootId::new("boot-1"));
    assert_eq!(asked["metadata"]["name"], name);
    assert_eq!(asked["metadata"]["labels"][REQUESTED_BY], SENTINEL);
    assert_eq!(
        asked["spec"],
        json!({
            "nodeName": "gpu-1", "action": "Reboot", "origin": "Request",
            "reason": "a reboot is required: the Node has the annotation haulout.dev/reboot-required=true",
            "window": {"days": ["Sat"], "start": "22:00", "end": "04:00", "timeZone": "UTC"},
        })
    );
}

#[tokio::test]
async fn request_that_exists_already_was_asked_for() {
    let (sentinel, _) = sentinel(|seen| match seen.line.as_str() {
        NODE => node(),
        REQUESTS => requests(&[]),
        _ => refusal(409, "AlreadyExists", "it exists", Value::Null),
    });
    let step = sentinel.round(&mut ChangeLog::default()).await;
    assert!(matches!(step, Ok(SentinelStep::Ask { .. })), "{step:?}");
}

#[tokio::test]
async fn request_that_has_changed_is_not_deleted() {
    let earlier = serde_json::to_value(object(json!({}))).unwrap();
    let (sentinel, log) = sentinel(move |seen| match seen.line.as_str() {
        NODE => node(),
        REQUESTS => requests(std::slice::from_ref(&earlier)),
        _ => refusal(409, "Conflict", "the resourceVersion is another", Value::Null),
    });
    let error = sentinel.round(&mut ChangeLog::default()).await.unwrap_err();
    assert!(
        error.to_string().contains("the resourceVersion is another"),
        "{error}"
    );
    let last = log.all().pop().unwrap();
    assert_eq!(last.line, "DELETE /apis/haulout.dev/v1alpha1/nodemaintenances/r");
    assert_eq!(
        last.body["preconditions"],
        json!({"uid": "u", "resourceVersion": "3"})
    );
}

#[tokio::test(start_paused = true)]
async fn kube_apiserver_that_does_not_answer_is_asked_again() {
    let (sentinel, log) = sentinel(|_| ScriptedReply::Silence);
    let rounds = run(sentinel.args, sentinel.client, now);
    assert!(
        tokio::time::timeout(Duration::from_secs(100), rounds)
            .await
            .is_err()
    );
    // After 10 s without an answer: waits of 2, 4, 8, 16 and 32 s.
    assert_eq!(log.count(), 5);
}

#[test]
fn reason_of_a_request_has_the_length_that_the_kind_allows() {
    assert_eq!(reason_of("a\nb"), "a reboot is required: a b");
    assert!(reason_of(&"ä".repeat(5_000)).chars().count() <= 1024);
}

#[test]
fn waits_after_failures_double_up_to_the_interval() {
    let interval = Duration::from_secs(300);
    let waits = [1, 2, 3, 8, 9, u32::MAX].map(|failures| retry_after(failures, interval).as_secs());
    assert_eq!(waits, [2, 4, 8, 256, 300, 300]);
}

#[test]
fn progress_of_a_request_follows_from_its_status() {
    let ended = |succeeded| RequestProgress::Ended { at: now(), succeeded };
    for (status, expected) in [
        (json!({}), RequestProgress::NotBegun),
        (
            json!({"waitingOn": {"reason": "NotBegun", "message": "m", "since": "s"}}),
            RequestProgress::NotBegun,
        ),
        (
            json!({"state": "Queued", "startedAt": "2026-11-18T11:06:40Z"}),
            RequestProgress::NotBegun,
        ),
        (json!({"state": "Draining"}), RequestProgress::Begun),
        (json!({"state": "Parked"}), RequestProgress::Begun),
        (
            json!({"state": "Ended", "endedAt": "2026-11-18T11:06:40Z", "result": "Succeeded"}),
            ended(true),
        ),
        (
            json!({"state": "Ended", "endedAt": "2026-11-18T11:06:40Z", "result": "Failed"}),
            ended(false),
        ),
    ] {
        let known = known_request(&object(status.clone())).unwrap();
        assert_eq!((known.progress, known.is_ours), (expected, true), "{status}");
    }
    let mut deleted = object(json!({}));
    deleted.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    assert_eq!(known_request(&deleted), None);
    let mut record = object(json!({}));
    record.spec.origin = MaintenanceOrigin::Episode;
    assert_eq!(known_request(&record), None);
}

#[test]
fn each_note_and_each_failure_is_logged_once() {
    let note = || SentinelNote {
        text: "no reboot is required".to_owned(),
        needs_person: false,
    };
    let mut log = ChangeLog::default();
    log.failed("no answer");
    log.noted(note());
    assert_eq!(log.failure.as_deref(), Some("no answer"));
    log.succeeded();
    assert_eq!((log.failure, log.note), (None, Some(note())));
}
