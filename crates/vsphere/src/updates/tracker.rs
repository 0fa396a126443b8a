//! The state of one subscription: what was received, what was sent, and what to refresh outside of the
//! poll.
//!
//! [`super::Stream`] calls it in this order. First [`Tracker::begin_refresh`] of all keys, [`Refresh::run`] and
//! [`Tracker::apply_refresh`], so that the first set has our VMs. Then [`Tracker::poll`] and [`Tracker::apply_set`], again and
//! again. Beside the poll there is at most one refresh at a time, after [`Tracker::needs_refresh`],
//! [`Tracker::deferred_keys_due`], a changed watch set or the time of a re-read, and at most one poll of the history
//! ([`Tracker::history_poll`], [`Tracker::end_history_poll`]). [`Tracker::updates_outside_poll`] follows each of both.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Instant;

use self::refresh::LookupResults;
pub(super) use self::refresh::{Refresh, RefreshDone, Scope};
use super::history::{self, TaskHistory};
use super::pace::{LookupPace, next_in_turn};
use super::property_cache::{PropertyCache, TasksToRead};
use super::subscription::Subscription;
use crate::error::Error;
use crate::moref::Moref;
use crate::property::UpdateSet;
use crate::update::{LookupUrgency, Vm, VmKey, VsphereUpdate, WatchSet};
use haulout_core::ids::{ComputeRef, HostRef, TaskRef, VmRef};

mod refresh;
#[cfg(test)]
mod tests;

/// How many keys one re-read looks up again, in turn. With a re-read every 30 s that is 120 searches a minute (two byte orders each),
/// for any number of nodes.
const RECHECKS_PER_REREAD: usize = 30;

/// A call in progress.
pub(super) type StreamWork<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// The state of one subscription.
pub(super) struct Tracker {
    subscription: Arc<Subscription>,
    history: Arc<TaskHistory>,
    version: String,
    history_version: String,
    cache: PropertyCache,
    lookups: LookupResults,
    /// VMs and tasks in the list view of the subscription, without the device hosts.
    listed: BTreeSet<Moref>,
    /// Hosts in the list view because of their devices. We remove none: a host that leaves only this filter
    /// looks like a deleted one.
    device_hosts: BTreeSet<HostRef>,
    /// There may be more device hosts.
    device_hosts_due: bool,
    /// Maintenance tasks in the list view.
    listed_maintenances: BTreeSet<TaskRef>,
    /// The clusters of our VMs at the last refresh.
    computes: BTreeSet<ComputeRef>,
    /// A complete set was received.
    pub(super) initial_set_received: bool,
    /// The lookup results that were sent.
    sent_lookups: LookupResults,
    /// The keys that match a VM outside the scope.
    keys_outside_scope: BTreeSet<VmKey>,
    sent_keys_outside_scope: BTreeSet<VmKey>,
    /// `lookups` differs from `sent_lookups`. It is compared after a refresh only, so that a change of
    /// a host does not cost a walk over all VMs.
    lookups_changed: bool,
    /// Updates were sent without a `Settled` after them.
    settled_due: bool,
    /// Keys whose result a deleted or changed VM made stale.
    stale_keys: BTreeSet<VmKey>,
    /// The urgency of each key at the last refresh.
    urgency: BTreeMap<VmKey, LookupUrgency>,
    /// [`WatchSet::kept_off`] at the last refresh.
    kept_off: BTreeSet<VmRef>,
    /// The last key that a re-read looked up again.
    last_rechecked_key: Option<VmKey>,
    /// The last key that was looked up for the first time.
    last_new_key: Option<VmKey>,
    pace: LookupPace,
    /// New keys wait because of the pace.
    keys_deferred: bool,
    /// What an incomplete set has so far.
    parts: SetParts,
    /// A host itself pushed the newest maintenance task, which the API does not guarantee. While that
    /// holds, the history adds nothing and is not polled.
    pub(super) hosts_push: bool,
}

