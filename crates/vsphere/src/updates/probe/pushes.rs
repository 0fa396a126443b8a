//! Which changes of maintenance vCenter pushed, and by which way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use haulout_core::ids::{HostRef, TaskRef};

/// Tasks that are kept. Besides those of the person who clicks there are few.
const TASKS_MAX: usize = 1_000;

/// How often something was pushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushTally {
    /// It was pushed.
    pub pushed: u32,
    /// It happened, and was not pushed.
    pub missed: u32,
}

/// What a person does to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchStep {
    /// Enter Maintenance Mode.
    Enter,
    /// Exit Maintenance Mode.
    Exit,
}

/// What was pushed while somebody watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchedPushes {
    /// A maintenance task that begins, in `recentTask` of its host.
    pub recent_task: PushTally,
    /// The end of a maintenance task that we follow itself.
    pub task_end: PushTally,
    /// A maintenance task that begins, on a page of the task history.
    pub history_begin: PushTally,
    /// The end of a maintenance task, on a page that lists no other new task.
    pub history_end: PushTally,
    /// A change of `inMaintenanceMode`.
    pub mode: PushTally,
    /// Hosts that entered maintenance mode without a task.
    pub entered_without_task: u32,
    /// Tasks that entered maintenance mode, and ended with success.
    pub entered: u32,
    /// Tasks that exited maintenance mode, and ended with success.
    pub exited: u32,
}

/// How something was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeenBy {
    Push,
    Reread,
}

/// A maintenance task at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenTask {
    pub(super) task: TaskRef,
    pub(super) step: WatchStep,
    pub(super) host: Option<HostRef>,
    pub(super) has_ended: bool,
    pub(super) has_succeeded: bool,
}

/// What was seen so far. Times are since the beginning.
#[derive(Debug, Default)]
pub(super) struct PushRecord {
    /// Tasks from before the watch; nothing is concluded from them.
    before: BTreeSet<TaskRef>,
    /// Tasks that `recentTask` of a host pushed.
    in_lists: BTreeSet<TaskRef>,
    tasks: BTreeMap<TaskRef, TaskRecord>,
    /// The tasks of the last page of the history.
    page: Option<BTreeSet<TaskRef>>,
    modes: BTreeMap<HostRef, ModeRecord>,
    last_change: Duration,
}

#[derive(Debug)]
struct TaskRecord {
    step: WatchStep,
    host: Option<HostRef>,
    begun: Duration,
    ended: Option<Duration>,
    has_succeeded: bool,
    end_pushed: bool,
    listed: bool,
    listed_unended: bool,
    history_end: HistoryEnd,
}

/// How the history showed the end of a task that it had listed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HistoryEnd {
    Unseen,
    /// On a page for this change alone.
    Pushed,
    /// On a page that lists another new task as well, so nothing follows.
    WithOthers,
}

#[derive(Debug)]
struct ModeRecord {
    is_in_maintenance: bool,
    changes: Vec<ModeChange>,
}

#[derive(Debug)]
struct ModeChange {
    to: bool,
    at: Duration,
    pushed: bool,
}

/// Changes of one host that are kept: a person clicks a few times.
const CHANGES_MAX: usize = 16;

impl PushRecord {
    /// A task from before the watch.
    pub(super) fn known(&mut self, task: TaskRef) {
        self.before.insert(task);
    }

    /// The mode of a host when the watch begins.
    pub(super) fn known_mode(&mut self, host: HostRef, is_in_maintenance: bool) {
        self.modes.entry(host).or_insert(ModeRecord {
            is_in_maintenance,
            changes: Vec::new(),
        });
    }

    /// The tasks of a host, as it pushed them.
    pub(super) fn host_list(&mut self, tasks: impl Iterator<Item = TaskRef>) {
        for task in tasks {
            if !self.before.contains(&task) && self.in_lists.len() < TASKS_MAX {
                self.in_lists.insert(task);
            }
        }
    }

    pub(super) fn task(&mut self, seen: &SeenTask, by: SeenBy, now: Duration) {
        let Some(record) = self.record(seen, now) else {
            return;
        };
        if seen.has_ended && by == SeenBy::Push {
            record.end_pushed = true;
        }
    }

    /// A page of the history: all its tasks, and those of maintenance.
    pub(super) fn page(&mut self, all: BTreeSet<TaskRef>, maintenance: &[SeenTask], now: Duration) {
        let Some(last) = self.page.replace(all.clone()) else {
            self.before.extend(all);
            return;
        };
        let has_newcomers = all.iter().any(|task| !last.contains(task));
        for seen in maintenance {
            let Some(record) = self.record(seen, now) else {
                continue;
            };
            record.listed = true;
            if !seen.has_ended {
                record.listed_unended = true;
            } else if record.listed_unended && record.history_end == HistoryEnd::Unseen {
                record.history_end = match has_newcomers {
                    true => HistoryEnd::WithOthers,
                    false => HistoryEnd::Pushed,
                };
            }
        }
    }

