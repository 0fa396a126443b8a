//! The property cache: what vCenter reported so far, merged by object, and the updates that follow from
//! it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use self::unreadable::UnreadableObjects;
use super::facts::{HostProperties, unread_vm, with_resources};
use super::properties::{self, COMPUTE, DATASTORE, HOST, VM};
use super::subscription::KnownBefore;
use crate::fault::FaultKind;
use crate::moref::Moref;
use crate::property::{Change, DEVICES, ObjectProperties, Unreadable, Value};
use crate::task::TaskInfo;
use crate::text;
use crate::update::{
    Compute, DatastoreState, DetectionSignal, EnteringMaintenance, Host, PowerState, Task, Vm, VsphereUpdate,
};
use haulout_core::ids::{ComputeRef, DatastoreRef, HostRef, NetworkRef, TaskRef, VmRef};

mod tasks;
#[cfg(test)]
pub(super) mod tests;
mod unreadable;

/// The cache of one subscription. It starts empty.
///
/// Maps that grow with the inventory are hashed: lookups in a tree of 2,500 keys touch more memory.
#[derive(Default)]
pub(crate) struct PropertyCache {
    /// The name of our user in vCenter, if known.
    user: Option<String>,
    hosts: HashMap<HostRef, HostProperties>,
    computes: HashMap<ComputeRef, Compute>,
    vms: HashMap<VmRef, Vm>,
    /// The datastores of VMs that only images in their drives are on.
    of_images: HashMap<VmRef, BTreeSet<DatastoreRef>>,
    /// The datastores of VMs.
    datastores: HashMap<DatastoreRef, Arc<DatastoreState>>,
    /// The names of the networks of VMs.
    networks: HashMap<NetworkRef, Arc<str>>,
    tasks: HashMap<TaskRef, TaskInfo>,
    /// Tasks that put a host into maintenance or standby mode and are queued or running. Each change of
    /// a host needs them, and `tasks` may have thousands of others.
    entering: BTreeSet<TaskRef>,
    ours: BTreeSet<VmRef>,
    awaited: BTreeSet<TaskRef>,
    /// Tasks to read individually.
    to_read: TasksToRead,
    /// Rows of the latest page of the task history whose task was to be read individually. Real vCenters keep unfinished rows of
    /// tasks that do not exist any more; the same row is not read again.
    checked_rows: BTreeSet<TaskRef>,
    /// Awaited tasks that were read individually.
    read_individually: BTreeSet<TaskRef>,
    /// Awaited tasks that vCenter does not know any more.
    gone: BTreeSet<TaskRef>,
    /// Tasks that were reported as unfinished and whose end was missed, until that is reported.
    vanished: BTreeSet<TaskRef>,
    /// Maintenance tasks that succeeded before their host reported maintenance. Task and host are
    /// reported independently, in either order; meanwhile the host must not look as if it had left
    /// maintenance, or its VMs would be powered on.
    arriving: BTreeSet<TaskRef>,
    /// Tasks that a re-read found before a long poll reported them.
    reread: HashSet<TaskRef>,
    /// How many maintenance tasks were seen.
    maintenance_tasks_seen: u64,
    /// Changed objects since the last [`PropertyCache::take_updates`], in an order that depends only on
    /// the changes.
    changed: BTreeSet<Moref>,
    newer: NewerThanReread,
    /// VMs whose power state or host re-reads found changed while the long poll waits. The reply to it may be older than these
    /// re-reads, and then it may also show a state in between: a running VM must not look powered off, or its node would be expected
    /// to boot again.
    relocated_by_reread: HashSet<VmRef>,
    /// A reply differed from such a re-read, so it is not known which of them is newer.
    is_reread_due: bool,
    unreadable: UnreadableObjects,
    sent: SentObjects,
}

/// Tasks to read individually.
#[derive(Default)]
pub(crate) struct TasksToRead {
    /// Awaited ones that succeeded and whose result matters, or that left all lists and may not exist any more.
    pub(crate) awaited: BTreeSet<TaskRef>,
    /// Unfinished ones that only the task history has shown. What it says counts once the task itself was read.
    pub(crate) claimed: BTreeSet<TaskRef>,
}

/// Objects that were reported since the current re-read began, by the stream or by a reading of their own: the re-read may be older.
/// `None` without a re-read.
#[derive(Default)]
struct NewerThanReread(Option<HashSet<Moref>>);

