//! Notifications for people and programs outside: a CloudEvent over HTTP when a maintenance begins, needs a person, or ends.

use std::path::{Path, PathBuf};
use std::time::Duration;

use haulout_controller::observer::Observer;
use haulout_core::named_enum;
use jiff::Timestamp;
use serde::Serialize;
use thiserror::Error;
use tracing::{debug, info, warn};

use super::link::Links;
use super::sink::{Delivery, Keep, Outbox, Pace, Sink, SinkKey, SinkReport, Urgency};
use super::url_file;
use haulout_core::ids::NodeName;
use haulout_core::maintenance::decide::Transition;
use haulout_core::maintenance::episode::{Episode, Record};
use haulout_core::maintenance::waiting::WaitingOn;
use haulout_core::status::node_event::NodeEvent;
use haulout_core::status::story::Beat;
use haulout_core::status::{EpisodeOutcome, Took};
use haulout_kubernetes::answer::chain;

/// Deadline of one attempt.
const DEADLINE: Duration = Duration::from_secs(10);

/// A receiver that is away for longer than seven seconds misses a notification. A node has three of them in a maintenance.
const PACE: Pace = Pace {
    at_once: 4,
    pause_min: Duration::from_secs(1),
    pause_max: Duration::from_secs(4),
    keep: Keep::Each {
        tries: 4,
        max_final: 8,
    },
};

/// A CloudEvent in structured mode (CloudEvents 1.0, JSON format).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Notification {
    specversion: &'static str,
    /// Unique together with the source: a repeated attempt has the same id.
    id: String,
    source: String,
    #[serde(rename = "type")]
    kind: String,
    /// The node.
    subject: String,
    time: String,
    datacontenttype: &'static str,
    /// One sentence, under the name that chat systems read, and escaped for them: a name in it must not become a mention or a link.
    text: String,
    data: NotificationData,
}

named_enum! {
    /// What a notification is about: the last part of its type.
    pub enum NotificationKind {
        Began = "began",
        NeedsPerson = "needs-person",
        Ended = "ended",
    }
}

/// The facts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct NotificationData {
    node: String,
    host: String,
    episode: String,
    phase: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'static str>,
    /// The kind of the wait that needs a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_on: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_step: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_url: Option<String>,
}

/// Queues notifications.
#[derive(Debug)]
pub struct Notifications {
    outbox: Outbox<NodeName, Notification>,
    source: String,
    links: Links,
    clock: fn() -> Timestamp,
}

impl Notifications {
    /// For the release `source`.
    pub fn new(source: &str, links: Links, clock: fn() -> Timestamp) -> Self {
        Self {
            outbox: Outbox::new(PACE),
            source: format!("/haulout/{source}"),
            links,
            clock,
        }
    }

    pub fn outbox(&self) -> Outbox<NodeName, Notification> {
        self.outbox.clone()
    }

    fn recorded(&self, node: &NodeName, before: &Record, transition: &Transition, at: Timestamp) {
        let (was, is) = (before.episode(), transition.record.episode());
        if let Some(episode) = is
            && was.is_none_or(|was| was.id != episode.id)
        {
            let text = format!(
                "Maintenance of node {node} began: {}.",
                episode.trigger_sentence()
            );
            self.send(
                node,
                self.notification(node, episode, NotificationKind::Began, at, text),
            );
        }
        if let (Some(episode), Some(ended)) = (was, transition.ended) {
            let outcome = EpisodeOutcome::from(Some(ended));
            let took = Took(at.duration_since(episode.begun_at));
            let text = format!(
                "Maintenance of node {node} ended after {took}: {}.",
                outcome.name()
            );
            let mut notification = self.notification(node, episode, NotificationKind::Ended, at, text);
            notification.data.result = Some(outcome.name());
            self.send(node, notification);
        }
    }

