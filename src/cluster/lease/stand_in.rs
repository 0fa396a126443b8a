//! A kube-apiserver that keeps one Lease, for tests of those who share one.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::cluster::stand_in::{Log, Reply, refusal, server};

/// It checks resource versions, and is silent when it is told to.
#[derive(Clone)]
pub(in crate::cluster) struct Store {
    name: &'static str,
    held: Arc<Mutex<Held>>,
}

#[derive(Default)]
struct Held {
    lease: Option<Value>,
    version: u64,
    is_silent: bool,
}

impl Store {
    /// Keeps the Lease of this name in the namespace `ops`, where there is none yet.
    pub(in crate::cluster) fn of(name: &'static str) -> Self {
        let held = Arc::default();
        Self { name, held }
    }

    pub(in crate::cluster) fn client(&self) -> (kube::Client, Log) {
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
                return Reply::Silence;
            }
            let version = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
            let stands = held.lease.as_ref().map(version);
            let fits = if seen.line == get {
                return match &held.lease {
                    Some(lease) => Reply::Json(200, lease.clone()),
                    None => refusal(404, "NotFound", "no such lease", json!({})),
                };
            } else if seen.line == post {
                stands.is_none()
            } else if seen.line == put {
                stands.as_ref() == Some(&version(&seen.body))
            } else {
                panic!("{}", seen.line)
            };
            if !fits {
                return refusal(409, "Conflict", "it has changed", json!({}));
            }
            held.version += 1;
            let mut lease = seen.body.clone();
            lease["metadata"]["resourceVersion"] = json!(held.version.to_string());
            held.lease = Some(lease.clone());
            Reply::Json(200, lease)
        })
    }

    pub(in crate::cluster) fn lease(&self) -> Value {
        self.held.lock().unwrap().lease.clone().unwrap_or_default()
    }

    pub(in crate::cluster) fn put(&self, lease: Value) {
        self.held.lock().unwrap().lease = Some(lease);
    }

    pub(in crate::cluster) fn silence(&self, is_silent: bool) {
        self.held.lock().unwrap().is_silent = is_silent;
    }
}
