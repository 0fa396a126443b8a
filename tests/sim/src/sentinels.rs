//! A reboot sentinel on one of the nodes: it requests a reboot for one boot, and withdraws the request when another boot came first.

use std::time::Duration;

use serde_json::{Value, json};

use crate::clock;
use crate::cluster::{node_key, node_name};
use crate::oracle::STALE;
use crate::people::Deed;
use crate::store::cluster_key;
use crate::world::{World, WorldEvent};

/// How often the sentinel looks.
const INTERVAL: Duration = Duration::from_secs(60);

/// The boot for which a reboot is required.
#[derive(Debug)]
pub struct RequiredReboot {
    boot_id: String,
    request: String,
}

fn boot_id(node: &Value) -> Option<String> {
    Some(node["status"]["nodeInfo"]["bootID"].as_str()?.to_owned())
}

/// Whether the status of a request says that nothing was done for it.
fn has_not_begun(request: &Value) -> bool {
    let state = request["status"]["state"].as_str();
    request["status"]["endedAt"].is_null() && matches!(state, None | Some("Queued"))
}

impl World {
    /// Schedules the first look.
    pub fn plan_sentinel(&mut self) {
        if let Some(node) = self.plan.sentinel {
            self.within(20..200, WorldEvent::Deed(Deed::SentinelLooks(node)));
        }
    }

    pub(crate) fn sentinel_looks(&mut self, node: usize) {
        self.queue
            .after(INTERVAL, WorldEvent::Deed(Deed::SentinelLooks(node)));
        let Some(now) = self.kube.get(&node_key(node)).and_then(|node| boot_id(node)) else {
            return;
        };
        let Some(RequiredReboot { boot_id, request }) = &self.sentinel else {
            self.sentinel_requests(node, now);
            return;
        };
        let key = cluster_key("nodemaintenances", request);
        let is_unneeded =
            *boot_id != now && self.kube.get(&key).is_some_and(|request| has_not_begun(request));
        if is_unneeded {
            let request = request.clone();
            let opens = self.requests_from.get(&request).copied().unwrap_or_default();
            if clock::elapsed() + STALE < opens {
                // No power-off is for this request.
                self.oracle.nodes[node].causes -= 1;
            }
            self.person_withdraws(&request);
        }
    }

    fn sentinel_requests(&mut self, node: usize, boot_id: String) {
        let request = format!("{}-reboot", node_name(node));
        let opens = clock::elapsed() + Duration::from_secs(self.rng.u64(60..1_200));
        self.tell(
            "sentinel",
            format!("requests a reboot of {} for {boot_id}", node_name(node)),
        );
        self.requests_from.insert(request.clone(), opens);
        self.oracle.nodes[node].causes += 1;
        let spec = json!({
            "nodeName": node_name(node), "action": "Reboot", "reason": "simulated", "origin": "Request",
            "notBefore": format!("{:.0}", clock::wall_at(opens)),
        });
        let object = json!({
            "kind": "NodeMaintenance", "apiVersion": "haulout.dev/v1alpha1",
            "metadata": {"labels": {"haulout.dev/requested-by": "sentinel"}}, "spec": spec,
        });
        // It is the only one of this name.
        let _ = self
            .kube
            .create(&cluster_key("nodemaintenances", &request), object, "sentinel");
        self.sentinel = Some(RequiredReboot { boot_id, request });
    }

    /// A request that is not due shows the state of no maintenance: its sentinel would not withdraw it.
    pub(crate) fn check_not_due(&mut self, name: &str, request: &Value) {
        let is_exact = !self.plan.faults.has(crate::faults::Fault::ClockSteps);
        let opens = self.requests_from.get(name).filter(|_| is_exact);
        let is_early = opens.is_some_and(|opens| clock::elapsed() + STALE < *opens);
        if is_early && !has_not_begun(request) && request["status"]["endedAt"].is_null() {
            let state = &request["status"]["state"];
            self.violated(
                "a request that is not due shows no maintenance",
                format!("{name} shows {state}"),
            );
        }
    }
}
