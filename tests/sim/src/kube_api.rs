//! The simulated kube-apiserver on the wire: lists, watches, reads and writes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use haulout::kubernetes::client::READ_DEADLINE;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::clock;
use crate::faults::{Fate, Fault};
use crate::kubelets::with_merged_conditions;
use crate::late::LateRequest;
use crate::store::{Key, Refused, is_cordoned};
use crate::world::{Peer, Shared, World, lock};

pub type ReplyBody = UnsyncBoxBody<Bytes, Infallible>;

/// A connection that ends without a reply.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

pub fn client(world: &Shared, replica: usize) -> kube::Client {
    let world = Arc::clone(world);
    let service = tower::service_fn(move |request: Request<Body>| {
        let world = Arc::clone(&world);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            answer(world, replica, Request::from_parts(head, body)).await
        }
    });
    kube::Client::new(service, "haulout")
}

/// The eviction of a pod.
pub struct EvictionAsk<'a> {
    pub pod: &'a Key,
    /// The UID that it must have.
    pub uid: Option<&'a str>,
}

/// A request, as far as it is understood.
#[derive(Debug)]
pub(crate) struct Ask {
    method: Method,
    key: Key,
    /// `status`, `eviction`, or empty.
    part: String,
    query: Vec<(String, String)>,
    body: Value,
}

impl Ask {
    fn read(method: Method, uri: &http::Uri, body: &[u8]) -> Self {
        let mut parts: Vec<&str> = uri.path().split('/').filter(|part| !part.is_empty()).collect();
        let group = match parts.first().copied() {
            Some("api") => {
                parts.drain(..2.min(parts.len()));
                ""
            }
            Some("apis") if parts.len() > 2 => {
                let group = parts[1];
                parts.drain(..3);
                group
            }
            _ => "",
        };
        let mut namespace = "";
        if parts.first() == Some(&"namespaces") && parts.len() > 2 {
            namespace = parts[1];
            parts.drain(..2);
        }
        let resource = parts.first().copied().unwrap_or_default();
        let resource = match group {
            "" | "policy" | "coordination.k8s.io" | "storage.k8s.io" | "haulout.dev" => resource.to_owned(),
            group => format!("{resource}.{group}"),
        };
        let query = uri.query().unwrap_or_default().split('&').filter_map(|pair| {
            let (key, value) = pair.split_once('=')?;
            Some((key.to_owned(), decoded(value)))
        });
        Self {
            method,
            key: (
                resource,
                namespace.to_owned(),
                parts.get(1).copied().unwrap_or_default().to_owned(),
            ),
            part: parts.get(2).copied().unwrap_or_default().to_owned(),
            query: query.collect(),
            body: serde_json::from_slice(body).unwrap_or_default(),
        }
    }

    fn query(&self, name: &str) -> &str {
        let mut found = self.query.iter().filter(|(key, _)| key == name);
        found.next().map_or("", |(_, value)| value.as_str())
    }

    fn is_watch(&self) -> bool {
        matches!(self.query("watch"), "true" | "1")
    }

    fn is_write(&self) -> bool {
        self.method != Method::GET
    }

    fn selects(&self, key: &Key, object: &Value) -> bool {
        let is_here = self.key.1.is_empty() || self.key.1 == key.1;
        is_here
            && has_labels(self.query("labelSelector"), object)
            && has_fields(self.query("fieldSelector"), object)
    }

    fn line(&self) -> String {
        let (resource, namespace, name) = &self.key;
        let mut line = format!("{} {resource}", self.method);
        for part in [namespace, name, &self.part] {
            if !part.is_empty() {
                line.push('/');
                line.push_str(part);
            }
        }
        if self.is_watch() {
            line.push_str(" (watch)");
        }
        line
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digits: Vec<u8> = rest.by_ref().take(2).collect();
                let digits = String::from_utf8(digits).unwrap_or_default();
                bytes.push(u8::from_str_radix(&digits, 16).unwrap_or(b'?'));
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn has_labels(selector: &str, object: &Value) -> bool {
    let labels = &object["metadata"]["labels"];
    selector
        .split(',')
        .filter(|term| !term.is_empty())
        .all(|term| match term.split_once('=') {
            Some((key, value)) => labels[key] == value.trim_start_matches('='),
            None => !labels[term].is_null(),
        })
}

fn has_fields(selector: &str, object: &Value) -> bool {
    selector.split(',').filter(|term| !term.is_empty()).all(|term| {
        let Some((path, value)) = term.split_once('=') else {
            return false;
        };
        let pointer = format!("/{}", path.replace('.', "/"));
        object.pointer(&pointer).and_then(Value::as_str) == Some(value)
    })
}

fn json_reply(code: u16, body: &Value) -> Response<ReplyBody> {
    text_reply(code, body.to_string())
}

fn text_reply(code: u16, body: String) -> Response<ReplyBody> {
    let mut response = Response::new(Full::new(Bytes::from(body)).boxed_unsync());
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    response
}

/// A `Status` that refuses.
pub fn refusal(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message, "details": {},
    });
    (code, status)
}

