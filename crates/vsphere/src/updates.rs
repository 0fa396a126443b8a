//! The update stream: changes of our hosts, VMs and tasks.
//!
//! Three sources feed it. A long poll on our own collector reports hosts, and the VMs and tasks of the
//! watch set. A second long poll on a task history reports tasks that their entity does not push; it
//! pauses while hosts push their own maintenance tasks. A periodic re-read on a third connection finds
//! what neither reported, and resumes the history. All three are merged as state, not as events, so
//! duplicates and late replies are harmless (`proto-notes/property-collector.md`).

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use self::subscription::{SessionObjects, Subscription};
use self::tracker::{RefreshDone, Scope, StreamWork, Tracker};
use super::client::Vcenter;
use super::error::Error;
use super::property::UpdateSet;
use super::session::Session;
use super::settings::Settings;
use super::update::{VsphereUpdate, WatchSet};

mod facts;
mod history;
mod lookup;
mod pace;
mod properties;
pub(crate) mod property_cache;
mod subscription;
mod tracker;

/// How long a stop waits for a call in progress.
const GRACE: Duration = Duration::from_secs(3);

/// Pause between reads of the task history. A page is sent for every task of the vCenter that begins or
/// ends, so a busy vCenter is asked at most once in this time; the page still lists what happened
/// meanwhile.
const HISTORY_PAUSE: Duration = Duration::from_secs(1);

/// Follows vCenter until `stop`, and sends updates to `out`.
///
/// A failed stream sends [`VsphereUpdate::Lost`] at once. It is rebuilt after jittered pauses between
/// `retry_min` and `retry_max` that grow with the outage, and then sends everything again between
/// [`VsphereUpdate::Reset`] and [`VsphereUpdate::Settled`]. A changed watch set takes effect at once.
/// On `stop`, or when `out` is closed, it cancels its poll, destroys its objects in the session, and
/// logs out, each within a few seconds.
pub async fn run(
    vcenter: Vcenter,
    watch_set: watch::Receiver<WatchSet>,
    out: mpsc::Sender<VsphereUpdate>,
    stop: CancellationToken,
) {
    let mut stream = Stream {
        vcenter,
        watch_set,
        out,
        stop,
        session_objects: None,
        synced: false,
    };
    let mut lost_at = Instant::now();
    let mut retried_at_once = false;
    loop {
        stream.synced = false;
        let Err(end) = stream.follow().await;
        let (why, answered, held) = match end {
            StreamEnd::Stopped => break,
            StreamEnd::Broken(error) => (error.chain(), error.fault().is_some(), error.login_held_for()),
            StreamEnd::Replaced => ("another call found the session dead".to_owned(), true, None),
        };
        if stream.synced {
            lost_at = Instant::now();
        }
        // vCenter itself ended the stream, or its answer shows that it is there and the session is not. That is answered at once,
        // but never twice in a row, and only once before the stream is synced again: vCenter may forget each session.
        let is_sessionless = answered && held.is_none() && stream.vcenter.sessions.live().is_none();
        let at_once = !retried_at_once && (is_sessionless || (stream.synced && answered));
        retried_at_once = at_once || (retried_at_once && !stream.synced);
        let pause = match at_once {
            true => Duration::ZERO,
            false => pause_after(lost_at.elapsed(), &stream.vcenter.settings),
        };
        // Logs in as soon as the credentials may be tried again.
        let pause = held.map_or(pause, |held| {
            pause.min(held.max(stream.vcenter.settings.retry_min))
        });
        // The receiver of `Lost` logs the outage once.
        tracing::debug!(
            why,
            pause_ms = pause.as_millis(),
            "the vCenter stream failed and will be rebuilt"
        );
        if stream.send(vec![VsphereUpdate::Lost { why }]).await.is_err()
            || stream.unless_stopped(sleep(pause)).await.is_err()
        {
            break;
        }
    }
    stream.destroy_objects().await;
    stream.vcenter.logout().await;
}

/// The pause before the next attempt, in an outage that has lasted for `outage`: a sixteenth of it, plus jitter of up to the same
/// length, so that clients do not reconnect together. Counted from the end of the outage, the next attempt comes within an eighth
/// of its length, or twice `retry_min`; another eighth is left for the attempt itself.
fn pause_after(outage: Duration, settings: &Settings) -> Duration {
    let longest = (settings.retry_max / 2).max(settings.retry_min);
    let shortest = (outage / 16).clamp(settings.retry_min, longest);
    let jittered = ExponentialBuilder::default()
        .with_min_delay(shortest)
        .with_jitter();
    let pause = jittered.build().next().unwrap_or(longest);
    pause.min(settings.retry_max)
}

/// Why the stream ended.
enum StreamEnd {
    /// The process stops, or the receiver is closed.
    Stopped,
    /// A call failed: the subscription is not reliable any more.
    Broken(Error),
    /// Another call dropped the session.
    Replaced,
}

impl From<Error> for StreamEnd {
    fn from(error: Error) -> Self {
        Self::Broken(error)
    }
}

struct Stream {
    vcenter: Vcenter,
    watch_set: watch::Receiver<WatchSet>,
    out: mpsc::Sender<VsphereUpdate>,
    stop: CancellationToken,
    /// Objects of the last subscription, destroyed before the next one is built.
    session_objects: Option<SessionObjects>,
    /// Whether the current subscription has sent a complete set.
    synced: bool,
}

