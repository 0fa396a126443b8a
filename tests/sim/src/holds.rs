//! What people hold or let go on, hooks and approvals, and the rules that follow.

use std::time::Duration;

use fastrand::Rng;
use haulout::keys::{APPROVED, OUT_OF_SERVICE_TAINT, SKIP};
use serde_json::{Value, json};

use crate::clock;
use crate::cluster::{blocks_drain, node_key, node_name};
use crate::oracle::{STALE, STALE_AT_EVICTION, phase, phase_at_work, record};
use crate::people::Deed;
use crate::store::is_cordoned;
use crate::world::{World, WorldEvent};

/// The steps that a hook holds.
const POINTS: [&str; 3] = [PRE_DRAIN, "pre-poweroff", "pre-uncordon"];

const PRE_DRAIN: &str = "pre-drain";

/// How often drains are looked at in a run without faults.
const LOOK: Duration = Duration::from_secs(10);

/// How long an eviction that is possible may be left undone: the interval of retries, with a margin.
const UNDONE: Duration = Duration::from_secs(120);

/// What people may hold in a run, and for how long.
#[derive(Clone, Debug, Default)]
pub struct Holds {
    /// How many hooks they set.
    pub hooks: usize,
    /// `REQUIRE_APPROVAL`.
    needs_approval: bool,
    /// `HOOK_TIMEOUT_SECONDS`.
    hook_timeout: Duration,
    /// `HOOK_TIMEOUT_ACTION` is `proceed`.
    hook_proceeds: bool,
}

impl Holds {
    /// What is held in a run with this many nodes.
    pub fn draw(nodes: usize, rng: &mut Rng) -> Self {
        Self {
            hooks: rng.usize(0..=2 + nodes / 2),
            needs_approval: rng.u32(0..5) == 0,
            hook_timeout: Duration::from_secs(rng.u64(60..1_200)),
            hook_proceeds: rng.bool(),
        }
    }

    /// The settings about them, as flags. All replicas have them.
    pub fn flags(&self) -> Vec<String> {
        if self.hooks == 0 && !self.needs_approval {
            return Vec::new();
        }
        let action = if self.hook_proceeds { "proceed" } else { "hold" };
        vec![
            format!("--require-approval={}", self.needs_approval),
            format!("--hook-timeout-seconds={}", self.hook_timeout.as_secs()),
            format!("--hook-timeout-action={action}"),
        ]
    }
}

fn hook_key(point: &str) -> String {
    format!("{point}.hook.haulout.dev/simulated")
}

fn has_hook(node: &Value, point: &str) -> bool {
    !node["metadata"]["annotations"][hook_key(point)].is_null()
}

impl World {
    /// Schedules hooks and approvals.
    pub fn plan_holds(&mut self) {
        let active = self.plan.active.as_secs();
        for _ in 0..self.plan.holds.hooks {
            let at = Duration::from_secs(self.rng.u64(1..active / 2));
            let node = self.any_node();
            let point = POINTS[self.rng.usize(0..POINTS.len())];
            self.queue
                .after(at, WorldEvent::Deed(Deed::Hooks { node, point }));
        }
        if self.plan.holds.needs_approval {
            self.within(5..30, WorldEvent::Deed(Deed::Approves));
        }
        if self.plan.faults.kinds() == 0 {
            self.queue.after(LOOK, WorldEvent::LookAtDrains);
        }
    }

    /// A person sets a hook, and removes it later.
    pub(crate) fn person_hooks(&mut self, node: usize, point: &'static str) {
        if self.kube.get(&node_key(node)).is_none() {
            return;
        }
        self.tell("person", format!("sets the hook {point} on {}", node_name(node)));
        self.kube.change(&node_key(node), "kubectl-annotate", |node| {
            node["metadata"]["annotations"][hook_key(point)] = json!("simulated");
        });
        self.within(60..900, WorldEvent::Deed(Deed::Unhooks { node, point }));
    }

    /// A person removes a hook.
    pub(crate) fn person_unhooks(&mut self, node: usize, point: &str) {
        let is_set = |node: &Value| has_hook(node, point);
        if !self.kube.get(&node_key(node)).is_some_and(|node| is_set(node)) {
            return;
        }
        self.tell(
            "person",
            format!("removes the hook {point} from {}", node_name(node)),
        );
        if point == PRE_DRAIN {
            self.oracle.nodes[node].drain_held = None;
        }
        self.kube.change(&node_key(node), "kubectl-annotate", |node| {
            if let Some(annotations) = node["metadata"]["annotations"].as_object_mut() {
                annotations.remove(&hook_key(point));
            }
        });
    }

    /// A person approves the drains for which nodes wait, most of the time, and comes back.
    pub(crate) fn person_approves(&mut self) {
        for node in 0..self.plan.nodes {
            let id = self.record_on(node).map(|record| record["id"].clone());
            let approved = self.kube.get(&node_key(node)).map(|node| {
                let annotations = &node["metadata"]["annotations"];
                annotations[APPROVED].clone()
            });
            if id.is_none() || approved == id || self.rng.u32(0..4) == 0 {
                continue;
            }
            self.tell("person", format!("approves the drain of {}", node_name(node)));
            self.kube.change(&node_key(node), "kubectl-annotate", |node| {
                node["metadata"]["annotations"][APPROVED] = json!(id);
            });
        }
        self.within(10..60, WorldEvent::Deed(Deed::Approves));
    }