fn refused(why: Refused, key: &Key) -> (u16, Value) {
    let what = format!("{} \"{}\"", key.0, key.2);
    match why {
        Refused::Conflict => refusal(
            409,
            "Conflict",
            &format!("Operation cannot be fulfilled on {what}: the object has been modified"),
        ),
        Refused::Exists => refusal(409, "AlreadyExists", &format!("{what} already exists")),
        Refused::NotFound => refusal(404, "NotFound", &format!("{what} not found")),
    }
}

/// Answers a request of a replica.
pub async fn answer(
    world: Shared,
    replica: usize,
    request: Request<Bytes>,
) -> Result<Response<ReplyBody>, Failure> {
    let (head, body) = request.into_parts();
    let ask = Ask::read(head.method, &head.uri, &body);
    let (fate, there, back) = {
        let mut world = lock(&world);
        let world = &mut *world;
        let fate = world
            .faults
            .of_kubernetes(ask.is_write(), &mut world.rng, &mut world.account);
        world.asked(replica, "Kubernetes", &ask.line(), fate);
        world.story.content(&body);
        if ask.is_write() {
            let (resource, part) = (&ask.key.0, &ask.part);
            world
                .story
                .write(&format!("{} {resource} {part}", ask.method), &ask.body);
        }
        (fate, world.latency(), world.latency())
    };
    sleep(there).await;
    match fate {
        Fate::Refused => return Err("connection refused".into()),
        Fate::Status(429) => {
            sleep(back).await;
            let (code, body) = refusal(
                429,
                "TooManyRequests",
                "too many requests, please try again later",
            );
            return Ok(json_reply(code, &body));
        }
        Fate::Status(code) => {
            sleep(back).await;
            return Ok(json_reply(
                code,
                &refusal(code, "InternalError", "etcdserver: request timed out").1,
            ));
        }
        // The connection of the real client ends then.
        Fate::Silence => {
            sleep(READ_DEADLINE).await;
            return Err("the read timed out".into());
        }
        Fate::Answered | Fate::ReplyLost | Fate::Late | Fate::Garbled => {}
    }
    if lock(&world).is_cut_off(replica, Peer::Kubernetes) {
        sleep(READ_DEADLINE).await;
        return Err("the read timed out".into());
    }
    if lock(&world).kube.down_until > clock::elapsed() {
        return Err("connection refused".into());
    }
    if let Some((code, body)) = lock(&world).forbids(&ask) {
        return Ok(json_reply(code, &body));
    }
    if ask.is_watch() {
        sleep(back).await;
        return Ok(watch(world, replica, ask));
    }
    let ask_kind = ask.key.0.clone();
    let (code, body) = if fate == Fate::Late {
        let (reply, answer) = oneshot::channel();
        lock(&world).send_late(LateRequest::Kubernetes { replica, ask, reply });
        answer.await.map_err(|_| "connection reset")?
    } else {
        lock(&world).serve(replica, &ask)
    };
    sleep(back).await;
    if lock(&world).is_cut_off(replica, Peer::Kubernetes) {
        sleep(READ_DEADLINE).await;
        return Err("the read timed out".into());
    }
    match fate {
        Fate::ReplyLost => Err("connection reset".into()),
        Fate::Garbled => {
            let body = lock(&world).garbled(Peer::Kubernetes, &ask_kind, body.to_string());
            Ok(text_reply(code, body))
        }
        Fate::Answered | Fate::Refused | Fate::Status(_) | Fate::Silence | Fate::Late => {
            Ok(json_reply(code, &body))
        }
    }
}

/// The state of a watch.
struct Watch {
    world: Shared,
    replica: usize,
    ask: Ask,
    position: u64,
    cuts: u64,
    until: Instant,
}

