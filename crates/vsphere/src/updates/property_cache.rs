//! The shadow: what vCenter has told so far, merged object by object, and the whole objects that follow from it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use self::complaints::UnreadableObjects;
use self::facts::{ComputeProperties, HostProperties, VmProperties};
use crate::fault::FaultKind;
use crate::moref::Moref;
use crate::property::{Change, ObjectProperties, Unreadable, Value};
use crate::task::TaskInfo;
use crate::text;
use crate::update::{
    Compute, DetectionSignal, EnteringMaintenance, Host, PowerState, Task, Vm, VsphereUpdate,
};
use haulout_core::ids::{ComputeRef, HostRef, TaskRef, VmRef};

mod complaints;
mod facts;
mod tasks;

/// The shadow of one feed. It starts empty with each.
///
/// What grows with vCenter is hashed: a tree compares each key on the way with the one that is looked for, whose text lies
/// elsewhere in memory, and of 2,500 hosts that is two dozen places where one or two are enough.
#[derive(Default)]
pub(crate) struct PropertyCache {
    /// How vCenter calls us, where it has told.
    user: Option<String>,
    hosts: HashMap<HostRef, HostProperties>,
    computes: HashMap<ComputeRef, ComputeProperties>,
    vms: HashMap<VmRef, VmProperties>,
    tasks: HashMap<TaskRef, TaskInfo>,
    /// Those of `tasks` that put a host into maintenance and are queued or running: each change of a host asks for these, and the
    /// hosts of a busy vCenter may list thousands of others.
    entering: BTreeSet<TaskRef>,
    ours: BTreeSet<VmRef>,
    awaited: BTreeSet<TaskRef>,
    /// Awaited tasks that are to be read by themselves: they succeeded, and what they did is in their result; or they left all lists,
    /// and may not exist any more.
    to_look_at: BTreeSet<TaskRef>,
    /// Awaited tasks that were.
    looked_at: BTreeSet<TaskRef>,
    /// Awaited tasks that vCenter does not know any more.
    gone: BTreeSet<TaskRef>,
    /// Maintenance tasks that ended well while their host does not tell that it is in maintenance. The end of the task
    /// and the state of the host come on two ways, in either order; between the two the host must not look as if it had
    /// come out of maintenance, or its VMs would be powered on.
    arriving: BTreeSet<TaskRef>,
    /// Tasks that a re-read found before a long poll told of them.
    reread: HashSet<TaskRef>,
    /// How many maintenance tasks were heard of for the first time.
    clicks: u64,
    /// What has to be looked at before the next telling, in an order that is the same for the same changes.
    changed: BTreeSet<Moref>,
    fresher: NewerThanReread,
    /// What a re-read has found changed of a VM while a question of the long poll stands, as it was before. The answer to
    /// that question may have been made earlier and still tell of it: a VM that is on must not look off for a moment, or
    /// its node would be waited for to boot once more.
    superseded: HashMap<VmRef, VmLocations>,
    complaints: UnreadableObjects,
    told: CacheChange,
}

/// What the stream has told since the re-read that is under way began, which may be older; nothing while none is.
#[derive(Default)]
struct NewerThanReread(Option<HashSet<Moref>>);

impl NewerThanReread {
    fn note(&mut self, moref: &Moref) {
        if let Some(told) = &mut self.0 {
            told.insert(moref.clone());
        }
    }

    fn has(&self, moref: &Moref) -> bool {
        self.0.as_ref().is_some_and(|told| told.contains(moref))
    }
}

/// Whether a VM runs, and where.
#[derive(Clone, PartialEq)]
struct VmLocations {
    power: Option<PowerState>,
    host: Option<HostRef>,
}

/// What was told last of each object, so that nothing is told twice.
#[derive(Default)]
struct CacheChange {
    hosts: HashMap<HostRef, Arc<Host>>,
    computes: HashMap<ComputeRef, Compute>,
    vms: HashMap<VmRef, Vm>,
    tasks: HashMap<TaskRef, Task>,
}

impl PropertyCache {
    /// The shadow of a feed whose session vCenter calls `user`'s.
    pub(crate) fn of(user: Option<&str>) -> Self {
        Self {
            user: user.map(text::for_people),
            ..Self::default()
        }
    }