    pub(super) fn mode(&mut self, host: &HostRef, is_in_maintenance: bool, by: SeenBy, now: Duration) {
        let Some(record) = self.modes.get_mut(host) else {
            self.known_mode(host.clone(), is_in_maintenance);
            return;
        };
        let pushed = by == SeenBy::Push;
        if record.is_in_maintenance != is_in_maintenance {
            record.is_in_maintenance = is_in_maintenance;
            self.last_change = now;
            if record.changes.len() < CHANGES_MAX {
                let to = is_in_maintenance;
                record.changes.push(ModeChange { to, at: now, pushed });
            }
        } else if pushed && let Some(last) = record.changes.last_mut() {
            last.pushed = true;
        }
    }

    /// The maintenance tasks that run, to be followed.
    pub(super) fn running(&self) -> impl Iterator<Item = &TaskRef> {
        let running = self.tasks.iter().filter(|(_, record)| record.ended.is_none());
        running.map(|(task, _)| task)
    }

    /// Whether a host has been into maintenance mode and out of it again, and nothing has happened for `settle`.
    pub(super) fn is_complete(&self, now: Duration, settle: Duration) -> bool {
        let counts = self.counts();
        let has_both = counts.entered > 0 && counts.exited > 0;
        has_both && self.running().next().is_none() && now >= self.last_change + settle
    }

    pub(super) fn counts(&self) -> WatchedPushes {
        let done = |step| {
            let is_done = |record: &&TaskRecord| record.step == step && record.has_succeeded;
            u32::try_from(self.tasks.values().filter(is_done).count()).unwrap_or(u32::MAX)
        };
        WatchedPushes {
            entered: done(WatchStep::Enter),
            exited: done(WatchStep::Exit),
            ..WatchedPushes::default()
        }
    }

    /// What follows. What happened within the last `settle` and was not pushed may still be pushed, so it does not count.
    pub(super) fn conclude(&self, now: Duration, settle: Duration) -> WatchedPushes {
        let mut all = self.counts();
        let is_settled = |at: Duration| now >= at + settle;
        for (task, record) in &self.tasks {
            all.recent_task
                .count(self.in_lists.contains(task), is_settled(record.begun));
            if self.page.is_some() {
                all.history_begin.count(record.listed, is_settled(record.begun));
            }
            let Some(ended) = record.ended else { continue };
            all.task_end.count(record.end_pushed, is_settled(ended));
            if record.listed_unended {
                let pushed = record.history_end == HistoryEnd::Pushed;
                let is_open = record.history_end == HistoryEnd::WithOthers;
                all.history_end.count(pushed, !is_open && is_settled(ended));
            }
        }
        for (host, mode) in &self.modes {
            for change in &mode.changes {
                all.mode.count(change.pushed, is_settled(change.at));
                let is_of_it = |record: &TaskRecord| {
                    record.step == WatchStep::Enter && record.host.as_ref() == Some(host)
                };
                let has_task = self.tasks.values().any(is_of_it);
                let is_without = change.to && !has_task && is_settled(change.at);
                all.entered_without_task += u32::from(is_without);
            }
        }
        all
    }

    /// The record of a task that began during the watch.
    fn record(&mut self, seen: &SeenTask, now: Duration) -> Option<&mut TaskRecord> {
        let is_known = self.tasks.contains_key(&seen.task);
        if self.before.contains(&seen.task) || (!is_known && self.tasks.len() == TASKS_MAX) {
            return None;
        }
        let record = self.tasks.entry(seen.task.clone()).or_insert(TaskRecord {
            step: seen.step,
            host: seen.host.clone(),
            begun: now,
            ended: None,
            has_succeeded: false,
            end_pushed: false,
            listed: false,
            listed_unended: false,
            history_end: HistoryEnd::Unseen,
        });
        let is_change = !is_known || (seen.has_ended && record.ended.is_none());
        if is_change {
            self.last_change = now;
        }
        if seen.has_ended && record.ended.is_none() {
            record.ended = Some(now);
            record.has_succeeded = seen.has_succeeded;
        }
        Some(record)
    }
}

impl PushTally {
    fn count(&mut self, was_pushed: bool, is_settled: bool) {
        self.pushed += u32::from(was_pushed);
        self.missed += u32::from(!was_pushed && is_settled);
    }
}
