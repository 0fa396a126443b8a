//! A feed that is followed: what it has told, what is asked beside it, and what is to be told of both.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Instant;

use super::history::{self, TaskHistory};
use super::lookup;
use super::pace::LookupPace;
use super::property_cache::PropertyCache;
use super::subscription::Subscription;
use crate::error::Error;
use crate::moref::Moref;
use crate::property::UpdateSet;
use crate::reading::BoundedRead;
use crate::update::{LookupUrgency, Vm, VmKey, VsphereUpdate, WatchSet};
use haulout_core::ids::{ComputeRef, HostRef, TaskRef, VmRef};

/// Keys that a re-read asks for although nothing new is known of them, in turn: 120 questions a minute at the most, in two
/// byte orders each, whatever the number of nodes. None are asked while each node has its one VM and stays in service.
const ASKED_AGAIN: usize = 30;

/// A call under way.
pub(super) type StreamWork<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

type LookupAnswer = BTreeMap<VmKey, BTreeSet<VmRef>>;

/// How much is looked at beside the long poll.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// The keys whose answer is not known, or in doubt.
    New,
    /// All keys.
    Lookups,
    /// The keys of `New`, some that are open or pressing, and hosts and VMs once more.
    All,
}

/// What is done on another connection while the long polls wait on theirs.
pub(super) struct Refresh {
    feed: Arc<Subscription>,
    roster: WatchSet,
    scope: Scope,
    /// What is asked for.
    keys: BTreeSet<VmKey>,
    found: LookupAnswer,
    listed: BTreeSet<Moref>,
    /// Hosts whose devices are to be followed too.
    candidates: BTreeSet<HostRef>,
    /// Maintenance tasks that are followed one by one.
    followed: BTreeSet<TaskRef>,
    /// Awaited tasks that vCenter does not know: to ask it to list them again would only say so again.
    gone: BTreeSet<TaskRef>,
    /// Tasks to be read by themselves.
    tasks: BTreeSet<TaskRef>,
    /// vCenter has told of a host, and not that all are gone.
    knows_hosts: bool,
}

/// What came of a [`Refresh`].
pub(super) struct RefreshDone {
    asked: BTreeSet<VmKey>,
    pressing: BTreeMap<VmKey, LookupUrgency>,
    found: LookupAnswer,
    listed: BTreeSet<Moref>,
    /// What was read of tasks by themselves.
    looked: BoundedRead,
    /// Tasks that vCenter does not know.
    gone: BTreeSet<TaskRef>,
    pub(super) read_again: Option<BoundedRead>,
}

impl Refresh {
    pub(super) async fn perform(self) -> Result<RefreshDone, Error> {
        let mut found = self.found;
        found.retain(|key, _| self.roster.vms.contains(key));
        found.extend(lookup::find(&self.feed, &self.keys).await?);
        let mut wanted: BTreeSet<_> = found.values().flatten().map(Moref::from).collect();
        let awaited = self.roster.tasks.difference(&self.gone);
        wanted.extend(awaited.chain(&self.followed).map(Moref::from));
        let mut absent = BTreeSet::new();
        if wanted != self.listed {
            let (add, remove) = (wanted.difference(&self.listed), self.listed.difference(&wanted));
            absent = self.feed.change(add, remove).await?;
            wanted.retain(|moref| !absent.contains(moref));
            for vms in found.values_mut() {
                vms.retain(|vm| !absent.contains(&vm.into()));
            }
        }
        if !self.candidates.is_empty() {
            let add: Vec<Moref> = self.candidates.iter().map(Moref::from).collect();
            self.feed.change(add.iter(), std::iter::empty()).await?;
        }
        let looked = match self.tasks.is_empty() {
            true => BoundedRead::default(),
            false => self.feed.look_at(&self.tasks).await?,
        };
        let not_found = self
            .tasks
            .into_iter()
            .filter(|task| !looked.tells_of(&task.into()));
        let unresolved = absent.iter().filter_map(Moref::task);
        let gone = not_found.chain(unresolved).collect();
        let read_again = match self.scope {
            Scope::All => Some(self.feed.read_again(self.knows_hosts).await?),
            Scope::New | Scope::Lookups => None,
        };
        Ok(RefreshDone {
            asked: self.keys,
            pressing: self.roster.urgent,
            found,
            listed: wanted,
            looked,
            gone,
            read_again,
        })
    }
}

