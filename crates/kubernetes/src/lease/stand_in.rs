//! A kube-apiserver that keeps one Lease, for tests of those who share one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::stand_in::{RequestLog, ScriptedReply, refusal, server};

/// It checks resource versions, and can be silent.
#[derive(Clone)]
pub(crate) struct Store {
    name: &'static str,
    held: Arc<Mutex<StoredLease>>,
}

#[derive(Default)]
struct StoredLease {
    lease: Option<Value>,
    version: u64,
    is_silent: bool,
    slow_by: Duration,
    on_write: Option<OnWrite>,
}

type OnWrite = Box<dyn FnMut(&Value) + Send>;

impl Store {
    /// Keeps the Lease of this name in the namespace `ops`, where there is none yet.
    pub(crate) fn of(name: &'static str) -> Self {
        let held = Arc::default();
        Self { name, held }
    }

    pub(crate) fn client(&self) -> (kube::Client, RequestLog) {
        let Self { name, held } = self.clone();
        let all = "/apis/coordination.k8s.io/v1/namespaces/ops/leases";
        let (get, put, post) = (
            format!("GET {all}/{name}"),
            format!("PUT {all}/{name}"),
            format!("POST {all}"),
        );
        server(move |seen| {
            let mut held = held.lock().unwrap();
            if held.is_silent {
                return ScriptedReply::Silence;
            }
            let version = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
            let current = held.lease.as_ref().map(version);
            let fits = if seen.line == get {
                return match &held.lease {
                    Some(lease) => ScriptedReply::Json(200, lease.clone()),
                    None => refusal(404, "NotFound", "no such lease", json!({})),
                };
            } else if seen.line == post {
                current.is_none()
            } else if seen.line == put {
                current.as_ref() == Some(&version(&seen.body))
            } else {
                panic!("{}", seen.line)
            };
            assert!(seen.query.contains("fieldManager=haulout"), "{}", seen.query);
            // As the kube-apiserver demands of a body.
            let metadata = &seen.body["metadata"];
            assert_eq!(
                (&metadata["name"], &metadata["namespace"]),
                (&json!(name), &json!("ops"))
            );
            assert!(metadata["managedFields"].is_null(), "{metadata}");
            if let Some(on_write) = &mut held.on_write {
                on_write(&seen.body);
            }
            if !fits {
                return refusal(409, "Conflict", "it has changed", json!({}));
            }
            held.version += 1;
            let mut lease = seen.body.clone();
            lease["metadata"]["resourceVersion"] = json!(held.version.to_string());
            lease["metadata"]["managedFields"] = json!([{"manager": "haulout"}]);
            held.lease = Some(lease.clone());
            ScriptedReply::Late(held.slow_by, 200, lease)
        })
    }

    pub(crate) fn lease(&self) -> Value {
        self.held.lock().unwrap().lease.clone().unwrap_or_default()
    }

    pub(crate) fn put(&self, lease: Value) {
        self.held.lock().unwrap().lease = Some(lease);
    }

    pub(crate) fn delete(&self) {
        self.held.lock().unwrap().lease = None;
    }

    /// Answers writes, which it carries out at once, after so long.
    pub(crate) fn slow_writes(&self, by: Duration) {
        self.held.lock().unwrap().slow_by = by;
    }

    /// Calls `on_write` with what comes to be written, before it is.
    pub(crate) fn on_write(&self, on_write: impl FnMut(&Value) + Send + 'static) {
        self.held.lock().unwrap().on_write = Some(Box::new(on_write));
    }

    pub(crate) fn silence(&self, is_silent: bool) {
        self.held.lock().unwrap().is_silent = is_silent;
    }
}
