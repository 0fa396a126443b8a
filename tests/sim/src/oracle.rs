//! The rules that hold at any moment (DESIGN §3).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use haulout::keys::{EPISODE, LAST_EPISODE};
use haulout_core::maintenance::kinds::PhaseKind;
use haulout_core::named_enum;
use serde_json::Value;

use crate::clock;
use crate::cluster::{blocks_drain, is_overdue, is_ready, node_key, node_name};
use crate::faults::Fault;
use crate::store::{Key, is_cordoned};
use crate::twin::NodeEffects;
use crate::vcenter::Work;
use crate::world::World;

/// How old the knowledge may be on which a request is sent: the delays of the request, and of the check before it.
pub(crate) const STALE: Duration = Duration::from_secs(12);

/// How old the view of the Node may be when a pod is evicted: the list of the pods has 30 s, and several attempts to connect.
pub(crate) const STALE_AT_EVICTION: Duration = Duration::from_secs(45);

/// How long a watch may be silent until it counts as broken: its end after 60 s with a margin of 5 s, and 90 s for the next one.
const WATCH_SILENT: Duration = Duration::from_secs(155);

/// Writes to one Node in a minute that are far above those of any episode.
const WRITES_PER_MINUTE: u64 = 120;

/// Requests of one replica in a minute that are far above those of any fault.
const REQUESTS_PER_MINUTE: u64 = 3_000;

/// How many times the pods of one owner are evicted in one drain by one process.
const EVICTIONS_OF_OWNER: u32 = 4;

/// How many more there may be: a round that fails after its evictions does not report what it listed.
const UNCOUNTED_EVICTIONS: u32 = 8;

/// The default of `DRAIN_WAIT_MAX_SECONDS`, which is in the limit of a drain in its record.
const DRAIN_WAIT_MAX: Duration = Duration::from_secs(3_600);

/// Writes in a row that leave an object as it is. Some replies are lost, and those writes are repeated.
const IDLE_WRITES: u32 = 5;

named_enum! {
    /// A change of a VM that a replica asks for.
    pub enum Act {
        ShutdownGuest = "ask the guest to shut down",
        PowerOff = "power off",
        PowerOn = "power on",
        Relocate = "relocate",
    }
}

/// What the rules need to remember.
#[derive(Debug, Default)]
pub struct Oracle {
    /// The rules that were broken.
    pub violations: Vec<String>,
    /// The highest epoch of an act.
    epoch: u64,
    /// By node: what is known beside its objects.
    pub nodes: Vec<NodeMemory>,
    /// The node whose kubelet lies. It may harm itself, and nobody else.
    pub liar: Option<usize>,
    /// When all replicas can know that etcd was restored.
    pub restored: Option<Duration>,
    /// The newest record that a replica has written to the Node of an honest kubelet.
    pub last_record: Option<Value>,
    /// By replica and object: the latest writes in a row that left it as it was.
    idle_writes: HashMap<(usize, Key), u32>,
    /// The most writes of replicas to a Node in a minute.
    pub most_writes: u64,
    /// By replica.
    requests: Vec<MinuteCount>,
    /// The most requests of a replica in a minute.
    pub most_requests: u64,
}

