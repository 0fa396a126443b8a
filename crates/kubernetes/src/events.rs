//! Writes Events and node conditions from bounded queues. Each is written once, with a deadline.
//!
//! Nothing is decided from them, so nothing waits for a write, and an Event that cannot be written is dropped and counted. Conditions
//! are state on which others act, so only the leader writes them. Those that differ from the record for some time are queued again.

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
use crate::fence::{WriteFence, WriteKind};
use crate::ids::{NodeName, NodeUid};
use crate::keys::{FIELD_MANAGER, REPORTING_CONTROLLER};
use haulout_core::status::story::Severity;

/// The queue of Events and conditions of Nodes: one per node of a large cluster.
const QUEUE: usize = 512;

/// The queue of Events of pods: the evictions of ten Nodes with 200 pods each, 1 kB per Event.
const POD_QUEUE: usize = 2048;

const WRITE_DEADLINE: Duration = Duration::from_secs(5);

/// Spreads the Events of pods, because the kube-apiserver is busy with their evictions. There is no pause while the queue is more
/// than half full, because Events that do not fit are lost.
const POD_EVENT_PAUSE: Duration = Duration::from_millis(100);

/// How long queued Events are still written at shutdown. The end of an episode may be among them.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// The limit of the API for a note, in bytes.
const NOTE_BYTES_MAX: usize = 1_024;

/// The longest name of an object, without a dot and 16 digits of the time in the name of an Event.
const NAME_BYTES_MAX: usize = 253 - 17;

/// The object of an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Regarding {
    /// A Node, with the UID by which `kubectl describe node` selects Events.
    Node {
        name: NodeName,
        /// Which of the Nodes of that name.
        uid: NodeUid,
    },
    Pod {
        namespace: String,
        name: String,
        /// Which of the pods of that name.
        uid: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub regarding: Regarding,
    /// The time, which also orders the Events of an object: no two of them may have the same.
    pub at: Timestamp,
    pub severity: Severity,
    /// What happened, from a closed list.
    pub reason: &'static str,
    /// What Haulout did, from a closed list.
    pub action: &'static str,
    pub note: String,
}

/// Changes of conditions of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conditions {
    pub node: NodeName,
    /// Which of the Nodes of that name.
    pub uid: NodeUid,
    /// When they changed.
    pub at: Timestamp,
    /// The changes; other conditions are not touched.
    pub changes: Vec<ConditionChange>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionChange {
    /// The type of the condition.
    pub kind: &'static str,
    /// The new state; `None` removes it.
    pub to: Option<ConditionState>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionState {
    /// True or False.
    pub is_true: bool,
    /// Why, as a word.
    pub reason: &'static str,
    /// Why, as a sentence.
    pub message: String,
}

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

/// Queues Events and conditions, without waiting.
#[derive(Clone, Debug)]
pub struct Publisher {
    nodes: mpsc::Sender<QueuedEvent>,
    pods: mpsc::Sender<QueuedEvent>,
    lost: DroppedEvents,
    /// It was logged that an Event was dropped.
    was_full: Arc<AtomicBool>,
}

/// The queues, for [`run`].
#[derive(Debug)]
pub struct EventQueue {
    /// Has priority over `pods`.
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

/// Creates the queues. `on_lost` is called for each Event or change of conditions that is not written.
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
    /// Queues `event`; false if it was dropped.
    pub fn event(&self, event: Event) -> bool {
        self.push(QueuedEvent::Event(Box::new(event)))
    }

    /// Queues `conditions`; false if they were dropped.
    pub fn conditions(&self, conditions: Conditions) -> bool {
        self.push(QueuedEvent::Conditions(Box::new(conditions)))
    }

    fn push(&self, queued: QueuedEvent) -> bool {
        let queue = if queued.is_about_a_pod() {
            &self.pods
        } else {
            &self.nodes
        };
        let taken = queue.try_send(queued).is_ok();
        if !taken {
            (self.lost.0)();
            if !self.was_full.swap(true, Ordering::Relaxed) {
                warn!("too many Events wait to be written and some are dropped; what happens is in the log");
            }
        }
        taken
    }
}

/// Writes queued Events until `stop`, and then the remaining ones for up to [`SHUTDOWN_GRACE`].
pub async fn run(
    client: kube::Client,
    fence: WriteFence,
    instance: String,
    mut queue: EventQueue,
    stop: CancellationToken,
) {
    let mut writer = EventWriter {
        client,
        fence,
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
        // Priority: shutdown, Nodes, pods.
        let queued = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(queued) = queue.nodes.recv() => queued,
            Some(queued) = of_pods => queued,
        };
        let is_about_a_pod = queued.is_about_a_pod();
        // At a stop, at most the current Event is lost.
        tokio::select! {
            biased;
            () = writer.write(queued) => {}
            () = closing(&stop) => break,
        }
        if is_about_a_pod && queue.pods.len() <= POD_QUEUE / 2 {
            pods_pause_until = Instant::now() + POD_EVENT_PAUSE;
        }
    }
    let ends = Instant::now() + SHUTDOWN_GRACE;
    for mut waiting in [queue.nodes, queue.pods] {
        waiting.close();
        while let Ok(Some(queued)) = timeout_at(ends, waiting.recv()).await {
            if timeout_at(ends, writer.write(queued)).await.is_err() {
                return;
            }
        }
    }
}

/// Ends some time after `stop`, so that a running write can finish.
async fn closing(stop: &CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(SHUTDOWN_GRACE / 2).await;
}

struct EventWriter {
    client: kube::Client,
    fence: WriteFence,
    /// The `reportingInstance`.
    instance: String,
    /// How many Events in a row could not be written.
    lost_in_a_row: u64,
    lost: DroppedEvents,
}

impl EventWriter {
    async fn write(&mut self, queued: QueuedEvent) {
        let written = match queued {
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
                let params = PatchParams::apply(FIELD_MANAGER);
                let body = Patch::Strategic(conditions.body());
                let call = nodes.patch_status(conditions.node.as_str(), &params, &body);
                let write = answer::within(WRITE_DEADLINE, call);
                // The next leader writes them.
                let Ok(permit) = self.fence.permit(WriteKind::Record) else {
                    return;
                };
                match permit.run(write).await {
                    Ok(written) => written.map(|_| ()),
                    Err(_) => return,
                }
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
            // Logged once per outage.
            Err(refusal) => {
                if self.lost_in_a_row == 0 {
                    warn!(
                        "an Event or a condition was not written: {refusal}; the Event is not tried again, the condition later. Allow the service account `create` on events of events.k8s.io and `patch` on nodes/status"
                    );
                }
                self.lost_in_a_row = self.lost_in_a_row.saturating_add(1);
                (self.lost.0)();
            }
        }
    }
}

impl Regarding {
    /// The namespace of its Events: `default` for objects without a namespace.
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

impl Event {
    fn into_body(self, instance: &str) -> api::Event {
        let name = shortened(self.regarding.name(), NAME_BYTES_MAX, "");
        // The naming of client-go. The time has 16 digits until the year 2554, so that names sort by time. `kubectl describe` keeps this
        // order only for up to twelve Events: it sorts by `lastTimestamp`, which events.k8s.io/v1 requires to be unset.
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
        // With the UID, the write is refused if the Node was recreated.
        json!({"metadata": {"uid": self.uid.as_str()}, "status": {"conditions": conditions}})
    }
}

/// `text`, cut to `bytes` including `end`.
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
