//! Tasks in the property cache: which ones matter, and how they end.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;

use super::{PropertyCache, TasksToRead, if_changed};
use crate::fault::FaultKind;
use crate::moref::Moref;
use crate::property::{ObjectProperties, Value};
use crate::soap::ReplyError;
use crate::task::{self, TaskInfo};
use crate::text;
use crate::update::{EndOutcome, MaintenanceEnd, Task, TaskState, VsphereUpdate};
use haulout_core::ids::TaskRef;

/// Limit of maintenance and standby tasks in the list view, and of rows of the history that are checked. Others are seen in the
/// task lists of their hosts.
const MAX_FOLLOWED: usize = 1_000;

impl PropertyCache {
    /// Sets the awaited tasks. Called before vCenter is asked for them, because its reply may come
    /// first.
    pub(crate) fn set_awaited(&mut self, awaited: BTreeSet<TaskRef>) {
        for tasks in [
            &mut self.read_individually,
            &mut self.to_read.awaited,
            &mut self.gone,
        ] {
            tasks.retain(|task| awaited.contains(task));
        }
        self.awaited = awaited;
    }

    pub(crate) fn has_tasks_to_read(&self) -> bool {
        !self.to_read.awaited.is_empty() || !self.to_read.claimed.is_empty()
    }

    /// Returns and clears the tasks to read individually.
    pub(crate) fn take_tasks_to_read(&mut self) -> TasksToRead {
        std::mem::take(&mut self.to_read)
    }

    /// Applies tasks that were read individually, with their results.
    pub(crate) fn apply_tasks_read(&mut self, objects: &[ObjectProperties]) {
        for object in objects {
            self.read_individually.extend(object.moref.task());
            self.upsert(object);
        }
    }

    /// Awaited tasks that vCenter does not know any more.
    pub(crate) fn gone_tasks(&self) -> BTreeSet<TaskRef> {
        self.gone.clone()
    }

    /// Whether the outcome of the task is known, or cannot be known.
    fn is_settled(&self, task: &TaskRef) -> bool {
        self.gone.contains(task) || self.tasks.get(task).is_some_and(TaskInfo::has_ended)
    }

    /// Marks awaited tasks that a re-read did not return (`read`) to be read individually.
    pub(super) fn find_missed(&mut self, read: &BTreeSet<TaskRef>) {
        let missed: Vec<_> = self
            .awaited
            .difference(read)
            .filter(|task| !self.is_settled(task))
            .cloned()
            .collect();
        self.to_read.awaited.extend(missed);
    }

    /// vCenter does not know these tasks. Awaited and reported ones are reported as gone.
    pub(crate) fn tasks_not_found(&mut self, tasks: BTreeSet<TaskRef>) {
        for task in tasks {
            if self.is_settled(&task) {
                continue;
            }
            self.drop_task(&task);
            if self.awaited.contains(&task) {
                self.gone.insert(task);
            }
        }
    }

    /// Forgets an unfinished task whose outcome cannot be known any more.
    fn drop_task(&mut self, task: &TaskRef) {
        let Some(info) = self.tasks.remove(task) else {
            self.changed.insert(task.into());
            return;
        };
        // Its host may have been entering maintenance with it.
        self.entering.remove(task);
        self.arriving.remove(task);
        if self.sent.tasks.remove(task).is_some() {
            self.vanished.insert(task.clone());
        }
        self.changed.insert(task.into());
        self.changed.extend(info.entity);
    }

    /// Number of maintenance tasks seen, from any source, each counted once.
    pub(crate) fn maintenance_tasks_seen(&self) -> u64 {
        self.maintenance_tasks_seen
    }

    /// The maintenance and standby tasks to follow in the list view: otherwise their outcome is not reported.
    pub(crate) fn followed(&self) -> impl Iterator<Item = &TaskRef> {
        self.entering.iter().take(MAX_FOLLOWED)
    }

    pub(super) fn apply_task(&mut self, task: &TaskRef, object: &ObjectProperties) {
        if let Some(fault) = task::withheld(object) {
            self.unreadable.note_withheld(&object.moref, fault);
        }
        let known = self.tasks.get(task);
        // A change of a task that was ignored lacks the other properties.
        if known.is_some() || object.get("info.descriptionId").is_some() {
            let read = task::read_task(object, known);
            if let Some(task) = self.readable(&object.moref, read) {
                self.task(task);
            }
        }
    }

