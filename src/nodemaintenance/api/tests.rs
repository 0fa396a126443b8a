use serde_json::Value;

use super::*;
use crate::fence::{WriteFence, WriteKind};
use crate::kubernetes::stand_in::{ScriptedReply, refusal, server};

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
