//! Writes Events, and a Node's conditions, beside the story: from bounded queues, each under a deadline, never again.
//!
//! They are what people look at and nothing is decided from them. So nobody waits for one to be written, and one that
//! cannot be written is dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::answer;
use crate::ids::{NodeName, NodeUid};
use crate::keys::{FIELD_MANAGER, REPORTING_CONTROLLER};

/// What about Nodes may wait to be written: every node of a large cluster may have an Event at once.
const QUEUE: usize = 512;

/// What about pods may wait: the evictions of ten Nodes with 200 pods each. At 1 kB each it is two megabytes while a
/// kube-apiserver hangs, and nothing otherwise.
const POD_QUEUE: usize = 2048;

/// For one write. A kube-apiserver that needs longer is in trouble, and then has better to do than to take Events.
const WRITE_DEADLINE: Duration = Duration::from_secs(5);

/// Spreads the Events about pods: a drain has one for each pod, while the kube-apiserver is busy with their evictions. Where
/// their queue is half full they are written without a pause, because what does not fit into it is lost.
const POD_EVENT_PAUSE: Duration = Duration::from_millis(100);

/// How long what is queued is still written when the house closes. The end of an episode may be among it; a rollout must
/// not feel it.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The API's own limit for a note, in bytes.
const NOTE_BYTES_MAX: usize = 1_024;

/// The longest name of an object, and what of it the time takes in the name of an Event: a dot and 16 digits.
const NAME_BYTES_MAX: usize = 253 - 17;

/// What an Event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Regarding {
    /// A Node, with its real UID: `kubectl describe node` asks for it.
    Node {
        /// Its name.
        name: NodeName,
        /// Which of the Nodes of that name.
        uid: NodeUid,
    },
    /// A pod.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Which of the pods of that name.
        uid: String,
    },
}

/// Whether something is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// It is.
    Normal,
    /// It was not expected.
    Warning,
}

/// One thing that happened, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What it happened to.
    pub regarding: Regarding,
    /// When. It also orders the Events of one object, so no two of them may be told for one moment.
    pub at: Timestamp,
    /// Whether it was to be expected.
    pub severity: Severity,
    /// What, as a word from a closed list.
    pub reason: &'static str,
    /// What was being done, as a word from a closed list.
    pub action: &'static str,
    /// The sentence.
    pub note: String,
}

/// Conditions of a Node that are to change, by their types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// The Node.
    pub node: NodeName,
    /// Which of the Nodes of that name.
    pub uid: NodeUid,
    /// When they changed.
    pub at: Timestamp,
    /// Those that change; all others, and those of other writers, are not touched.
    pub changes: Vec<ConditionChange>,
}

/// A change of one condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionChange {
    /// Its type.
    pub kind: &'static str,
    /// What it is to be; `None` removes it.
    pub to: Option<ConditionState>,
}

/// What a condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionState {
    /// True or False.
    pub is_true: bool,
    /// Why, as a word.
    pub reason: &'static str,
    /// Why, as a sentence.
    pub message: String,
}

/// One thing to write.
#[derive(Clone, Debug, PartialEq, Eq)]
enum QueuedEvent {
    Event(Box<Event>),
    Conditions(Box<Conditions>),
}

impl QueuedEvent {
    fn is_about_a_pod(&self) -> bool {
        match self {
            Self::Event(event) => matches!(event.regarding, Regarding::Pod { .. }),
            Self::Conditions(_) => false,
        }
    }
}

/// Takes what is to be written, and never waits.
#[derive(Clone, Debug)]
pub struct Publisher {
    nodes: mpsc::Sender<QueuedEvent>,
    pods: mpsc::Sender<QueuedEvent>,
    lost: DroppedEvents,
    /// It was logged that something was dropped.
    was_full: Arc<AtomicBool>,
}

/// What waits to be written, for [`run`].
#[derive(Debug)]
pub struct EventQueue {
    /// What is about Nodes. It waits for nothing that is about pods.
    nodes: mpsc::Receiver<QueuedEvent>,
    pods: mpsc::Receiver<QueuedEvent>,
    lost: DroppedEvents,
}