    /// Applies a page of the task history.
    ///
    /// A row changes a known task. An unfinished task that is not known is read first, because rows of tasks that never end
    /// exist: of tasks that were interrupted years ago, and of those that a restart of vCenter has lost.
    pub(super) fn apply_history_page(&mut self, object: &ObjectProperties) {
        let page = object.get("latestPage").and_then(Value::tasks);
        let mut rows = BTreeSet::new();
        for listed in page.unwrap_or_default() {
            let listed = match listed {
                Ok(listed) => listed,
                Err(unreadable) => {
                    let of = unreadable.moref.as_ref().unwrap_or(&object.moref);
                    self.unreadable.log_once(Some(of), &unreadable.why);
                    continue;
                }
            };
            let Some(task) = self.readable(&listed.moref, task::read_task(listed, None)) else {
                continue;
            };
            rows.insert(task.moref.clone());
            if self.tasks.contains_key(&task.moref) {
                self.task(task);
            } else if self.may_start_something(&task) {
                if self.awaited.contains(&task.moref) {
                    self.task(task);
                } else if self.checked_rows.len() < MAX_FOLLOWED
                    && self.checked_rows.insert(task.moref.clone())
                {
                    self.to_read.claimed.insert(task.moref);
                }
            }
        }
        self.checked_rows.retain(|task| rows.contains(task));
    }

    /// Whether anything follows from a task that was not known. The history lists the tasks of all VMs, including old ones.
    fn may_start_something(&self, task: &TaskInfo) -> bool {
        let vm = task.entity.as_ref().and_then(Moref::vm);
        let matters = match vm {
            Some(vm) => self.ours.contains(&vm),
            None => {
                let is_exit = task.exits_maintenance() && task.user.is_some();
                task.empties_host() || is_exit || self.awaited.contains(&task.moref)
            }
        };
        matters && !task.has_ended()
    }

    /// A task left all lists of a filter, which says nothing about its state: a host lists ended tasks
    /// for ten minutes. The next re-read decides about running tasks of hosts and removes ended ones. The end of a running task
    /// of a VM was missed.
    pub(super) fn task_unlisted(&mut self, task: TaskRef) {
        if self.awaited.contains(&task) {
            if !self.is_settled(&task) {
                self.to_read.awaited.insert(task);
            }
            return;
        }
        match self.tasks.get(&task) {
            Some(info) if info.empties_host() => {}
            Some(info) if info.has_ended() => {
                self.tasks.remove(&task);
                self.sent.tasks.remove(&task);
            }
            Some(_) => self.drop_task(&task),
            None => {}
        }
    }

    /// Ends maintenance and standby tasks of `host` that are neither in its list (`listed`) nor in the re-read at
    /// all (`read`). The re-read has marked the host as changed.
    pub(super) fn end_unlisted(
        &mut self,
        host: &Moref,
        listed: &BTreeSet<TaskRef>,
        read: &BTreeSet<TaskRef>,
    ) {
        let is_found = |task: &TaskRef| listed.contains(task) || read.contains(task);
        let over: Vec<_> = self
            .emptying_tasks(host)
            .map(|task| task.moref.clone())
            .filter(|task| !is_found(task) && !self.newer.has(&Moref::from(task)))
            .collect();
        for task in over {
            self.tasks.remove(&task);
            self.entering.remove(&task);
        }
        self.settle_arrivals(host);
    }

    /// Ends running tasks of VMs that are neither in the list of their VM (`listed`, of the VMs that were read) nor in the re-read
    /// at all (`read`). Awaited ones are read individually first.
    pub(super) fn end_unlisted_of_vms(
        &mut self,
        listed: &HashMap<&Moref, BTreeSet<TaskRef>>,
        read: &BTreeSet<TaskRef>,
    ) {
        let is_over = |info: &&TaskInfo| {
            let task = &info.moref;
            let of_vm = info.entity.as_ref().and_then(|vm| listed.get(vm));
            of_vm.is_some_and(|listed| !listed.contains(task))
                && !(info.has_ended() || read.contains(task) || self.awaited.contains(task))
                && !self.newer.has(&Moref::from(task))
        };
        let over = self.tasks.values().filter(is_over);
        let over: Vec<TaskRef> = over.map(|info| info.moref.clone()).collect();
        for task in over {
            self.drop_task(&task);
        }
    }

