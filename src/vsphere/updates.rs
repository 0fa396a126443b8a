//! The update stream: what vCenter knows of our hosts, VMs and tasks, told as it changes.
//!
//! Three signals feed it. The long poll on a collector of our own tells of hosts, and of exactly the VMs and tasks of
//! the roster. A task history, with a long poll of its own, tells of tasks that their entity does not push; it rests once
//! a host has been seen to push a maintenance task. A re-read at a fixed period, on a third connection, finds what neither
//! told, and wakes the history again. All three are merged as state, never as events, so what
//! comes twice or late changes nothing (`proto-notes/property-collector.md`).

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use self::feed::{Feed, Poll, Remains};
use self::shadow::Shadow;
use super::client::{Error, Settings, Vcenter};
use super::property::{Object, UpdateSet};
use super::session::Session;
use super::soap::Moref;
use super::update::{Pressing, Roster, Update, Vm, VmKey};
use crate::ids::{ComputeRef, HostRef, VmRef};

mod feed;
mod lookup;
pub mod shadow;

/// How long a stop waits for what is under way, so that no login is torn in half and its session orphaned.
const GRACE: Duration = Duration::from_secs(3);

/// From the first complete set, or from an answer about the task history, to the next question about it. A page comes with every
/// task of the vCenter that begins or ends, ours or not, and a busy vCenter is not to be asked more often than this for a
/// second teller. What it has seen by then stands on its page.
const HISTORY_PAUSE: Duration = Duration::from_secs(1);

/// Keys that a re-read asks for although nothing new is known of them, in turn: 120 questions a minute at the most, in two
/// byte orders each, whatever the number of nodes. None are asked while each node has its one VM and stays in service.
const ASKED_AGAIN: usize = 30;

type Found = BTreeMap<VmKey, BTreeSet<VmRef>>;
type Work<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// Follows vCenter until `stop`, and tells what it learns to `out`.
///
/// It never gives up: where the stream breaks it tells [`Update::Lost`] at once, rebuilds with growing, jittered pauses
/// between `retry_min` and `retry_max`, and tells everything anew between [`Update::Reset`] and [`Update::Settled`].
/// A change of the roster takes effect at once. On `stop`, or when nobody listens, it cancels its poll, destroys what it
/// made in the session, and logs out, each within a few seconds.
pub async fn run(
    vcenter: Vcenter,
    roster: watch::Receiver<Roster>,
    out: mpsc::Sender<Update>,
    stop: CancellationToken,
) {
    let mut stream = Stream {
        vcenter,
        roster,
        out,
        stop,
        remains: None,
        stood: false,
    };
    let mut pauses = pauses(&stream.vcenter.settings);
    let mut hurried = false;
    loop {
        stream.stood = false;
        let Err(end) = stream.follow().await;
        let (why, answered) = match end {
            End::Stopped => break,
            End::Broken(error) => (error.chain(), error.fault().is_some()),
            End::Replaced => ("another call found the session gone".to_owned(), true),
        };
        if stream.stood {
            pauses = self::pauses(&stream.vcenter.settings);
        }
        // A stream that stood, and that vCenter itself ended, is rebuilt at once, but never twice in a row.
        hurried = stream.stood && answered && !hurried;
        let pause = match pauses.next() {
            _ if hurried => Duration::ZERO,
            Some(pause) => pause,
            None => stream.vcenter.settings.retry_max,
        };
        tracing::warn!(
            why,
            pause_ms = pause.as_millis(),
            "the vCenter stream is lost and will be rebuilt"
        );
        if stream.tell(vec![Update::Lost { why }]).await.is_err()
            || stream.unless_stopped(sleep(pause)).await.is_err()
        {
            break;
        }
    }
    stream.clear().await;
    stream.vcenter.logout().await;
}

/// Each next pause is twice the last, plus up to as much again, so that many clients do not come back in step.
fn pauses(settings: &Settings) -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(settings.retry_min)
        .with_max_delay(settings.retry_max)
        .with_factor(2.0)
        .with_jitter()
        .without_max_times()
        .build()
}

