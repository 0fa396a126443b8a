//! NVIDIA's k8s-driver-manager, the init container of the driver's pod: it uncordons its Node after each boot.
//!
//! It follows NVIDIA/k8s-driver-manager, `cmd/driver-manager/main.go` and `internal/kubernetes/client.go` (bd62ca7d). If no
//! driver is loaded, as after a boot, it drains nothing and calls `UncordonNode`, which is `RunCordonOrUncordon` of kubectl. It
//! does not look at who cordoned the Node. It does so if `ENABLE_GPU_POD_EVICTION` or `ENABLE_AUTO_DRAIN` is on and the Node
//! lacks the annotation `nvidia.com/gpu-driver-upgrade-enabled: "true"`, which is read here too.
//!
//! The name of the program is its field manager.

use std::collections::BTreeMap;

use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::{AsyncRound, Decisions, FixtureNodes, StandIn};
use crate::fixture::{Fixture, boot_id, is_cordoned, is_ready};

/// The field manager of the uncordon.
pub const MANAGER: &str = "driver-manager";

const UPGRADE_ENABLED: &str = "nvidia.com/gpu-driver-upgrade-enabled";

/// Starts it on the Nodes of a fixture. It uncordons a Node once after each boot from now on.
pub fn start(fixture: &Fixture<'_>) -> StandIn {
    StandIn::run(DriverManager {
        nodes: FixtureNodes::of(fixture),
        done: BTreeMap::new(),
    })
}

struct DriverManager {
    nodes: FixtureNodes,
    /// The boot for which it is done, by Node.
    done: BTreeMap<String, Option<String>>,
}

impl AsyncRound for DriverManager {
    async fn round(&mut self, decided: &mut Decisions) -> anyhow::Result<()> {
        for node in self.nodes.list().await? {
            let name = node.metadata.name.clone().unwrap_or_default();
            let boot = boot_id(&node);
            let Some(done) = self.done.get(&name) else {
                self.done.insert(name, boot);
                continue;
            };
            if *done == boot || !is_ready(&node) {
                continue;
            }
            let annotations = node.metadata.annotations.as_ref();
            if annotations
                .and_then(|it| it.get(UPGRADE_ENABLED))
                .map(String::as_str)
                == Some("true")
            {
                decided.excluded += 1;
            } else if is_cordoned(&node) {
                let params = PatchParams {
                    field_manager: Some(MANAGER.to_owned()),
                    ..PatchParams::default()
                };
                let patch = Patch::Strategic(json!({"spec": {"unschedulable": false}}));
                self.nodes.api.patch(&name, &params, &patch).await?;
                decided.acted += 1;
            }
            self.done.insert(name, boot);
        }
        Ok(())
    }
}
