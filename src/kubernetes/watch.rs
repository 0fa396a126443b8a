//! Watches Nodes by label or by name, the pods of Nodes that are being drained, and the budgets that hold them, and tells
//! of them as [`Update`]s.

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

/// How much earlier than the client's own deadline the kube-apiserver shall end a silent watch. It ends them up to a few
/// seconds late.
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
    /// The wait after the first failure; it doubles from there.
    pub backoff_min: Duration,
    /// The longest wait.
    pub backoff_max: Duration,
    /// When the kube-apiserver shall end a watch. A connection that died in silence is noticed five seconds later.
    pub watch_timeout: Duration,
    /// For how long nothing must change before departures are told, while other pods still have to be evicted.
    pub gather: Duration,
    /// The longest that they are held back while something changes all the time.
    pub gather_max: Duration,
}

/// How a watch came to its end.
enum WatchEnded {
    /// We were asked to stop, or nobody listens.
    Stopped,
    /// It broke.
    Broke(String),
}

/// Tells of all Nodes that `selection` matches until `stop`.
///
/// After each break the Nodes are listed anew between `Reset` and `Settled`, because a deletion that was missed shows
/// only as an absence from such a list.
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
            // One more request a minute for each watch, and a dead connection is noticed within 65 s.
            watch_timeout: Duration::from_secs(60),
            gather: Duration::from_secs(1),
            // As long as a refused eviction waits for its next try: such pods are asked for again anyway.
            gather_max: Duration::from_secs(5),
        }
    }
}

impl Settings {
    pub(crate) fn watcher(&self) -> watcher::Config {
        // Zero would switch kube's idle timeout off, and a watch that is silent for longer than the client reads would
        // be taken for dead.
        let longest = client::READ_DEADLINE.saturating_sub(READ_MARGIN);
        let timeout = self.watch_timeout.clamp(Duration::from_secs(1), longest);
        watcher::Config::default().timeout(u32::try_from(timeout.as_secs()).unwrap_or(1))
    }
}

/// Tells of Nodes until the watch breaks or stops. The `Reset` is held back until the list answers, so that an outage
/// voids nothing before there is something better.
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

/// The waits between tries: doubling, with jitter, so that the watches of many Nodes do not come back in step.
///
/// They start anew only after a watch has stood for as long as the longest wait. One that breaks at once each time, as
/// where `list` is allowed and `watch` is not, would otherwise list for ever at the pace of the shortest.
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

    /// The watch stands.
    pub(crate) fn settled(&mut self) {
        self.settled = Some(Instant::now());
    }

    /// The watch is broken: how long to wait.
    pub(crate) fn next(&mut self) -> Duration {
        let stood = self.settled.take().map(|since| since.elapsed());
        if stood.is_some_and(|stood| stood >= self.max) {
            self.waits = self.builder.build();
        }
        self.waits.next().unwrap_or(self.max).min(self.max)
    }
}

/// Hands `update` over; `false` if we were asked to stop or nobody listens.
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

/// Waits; `false` if we were asked to stop.
pub(crate) async fn pause(stop: &CancellationToken, wait: Duration) -> bool {
    tokio::select! {
        biased;
        () = stop.cancelled() => false,
        () = tokio::time::sleep(wait) => true,
    }
}

/// The HTTP status with which a watcher's call was answered, if it was.
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

/// What a watcher's error says, for people.
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