/// A feed that is followed, and what it has told.
pub(super) struct Tracker {
    feed: Arc<Subscription>,
    history: Arc<TaskHistory>,
    version: String,
    history_version: String,
    shadow: PropertyCache,
    found: LookupAnswer,
    listed: BTreeSet<Moref>,
    /// The hosts whose devices are followed. They only become more: a host that left this filter alone would look as if it
    /// were gone.
    candidates: BTreeSet<HostRef>,
    /// There may be more of them.
    candidates_due: bool,
    /// The maintenance tasks that are followed one by one.
    followed: BTreeSet<TaskRef>,
    /// The clusters where VMs of ours stood when somebody looked last.
    computes: BTreeSet<ComputeRef>,
    /// A complete set of the objects has come in.
    pub(super) is_heard: bool,
    /// What was told of `found`.
    told: LookupAnswer,
    /// The two differ. It is compared when somebody has looked, not with each set: that a host changes must not cost a
    /// walk over all our VMs.
    found_is_news: bool,
    /// Something was told, and no `Settled` after it.
    owed: bool,
    /// Keys whose answer a VM's end or change put into doubt: another VM may answer to them, or none.
    doubtful: BTreeSet<VmKey>,
    /// What was pressing when somebody looked last.
    pressing: BTreeMap<VmKey, LookupUrgency>,
    /// Where the last re-read left off asking.
    asked_last: Option<VmKey>,
    /// The same of keys that were never asked for.
    last_new: Option<VmKey>,
    pace: LookupPace,
    /// There are keys that were never asked for, and more than may be asked for at once.
    defers: bool,
    /// The parts of a set that is not complete, and the objects in them.
    parts: (usize, usize),
    /// A host told by itself of the newest maintenance task that began while we listened, as it need not. As long as that
    /// holds, the history has nothing to add, and asking for it would cost vCenter an answer for each task of anybody.
    pub(super) hosts_push: bool,
}

impl Tracker {
    pub(super) fn new(feed: Arc<Subscription>) -> Self {
        Self {
            version: String::new(),
            history_version: String::new(),
            shadow: PropertyCache::of(feed.user()),
            found: LookupAnswer::new(),
            listed: BTreeSet::new(),
            candidates: BTreeSet::new(),
            candidates_due: false,
            followed: BTreeSet::new(),
            computes: BTreeSet::new(),
            is_heard: false,
            told: LookupAnswer::new(),
            found_is_news: false,
            owed: false,
            doubtful: BTreeSet::new(),
            pressing: BTreeMap::new(),
            asked_last: None,
            last_new: None,
            pace: LookupPace::new(Instant::now()),
            defers: false,
            parts: (0, 0),
            hosts_push: false,
            history: Arc::new(TaskHistory::of(&feed)),
            feed,
        }
    }

    pub(super) fn poll(&self) -> StreamWork<Option<UpdateSet>> {
        let (feed, version) = (self.feed.clone(), self.version.clone());
        Box::pin(async move { feed.wait(&version).await })
    }

    pub(super) fn history_poll(&self) -> StreamWork<Option<UpdateSet>> {
        let (history, version) = (self.history.clone(), self.history_version.clone());
        Box::pin(async move { history.wait(&version).await })
    }