    fn calls_person(&self, node: &NodeName, episode: &Episode, on: &WaitingOn) {
        let step = on.next_step(node);
        let next = step.as_ref().map(|step| format!(" Next: {step}"));
        let text = format!("Node {node} needs a person: {on}.{}", next.unwrap_or_default());
        let at = (self.clock)();
        let mut notification = self.notification(node, episode, NotificationKind::NeedsPerson, at, text);
        notification.data.waiting_on = Some(on.kind().name());
        notification.data.next_step = step;
        self.send(node, notification);
    }

    fn notification(
        &self,
        node: &NodeName,
        episode: &Episode,
        what: NotificationKind,
        at: Timestamp,
        text: String,
    ) -> Notification {
        Notification {
            specversion: "1.0",
            id: format!("{}-{what}-{}", episode.id, at.as_millisecond()),
            source: self.source.clone(),
            kind: format!("dev.haulout.maintenance.{what}"),
            subject: node.to_string(),
            time: format!("{at:.3}"),
            datacontenttype: "application/json",
            text: escaped(&text),
            data: NotificationData {
                node: node.to_string(),
                host: episode.host.name.to_string(),
                episode: episode.id.to_string(),
                phase: episode.phase.name(),
                result: None,
                waiting_on: None,
                next_step: None,
                trace_url: self.links.to(episode),
            },
        }
    }

    fn send(&self, node: &NodeName, notification: Notification) {
        self.outbox.push(node.clone(), notification, Urgency::Final);
    }
}

/// The three characters that chat systems such as Slack take for markup.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

impl Observer for Notifications {
    fn observe(&self, node: &NodeName, beat: &Beat<'_>) {
        match beat.event {
            NodeEvent::Recorded {
                before, transition, ..
            } => self.recorded(node, before, transition, beat.at),
            NodeEvent::Waits { on, .. } => {
                if let Some(episode) = beat.episode().filter(|_| beat.calls_person) {
                    self.calls_person(node, episode, on);
                }
            }
            NodeEvent::NotRecorded { .. } | NodeEvent::Asks { .. } | NodeEvent::Forecasts { .. } => {}
        }
    }
}

/// Why a notification was not taken.
#[derive(Debug, Error)]
enum NotifyError {
    #[error("the file {path} of NOTIFY_URL_FILE has no http or https address: {why}")]
    Address { path: String, why: String },
    // The address may be a secret, so it is not shown.
    #[error("the receiver of NOTIFY_URL_FILE was not reached: {0}")]
    Connection(String),
    #[error("the receiver of NOTIFY_URL_FILE answered {0}")]
    Status(u16),
}

impl NotifyError {
    fn may_pass(&self) -> bool {
        match self {
            Self::Connection(_) => true,
            Self::Status(code) => *code >= 500 || *code == 429,
            Self::Address { .. } => false,
        }
    }
}

/// Posts notifications to the address in a file.
#[derive(Debug)]
pub struct Webhook {
    pub client: reqwest::Client,
    pub url_file: PathBuf,
}

impl SinkKey for NodeName {
    fn group(&self) -> &'static str {
        "nodes"
    }
}

impl Sink for Webhook {
    type Key = NodeName;
    type Value = Notification;

    async fn put(&self, _node: &NodeName, notification: &Notification) -> Delivery {
        match post(&self.client, &self.url_file, notification).await {
            Ok(()) => Delivery::Done,
            Err(error) if error.may_pass() => Delivery::Later(error.to_string()),
            Err(error) => Delivery::Rejected(error.to_string()),
        }
    }

    fn log(&self, node: &NodeName, report: SinkReport<'_>) {
        match report {
            SinkReport::Later { why } | SinkReport::Refused { why } => {
                debug!(%node, "a notification was not taken and is sent again: {why}");
            }
            SinkReport::Lost { why, count } => warn!(
                %node,
                lost = count,
                "a notification is lost: {why}; the log and the Events have the same information"
            ),
            SinkReport::Recovered { count } => {
                info!("notifications are taken again; {count} were lost meanwhile");
            }
        }
    }
}

