use serde_json::Value;

use super::*;
use haulout_core::facts::window::Window;
use haulout_kubernetes::fence::{WriteFence, WriteKind};
use haulout_kubernetes::stand_in::{ScriptedReply, refusal, server};

#[tokio::test]
async fn an_invalid_object_name_is_never_sent() {
    let (client, log) = server(|_| ScriptedReply::Json(200, Value::Null));
    let permit = WriteFence::without_election().permit(WriteKind::Record).unwrap();
    let uid = RequestUid::new("uid");
    for name in ["gpu1-!!!!!!!!", "../nodes/gpu1", "gpu1-0/status", ""] {
        let created = create(&permit, &client, name, NodeMaintenanceSpec::default()).await;
        let written = write_status(&permit, &client, name, WriteIf::Version(None), &Value::Null).await;
        let deleted = delete(&permit, &client, name, &uid).await;
        for error in [created.unwrap_err(), written.unwrap_err(), deleted.unwrap_err()] {
            assert!(
                error.to_string().contains("is not a valid name of an object"),
                "{error}"
            );
        }
    }
    assert_eq!(log.lines(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn refusal_is_distinguished_from_no_reply() {
    let permit = WriteFence::without_election().permit(WriteKind::Record).unwrap();
    let mut replies = vec![
        ScriptedReply::Silence,
        refusal(422, "Invalid", "too long", Value::Null),
        refusal(404, "NotFound", "not found", Value::Null),
    ];
    let (client, _) = server(move |_| replies.pop().unwrap());
    let uid = RequestUid::new("uid");
    let write = async || {
        let changes = serde_json::json!({});
        write_status(&permit, &client, "gpu1-0", WriteIf::Uid(&uid), &changes)
            .await
            .unwrap_err()
    };
    assert!(matches!(write().await, WriteError::Gone { .. }));
    assert!(matches!(write().await, WriteError::Refused { .. }));
    assert!(matches!(write().await, WriteError::Unreachable { .. }));
}

#[test]
fn what_is_kept_of_an_object_is_bounded() {
    let with = |record: String| {
        let status = NodeMaintenanceStatus {
            record: Some(record),
            pending_pods: vec!["shop/web".to_owned(); LIST_MAX + 1],
            ..NodeMaintenanceStatus::default()
        };
        let spec = NodeMaintenanceSpec {
            origin: MaintenanceOrigin::Episode,
            ..NodeMaintenanceSpec::default()
        };
        let mut object = NodeMaintenance::new("gpu1-0", spec);
        object.status = Some(status);
        facts(&object)
    };
    let kept = with("x".repeat(RECORD_BYTES_MAX));
    assert!(kept.status.record.is_some());
    assert_eq!(kept.status.pending_pods.len(), LIST_MAX);
    let too_long = with("x".repeat(RECORD_BYTES_MAX + 1));
    assert_eq!(too_long.status.record, None);
    assert_eq!(too_long.role, NodeMaintenanceRole::Episode { record: None });
}

#[test]
fn window_is_validated_when_it_is_read() {
    let read = |window: Value| {
        let spec = serde_json::json!({"nodeName": "gpu1", "window": window});
        let spec: NodeMaintenanceSpec = serde_json::from_value(spec).unwrap();
        match facts(&NodeMaintenance::new("gpu1-0", spec)).role {
            NodeMaintenanceRole::Request(asked) => asked.window.map(|window| match window {
                Ok(window) => window.to_string(),
                Err(why) => why.to_string(),
            }),
            NodeMaintenanceRole::Episode { .. } | NodeMaintenanceRole::Foreign(_) => {
                panic!("a request is expected")
            }
        }
    };
    let hours = serde_json::json!({"start": "22:00", "end": "04:00"});
    assert_eq!(read(Value::Null), None);
    assert_eq!(read(hours).as_deref(), Some("22:00-04:00 UTC"));
    // An older CRD may let these through.
    for (window, says) in [
        (serde_json::json!({}), "\"\" is not a time"),
        (
            serde_json::json!({"start": "22:00", "end": "04:00", "days": ["Caturday"]}),
            "is not a day",
        ),
        (
            serde_json::json!({"start": "22:00", "end": "04:00", "timeZone": "Mars/Olympus"}),
            "is not a time zone",
        ),
    ] {
        let refused = read(window).unwrap();
        assert!(refused.contains(says), "{refused}");
    }
}

#[test]
fn window_is_written_as_it_was_given() {
    for text in ["22:00-04:00 UTC", "Mon,Sun 00:00-00:00 Europe/Berlin"] {
        let window: Window = text.parse().unwrap();
        assert_eq!(MaintenanceWindow::from(&window).read(), Ok(window));
    }
}

#[tokio::test]
async fn request_is_refused_where_the_installed_crd_does_not_know_its_fields() {
    let unknown = "strict decoding error: unknown field \"spec.window\"";
    let (client, log) = server(move |_| refusal(400, "BadRequest", unknown, Value::Null));
    let error = request(&client, NodeMaintenanceSpec::default(), false)
        .await
        .unwrap_err();
    assert!(error.to_string().contains(unknown), "{error}");
    let asked = log.all();
    assert_eq!(asked[0].line, "POST /apis/haulout.dev/v1alpha1/nodemaintenances");
    assert_eq!(
        asked[0].query,
        "fieldManager=kubectl-haulout&fieldValidation=Strict"
    );
    assert_eq!(asked[0].content_type, "application/json");
    // A record needs none of the newer fields.
    let permit = WriteFence::without_election().permit(WriteKind::Record).unwrap();
    let created = create(&permit, &client, "gpu1-0", NodeMaintenanceSpec::default()).await;
    assert!(created.is_err());
    assert_eq!(log.all()[1].query, "fieldManager=haulout&fieldValidation=Ignore");
}
