//! The rules that hold in the end: everything comes to rest, and until then each episode says what it waits for.

use std::time::Duration;

use haulout::keys::{LAST_EPISODE, SKIP};
use serde_json::Value;

use crate::clock;
use crate::cluster::{is_ready, node_key, node_name};
use crate::cluster_faults::RESTORES_CORDON;
use crate::oracle::{phase, record};
use crate::store::is_cordoned;
use crate::world::World;

/// How long a phase may last before its record has to say what is waited for.
const WORDLESS: Duration = Duration::from_secs(90);

/// How long a rule about what may not last can be broken.
const LASTING: Duration = Duration::from_secs(90);

/// How often a cordon is restored at most while a VM is off, as `RECORDONS_AWAY` of the decision says.
const RECORDONS_AWAY: u64 = 3;

impl World {
    /// Tells the records and the waits of nodes in an episode.
    pub fn tell_records(&mut self) {
        for node in 0..self.plan.nodes {
            if let Some(record) = self.record_on(node) {
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

    /// The nodes whose kubelets do not lie.
    fn honest_nodes(&self) -> impl Iterator<Item = usize> + use<> {
        let liar = self.oracle.liar;
        (0..self.plan.nodes).filter(move |node| liar != Some(*node))
    }

    /// Since when all replicas reach both peers. What cuts them off may last longer than faults do.
    pub fn connected_since(&self) -> Duration {
        let ends = self
            .cut_off
            .iter()
            .flat_map(|it| [it.kubernetes_until, it.vcenter_until]);
        ends.max().unwrap_or_default()
    }

    /// Each episode says what it waits for, also for a person.
    pub fn check_waits(&mut self) {
        let now = clock::elapsed();
        let mut silent = Vec::new();
        for node in self.honest_nodes() {
            if self.record_on(node).is_none() || now < self.oracle.nodes[node].phase_since + WORDLESS {
                continue;
            }
            let name = node_name(node);
            let says = self.kube.list("nodemaintenances").any(|(_, object)| {
                let is_it =
                    object["spec"]["nodeName"] == name.as_str() && object["status"]["endedAt"].is_null();
                is_it
                    && object["status"]["waitingOn"]["message"]
                        .as_str()
                        .is_some_and(|text| !text.is_empty())
            });
            if !says {
                silent.push(name);
            }
        }
        if !silent.is_empty() {
            self.tell_records();
            self.violated("an episode says what it waits for", silent.join(", "));
        }
    }

    /// What may not last in a run without faults. With faults, what is shown may be old.
    pub fn check_lasting(&mut self) {
        if self.plan.faults.kinds() > 0 {
            return;
        }
        self.check_slots();
        for node in 0..self.plan.nodes {
            self.check_cordon(node);
        }
    }

    fn may_not_last(&mut self, rule: &'static str, node: usize, is_broken: bool) {
        let now = clock::elapsed();
        let lasting = &mut self.oracle.nodes[node].lasting;
        if !is_broken {
            lasting.remove(rule);
        } else if now > *lasting.entry(rule).or_insert(now) + LASTING {
            self.violated(rule, node_name(node));
        }
    }

    /// A cordon that somebody removes while the VM is off is restored, and an episode that waits for a cordon goes on with it.
    fn check_cordon(&mut self, node: usize) {
        let object = self.kube.get(&node_key(node));
        let record = object.and_then(|object| record(object));
        let (is_cordoned, is_paused) = object.map_or((false, true), |object| {
            let is_paused = !object["metadata"]["annotations"][SKIP].is_null();
            (is_cordoned(object), is_paused)
        });
        let record = record.unwrap_or_default();
        let (name, inside) = phase(&record);
        let is_restored = RESTORES_CORDON.contains(&name.as_str())
            && record["recordoned"].as_u64().unwrap_or_default() < RECORDONS_AWAY;
        let waits_for_cordon = name == "parked" && inside["reason"]["kind"] == "uncordoned";
        self.may_not_last(
            "a cordon is restored while the VM is off",
            node,
            is_restored && !is_cordoned && !is_paused,
        );
        self.may_not_last(
            "a parked episode goes on once its reason is gone",
            node,
            waits_for_cordon && is_cordoned && !is_paused,
        );
    }

    /// A node waits for a slot only while another one has a place before it.
    fn check_slots(&mut self) {
        let begun = |world: &Self, node: usize| {
            let phase = world.record_on(node).map(|record| phase(&record).0);
            phase.is_some_and(|phase| phase != "queued")
        };
        for node in self.honest_nodes() {
            let name = node_name(node);
            let waits = self.kube.list("nodemaintenances").any(|(_, object)| {
                let waiting_on = &object["status"]["waitingOn"];
                let is_open = object["spec"]["origin"] == "Episode" && object["status"]["endedAt"].is_null();
                // As the sentence of this wait says it.
                let is_of_hour = waiting_on["message"]
                    .as_str()
                    .is_some_and(|text| text.contains("in an hour"));
                object["spec"]["nodeName"] == name.as_str()
                    && is_open
                    && waiting_on["reason"] == "Slot"
                    && !is_of_hour
            });
            let others = (0..self.plan.nodes).filter(|other| *other != node);
            let is_alone = waits && !others.into_iter().any(|other| begun(self, other));
            self.may_not_last("nobody waits for a slot that no other node holds", node, is_alone);
        }
    }

    /// Why the run is not at rest; empty if it is. `twin.rs` finds those of a node by the name that they begin with.
    pub fn unrest(&self) -> Vec<String> {
        let mut unrest = Vec::new();
        for node in self.honest_nodes() {
            let name = node_name(node);
            let Some(object) = self.kube.get(&node_key(node)) else {
                if !self.vcenter.vms[node].off_by_person && !self.oracle.nodes[node].is_lost {
                    unrest.push(format!("{name} is not registered"));
                }
                continue;
            };
            let memory = &self.oracle.nodes[node];
            if let Some(record) = record(object) {
                let (phase, inside) = phase(&record);
                unrest.push(format!("{name} is in phase {phase} {inside}"));
            }
            let conditions = object["status"]["conditions"].as_array();
            let shows_episode = conditions.is_some_and(|all| all.iter().any(|it| it["type"] != "Ready"));
            if shows_episode && record(object).is_none() {
                unrest.push(format!("{name} shows conditions of an episode that has ended"));
            }
            let vm = &self.vcenter.vms[node];
            if !vm.on && !vm.off_by_person && !memory.is_lost {
                unrest.push(format!("{} is off", vm.name));
            }
            if vm.on && !is_ready(object) {
                unrest.push(format!("{name} is not Ready"));
            }
            let may_stay = is_cordoned(object) && memory.cordon_is_forgotten;
            if is_cordoned(object) != memory.cordoned_by_person && vm.on && !memory.is_lost && !may_stay {
                let is = if is_cordoned(object) {
                    "cordoned"
                } else {
                    "schedulable"
                };
                unrest.push(format!("{name} is {is}"));
            }
            unrest.extend(self.result_not_shown(object));
        }
        unrest
    }

    /// The NodeMaintenance of the last episode of a Node says how it ended, whichever process saw the end.
    fn result_not_shown(&self, node: &Value) -> Option<String> {
        let last: Value =
            serde_json::from_str(node["metadata"]["annotations"][LAST_EPISODE].as_str()?).ok()?;
        last["ended"].as_str()?;
        let of_last = self.kube.list("nodemaintenances").find(|(_, object)| {
            // A record that was copied to another Node has an object of that one too.
            object["spec"]["origin"] == "Episode"
                && object["spec"]["nodeName"] == node["metadata"]["name"]
                && object["status"]["episode"] == last["episode"]["id"]
        });
        let (key, object) = of_last?;
        (object["status"]["result"] == "NotSeen").then(|| format!("{} does not say how it ended", key.2))
    }
}
