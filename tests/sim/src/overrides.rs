//! What people write on Nodes for the controller: that a node is left alone, that its VM waits for its own host, and that it stays
//! cordoned; and the rules that follow.

use std::time::Duration;

use haulout::keys::{KEEP_CORDONED, SKIP, STRATEGY};
use serde_json::{Value, json};

use crate::clock;
use crate::cluster::{node_key, node_name};
use crate::oracle::{Act, STALE, phase, record};
use crate::people::Deed;
use crate::store::is_cordoned;
use crate::world::{World, WorldEvent};

/// The annotations, with the values that people give them.
const OVERRIDES: [(&str, &str); 3] = [(SKIP, "true"), (STRATEGY, "wait"), (KEEP_CORDONED, "true")];

fn has(node: &Value, key: &str) -> bool {
    !node["metadata"]["annotations"][key].is_null()
}

impl World {
    /// Schedules annotations of people.
    pub fn plan_overrides(&mut self) {
        let active = self.plan.active.as_secs();
        for _ in 0..self.plan.overrides {
            let at = Duration::from_secs(self.rng.u64(1..active * 3 / 4));
            let node = self.any_node();
            let (key, value) = OVERRIDES[self.rng.usize(0..OVERRIDES.len())];
            self.queue
                .after(at, WorldEvent::Deed(Deed::Annotates { node, key, value }));
        }
    }

    /// A person annotates a Node, and removes that later.
    pub(crate) fn person_annotates(&mut self, node: usize, key: &'static str, value: &'static str) {
        if self.kube.get(&node_key(node)).is_none_or(|node| has(node, key)) {
            return;
        }
        self.tell(
            "person",
            format!("annotates {} with {key}={value}", node_name(node)),
        );
        self.oracle.nodes[node].overridden = Some(clock::elapsed());
        self.kube.change(&node_key(node), "kubectl-annotate", |node| {
            node["metadata"]["annotations"][key] = json!(value);
        });
        self.within(30..600, WorldEvent::Deed(Deed::Unannotates { node, key }));
    }

    pub(crate) fn person_unannotates(&mut self, node: usize, key: &str) {
        if !self.kube.get(&node_key(node)).is_some_and(|node| has(node, key)) {
            return;
        }
        self.tell("person", format!("removes {key} from {}", node_name(node)));
        self.kube.change(&node_key(node), "kubectl-annotate", |node| {
            if let Some(annotations) = node["metadata"]["annotations"].as_object_mut() {
                annotations.remove(key);
            }
        });
    }

    /// All of these annotations are removed.
    pub(crate) fn overrides_end(&mut self) {
        for node in 0..self.plan.nodes {
            for (key, _) in OVERRIDES {
                self.person_unannotates(node, key);
            }
        }
    }

    /// An episode ends. A node that is to stay cordoned is uncordoned by a person later.
    pub(crate) fn keeps_cordon(&mut self, node: usize, before: &Value, after: &Value) {
        let has_ended = record(before).is_some() && record(after).is_none();
        if has_ended && is_cordoned(after) && has(before, KEEP_CORDONED) {
            self.oracle.nodes[node].cordoned_by_person = true;
            self.within(60..900, WorldEvent::Deed(Deed::Uncordons(node)));
        }
    }

    /// Nothing is done to a paused node, and no VM is moved that is to wait for its own host. Faults may hide the annotations, so only
    /// runs without faults are looked at.
    pub(crate) fn check_overrides(&mut self, act: Act, node: usize, object: &Value) {
        let Some(since) = self.oracle.nodes[node].overridden else {
            return;
        };
        if self.plan.faults.kinds() > 0 || clock::elapsed() < since + STALE {
            return;
        }
        if has(object, SKIP) {
            self.violated(
                "a paused node is left alone",
                format!("{act:?} of {}", node_name(node)),
            );
        }
        let Some(record) = record(object).filter(|_| has(object, STRATEGY)) else {
            return;
        };
        let (name, inside) = phase(&record);
        let is_elsewhere = inside["to"]["moref"] != record["host"]["moref"];
        let moves = match name.as_str() {
            "relocating" => act == Act::Relocate && is_elsewhere && !self.has_request(node),
            "poweringOn" => act == Act::PowerOn && inside["byDrs"] == true,
            _ => false,
        };
        // What was chosen before goes on.
        if moves && self.oracle.nodes[node].phase_since > since + STALE {
            self.violated(
                "a VM waits for its own host",
                format!("{act:?} of {}", node_name(node)),
            );
        }
    }
}
