//! Watches maintenance tasks in each way that the stream uses, and beside it by reading again.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::pushes::{PushRecord, SeenBy, SeenTask};
use super::{WatchStep, WatchedPushes};
use crate::client::{Error, Vcenter};
use crate::decode;
use crate::moref::Moref;
use crate::property::{Change, ObjectProperties, UpdateSet};
use crate::task::{self, TaskInfo};
use crate::update::TaskState;
use crate::updates::history::TaskHistory;
use crate::updates::subscription::{KnownBefore, SessionObjects, Subscription};
use haulout_core::ids::{HostRef, TaskRef};

/// The longest pause between two readings of what really happened: short against the minutes of a watch.
const REREAD_MAX: Duration = Duration::from_secs(5);
/// How long something may be pushed after it was read, in readings.
const SETTLE_READINGS: u32 = 3;

/// What a watch reports while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchProgress {
    /// Everything is followed from here on.
    Ready,
    /// A task began.
    Began(WatchStep),
    /// A task ended.
    Ended(WatchStep),
}

impl Vcenter {
    /// Watches maintenance tasks until a host has been into maintenance mode and out of it, or `stop` completes.
    ///
    /// # Errors
    /// If the watch cannot begin, or the session ends.
    pub async fn watch_pushes(
        &self,
        stop: impl Future<Output = ()>,
        progress: impl Fn(WatchProgress),
    ) -> Result<WatchedPushes, Error> {
        let session = self.sessions.get().await?;
        let objects = SessionObjects::new(self, &session);
        let seen = self.watch_with(&objects, stop, progress).await;
        objects.destroy_all().await;
        seen
    }

    async fn watch_with(
        &self,
        objects: &SessionObjects,
        stop: impl Future<Output = ()>,
        progress: impl Fn(WatchProgress),
    ) -> Result<WatchedPushes, Error> {
        let pause = self
            .settings
            .reread_every
            .clamp(Duration::from_millis(100), REREAD_MAX);
        let settle = pause * SETTLE_READINGS;
        let mut watch = PushWatch::begin(Arc::new(Subscription::build(objects).await?)).await?;
        let history = watch.begin_history(self.settings.call_deadline).await;
        progress(WatchProgress::Ready);
        let mut told = (0, 0);
        let mut stop = pin!(stop);
        let mut tick = interval_at(Instant::now() + pause, pause);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let subscription = watch.subscription.clone();
        let mut poll = Box::pin(poll(subscription.clone(), watch.version.clone()));
        let mut page = Box::pin(next_page(history.clone(), watch.page_version.clone()));
        loop {
            tokio::select! {
                biased;
                () = &mut stop => break,
                set = &mut poll => {
                    if let Some(set) = set? {
                        watch.take_set(&set);
                    }
                    poll = Box::pin(self::poll(subscription.clone(), watch.version.clone()));
                }
                set = &mut page => {
                    // A history that cannot be read is only left out.
                    let history = match set {
                        Ok(set) => {
                            watch.take_page(set.as_ref());
                            history.clone()
                        }
                        Err(_) => None,
                    };
                    page = Box::pin(next_page(history, watch.page_version.clone()));
                }
                _ = tick.tick() => watch.reread().await?,
            }
            watch.follow().await?;
            let now = watch.tell(&mut told, &progress);
            if watch.record.is_complete(now, settle) {
                break;
            }
        }
        Ok(watch.record.conclude(watch.began.elapsed(), settle))
    }
}

async fn poll(subscription: Arc<Subscription>, version: String) -> Result<Option<UpdateSet>, Error> {
    subscription.wait(&version).await
}

async fn next_page(history: Option<Arc<TaskHistory>>, version: String) -> Result<Option<UpdateSet>, Error> {
    match history {
        Some(history) => history.wait(&version).await,
        None => std::future::pending().await,
    }
}

struct PushWatch {
    subscription: Arc<Subscription>,
    version: String,
    page_version: String,
    record: PushRecord,
    tasks: Vec<(TaskRef, TaskInfo)>,
    followed: BTreeSet<TaskRef>,
    began: Instant,
}

impl PushWatch {
    /// Reads the first set, which says what was before the watch.
    async fn begin(subscription: Arc<Subscription>) -> Result<Self, Error> {
        let mut watch = Self {
            subscription,
            version: String::new(),
            page_version: String::new(),
            record: PushRecord::default(),
            tasks: Vec::new(),
            followed: BTreeSet::new(),
            began: Instant::now(),
        };
        let (mut sets, mut objects) = (0, 0);
        loop {
            let set = watch.subscription.wait(&watch.version).await?;
            let Some(set) = set else { break };
            sets += 1;
            objects += set.changes.len();
            watch.subscription.check_limits(sets, objects)?;
            watch.version.clone_from(&set.version);
            for object in upserts(&set) {
                watch.note_before(object);
            }
            if !set.truncated {
                break;
            }
        }
        Ok(watch)
    }

    /// The history with its first page; `None` if vCenter has none.
    async fn begin_history(&mut self, deadline: Duration) -> Option<Arc<TaskHistory>> {
        let history = Arc::new(TaskHistory::of(&self.subscription));
        let first = timeout(deadline, history.wait("")).await.ok()?;
        self.take_page(first.ok()?.as_ref());
        Some(history)
    }