    /// The host reached maintenance: its tasks are not `arriving` any more.
    pub(super) fn has_arrived(&mut self, host: &Moref) {
        let tasks = &self.tasks;
        self.arriving.retain(|task| {
            tasks
                .get(task)
                .is_some_and(|info| info.entity.as_ref() != Some(host))
        });
    }

    /// A re-read that began after the task ended shows the host's final state: in maintenance, or
    /// already out of it.
    fn settle_arrivals(&mut self, host: &Moref) {
        let (tasks, newer) = (&self.tasks, &self.newer);
        self.arriving.retain(|task| {
            let is_here = tasks
                .get(task)
                .is_none_or(|info| info.entity.as_ref() == Some(host));
            !is_here || newer.has(&Moref::from(task))
        });
    }

    /// Removes ended tasks that no list contains, so that the cache does not grow without bound.
    pub(super) fn forget_ended(&mut self, objects: &[ObjectProperties]) {
        let lists = objects.iter().map(|object| object.morefs("recentTask"));
        let listed: BTreeSet<_> = lists.flatten().collect();
        let (awaited, newer) = (&self.awaited, &self.newer);
        self.tasks.retain(|task, info| {
            let moref = Moref::from(task);
            !info.has_ended() || awaited.contains(task) || listed.contains(&moref) || newer.has(&moref)
        });
        let tasks = &self.tasks;
        self.reread.retain(|task| tasks.contains_key(task));
        self.sent.tasks.retain(|task, _| tasks.contains_key(task));
    }

    /// An unreadable task must not affect the others.
    fn readable(&mut self, moref: &Moref, task: Result<TaskInfo, ReplyError>) -> Option<TaskInfo> {
        task.inspect_err(|error| self.unreadable.log_once(Some(moref), &error.to_string()))
            .ok()
    }

    fn task(&mut self, task: TaskInfo) {
        self.record_exit(&task);
        let of_vm = task
            .entity
            .as_ref()
            .is_some_and(|entity| entity.kind == "VirtualMachine");
        let matters = of_vm || task.empties_host() || self.awaited.contains(&task.moref);
        // An ended task stays ended: of the two filters that report it, one may be behind.
        let known = self.tasks.get(&task.moref);
        if !matters || known.is_some_and(|known| known.has_ended() || *known == task) {
            return;
        }
        // Success alone does not say that anything was started; until the result is read the task
        // counts as running.
        let is_done = task.state == TaskState::Success && self.awaited.contains(&task.moref);
        if is_done && task.needs_result() && !self.read_individually.contains(&task.moref) {
            self.to_read.awaited.insert(task.moref);
            return;
        }
        self.maintenance_tasks_seen += u64::from(known.is_none() && task.enters_maintenance());
        let was_running = known.is_some_and(|known| !known.has_ended());
        if was_running && task.enters_maintenance() && task.state == TaskState::Success {
            let host = task.entity.as_ref().and_then(Moref::host);
            let in_maintenance = host.and_then(|host| self.hosts.get(&host)?.in_maintenance);
            if in_maintenance != Some(true) {
                self.arriving.insert(task.moref.clone());
            }
        }
        self.record_outcome(&task, was_running);
        if task.empties_host() && !task.has_ended() {
            self.entering.insert(task.moref.clone());
        } else {
            self.entering.remove(&task.moref);
        }
        let moref = Moref::from(&task.moref);
        self.newer.add(&moref);
        self.changed.extend(task.entity.clone());
        self.changed.insert(moref);
        self.to_read.claimed.remove(&task.moref);
        self.tasks.insert(task.moref.clone(), task);
    }

