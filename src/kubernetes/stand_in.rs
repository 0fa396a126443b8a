//! A kube client whose kube-apiserver is a function, for tests of what we send and how we read the answers.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct SeenRequest {
    /// Method and path, such as `GET /api/v1/pods`.
    pub line: String,
    pub query: String,
    pub content_type: String,
    pub traceparent: Option<String>,
    pub body: Value,
}

/// What is answered to a request.
pub(crate) enum ScriptedReply {
    /// A status code and a body.
    Json(u16, Value),
    /// The same, after so long.
    Late(Duration, u16, Value),
    /// A text that is no JSON.
    Text(u16, &'static str),
    /// A status code, the header `Retry-After`, and a text that is no JSON.
    RetryAfter(u16, &'static str, &'static str),
    /// The events of a watch, which then ends.
    Events(Vec<Value>),
    /// Nothing, ever.
    Silence,
}

/// The stand-in's log of requests.
#[derive(Clone, Default)]
pub(crate) struct RequestLog(Arc<Mutex<Vec<SeenRequest>>>);

impl RequestLog {
    pub(crate) fn all(&self) -> Vec<SeenRequest> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.all().into_iter().map(|seen| seen.line).collect()
    }
}

/// A client on `answer`, and the log of what was asked.
pub(crate) fn server(
    answer: impl FnMut(&SeenRequest) -> ScriptedReply + Send + 'static,
) -> (kube::Client, RequestLog) {
    let log = RequestLog::default();
    let answer = Arc::new(Mutex::new(answer));
    let seen_by = log.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (log, answer) = (seen_by.clone(), answer.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let seen = SeenRequest {
                line: format!("{} {}", head.method, head.uri.path()),
                query: head.uri.query().unwrap_or_default().to_owned(),
                content_type: head
                    .headers
                    .get("content-type")
                    .map(|value| value.to_str().unwrap().to_owned())
                    .unwrap_or_default(),
                traceparent: head
                    .headers
                    .get("traceparent")
                    .map(|value| value.to_str().unwrap().to_owned()),
                body: serde_json::from_slice(&body).unwrap_or(Value::Null),
            };
            log.0.lock().unwrap().push(seen.clone());
            let reply = (*answer.lock().unwrap())(&seen);
            let mut response = Response::builder();
            let (code, body) = match reply {
                ScriptedReply::Json(code, body) => (code, body.to_string()),
                ScriptedReply::Late(after, code, body) => {
                    tokio::time::sleep(after).await;
                    (code, body.to_string())
                }
                ScriptedReply::Text(code, body) => (code, body.to_owned()),
                ScriptedReply::RetryAfter(code, after, body) => {
                    response = response.header("retry-after", after);
                    (code, body.to_owned())
                }
                ScriptedReply::Events(events) => {
                    (200, events.iter().map(|event| format!("{event}\n")).collect())
                }
                ScriptedReply::Silence => std::future::pending().await,
            };
            let response = response.status(code).body(Body::from(body.into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    (kube::Client::new(service, "default"), log)
}

/// A `Status` that refuses.
pub(crate) fn refusal(code: u16, reason: &str, message: &str, details: Value) -> ScriptedReply {
    ScriptedReply::Json(
        code,
        json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure",
            "code": code, "reason": reason, "message": message, "details": details,
        }),
    )
}

/// A pod of the ReplicaSet `web` on the Node `gpu-1`.
pub(crate) fn pod(name: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "shop", "uid": format!("uid-{name}"), "resourceVersion": "7",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": true}],
        },
        "spec": {"nodeName": "gpu-1", "containers": []},
        "status": {"phase": "Running"},
    })
}

pub(crate) fn pod_list(pods: &[Value], continue_token: &str) -> ScriptedReply {
    ScriptedReply::Json(
        200,
        json!({
            "kind": "PodList", "apiVersion": "v1",
            "metadata": {"resourceVersion": "100", "continue": continue_token},
            "items": pods,
        }),
    )
}