    /// Goes on without a page of the history that cannot be read, and makes another history later: asked again at once, this one
    /// would give the same page.
    pub(super) fn history_again(&mut self, error: Error) -> Result<StreamWork<Option<UpdateSet>>, Error> {
        if !history::costs_the_history_alone(&error) {
            return Err(error);
        }
        tracing::warn!(
            error = %error.chain(),
            "the task history cannot be read; the stream goes on without it, and takes it up again later"
        );
        let old = std::mem::replace(&mut self.history, Arc::new(TaskHistory::of(&self.feed)));
        self.history_version = String::new();
        let again = self.history_poll();
        Ok(Box::pin(async move {
            old.give_up().await;
            again.await
        }))
    }

    pub(super) fn job(&mut self, roster: WatchSet, scope: Scope) -> Refresh {
        self.shadow.set_awaited(roster.tasks.clone());
        if scope == Scope::All {
            self.shadow.begin_reread();
        }
        let keys = match scope {
            Scope::Lookups => BTreeSet::clone(&roster.vms),
            Scope::New => self.unknown(&roster),
            Scope::All => self
                .unknown(&roster)
                .into_iter()
                .chain(self.open(&roster))
                .collect(),
        };
        self.doubtful.clear();
        self.candidates_due = false;
        self.computes = self.shadow.computes_of_ours();
        // They count from here on, because vCenter may tell of them before the job has ended.
        let wanted = self.shadow.hosts_of(&self.computes);
        let candidates = wanted.difference(&self.candidates).cloned().collect();
        self.candidates.extend(wanted);
        self.pressing.clone_from(&roster.urgent);
        self.followed = self.shadow.followed().cloned().collect();
        Refresh {
            feed: self.feed.clone(),
            roster,
            scope,
            keys,
            found: self.found.clone(),
            listed: self.listed.clone(),
            candidates,
            followed: self.followed.clone(),
            gone: self.shadow.gone_tasks(),
            tasks: self.shadow.take_to_look_at(),
            knows_hosts: self.shadow.knows_hosts(),
        }
    }

    /// Those in doubt, those that have become more pressing, and as many as may be of those that were never asked for, in turn: a node
    /// that tells a new key all the time must not keep the keys of others from being asked for.
    fn unknown(&mut self, roster: &WatchSet) -> BTreeSet<VmKey> {
        let (known, new): (Vec<&VmKey>, Vec<&VmKey>) =
            roster.vms.iter().partition(|key| self.found.contains_key(*key));
        let allowed = self.pace.take(new.len(), Instant::now());
        self.defers = allowed < new.len();
        let last = self.last_new.clone();
        let after = |key: &&&VmKey| last.as_ref().is_none_or(|last| **key > last);
        let turn: Vec<VmKey> = new
            .iter()
            .filter(after)
            .chain(&new)
            .take(allowed)
            .map(|key| (*key).clone())
            .collect();
        self.last_new = turn.last().cloned();
        let mut keys: BTreeSet<VmKey> = turn.into_iter().collect();
        let is_unknown = |key: &&&VmKey| {
            self.doubtful.contains(**key) || roster.urgent.get(**key) > self.pressing.get(**key)
        };
        keys.extend(known.iter().filter(is_unknown).map(|key| (*key).clone()));
        keys
    }

    /// When new keys may be asked for that had to wait; `None` where there are none.
    pub(super) fn next_keys(&self) -> Option<Instant> {
        self.defers.then(|| self.pace.next())
    }

    /// The next keys, in turn, whose answer may have changed without a word: those to which not exactly one VM answers, and the
    /// pressing ones. That a VM of a node in service is cloned matters to nobody before it is pressing.
    fn open(&mut self, roster: &WatchSet) -> BTreeSet<VmKey> {
        let is_one = |key: &VmKey| self.found.get(key).is_some_and(|vms| vms.len() == 1);
        let open: BTreeSet<&VmKey> = roster
            .vms
            .iter()
            .filter(|key| !is_one(key) || roster.urgent.contains_key(*key))
            .collect();
        let after = |key: &&&VmKey| self.asked_last.as_ref().is_none_or(|last| **key > last);
        let turn: Vec<VmKey> = open
            .iter()
            .filter(after)
            .chain(&open)
            .take(open.len().min(ASKED_AGAIN))
            .map(|key| (*key).clone())
            .collect();
        self.asked_last = turn.last().cloned();
        turn.into_iter().collect()
    }