/// The size of an incomplete set.
#[derive(Default)]
struct SetParts {
    parts: usize,
    objects: usize,
}

impl Tracker {
    pub(super) fn new(subscription: Arc<Subscription>) -> Self {
        Self {
            version: String::new(),
            history_version: String::new(),
            cache: PropertyCache::new(subscription.objects.session.user.as_deref()),
            lookups: LookupResults::new(),
            listed: BTreeSet::new(),
            device_hosts: BTreeSet::new(),
            device_hosts_due: false,
            listed_maintenances: BTreeSet::new(),
            computes: BTreeSet::new(),
            initial_set_received: false,
            sent_lookups: LookupResults::new(),
            keys_outside_scope: BTreeSet::new(),
            sent_keys_outside_scope: BTreeSet::new(),
            lookups_changed: false,
            settled_due: false,
            stale_keys: BTreeSet::new(),
            urgency: BTreeMap::new(),
            kept_off: BTreeSet::new(),
            last_rechecked_key: None,
            last_new_key: None,
            pace: LookupPace::new(Instant::now()),
            keys_deferred: false,
            parts: SetParts::default(),
            hosts_push: false,
            history: Arc::new(TaskHistory::of(&subscription)),
            subscription,
        }
    }

    pub(super) fn poll(&self) -> StreamWork<Option<UpdateSet>> {
        let (subscription, version) = (self.subscription.clone(), self.version.clone());
        Box::pin(async move { subscription.wait(&version).await })
    }

    pub(super) fn history_poll(&self) -> StreamWork<Option<UpdateSet>> {
        let (history, version) = (self.history.clone(), self.history_version.clone());
        Box::pin(async move { history.wait(&version).await })
    }

    /// Applies the result of a poll of the history. Returns the poll of a new one, if this one cannot be read.
    pub(super) fn end_history_poll(
        &mut self,
        page: Result<Option<UpdateSet>, Error>,
    ) -> Result<Option<StreamWork<Option<UpdateSet>>>, Error> {
        match page {
            Ok(page) => {
                self.apply_history_page(page);
                Ok(None)
            }
            Err(error) => self.restart_history(error).map(Some),
        }
    }

    /// Replaces a history whose page cannot be read, after a pause: the old one would return the same
    /// page.
    fn restart_history(&mut self, error: Error) -> Result<StreamWork<Option<UpdateSet>>, Error> {
        if !history::affects_history_only(&error) {
            return Err(error);
        }
        tracing::warn!(
            error = %error.chain(),
            "the task history cannot be read; the stream continues without it and retries later"
        );
        let old = std::mem::replace(&mut self.history, Arc::new(TaskHistory::of(&self.subscription)));
        self.history_version = String::new();
        let again = self.history_poll();
        Ok(Box::pin(async move {
            old.destroy_and_pause().await;
            again.await
        }))
    }

    pub(super) fn begin_refresh(&mut self, watch_set: WatchSet, scope: Scope) -> Refresh {
        self.cache.set_awaited(watch_set.tasks.clone());
        if scope == Scope::Reread {
            self.cache.begin_reread();
        }
        let keys = match scope {
            Scope::AllKeys => BTreeSet::clone(&watch_set.vms),
            Scope::Changed => self.keys_to_look_up(&watch_set),
            Scope::Reread => self
                .keys_to_look_up(&watch_set)
                .into_iter()
                .chain(self.keys_to_recheck(&watch_set))
                .collect(),
        };
        self.stale_keys.clear();
        self.device_hosts_due = false;
        self.computes = self.cache.computes_of_ours();
        // Counted from now on, because vCenter may report them before the refresh ends.
        let wanted = self.cache.hosts_of(&self.computes);
        let device_hosts = wanted.difference(&self.device_hosts).cloned().collect();
        self.device_hosts.extend(wanted);
        self.urgency.clone_from(&watch_set.urgent);
        self.kept_off.clone_from(&watch_set.kept_off);
        self.listed_maintenances = self.cache.followed().cloned().collect();
        let TasksToRead { awaited, claimed } = self.cache.take_tasks_to_read();
        Refresh {
            subscription: self.subscription.clone(),
            watch_set,
            scope,
            keys,
            lookups: self.lookups.clone(),
            listed: self.listed.clone(),
            device_hosts,
            listed_maintenances: self.listed_maintenances.clone(),
            gone: self.cache.gone_tasks(),
            tasks: awaited,
            claimed,
            known: self.cache.known_before_reread(),
        }
    }