/// What the rules remember of a node.
#[derive(Clone, Debug, Default)]
pub struct NodeMemory {
    /// A person has cordoned it while it was schedulable, and nobody but persons may uncordon it.
    pub cordoned_by_person: bool,
    /// When a person has cordoned it last.
    pub person_cordoned: Option<Duration>,
    /// etcd was restored to a time before a person's cordon. A leader that remembers it leaves the node cordoned.
    pub cordon_is_forgotten: bool,
    /// When it last became schedulable by somebody else than a replica: a person, the driver manager, or a restore.
    pub schedulable_since: Option<Duration>,
    /// When the last reason to keep its VM off ended: the maintenance of its host, or a request.
    pub cause_ended: Option<Duration>,
    /// When the drain of the present episode began.
    pub drain_began: Option<Duration>,
    /// Until when the drain has time by settings that allow less than its record.
    has_time_until: Duration,
    /// When a person last annotated its Node with what the controller follows.
    pub overridden: Option<Duration>,
    /// Since when a hook holds that drain.
    pub drain_held: Option<Duration>,
    /// Since when a pod could be evicted in a drain, and is not.
    pub undone_since: Option<Duration>,
    /// How many times somebody gave a reason to power the VM off.
    pub causes: u32,
    /// How many times a replica powered it off, the last boot that it ended, and how many times it was before the present episode.
    pub cuts: u32,
    last_cut: u32,
    pub cuts_before: u32,
    /// When its record was last removed from the Node.
    pub record_removed: Option<Duration>,
    /// Its record was removed, from the Node and with no copy on a NodeMaintenance. Nothing says any more that its VM was powered
    /// off, that its guest was asked to shut down, or who has cordoned it.
    pub is_lost: bool,
    /// The id of the present episode.
    episode: String,
    /// The episodes whose drain has begun. Each was approved, and goes on after a restore of etcd.
    drains: BTreeSet<String>,
    /// When its guest began to shut down.
    pub guest_asked: Duration,
    /// When a request to its guest was sent last in the present episode that was not refused, answered or not.
    pub guest_sent: Option<Duration>,
    /// When the phase changed last.
    pub phase_since: Duration,
    /// Since when each rule about what may not last is broken.
    pub lasting: BTreeMap<&'static str, Duration>,
    /// How many evictions of the pod that its controller pins to the node were accepted, and how many may be.
    pinned_evictions: u32,
    pinned_evictions_max: u32,
    /// The same when the present episode began.
    pinned_evictions_before: u32,
    /// The writes of replicas in the current minute.
    writes: MinuteCount,
    /// All that was done to it.
    pub effects: NodeEffects,
}

/// How often something happened in the current minute.
#[derive(Clone, Debug, Default)]
struct MinuteCount {
    minute: u64,
    count: u64,
}

impl MinuteCount {
    /// Counts one, and returns the count.
    fn add(&mut self) -> u64 {
        let minute = clock::elapsed().as_secs() / 60;
        if self.minute != minute {
            *self = Self { minute, count: 0 };
        }
        self.count += 1;
        self.count
    }
}

pub fn record(node: &Value) -> Option<Value> {
    let text = node["metadata"]["annotations"][EPISODE].as_str()?;
    serde_json::from_str(text).ok()
}

/// Whether a Node was created from the manifest of an earlier one, and has its record.
pub fn is_from_manifest(node: &Value) -> bool {
    record(node).is_some_and(|record| record["nodeUid"] != node["metadata"]["uid"])
}

