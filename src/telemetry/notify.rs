//! Notifications for people and programs outside: a CloudEvent over HTTP when a maintenance begins, needs a person, or ends.
//!
//! Nothing waits for the receiver: the queue is bounded, and what it does not take is counted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use haulout_core::named_enum;
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::link::Links;
use super::url_file;
use crate::failure_log::FailureStreak;
use crate::ids::NodeName;
use crate::kubernetes::answer::chain;
use crate::maintenance::decide::Transition;
use crate::maintenance::episode::{Episode, Record};
use crate::maintenance::waiting::WaitingOn;
use crate::status::observer::{NodeEvent, Observer};
use crate::status::{EpisodeOutcome, Took, WaitKind};

/// Capacity of the queue: 85 nodes with three notifications each.
pub const QUEUE: usize = 256;

/// Deadline of one attempt.
const DEADLINE: Duration = Duration::from_secs(10);

/// Further attempts, after one, two and four seconds. A receiver that is away for longer misses it.
const RETRIES: usize = 3;

/// A CloudEvent in structured mode (CloudEvents 1.0, JSON format).
#[derive(Clone, Debug, PartialEq, Serialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize)]
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
    queue: mpsc::Sender<Notification>,
    lost: Counter,
    source: String,
    links: Links,
    clock: fn() -> Timestamp,
    /// The wait that each node was last reported for. A restart loses it.
    last: Mutex<BTreeMap<NodeName, WaitKind>>,
}

impl Notifications {
    /// For the release `source`.
    pub fn new(
        queue: mpsc::Sender<Notification>,
        lost: Counter,
        source: &str,
        links: Links,
        clock: fn() -> Timestamp,
    ) -> Self {
        Self {
            queue,
            lost,
            source: format!("/haulout/{source}"),
            links,
            clock,
            last: Mutex::default(),
        }
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
            self.send(self.notification(node, episode, NotificationKind::Began, at, text));
        }
        if let (Some(episode), Some(ended)) = (was, transition.ended) {
            self.forget(node);
            let outcome = EpisodeOutcome::from(Some(ended));
            let took = Took(at.duration_since(episode.begun_at));
            let text = format!(
                "Maintenance of node {node} ended after {took}: {}.",
                outcome.name()
            );
            let mut notification = self.notification(node, episode, NotificationKind::Ended, at, text);
            notification.data.result = Some(outcome.name());
            self.send(notification);
        }
    }

    fn waits(&self, node: &NodeName, record: &Record, on: &WaitingOn) {
        let Some(episode) = record.episode() else { return };
        let kind = on.kind();
        if !kind.needs_person() {
            self.forget(node);
            return;
        }
        let before = self.last.lock().insert(node.clone(), kind);
        if before == Some(kind) {
            return;
        }
        let step = on.next_step(node).map(|step| step.text().to_owned());
        let next = step.as_ref().map(|step| format!(" Next: {step}"));
        let text = format!("Node {node} needs a person: {on}.{}", next.unwrap_or_default());
        let at = (self.clock)();
        let mut notification = self.notification(node, episode, NotificationKind::NeedsPerson, at, text);
        notification.data.waiting_on = Some(kind.name());
        notification.data.next_step = step;
        self.send(notification);
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

    fn send(&self, notification: Notification) {
        if self.queue.try_send(notification).is_err() {
            self.lost.inc();
        }
    }

    fn forget(&self, node: &NodeName) {
        self.last.lock().remove(node);
    }
}

/// The three characters that chat systems such as Slack take for markup.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

impl Observer for Notifications {
    fn observe(&self, node: &NodeName, event: NodeEvent<'_>) {
        match event {
            NodeEvent::Recorded {
                before,
                transition,
                wrote: (_, at),
                ..
            } => self.recorded(node, before, transition, at),
            NodeEvent::Waits { record, on, .. } => self.waits(node, record, on),
            NodeEvent::NotRecorded { .. } | NodeEvent::Asks { .. } | NodeEvent::Forecasts { .. } => {}
        }
    }

    fn gone(&self, node: &NodeName) {
        self.forget(node);
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

/// Sends the notifications of `queue` to the address in `file`, one after the other, until the stop.
pub async fn run(
    client: reqwest::Client,
    file: PathBuf,
    mut queue: mpsc::Receiver<Notification>,
    lost: Counter,
    stop: CancellationToken,
) {
    let mut failures = FailureStreak::default();
    loop {
        let notification = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            next = queue.recv() => match next {
                Some(notification) => notification,
                None => return,
            },
        };
        let delivery = (|| post(&client, &file, &notification))
            .retry(ExponentialBuilder::default().with_max_times(RETRIES))
            .when(NotifyError::may_pass);
        let result = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            result = delivery => result,
        };
        let Err(error) = result else {
            if let Some(count) = failures.ended() {
                info!("notifications are taken again; {count} were lost meanwhile");
            }
            continue;
        };
        lost.inc();
        if let Some(count) = failures.failed() {
            warn!(
                node = notification.subject,
                lost = count,
                "a notification is lost: {error}; the log and the Events have the same information"
            );
        }
    }
}

async fn post(client: &reqwest::Client, file: &Path, notification: &Notification) -> Result<(), NotifyError> {
    let address = url_file::read(file).await.map_err(|why| NotifyError::Address {
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
    use crate::maintenance::episode::Phase;
    use haulout_core::fixtures::{self, at};

    fn episode() -> Record {
        Record::Episode(std::sync::Arc::new(fixtures::episode(Phase::Draining, 1)))
    }

    fn observed() -> (Notifications, mpsc::Receiver<Notification>) {
        let (sender, queue) = mpsc::channel(1);
        let notifications =
            Notifications::new(sender, Counter::default(), "ns/haulout", Links::default(), || {
                at(9)
            });
        (notifications, queue)
    }

    #[test]
    fn wait_for_a_person_is_reported_once_until_it_ends() {
        let (notifications, mut queue) = observed();
        let node = NodeName::new("gpu1");
        let (skip, pods) = (WaitingOn::Skip, WaitingOn::DrainRound);
        let mut reported = |on: &WaitingOn| {
            notifications.waits(&node, &episode(), on);
            queue.try_recv().ok()
        };
        let first = reported(&skip).unwrap();
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
        assert_eq!(reported(&skip), None);
        assert_eq!(reported(&pods), None);
        assert!(reported(&skip).is_some());
    }

    #[test]
    fn foreign_text_becomes_no_mention_and_no_link() {
        let (notifications, mut queue) = observed();
        let asked = WaitingOn::Question("<!channel> see <https://x.example|this> & that".into());
        notifications.waits(&NodeName::new("gpu1"), &episode(), &asked);
        let text = queue.try_recv().unwrap().text;
        assert!(
            text.contains("&lt;!channel&gt; see &lt;https://x.example|this&gt; &amp; that")
                && !text.contains(['<', '>']),
            "{text}"
        );
    }

    #[test]
    fn full_queue_delays_nothing_and_is_counted() {
        let (notifications, _queue) = observed();
        for name in ["gpu1", "gpu2", "gpu3"] {
            notifications.waits(&NodeName::new(name), &episode(), &WaitingOn::Skip);
        }
        assert_eq!(notifications.lost.get(), 2);
    }
}
