//! What the chart installs in a real cluster: it is admitted and has exactly the rights that it uses.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, ensure};
use haulout::nodemaintenance::kind::{MaintenanceOrigin, NodeMaintenance};
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT, annotation};
use haulout_lab::scenario::run_scenario;
use haulout_lab::wait::until;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::helm::{object, rendered, root};
use crate::release::{Release, fixture, folder};

/// A Node is read again only after a conflict with another writer, which no scenario can cause reliably.
const NOT_IN_EVERY_SCENARIO: (&str, &str, &str) = ("", "nodes", "get");

/// Takes `gpu1` from esx1 to esx2, and then, with esx1 still away, off and on again on esx2.
async fn migrate_and_wait(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let node = fixture.node_name("gpu1");
    fixture.add_pod("train", &node, &[]).await?;
    // The drain is held for a short time, so that the pods of its node are watched and not only listed.
    fixture.set_budget("train", 0).await?;
    fixture.vcenter.enter_maintenance("esx1").await?;
    blocked(fixture, &node).await?;
    fixture.set_budget("train", 1).await?;
    fixture.wait_state(&node, Some("migrated")).await?;
    fixture.wait_in_service(&node).await?;

    fixture.vcenter.enter_maintenance("esx2").await?;
    fixture.wait_phase(&node, "awaitingHost").await?;
    fixture.wait_in_maintenance("esx2").await?;
    fixture.vcenter.exit_maintenance("esx2").await?;
    fixture.wait_in_service(&node).await?;
    Ok(())
}

/// Waits for an Event on `node` that a budget blocks its drain.
async fn blocked(fixture: &Fixture<'_>, node: &str) -> anyhow::Result<()> {
    let events: Api<Event> = Api::namespaced(fixture.client(), "default");
    until("the Event EvictionBlocked", WAIT_TIMEOUT, async || {
        let all = events.list(&ListParams::default()).await?;
        let is_it = |event: &Event| {
            event.reason.as_deref() == Some("EvictionBlocked")
                && event.regarding.as_ref().and_then(|it| it.name.as_deref()) == Some(node)
        };
        Ok(all.iter().any(is_it).then_some(()))
    })
    .await
}

/// API group, resource and verb.
pub type Right = (String, String, String);

pub fn rights(rules: Option<Vec<PolicyRule>>) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for rule in rules.unwrap_or_default() {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for verb in &rule.verbs {
                    rights.insert((group.clone(), resource.clone(), verb.clone()));
                }
            }
        }
    }
    rights
}

/// Waits until one of the two ended episodes is left.
async fn one_episode_is_history(fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let node = fixture.node_name("gpu1");
    let objects: Api<NodeMaintenance> = Api::all(fixture.client());
    until("one ended episode to be kept", WAIT_TIMEOUT, async || {
        let mut all = objects.list(&ListParams::default()).await?.items;
        all.retain(|it| it.spec.origin == MaintenanceOrigin::Episode && it.spec.node_name == node);
        let ended = |it: &NodeMaintenance| it.status.as_ref().is_some_and(|it| it.ended_at.is_some());
        Ok((all.len() == 1 && all.iter().all(ended)).then_some(()))
    })
    .await
}

#[test]
fn release_handles_two_maintenances_with_exactly_its_rights() {
    run_scenario(async {
        let fixture = fixture(
            "rights",
            "aa000000-0000-4000-8000-000000000001",
            &["esx1", "esx2"],
        )
        .await?;
        let release = Release::prepare(&fixture).await?;
        release.upgrade(&[
            "config.nodeMaintenanceHistory=1",
            "config.volumeDetachTimeoutSeconds=1",
        ]);
        fixture
            .attach_volume("rights-data", &fixture.node_name("gpu1"), "data")
            .await?;
        release.wait_admitted().await?;
        let mut replica = release.start().await?;
        replica.wait_ready().await?;
        migrate_and_wait(&fixture).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (2, 2));
        one_episode_is_history(&fixture).await?;
        replica.stop().await?;

        let roles: Api<ClusterRole> = Api::all(fixture.client());
        let name = format!("{}-rights-haulout", release.namespace);
        let mut given = rights(roles.get(&name).await?.rules);
        let roles: Api<Role> = Api::namespaced(fixture.client(), &release.namespace);
        for role in roles.list(&Default::default()).await?.items {
            given.extend(rights(role.rules));
        }
        // A watch is logged at its end.
        let used = until(
            "the watches to stand in the audit log",
            WAIT_TIMEOUT,
            async || {
                let events = release.audit().await?;
                let watched = |resource: &str| {
                    events
                        .iter()
                        .any(|event| event.verb == "watch" && event.resource == resource)
                };
                Ok((watched("nodes") && watched("pods") && watched("nodemaintenances")).then_some(events))
            },
        )
        .await?;
        let refused: Vec<_> = used.iter().filter(|event| event.code == 403).collect();
        ensure!(refused.is_empty(), "refused: {refused:#?}");
        let used: BTreeSet<Right> = used
            .into_iter()
            .filter(|event| !event.resource.is_empty())
            .map(|event| {
                let resource = match event.subresource {
                    Some(subresource) => format!("{}/{subresource}", event.resource),
                    None => event.resource,
                };
                (event.group, resource, event.verb)
            })
            .collect();
        let missing: Vec<_> = used.difference(&given).collect();
        ensure!(missing.is_empty(), "used and not given: {missing:?}");
        let (group, resource, verb) = NOT_IN_EVERY_SCENARIO;
        let unused: Vec<_> = given
            .difference(&used)
            .filter(|right| **right != (group.to_owned(), resource.to_owned(), verb.to_owned()))
            .collect();
        ensure!(unused.is_empty(), "given and not used: {unused:?}");
        Ok(())
    });
}