    /// Records an exit from maintenance that a user started. vCenter's own tasks have no user.
    fn record_exit(&mut self, task: &TaskInfo) {
        let has_failed = matches!(task.state, TaskState::Error(_));
        if !task.exits_maintenance() || task.user.is_none() || has_failed {
            return;
        }
        let host = task.entity.as_ref().and_then(Moref::host);
        let Some((host, facts)) =
            host.and_then(|host| Some((Moref::from(&host), self.hosts.get_mut(&host)?)))
        else {
            return;
        };
        if facts
            .last_exit
            .as_ref()
            .is_none_or(|(at, _)| *at < task.queued_at)
        {
            facts.last_exit = Some((task.queued_at, task.moref.clone()));
            self.changed.insert(host);
        }
    }

    /// Records the outcome of the newest maintenance task that was seen running.
    fn record_outcome(&mut self, task: &TaskInfo, was_running: bool) {
        let Some(host) = task.entity.as_ref().filter(|_| task.enters_maintenance()) else {
            return;
        };
        let is_last = self
            .entering_tasks(host)
            .all(|other| other.queued_at <= task.queued_at);
        let Some(facts) = host.host().and_then(|host| self.hosts.get_mut(&host)) else {
            return;
        };
        let is_newest = is_last
            && facts
                .last_end
                .as_ref()
                .is_none_or(|(last, _)| *last <= task.queued_at);
        let outcome = match &task.state {
            TaskState::Queued | TaskState::Running | TaskState::Success => None,
            TaskState::Error(fault) if task.cancelled || fault.kind == FaultKind::RequestCanceled => {
                Some(EndOutcome::Cancelled)
            }
            TaskState::Error(fault) => Some(EndOutcome::Failed {
                message: fault.to_string(),
            }),
        };
        let of = task.moref.clone();
        match outcome {
            Some(outcome) if was_running && is_newest => {
                facts.last_end = Some((task.queued_at, MaintenanceEnd { task: of, outcome }));
            }
            Some(_) => {}
            None if is_newest => facts.last_end = None,
            None => {}
        }
    }

    /// The maintenance tasks of `host` that are under way.
    pub(super) fn entering_tasks(&self, host: &Moref) -> impl Iterator<Item = &TaskInfo> {
        self.emptying_tasks(host).filter(|task| task.enters_maintenance())
    }

    /// When the newest maintenance task of `host` that succeeded was queued.
    pub(super) fn maintenance_asked_at(&self, host: &Moref) -> Option<Timestamp> {
        let of_host = self.tasks.values().filter(|task| {
            let is_such = task.enters_maintenance() && task.state == TaskState::Success;
            is_such && task.entity.as_ref() == Some(host)
        });
        of_host.map(|task| task.queued_at).max()
    }

    /// A standby task of `host` that is under way.
    pub(super) fn standby_task(&self, host: &Moref) -> Option<TaskRef> {
        let mut tasks = self.emptying_tasks(host);
        let task = tasks.find(|task| task.enters_standby())?;
        Some(task.moref.clone())
    }

    fn emptying_tasks(&self, host: &Moref) -> impl Iterator<Item = &TaskInfo> {
        let under_way = self.entering.iter().chain(&self.arriving);
        let under_way = under_way.filter_map(|task| self.tasks.get(task));
        under_way.filter(move |task| task.entity.as_ref() == Some(host))
    }

    /// Tasks of hosts are reported in [`Host::entering`](crate::update::Host).
    pub(super) fn task_update(&mut self, task: &TaskRef) -> Option<VsphereUpdate> {
        let vanished = self.vanished.remove(task);
        if self.gone.contains(task) {
            return Some(VsphereUpdate::TaskGone(task.clone()));
        }
        let Some(info) = self.tasks.get(task) else {
            return vanished.then(|| VsphereUpdate::TaskGone(task.clone()));
        };
        let vm = info.entity.as_ref().and_then(Moref::vm);
        if !vm.as_ref().is_some_and(|vm| self.ours.contains(vm)) && !self.awaited.contains(task) {
            return None;
        }
        let object = Task {
            moref: task.clone(),
            vm,
            description_id: text::for_people(&info.description_id),
            state: info.state.clone(),
            queued_at: info.queued_at,
            by_us: match (&info.user, &self.user) {
                (Some(by), Some(us)) => by.eq_ignore_ascii_case(us),
                (Some(_) | None, Some(_) | None) => false,
            },
        };
        if_changed(&mut self.sent.tasks, task.clone(), &object).map(VsphereUpdate::Task)
    }
}
