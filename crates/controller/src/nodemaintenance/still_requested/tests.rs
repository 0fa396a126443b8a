use serde_json::{Value, json};

use super::*;
use haulout_core::facts::foreign_maintenance::{ForeignApi, ForeignOrigin};
use haulout_core::ids::RequestUid;
use haulout_kubernetes::stand_in::{ScriptedReply, refusal, server};

fn request(foreign: Option<ForeignOrigin>) -> RequestIdentity {
    RequestIdentity {
        name: "reboot-gpu1".to_owned(),
        uid: RequestUid::new("uid-1"),
        foreign,
    }
}

fn listed(metadata: &[Value]) -> ScriptedReply {
    let items: Vec<Value> = metadata
        .iter()
        .map(|metadata| json!({"apiVersion": "haulout.dev/v1alpha1", "kind": "NodeMaintenance", "metadata": metadata}))
        .collect();
    let list = json!({
        "apiVersion": "haulout.dev/v1alpha1", "kind": "NodeMaintenanceList",
        "metadata": {"resourceVersion": "9"}, "items": items,
    });
    ScriptedReply::Json(200, list)
}

#[tokio::test(start_paused = true)]
async fn power_is_cut_only_for_a_request_that_still_stands() {
    let withdrawn = || {
        Err(RequestCheckError::Withdrawn {
            name: "reboot-gpu1".to_owned(),
        })
    };
    let of = |uid: &str| json!({"name": "reboot-gpu1", "uid": uid});
    let mut deleting = of("uid-1");
    deleting["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    for (reply, expected) in [
        (listed(&[of("uid-1")]), Ok(())),
        (listed(&[]), withdrawn()),
        // Somebody created another one of that name.
        (listed(&[of("uid-2")]), withdrawn()),
        (listed(&[deleting]), withdrawn()),
    ] {
        let mut replies = vec![reply];
        let (client, log) = server(move |_| replies.pop().unwrap());
        assert_eq!(check(&client, &request(None)).await, expected);
        let query = &log.all()[0].query;
        assert!(
            query.contains("fieldSelector=metadata.name%3Dreboot-gpu1"),
            "{query}"
        );
        assert!(!query.contains("resourceVersion"), "{query}");
    }
    for reply in [
        ScriptedReply::Silence,
        refusal(403, "Forbidden", "no", Value::Null),
    ] {
        let mut replies = vec![reply];
        let (client, _) = server(move |_| replies.pop().unwrap());
        let unknown = check(&client, &request(None)).await.unwrap_err();
        assert!(matches!(unknown, RequestCheckError::Unknown { .. }), "{unknown}");
    }
}

#[tokio::test]
async fn request_of_another_project_is_read_in_its_kind_and_namespace() {
    let mut replies = vec![listed(&[json!({"name": "reboot-gpu1", "uid": "uid-1"})])];
    let (client, log) = server(move |_| replies.pop().unwrap());
    let origin = ForeignOrigin {
        api: ForeignApi::Nvidia,
        namespace: Some("ops".to_owned()),
    };
    assert_eq!(check(&client, &request(Some(origin))).await, Ok(()));
    let line = &log.lines()[0];
    let path = "/apis/maintenance.nvidia.com/v1alpha1/namespaces/ops/nodemaintenances";
    assert!(line.contains(path), "{line}");
}
