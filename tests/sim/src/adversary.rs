//! Adversaries: a kubelet that writes what NodeRestriction allows, and a tenant who creates what no schema allows. They may harm
//! themselves, and nobody else.

use haulout::keys::{EPISODE, SKIP};
use serde_json::{Value, json};

use crate::cluster::{node_key, node_name};
use crate::store::cluster_key;
use crate::world::World;

/// The field manager of a kubelet that lies.
const HOSTILE_KUBELET: &str = "kubelet";

impl World {
    /// A kubelet writes what NodeRestriction allows to its own Node.
    pub(crate) fn kubelet_lies(&mut self) -> bool {
        if self.plan.nodes == 1 {
            return false;
        }
        let liar = match self.oracle.liar {
            Some(liar) => liar,
            None => self.any_node(),
        };
        self.oracle.liar = Some(liar);
        let episode = EPISODE.to_owned();
        let record_of_other = self.oracle.last_record.clone().map(|mut record| {
            // Of another node: a drain that never ends would hold a slot.
            record["phase"] = json!("draining");
            record.to_string()
        });
        let vms = self.vcenter.vms.len();
        let uuid = self.vcenter.vms[(liar + self.rng.usize(1..vms)) % vms]
            .uuid
            .clone();
        let lie = self.rng.u32(0..8);
        let big = "x".repeat(200 << 10);
        let annotate =
            |node: &mut Value, key: &str, value: Value| node["metadata"]["annotations"][key] = value;
        self.kube
            .change(&node_key(liar), HOSTILE_KUBELET, |node| match lie {
                0 => annotate(node, &episode, json!("{\"id\": [[[[\u{1}")),
                1 => match record_of_other {
                    Some(record) => annotate(node, &episode, json!(record)),
                    None => annotate(node, &episode, json!("{\"phase\": \"draining\"}")),
                },
                2 => node["status"]["nodeInfo"]["systemUUID"] = json!(uuid),
                3 => node["metadata"]["annotations"] = json!({}),
                4 => annotate(node, SKIP, json!("true")),
                5 => annotate(node, "example.com/big", json!(big)),
                6 => node["spec"]["unschedulable"] = json!(false),
                _ => node["status"]["nodeInfo"]["bootID"] = json!("boot-forged"),
            });
        let words = [
            "writes a record that cannot be read",
            "writes the record of another node",
            "reports the UUID of another VM",
            "removes its annotations",
            "sets the annotation skip",
            "writes a large annotation",
            "uncordons itself",
            "reports another boot",
        ];
        let words = words.get(usize::try_from(lie).unwrap_or_default());
        self.tell(node_name(liar), words.copied().unwrap_or_default());
        true
    }

    /// A tenant creates a NodeMaintenance that an older or another schema allows.
    pub(crate) fn tenant_asks(&mut self) {
        self.requests += 1;
        let name = format!("odd-{}", self.requests);
        // What a tenant may ask for concerns its own node only, where other nodes are compared.
        let node = match self.plan.in_turn.is_empty() {
            true => self.any_node(),
            false => 0,
        };
        self.oracle.nodes[node].causes += 1;
        let node = node_name(node);
        let specs = [
            json!("not an object"),
            json!({"action": "Drain"}),
            json!({"nodeName": "gpu-none", "action": "PowerOff", "origin": "Request"}),
            json!({"nodeName": node, "action": "Explode", "origin": "Request"}),
            json!({"nodeName": node, "action": "Drain", "origin": "Request", "drainTimeoutSeconds": -5}),
            json!({"nodeName": node, "action": "Drain", "origin": "Request", "notBefore": "yesterday"}),
            json!({"nodeName": node, "action": "Relocate", "origin": "Request", "targetHost": "esx-none"}),
            json!({"nodeName": node, "action": "Drain", "origin": "Request", "reason": "x".repeat(100 << 10)}),
            json!({"nodeName": node, "action": "Drain", "origin": "Request", "drainTimeoutSeconds": 1}),
            json!({"nodeName": node, "action": "Reboot", "origin": "Request", "window": {"start": "25:00", "end": "07:00"}}),
        ];
        let spec = specs[self.rng.usize(0..specs.len())].clone();
        self.tell("tenant", format!("creates {name}: {:.100}", spec.to_string()));
        let object = json!({
            "kind": "NodeMaintenance", "apiVersion": "haulout.dev/v1alpha1", "metadata": {}, "spec": spec,
        });
        // The name is new.
        let _ = self
            .kube
            .create(&cluster_key("nodemaintenances", &name), object, "kubectl");
    }
}
