use serde_json::{Value, json};

use super::*;
use crate::stand_in::{ScriptedReply, pod, pod_list, refusal, server};

const ATTACHMENTS: &str = "GET /apis/storage.k8s.io/v1/volumeattachments";
const PODS: &str = "GET /api/v1/pods";

fn attachment(name: &str, node: &str, volume: Option<&str>) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"attacher": "csi.lab", "nodeName": node, "source": {"persistentVolumeName": volume}},
    })
}

fn attachments() -> ScriptedReply {
    let items = [
        attachment("a-1", "gpu-1", Some("pvc-train")),
        attachment("a-2", "gpu-1", Some("pvc-agent")),
        attachment("a-3", "gpu-2", Some("pvc-other")),
        attachment("a-4", "gpu-1", None),
        attachment("a-5", "gpu-1", Some("pvc-scratch")),
        attachment("a-6", "gpu-1", Some("pvc-done")),
    ];
    ScriptedReply::Json(
        200,
        json!({
            "kind": "VolumeAttachmentList", "apiVersion": "storage.k8s.io/v1",
            "metadata": {"resourceVersion": "1"}, "items": items,
        }),
    )
}

fn volume(name: &str) -> ScriptedReply {
    let claim = match name {
        "pvc-scratch" => "agent-scratch".to_owned(),
        name => name.replace("pvc-", ""),
    };
    ScriptedReply::Json(
        200,
        json!({
            "kind": "PersistentVolume", "apiVersion": "v1", "metadata": {"name": name},
            "spec": {"claimRef": {"namespace": "shop", "name": claim}},
        }),
    )
}

/// A pod that stays with a claim and an ephemeral volume, and one that has ended.
fn pods() -> ScriptedReply {
    let mut agent = pod("agent");
    agent["spec"]["volumes"] = json!([
        {"name": "data", "persistentVolumeClaim": {"claimName": "agent"}},
        {"name": "scratch", "ephemeral": {}},
    ]);
    let mut done = pod("done");
    done["status"]["phase"] = json!("Succeeded");
    done["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "done"}}]);
    pod_list(&[agent, done], "")
}

async fn listed(
    replies: impl Fn(&str) -> ScriptedReply + Send + 'static,
) -> (Result<Vec<String>, VolumesUnlisted>, Vec<String>) {
    let (client, log) = server(move |seen| replies(&seen.line));
    let (settings, node) = (DrainSettings::default(), NodeName::new("gpu-1"));
    let mut listed = attached(&client, &node, &settings).await;
    let first = log.lines();
    // Claims are read once.
    listed = attached(&client, &node, &settings).await.or(listed);
    let again = &log.lines()[first.len()..];
    let has_read = again.iter().any(|line| line.contains("persistentvolumes"));
    assert!(!has_read || listed.as_ref().is_ok_and(Vec::is_empty), "{again:?}");
    let names = listed.map(|all| all.iter().map(ToString::to_string).collect());
    (names, first)
}

#[tokio::test]
async fn volumes_of_pods_that_stay_are_left_out() {
    let (names, _) = listed(|line| match line {
        ATTACHMENTS => attachments(),
        PODS => pods(),
        line => volume(line.rsplit_once('/').unwrap().1),
    })
    .await;
    assert_eq!(
        names.unwrap(),
        [
            "a-4",
            "pvc-done (claim shop/done)",
            "pvc-train (claim shop/train)"
        ]
    );
}

#[tokio::test]
async fn nothing_else_is_read_if_no_volume_is_attached() {
    let (names, log) = listed(|line| match line {
        ATTACHMENTS => ScriptedReply::Json(
            200,
            json!({"kind": "VolumeAttachmentList", "apiVersion": "storage.k8s.io/v1", "metadata": {}, "items": []}),
        ),
        line => panic!("{line}"),
    })
    .await;
    assert_eq!(names.unwrap(), [""; 0]);
    assert_eq!(log, [ATTACHMENTS]);
}

#[tokio::test]
async fn reply_to_another_request_does_not_say_that_no_volume_is_attached() {
    let (names, _) = listed(|_| pod_list(&[], "")).await;
    let error = names.unwrap_err().to_string();
    assert!(
        error.contains("a PodList where a VolumeAttachmentList was asked for"),
        "{error}"
    );
}

#[tokio::test]
async fn without_the_right_no_volume_is_waited_for() {
    let no = || refusal(403, "Forbidden", "no", json!({}));
    let (names, _) = listed(move |_| no()).await;
    assert_eq!(names.unwrap(), [""; 0]);
    // Which volumes are those of pods that stay is not known without the claims.
    let (names, _) = listed(move |line| match line {
        ATTACHMENTS => attachments(),
        PODS => pods(),
        _ => refusal(403, "Forbidden", "no", json!({})),
    })
    .await;
    assert_eq!(names.unwrap(), [""; 0]);
}

#[tokio::test]
async fn list_that_fails_is_an_error_and_no_empty_list() {
    let (names, _) = listed(|_| refusal(500, "InternalError", "no", json!({}))).await;
    let message = names.unwrap_err().to_string();
    assert!(
        message.contains("the VolumeAttachments of node gpu-1 could not be listed: no (HTTP 500)"),
        "{message}"
    );
}
