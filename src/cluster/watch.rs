//! Watches Nodes by label, and the pods of Nodes that are being drained, and tells of them as [`Update`]s.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::{Pin, pin};
use std::time::Duration;

use backon::BackoffBuilder as _;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::answer;
use super::client;
use super::facts::{GpuResources, node_facts};
use super::pods::{Verdict, verdict};
use super::update::Update;
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
    /// How long departures are gathered before they are told, while other pods still have to be evicted.
    pub gather: Duration,
}

/// How a watch came to its end.
enum Ended {
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
    out: mpsc::Sender<Update>,
    stop: CancellationToken,
) {
    let mut backoff = Backoff::new(&settings);
    loop {
        let api: Api<core::Node> = Api::all(client.clone());
        let config = settings.watcher().labels(&selection.selector);
        let events = pin!(watcher(api, config));
        let ended = follow_nodes(events, &selection, &out, &stop, &mut backoff).await;
        let Ended::Broke(why) = ended else { return };
        let why = format!("the watch of nodes with {:?} broke: {why}", selection.selector);
        if !tell(&out, &stop, Update::Lost { why }).await || !pause(&stop, backoff.next()).await {
            return;
        }
    }
}

/// Tells when the pods of the Nodes in `draining` change, until `stop`.
///
/// Told is what another drain round can make something of: a pod to evict came; the last one that stood in the way is
/// gone; one is gone while others are still to be evicted; or the watch has just been (re)built and may have missed one
/// of these. A pod that merely begins to terminate is not told, and departures are gathered for a moment, so that the
/// drain of 200 pods does not cost 200 lists.
pub async fn pods(
    client: kube::Client,
    mut draining: watch::Receiver<BTreeSet<NodeName>>,
    settings: Settings,
    out: mpsc::Sender<Update>,
    stop: CancellationToken,
) {
    let mut tasks: JoinSet<NodeName> = JoinSet::new();
    let mut watched: BTreeMap<NodeName, CancellationToken> = BTreeMap::new();
    let mut is_steered = true;
    loop {
        let wanted = draining.borrow_and_update().clone();
        watched.retain(|node, token| {
            let is_wanted = wanted.contains(node);
            if !is_wanted {
                token.cancel();
            }
            is_wanted
        });
        for node in wanted {
            watched.entry(node.clone()).or_insert_with(|| {
                let token = stop.child_token();
                let follow = pods_of(client.clone(), node, settings.clone(), out.clone(), token.clone());
                tasks.spawn(follow);
                token
            });
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(ended) = tasks.join_next() => match ended {
                // A task ends by itself only when nobody listens; one that we stopped is forgotten already.
                Ok(node) => tracing::debug!(%node, "the watch of a node's pods ended"),
                Err(error) => {
                    // Which one it was is unknown, so all are started anew, each with a fresh look at its pods.
                    tracing::error!(error = %answer::chain(&error), "a pod watch failed; all pod watches are restarted");
                    for token in std::mem::take(&mut watched).into_values() {
                        token.cancel();
                    }
                    if !pause(&stop, settings.backoff_min).await {
                        break;
                    }
                }
            },
            changed = draining.changed(), if is_steered => is_steered = changed.is_ok(),
        }
    }
    while tasks.join_next().await.is_some() {}
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(30),
            // One more request a minute for each watch, and a dead connection is noticed within 65 s.
            watch_timeout: Duration::from_secs(60),
            gather: Duration::from_secs(1),
        }
    }
}

