//! What our requests carry.

use k8s_openapi::api::core::v1::Node;
use kube::Api;

use super::*;
use crate::stand_in::{ScriptedReply, server};

#[tokio::test]
async fn requests_made_for_an_episode_carry_its_traceparent_and_others_none() {
    const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let (client, log) = server(|_| {
        ScriptedReply::Json(
            200,
            serde_json::json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}}),
        )
    });
    for client in [
        traced(&client, TRACEPARENT),
        client.clone(),
        traced(&client, "not\na header"),
    ] {
        Api::<Node>::all(client).get("gpu-1").await.unwrap();
    }
    let seen: Vec<Option<String>> = log.all().into_iter().map(|seen| seen.traceparent).collect();
    assert_eq!(seen, [Some(TRACEPARENT.to_owned()), None, None]);
}

#[tokio::test(start_paused = true)]
async fn head_that_never_ends_is_an_error_at_the_deadline() {
    let begin = tokio::time::Instant::now();
    let reply = head_within(READ_DEADLINE, std::future::pending::<Result<(), BoxError>>()).await;
    assert_eq!(reply.unwrap_err().to_string(), "no answer within 90 s");
    assert_eq!(begin.elapsed(), READ_DEADLINE);
}

#[test]
fn error_in_a_kubeconfig_names_the_place_and_no_secret() {
    for (yaml, place) in [
        (
            "users:\n- name: lab\n  us\u{b}er:\n    token: s3cret\n",
            " at line 3, column 3",
        ),
        (
            "users:\n- name: lab\n  user:\n    username: [s3cret]\n    token: s3cret\n",
            " at line 4, column ",
        ),
        ("users: s3cret\n", " at line 1, column "),
    ] {
        let shown = unusable(&Kubeconfig::from_yaml(yaml).unwrap_err());
        assert!(shown.contains(place) && !shown.contains("s3cret"), "{shown}");
    }
}