async fn post(client: &reqwest::Client, file: &Path, notification: &Notification) -> Result<(), NotifyError> {
    let address = url_file::read_url(file)
        .await
        .map_err(|why| NotifyError::Address {
            path: file.display().to_string(),
            why,
        })?;
    let body = serde_json::to_string(notification).unwrap_or_default();
    let request = client
        .post(address)
        .header("content-type", "application/cloudevents+json")
        .timeout(DEADLINE)
        .body(body);
    let sent = request.send().await;
    let answer = sent.map_err(|error| NotifyError::Connection(chain(&error.without_url())))?;
    let status = answer.status();
    if status.is_success() {
        Ok(())
    } else {
        Err(NotifyError::Status(status.as_u16()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use haulout_core::fixtures::{self, at};
    use haulout_core::maintenance::episode::Phase;
    use haulout_core::maintenance::observed::BoundVm;
    use haulout_core::maintenance::waiting::ParkReason;
    use haulout_core::status::story::NodeStory;

    fn episode() -> Record {
        Record::Episode(std::sync::Arc::new(fixtures::episode(Phase::Draining, 1)))
    }

    /// What is sent because of a wait, which `story` tells.
    fn sent(story: &mut NodeStory, on: &WaitingOn) -> Option<Notification> {
        let event = NodeEvent::Waits {
            node: None,
            vm: &BoundVm::NotLookedUp,
            record: &episode(),
            on,
        };
        let notifications = Notifications::new("ns/haulout", Links::default(), || at(9));
        notifications.observe(&NodeName::new("gpu1"), &story.tell(event, at(9)));
        let sent = notifications.outbox.deliver_all().pop();
        sent.map(|(_, notification)| notification)
    }

    #[tokio::test]
    async fn wait_for_a_person_is_reported_once_until_it_ends() {
        let story = &mut NodeStory::default();
        let (skip, pods) = (WaitingOn::Skip, WaitingOn::DrainRound);
        let first = sent(story, &skip).unwrap();
        assert_eq!(
            (first.kind.as_str(), first.subject.as_str(), first.source.as_str()),
            (
                "dev.haulout.maintenance.needs-person",
                "gpu1",
                "/haulout/ns/haulout"
            )
        );
        assert!(
            first.text.contains("Next: kubectl annotate node gpu1"),
            "{}",
            first.text
        );
        assert_eq!(sent(story, &skip), None);
        assert_eq!(sent(story, &pods), None);
        assert!(sent(story, &skip).is_some());
        for cut in [
            WaitingOn::Vcenter { why: "cut".into() },
            WaitingOn::Kubernetes { why: "cut".into() },
            WaitingOn::VmLookup,
        ] {
            assert_eq!(sent(story, &cut), None);
            assert_eq!(sent(story, &skip), None, "nothing has changed");
        }
    }

    #[tokio::test]
    async fn another_reason_to_be_parked_is_reported() {
        let story = &mut NodeStory::default();
        let parked = |reason: ParkReason| {
            let phase = Phase::Parked {
                reason,
                resume: Box::new(Phase::Rejoining),
                resume_since: at(1),
            };
            fixtures::record(fixtures::episode(phase, 1))
        };
        assert!(sent(story, &WaitingOn::Parked(ParkReason::NoUuid)).is_some());
        let event = NodeEvent::Recorded {
            node: None,
            vm: &BoundVm::NotLookedUp,
            before: &parked(ParkReason::NoUuid),
            transition: &fixtures::transition(parked(ParkReason::VmSuspended)),
            wrote: (at(9), at(9)),
        };
        story.tell(event, at(9));
        assert!(sent(story, &WaitingOn::Parked(ParkReason::VmSuspended)).is_some());
    }

    #[tokio::test]
    async fn foreign_text_becomes_no_mention_and_no_link() {
        let asked = WaitingOn::Question("<!channel> see <https://x.example|this> & that".into());
        let text = sent(&mut NodeStory::default(), &asked).unwrap().text;
        assert!(
            text.contains("&lt;!channel&gt; see &lt;https://x.example|this&gt; &amp; that")
                && !text.contains(['<', '>']),
            "{text}"
        );
    }
}