    /// Takes a set that is complete, or one part of it.
    pub(crate) fn apply(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Upsert(object) => {
                    self.fresher.note(&object.moref);
                    let standing = self.whereabouts(&object.moref);
                    self.upsert(&object);
                    self.unless_superseded(&object.moref, standing);
                }
                Change::Gone(moref) => {
                    self.fresher.note(&moref);
                    self.gone(moref);
                }
            }
        }
    }

    /// The long poll has answered in full: whatever it tells next, it made after this.
    pub(crate) fn caught_up(&mut self) {
        self.superseded.clear();
    }

    fn whereabouts(&self, moref: &Moref) -> Option<(VmRef, VmLocations)> {
        let vm = moref.vm()?;
        let facts = self.vms.get(&vm)?;
        let (power, host) = (facts.power, facts.host.clone());
        Some((vm, VmLocations { power, host }))
    }

    /// Takes back what the long poll told late of a VM: what stood before a re-read told otherwise.
    fn unless_superseded(&mut self, moref: &Moref, standing: Option<(VmRef, VmLocations)>) {
        let Some((vm, standing)) = standing else { return };
        let (Some(before), Some(facts)) = (self.superseded.get(&vm), self.vms.get_mut(&vm)) else {
            return;
        };
        if facts.power == before.power {
            facts.power = standing.power;
        }
        if facts.host == before.host {
            facts.host = standing.host;
        }
        self.changed.insert(moref.clone());
    }

    /// A re-read begins: what the stream tells from here on is at least as fresh.
    pub(crate) fn begin_reread(&mut self) {
        self.fresher = NewerThanReread(Some(HashSet::new()));
    }

    /// Takes a complete re-read, less what the stream has told since it [began](Self::begin_reread).
    ///
    /// A maintenance task that ran is over where neither its host lists it nor the view in which it is followed, though nobody told
    /// how.
    pub(crate) fn merge_reread(&mut self, objects: &[ObjectProperties]) {
        for object in objects {
            if !self.fresher.has(&object.moref) {
                let before = self.whereabouts(&object.moref);
                let unheard = object.moref.task().filter(|task| !self.tasks.contains_key(task));
                self.upsert(object);
                self.reread.extend(unheard);
                let is = self.whereabouts(&object.moref);
                if let Some((vm, before)) = before.filter(|before| Some(before) != is.as_ref()) {
                    self.superseded.entry(vm).or_insert(before);
                }
            }
        }
        let read: BTreeSet<_> = objects.iter().filter_map(|object| object.moref.task()).collect();
        for object in objects {
            // A list that is unset is left out, and is empty; one that may not be read is named as missing.
            let is_known = object.moref.host().is_some() && object.denied("recentTask").is_none();
            if !is_known || self.fresher.has(&object.moref) {
                continue;
            }
            let listed = object
                .morefs("recentTask")
                .iter()
                .filter_map(Moref::task)
                .collect();
            self.end_unlisted(&object.moref, &listed, &read);
        }
        self.forget_ended(objects);
        self.look_for(&read);
        self.fresher = NewerThanReread(None);
    }

    /// Says which VMs are ours. One that is ours no more is told gone.
    pub(crate) fn set_ours(&mut self, ours: BTreeSet<VmRef>) {
        for vm in self.ours.symmetric_difference(&ours) {
            let moref = Moref::from(vm);
            let tasks = self
                .tasks
                .values()
                .filter(|task| task.entity.as_ref() == Some(&moref));
            self.changed.extend(tasks.map(|task| Moref::from(&task.moref)));
            self.changed.insert(moref);
        }
        self.ours = ours;
    }

    /// Whether every VM of ours has been told of by vCenter.
    pub(crate) fn is_whole(&self) -> bool {
        self.ours.iter().all(|vm| self.vms.contains_key(vm))
    }

    /// How many objects it holds.
    pub(crate) fn size(&self) -> usize {
        self.hosts.len() + self.computes.len() + self.vms.len() + self.tasks.len()
    }

    /// Whether there is any host.
    pub(crate) fn knows_hosts(&self) -> bool {
        !self.hosts.is_empty()
    }

    /// The clusters where VMs of ours stand.
    pub(crate) fn computes_of_ours(&self) -> BTreeSet<ComputeRef> {
        let ours = self.ours.iter().filter_map(|vm| self.vms.get(vm));
        let hosts = ours.filter_map(|vm| self.hosts.get(vm.host.as_ref()?));
        hosts.filter_map(|host| host.compute.clone()).collect()
    }

    /// The hosts of `computes`.
    pub(crate) fn hosts_of(&self, computes: &BTreeSet<ComputeRef>) -> BTreeSet<HostRef> {
        let is_one = |facts: &HostProperties| facts.compute.as_ref().is_some_and(|it| computes.contains(it));
        let hosts = self.hosts.iter().filter(|(_, facts)| is_one(facts));
        hosts.map(|(moref, _)| moref.clone()).collect()
    }

    /// What changed for those who listen, as whole objects.
    pub(crate) fn tell(&mut self) -> Vec<VsphereUpdate> {
        let mut updates = Vec::new();
        for moref in std::mem::take(&mut self.changed) {
            let update = if let Some(host) = moref.host() {
                self.tell_host(host)
            } else if let Some(vm) = moref.vm() {
                self.tell_vm(vm)
            } else if let Some(compute) = moref.compute() {
                self.tell_compute(compute)
            } else if let Some(task) = moref.task() {
                self.tell_task(&task)
            } else {
                None
            };
            updates.extend(update);
        }
        updates
    }

    fn upsert(&mut self, object: &ObjectProperties) {
        let moref = &object.moref;
        let mut missing = object.missing.iter();
        if let Some((path, fault)) = missing.find(|(_, fault)| fault.kind == FaultKind::Unreadable) {
            self.complaints
                .note(Some(moref), &format!("{path}: {}", fault.said));
        }
        if let Some(host) = moref.host() {
            let facts = self.hosts.entry(host).or_default();
            told(object).for_each(|(path, value)| facts.set(path, value));
            if facts.in_maintenance == Some(true) {
                facts.last_end = None;
                self.has_arrived(moref);
            }
        } else if let Some(vm) = moref.vm() {
            let facts = self.vms.entry(vm).or_default();
            told(object).for_each(|(path, value)| facts.set(path, value));
        } else if let Some(compute) = moref.compute() {
            let facts = self.computes.entry(compute).or_default();
            told(object).for_each(|(path, value)| facts.set(path, value));
        } else if let Some(task) = moref.task() {
            self.task_told(&task, object);
        } else if moref.kind == "TaskHistoryCollector" {
            self.page(object);
        }
        self.changed.insert(moref.clone());
    }

    /// Takes note of objects that could not be read. What is known of them stays as it was.
    pub(crate) fn note_unreadable(&mut self, objects: &[Unreadable]) {
        for object in objects {
            self.complaints.note(object.moref.as_ref(), &object.why);
        }
    }

    fn gone(&mut self, moref: Moref) {
        if let Some(host) = moref.host() {
            self.hosts.remove(&host);
        } else if let Some(vm) = moref.vm() {
            self.vms.remove(&vm);
        } else if let Some(compute) = moref.compute() {
            self.computes.remove(&compute);
        } else if let Some(task) = moref.task() {
            self.task_left(task);
            return;
        }
        self.changed.insert(moref);
    }

    fn tell_host(&mut self, host: HostRef) -> Option<VsphereUpdate> {
        let Some(facts) = self.hosts.get(&host) else {
            let known = self.told.hosts.remove(&host).is_some();
            return known.then_some(VsphereUpdate::HostGone(host));
        };
        let latest = self
            .entering_tasks(&Moref::from(&host))
            .max_by_key(|task| (task.queued_at, &task.moref));
        let entering = latest.map(|task| EnteringMaintenance {
            task: task.moref.clone(),
            queued_at: task.queued_at,
            user: task.user.clone(),
            signal: if self.reread.contains(&task.moref) {
                DetectionSignal::Reread
            } else {
                DetectionSignal::Push
            },
        });
        let whole = Arc::new(facts.whole(&host, entering));
        tell(&mut self.told.hosts, host, whole).map(VsphereUpdate::Host)
    }

    fn tell_vm(&mut self, vm: VmRef) -> Option<VsphereUpdate> {
        let Some(facts) = self.vms.get(&vm).filter(|_| self.ours.contains(&vm)) else {
            let known = self.told.vms.remove(&vm).is_some();
            return known.then_some(VsphereUpdate::VmGone(vm));
        };
        let whole = facts.whole(&vm);
        tell(&mut self.told.vms, vm, whole).map(VsphereUpdate::Vm)
    }

    fn tell_compute(&mut self, compute: ComputeRef) -> Option<VsphereUpdate> {
        let Some(facts) = self.computes.get(&compute) else {
            let known = self.told.computes.remove(&compute).is_some();
            return known.then_some(VsphereUpdate::ComputeGone(compute));
        };
        let whole = Compute {
            moref: compute.clone(),
            name: facts.name.clone(),
            drs: facts.drs.clone(),
        };
        tell(&mut self.told.computes, compute, whole).map(VsphereUpdate::Compute)
    }
}

/// Path and value of all that is told of an object; `None` where it is unset or unreadable.
fn told(object: &ObjectProperties) -> impl Iterator<Item = (&str, Option<&Value>)> {
    let missing = object.missing.iter().map(|(path, _)| (path.as_str(), None));
    let read = object.properties.iter();
    missing.chain(read.map(|(path, value)| (path.as_str(), value.as_ref())))
}

/// Gives `whole` where it differs from what was told last.
fn tell<K: Eq + Hash, V: Clone + PartialEq>(told: &mut HashMap<K, V>, key: K, whole: V) -> Option<V> {
    if told.get(&key) == Some(&whole) {
        return None;
    }
    told.insert(key, whole.clone());
    Some(whole)
}