/// Called for each Event or change of conditions that is lost.
#[derive(Clone)]
struct DroppedEvents(Arc<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for DroppedEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lost")
    }
}

/// The two ends of the queue. `on_lost` is called for each Event or change of conditions that is not written.
pub fn queue(on_lost: impl Fn() + Send + Sync + 'static) -> (Publisher, EventQueue) {
    let (nodes, of_nodes) = mpsc::channel(QUEUE);
    let (pods, of_pods) = mpsc::channel(POD_QUEUE);
    let lost = DroppedEvents(Arc::new(on_lost));
    let publisher = Publisher {
        nodes,
        pods,
        lost: lost.clone(),
        was_full: Arc::default(),
    };
    let queue = EventQueue {
        nodes: of_nodes,
        pods: of_pods,
        lost,
    };
    (publisher, queue)
}

impl Publisher {
    /// Hands `event` on. Gives false when it had to be let go.
    pub fn event(&self, event: Event) -> bool {
        self.hand_on(QueuedEvent::Event(Box::new(event)))
    }

    /// Hands changed conditions on. Gives false when they had to be let go.
    pub fn conditions(&self, conditions: Conditions) -> bool {
        self.hand_on(QueuedEvent::Conditions(Box::new(conditions)))
    }

    fn hand_on(&self, telling: QueuedEvent) -> bool {
        let queue = if telling.is_about_a_pod() {
            &self.pods
        } else {
            &self.nodes
        };
        let taken = queue.try_send(telling).is_ok();
        if !taken {
            (self.lost.0)();
            if !self.was_full.swap(true, Ordering::Relaxed) {
                warn!("too many Events wait to be written and some are dropped; what happens is in the log");
            }
        }
        taken
    }
}

/// Writes what is queued until `stop`, and then what is still there, for a moment.
pub async fn run(client: kube::Client, instance: String, mut queue: EventQueue, stop: CancellationToken) {
    let mut writer = EventWriter {
        client,
        instance,
        lost_in_a_row: 0,
        lost: queue.lost,
    };
    let mut pods_pause_until = Instant::now();
    loop {
        let of_pods = async {
            sleep_until(pods_pause_until).await;
            queue.pods.recv().await
        };
        // Order: a closing house goes over to its last words; an operator looks at a Node first.
        let telling = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(telling) = queue.nodes.recv() => telling,
            Some(telling) = of_pods => telling,
        };
        let is_about_a_pod = telling.is_about_a_pod();
        // Dropped at a stop in the middle: at most one is lost, and it may have been written.
        tokio::select! {
            biased;
            () = writer.write(telling) => {}
            () = closing(&stop) => break,
        }
        if is_about_a_pod && queue.pods.len() <= POD_QUEUE / 2 {
            pods_pause_until = Instant::now() + POD_EVENT_PAUSE;
        }
    }
    let ends = Instant::now() + LAST_WORDS;
    for mut waiting in [queue.nodes, queue.pods] {
        waiting.close();
        while let Ok(Some(telling)) = timeout_at(ends, waiting.recv()).await {
            if timeout_at(ends, writer.write(telling)).await.is_err() {
                return;
            }
        }
    }
}

/// Ends a moment after `stop`: a write that is under way gets the time that an answer takes.
async fn closing(stop: &CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(LAST_WORDS / 2).await;
}

struct EventWriter {
    client: kube::Client,
    /// Who tells, in `reportingInstance`.
    instance: String,
    /// How many in a row could not be written.
    lost_in_a_row: u64,
    lost: DroppedEvents,
}

