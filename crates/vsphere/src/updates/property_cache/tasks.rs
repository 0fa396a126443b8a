//! The tasks in the shadow: which matter, what became of them, and who is told.

use std::collections::BTreeSet;

use super::{PropertyCache, tell};
use crate::fault::FaultKind;
use crate::moref::Moref;
use crate::property::{ObjectProperties, Value};
use crate::soap::ReplyError;
use crate::task::{self, TaskInfo};
use crate::text;
use crate::update::{EndOutcome, MaintenanceEnd, Task, TaskState, VsphereUpdate};
use haulout_core::ids::TaskRef;

/// Maintenance tasks that are followed one by one. A vCenter has at most some thousand hosts, and of those no more than this are on
/// their way into maintenance at once; the others are followed as their hosts list them.
const FOLLOWED: usize = 1_000;

impl PropertyCache {
    /// Says which tasks are awaited: before vCenter is asked for them, because its answer may come first.
    pub(crate) fn set_awaited(&mut self, awaited: BTreeSet<TaskRef>) {
        for tasks in [&mut self.looked_at, &mut self.to_look_at, &mut self.gone] {
            tasks.retain(|task| awaited.contains(task));
        }
        self.awaited = awaited;
    }

    /// Whether there is a task that has to be read by itself.
    pub(crate) fn has_to_look(&self) -> bool {
        !self.to_look_at.is_empty()
    }

    /// Hands out the tasks that have to be read by themselves.
    pub(crate) fn take_to_look_at(&mut self) -> BTreeSet<TaskRef> {
        std::mem::take(&mut self.to_look_at)
    }

    /// Takes what was read of tasks by themselves, with their results.
    pub(crate) fn look_at(&mut self, objects: &[ObjectProperties]) {
        for object in objects {
            self.looked_at.extend(object.moref.task());
            self.upsert(object);
        }
    }

    /// The awaited tasks that vCenter does not know any more.
    pub(crate) fn gone_tasks(&self) -> BTreeSet<TaskRef> {
        self.gone.clone()
    }

    /// Whether nobody waits for more than was told of the task: how it ended, or that this is not to be learnt.
    fn is_settled(&self, task: &TaskRef) -> bool {
        self.gone.contains(task) || self.tasks.get(task).is_some_and(TaskInfo::has_ended)
    }

    /// A re-read told of these tasks. What is awaited and was not told of is to be looked for.
    pub(super) fn look_for(&mut self, read: &BTreeSet<TaskRef>) {
        let missed: Vec<_> = self
            .awaited
            .difference(read)
            .filter(|task| !self.is_settled(task))
            .cloned()
            .collect();
        self.to_look_at.extend(missed);
    }

    /// vCenter does not know these tasks. Those that are awaited are told gone.
    pub(crate) fn vanished(&mut self, tasks: BTreeSet<TaskRef>) {
        for task in tasks.intersection(&self.awaited) {
            if self.is_settled(task) {
                continue;
            }
            self.tasks.remove(task);
            self.told.tasks.remove(task);
            self.gone.insert(task.clone());
            self.changed.insert(task.into());
        }
    }

    /// How many maintenance tasks were heard of, each once, whoever told.
    pub(crate) fn clicks(&self) -> u64 {
        self.clicks
    }

    /// The maintenance tasks that are queued or running: how they end is told only to who follows them one by one.
    pub(crate) fn followed(&self) -> impl Iterator<Item = &TaskRef> {
        self.entering.iter().take(FOLLOWED)
    }

    /// Takes what was told of a task by its properties.
    pub(super) fn task_told(&mut self, task: &TaskRef, object: &ObjectProperties) {
        let known = self.tasks.get(task);
        // What changes of a task that was passed over is told without the rest.
        if known.is_some() || object.get("info.descriptionId").is_some() {
            let read = task::read(object, known);
            if let Some(task) = self.readable(&object.moref, read) {
                self.task(task);
            }
        }
    }

    /// Takes a page of the history.
    pub(super) fn page(&mut self, object: &ObjectProperties) {
        let page = object.get("latestPage").and_then(Value::tasks);
        for listed in page.unwrap_or_default() {
            let listed = match listed {
                Ok(listed) => listed,
                Err(unreadable) => {
                    let of = unreadable.moref.as_ref().unwrap_or(&object.moref);
                    self.complaints.note(Some(of), &unreadable.why);
                    continue;
                }
            };
            let Some(task) = self.readable(&listed.moref, task::read(listed, None)) else {
                continue;
            };
            // The page lists the tasks of all VMs, and goes on listing what ended long ago.
            let foreign = task
                .entity
                .as_ref()
                .and_then(Moref::vm)
                .is_some_and(|vm| !self.ours.contains(&vm));
            if self.tasks.contains_key(&task.moref) || !(foreign || task.has_ended()) {
                self.task(task);
            }
        }
    }

    /// A task is in none of the lists of a filter any more, which says nothing about its state: a host lists what ended for ten
    /// minutes, and a maintenance task is followed beside that. One that runs is judged by the next re-read, which also forgets what
    /// ended.
    pub(super) fn task_left(&mut self, task: TaskRef) {
        if self.awaited.contains(&task) {
            if !self.is_settled(&task) {
                self.to_look_at.insert(task);
            }
            return;
        }
        let is_of_maintenance = self.tasks.get(&task).is_none_or(TaskInfo::enters_maintenance);
        if !is_of_maintenance {
            self.tasks.remove(&task);
            self.told.tasks.remove(&task);
        }
    }