    fn note_before(&mut self, object: &ObjectProperties) {
        if let Some(host) = object.moref.host() {
            if let Some(mode) = mode(object) {
                self.record.known_mode(host, mode);
            }
            for task in recent(object) {
                self.record.known(task);
            }
        }
        if let Some(task) = object.moref.task() {
            self.record.known(task);
        }
    }

    fn take_set(&mut self, set: &UpdateSet) {
        self.version.clone_from(&set.version);
        let now = self.began.elapsed();
        for object in upserts(set) {
            if let Some(host) = object.moref.host() {
                self.record.host_list(recent(object));
                if let Some(mode) = mode(object) {
                    self.record.mode(&host, mode, SeenBy::Push, now);
                }
            }
            self.take_task(object, SeenBy::Push);
        }
    }

    fn take_page(&mut self, set: Option<&UpdateSet>) {
        let Some(set) = set else { return };
        self.page_version.clone_from(&set.version);
        let now = self.began.elapsed();
        for object in upserts(set) {
            let Some(page) = object.get("latestPage").and_then(crate::property::Value::tasks) else {
                continue;
            };
            let listed = || page.iter().filter_map(|task| task.as_ref().ok());
            let all = listed().filter_map(|task| task.moref.task()).collect();
            let infos = listed().filter_map(|task| task::read(task, None).ok());
            let seen: Vec<SeenTask> = infos.filter_map(|info| seen_task(&info)).collect();
            self.record.page(all, &seen, now);
        }
    }

    /// Reads what really happened.
    async fn reread(&mut self) -> Result<(), Error> {
        let known = KnownBefore {
            has_hosts: true,
            ..KnownBefore::default()
        };
        let read = self.subscription.reread(&known).await?;
        let now = self.began.elapsed();
        for object in &read.objects {
            if let (Some(host), Some(mode)) = (object.moref.host(), mode(object)) {
                self.record.mode(&host, mode, SeenBy::Reread, now);
            }
            self.take_task(object, SeenBy::Reread);
        }
        Ok(())
    }

    fn take_task(&mut self, object: &ObjectProperties, by: SeenBy) {
        let Some(moref) = object.moref.task() else { return };
        let at = self.tasks.iter().position(|(task, _)| *task == moref);
        let before = at.and_then(|at| self.tasks.get(at)).map(|(_, info)| info);
        let Ok(info) = task::read(object, before) else {
            return;
        };
        let Some(seen) = seen_task(&info) else { return };
        self.record.task(&seen, by, self.began.elapsed());
        if let Some((_, known)) = at.and_then(|at| self.tasks.get_mut(at)) {
            *known = info;
        } else if self.tasks.len() < FOLLOWED_MAX {
            self.tasks.push((moref, info));
        }
    }

    /// Follows each running maintenance task itself, as the stream does.
    async fn follow(&mut self) -> Result<(), Error> {
        let new: BTreeSet<TaskRef> = self
            .record
            .running()
            .filter(|task| !self.followed.contains(*task))
            .take(FOLLOWED_MAX)
            .cloned()
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        let morefs: Vec<Moref> = new.iter().map(Moref::from).collect();
        self.subscription
            .modify_list(morefs.iter(), std::iter::empty())
            .await?;
        self.followed.extend(new);
        Ok(())
    }

    /// Reports how many tasks ended, and returns the time.
    fn tell(&self, told: &mut (usize, usize), progress: &impl Fn(WatchProgress)) -> Duration {
        let mut ended = 0;
        for (number, (_, info)) in self.tasks.iter().enumerate() {
            let Some(seen) = seen_task(info) else { continue };
            if number >= told.0 {
                told.0 = number + 1;
                progress(WatchProgress::Began(seen.step));
            }
            ended += usize::from(seen.has_ended);
            if seen.has_ended && ended > told.1 {
                told.1 = ended;
                progress(WatchProgress::Ended(seen.step));
            }
        }
        self.began.elapsed()
    }
}

/// Maintenance tasks that are followed. Besides those of the person who clicks there are few.
const FOLLOWED_MAX: usize = 100;

fn upserts(set: &UpdateSet) -> impl Iterator<Item = &ObjectProperties> {
    set.changes.iter().filter_map(|change| match change {
        Change::Upsert(object) => Some(object),
        Change::Gone(_) => None,
    })
}

fn mode(host: &ObjectProperties) -> Option<bool> {
    host.text("runtime.inMaintenanceMode").and_then(decode::boolean)
}

fn recent(host: &ObjectProperties) -> impl Iterator<Item = TaskRef> {
    host.morefs("recentTask").iter().filter_map(Moref::task)
}

fn seen_task(info: &TaskInfo) -> Option<SeenTask> {
    let step = match info {
        info if info.enters_maintenance() => WatchStep::Enter,
        info if info.exits_maintenance() => WatchStep::Exit,
        _ => return None,
    };
    let host: Option<HostRef> = info.entity.as_ref().and_then(Moref::host);
    Some(SeenTask {
        task: info.moref.clone(),
        step,
        host,
        has_ended: info.has_ended(),
        has_succeeded: info.state == TaskState::Success,
    })
}