/// Why following ended.
enum End {
    /// We were told to, or nobody listens.
    Stopped,
    /// A call failed: nothing of the feed can be relied on.
    Broken(Error),
    /// The session that the feed lives in was given up by another call.
    Replaced,
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Broken(error)
    }
}

struct Stream {
    vcenter: Vcenter,
    roster: watch::Receiver<Roster>,
    out: mpsc::Sender<Update>,
    stop: CancellationToken,
    /// What the last feed made, to be destroyed before the next is built.
    remains: Option<Remains>,
    /// Whether this feed has told a complete set.
    stood: bool,
}

impl Stream {
    /// Builds a feed and follows it to its end.
    async fn follow(&mut self) -> Result<Infallible, End> {
        // Clearing comes first: in a dead session it finds that out.
        self.clear().await;
        let session = self.unless_stopped(self.vcenter.sessions.get()).await??;
        let mut sessions = self.vcenter.sessions.watch();
        let remains = Remains::new(&self.vcenter, &session);
        let feed = self.unless_stopped(Feed::build(&remains)).await;
        self.remains = Some(remains);
        let mut following = Following::new(Arc::new(feed??));
        let roster = self.roster.borrow_and_update().clone();
        following.shadow.set_awaited(roster.tasks.clone());
        let first = following.job(roster, Scope::Lookups);
        let done = self.unless_stopped(first.perform()).await??;
        following.done(done, &self.roster.borrow().pressing);

        let reread = self.vcenter.settings.reread_every.max(Duration::from_millis(10));
        let mut tick = interval_at(Instant::now() + reread, reread);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut poll = following.poll(Poll::Objects);
        let mut history: Option<Work<Option<UpdateSet>>> = None;
        let mut history_due = Instant::now() + HISTORY_PAUSE;
        let mut work: Option<Work<Done>> = None;
        let mut roster_lives = true;
        // They stand for as long as the feed does: to register them anew for each set would hold that set up.
        let (stop, out) = (self.stop.clone(), self.out.clone());
        let (mut stopped, mut unheard) = (pin!(stop.cancelled()), pin!(out.closed()));
        loop {
            let idle = work.is_none();
            // None of the history's calls delays the first set.
            if !self.stood {
                history_due = Instant::now() + HISTORY_PAUSE;
            }
            tokio::select! {
                biased;
                () = &mut stopped => return Err(End::Stopped),
                () = &mut unheard => return Err(End::Stopped),
                set = &mut poll => {
                    let updates = following.set(set?, &mut self.stood);
                    self.tell(updates).await?;
                    poll = following.poll(Poll::Objects);
                }
                page = finish(&mut history) => {
                    history = None;
                    history_due = Instant::now() + HISTORY_PAUSE;
                    following.page(page?);
                    let updates = following.beside_poll(self.stood);
                    self.tell(updates).await?;
                }
                done = finish(&mut work), if !idle => {
                    work = None;
                    let done = done?;
                    let was_reread = done.read_again.is_some();
                    following.done(done, &self.roster.borrow().pressing);
                    // Devices that were not told by the first re-read are not waited for any longer.
                    let updates = if was_reread && following.is_heard && !self.stood {
                        following.complete(&mut self.stood)
                    } else {
                        following.beside_poll(self.stood)
                    };
                    self.tell(updates).await?;
                }
                () = replaced(&mut sessions, &session) => return Err(End::Replaced),
                changed = self.roster.changed(), if idle && roster_lives => {
                    roster_lives = changed.is_ok();
                    work = Some(self.begin(&mut following, Scope::New));
                }
                () = sleep_until(history_due), if self.stood && history.is_none() && !following.hosts_push => {
                    history = Some(following.poll(Poll::History));
                }
                _ = tick.tick(), if idle => work = Some(self.begin(&mut following, Scope::All)),
                () = std::future::ready(()), if idle && following.is_due() => {
                    work = Some(self.begin(&mut following, Scope::New));
                }
            }
        }
    }

