//! The update stream: what vCenter knows of our hosts, VMs and tasks, told as it changes.
//!
//! Three signals feed it. The long poll on a collector of our own tells of hosts, and of exactly the VMs and tasks of
//! the roster. A task history, with a long poll of its own, tells of tasks that their entity does not push; it rests once
//! a host has been seen to push a maintenance task. A re-read at a fixed period, on a third connection, finds what neither
//! told, and wakes the history again. All three are merged as state, never as events, so what
//! comes twice or late changes nothing (`proto-notes/property-collector.md`).

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use self::subscription::{SessionObjects, Subscription};
use self::tracker::{RefreshDone, Scope, StreamWork, Tracker};
use super::client::Vcenter;
use super::error::Error;
use super::property::UpdateSet;
use super::session::Session;
use super::settings::Settings;
use super::update::{VsphereUpdate, WatchSet};

mod history;
mod lookup;
mod pace;
pub(crate) mod property_cache;
mod subscription;
mod tracker;

/// How long a stop waits for what is under way, so that no login is torn in half and its session orphaned.
const GRACE: Duration = Duration::from_secs(3);

/// From the first complete set, or from an answer about the task history, to the next question about it. A page comes with every
/// task of the vCenter that begins or ends, ours or not, and a busy vCenter is not to be asked more often than this for a
/// second teller. What it has seen by then stands on its page.
const HISTORY_PAUSE: Duration = Duration::from_secs(1);

/// Follows vCenter until `stop`, and tells what it learns to `out`.
///
/// It never gives up: where the stream breaks it tells [`Update::Lost`] at once, rebuilds with growing, jittered pauses
/// between `retry_min` and `retry_max`, and tells everything anew between [`Update::Reset`] and [`Update::Settled`].
/// A change of the roster takes effect at once. On `stop`, or when nobody listens, it cancels its poll, destroys what it
/// made in the session, and logs out, each within a few seconds.
pub async fn run(
    vcenter: Vcenter,
    roster: watch::Receiver<WatchSet>,
    out: mpsc::Sender<VsphereUpdate>,
    stop: CancellationToken,
) {
    let mut stream = Stream {
        vcenter,
        roster,
        out,
        stop,
        remains: None,
        stood: false,
    };
    let mut pauses = pauses(&stream.vcenter.settings);
    let mut hurried = false;
    loop {
        stream.stood = false;
        let Err(end) = stream.follow().await;
        let (why, answered) = match end {
            StreamEnd::Stopped => break,
            StreamEnd::Broken(error) => (error.chain(), error.fault().is_some()),
            StreamEnd::Replaced => ("another call found the session gone".to_owned(), true),
        };
        if stream.stood {
            pauses = self::pauses(&stream.vcenter.settings);
        }
        // A stream that stood, and that vCenter itself ended, is rebuilt at once, but never twice in a row.
        hurried = stream.stood && answered && !hurried;
        let pause = match pauses.next() {
            _ if hurried => Duration::ZERO,
            Some(pause) => pause,
            None => stream.vcenter.settings.retry_max,
        };
        tracing::warn!(
            why,
            pause_ms = pause.as_millis(),
            "the vCenter stream is lost and will be rebuilt"
        );
        if stream.tell(vec![VsphereUpdate::Lost { why }]).await.is_err()
            || stream.unless_stopped(sleep(pause)).await.is_err()
        {
            break;
        }
    }
    stream.clear().await;
    stream.vcenter.logout().await;
}

/// Each next pause is twice the last, plus up to as much again, so that many clients do not come back in step.
fn pauses(settings: &Settings) -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(settings.retry_min)
        .with_max_delay(settings.retry_max)
        .with_factor(2.0)
        .with_jitter()
        .without_max_times()
        .build()
}

/// Why following ended.
enum StreamEnd {
    /// We were told to, or nobody listens.
    Stopped,
    /// A call failed: nothing of the feed can be relied on.
    Broken(Error),
    /// The session that the feed lives in was given up by another call.
    Replaced,
}

impl From<Error> for StreamEnd {
    fn from(error: Error) -> Self {
        Self::Broken(error)
    }
}

struct Stream {
    vcenter: Vcenter,
    roster: watch::Receiver<WatchSet>,
    out: mpsc::Sender<VsphereUpdate>,
    stop: CancellationToken,
    /// What the last feed made, to be destroyed before the next is built.
    remains: Option<SessionObjects>,
    /// Whether this feed has told a complete set.
    stood: bool,
}