impl EventWriter {
    async fn write(&mut self, telling: QueuedEvent) {
        let written = match telling {
            QueuedEvent::Event(event) => {
                let namespace = event.regarding.namespace().to_owned();
                let events: Api<api::Event> = Api::namespaced(self.client.clone(), &namespace);
                let body = event.into_body(&self.instance);
                let params = PostParams::default();
                let call = events.create(&params, &body);
                answer::within(WRITE_DEADLINE, call).await.map(|_| ())
            }
            QueuedEvent::Conditions(conditions) => {
                let nodes: Api<core::Node> = Api::all(self.client.clone());
                let params = PatchParams {
                    field_manager: Some(FIELD_MANAGER.to_owned()),
                    ..PatchParams::default()
                };
                let body = Patch::Strategic(conditions.body());
                let call = nodes.patch_status(conditions.node.as_str(), &params, &body);
                answer::within(WRITE_DEADLINE, call).await.map(|_| ())
            }
        };
        match written {
            Ok(()) if self.lost_in_a_row == 0 => {}
            Ok(()) => {
                info!(
                    "Events and conditions are written again; {} were lost meanwhile",
                    self.lost_in_a_row
                );
                self.lost_in_a_row = 0;
            }
            // Said once: as many would follow as happens, and the log tells what happens anyway.
            Err(refusal) => {
                if self.lost_in_a_row == 0 {
                    warn!(
                        "an Event or condition was not written and is not tried again: {}; allow the service account `create` on events of events.k8s.io and, with NODE_CONDITIONS, `patch` on nodes/status",
                        refusal.said()
                    );
                }
                self.lost_in_a_row = self.lost_in_a_row.saturating_add(1);
                (self.lost.0)();
            }
        }
    }
}

impl Regarding {
    /// Where its Events are kept: those of what lives in no namespace, in `default`.
    fn namespace(&self) -> &str {
        match self {
            Self::Node { .. } => "default",
            Self::Pod { namespace, .. } => namespace,
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Node { name, .. } => name.as_str(),
            Self::Pod { name, .. } => name,
        }
    }

    fn reference(&self) -> ObjectReference {
        let (kind, uid, namespace) = match self {
            Self::Node { uid, .. } => ("Node", uid.as_str(), None),
            Self::Pod { namespace, uid, .. } => ("Pod", uid.as_str(), Some(namespace.clone())),
        };
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some(kind.to_owned()),
            name: Some(self.name().to_owned()),
            namespace,
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }
    }
}

impl Severity {
    /// The word of the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

impl Event {
    fn into_body(self, instance: &str) -> api::Event {
        let name = shortened(self.regarding.name(), NAME_BYTES_MAX, "");
        // As client-go names them. The time has 16 digits until the year 2554, so names sort as things happened, which
        // is the order in which `kubectl describe` shows Events that carry no time of the older API.
        let name = format!(
            "{}.{:016x}",
            name.trim_end_matches(['.', '-']),
            self.at.as_nanosecond()
        );
        api::Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(self.regarding.namespace().to_owned()),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(self.at)),
            type_: Some(self.severity.word().to_owned()),
            reason: Some(self.reason.to_owned()),
            action: Some(self.action.to_owned()),
            note: Some(shortened(&answer::plain(&self.note), NOTE_BYTES_MAX, "…")),
            regarding: Some(self.regarding.reference()),
            reporting_controller: Some(REPORTING_CONTROLLER.to_owned()),
            reporting_instance: Some(instance.to_owned()),
            ..api::Event::default()
        }
    }
}

impl Conditions {
    /// The strategic merge patch: conditions are merged by their type, so the kubelet's stay as they are.
    fn body(&self) -> Value {
        let at = format!("{:.0}", self.at);
        let conditions: Vec<Value> = self
            .changes
            .iter()
            .map(|change| match &change.to {
                None => json!({"$patch": "delete", "type": change.kind}),
                Some(state) => json!({
                    "type": change.kind,
                    "status": if state.is_true { "True" } else { "False" },
                    "reason": state.reason,
                    "message": answer::plain(&state.message),
                    "lastTransitionTime": at,
                    "lastHeartbeatTime": at,
                }),
            })
            .collect();
        // With the UID, a namesake that was created meanwhile is refused.
        json!({"metadata": {"uid": self.uid.as_str()}, "status": {"conditions": conditions}})
    }
}

/// `text`, or as much of it as fits into `bytes` together with `end`.
fn shortened(text: &str, bytes: usize, end: &str) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let room = text.floor_char_boundary(bytes.saturating_sub(end.len()));
    let kept = text.get(..room).unwrap_or_default();
    format!("{kept}{end}")
}

#[cfg(test)]
mod tests;