    /// A re-read found these tasks in the list of `host`, and `read` all in all. What it found nowhere is over.
    pub(super) fn end_unlisted(
        &mut self,
        host: &Moref,
        listed: &BTreeSet<TaskRef>,
        read: &BTreeSet<TaskRef>,
    ) {
        let is_found = |task: &TaskRef| listed.contains(task) || read.contains(task);
        let over: Vec<_> = self
            .entering_tasks(host)
            .map(|task| task.moref.clone())
            .filter(|task| !is_found(task) && !self.fresher.has(&Moref::from(task)))
            .collect();
        for task in over {
            self.tasks.remove(&task);
            self.entering.remove(&task);
            self.changed.insert(host.clone());
        }
        self.settle_arrivals(host);
    }

    /// The host is in maintenance: the tasks that brought it there have done so.
    pub(super) fn has_arrived(&mut self, host: &Moref) {
        let tasks = &self.tasks;
        self.arriving.retain(|task| {
            tasks
                .get(task)
                .is_some_and(|info| info.entity.as_ref() != Some(host))
        });
    }

    /// A re-read that began after a maintenance task had ended tells the host as it came to be: in maintenance, or out
    /// of it again before anybody saw it in.
    fn settle_arrivals(&mut self, host: &Moref) {
        let (tasks, fresher) = (&self.tasks, &self.fresher);
        let count = self.arriving.len();
        self.arriving.retain(|task| {
            let is_here = tasks
                .get(task)
                .is_none_or(|info| info.entity.as_ref() == Some(host));
            !is_here || fresher.has(&Moref::from(task))
        });
        if self.arriving.len() != count {
            self.changed.insert(host.clone());
        }
    }

    /// Tasks that have ended and that nothing lists any more are of no use: without this they would pile up.
    pub(super) fn forget_ended(&mut self, objects: &[ObjectProperties]) {
        let lists = objects.iter().map(|object| object.morefs("recentTask"));
        let listed: BTreeSet<_> = lists.flatten().collect();
        let (awaited, fresher) = (&self.awaited, &self.fresher);
        self.tasks.retain(|task, info| {
            let moref = Moref::from(task);
            !info.has_ended() || awaited.contains(task) || listed.contains(&moref) || fresher.has(&moref)
        });
        let tasks = &self.tasks;
        self.reread.retain(|task| tasks.contains_key(task));
        self.told.tasks.retain(|task, _| tasks.contains_key(task));
    }

    /// One task that cannot be read must not stop the stream of all others.
    fn readable(&mut self, moref: &Moref, task: Result<TaskInfo, ReplyError>) -> Option<TaskInfo> {
        task.inspect_err(|error| self.complaints.note(Some(moref), &error.to_string()))
            .ok()
    }

    fn task(&mut self, task: TaskInfo) {
        let of_vm = task
            .entity
            .as_ref()
            .is_some_and(|entity| entity.kind == "VirtualMachine");
        let matters = of_vm || task.enters_maintenance() || self.awaited.contains(&task.moref);
        // A task that has ended stays so: two filters tell of it, and one may be behind.
        let known = self.tasks.get(&task.moref);
        if !matters || known.is_some_and(|known| known.has_ended() || *known == task) {
            return;
        }
        // Its success alone does not say that anything was started; until the result is read it counts as what it was.
        let is_done = task.state == TaskState::Success && self.awaited.contains(&task.moref);
        if is_done && task.needs_result() && !self.looked_at.contains(&task.moref) {
            self.to_look_at.insert(task.moref);
            return;
        }
        self.clicks += u64::from(known.is_none() && task.enters_maintenance());
        let was_running = known.is_some_and(|known| !known.has_ended());
        if was_running && task.enters_maintenance() && task.state == TaskState::Success {
            let host = task.entity.as_ref().and_then(Moref::host);
            let in_maintenance = host.and_then(|host| self.hosts.get(&host)?.in_maintenance);
            if in_maintenance != Some(true) {
                self.arriving.insert(task.moref.clone());
            }
        }
        self.note_end(&task, was_running);
        if task.enters_maintenance() && !task.has_ended() {
            self.entering.insert(task.moref.clone());
        } else {
            self.entering.remove(&task.moref);
        }
        let moref = Moref::from(&task.moref);
        self.fresher.note(&moref);
        self.changed.extend(task.entity.clone());
        self.changed.insert(moref);
        self.tasks.insert(task.moref.clone(), task);
    }

    /// Notes how a maintenance task ended that was seen running. The newest one counts.
    fn note_end(&mut self, task: &TaskInfo, was_running: bool) {
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
                said: fault.to_string(),
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

    pub(super) fn entering_tasks(&self, host: &Moref) -> impl Iterator<Item = &TaskInfo> {
        let under_way = self.entering.iter().chain(&self.arriving);
        let under_way = under_way.filter_map(|task| self.tasks.get(task));
        under_way.filter(move |task| task.entity.as_ref() == Some(host))
    }

    /// Tasks of hosts are told as their host's `entering`.
    pub(super) fn tell_task(&mut self, task: &TaskRef) -> Option<VsphereUpdate> {
        if self.gone.contains(task) {
            return Some(VsphereUpdate::TaskGone(task.clone()));
        }
        let info = self.tasks.get(task)?;
        let vm = info.entity.as_ref().and_then(Moref::vm);
        if !vm.as_ref().is_some_and(|vm| self.ours.contains(vm)) && !self.awaited.contains(task) {
            return None;
        }
        let whole = Task {
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
        tell(&mut self.told.tasks, task.clone(), whole).map(VsphereUpdate::Task)
    }
}