/// The phase of a record, and what it holds.
pub fn phase(record: &Value) -> (String, Value) {
    match &record["phase"] {
        Value::String(name) => (name.clone(), Value::Null),
        Value::Object(object) => {
            let first = object.iter().next();
            first.map_or_else(Default::default, |(name, inside)| (name.clone(), inside.clone()))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => (String::new(), Value::Null),
    }
}

/// The kind of a phase by its name in a record, as in `shuttingDown`; empty without a record.
fn phase_kind(name: &str) -> Option<PhaseKind> {
    let is_it = |kind: &&PhaseKind| kind.name().eq_ignore_ascii_case(name);
    match name {
        "" => Some(PhaseKind::InService),
        _ => PhaseKind::ALL.iter().find(is_it).copied(),
    }
}

/// The drain timeout in a record; the longest time there is where the drain is held.
fn recorded_drain_timeout(record: &Value) -> Option<Duration> {
    let limit = &record["drainLimit"];
    if limit == "hold" {
        return Some(Duration::MAX);
    }
    let limit = Duration::from_millis(limit["after"].as_u64()?);
    Some(limit.saturating_sub(DRAIN_WAIT_MAX))
}

/// The phase at work: that of a parked node is the one that resumes.
pub(crate) fn phase_at_work(record: &Value) -> (String, Value) {
    let (name, inside) = phase(record);
    match name.as_str() {
        "parked" => phase(&serde_json::json!({"phase": inside["resume"]})),
        _ => (name, inside),
    }
}

impl Oracle {
    /// etcd was restored, and with it cordons, Leases, records and requests.
    pub fn restored(&mut self, memory: &[NodeMemory], now: Duration) {
        self.restored = Some(now);
        for (node, then) in self.nodes.iter_mut().zip(memory) {
            node.cordon_is_forgotten |= node.cordoned_by_person && !then.cordoned_by_person;
            node.cordoned_by_person = then.cordoned_by_person;
            if then.cordoned_by_person {
                // No leader has seen it, as if it were new.
                node.person_cordoned = Some(now);
            }
            node.schedulable_since = Some(now);
            node.cause_ended = Some(now);
            node.pinned_evictions_max += EVICTIONS_OF_OWNER;
            node.drain_held = None;
            // The record of the last power-off may be gone.
            node.causes += 1;
            if then.cuts < node.cuts {
                // The record is one from before that power-off.
                node.cuts_before = node.cuts;
            }
        }
    }
}

impl World {
    /// A rule is broken.
    pub fn violated(&mut self, rule: &str, what: String) {
        self.tell("VIOLATION", format!("{rule}: {what}"));
        self.oracle.violations.push(format!("{rule}: {what}"));
    }

    pub fn count_request(&mut self, replica: usize) {
        let requests = &mut self.oracle.requests;
        requests.resize(requests.len().max(replica + 1), MinuteCount::default());
        let count = requests[replica].add();
        self.oracle.most_requests = self.oracle.most_requests.max(count);
        if count == REQUESTS_PER_MINUTE {
            self.violated(
                "requests are bounded",
                format!("replica-{replica} sent {count} in a minute"),
            );
        }
    }

    fn count_write(&mut self, node: usize) {
        let count = self.oracle.nodes[node].writes.add();
        self.oracle.most_writes = self.oracle.most_writes.max(count);
        if count == WRITES_PER_MINUTE {
            self.violated(
                "writes to a Node are bounded",
                format!("{} was written {count} times in a minute", node_name(node)),
            );
        }
    }

    /// Counts the writes in a row of a replica that leave an object as it is.
    pub fn check_idle_write(&mut self, replica: usize, key: &Key, is_idle: bool) {
        // After a restore of etcd, replies have lower versions than what is known and are not taken over.
        let counts = is_idle && self.oracle.restored.is_none();
        let count = self.oracle.idle_writes.entry((replica, key.clone())).or_default();
        *count = if counts { *count + 1 } else { 0 };
        if *count == IDLE_WRITES {
            let (kind, _, name) = key;
            self.violated(
                "a write that changes nothing is not repeated",
                format!("replica-{replica} wrote {kind}/{name}"),
            );
        }
    }

    /// Whether etcd was restored a moment ago, so that records and the status of Nodes are old.
    pub(crate) fn was_restored(&self) -> bool {
        let restored = self.oracle.restored;
        restored.is_some_and(|at| clock::elapsed() < at + STALE * 3)
    }

    /// Whether anybody wants the VM of this node off, or did a moment ago.
    fn has_cause(&self, node: usize) -> bool {
        let host = &self.vcenter.hosts[self.vcenter.vms[node].host];
        let is_asked = !host.takes_vms() || self.has_request(node);
        let ended = self.oracle.nodes[node].cause_ended;
        is_asked || ended.is_some_and(|at| clock::elapsed() < at + STALE)
    }

    /// The record on the Node of a node.
    pub fn record_on(&self, node: usize) -> Option<Value> {
        record(self.kube.get(&node_key(node))?)
    }

    /// Whether a NodeMaintenance has a copy of the record of a node. One that its Node names as ended is only not closed yet.
    pub fn has_copy(&self, node: usize) -> bool {
        self.copy_of(node).is_some()
    }

    /// The record in the open NodeMaintenance of a node.
    pub fn copy_of(&self, node: usize) -> Option<Value> {
        let name = node_name(node);
        let last = self.kube.get(&node_key(node)).map(|node| {
            node["metadata"]["annotations"][LAST_EPISODE]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        });
        self.kube.list("nodemaintenances").find_map(|(_, object)| {
            let status = &object["status"];
            let is_over = !status["endedAt"].is_null()
                || status["episode"]
                    .as_str()
                    .zip(last.as_deref())
                    .is_some_and(|(id, last)| last.contains(id));
            let is_its = object["spec"]["nodeName"] == name.as_str() && !is_over;
            let record = status["record"].as_str().filter(|_| is_its)?;
            serde_json::from_str(record).ok()
        })
    }

    /// Whether there is a request for a node.
    pub fn has_request(&self, node: usize) -> bool {
        let name = node_name(node);
        // A wall clock that steps reaches the time of a request too early.
        let is_exact = !self.plan.faults.has(Fault::ClockSteps);
        self.kube.list("nodemaintenances").any(|(key, object)| {
            let from = self.requests_from.get(&key.2).filter(|_| is_exact);
            if from.is_some_and(|from| clock::elapsed() < *from) {
                return false;
            }
            let is_request = object["spec"]["origin"] != "Episode" && object["status"]["endedAt"].is_null();
            object["spec"]["nodeName"] == name.as_str() && is_request
        })
    }

    /// Checks an act at the moment at which vCenter carries it out.
    pub fn check_act(&mut self, act: Act, vm: usize, epoch: u64) {
        let name = self.vcenter.vms[vm].name.clone();
        self.account.count("act", act.name());
        if !self.vcenter.vms[vm].is_ours {
            self.violated("no act on the VM of others", format!("{act:?} of {name}"));
            return;
        }
        // A restore of etcd takes the Lease back, and with it the epoch.
        if epoch < self.oracle.epoch && self.oracle.restored.is_none() {
            let highest = self.oracle.epoch;
            self.violated(
                "one leader acts",
                format!("{act:?} of {name} in epoch {epoch} after {highest}"),
            );
        }
        self.oracle.epoch = self.oracle.epoch.max(epoch);
        let node = vm;
        if self.oracle.liar == Some(node) {
            return;
        }
        let Some(object) = self.kube.get(&node_key(node)).cloned() else {
            return;
        };
        if self.was_restored() {
            // Its record may be gone, and the leader that acts does not know it yet.
            self.oracle.nodes[node].is_lost |= record(&object).is_none() && !self.has_copy(node);
            return;
        }
        let Some(record) = record(&object) else {
            let removed = self.oracle.nodes[node].record_removed;
            if self.has_copy(node) || removed.is_some_and(|at| clock::elapsed() < at + STALE) {
                // The episode continues from the copy, or the leader does not know yet.
                return;
            }
            self.violated(
                "record, then act",
                format!("{act:?} of {name} without an episode"),
            );
            return;
        };
        self.check_overrides(act, node, &object);
        let (phase, end) = phase_at_work(&record);
        match act {
            Act::ShutdownGuest | Act::PowerOff => {
                if phase != "shuttingDown" {
                    self.violated("record, then act", format!("{act:?} of {name} in phase {phase}"));
                }
                if self.vcenter.vms[vm].on {
                    self.check_cut(node, &object, act, end == "timedOut");
                    self.check_count(node);
                    self.check_guest(node, act);
                    self.check_vmotion(node, act);
                }
            }
            Act::PowerOn => {
                self.check_power_on(node);
                self.check_taint(node);
            }
            Act::Relocate => {}
        }
    }

    /// A VM is not powered on while the request stands that keeps it off.
    fn check_power_on(&mut self, node: usize) {
        let name = node_name(node);
        // Without the right to watch NodeMaintenances, a new one is unknown for as long.
        let unknown_for = match self.plan.faults.has(Fault::KindForbidden) {
            true => STALE * 20,
            false => STALE * 3,
        };
        let of_node = self.kube.list("nodemaintenances").filter(|(_, object)| {
            let is_open = object["spec"]["origin"] != "Episode" && object["status"]["endedAt"].is_null();
            object["spec"]["nodeName"] == name.as_str() && is_open
        });
        // The oldest request counts.
        let first = of_node.max_by_key(|(_, object)| self.age(object));
        let keeps_off = first.filter(|(key, object)| {
            let has_begun = object["status"]["phase"]
                .as_str()
                .is_some_and(|phase| phase == "Running");
            let waits = object["status"]["state"].is_null();
            let is_late = self.requests_from.contains_key(&key.2);
            let is_it = object["spec"]["action"] == "PowerOff" && has_begun && !waits && !is_late;
            is_it && self.age(object) > unknown_for
        });
        if let Some(request) = keeps_off.map(|(key, _)| key.2.clone()) {
            self.violated(
                "a VM stays off while a request says so",
                format!("{name} is powered on, but {request} stands"),
            );
        }
    }

    /// A guest that shuts down has its time.
    fn check_guest(&mut self, node: usize, act: Act) {
        let memory = &self.oracle.nodes[node];
        let has_time = clock::elapsed() + STALE < memory.guest_asked + self.plan.least_guest_timeout();
        if act == Act::PowerOff && self.vcenter.vms[node].going_down && has_time && !memory.is_lost {
            self.violated("a guest has its time to shut down", node_name(node));
        }
        let memory = &self.oracle.nodes[node];
        let sent = memory.guest_sent;
        let had_time =
            sent.is_some_and(|at| clock::elapsed() + STALE >= at + self.plan.least_guest_timeout());
        let is_known = !memory.is_lost && self.oracle.restored.is_none();
        let can_be_asked = !self.vcenter.vms[node].tools_stopped;
        if act == Act::PowerOff && can_be_asked && is_known && !had_time {
            let sent = sent.map(|at| at.as_secs());
            self.violated(
                "a guest is asked before its power is cut, and has its time",
                format!("{}, asked at {sent:?} s", node_name(node)),
            );
        }
    }

    /// A VM that vCenter moves is not shut down. Faults may hide the move, so only runs without faults are looked at.
    fn check_vmotion(&mut self, node: usize, act: Act) {
        let task = self.vcenter.busy(node).map(|task| &self.vcenter.tasks[task]);
        let is_moved = task.is_some_and(|task| {
            matches!(task.work, Work::Vmotion { .. }) && clock::elapsed() > task.began + STALE
        });
        if act == Act::ShutdownGuest && is_moved && self.plan.faults.kinds() == 0 {
            self.violated("a VM that vCenter moves is not shut down", node_name(node));
        }
    }

    /// Notes that a request to shut the guest of a VM down is sent. Returns the VM, and when the one before was.
    pub(crate) fn guest_is_sent(&mut self, vm: &str) -> Option<(usize, Option<Duration>)> {
        let vm = crate::properties::number(vm)?;
        let memory = self.oracle.nodes.get_mut(vm)?;
        let before = memory.guest_sent.replace(clock::elapsed());
        Some((vm, before))
    }

    /// That request was refused.
    pub(crate) fn guest_is_refused(&mut self, (vm, before): (usize, Option<Duration>)) {
        self.oracle.nodes[vm].guest_sent = before;
    }

    /// A VM is powered off once for each reason.
    fn check_count(&mut self, node: usize) {
        let boots = self.vcenter.vms[node].boots;
        let memory = &mut self.oracle.nodes[node];
        if memory.last_cut == boots {
            return;
        }
        memory.last_cut = boots;
        memory.cuts += 1;
        let (cuts, causes) = (memory.cuts, memory.causes);
        if cuts > causes {
            let name = node_name(node);
            self.violated(
                "a VM is powered off once for each maintenance",
                format!("{name} for the {cuts}. time, for {causes} maintenances"),
            );
        }
    }

    /// Power is cut only after a drain that is still true, on a cordoned Node, and while somebody wants it.
    fn check_cut(&mut self, node: usize, object: &Value, act: Act, is_timed_out: bool) {
        let (name, now) = (node_name(node), clock::elapsed());
        let is_recent = |at: Option<Duration>| at.is_some_and(|at| now < at + STALE);
        if !is_cordoned(object) && !is_recent(self.oracle.nodes[node].schedulable_since) {
            self.violated(
                "power is cut on cordoned nodes only",
                format!("{act:?} of {name}"),
            );
        }
        if !self.has_cause(node) {
            self.violated(
                "power is cut while somebody asks for it",
                format!("{act:?} of {name}"),
            );
        }
        let pods = self.kube.list("pods").filter(|(_, pod)| {
            let is_here = pod["spec"]["nodeName"] == name.as_str() && blocks_drain(pod);
            // It comes back after each eviction, and ends with the VM.
            let memory = &self.oracle.nodes[node];
            let evicted = memory.pinned_evictions - memory.pinned_evictions_before;
            if pod["metadata"]["labels"]["app"] == "pinned" && evicted >= EVICTIONS_OF_OWNER {
                return false;
            }
            // Nobody ends a pod whose time to end is over and whose kubelet is gone.
            let is_left = !is_ready(object) && is_overdue(pod);
            is_here && !is_left && self.age(pod) > STALE
        });
        let pods: Vec<String> = pods.map(|(key, _)| key.2.clone()).collect();
        if !pods.is_empty() && !is_timed_out {
            self.violated(
                "no power is cut before the drain",
                format!("{act:?} of {name} with {}", pods.join(", ")),
            );
        }
        if is_timed_out {
            let began = self.oracle.nodes[node].drain_began.unwrap_or(now);
            if now.saturating_sub(began) + STALE < self.plan.least_drain_timeout() {
                let lasted = now.saturating_sub(began).as_secs();
                self.violated(
                    "a drain has its time",
                    format!("{act:?} of {name} after {lasted} s"),
                );
            }
            if now + STALE < self.oracle.nodes[node].has_time_until {
                self.violated(
                    "settings that change cut no drain short",
                    format!("{act:?} of {name}"),
                );
            }
        }
    }

    /// How long ago an object was created.
    fn age(&self, object: &Value) -> Duration {
        let created = object["metadata"]["creationTimestamp"]
            .as_str()
            .unwrap_or_default();
        let created: Option<jiff::Timestamp> = created.parse().ok();
        let age = created.map(|created| clock::true_time().duration_since(created));
        age.and_then(|age| Duration::try_from(age).ok())
            .unwrap_or_default()
    }

    /// Checks a write of a replica to a Node.
    pub fn check_node_write(
        &mut self,
        replica: usize,
        name: &str,
        patch: &Value,
        before: Option<&Value>,
        after: &Value,
    ) {
        let Some(node) = name
            .strip_prefix("gpu-")
            .and_then(|number| number.parse::<usize>().ok())
        else {
            return;
        };
        if patch.pointer("/metadata/resourceVersion").is_none() {
            self.violated(
                "a Node is written with its version",
                format!("replica-{replica} wrote {name}"),
            );
        }
        self.count_write(node);
        if self.oracle.liar == Some(node) {
            return;
        }
        let (was, is) = (before.is_some_and(is_cordoned), is_cordoned(after));
        let effects = &mut self.oracle.nodes[node].effects;
        effects.writes += 1;
        effects.cordons += u32::from(!was && is);
        effects.uncordons += u32::from(was && !is);
        let (old, new) = (before.and_then(record), record(after));
        if new.is_some() {
            self.oracle.last_record.clone_from(&new);
        }
        let (phase_before, _) = old.as_ref().map(phase).unwrap_or_default();
        let (phase_after, inside) = new.as_ref().map(phase).unwrap_or_default();
        self.note_settings(replica, node, old.as_ref(), (&phase_before, &phase_after));
        if phase_before != phase_after {
            let shown = phase_kind(&phase_after).map_or("another phase", PhaseKind::name);
            self.account.count("phase", shown);
            self.tell(
                format!("replica-{replica}"),
                format!("records {name}: {shown}{}", cordon_words(was, is)),
            );
            self.oracle.nodes[node].phase_since = clock::elapsed();
            if phase_after == "draining" {
                let episode = new
                    .as_ref()
                    .map(|record| record["id"].to_string())
                    .unwrap_or_default();
                let memory = &mut self.oracle.nodes[node];
                memory.pinned_evictions_max += EVICTIONS_OF_OWNER;
                // The times of several drains of an episode add up.
                let is_first = memory.episode != episode;
                if is_first {
                    memory.drain_began = Some(clock::elapsed());
                    memory.cuts_before = memory.cuts;
                    memory.guest_sent = None;
                    // Where only the record was removed, it is the same drain.
                    if !was {
                        memory.pinned_evictions_before = memory.pinned_evictions;
                    }
                }
                let is_new = memory.drains.insert(episode.clone());
                memory.episode = episode;
                if is_first {
                    self.drain_begins(node, before.unwrap_or(after), is_new);
                    self.settings_may_change_in_drain();
                }
            } else if phase_after != "parked" {
                self.oracle.nodes[node].drain_held = None;
            }
            if phase_after == "parked" {
                let reason = inside["reason"]["kind"].as_str().unwrap_or_default();
                self.account.count("parked", reason);
            }
        } else if was != is {
            self.tell(
                format!("replica-{replica}"),
                format!("writes {name}{}", cordon_words(was, is)),
            );
        }
        // Another leader, or another cordon: the pods that are there are evicted again.
        let is_taken_over =
            old.is_some() && new.as_ref().map(|it| &it["epoch"]) != old.as_ref().map(|it| &it["epoch"]);
        if is_taken_over || !was && is {
            self.oracle.nodes[node].pinned_evictions_max += EVICTIONS_OF_OWNER;
        }
        if !was && is && new.as_ref().is_some_and(|record| record["cordon"] == "theirs") {
            // A cordon of somebody else is restored while the VM is off, and stays.
            self.oracle.nodes[node].cordoned_by_person = true;
        }
        if let Some(before) = before {
            self.keeps_cordon(node, before, after);
        }
        if was && !is {
            self.check_uncordon(replica, node, before.unwrap_or(after));
        }
    }

    /// Notes that a process goes on with a drain for which its settings allow less than the record. Less time counts from then.
    fn note_settings(
        &mut self,
        replica: usize,
        node: usize,
        record: Option<&Value>,
        (before, after): (&str, &str),
    ) {
        let allowed = self.settings_of(self.runs_other_settings[replica]).drain_timeout;
        let recorded = record.and_then(recorded_drain_timeout);
        let memory = &mut self.oracle.nodes[node];
        if before == "draining" && recorded.is_some_and(|recorded| allowed < recorded) {
            memory.has_time_until = clock::elapsed() + allowed;
        } else if before != "draining" && after == "draining" {
            memory.has_time_until = Duration::ZERO;
        }
    }

    fn check_uncordon(&mut self, replica: usize, node: usize, before: &Value) {
        let name = node_name(node);
        if self.oracle.nodes[node].cordoned_by_person {
            self.violated("a person's cordon stays", name.clone());
        }
        let (memory, vm) = (&self.oracle.nodes[node], &self.vcenter.vms[node]);
        let was_asked_once = memory.cuts == memory.cuts_before + 1 && memory.last_cut == vm.boots;
        // vCenter refused to ask the guest, or the guest stays up.
        let has_stayed_on = was_asked_once && vm.on && !vm.going_down;
        if memory.cuts == memory.cuts_before || has_stayed_on || self.was_restored() {
            // It returns as it was before the episode.
            return;
        }
        // While vCenter says nothing, only the Node tells that it is gone.
        let silent_until = self.cut_off[replica]
            .vcenter_until
            .max(self.vcenter.withheld_until);
        let vm = &self.vcenter.vms[node];
        let is_off = !vm.is_shown_on() && clock::elapsed() > vm.off_since.max(silent_until) + STALE;
        if is_off || !is_ready(before) {
            self.violated(
                "a node is uncordoned when it is back",
                format!("{name} is not Ready or off"),
            );
        }
        let boots = self.vcenter.vms[node].boots;
        let boot = format!("boot-{node}-{boots}");
        // A person may have started it again; then there was another boot in the episode in any case.
        let is_next = boots == self.oracle.nodes[node].last_cut + 1;
        if is_next && before["status"]["nodeInfo"]["bootID"] != boot.as_str() {
            self.violated(
                "a node is uncordoned when it is back",
                format!("{name} does not report {boot}"),
            );
        }
        // Without the right to write the status of Nodes, the count of the last boot is believed.
        let may_be_refused = self.plan.faults.has(Fault::KindForbidden);
        if is_next && !may_be_refused && self.vcenter.vms[node].plugin != boots {
            self.violated(
                "a node is uncordoned when it is back",
                format!("{name} shows the GPU count of its last boot"),
            );
        }
        if before["status"]["allocatable"]["nvidia.com/gpu"] != "1" {
            self.violated(
                "a node is uncordoned when it is back",
                format!("{name} has no GPU"),
            );
        }
    }

    /// Pods are evicted from cordoned Nodes only, or the next ones would be evicted as well.
    pub fn check_eviction(&mut self, pod: &Value) {
        let name = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
        let node = name
            .strip_prefix("gpu-")
            .and_then(|node| node.parse::<usize>().ok());
        let Some(node) = node.filter(|node| self.oracle.liar != Some(*node)) else {
            return;
        };
        self.check_hold(node, pod);
        let uncordoned = self.oracle.nodes[node].schedulable_since;
        // A watch that was cut off, or opened meanwhile, is noticed after its silence only, also where other connections work again.
        let cut_off = self.cut_off.iter().map(|replica| replica.kubernetes_until).max();
        let cut_off = cut_off.filter(|until| !until.is_zero());
        let is_recent = uncordoned.is_some_and(|at| {
            let seen_from = cut_off.map_or(at, |until| at.max(until.min(at) + WATCH_SILENT));
            clock::elapsed() < seen_from + STALE_AT_EVICTION
        });
        let is_open = self
            .kube
            .get(&node_key(node))
            .is_some_and(|node| !is_cordoned(node));
        if is_open && !is_recent {
            self.violated(
                "pods are evicted from cordoned nodes only",
                format!("{} of {name}", pod["metadata"]["name"]),
            );
        }
    }

    /// A replica has started: it does not know what was evicted before.
    pub fn replica_starts(&mut self) {
        for memory in &mut self.oracle.nodes {
            memory.pinned_evictions_max += EVICTIONS_OF_OWNER;
        }
    }

    /// The eviction of a pod is accepted. One that comes back is evicted a few times in a drain.
    pub fn check_pinned_eviction(&mut self, app: &str) {
        let workload = self.workloads.iter().find(|workload| workload.name == app);
        let Some(node) = workload.and_then(|workload| workload.pinned) else {
            return;
        };
        self.account.count("fault", "pod: comes back by spec.nodeName");
        if self.oracle.liar == Some(node) {
            return;
        }
        let memory = &mut self.oracle.nodes[node];
        memory.pinned_evictions += 1;
        let (count, most) = (
            memory.pinned_evictions,
            memory.pinned_evictions_max + UNCOUNTED_EVICTIONS,
        );
        if count > most {
            self.violated(
                "evictions of a pod that comes back are bounded",
                format!(
                    "{count} of {app} on {}, where {most} are for its drains",
                    node_name(node)
                ),
            );
        }
    }

    /// No pod is ever deleted.
    pub fn check_delete(&mut self, key: &Key) {
        if key.0 == "pods" || key.0 == "nodes" {
            self.violated(
                "pods are evicted, never deleted",
                format!("DELETE {}/{}", key.0, key.2),
            );
        }
    }

    /// Counts what a NodeMaintenance says that is waited for.
    pub fn note_status(&mut self, object: &Value) {
        if object["spec"]["origin"] == "Request" {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            self.check_not_due(name, object);
        }
        if let Some(reason) = object["status"]["waitingOn"]["reason"].as_str() {
            self.account.count("wait", reason);
        }
    }
}

fn cordon_words(was: bool, is: bool) -> &'static str {
    match (was, is) {
        (false, true) => ", cordoned",
        (true, false) => ", uncordoned",
        _ => "",
    }
}
