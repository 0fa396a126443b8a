//! `GUARDS`: which guards episodes set.

use std::collections::BTreeSet;
use std::str::FromStr;

use crate::node_guard::NodeGuard;

/// The guards in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guards {
    /// Those on Nodes, without the maintenance taint.
    pub nodes: BTreeSet<NodeGuard>,
    /// Those on the objects of Cluster API.
    pub machines: bool,
}

/// The name of the guards on the objects of Cluster API.
const CLUSTER_API: &str = "cluster-api";

impl Guards {
    fn names() -> impl Iterator<Item = &'static str> {
        let guards = NodeGuard::ALL.iter().copied();
        // These have settings of their own.
        let others = [NodeGuard::MaintenanceTaint, NodeGuard::OutOfServiceTaint];
        let of_nodes = guards.filter(move |guard| !others.contains(guard));
        of_nodes.map(NodeGuard::name).chain([CLUSTER_API])
    }
}

impl FromStr for Guards {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names: Vec<&str> = match text.trim() {
            "all" => Self::names().collect(),
            "none" => Vec::new(),
            list => list.split(',').map(str::trim).collect(),
        };
        let is_known = |name: &&str| Self::names().any(|known| known == *name);
        if !names.iter().all(is_known) {
            let names: Vec<&str> = Self::names().collect();
            return Err(format!("all, none or a list of {} is expected", names.join(", ")));
        }
        Ok(Self {
            nodes: names.iter().filter_map(|name| name.parse().ok()).collect(),
            machines: names.contains(&CLUSTER_API),
        })
    }
}