impl Stream {
    /// Builds a feed and follows it to its end.
    async fn follow(&mut self) -> Result<Infallible, StreamEnd> {
        // Clearing comes first: in a dead session it finds that out.
        self.clear().await;
        let session = self.unless_stopped(self.vcenter.sessions.get()).await??;
        let mut sessions = self.vcenter.sessions.watch();
        let remains = SessionObjects::new(&self.vcenter, &session);
        let feed = self.unless_stopped(Subscription::build(&remains)).await;
        self.remains = Some(remains);
        let mut following = Tracker::new(Arc::new(feed??));
        let roster = self.roster.borrow_and_update().clone();
        let first = following.job(roster, Scope::Lookups);
        let done = self.unless_stopped(first.perform()).await??;
        following.done(done, &self.roster.borrow().urgent);

        let reread = self.vcenter.settings.reread_every.max(Duration::from_millis(10));
        let mut tick = interval_at(Instant::now() + reread, reread);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut poll = following.poll();
        let mut history: Option<StreamWork<Option<UpdateSet>>> = None;
        let mut history_due = Instant::now() + HISTORY_PAUSE;
        let mut work: Option<StreamWork<RefreshDone>> = None;
        let mut roster_lives = true;
        // They stand for as long as the feed does: to register them anew for each set would hold that set up.
        let (stop, out) = (self.stop.clone(), self.out.clone());
        let (mut stopped, mut unheard) = (pin!(stop.cancelled()), pin!(out.closed()));
        loop {
            let idle = work.is_none();
            // None of the history's calls delays the first set.
            if !self.stood {
                history_due = Instant::now() + HISTORY_PAUSE;
            }
            tokio::select! {
                biased;
                () = &mut stopped => return Err(StreamEnd::Stopped),
                () = &mut unheard => return Err(StreamEnd::Stopped),
                set = &mut poll => {
                    let updates = following.set(set?, &mut self.stood)?;
                    self.tell(updates).await?;
                    poll = following.poll();
                }
                page = finish(&mut history) => {
                    history_due = Instant::now() + HISTORY_PAUSE;
                    history = match page {
                        Ok(page) => {
                            following.page(page);
                            None
                        }
                        Err(error) => Some(following.history_again(error)?),
                    };
                    let updates = following.beside_poll(self.stood);
                    self.tell(updates).await?;
                }
                done = finish(&mut work), if !idle => {
                    work = None;
                    let done = done?;
                    let was_reread = done.read_again.is_some();
                    following.done(done, &self.roster.borrow().urgent);
                    // Devices that were not told by the first re-read are not waited for any longer.
                    let updates = if was_reread && following.is_heard && !self.stood {
                        following.complete(&mut self.stood)
                    } else {
                        following.beside_poll(self.stood)
                    };
                    self.tell(updates).await?;
                }
                () = replaced(&mut sessions, &session) => return Err(StreamEnd::Replaced),
                // Before the roster, which may change all the time: a re-read takes its changes along.
                _ = tick.tick(), if idle => work = Some(self.begin(&mut following, Scope::All)),
                changed = self.roster.changed(), if idle && roster_lives => {
                    roster_lives = changed.is_ok();
                    work = Some(self.begin(&mut following, Scope::New));
                }
                () = until(following.next_keys()), if idle => {
                    work = Some(self.begin(&mut following, Scope::New));
                }
                () = sleep_until(history_due), if self.stood && history.is_none() && !following.hosts_push => {
                    history = Some(following.history_poll());
                }
                () = std::future::ready(()), if idle && following.is_due() => {
                    work = Some(self.begin(&mut following, Scope::New));
                }
            }
        }
    }

    fn begin(&mut self, following: &mut Tracker, scope: Scope) -> StreamWork<RefreshDone> {
        let roster = self.roster.borrow_and_update().clone();
        Box::pin(following.job(roster, scope).perform())
    }

    async fn tell(&self, updates: Vec<VsphereUpdate>) -> Result<(), StreamEnd> {
        let is_news = !updates.is_empty();
        for update in updates {
            let update = match self.out.try_send(update) {
                Ok(()) => continue,
                Err(TrySendError::Closed(_)) => return Err(StreamEnd::Stopped),
                Err(TrySendError::Full(update)) => update,
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Err(StreamEnd::Stopped),
                sent = self.out.send(update) => sent.map_err(|_| StreamEnd::Stopped)?,
            }
        }
        if is_news {
            // Whoever listens may wait for this very thread. The next question can be written when that one has heard.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Does `work`, unless it is time to stop; then `work` has a moment to end by itself.
    async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Result<T, StreamEnd> {
        let mut work = pin!(work);
        tokio::select! {
            biased;
            () = self.stop.cancelled() => {
                let ended = timeout(GRACE, work).await.is_ok();
                tracing::debug!(ended, "stopped while a call was under way");
                Err(StreamEnd::Stopped)
            }
            result = &mut work => Ok(result),
        }
    }

    async fn clear(&mut self) {
        if let Some(remains) = self.remains.take() {
            remains.clear().await;
        }
    }
}

/// Ends when the live session is another one, or none.
async fn replaced(sessions: &mut watch::Receiver<Option<Arc<Session>>>, session: &Session) {
    let stands = |live: &Option<Arc<Session>>| {
        live.as_ref()
            .is_some_and(|live| live.generation == session.generation)
    };
    drop(sessions.wait_for(|live| !stands(live)).await);
}

/// Ends at `time`; without one, never.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// The result of work that is under way. Without any it never ends.
async fn finish<T>(work: &mut Option<StreamWork<T>>) -> Result<T, Error> {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}