    /// Stale keys, keys that became more urgent or whose VM counts in or out of scope by now, and new keys as far as the pace allows.
    /// New keys take turns, so that a node which reports new keys all the time does not block the keys of others.
    fn keys_to_look_up(&mut self, watch_set: &WatchSet) -> BTreeSet<VmKey> {
        let (known, new): (Vec<&VmKey>, Vec<&VmKey>) = watch_set
            .vms
            .iter()
            .partition(|key| self.lookups.contains_key(*key));
        let allowed = self.pace.take(new.len(), Instant::now());
        self.keys_deferred = allowed < new.len();
        let mut keys = next_in_turn(&new, allowed, &mut self.last_new_key);
        let has_more = !watch_set.kept_off.is_subset(&self.kept_off);
        let is_released = |vm: &VmRef| self.kept_off.contains(vm) && !watch_set.kept_off.contains(vm);
        let needs_lookup = |key: &&&VmKey| {
            self.stale_keys.contains(**key)
                || watch_set.urgent.get(**key) > self.urgency.get(**key)
                || (has_more && self.keys_outside_scope.contains(**key))
                || self
                    .lookups
                    .get(**key)
                    .is_some_and(|vms| vms.iter().any(is_released))
        };
        keys.extend(known.iter().filter(needs_lookup).map(|key| (*key).clone()));
        keys
    }

    /// When deferred keys may be looked up; `None` without any.
    pub(super) fn deferred_keys_due(&self) -> Option<Instant> {
        self.keys_deferred.then(|| self.pace.next())
    }

    /// The next keys, in turn, whose result may change without a push: those without exactly one VM (none, several, or not looked up
    /// yet), those whose VM is not reported, because it may have gone before it was ours, and urgent ones. A clone of a VM whose node
    /// stays in service matters only when the key becomes urgent.
    fn keys_to_recheck(&mut self, watch_set: &WatchSet) -> BTreeSet<VmKey> {
        let is_one = |key: &VmKey| {
            let vms = self.lookups.get(key).filter(|vms| vms.len() == 1);
            vms.is_some_and(|vms| vms.iter().all(|vm| self.cache.has_vm(vm)))
        };
        let keys: Vec<&VmKey> = watch_set
            .vms
            .iter()
            .filter(|key| !is_one(key) || watch_set.urgent.contains_key(*key))
            .collect();
        next_in_turn(&keys, RECHECKS_PER_REREAD, &mut self.last_rechecked_key)
    }

    /// Applies a reply of the long poll. Returns the updates to send; none before a set is complete.
    ///
    /// # Errors
    /// If a set has too many parts, or vCenter reports more objects than it can hold.
    pub(super) fn apply_set(
        &mut self,
        set: Option<UpdateSet>,
        synced: &mut bool,
    ) -> Result<Vec<VsphereUpdate>, Error> {
        let Some(set) = set else {
            self.cache.poll_caught_up();
            return Ok(Vec::new());
        };
        self.parts.parts += 1;
        self.parts.objects += set.changes.len() + set.unreadable.len();
        self.version = set.version;
        self.cache.note_unreadable(&set.unreadable);
        let adds_maintenance_task = self.adds_maintenance_task(|cache| cache.apply(set.changes));
        // A first set lists existing tasks, which were not pushed.
        self.hosts_push |= *synced && adds_maintenance_task;
        let SetParts { parts, objects } = self.parts;
        self.subscription
            .check_limits(parts, objects.max(self.cache.size()))?;
        if set.truncated {
            return Ok(Vec::new());
        }
        self.parts = SetParts::default();
        self.cache.poll_caught_up();
        self.initial_set_received = true;
        // The first set is held back until every host that could take one of our VMs is in the list view: only then does vCenter report
        // its devices.
        if !*synced
            && !self
                .cache
                .hosts_of(&self.cache.computes_of_ours())
                .is_subset(&self.device_hosts)
        {
            self.device_hosts_due = true;
            return Ok(Vec::new());
        }
        Ok(self.complete_set(synced))
    }