impl Settings {
    pub(super) fn watcher(&self) -> watcher::Config {
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
    out: &mpsc::Sender<Update>,
    stop: &CancellationToken,
    backoff: &mut Backoff,
) -> Ended {
    let mut is_reset_due = false;
    loop {
        let event = tokio::select! {
            biased;
            () = stop.cancelled() => return Ended::Stopped,
            event = events.next() => event,
        };
        let update = match event {
            Some(Ok(Event::Init)) => {
                is_reset_due = true;
                continue;
            }
            Some(Ok(Event::InitApply(node) | Event::Apply(node))) => Update::Node(Box::new(node_facts(
                &node,
                &selection.keys,
                &selection.gpu_resources,
            ))),
            Some(Ok(Event::InitDone)) => {
                backoff.settled();
                Update::Settled
            }
            Some(Ok(Event::Delete(node))) => Update::NodeGone {
                name: NodeName::new(node.metadata.name.unwrap_or_default()),
                uid: NodeUid::new(node.metadata.uid.unwrap_or_default()),
            },
            Some(Err(error)) => return Ended::Broke(said(&error)),
            None => return Ended::Broke("it ended".to_owned()),
        };
        if std::mem::take(&mut is_reset_due) && !tell(out, stop, Update::Reset).await {
            return Ended::Stopped;
        }
        if !tell(out, stop, update).await {
            return Ended::Stopped;
        }
    }
}

/// Follows the pods of one Node until `stop`, over breaks.
async fn pods_of(
    client: kube::Client,
    node: NodeName,
    settings: Settings,
    out: mpsc::Sender<Update>,
    stop: CancellationToken,
) -> NodeName {
    let mut backoff = Backoff::new(&settings);
    loop {
        let api: Api<core::Pod> = Api::all(client.clone());
        let config = settings.watcher().fields(&format!("spec.nodeName={node}"));
        let events = pin!(watcher(api, config));
        match follow_pods(events, &node, settings.gather, &out, &stop, &mut backoff).await {
            Ended::Stopped => return node,
            Ended::Broke(why) => {
                let wait = backoff.next();
                tracing::warn!(%node, why, wait_s = wait.as_secs_f32(), "the watch of the node's pods broke and is rebuilt");
                if !pause(&stop, wait).await {
                    return node;
                }
            }
        }
    }
}

/// Tells of changes among one Node's pods until the watch breaks or stops.
async fn follow_pods(
    mut events: Pin<&mut impl Stream<Item = watcher::Result<Event<core::Pod>>>>,
    node: &NodeName,
    gather: Duration,
    out: &mpsc::Sender<Update>,
    stop: &CancellationToken,
    backoff: &mut Backoff,
) -> Ended {
    let mut standing = StandingPods::default();
    let mut due: Option<Due> = None;
    loop {
        let event = tokio::select! {
            biased;
            () = stop.cancelled() => return Ended::Stopped,
            () = until(due.as_ref().map(|due| due.at)) => {
                let was_gathered = due.take().is_some_and(|due| due.is_gathered);
                // All that were to be evicted are leaving by then: the next that is worth a round is that they are gone.
                if was_gathered && !standing.has_some_to_evict() {
                    continue;
                }
                if !tell(out, stop, Update::PodsChanged(node.clone())).await {
                    return Ended::Stopped;
                }
                continue;
            }
            event = events.next() => event,
        };
        let news = match event {
            Some(Ok(Event::Init)) => standing.reset(),
            Some(Ok(Event::InitApply(pod))) => {
                standing.apply(&pod, node);
                News::None
            }
            Some(Ok(Event::InitDone)) => {
                backoff.settled();
                News::Now
            }
            Some(Ok(Event::Apply(pod))) => standing.apply(&pod, node),
            Some(Ok(Event::Delete(pod))) => standing.remove(&pod),
            Some(Err(error)) => return Ended::Broke(said(&error)),
            None => return Ended::Broke("it ended".to_owned()),
        };
        match news {
            News::None => {}
            News::Now => {
                due = Some(Due {
                    at: Instant::now(),
                    is_gathered: false,
                });
            }
            News::Soon => {
                due.get_or_insert_with(|| Due {
                    at: Instant::now() + gather,
                    is_gathered: true,
                });
            }
        }
    }
}

/// What one change among a Node's pods is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// A drain round would make nothing of it.
    None,
    /// A drain round is worth it, and can wait for more of the same.
    Soon,
    /// A drain round is worth it at once.
    Now,
}

/// When a change is told.
struct Due {
    at: Instant,
    /// It waits for more of the same.
    is_gathered: bool,
}

/// The pods of one Node that stand in the way, by UID, and whether each has still to be evicted.
#[derive(Debug, Default)]
struct StandingPods(BTreeMap<String, bool>);

impl StandingPods {
    fn reset(&mut self) -> News {
        self.0.clear();
        News::None
    }

    fn apply(&mut self, pod: &core::Pod, node: &NodeName) -> News {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        match verdict(pod, node) {
            Verdict::Evict => match self.0.insert(uid, true) {
                Some(_) => News::None,
                None => News::Soon,
            },
            Verdict::Wait { .. } => {
                self.0.insert(uid, false);
                News::None
            }
            Verdict::Skip(_) => self.forget(&uid),
        }
    }

    fn has_some_to_evict(&self) -> bool {
        self.0.values().any(|is_to_evict| *is_to_evict)
    }

    fn remove(&mut self, pod: &core::Pod) -> News {
        self.forget(pod.metadata.uid.as_deref().unwrap_or_default())
    }

    fn forget(&mut self, uid: &str) -> News {
        if self.0.remove(uid).is_none() {
            News::None
        } else if self.0.is_empty() {
            News::Now
        } else if self.has_some_to_evict() {
            News::Soon
        } else {
            News::None
        }
    }
}

/// The waits between tries: doubling, with jitter, so that the watches of many Nodes do not come back in step.
///
/// They start anew only after a watch has stood for as long as the longest wait. One that breaks at once each time, as
/// where `list` is allowed and `watch` is not, would otherwise list for ever at the pace of the shortest.
pub(super) struct Backoff {
    builder: backon::ExponentialBuilder,
    waits: backon::ExponentialBackoff,
    max: Duration,
    settled: Option<Instant>,
}

impl Backoff {
    pub(super) fn new(settings: &Settings) -> Self {
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
    pub(super) fn settled(&mut self) {
        self.settled = Some(Instant::now());
    }

    /// The watch is broken: how long to wait.
    pub(super) fn next(&mut self) -> Duration {
        let stood = self.settled.take().map(|since| since.elapsed());
        if stood.is_some_and(|stood| stood >= self.max) {
            self.waits = self.builder.build();
        }
        self.waits.next().unwrap_or(self.max).min(self.max)
    }
}

/// Hands `update` over; `false` if we were asked to stop or nobody listens.
pub(super) async fn tell(out: &mpsc::Sender<Update>, stop: &CancellationToken, update: Update) -> bool {
    tokio::select! {
        biased;
        () = stop.cancelled() => false,
        sent = out.send(update) => sent.is_ok(),
    }
}

/// Waits; `false` if we were asked to stop.
pub(super) async fn pause(stop: &CancellationToken, wait: Duration) -> bool {
    tokio::select! {
        biased;
        () = stop.cancelled() => false,
        () = tokio::time::sleep(wait) => true,
    }
}

/// Waits until `due`, or for ever.
async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// What a watcher's error says, for people.
pub(super) fn said(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => answer::said(status),
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => answer::chain(error),
        watcher::Error::NoResourceVersion => answer::chain(error),
    }
}

#[cfg(test)]
mod tests;
