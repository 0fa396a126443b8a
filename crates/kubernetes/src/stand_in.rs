//! A kube client whose kube-apiserver is a function, for tests of what we send and how we read the answers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::update::KubernetesUpdate;
use crate::watch::{Settings, WatchContext};

/// A request as it came.
#[derive(Clone, Debug)]
pub struct SeenRequest {
    /// Method and path, such as `GET /api/v1/pods`.
    pub line: String,
    pub query: String,
    pub content_type: String,
    pub traceparent: Option<String>,
    pub body: Value,
}

/// What is answered to a request.
pub enum ScriptedReply {
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
pub struct RequestLog(Arc<Mutex<Vec<SeenRequest>>>);

impl RequestLog {
    pub fn all(&self) -> Vec<SeenRequest> {
        self.0.lock().unwrap().clone()
    }

    pub fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub fn lines(&self) -> Vec<String> {
        self.all().into_iter().map(|seen| seen.line).collect()
    }
}

/// A client on `answer`, and the log of what was asked.
pub fn server(
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
pub fn refusal(code: u16, reason: &str, message: &str, details: Value) -> ScriptedReply {
    ScriptedReply::Json(
        code,
        json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure",
            "code": code, "reason": reason, "message": message, "details": details,
        }),
    )
}

/// A pod of the ReplicaSet `web` on the Node `gpu-1`.
pub fn pod(name: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "shop", "uid": format!("uid-{name}"), "resourceVersion": "7",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": true}],
        },
        "spec": {"nodeName": "gpu-1", "containers": []},
        "status": {"phase": "Running"},
    })
}

pub fn pod_list(pods: &[Value], continue_token: &str) -> ScriptedReply {
    ScriptedReply::Json(
        200,
        json!({
            "kind": "PodList", "apiVersion": "v1",
            "metadata": {"resourceVersion": "100", "continue": continue_token},
            "items": pods,
        }),
    )
}

pub fn event(kind: &str, object: &Value) -> Value {
    json!({"type": kind, "object": object})
}

/// Lists and watches are answered from their own queues; a queue that is empty is silent.
pub fn scripted(lists: Vec<ScriptedReply>, watches: Vec<ScriptedReply>) -> (kube::Client, RequestLog) {
    let (mut lists, mut watches) = (VecDeque::from(lists), VecDeque::from(watches));
    server(move |seen: &SeenRequest| {
        let queue = if seen.query.contains("watch=true") {
            &mut watches
        } else {
            &mut lists
        };
        queue.pop_front().unwrap_or(ScriptedReply::Silence)
    })
}

pub fn context(client: kube::Client) -> (WatchContext, mpsc::Receiver<KubernetesUpdate>) {
    let (out, updates) = mpsc::channel(1);
    let context = WatchContext {
        client,
        settings: Settings::default(),
        out,
        stop: CancellationToken::new(),
    };
    (context, updates)
}

/// Runs a watch on the client until `count` updates or for `limit`, and returns its updates with their times.
pub async fn updates_of<Watch: Future<Output = ()>>(
    client: kube::Client,
    count: usize,
    limit: Duration,
    watch: impl FnOnce(WatchContext) -> Watch,
) -> Vec<(Duration, KubernetesUpdate)> {
    let (context, mut updates) = context(client);
    let (stop, begin) = (context.stop.clone(), Instant::now());
    let reading = async {
        let mut seen = Vec::new();
        while seen.len() < count
            && let Ok(update) = tokio::time::timeout_at(begin + limit, updates.recv()).await
        {
            seen.push((begin.elapsed(), update.unwrap()));
        }
        stop.cancel();
        seen
    };
    futures::join!(watch(context), reading).1
}