    /// The updates of a complete set: with `Reset` first if it is the first one, and with `Settled` last.
    pub(super) fn complete_set(&mut self, synced: &mut bool) -> Vec<VsphereUpdate> {
        let mut updates = self.take_updates();
        if !std::mem::replace(synced, true) {
            updates.insert(0, VsphereUpdate::Reset);
        } else if updates.is_empty() && !self.settled_due {
            return updates;
        }
        updates.push(VsphereUpdate::Settled);
        self.settled_due = false;
        updates
    }

    /// Whether all hosts and VMs have to be read again at once.
    pub(super) fn needs_reread(&self) -> bool {
        self.cache.is_reread_due()
    }

    /// Whether a refresh is needed at once.
    pub(super) fn needs_refresh(&self) -> bool {
        let follows = self.cache.followed().eq(&self.listed_maintenances);
        self.device_hosts_due || !self.stale_keys.is_empty() || self.cache.has_tasks_to_read() || !follows
    }

    /// Notes what `updates` ask of the next refresh.
    fn note_changes(&mut self, updates: &[VsphereUpdate]) {
        for update in updates {
            match update {
                VsphereUpdate::VmGone(vm) => self.mark_stale_keys(vm),
                // vCenter takes what it does not have out of the list view. It may come back.
                VsphereUpdate::HostGone(host) => {
                    self.device_hosts.remove(host);
                }
                VsphereUpdate::Vm(vm) => {
                    self.note_device_hosts(vm.host.as_ref());
                    if !self.has_key_of(vm) {
                        self.mark_stale_keys(&vm.moref);
                    }
                }
                VsphereUpdate::Host(host) => {
                    let joined = |compute| self.computes.contains(compute);
                    let is_of_ours = host.compute.as_ref().is_some_and(joined);
                    self.note_device_hosts(is_of_ours.then_some(&host.moref));
                }
                VsphereUpdate::Reset
                | VsphereUpdate::Compute(_)
                | VsphereUpdate::ComputeGone(_)
                | VsphereUpdate::Task(_)
                | VsphereUpdate::TaskGone(_)
                | VsphereUpdate::Found { .. }
                | VsphereUpdate::OutOfScope { .. }
                | VsphereUpdate::EvacuationPolicies { .. }
                | VsphereUpdate::Settled
                | VsphereUpdate::Lost { .. } => {}
            }
        }
    }

    /// Marks the lookup results with `vm` as stale: it was deleted, or its UUID and name match none of our keys.
    fn mark_stale_keys(&mut self, vm: &VmRef) {
        let named = self.lookups.iter().filter(|(_, vms)| vms.contains(vm));
        self.stale_keys.extend(named.map(|(key, _)| key.clone()));
    }

    /// Notes that device hosts are due if `host` is not one yet. It has a VM of ours, or belongs to the cluster of one.
    fn note_device_hosts(&mut self, host: Option<&HostRef>) {
        self.device_hosts_due |= host.is_some_and(|host| !self.device_hosts.contains(host));
    }

