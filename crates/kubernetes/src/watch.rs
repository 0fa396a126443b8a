//! Watches Nodes by label or by name, the pods of draining Nodes and the budgets that block them, and sends
//! [`KubernetesUpdate`]s.

pub mod budgets;
pub mod devices;
pub mod followed;
mod keyed;
pub mod nodes;
pub mod pods;
pub mod scan;

use std::fmt::Debug;
use std::pin::{Pin, pin};
use std::time::Duration;

use backon::BackoffBuilder as _;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Node;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::answer::ApiRefusal;
use super::client;
use super::facts::{GpuResources, node_facts};
use super::update::{KubernetesUpdate, NodeFacts};
use crate::maintenance::policy::Releases;

/// How long a watch lasts before the kube-apiserver ends it: one request per minute and watch. A dead connection is noticed five
/// seconds later. [`client::READ_DEADLINE`] is longer, because the kube-apiserver may be a few seconds late.
const WATCH_SECONDS: u32 = 60;

/// How often to check whether a kind has been installed that is not.
pub const LOOK_FOR_KIND: Duration = Duration::from_secs(60);

/// Which Nodes are watched, and what is read of them.
#[derive(Clone, Debug)]
pub struct Selection {
    /// A label selector in Kubernetes' own notation.
    pub selector: String,
    pub limit_group: Option<String>,
    pub gpu_resources: GpuResources,
    /// Nodes with a maintenance of another release are left to it.
    pub releases: Releases,
}

/// The periods of the watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The wait after the first failure, which doubles with each further one.
    pub backoff_min: Duration,
    pub backoff_max: Duration,
}

/// What all watches share.
#[derive(Clone)]
pub struct WatchContext {
    pub client: kube::Client,
    pub settings: Settings,
    /// Takes the updates. A watch ends if the receiver is gone.
    pub out: mpsc::Sender<KubernetesUpdate>,
    pub stop: CancellationToken,
}

/// What one watch makes of its events. Each new watch begins with [`Event::Init`].
pub trait WatchHandler {
    type Object: Resource + Clone + DeserializeOwned + Debug + Send + 'static;

    /// The updates to send after `event`.
    fn event(&mut self, event: Event<Self::Object>) -> Vec<KubernetesUpdate>;

    /// The updates to send after the watch broke, and the wait before the next one.
    fn broke(&mut self, why: &WatchBroke, backoff: &mut Backoff) -> (Vec<KubernetesUpdate>, Duration);

    /// When to call [`Self::timer_fired`].
    fn timer(&self) -> Option<Instant> {
        None
    }

    /// The updates to send at the time of [`Self::timer`], which is over afterwards.
    fn timer_fired(&mut self) -> Vec<KubernetesUpdate> {
        Vec::new()
    }
}

/// Why a watch broke.
#[derive(Debug)]
pub struct WatchBroke {
    pub refusal: ApiRefusal,
    /// The initial list failed.
    pub is_unlisted: bool,
}

impl From<watcher::Error> for WatchBroke {
    fn from(error: watcher::Error) -> Self {
        let is_unlisted = matches!(error, watcher::Error::InitialListFailed(_));
        let refusal = match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => error.into(),
            watcher::Error::WatchError(status) => ApiRefusal::Status(status),
            watcher::Error::NoResourceVersion => ApiRefusal::Unreachable(error.to_string()),
        };
        Self { refusal, is_unlisted }
    }
}

impl WatchContext {
    /// Watches `api` until `stop`.
    ///
    /// After each break the objects are listed again, because a missed deletion shows only as an absence from such a list.
    pub async fn watch<H: WatchHandler>(&self, api: Api<H::Object>, config: watcher::Config, mut handler: H) {
        let mut backoff = Backoff::new(&self.settings);
        loop {
            let events = pin!(watcher(api.clone(), config.clone()));
            let Some(broke) = self.follow(events, &mut handler, &mut backoff).await else {
                return;
            };
            let (updates, wait) = handler.broke(&broke, &mut backoff);
            if !self.send(updates).await || !self.pause(wait).await {
                return;
            }
        }
    }

    /// Passes events to `handler` and sends its updates until the watch breaks; `None` at `stop`.
    async fn follow<H: WatchHandler>(
        &self,
        mut events: Pin<&mut impl Stream<Item = watcher::Result<Event<H::Object>>>>,
        handler: &mut H,
        backoff: &mut Backoff,
    ) -> Option<WatchBroke> {
        // kube limits the wait for each event of a watch, and not that for a page of the list before it. A page that comes
        // byte by byte would hold the watch for ever.
        let mut overdue = None;
        loop {
            let timer = handler.timer();
            let updates = tokio::select! {
                biased;
                () = self.stop.cancelled() => return None,
                () = until(timer) => handler.timer_fired(),
                event = events.next() => match event {
                    Some(Ok(event)) => {
                        overdue = match event {
                            Event::Init | Event::InitApply(_) => Some(Instant::now() + client::READ_DEADLINE),
                            Event::InitDone | Event::Apply(_) | Event::Delete(_) => None,
                        };
                        if matches!(event, Event::InitDone) {
                            backoff.settled();
                        }
                        handler.event(event)
                    }
                    Some(Err(error)) => return Some(error.into()),
                    None => return Some(WatchBroke {
                        refusal: ApiRefusal::Unreachable("it ended".to_owned()),
                        is_unlisted: false,
                    }),
                },
                () = until(overdue) => {
                    let why = format!("no list within {} s", client::READ_DEADLINE.as_secs());
                    return Some(WatchBroke {
                        refusal: ApiRefusal::Unreachable(why),
                        is_unlisted: true,
                    });
                }
            };
            if !self.send(updates).await {
                return None;
            }
        }
    }

    /// Sends `updates`; `false` at `stop`, or if the receiver is gone.
    async fn send(&self, updates: Vec<KubernetesUpdate>) -> bool {
        for update in updates {
            let is_sent = tokio::select! {
                biased;
                () = self.stop.cancelled() => false,
                sent = self.out.send(update) => sent.is_ok(),
            };
            if !is_sent {
                return false;
            }
        }
        true
    }

    /// Waits; `false` at `stop`.
    async fn pause(&self, wait: Duration) -> bool {
        self.stop.run_until_cancelled(sleep(wait)).await.is_some()
    }
}

impl Selection {
    fn facts(&self, node: &Node) -> Box<NodeFacts> {
        Box::new(node_facts(node, self.limit_group.as_deref(), &self.gpu_resources))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(30),
        }
    }
}

/// The configuration of each watch.
pub fn watcher_config() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS)
}

/// The waits between attempts: doubling, with jitter.
///
/// They start again only after a watch has lasted for the longest wait. Otherwise a watch that always breaks at once, as where
/// `list` is allowed and `watch` is not, would list at the rate of the shortest wait.
pub struct Backoff {
    builder: backon::ExponentialBuilder,
    waits: backon::ExponentialBackoff,
    max: Duration,
    settled: Option<Instant>,
}

impl Backoff {
    fn new(settings: &Settings) -> Self {
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
    fn settled(&mut self) {
        self.settled = Some(Instant::now());
    }

    /// How long to wait after the watch broke.
    pub fn next_wait(&mut self) -> Duration {
        let lasted = self.settled.take().map(|since| since.elapsed());
        if lasted.is_some_and(|lasted| lasted >= self.max) {
            self.waits = self.builder.build();
        }
        self.waits.next().unwrap_or(self.max).min(self.max)
    }
}

/// Waits until `at`; for ever without one.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
pub(crate) mod tests;
