//! Which guards on Nodes are of use in this cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use super::answer;
use crate::node_guard::NodeGuard;

/// The deadline of the list of API groups, which the kube-apiserver has in memory.
const DEADLINE: Duration = Duration::from_secs(5);

/// The API group of medik8s' NodeHealthCheck.
const MEDIK8S: &str = "remediation.medik8s.io";

/// Those of `enabled` whose controller may be in the cluster. If its API groups cannot be listed, a guard too many does no harm.
///
/// cluster-autoscaler has no API, and a Node shows by itself whether Gardener or NVSentinel looks after it.
pub async fn of_use(client: &kube::Client, enabled: &BTreeSet<NodeGuard>) -> BTreeSet<NodeGuard> {
    let mut of_use = enabled.clone();
    match answer::within(DEADLINE, client.list_api_groups()).await {
        Ok(list) if !list.groups.iter().any(|group| group.name == MEDIK8S) => {
            of_use.remove(&NodeGuard::Medik8s);
        }
        Ok(_) => {}
        Err(why) => tracing::debug!("could not list the API groups, so all guards are used: {why}"),
    }
    of_use
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::stand_in::{ScriptedReply, server};

    async fn with_groups(code: u16, groups: &[&str]) -> BTreeSet<NodeGuard> {
        let version = json!({"groupVersion": "x/v1", "version": "v1"});
        let group = |name: &&str| json!({"name": name, "versions": [version], "preferredVersion": version});
        let groups: Vec<_> = groups.iter().map(group).collect();
        let list = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups});
        let mut reply = Some(ScriptedReply::Json(code, list));
        let (client, _) = server(move |_| reply.take().unwrap());
        of_use(&client, &NodeGuard::ALL.iter().copied().collect()).await
    }

    #[tokio::test]
    async fn label_of_medik8s_is_of_use_where_its_api_is_served() {
        let all: BTreeSet<NodeGuard> = NodeGuard::ALL.iter().copied().collect();
        assert_eq!(with_groups(200, &["apps", MEDIK8S]).await, all);
        assert_eq!(with_groups(403, &[]).await, all);
        let mut others = all;
        others.remove(&NodeGuard::Medik8s);
        assert_eq!(with_groups(200, &["apps"]).await, others);
    }
}