fn watch(world: Shared, replica: usize, ask: Ask) -> Response<ReplyBody> {
    let position: u64 = ask.query("resourceVersion").parse().unwrap_or(0);
    let seconds: u64 = ask.query("timeoutSeconds").parse().unwrap_or(300);
    let (compacted, version, cuts) = {
        let world = lock(&world);
        (world.kube.compacted, world.kube.version(), world.kube.cuts)
    };
    if position < compacted {
        let (code, body) = refusal(410, "Expired", "too old resource version");
        return json_reply(code, &body);
    }
    if position > version {
        // After a restore of etcd.
        let (code, body) = refusal(504, "Timeout", "Too large resource version");
        return json_reply(code, &body);
    }
    let watch = Watch {
        world,
        replica,
        ask,
        position,
        cuts,
        until: Instant::now() + Duration::from_secs(seconds),
    };
    let lines = futures::stream::unfold(watch, |mut watch| async move {
        let lines = watch.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(lines))), watch))
    });
    Response::new(StreamBody::new(lines).boxed_unsync())
}

impl Watch {
    /// The next events; `None` at the end of the watch.
    async fn next(&mut self) -> Option<String> {
        let mut changes = lock(&self.world).kube.changes.subscribe();
        loop {
            changes.borrow_and_update();
            let due = {
                let world = lock(&self.world);
                let store = &world.kube;
                if store.cuts != self.cuts || store.down_until > clock::elapsed() {
                    return None;
                }
                if world.is_cut_off(self.replica, Peer::Kubernetes) {
                    break;
                }
                let (events, due) = store.since(self.position);
                let mut lines = String::new();
                for change in events {
                    self.position = change.version;
                    if change.key.0 == self.ask.key.0 {
                        lines.push_str(&event(&self.ask, change));
                    }
                }
                if !lines.is_empty() {
                    return Some(lines);
                }
                due
            };
            let until = due.map_or(self.until, |due| clock::instant(due).min(self.until));
            if timeout_at(until, changes.changed()).await.is_err() {
                if until >= self.until {
                    return None;
                }
                // The next change becomes visible now.
                sleep_until(until).await;
            }
        }
        // The client ends a connection on which nothing comes.
        sleep(READ_DEADLINE).await;
        None
    }
}

fn event(ask: &Ask, change: &crate::store::Change) -> String {
    let was = change
        .before
        .as_ref()
        .filter(|object| ask.selects(&change.key, object));
    let is = change
        .after
        .as_ref()
        .filter(|object| ask.selects(&change.key, object));
    let (kind, object) = match (was, is) {
        (None, None) => return String::new(),
        (None, Some(object)) => ("ADDED", object),
        (Some(_), Some(object)) => ("MODIFIED", object),
        (Some(object), None) => ("DELETED", object),
    };
    let mut object = (**object).clone();
    object["metadata"]["resourceVersion"] = json!(change.version.to_string());
    format!("{}\n", json!({"type": kind, "object": object}))
}

impl World {
    /// The answer to a request that is refused by RBAC.
    fn forbids(&self, ask: &Ask) -> Option<(u16, Value)> {
        let (kind, until) = &self.kube.forbidden;
        let is_forbidden = *kind == ask.key.0 && *until > clock::elapsed();
        is_forbidden.then(|| {
            refusal(
                403,
                "Forbidden",
                &format!("{kind} is forbidden: User \"haulout\""),
            )
        })
    }

