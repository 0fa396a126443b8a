//! The rules that hold at any moment (DESIGN §3), and those that hold in the end.

use std::time::Duration;

use haulout::keys::{DEFAULT_PREFIX, Keys};
use haulout_core::maintenance::kinds::PhaseKind;
use haulout_core::named_enum;
use serde_json::Value;

use crate::clock;
use crate::cluster::{blocks_drain, is_ready, node_key, node_name};
use crate::store::{Key, is_cordoned};
use crate::world::World;

/// How old the knowledge may be on which a request is sent: the delays of the request, and of the check before it.
const STALE: Duration = Duration::from_secs(12);

/// Requests of one replica in a minute that are far above those of any fault.
const REQUESTS_PER_MINUTE: u64 = 3_000;

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
    /// By replica: the current minute, and its requests.
    requests: Vec<(u64, u64)>,
    /// The most requests of a replica in a minute.
    pub most_requests: u64,
}

/// What the rules remember of a node.
#[derive(Clone, Debug, Default)]
pub struct NodeMemory {
    /// A person has cordoned it while it was schedulable, and nobody but persons may uncordon it.
    pub cordoned_by_person: bool,
    /// When a person has uncordoned it last.
    pub uncordoned_by_person: Option<Duration>,
    /// When a maintenance was last asked for: of its host, or by a request.
    pub cause_ended: Option<Duration>,
    /// When the drain of the present episode began.
    pub drain_began: Option<Duration>,
}