    /// Takes an answer of the long poll, and gives what is to be told: nothing before a set is complete.
    ///
    /// # Errors
    /// Where a set has no end, or vCenter tells of more objects than it can hold.
    pub(super) fn set(
        &mut self,
        set: Option<UpdateSet>,
        stood: &mut bool,
    ) -> Result<Vec<VsphereUpdate>, Error> {
        let Some(set) = set else {
            self.shadow.caught_up();
            return Ok(Vec::new());
        };
        let (sets, objects) = self.parts;
        let parts = (sets + 1, objects + set.changes.len() + set.unreadable.len());
        self.version = set.version;
        self.shadow.note_unreadable(&set.unreadable);
        let tells_a_click = self.tells_a_click(|shadow| shadow.apply(set.changes));
        // What a first set tells stood there before and was not pushed.
        self.hosts_push |= *stood && tells_a_click;
        self.parts = if set.truncated { parts } else { (0, 0) };
        self.feed
            .unless_endless(parts.0, parts.1.max(self.shadow.size()))?;
        if set.truncated {
            return Ok(Vec::new());
        }
        self.shadow.caught_up();
        self.is_heard = true;
        // The devices of the hosts that could take a VM of ours belong to a first set.
        if !*stood
            && !self
                .shadow
                .hosts_of(&self.shadow.computes_of_ours())
                .is_subset(&self.candidates)
        {
            self.candidates_due = true;
            return Ok(Vec::new());
        }
        Ok(self.complete(stood))
    }

    /// What is to be told of a set that is complete.
    pub(super) fn complete(&mut self, stood: &mut bool) -> Vec<VsphereUpdate> {
        let mut updates = self.news();
        if !std::mem::replace(stood, true) {
            updates.insert(0, VsphereUpdate::Reset);
        } else if updates.is_empty() && !self.owed {
            return updates;
        }
        updates.push(VsphereUpdate::Settled);
        self.owed = false;
        updates
    }

    /// Whether something is to be done beside the polls at once.
    pub(super) fn is_due(&self) -> bool {
        let follows = self.shadow.followed().eq(&self.followed);
        self.candidates_due || !self.doubtful.is_empty() || self.shadow.has_to_look() || !follows
    }

    /// A VM of ours that has come or moved, or a host that came into a cluster where one stands, may mean more candidates.
    fn note_candidates(&mut self, updates: &[VsphereUpdate]) {
        self.candidates_due |= updates.iter().any(|update| match update {
            VsphereUpdate::Vm(vm) => vm
                .host
                .as_ref()
                .is_some_and(|host| !self.candidates.contains(host)),
            VsphereUpdate::Host(host) => {
                let is_near = |compute| self.computes.contains(compute);
                !self.candidates.contains(&host.moref) && host.compute.as_ref().is_some_and(is_near)
            }
            VsphereUpdate::Reset
            | VsphereUpdate::HostGone(_)
            | VsphereUpdate::Compute(_)
            | VsphereUpdate::ComputeGone(_)
            | VsphereUpdate::VmGone(_)
            | VsphereUpdate::Task(_)
            | VsphereUpdate::TaskGone(_)
            | VsphereUpdate::Found { .. }
            | VsphereUpdate::Settled
            | VsphereUpdate::Lost { .. } => false,
        });
    }