#[test]
fn release_may_change_only_the_cordon_and_annotations_of_a_node() {
    run_scenario(async {
        let fixture = fixture("forbidden", "aa000000-0000-4000-8000-000000000002", &["esx1"]).await?;
        let release = Release::prepare(&fixture).await?;
        release.upgrade(&["config.outOfServiceTaint=true"]);
        let node = fixture.node_name("gpu1");
        let admin: Api<Node> = Api::all(fixture.client());
        let theirs = json!({"metadata": {"annotations": {"example.com/theirs": "1"}}});
        admin
            .patch(&node, &PatchParams::default(), &Patch::Merge(&theirs))
            .await?;
        let nodes: Api<Node> = Api::all(release.client().await?);
        // A change that is accepted must not affect the rest of the scenario.
        let dry = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };

        let merge = [
            ("a label", json!({"metadata": {"labels": {"pool": "gold"}}})),
            (
                "the label that selects it",
                json!({"metadata": {"labels": {haulout_lab::fixture::label("forbidden"): null}}}),
            ),
            (
                "a hook of somebody else",
                json!({"metadata": {"annotations": {"pre-uncordon.hook.haulout.dev/ticket": "1"}}}),
            ),
            (
                "a foreign annotation",
                json!({"metadata": {"annotations": {"example.com/ours": "1"}}}),
            ),
            (
                "the value of a foreign annotation",
                json!({"metadata": {"annotations": {"example.com/theirs": "2"}}}),
            ),
            (
                "a foreign annotation away",
                json!({"metadata": {"annotations": {"example.com/theirs": null}}}),
            ),
            ("all annotations away", json!({"metadata": {"annotations": null}})),
            (
                "an owner",
                json!({"metadata": {"ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1"}]}}),
            ),
            (
                "a finalizer",
                json!({"metadata": {"finalizers": ["example.com/x"]}}),
            ),
            (
                "a taint",
                json!({"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}}),
            ),
            (
                "a taint of its own that evicts pods",
                json!({"spec": {"taints": [{"key": "haulout.dev/maintenance", "effect": "NoExecute"}]}}),
            ),
            (
                "a taint of Kubernetes with another effect",
                json!({"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoSchedule"}]}}),
            ),
            (
                "its addresses of pods",
                json!({"spec": {"podCIDRs": ["10.9.0.0/24"], "podCIDR": "10.9.0.0/24"}}),
            ),
        ];
        let is_refused = |answer: Result<Node, kube::Error>| match answer {
            Err(kube::Error::Api(status)) => status.code == 403,
            Ok(_) | Err(_) => false,
        };
        // The kube-apiserver needs a moment to apply a policy.
        until("the policy to hold", WAIT_TIMEOUT, async || {
            let answer = nodes.patch(&node, &dry, &Patch::Merge(&merge[0].1)).await;
            Ok(is_refused(answer).then_some(()))
        })
        .await?;
        for (what, patch) in &merge {
            let answer = nodes.patch(&node, &dry, &Patch::Merge(patch)).await;
            ensure!(is_refused(answer), "{what} can be changed");
        }
        let guards = json!({
            "metadata": {
                "labels": {
                    "remediation.medik8s.io/exclude-from-remediation": "true",
                    "nvsentinel.dgxc.nvidia.com/managed": "false",
                },
                "annotations": {
                    "cluster-autoscaler.kubernetes.io/scale-down-disabled": "true",
                },
            },
            "spec": {"taints": [
                {"key": "haulout.dev/maintenance", "effect": "NoSchedule"},
                {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"},
            ]},
        });
        nodes.patch(&node, &dry, &Patch::Merge(&guards)).await?;
        let status = [
            (
                "its GPUs",
                json!({"status": {"allocatable": {"nvidia.com/gpu": "99"}}}),
            ),
            (
                "a resource of Kubernetes itself",
                json!({"status": {"capacity": {"cpu": "0"}}}),
            ),
            (
                "a GPU away",
                json!({"status": {"capacity": {"nvidia.com/gpu": null}}}),
            ),
            (
                "another resource",
                json!({"status": {"capacity": {"example.com/x": "0"}}}),
            ),
            (
                "its addresses",
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}}),
            ),
            (
                "its Ready",
                json!({"status": {"conditions": [
                {"type": "Ready", "status": "True", "reason": "x", "message": "x"}]}}),
            ),
            (
                "a label by its status",
                json!({"metadata": {"labels": {"pool": "gold"}}}),
            ),
        ];
        for (what, patch) in &status {
            let answer = nodes.patch_status(&node, &dry, &Patch::Strategic(patch)).await;
            ensure!(is_refused(answer), "{what} can be changed");
        }
        let current = admin.get(&node).await?;
        let post = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        ensure!(
            is_refused(nodes.replace(&node, &post, &current).await),
            "it can be replaced"
        );
        ensure!(
            is_refused(nodes.create(&post, &current).await),
            "one can be created"
        );
        let gone = nodes
            .delete(
                &node,
                &DeleteParams {
                    dry_run: true,
                    ..DeleteParams::default()
                },
            )
            .await;
        ensure!(is_refused(gone.map(|_| current)), "it can be deleted");

        let allowed = json!({
            "metadata": {"annotations": {format!("{}/state", haulout_lab::fixture::ANNOTATIONS): "draining"}},
            "spec": {"unschedulable": true},
        });
        nodes
            .patch(&node, &dry, &Patch::Merge(&allowed))
            .await
            .context("its own work")?;
        let condition = json!({"status": {"conditions": [
            {"type": "Drained", "status": "True", "reason": "DrainCompleted", "message": "x"}]}});
        nodes
            .patch_status(&node, &dry, &Patch::Strategic(&condition))
            .await
            .context("its own condition")?;
        let counts = json!({"nvidia.com/gpu": "0"});
        let none = json!({"status": {"capacity": counts, "allocatable": counts}});
        nodes
            .patch_status(&node, &dry, &Patch::Merge(&none))
            .await
            .context("the GPU count of the last boot")?;
        Ok(())
    });
}