/// The record on a Node.
pub fn record(node: &Value) -> Option<Value> {
    let key = Keys::under(DEFAULT_PREFIX).episode;
    let text = node["metadata"]["annotations"][key].as_str()?;
    serde_json::from_str(text).ok()
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

/// The phase at work: that of a parked node is the one that resumes.
fn phase_at_work(record: &Value) -> (String, Value) {
    let (name, inside) = phase(record);
    match name.as_str() {
        "parked" => phase(&serde_json::json!({"phase": inside["resume"]})),
        _ => (name, inside),
    }
}

impl World {
    /// A rule is broken.
    pub fn violated(&mut self, rule: &str, what: String) {
        self.tell("VIOLATION", format!("{rule}: {what}"));
        self.oracle.violations.push(format!("{rule}: {what}"));
    }

    /// Counts a request of a replica.
    pub fn count_request(&mut self, replica: usize) {
        let minute = clock::elapsed().as_secs() / 60;
        let requests = &mut self.oracle.requests;
        requests.resize(requests.len().max(replica + 1), (0, 0));
        let (of, count) = &mut requests[replica];
        if *of != minute {
            (*of, *count) = (minute, 0);
        }
        *count += 1;
        let count = *count;
        self.oracle.most_requests = self.oracle.most_requests.max(count);
        if count == REQUESTS_PER_MINUTE {
            self.violated(
                "requests are bounded",
                format!("replica-{replica} sent {count} in a minute"),
            );
        }
    }

    /// Whether anybody wants the VM of this node off, or did a moment ago.
    fn has_cause(&self, node: usize) -> bool {
        let host = &self.vcenter.hosts[self.vcenter.vms[node].host];
        let is_asked = !host.takes_vms() || self.has_request(node);
        let ended = self.oracle.nodes[node].cause_ended;
        is_asked || ended.is_some_and(|at| clock::elapsed() < at + STALE)
    }

    /// Whether there is a request for a node.
    pub fn has_request(&self, node: usize) -> bool {
        let name = node_name(node);
        self.kube.list("nodemaintenances").any(|(_, object)| {
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
        if epoch < self.oracle.epoch {
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
        let Some(record) = record(&object) else {
            self.violated(
                "record, then act",
                format!("{act:?} of {name} without an episode"),
            );
            return;
        };
        let (phase, end) = phase_at_work(&record);
        match act {
            Act::ShutdownGuest | Act::PowerOff => {
                if phase != "shuttingDown" {
                    self.violated("record, then act", format!("{act:?} of {name} in phase {phase}"));
                }
                if self.vcenter.vms[vm].on {
                    self.check_cut(node, &object, act, end == "timedOut");
                }
            }
            Act::PowerOn | Act::Relocate => {}
        }
    }

    /// Power is cut only after a drain that is still true, on a cordoned Node, and while somebody wants it.
    fn check_cut(&mut self, node: usize, object: &Value, act: Act, is_timed_out: bool) {
        let (name, now) = (node_name(node), clock::elapsed());
        let is_recent = |at: Option<Duration>| at.is_some_and(|at| now < at + STALE);
        if !is_cordoned(object) && !is_recent(self.oracle.nodes[node].uncordoned_by_person) {
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
            is_here && self.bound_for(pod) > STALE
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
            if now.saturating_sub(began) + STALE < self.plan.drain_timeout {
                let lasted = now.saturating_sub(began).as_secs();
                self.violated(
                    "a drain has its time",
                    format!("{act:?} of {name} after {lasted} s"),
                );
            }
        }
    }

    /// How long ago a pod was created.
    fn bound_for(&self, pod: &Value) -> Duration {
        let created = pod["metadata"]["creationTimestamp"].as_str().unwrap_or_default();
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
        if self.oracle.liar == Some(node) {
            return;
        }
        let (was, is) = (before.is_some_and(is_cordoned), is_cordoned(after));
        let (old, new) = (before.and_then(record), record(after));
        let (phase_before, _) = old.as_ref().map(phase).unwrap_or_default();
        let (phase_after, inside) = new.as_ref().map(phase).unwrap_or_default();
        if phase_before != phase_after {
            let shown = phase_kind(&phase_after).map_or("another phase", PhaseKind::name);
            self.account.count("phase", shown);
            self.tell(
                format!("replica-{replica}"),
                format!("records {name}: {shown}{}", cordon_words(was, is)),
            );
            if phase_after == "draining" {
                self.oracle.nodes[node].drain_began = Some(clock::elapsed());
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
        if !was && is && new.as_ref().is_some_and(|record| record["cordon"] == "theirs") {
            // A cordon of somebody else is restored while the VM is off, and stays.
            self.oracle.nodes[node].cordoned_by_person = true;
        }
        if was && !is {
            self.check_uncordon(node, before.unwrap_or(after));
        }
    }

    fn check_uncordon(&mut self, node: usize, before: &Value) {
        let name = node_name(node);
        if self.oracle.nodes[node].cordoned_by_person {
            self.violated("a person's cordon stays", name.clone());
        }
        let vm = &self.vcenter.vms[node];
        let is_off = !vm.on && clock::elapsed() > vm.off_since + STALE;
        if is_off || !is_ready(before) {
            self.violated(
                "a node is uncordoned when it is back",
                format!("{name} is not Ready or off"),
            );
        }
        let boot = format!("boot-{node}-{}", self.vcenter.vms[node].boots);
        if before["status"]["nodeInfo"]["bootID"] != boot.as_str() {
            self.violated(
                "a node is uncordoned when it is back",
                format!("{name} does not report {boot}"),
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
        let uncordoned = self.oracle.nodes[node].uncordoned_by_person;
        let is_recent = uncordoned.is_some_and(|at| clock::elapsed() < at + STALE);
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
        if let Some(reason) = object["status"]["waitingOn"]["reason"].as_str() {
            self.account.count("wait", reason);
        }
    }

    /// Tells the records and the waits of nodes in an episode.
    pub fn tell_records(&mut self) {
        for node in 0..self.plan.nodes {
            let record = self.kube.get(&node_key(node)).and_then(|node| record(node));
            if let Some(record) = record {
                self.tell(node_name(node), record.to_string());
            }
        }
        let open = self
            .kube
            .list("nodemaintenances")
            .filter(|(_, object)| object["status"]["endedAt"].is_null());
        let waits = open
            .map(|(key, object)| format!("{} waits for {}", key.2, object["status"]["waitingOn"]["message"]));
        for wait in waits.collect::<Vec<_>>() {
            self.tell("record", wait);
        }
    }

    /// Why the run is not at rest; empty if it is.
    pub fn unrest(&self) -> Vec<String> {
        let mut unrest = Vec::new();
        let honest = (0..self.plan.nodes).filter(|node| self.oracle.liar != Some(*node));
        for node in honest {
            let name = node_name(node);
            let Some(object) = self.kube.get(&node_key(node)) else {
                if !self.vcenter.vms[node].off_by_person {
                    unrest.push(format!("{name} is not registered"));
                }
                continue;
            };
            let memory = &self.oracle.nodes[node];
            if let Some(record) = record(object) {
                let (phase, inside) = phase(&record);
                unrest.push(format!("{name} is in phase {phase} {inside}"));
            }
            let vm = &self.vcenter.vms[node];
            if !vm.on && !vm.off_by_person {
                unrest.push(format!("{} is off", vm.name));
            }
            if vm.on && !is_ready(object) {
                unrest.push(format!("{name} is not Ready"));
            }
            if is_cordoned(object) != memory.cordoned_by_person && vm.on {
                let is = if is_cordoned(object) {
                    "cordoned"
                } else {
                    "schedulable"
                };
                unrest.push(format!("{name} is {is}"));
            }
        }
        unrest
    }
}

fn cordon_words(was: bool, is: bool) -> &'static str {
    match (was, is) {
        (false, true) => ", cordoned",
        (true, false) => ", uncordoned",
        _ => "",
    }
}
