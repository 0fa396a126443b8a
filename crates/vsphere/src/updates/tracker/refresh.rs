//! Work on another connection while the long polls wait: lookups, the list, tasks that are read individually, and the re-read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::lookup;
use super::super::subscription::{KnownBefore, Subscription};
use crate::error::Error;
use crate::moref::Moref;
use crate::reading::BoundedRead;
use crate::task;
use crate::update::{LookupUrgency, VmKey, WatchSet};
use haulout_core::ids::{HostRef, TaskRef, VmRef};

pub(super) type LookupResults = BTreeMap<VmKey, BTreeSet<VmRef>>;

/// How much a [`Refresh`] reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::updates) enum Scope {
    /// Keys without a lookup result, or with a stale one.
    Changed,
    /// All keys.
    AllKeys,
    /// The keys of `Changed`, some ambiguous or urgent ones, and hosts and VMs again.
    Reread,
}

/// Work on another connection while the long polls wait.
pub(in crate::updates) struct Refresh {
    pub(super) subscription: Arc<Subscription>,
    pub(super) watch_set: WatchSet,
    pub(super) scope: Scope,
    /// The keys to look up.
    pub(super) keys: BTreeSet<VmKey>,
    pub(super) lookups: LookupResults,
    pub(super) listed: BTreeSet<Moref>,
    /// Hosts to add to the list because of their devices.
    pub(super) device_hosts: BTreeSet<HostRef>,
    /// Maintenance tasks in the list.
    pub(super) listed_maintenances: BTreeSet<TaskRef>,
    /// Awaited tasks that vCenter does not know. They are not added to the list again.
    pub(super) gone: BTreeSet<TaskRef>,
    /// Awaited tasks to read individually.
    pub(super) tasks: BTreeSet<TaskRef>,
    /// Tasks of the history to read individually.
    pub(super) claimed: BTreeSet<TaskRef>,
    pub(super) known: KnownBefore,
}

/// The result of a [`Refresh`].
pub(in crate::updates) struct RefreshDone {
    pub(super) looked_up: BTreeSet<VmKey>,
    pub(super) urgency: BTreeMap<VmKey, LookupUrgency>,
    pub(super) lookups: LookupResults,
    /// The keys of `looked_up` that match a VM outside the scope.
    pub(super) outside: BTreeSet<VmKey>,
    pub(super) listed: BTreeSet<Moref>,
    /// The tasks that were read individually.
    pub(super) tasks_read: BoundedRead,
    /// Tasks that vCenter does not know.
    pub(super) gone: BTreeSet<TaskRef>,
    pub(in crate::updates) reread: Option<BoundedRead>,
}

impl Refresh {
    pub(in crate::updates) async fn run(self) -> Result<RefreshDone, Error> {
        let mut lookups = self.lookups;
        lookups.retain(|key, _| self.watch_set.vms.contains(key));
        let found = lookup::find(&self.subscription, &self.keys, &self.watch_set.kept_off).await?;
        lookups.extend(found.vms);
        let mut wanted: BTreeSet<_> = lookups.values().flatten().map(Moref::from).collect();
        let awaited = self.watch_set.tasks.difference(&self.gone);
        wanted.extend(awaited.chain(&self.listed_maintenances).map(Moref::from));
        let mut absent = BTreeSet::new();
        if wanted != self.listed {
            let (add, remove) = (wanted.difference(&self.listed), self.listed.difference(&wanted));
            absent = self.subscription.modify_list(add, remove).await?;
            wanted.retain(|moref| !absent.contains(moref));
            for vms in lookups.values_mut() {
                vms.retain(|vm| !absent.contains(&vm.into()));
            }
        }
        if !self.device_hosts.is_empty() {
            let add: Vec<Moref> = self.device_hosts.iter().map(Moref::from).collect();
            self.subscription
                .modify_list(add.iter(), std::iter::empty())
                .await?;
        }
        let unresolved: BTreeSet<TaskRef> = absent.iter().filter_map(Moref::task).collect();
        let of_others = &self.claimed | &unresolved;
        let tasks_read = read_tasks(&self.subscription, &self.tasks, &of_others).await?;
        let is_found = |task: &&TaskRef| tasks_read.contains(&(*task).into());
        let stale: Vec<&TaskRef> = self.claimed.iter().filter(|task| !is_found(task)).collect();
        if !stale.is_empty() {
            tracing::info!(
                ?stale,
                "vCenter's task history lists tasks as unfinished that do not exist any more; nothing follows from them"
            );
        }
        let gone = &self.tasks | &unresolved;
        let gone = gone.iter().filter(|task| !is_found(task)).cloned().collect();
        let reread = match self.scope {
            Scope::Reread => Some(self.subscription.reread(&self.known).await?),
            Scope::Changed | Scope::AllKeys => None,
        };
        Ok(RefreshDone {
            looked_up: self.keys,
            urgency: self.watch_set.urgent,
            lookups,
            outside: found.outside,
            listed: wanted,
            tasks_read,
            gone,
            reread,
        })
    }
}

/// Reads our tasks with their results, and those of others without: a result can be of any size.
async fn read_tasks(
    subscription: &Subscription,
    ours: &BTreeSet<TaskRef>,
    of_others: &BTreeSet<TaskRef>,
) -> Result<BoundedRead, Error> {
    let with_result = [task::PATHS, &[task::RESULT]].concat();
    let mut all = BoundedRead::default();
    for (tasks, paths) in [(ours, &*with_result), (of_others, task::PATHS)] {
        if !tasks.is_empty() {
            let read = subscription.read_tasks(tasks, paths).await?;
            all.objects.extend(read.objects);
            all.unreadable.extend(read.unreadable);
        }
    }
    Ok(all)
}