#[test]
fn upgrade_and_rollback_during_an_episode_lose_nothing() {
    run_scenario(async {
        let fixture = fixture("upgrade", "aa000000-0000-4000-8000-000000000003", &["esx1"]).await?;
        let node = fixture.node_name("gpu1");
        let release = Release::prepare(&fixture).await?;
        release.upgrade(&[]);
        let before = checksum(&release).await?;
        let mut replica = release.start().await?;
        replica.wait_ready().await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;

        release.upgrade(&["config.logLevel=debug"]);
        ensure!(
            checksum(&release).await? != before,
            "the pods would not be replaced"
        );
        replica.stop().await?;
        let mut replica = release.start().await?;
        replica.wait_ready().await?;
        ensure!(
            fixture
                .node(&node)
                .await
                .map(|it| annotation(&it, "state") == Some("powered-off"))?
        );

        release.helm(&["rollback", "upgrade", "1"]);
        ensure!(checksum(&release).await? == before);
        replica.stop().await?;
        let replica = release.start().await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        replica.stop().await
    });
}

async fn checksum(release: &Release<'_>) -> anyhow::Result<String> {
    let template = release.deployment().await?.spec.template;
    let annotations = template
        .metadata
        .and_then(|it| it.annotations)
        .unwrap_or_default();
    annotations
        .get("checksum/config")
        .cloned()
        .context("the pods have the checksum of the settings")
}

/// As in docs/install/python-controller.md.
#[test]
fn python_release_is_upgraded_in_place_during_an_episode() {
    run_scenario(async {
        let fixture = fixture("moving", "aa000000-0000-4000-8000-000000000004", &["esx1"]).await?;
        let node = fixture.node_name("gpu1");
        let release = Release::prepare(&fixture).await?;
        let python = root().join("tests/chart/python");
        release.helm(&["install", "moving", folder(&python)]);
        let theirs = release.deployment().await?.metadata;
        fixture.person_cordons(&node, true).await?;
        let left = [
            ("state", "powered-off"),
            ("host", "esx1"),
            ("transition-time", "2026-03-01T03:14:00.000000+00:00"),
        ];
        fixture
            .annotate_under(haulout_lab::fixture::PYTHON_ANNOTATIONS, &node, &left)
            .await?;
        fixture.vcenter.power_off("gpu1").await?;
        fixture.vcenter.enter_maintenance("esx1").await?;

        let in_place = "nameOverride=gpu-node-vsphere-maintenance-controller";
        release.upgrade(&[in_place, "strategy.type=Recreate"]);
        let ours = release.deployment().await?.metadata;
        ensure!(ours.uid == theirs.uid, "the Deployment was replaced");
        let replica = release.start().await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        replica.stop().await
    });
}

/// Every key of the values of the Python chart is a key of our values.
#[test]
fn every_value_of_the_python_chart_is_accepted() {
    let values = rendered(Path::new(&root().join("chart/ci/python-values.yaml")), &[]);
    let settings: &Value = &object(&values, "ConfigMap")["data"];
    assert_eq!(settings["VCENTER_TLS_VERIFY"], "false");
    assert_eq!(
        settings["GPU_NODE_LABEL"],
        "intel.feature.node.kubernetes.io/gpu=true"
    );
    let secret = object(&values, "Secret");
    assert_eq!(
        secret["metadata"]["name"],
        "haulout-gpu-node-vsphere-maintenance-controller-vcenter"
    );
}
