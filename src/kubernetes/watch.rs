//! Watches Nodes by label or by name, the pods of draining Nodes and the budgets that block them, and sends
//! [`KubernetesUpdate`]s.

pub mod budgets;
pub mod followed;
pub mod pods;
pub mod scan;
mod steered;

use std::pin::{Pin, pin};
use std::time::Duration;

use backon::BackoffBuilder as _;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::core::Status;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::answer;
use super::client;
use super::facts::{GpuResources, node_facts};
use super::update::KubernetesUpdate;
use crate::ids::{NodeName, NodeUid};
use crate::keys::Keys;

/// How much earlier than the client's read deadline the kube-apiserver has to end a silent watch. It may be a few seconds late.
const READ_MARGIN: Duration = Duration::from_secs(15);

/// Which Nodes are watched, and what is read of them.
#[derive(Clone, Debug)]
pub struct Selection {
    /// A label selector in Kubernetes' own notation.
    pub selector: String,
    /// Our annotations.
    pub keys: Keys,
    /// Which resources are GPUs.
    pub gpu_resources: GpuResources,
}

/// The periods of the watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The wait after the first failure, which doubles with each further one.
    pub backoff_min: Duration,
    /// The longest wait.
    pub backoff_max: Duration,
    /// After this time the kube-apiserver ends a watch. A dead connection is noticed five seconds later.
    pub watch_timeout: Duration,
    /// How long no pod must change before deletions are reported, while other pods still have to be evicted.
    pub gather: Duration,
    /// The longest delay of such a report.
    pub gather_max: Duration,
}

/// How a watch came to its end.
enum WatchEnded {
    /// By the stop token, or because the receiver is gone.
    Stopped,
    Broke(String),
}

/// Sends updates of all Nodes that `selection` matches until `stop`.
///
/// After each break the Nodes are listed again between `Reset` and `Settled`, because a missed deletion shows only as an
/// absence from such a list.
pub async fn run(
    client: kube::Client,
    selection: Selection,
    settings: Settings,
    out: mpsc::Sender<KubernetesUpdate>,
    stop: CancellationToken,
) {
    let mut backoff = Backoff::new(&settings);
    loop {
        let api: Api<core::Node> = Api::all(client.clone());
        let config = settings.watcher().labels(&selection.selector);
        let events = pin!(watcher(api, config));
        let ended = follow_nodes(events, &selection, &out, &stop, &mut backoff).await;
        let WatchEnded::Broke(why) = ended else { return };
        let why = format!("the watch of nodes with {:?} broke: {why}", selection.selector);
        if !tell(&out, &stop, KubernetesUpdate::Lost { why }).await || !pause(&stop, backoff.next()).await {
            return;
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(30),
            // One request per minute and watch; a dead connection is noticed within 65 s.
            watch_timeout: Duration::from_secs(60),
            gather: Duration::from_secs(1),
            // As long as the default retry of a refused eviction.
            gather_max: Duration::from_secs(5),
        }
    }
}

impl Settings {
    pub(crate) fn watcher(&self) -> watcher::Config {
        // Zero would disable kube's idle timeout, and a watch that is silent for longer than the read deadline would be taken
        // for dead.
        let longest = client::READ_DEADLINE.saturating_sub(READ_MARGIN);
        let timeout = self.watch_timeout.clamp(Duration::from_secs(1), longest);
        watcher::Config::default().timeout(u32::try_from(timeout.as_secs()).unwrap_or(1))
    }
}

/// Sends updates until the watch breaks or stops. `Reset` is sent only when the list is answered, so that an outage voids no facts.
async fn follow_nodes(
    mut events: Pin<&mut impl Stream<Item = watcher::Result<Event<core::Node>>>>,
    selection: &Selection,
    out: &mpsc::Sender<KubernetesUpdate>,
    stop: &CancellationToken,
    backoff: &mut Backoff,
) -> WatchEnded {
    let mut is_reset_due = false;
    loop {
        let event = tokio::select! {
            biased;
            () = stop.cancelled() => return WatchEnded::Stopped,
            event = events.next() => event,
        };
        let update = match event {
            Some(Ok(Event::Init)) => {
                is_reset_due = true;
                continue;
            }
            Some(Ok(Event::InitApply(node) | Event::Apply(node))) => KubernetesUpdate::Node(Box::new(
                node_facts(&node, &selection.keys, &selection.gpu_resources),
            )),
            Some(Ok(Event::InitDone)) => {
                backoff.settled();
                KubernetesUpdate::Settled
            }
            Some(Ok(Event::Delete(node))) => KubernetesUpdate::NodeGone {
                name: NodeName::new(node.metadata.name.unwrap_or_default()),
                uid: NodeUid::new(node.metadata.uid.unwrap_or_default()),
            },
            Some(Err(error)) => return WatchEnded::Broke(said(&error)),
            None => return WatchEnded::Broke("it ended".to_owned()),
        };
        if std::mem::take(&mut is_reset_due) && !tell(out, stop, KubernetesUpdate::Reset).await {
            return WatchEnded::Stopped;
        }
        if !tell(out, stop, update).await {
            return WatchEnded::Stopped;
        }
    }
}

/// The waits between attempts: doubling, with jitter.
///
/// They start again only after a watch has lasted for the longest wait. Otherwise a watch that always breaks at once, as where
/// `list` is allowed and `watch` is not, would list at the rate of the shortest wait.
pub(crate) struct Backoff {
    builder: backon::ExponentialBuilder,
    waits: backon::ExponentialBackoff,
    max: Duration,
    settled: Option<Instant>,
}

impl Backoff {
    pub(crate) fn new(settings: &Settings) -> Self {
        let builder = backon::ExponentialBuilder::default()
            .with_min_delay(settings.backoff_min)
            .with_max_delay(settings.backoff_max)
            .with_jitter()
            .without_max_times();
        Self {
            waits: builder.build(),
            builder,
            max: settings.backoff_max,
            settled: None,
        }
    }

    /// The watch is synced.
    pub(crate) fn settled(&mut self) {
        self.settled = Some(Instant::now());
    }

    /// How long to wait after the watch broke.
    pub(crate) fn next(&mut self) -> Duration {
        let lasted = self.settled.take().map(|since| since.elapsed());
        if lasted.is_some_and(|lasted| lasted >= self.max) {
            self.waits = self.builder.build();
        }
        self.waits.next().unwrap_or(self.max).min(self.max)
    }
}

/// Sends `update`; `false` at `stop`, or if the receiver is gone.
pub(crate) async fn tell(
    out: &mpsc::Sender<KubernetesUpdate>,
    stop: &CancellationToken,
    update: KubernetesUpdate,
) -> bool {
    tokio::select! {
        biased;
        () = stop.cancelled() => false,
        sent = out.send(update) => sent.is_ok(),
    }
}

/// Waits; `false` at `stop`.
pub(crate) async fn pause(stop: &CancellationToken, wait: Duration) -> bool {
    tokio::select! {
        biased;
        () = stop.cancelled() => false,
        () = tokio::time::sleep(wait) => true,
    }
}

/// The HTTP status of the reply, if there was one.
pub(crate) fn code(error: &watcher::Error) -> Option<u16> {
    status(error).map(|status| status.code)
}

fn status(error: &watcher::Error) -> Option<&Status> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status),
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => None,
    }
}

/// The error text of a watcher.
pub(crate) fn said(error: &watcher::Error) -> String {
    if let Some(status) = status(error) {
        return answer::said(status);
    }
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => answer::chain(error),
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => answer::chain(error),
    }
}

#[cfg(test)]
pub(crate) mod tests;