    pub(crate) fn serve(&mut self, replica: usize, ask: &Ask) -> (u16, Value) {
        let (resource, name) = (ask.key.0.as_str(), ask.key.2.as_str());
        if resource == "apis" || ask.key.0.is_empty() {
            let group = |name: &str| {
                let version = json!({"groupVersion": format!("{name}/v1"), "version": "v1"});
                json!({"name": name, "versions": [version], "preferredVersion": version})
            };
            let groups = [group("apps"), group("policy"), group("coordination.k8s.io")];
            return (
                200,
                json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}),
            );
        }
        if resource == "events.events.k8s.io" || resource == "events" {
            return self.event_written(ask);
        }
        match ask.method {
            Method::GET if name.is_empty() => self.listed(ask),
            Method::GET => match self.kube.get(&ask.key) {
                Some(object) => (200, (**object).clone()),
                None => refused(Refused::NotFound, &ask.key),
            },
            Method::POST if ask.part == "eviction" => self.evict(&EvictionAsk {
                pod: &ask.key,
                uid: ask
                    .body
                    .pointer("/deleteOptions/preconditions/uid")
                    .and_then(Value::as_str),
            }),
            Method::POST => {
                let mut key = ask.key.clone();
                let metadata = &ask.body["metadata"];
                key.2 = metadata["name"].as_str().unwrap_or_default().to_owned();
                self.written(replica, &key, ask, |world| {
                    world.kube.create(&key, ask.body.clone(), ask.manager())
                })
            }
            Method::PUT => self.written(replica, &ask.key, ask, |world| {
                world.kube.update(&ask.key, ask.body.clone(), ask.manager())
            }),
            Method::PATCH => self.written(replica, &ask.key, ask, |world| {
                let object = world.kube.get(&ask.key);
                let body = object.map(|object| with_merged_conditions(object, &ask.body));
                let body = body.as_ref().unwrap_or(&ask.body);
                world.kube.patch(&ask.key, body, ask.manager())
            }),
            Method::DELETE => {
                self.check_delete(&ask.key);
                match self.kube.delete(&ask.key) {
                    Some(object) => (200, (*object).clone()),
                    None => refused(Refused::NotFound, &ask.key),
                }
            }
            _ => refusal(
                405,
                "MethodNotAllowed",
                "the simulation does not know this method",
            ),
        }
    }

    fn listed(&self, ask: &Ask) -> (u16, Value) {
        let known = [
            ("nodes", "NodeList"),
            ("pods", "PodList"),
            ("poddisruptionbudgets", "PodDisruptionBudgetList"),
            ("nodemaintenances", "NodeMaintenanceList"),
            ("volumeattachments", "VolumeAttachmentList"),
            ("namespaces", "NamespaceList"),
            ("leases", "LeaseList"),
        ];
        let Some((_, kind)) = known.iter().find(|(resource, _)| ask.key.0 == *resource) else {
            return refusal(
                404,
                "NotFound",
                "the server could not find the requested resource",
            );
        };
        let found = self
            .kube
            .list(&ask.key.0)
            .filter(|(key, object)| ask.selects(key, object));
        let items: Vec<&Value> = found.map(|(_, object)| &**object).collect();
        let list = json!({
            "kind": kind, "apiVersion": "v1",
            "metadata": {"resourceVersion": self.kube.version().to_string()},
            "items": items,
        });
        (200, list)
    }

    /// A write of a replica: checked before and after.
    fn written(
        &mut self,
        replica: usize,
        key: &Key,
        ask: &Ask,
        write: impl FnOnce(&mut Self) -> Result<Arc<Value>, Refused>,
    ) -> (u16, Value) {
        if key.0 == "nodes"
            && self
                .faults
                .fires(Fault::Conflict, &mut self.rng, &mut self.account)
        {
            // Another client writes the Node first.
            let now = clock::elapsed().as_millis().to_string();
            self.kube.change(key, "somebody", |node| {
                node["metadata"]["annotations"]["example.com/touched"] = json!(now);
            });
        }
        let before = self.kube.get(key).cloned();
        match write(self) {
            Ok(after) => {
                let is_idle = before.as_ref().is_some_and(|before| Arc::ptr_eq(before, &after));
                self.check_idle_write(replica, key, is_idle);
                if key.0 == "nodes" && ask.part == "status" {
                    self.node_status_was_written(&key.2);
                } else if key.0 == "nodes" {
                    self.check_node_write(replica, &key.2, &ask.body, before.as_deref(), &after);
                    if before.as_deref().is_some_and(is_cordoned) != is_cordoned(&after) {
                        self.schedule_soon();
                    }
                }
                if key.0 == "nodemaintenances" {
                    self.note_status(&after);
                }
                let code = if ask.method == Method::POST { 201 } else { 200 };
                (code, (*after).clone())
            }
            Err(why) => refused(why, key),
        }
    }

    fn node_status_was_written(&mut self, name: &str) {
        let node = name.strip_prefix("gpu-").and_then(|node| node.parse().ok());
        if let Some(node) = node {
            self.status_was_written(node);
        }
    }

    fn event_written(&mut self, ask: &Ask) -> (u16, Value) {
        if ask.method != Method::POST {
            return refusal(404, "NotFound", "the Event is not there any more");
        }
        let mut event = ask.body.clone();
        let text = |path: &str| event[path].as_str().unwrap_or_default().to_owned();
        self.account.count("event", text("reason"));
        let (reason, note) = (text("reason"), text("note"));
        self.tell("Event", format!("{reason}: {note}"));
        event["metadata"]["resourceVersion"] = json!("1");
        (201, event)
    }
}

impl Ask {
    fn manager(&self) -> &str {
        match self.query("fieldManager") {
            "" => "unknown",
            manager => manager,
        }
    }
}