    fn begin(&mut self, following: &mut Following, scope: Scope) -> Work<Done> {
        let roster = self.roster.borrow_and_update().clone();
        following.shadow.set_awaited(roster.tasks.clone());
        if scope == Scope::All {
            following.shadow.begin_reread();
        }
        Box::pin(following.job(roster, scope).perform())
    }

    async fn tell(&self, updates: Vec<Update>) -> Result<(), End> {
        let is_news = !updates.is_empty();
        for update in updates {
            let update = match self.out.try_send(update) {
                Ok(()) => continue,
                Err(TrySendError::Closed(_)) => return Err(End::Stopped),
                Err(TrySendError::Full(update)) => update,
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Err(End::Stopped),
                sent = self.out.send(update) => sent.map_err(|_| End::Stopped)?,
            }
        }
        if is_news {
            // Whoever listens may wait for this very thread. The next question can be written when that one has heard.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Does `work`, unless it is time to stop; then `work` has a moment to end by itself.
    async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Result<T, End> {
        let mut work = pin!(work);
        tokio::select! {
            biased;
            () = self.stop.cancelled() => {
                let ended = timeout(GRACE, work).await.is_ok();
                tracing::debug!(ended, "stopped while a call was under way");
                Err(End::Stopped)
            }
            result = &mut work => Ok(result),
        }
    }

    async fn clear(&mut self) {
        if let Some(remains) = self.remains.take() {
            remains.clear().await;
        }
    }
}

/// Ends when the live session is another one, or none.
async fn replaced(sessions: &mut watch::Receiver<Option<Arc<Session>>>, session: &Session) {
    let stands = |live: &Option<Arc<Session>>| {
        live.as_ref()
            .is_some_and(|live| live.generation == session.generation)
    };
    drop(sessions.wait_for(|live| !stands(live)).await);
}

/// The result of work that is under way. Without any it never ends.
async fn finish<T>(work: &mut Option<Work<T>>) -> Result<T, Error> {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

/// How much is looked at beside the long poll.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// The keys whose answer is not known, or in doubt.
    New,
    /// All keys.
    Lookups,
    /// The keys of `New`, some that are open or pressing, and hosts and VMs once more.
    All,
}

/// What is done on another connection while the long polls wait on theirs.
struct Job {
    feed: Arc<Feed>,
    roster: Roster,
    scope: Scope,
    /// What is asked for.
    keys: BTreeSet<VmKey>,
    found: Found,
    listed: BTreeSet<Moref>,
    /// Hosts whose devices are to be followed too.
    candidates: BTreeSet<HostRef>,
    /// vCenter has told of a host, and not that all are gone.
    knows_hosts: bool,
}

/// What came of a [`Job`].
struct Done {
    asked: BTreeSet<VmKey>,
    pressing: BTreeMap<VmKey, Pressing>,
    found: Found,
    listed: BTreeSet<Moref>,
    read_again: Option<Vec<Object>>,
}

impl Job {
    async fn perform(self) -> Result<Done, Error> {
        let mut found = self.found;
        found.retain(|key, _| self.roster.vms.contains(key));
        found.extend(lookup::find(&self.feed, &self.keys).await?);
        let mut wanted: BTreeSet<_> = found.values().flatten().map(Moref::from).collect();
        wanted.extend(self.roster.tasks.iter().map(Moref::from));
        if wanted != self.listed {
            let (add, remove) = (wanted.difference(&self.listed), self.listed.difference(&wanted));
            let absent = self.feed.change(add, remove).await?;
            wanted.retain(|moref| !absent.contains(moref));
            for vms in found.values_mut() {
                vms.retain(|vm| !absent.contains(&vm.into()));
            }
        }
        if !self.candidates.is_empty() {
            let add: Vec<Moref> = self.candidates.iter().map(Moref::from).collect();
            self.feed.change(add.iter(), std::iter::empty()).await?;
        }
        let read_again = match self.scope {
            Scope::All => Some(self.feed.read_again(self.knows_hosts).await?),
            Scope::New | Scope::Lookups => None,
        };
        Ok(Done {
            asked: self.keys,
            pressing: self.roster.pressing,
            found,
            listed: wanted,
            read_again,
        })
    }
}

/// A feed that is followed, and what it has told.
struct Following {
    feed: Arc<Feed>,
    version: String,
    history_version: String,
    shadow: Shadow,
    found: Found,
    listed: BTreeSet<Moref>,
    /// The hosts whose devices are followed. They only become more: a host that left this filter alone would look as if it
    /// were gone.
    candidates: BTreeSet<HostRef>,
    /// There may be more of them.
    candidates_due: bool,
    /// The clusters where VMs of ours stood when somebody looked last.
    computes: BTreeSet<ComputeRef>,
    /// A complete set of the objects has come in.
    is_heard: bool,
    /// What was told of `found`.
    told: Found,
    /// The two differ. It is compared when somebody has looked, not with each set: that a host changes must not cost a
    /// walk over all our VMs.
    found_is_news: bool,
    /// Something was told, and no `Settled` after it.
    owed: bool,
    /// Keys whose answer a VM's end or change put into doubt: another VM may answer to them, or none.
    doubtful: BTreeSet<VmKey>,
    /// What was pressing when somebody looked last.
    pressing: BTreeMap<VmKey, Pressing>,
    /// Where the last re-read left off asking.
    asked_last: Option<VmKey>,
    /// A host told by itself of the newest maintenance task that began while we listened, as it need not. As long as that
    /// holds, the history has nothing to add, and asking for it would cost vCenter an answer for each task of anybody.
    hosts_push: bool,
}

impl Following {
    fn new(feed: Arc<Feed>) -> Self {
        Self {
            version: String::new(),
            history_version: String::new(),
            shadow: Shadow::of(feed.user()),
            found: Found::new(),
            listed: BTreeSet::new(),
            candidates: BTreeSet::new(),
            candidates_due: false,
            computes: BTreeSet::new(),
            is_heard: false,
            told: Found::new(),
            found_is_news: false,
            owed: false,
            doubtful: BTreeSet::new(),
            pressing: BTreeMap::new(),
            asked_last: None,
            hosts_push: false,
            feed,
        }
    }

    fn poll(&self, poll: Poll) -> Work<Option<UpdateSet>> {
        let version = match poll {
            Poll::Objects => self.version.clone(),
            Poll::History => self.history_version.clone(),
        };
        let feed = self.feed.clone();
        Box::pin(async move { feed.wait(poll, &version).await })
    }

    fn job(&mut self, roster: Roster, scope: Scope) -> Job {
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
        self.pressing.clone_from(&roster.pressing);
        Job {
            feed: self.feed.clone(),
            roster,
            scope,
            keys,
            found: self.found.clone(),
            listed: self.listed.clone(),
            candidates,
            knows_hosts: self.shadow.knows_hosts(),
        }
    }

    /// The keys that were never asked for, those in doubt, and those that have become more pressing.
    fn unknown(&self, roster: &Roster) -> BTreeSet<VmKey> {
        let is_unknown = |key: &&VmKey| {
            !self.found.contains_key(*key)
                || self.doubtful.contains(*key)
                || roster.pressing.get(*key) > self.pressing.get(*key)
        };
        roster.vms.iter().filter(is_unknown).cloned().collect()
    }

    /// The next keys, in turn, whose answer may have changed without a word: those to which not exactly one VM answers, and the
    /// pressing ones. That a VM of a node in service is cloned matters to nobody before it is pressing.
    fn open(&mut self, roster: &Roster) -> BTreeSet<VmKey> {
        let is_one = |key: &VmKey| self.found.get(key).is_some_and(|vms| vms.len() == 1);
        let open: BTreeSet<&VmKey> = roster
            .vms
            .iter()
            .filter(|key| !is_one(key) || roster.pressing.contains_key(*key))
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
    fn set(&mut self, set: Option<UpdateSet>, stood: &mut bool) -> Vec<Update> {
        let Some(set) = set else {
            self.shadow.caught_up();
            return Vec::new();
        };
        self.version = set.version;
        let tells_a_click = self.tells_a_click(|shadow| shadow.apply(set.changes));
        // What a first set tells stood there before and was not pushed.
        self.hosts_push |= *stood && tells_a_click;
        if set.truncated {
            return Vec::new();
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
            return Vec::new();
        }
        self.complete(stood)
    }

    /// What is to be told of a set that is complete.
    fn complete(&mut self, stood: &mut bool) -> Vec<Update> {
        let mut updates = self.news();
        if !std::mem::replace(stood, true) {
            updates.insert(0, Update::Reset);
        } else if updates.is_empty() && !self.owed {
            return updates;
        }
        updates.push(Update::Settled);
        self.owed = false;
        updates
    }

    /// Whether something is to be done beside the polls at once.
    fn is_due(&self) -> bool {
        self.candidates_due || !self.doubtful.is_empty()
    }

    /// A VM of ours that has come or moved, or a host that came into a cluster where one stands, may mean more candidates.
    fn note_candidates(&mut self, updates: &[Update]) {
        self.candidates_due |= updates.iter().any(|update| match update {
            Update::Vm(vm) => vm
                .host
                .as_ref()
                .is_some_and(|host| !self.candidates.contains(host)),
            Update::Host(host) => {
                let is_near = |compute| self.computes.contains(compute);
                !self.candidates.contains(&host.moref) && host.compute.as_ref().is_some_and(is_near)
            }
            Update::Reset
            | Update::HostGone(_)
            | Update::Compute(_)
            | Update::ComputeGone(_)
            | Update::VmGone(_)
            | Update::Task(_)
            | Update::Found { .. }
            | Update::Settled
            | Update::Lost { .. } => false,
        });
    }

    /// A VM that is gone, or whose UUID and name are none of our keys, puts the answers that name it into doubt.
    fn doubt(&mut self, updates: &[Update]) {
        for update in updates {
            let vm = match update {
                Update::VmGone(vm) => vm,
                Update::Vm(vm) if !self.has_key_of(vm) => &vm.moref,
                Update::Vm(_)
                | Update::Reset
                | Update::Host(_)
                | Update::HostGone(_)
                | Update::Compute(_)
                | Update::ComputeGone(_)
                | Update::Task(_)
                | Update::Found { .. }
                | Update::Settled
                | Update::Lost { .. } => continue,
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
    fn tells_a_click(&mut self, take: impl FnOnce(&mut Shadow)) -> bool {
        let before = self.shadow.clicks();
        take(&mut self.shadow);
        self.shadow.clicks() != before
    }

    /// Takes a page of the task history.
    fn page(&mut self, set: Option<UpdateSet>) {
        if let Some(set) = set {
            self.history_version = set.version;
            self.hosts_push &= !self.tells_a_click(|shadow| shadow.apply(set.changes));
        }
    }

    /// Takes what came of a [`Job`]. An answer that was asked for as `pressing` as it is at this moment is told whatever it says;
    /// one that has become more pressing since is asked for again.
    fn done(&mut self, done: Done, pressing: &BTreeMap<VmKey, Pressing>) {
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
        if let Some(objects) = done.read_again {
            self.hosts_push &= !self.tells_a_click(|shadow| shadow.merge_reread(&objects));
        }
    }

    /// What is to be told after a [`Job`] or a page of the history. It is settled where all VMs of ours are known; else the
    /// poll completes it.
    fn beside_poll(&mut self, stood: bool) -> Vec<Update> {
        if !stood {
            return Vec::new();
        }
        let mut updates = self.news();
        self.owed |= !updates.is_empty();
        if self.owed && self.shadow.is_whole() {
            self.owed = false;
            updates.push(Update::Settled);
        }
        updates
    }

    fn news(&mut self) -> Vec<Update> {
        let mut updates = self.shadow.tell();
        self.doubt(&updates);
        self.note_candidates(&updates);
        if !std::mem::take(&mut self.found_is_news) {
            return updates;
        }
        for (key, vms) in &self.found {
            if self.told.get(key) != Some(vms) {
                updates.push(Update::Found {
                    key: key.clone(),
                    vms: vms.clone(),
                });
            }
        }
        self.told.clone_from(&self.found);
        updates
    }
}