    /// A VM that is gone, or whose UUID and name are none of our keys, puts the answers that name it into doubt.
    fn doubt(&mut self, updates: &[VsphereUpdate]) {
        for update in updates {
            let vm = match update {
                VsphereUpdate::VmGone(vm) => vm,
                VsphereUpdate::Vm(vm) if !self.has_key_of(vm) => &vm.moref,
                VsphereUpdate::Vm(_)
                | VsphereUpdate::Reset
                | VsphereUpdate::Host(_)
                | VsphereUpdate::HostGone(_)
                | VsphereUpdate::Compute(_)
                | VsphereUpdate::ComputeGone(_)
                | VsphereUpdate::Task(_)
                | VsphereUpdate::TaskGone(_)
                | VsphereUpdate::Found { .. }
                | VsphereUpdate::Settled
                | VsphereUpdate::Lost { .. } => continue,
            };
            let named = self.found.iter().filter(|(_, vms)| vms.contains(vm));
            self.doubtful.extend(named.map(|(key, _)| key.clone()));
        }
    }

    /// Whether one of our keys is of this VM, by what it tells of itself. One that does not tell its UUID is not doubted.
    fn has_key_of(&self, vm: &Vm) -> bool {
        let Some(uuid) = vm.uuid else { return true };
        let uuids = [uuid, uuid.swapped()].map(VmKey::Uuid);
        let mut keys = uuids.into_iter().chain(vm.name.clone().map(VmKey::Name));
        keys.any(|key| self.found.contains_key(&key))
    }

    /// Whether the shadow hears of a maintenance task, of which nobody had told, in what it takes.
    fn tells_a_click(&mut self, take: impl FnOnce(&mut PropertyCache)) -> bool {
        let before = self.shadow.clicks();
        take(&mut self.shadow);
        self.shadow.clicks() != before
    }

    /// Takes a page of the task history.
    pub(super) fn page(&mut self, set: Option<UpdateSet>) {
        if let Some(set) = set {
            self.history_version = set.version;
            self.shadow.note_unreadable(&set.unreadable);
            self.hosts_push &= !self.tells_a_click(|shadow| shadow.apply(set.changes));
        }
    }

    /// Takes what came of a [`Refresh`]. An answer that was asked for as `pressing` as it is at this moment is told whatever it says;
    /// one that has become more pressing since is asked for again.
    pub(super) fn done(&mut self, done: RefreshDone, pressing: &BTreeMap<VmKey, LookupUrgency>) {
        self.shadow
            .set_ours(done.found.values().flatten().cloned().collect());
        for (key, pressing) in pressing {
            if done.asked.contains(key) && done.pressing.get(key) == Some(pressing) {
                self.told.remove(key);
            }
        }
        self.found_is_news = done.found != self.told;
        self.found = done.found;
        self.listed = done.listed;
        self.shadow.note_unreadable(&done.looked.unreadable);
        self.shadow.look_at(&done.looked.objects);
        self.shadow.vanished(done.gone);
        if let Some(read) = done.read_again {
            self.shadow.note_unreadable(&read.unreadable);
            self.hosts_push &= !self.tells_a_click(|shadow| shadow.merge_reread(&read.objects));
        }
    }

    /// What is to be told after a [`Refresh`] or a page of the history. It is settled where all VMs of ours are known; else the
    /// poll completes it.
    pub(super) fn beside_poll(&mut self, stood: bool) -> Vec<VsphereUpdate> {
        if !stood {
            return Vec::new();
        }
        let mut updates = self.news();
        self.owed |= !updates.is_empty();
        if self.owed && self.shadow.is_whole() {
            self.owed = false;
            updates.push(VsphereUpdate::Settled);
        }
        updates
    }

    fn news(&mut self) -> Vec<VsphereUpdate> {
        let mut updates = self.shadow.tell();
        self.doubt(&updates);
        self.note_candidates(&updates);
        if !std::mem::take(&mut self.found_is_news) {
            return updates;
        }
        for (key, vms) in &self.found {
            if self.told.get(key) != Some(vms) {
                updates.push(VsphereUpdate::Found {
                    key: key.clone(),
                    vms: vms.clone(),
                });
            }
        }
        self.told.clone_from(&self.found);
        updates
    }
}