    /// All hooks are removed.
    pub(crate) fn hooks_end(&mut self) {
        for node in 0..self.plan.nodes {
            for point in POINTS {
                self.person_unhooks(node, point);
            }
        }
    }

    /// A replica begins a drain, or goes on with an earlier one after a restore of etcd: a hook that is there holds it, and one that is
    /// new is approved.
    pub(crate) fn drain_begins(&mut self, node: usize, before: &Value, is_new: bool) {
        let memory = &mut self.oracle.nodes[node];
        memory.drain_held = has_hook(before, PRE_DRAIN).then(clock::elapsed);
        // The write that begins the drain uses the approval up.
        let is_approved = !before["metadata"]["annotations"][APPROVED].is_null();
        if self.plan.holds.needs_approval && is_new && !is_approved && !self.was_restored() {
            self.violated("a drain begins when it is approved", node_name(node));
        }
    }

    /// No pod is evicted while a hook from before the cordon is on the Node, unless its time is over and the setting is to proceed.
    pub(crate) fn check_hold(&mut self, node: usize, pod: &Value) {
        let Some(since) = self.oracle.nodes[node].drain_held else {
            return;
        };
        let Some(object) = self.kube.get(&node_key(node)) else {
            return;
        };
        let lasts = clock::elapsed().saturating_sub(since);
        let is_held = record(object).is_some_and(|record| phase_at_work(&record).0 == "draining");
        // An eviction of an earlier leader may arrive late.
        let is_late = lasts < STALE_AT_EVICTION || self.was_restored();
        let proceeds = self.plan.holds.hook_proceeds && lasts >= self.plan.holds.hook_timeout;
        if has_hook(object, PRE_DRAIN) && is_held && !is_late && !proceeds {
            let what = format!("{} of {}", pod["metadata"]["name"], node_name(node));
            self.violated("a hook holds the first eviction", what);
        }
    }

    /// No power-on is sent under an out-of-service taint of ours.
    pub(crate) fn check_taint(&mut self, node: usize) {
        let Some(object) = self.kube.get(&node_key(node)) else {
            return;
        };
        let taints = object["spec"]["taints"].as_array();
        let has_taint = |taint: &Value| taint["key"] == OUT_OF_SERVICE_TAINT;
        // One from the manifest of an earlier Node counts as that of a person, as its cordon does.
        let is_recorded = record(object).is_some_and(|record| {
            let guards = record["guards"].as_array();
            guards.is_some_and(|guards| guards.iter().any(|guard| guard == "out-of-service-taint"))
        });
        let is_tainted = is_recorded && taints.into_iter().flatten().any(has_taint);
        // The request before the present phase may arrive late.
        let is_late = clock::elapsed() < self.oracle.nodes[node].phase_since + STALE * 3;
        if is_tainted && !is_late {
            self.violated(
                "no power-on is sent under the out-of-service taint",
                node_name(node),
            );
        }
    }

    /// A drain goes on whatever holds the step after it. Faults may delay it, so only runs without faults are looked at.
    pub(crate) fn look_at_drains(&mut self) {
        if self.faults_are_over() {
            return;
        }
        self.queue.after(LOOK, WorldEvent::LookAtDrains);
        let now = clock::elapsed();
        for node in 0..self.plan.nodes {
            let undone = self.undone_eviction(node);
            let memory = &mut self.oracle.nodes[node];
            let since = memory.undone_since.unwrap_or(now);
            memory.undone_since = undone.is_some().then_some(since);
            if let Some(pod) = undone.filter(|_| now > since + UNDONE) {
                let lasts = (now - since).as_secs();
                self.violated(
                    "a drain goes on while something holds the shutdown",
                    format!("{pod} of {} could be evicted for {lasts} s", node_name(node)),
                );
            }
        }
    }

    /// A pod that could be evicted in a drain that nothing holds.
    fn undone_eviction(&self, node: usize) -> Option<String> {
        let object = self.kube.get(&node_key(node))?;
        let record = record(object)?;
        let vm = &self.vcenter.vms[node];
        let (name, inside) = phase(&record);
        let is_parked_for_another = name == "parked" && inside["reason"]["kind"] != "overdue";
        let is_wanted = vm.on && !self.vcenter.hosts[vm.host].takes_vms() && is_cordoned(object);
        if phase_at_work(&record).0 != "draining"
            || is_parked_for_another
            || has_hook(object, PRE_DRAIN)
            || !object["metadata"]["annotations"][SKIP].is_null()
            || !is_wanted
        {
            return None;
        }
        let here = node_name(node);
        let is_evictable = |pod: &Value| {
            // It comes back after each eviction, and is left at last.
            let is_pinned = pod["metadata"]["labels"]["app"] == "pinned";
            let is_here = pod["spec"]["nodeName"] == here.as_str() && !is_pinned;
            is_here && blocks_drain(pod) && self.may_be_evicted(pod)
        };
        let mut pods = self.kube.list("pods");
        pods.find(|(_, pod)| is_evictable(pod))
            .map(|(key, _)| key.2.clone())
    }
}