impl Stream {
    /// Builds a subscription and follows it until it ends.
    async fn follow(&mut self) -> Result<Infallible, StreamEnd> {
        // Destroys the old objects first: that detects a dead session.
        self.destroy_objects().await;
        let session = self.unless_stopped(self.vcenter.sessions.get()).await??;
        let mut sessions = self.vcenter.sessions.watch();
        let mut tracker = self.subscribe(&session).await?;
        let reread = self.vcenter.settings.reread_every.max(Duration::from_millis(10));
        let mut tick = interval_at(Instant::now() + reread, reread);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut poll = tracker.poll();
        let mut history: Option<StreamWork<Option<UpdateSet>>> = None;
        let mut history_due = Instant::now() + HISTORY_PAUSE;
        let mut work: Option<StreamWork<RefreshDone>> = None;
        let mut watch_set_open = true;
        // Registered once: registering them for each set would delay it.
        let (stop, out) = (self.stop.clone(), self.out.clone());
        let (mut stopped, mut receiver_closed) = (pin!(stop.cancelled()), pin!(out.closed()));
        loop {
            let idle = work.is_none();
            // Calls for the history must not delay the first set.
            if !self.synced {
                history_due = Instant::now() + HISTORY_PAUSE;
            }
            tokio::select! {
                biased;
                () = &mut stopped => return Err(StreamEnd::Stopped),
                () = &mut receiver_closed => return Err(StreamEnd::Stopped),
                set = &mut poll => {
                    let updates = tracker.apply_set(set?, &mut self.synced)?;
                    self.send(updates).await?;
                    poll = tracker.poll();
                }
                page = finish(&mut history) => {
                    history_due = Instant::now() + HISTORY_PAUSE;
                    history = tracker.end_history_poll(page)?;
                    let updates = tracker.updates_outside_poll(self.synced);
                    self.send(updates).await?;
                }
                done = finish(&mut work), if !idle => {
                    work = None;
                    let updates = self.end_refresh(&mut tracker, done?);
                    self.send(updates).await?;
                }
                () = replaced(&mut sessions, &session) => return Err(StreamEnd::Replaced),
                // Before the watch set, which may change all the time: a re-read includes its changes.
                () = reread_due(&mut tick, tracker.needs_reread()), if idle => {
                    work = Some(self.begin(&mut tracker, Scope::Reread));
                }
                changed = self.watch_set.changed(), if idle && watch_set_open => {
                    watch_set_open = changed.is_ok();
                    work = Some(self.begin(&mut tracker, Scope::Changed));
                }
                () = until(tracker.deferred_keys_due()), if idle => {
                    work = Some(self.begin(&mut tracker, Scope::Changed));
                }
                () = sleep_until(history_due), if self.synced && history.is_none() && !tracker.hosts_push => {
                    history = Some(tracker.history_poll());
                }
                () = std::future::ready(()), if idle && tracker.needs_refresh() => {
                    work = Some(self.begin(&mut tracker, Scope::Changed));
                }
            }
        }
    }

    /// Builds a subscription in `session`, and looks up what is asked for.
    async fn subscribe(&mut self, session: &Arc<Session>) -> Result<Tracker, StreamEnd> {
        let session_objects = SessionObjects::new(&self.vcenter, session);
        let subscription = self.unless_stopped(Subscription::build(&session_objects)).await;
        self.session_objects = Some(session_objects);
        let mut tracker = Tracker::new(Arc::new(subscription??));
        let watch_set = self.watch_set.borrow_and_update().clone();
        let first = tracker.begin_refresh(watch_set, Scope::AllKeys);
        let done = self.unless_stopped(first.run()).await??;
        tracker.apply_refresh(done, &self.watch_set.borrow().urgent);
        Ok(tracker)
    }

    /// Applies the result of a refresh, and returns what it changed.
    fn end_refresh(&mut self, tracker: &mut Tracker, done: RefreshDone) -> Vec<VsphereUpdate> {
        let reread_done = done.reread.is_some();
        tracker.apply_refresh(done, &self.watch_set.borrow().urgent);
        // Do not wait longer than the first re-read for missing devices.
        if reread_done && tracker.initial_set_received && !self.synced {
            tracker.complete_set(&mut self.synced)
        } else {
            tracker.updates_outside_poll(self.synced)
        }
    }

    fn begin(&mut self, tracker: &mut Tracker, scope: Scope) -> StreamWork<RefreshDone> {
        let watch_set = self.watch_set.borrow_and_update().clone();
        Box::pin(tracker.begin_refresh(watch_set, scope).run())
    }

    async fn send(&self, updates: Vec<VsphereUpdate>) -> Result<(), StreamEnd> {
        let is_empty = updates.is_empty();
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
        if !is_empty {
            // The receiver may run on this thread: let it process the updates before the next request
            // is written.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Runs `work` until `stop`; then `work` has a moment to finish.
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

    async fn destroy_objects(&mut self) {
        if let Some(session_objects) = self.session_objects.take() {
            session_objects.destroy_all().await;
        }
    }
}

/// Completes when the live session is not `session`.
async fn replaced(sessions: &mut watch::Receiver<Option<Arc<Session>>>, session: &Session) {
    let is_current = |live: &Option<Arc<Session>>| {
        live.as_ref()
            .is_some_and(|live| live.generation == session.generation)
    };
    drop(sessions.wait_for(|live| !is_current(live)).await);
}

/// Completes when all is to be read again: at the next tick, or at once.
async fn reread_due(tick: &mut Interval, at_once: bool) {
    if !at_once {
        tick.tick().await;
    }
}

/// Completes at `time`; without one, never.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// The result of `work`; without any it never completes.
async fn finish<T>(work: &mut Option<StreamWork<T>>) -> Result<T, Error> {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}