impl NewerThanReread {
    fn add(&mut self, moref: &Moref) {
        if let Some(reported) = &mut self.0 {
            reported.insert(moref.clone());
        }
    }

    fn has(&self, moref: &Moref) -> bool {
        self.0.as_ref().is_some_and(|reported| reported.contains(moref))
    }
}

/// Power state and host of a VM.
#[derive(PartialEq)]
struct VmLocation {
    power: Option<PowerState>,
    host: Option<HostRef>,
}

/// The last update of each object, so that no update is sent twice.
#[derive(Default)]
struct SentObjects {
    hosts: HashMap<HostRef, Arc<Host>>,
    computes: HashMap<ComputeRef, Compute>,
    vms: HashMap<VmRef, Vm>,
    tasks: HashMap<TaskRef, Task>,
}

impl PropertyCache {
    /// The cache for a session of `user`.
    pub(crate) fn new(user: Option<&str>) -> Self {
        Self {
            user: user.map(text::for_people),
            ..Self::default()
        }
    }

    /// Applies a set, or a part of one.
    pub(crate) fn apply(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Upsert(object) => {
                    self.newer.add(&object.moref);
                    let current = self.location(&object.moref);
                    self.upsert(&object);
                    self.keep_location_of_reread(&object.moref, current);
                }
                Change::Gone(moref) => {
                    self.newer.add(&moref);
                    self.remove_object(moref);
                }
            }
        }
    }

    /// The long poll has returned a complete reply; later replies are newer than the last re-read.
    pub(crate) fn poll_caught_up(&mut self) {
        self.relocated_by_reread.clear();
    }

    fn location(&self, moref: &Moref) -> Option<(VmRef, VmLocation)> {
        let vm = moref.vm()?;
        let facts = self.vms.get(&vm)?;
        let (power, host) = (facts.power, facts.host.clone());
        Some((vm, VmLocation { power, host }))
    }

    /// Keeps the location that a re-read found while the long poll waited, and asks for another re-read if the reply has another one.
    fn keep_location_of_reread(&mut self, moref: &Moref, current: Option<(VmRef, VmLocation)>) {
        let Some((vm, current)) = current.filter(|(vm, _)| self.relocated_by_reread.contains(vm)) else {
            return;
        };
        if let Some(facts) = self.vms.get_mut(&vm)
            && (facts.power, &facts.host) != (current.power, &current.host)
        {
            facts.power = current.power;
            facts.host = current.host;
            self.is_reread_due = true;
            self.changed.insert(moref.clone());
        }
    }

    /// Whether the objects have to be read again at once.
    pub(crate) fn is_reread_due(&self) -> bool {
        self.is_reread_due
    }

    /// Starts a re-read: what the stream reports from now on is at least as new.
    pub(crate) fn begin_reread(&mut self) {
        self.newer = NewerThanReread(Some(HashSet::new()));
        self.is_reread_due = false;
    }

    /// Applies a complete re-read, except for objects that the stream reported since it
    /// [began](Self::begin_reread).
    ///
    /// A VM that was read in part stays unknown until the stream reports it, or the next re-read reads it whole: without its UUID and
    /// its devices, an episode would begin with the wrong record.
    ///
    /// A running task of a VM, or one of maintenance, is over if neither its VM or host nor the list view has it any more;
    /// its outcome stays unknown.
    pub(crate) fn merge_reread(&mut self, objects: &[ObjectProperties]) {
        for object in objects {
            let is_unknown = object.moref.vm().is_some_and(|vm| !self.vms.contains_key(&vm));
            let is_whole = object.text("name").is_some();
            if !self.newer.has(&object.moref) && (is_whole || !is_unknown) {
                let before = self.location(&object.moref);
                let new_task = object.moref.task().filter(|task| !self.tasks.contains_key(task));
                self.upsert(object);
                self.reread.extend(new_task);
                let is = self.location(&object.moref);
                if let Some((vm, _)) = before.filter(|before| Some(before) != is.as_ref()) {
                    self.relocated_by_reread.insert(vm);
                }
            }
        }
        let read: BTreeSet<_> = objects.iter().filter_map(|object| object.moref.task()).collect();
        let mut of_vms = HashMap::new();
        for object in objects {
            // An unset list is omitted and empty; a list without permission is reported as missing.
            if object.denied("recentTask").is_some() || self.newer.has(&object.moref) {
                continue;
            }
            let listed = || object.morefs("recentTask").iter().filter_map(Moref::task);
            if object.moref.host().is_some() {
                self.end_unlisted(&object.moref, &listed().collect(), &read);
            } else if object.moref.vm().is_some() {
                of_vms.insert(&object.moref, listed().collect());
            }
        }
        self.end_unlisted_of_vms(&of_vms, &read);
        self.forget_ended(objects);
        self.find_missed(&read);
        self.newer = NewerThanReread(None);
    }

    /// Sets our VMs. One that is not ours any more is reported as gone.
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

    /// Whether vCenter has reported all our VMs.
    pub(crate) fn has_all_vms(&self) -> bool {
        self.ours.iter().all(|vm| self.has_vm(vm))
    }

    pub(crate) fn has_vm(&self, vm: &VmRef) -> bool {
        self.vms.contains_key(vm)
    }

    /// Number of cached objects.
    pub(crate) fn size(&self) -> usize {
        self.hosts.len()
            + self.computes.len()
            + self.vms.len()
            + self.datastores.len()
            + self.networks.len()
            + self.tasks.len()
    }

    pub(in crate::updates) fn known_before_reread(&self) -> KnownBefore {
        let is_unreported = |vm: &&VmRef| !self.vms.contains_key(*vm);
        KnownBefore {
            has_hosts: !self.hosts.is_empty(),
            unreported: self.ours.iter().filter(is_unreported).cloned().collect(),
        }
    }

    /// The clusters of our VMs.
    pub(crate) fn computes_of_ours(&self) -> BTreeSet<ComputeRef> {
        let ours = self.ours.iter().filter_map(|vm| self.vms.get(vm));
        let hosts = ours.filter_map(|vm| self.hosts.get(vm.host.as_ref()?));
        hosts.filter_map(|host| host.compute.clone()).collect()
    }

    pub(crate) fn hosts_of(&self, computes: &BTreeSet<ComputeRef>) -> BTreeSet<HostRef> {
        let is_one = |facts: &HostProperties| facts.compute.as_ref().is_some_and(|it| computes.contains(it));
        let hosts = self.hosts.iter().filter(|(_, facts)| is_one(facts));
        hosts.map(|(moref, _)| moref.clone()).collect()
    }

    /// The updates since the last call, as complete objects.
    pub(crate) fn take_updates(&mut self) -> Vec<VsphereUpdate> {
        let mut updates = Vec::new();
        for moref in std::mem::take(&mut self.changed) {
            let update = if let Some(host) = moref.host() {
                self.host_update(host)
            } else if let Some(vm) = moref.vm() {
                self.vm_update(vm)
            } else if let Some(compute) = moref.compute() {
                self.compute_update(compute)
            } else if let Some(task) = moref.task() {
                self.task_update(&task)
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
            self.unreadable
                .log_once(Some(moref), &format!("{path}: {}", fault.message));
        }
        if let Some(host) = moref.host() {
            let facts = self.hosts.entry(host).or_default();
            values(object).for_each(|(path, value)| properties::set(facts, HOST, path, value));
            if facts.in_maintenance == Some(true) {
                facts.last_end = None;
                self.has_arrived(moref);
            }
        } else if let Some(vm) = moref.vm() {
            if let Some((_, devices)) = values(object).find(|(path, _)| *path == DEVICES) {
                let hardware = devices.and_then(Value::hardware);
                let of_images = hardware.map(|hardware| hardware.of_images.clone());
                self.of_images.insert(vm.clone(), of_images.unwrap_or_default());
            }
            let vm = self.vms.entry(vm.clone()).or_insert_with(|| unread_vm(vm));
            values(object).for_each(|(path, value)| properties::set(vm, VM, path, value));
        } else if let Some(compute) = moref.compute() {
            let unread = Compute {
                moref: compute.clone(),
                name: None,
                drs: None,
                rules: Arc::default(),
            };
            let compute = self.computes.entry(compute).or_insert(unread);
            values(object).for_each(|(path, value)| properties::set(compute, COMPUTE, path, value));
        } else if let Some(datastore) = moref.datastore() {
            let state = Arc::make_mut(self.datastores.entry(datastore.clone()).or_default());
            values(object).for_each(|(path, value)| properties::set(state, DATASTORE, path, value));
            self.mark_users(|vm| vm.datastores.contains(&datastore));
        } else if let Some(network) = moref.network() {
            let name = object.text("name").map(text::inventory_name);
            self.set_network_name(network, name.map(Into::into));
        } else if let Some(task) = moref.task() {
            self.apply_task(&task, object);
        } else if moref.kind == "TaskHistoryCollector" {
            self.apply_history_page(object);
        }
        self.changed.insert(moref.clone());
    }

    /// Marks the VMs that use something that has changed.
    fn mark_users(&mut self, uses: impl Fn(&Vm) -> bool) {
        let users = self.vms.iter().filter(|(_, vm)| uses(vm));
        self.changed.extend(users.map(|(vm, _)| Moref::from(vm)));
    }

    fn set_network_name(&mut self, network: NetworkRef, name: Option<Arc<str>>) {
        self.mark_users(|vm| vm.networks.contains_key(&network));
        match name {
            Some(name) => self.networks.insert(network, name),
            None => self.networks.remove(&network),
        };
    }

    /// Logs objects that could not be read. Their cached state stays.
    pub(crate) fn note_unreadable(&mut self, objects: &[Unreadable]) {
        for object in objects {
            self.unreadable.log_once(object.moref.as_ref(), &object.why);
        }
    }

    fn remove_object(&mut self, moref: Moref) {
        if let Some(host) = moref.host() {
            self.hosts.remove(&host);
        } else if let Some(vm) = moref.vm() {
            self.vms.remove(&vm);
            self.of_images.remove(&vm);
        } else if let Some(compute) = moref.compute() {
            self.computes.remove(&compute);
        } else if let Some(datastore) = moref.datastore() {
            self.datastores.remove(&datastore);
            self.mark_users(|vm| vm.datastores.contains(&datastore));
        } else if let Some(network) = moref.network() {
            self.set_network_name(network, None);
        } else if let Some(task) = moref.task() {
            self.task_unlisted(task);
            return;
        }
        self.changed.insert(moref);
    }

    fn host_update(&mut self, host: HostRef) -> Option<VsphereUpdate> {
        let Some(facts) = self.hosts.get(&host) else {
            let known = self.sent.hosts.remove(&host).is_some();
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
        let standby = self.standby_task(&Moref::from(&host));
        let entered = match facts.in_maintenance {
            Some(true) => self.maintenance_asked_at(&Moref::from(&host)),
            Some(false) | None => None,
        };
        let object = Arc::new(facts.object(&host, entering, entered, standby));
        if_changed(&mut self.sent.hosts, host, &object).map(VsphereUpdate::Host)
    }

    fn vm_update(&mut self, vm: VmRef) -> Option<VsphereUpdate> {
        let Some(facts) = self.vms.get(&vm).filter(|_| self.ours.contains(&vm)) else {
            let known = self.sent.vms.remove(&vm).is_some();
            return known.then_some(VsphereUpdate::VmGone(vm));
        };
        let named = with_resources(facts, self.of_images.get(&vm), &self.datastores, &self.networks);
        if_changed(&mut self.sent.vms, vm, &named).map(VsphereUpdate::Vm)
    }

    fn compute_update(&mut self, compute: ComputeRef) -> Option<VsphereUpdate> {
        let Some(facts) = self.computes.get(&compute) else {
            let known = self.sent.computes.remove(&compute).is_some();
            return known.then_some(VsphereUpdate::ComputeGone(compute));
        };
        if_changed(&mut self.sent.computes, compute, facts).map(VsphereUpdate::Compute)
    }
}

/// Path and value of all reported properties; `None` if unset or unreadable.
fn values(object: &ObjectProperties) -> impl Iterator<Item = (&str, Option<&Value>)> {
    let missing = object.missing.iter().map(|(path, _)| (path.as_str(), None));
    let read = object.properties.iter();
    missing.chain(read.map(|(path, value)| (path.as_str(), value.as_ref())))
}

/// Returns `object` if it differs from the last update.
fn if_changed<K: Eq + Hash, V: Clone + PartialEq>(sent: &mut HashMap<K, V>, key: K, object: &V) -> Option<V> {
    if sent.get(&key) == Some(object) {
        return None;
    }
    sent.insert(key, object.clone());
    Some(object.clone())
}