    /// Whether one of our keys matches the UUID or the name of this VM. A VM whose UUID is not known counts as a match: nothing shows
    /// that its lookup result is stale, and it would be looked up again at each change.
    fn has_key_of(&self, vm: &Vm) -> bool {
        let Some(uuid) = vm.uuid else { return true };
        let uuids = [uuid, uuid.swapped()].map(VmKey::Uuid);
        let mut keys = uuids.into_iter().chain(vm.name.clone().map(VmKey::Name));
        keys.any(|key| self.lookups.contains_key(&key))
    }

    /// Whether `apply` adds a maintenance task that was not known.
    fn adds_maintenance_task(&mut self, apply: impl FnOnce(&mut PropertyCache)) -> bool {
        let before = self.cache.maintenance_tasks_seen();
        apply(&mut self.cache);
        self.cache.maintenance_tasks_seen() != before
    }

    /// Applies a page of the task history.
    pub(super) fn apply_history_page(&mut self, set: Option<UpdateSet>) {
        if let Some(set) = set {
            self.history_version = set.version;
            self.cache.note_unreadable(&set.unreadable);
            self.cache.apply(set.changes);
        }
    }

    /// Applies the result of a [`Refresh`]. A result whose urgency is still current is sent even if it
    /// did not change; a key that became more urgent meanwhile is looked up again.
    pub(super) fn apply_refresh(&mut self, done: RefreshDone, urgency: &BTreeMap<VmKey, LookupUrgency>) {
        self.cache
            .set_ours(done.lookups.values().flatten().cloned().collect());
        for (key, urgency) in urgency {
            if done.looked_up.contains(key) && done.urgency.get(key) == Some(urgency) {
                // Forgotten, so that it is sent although it is unchanged: an answer of this urgency is waited for.
                self.sent_lookups.remove(key);
            }
        }
        self.keys_outside_scope
            .retain(|key| done.lookups.contains_key(key) && !done.looked_up.contains(key));
        self.keys_outside_scope.extend(done.outside);
        self.lookups_changed =
            done.lookups != self.sent_lookups || self.keys_outside_scope != self.sent_keys_outside_scope;
        self.lookups = done.lookups;
        self.listed = done.listed;
        self.cache.note_unreadable(&done.tasks_read.unreadable);
        // A task that was read because of the history was not pushed by its host.
        self.hosts_push &=
            !self.adds_maintenance_task(|cache| cache.apply_tasks_read(&done.tasks_read.objects));
        self.cache.tasks_not_found(done.gone);
        if let Some(read) = done.reread {
            self.cache.note_unreadable(&read.unreadable);
            self.hosts_push &= !self.adds_maintenance_task(|cache| cache.merge_reread(&read.objects));
        }
    }

    /// The updates after a [`Refresh`] or a page of the history. They end with `Settled` if all our VMs
    /// are known; otherwise the poll completes them.
    pub(super) fn updates_outside_poll(&mut self, synced: bool) -> Vec<VsphereUpdate> {
        if !synced {
            return Vec::new();
        }
        let mut updates = self.take_updates();
        self.settled_due |= !updates.is_empty();
        if self.settled_due && self.cache.has_all_vms() {
            self.settled_due = false;
            updates.push(VsphereUpdate::Settled);
        }
        updates
    }

    fn take_updates(&mut self) -> Vec<VsphereUpdate> {
        let mut updates = self.cache.take_updates();
        self.note_changes(&updates);
        if !std::mem::take(&mut self.lookups_changed) {
            return updates;
        }
        if self.keys_outside_scope != self.sent_keys_outside_scope {
            self.sent_keys_outside_scope.clone_from(&self.keys_outside_scope);
            let keys = self.keys_outside_scope.clone();
            updates.push(VsphereUpdate::OutOfScope { keys });
        }
        for (key, vms) in &self.lookups {
            if self.sent_lookups.get(key) != Some(vms) {
                updates.push(VsphereUpdate::Found {
                    key: key.clone(),
                    vms: vms.clone(),
                });
            }
        }
        self.sent_lookups.clone_from(&self.lookups);
        updates
    }
}
