//! Values that change while the VM of a node is off: what begins is decided by the values, and how it ends by the record.

use std::collections::BTreeSet;

use anyhow::ensure;
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT};
use haulout_lab::scenario::run_scenario;
use haulout_lab::wait::until;
use k8s_openapi::api::core::v1::Node;
use serde_json::Value;

use crate::helm::read;
use crate::release::{Release, fixture};

/// The values that are flipped together while a VM is off. The episode begins with the defaults, or with the opposite.
const FLIPPED: &[&str] = &[
    "config.outOfServiceTaint",
    "guards.clusterApi",
    "guards.clusterAutoscaler",
    "guards.gardener",
    "guards.medik8s",
    "guards.nvsentinel",
    "guards.queuedTaint",
];

/// Those that are flipped by themselves: they would hide what the others do.
const FLIPPED_ALONE: &[&str] = &[
    "admissionPolicy.enabled",
    "admissionPolicy.kubelets",
    "admissionPolicy.requesters",
    "config.requireApproval",
    "leaderElection.enabled",
];

/// Those that are not flipped, and why.
const NOT_FLIPPED: &[(&str, &[&str])] = &[
    ("nothing is done while it is set", &["config.dryRun"]),
    (
        "the objects without which the release cannot run or be reached",
        &[
            "crds.enabled",
            "rbac.create",
            "serviceAccount.create",
            "tenantObjectsOnly",
        ],
    ),
    (
        "another certificate of vCenter is trusted or not, before anything begins",
        &["vcenter.tlsVerify"],
    ),
    (
        "no part of what an episode does or has the right to do",
        &[
            "crds.keep",
            "grafanaDashboard.enabled",
            "hostNetwork",
            "livenessProbe.enabled",
            "metrics.service.enabled",
            "networkPolicy.enabled",
            "podDisruptionBudget.enabled",
            "podMonitor.enabled",
            "podSecurityContext.runAsNonRoot",
            "prometheusRule.enabled",
            "readinessProbe.enabled",
            "securityContext.allowPrivilegeEscalation",
            "securityContext.readOnlyRootFilesystem",
            "securityContext.runAsNonRoot",
            "sentinel.enabled",
            "serviceMonitor.enabled",
            "startupProbe.enabled",
            "statusPage.enabled",
        ],
    ),
];

/// The names of all boolean values, and their defaults.
fn booleans(at: &str, value: &Value, found: &mut Vec<(String, bool)>) {
    match value {
        Value::Bool(default) => found.push((at.to_owned(), *default)),
        Value::Object(fields) => {
            for (name, value) in fields {
                let at = if at.is_empty() {
                    name.clone()
                } else {
                    format!("{at}.{name}")
                };
                booleans(&at, value, found);
            }
        }
        Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {}
    }
}

fn all_booleans() -> Vec<(String, bool)> {
    let values: Value = serde_saphyr::from_str(&read("chart/values.yaml")).unwrap();
    let mut found = Vec::new();
    booleans("", &values, &mut found);
    found
}

#[test]
fn each_boolean_value_is_flipped_in_mid_episode_or_has_a_reason_not_to_be() {
    let all: BTreeSet<String> = all_booleans().into_iter().map(|(name, _)| name).collect();
    let not = NOT_FLIPPED.iter().flat_map(|(_, names)| *names);
    let classified = FLIPPED.iter().chain(FLIPPED_ALONE).chain(not);
    let classified: BTreeSet<String> = classified.map(|name| (*name).to_owned()).collect();
    assert_eq!(all, classified);
}

/// What else the episodes begin and end with: a Lease only counts with several replicas.
const ALWAYS: &[&str] = &["replicaCount=1", "config.drainTimeoutSeconds=1"];

/// The settings of helm for these values, at their defaults or flipped.
fn set(names: &[&str], is_flipped: bool) -> Vec<String> {
    let all = all_booleans();
    let set = all.iter().filter(|(name, _)| names.contains(&name.as_str()));
    let mut set: Vec<String> = set
        .map(|(name, default)| format!("{name}={}", default ^ is_flipped))
        .collect();
    // No booleans for helm, but for an episode.
    if names.len() > 1 && is_flipped {
        set.push("config.vmotionGraceSeconds=unlimited".to_owned());
        set.push("vcenter.report={attribute}".to_owned());
    }
    set.extend(ALWAYS.iter().map(|value| (*value).to_owned()));
    set
}

fn upgrade(release: &Release<'_>, values: &[String]) {
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    release.upgrade(&values);
}

/// An episode that begins with some values, with a pod that is left behind, and ends with other ones.
async fn episode(
    fixture: &Fixture<'_>,
    release: &Release<'_>,
    before: &[String],
    after: &[String],
) -> anyhow::Result<()> {
    let node = fixture.node_name("gpu1");
    upgrade(release, before);
    let replica = release.start().await?;
    fixture.vcenter.enter_maintenance("esx1").await?;
    fixture.wait_phase(&node, "awaitingHost").await?;
    fixture.wait_in_maintenance("esx1").await?;
    upgrade(release, after);
    replica.stop().await?;
    let replica = release.start().await?;
    fixture.vcenter.exit_maintenance("esx1").await?;
    let back = fixture.wait_in_service(&node).await?;
    let left = what_is_left(&back);
    ensure!(
        left.is_empty(),
        "left on the Node by {before:?} and {after:?}: {left:?}"
    );
    replica.stop().await
}

/// The taints and guards of an episode on a Node.
fn what_is_left(node: &Node) -> Vec<String> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let taints = taints.map(|taint| taint.key.clone());
    let annotations = node
        .metadata
        .annotations
        .iter()
        .flatten()
        .map(|(key, _)| key.clone());
    let labels = node.metadata.labels.iter().flatten().map(|(key, _)| key.clone());
    let ours = [
        "haulout.dev/maintenance",
        "haulout.dev/queued",
        "node.kubernetes.io/out-of-service",
        "cluster-autoscaler.kubernetes.io/scale-down-disabled",
        "node.machine.sapcloud.io/preserve",
        "remediation.medik8s.io/exclude-from-remediation",
        "nvsentinel.dgxc.nvidia.com/managed",
    ];
    let all = taints.chain(annotations).chain(labels);
    all.filter(|key| ours.contains(&key.as_str())).collect()
}

/// A pod that the drain leaves behind, so that the taint of a node out of service is set where that is switched on.
async fn pod_left_behind(fixture: &Fixture<'_>, name: &str) -> anyhow::Result<()> {
    let node = fixture.node_name("gpu1");
    fixture.add_pod(name, &node, &[]).await?;
    fixture.set_budget(name, 0).await
}

#[test]
fn values_that_change_while_a_vm_is_off_strand_no_node() {
    run_scenario(async {
        let fixture = fixture("toggles", "aa000000-0000-4000-8000-000000000005", &["esx1"]).await?;
        let release = Release::prepare(&fixture).await?;
        pod_left_behind(&fixture, "one").await?;
        let (defaults, flipped) = (set(FLIPPED, false), set(FLIPPED, true));
        episode(&fixture, &release, &flipped, &defaults).await?;
        pod_left_behind(&fixture, "two").await?;
        episode(&fixture, &release, &defaults, &flipped).await?;
        for name in FLIPPED_ALONE {
            let (default, flipped) = (set(&[name], false), set(&[name], true));
            episode(&fixture, &release, &default, &flipped).await?;
        }
        Ok(())
    });
}

#[test]
fn out_of_service_taint_can_be_removed_but_not_set_where_it_is_switched_off() {
    run_scenario(async {
        use kube::Api;
        use kube::api::{Patch, PatchParams};
        use serde_json::json;
        let fixture = fixture("oos", "aa000000-0000-4000-8000-000000000006", &["esx1"]).await?;
        let release = Release::prepare(&fixture).await?;
        upgrade(&release, &[]);
        let node = fixture.node_name("gpu1");
        let with = |value: &str| {
            let taint =
                json!({"key": "node.kubernetes.io/out-of-service", "value": value, "effect": "NoExecute"});
            Patch::Merge(json!({"spec": {"taints": [taint]}}))
        };
        let without = Patch::Merge(json!({"spec": {"taints": null}}));
        let dry = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let admin: Api<Node> = Api::all(fixture.client());
        let nodes: Api<Node> = Api::all(release.client().await?);
        let is_refused = |answer: Result<Node, kube::Error>| match answer {
            Err(kube::Error::Api(status)) => status.code == 403,
            Ok(_) | Err(_) => false,
        };
        until("the policy to hold", WAIT_TIMEOUT, async || {
            Ok(is_refused(nodes.patch(&node, &dry, &with("nodeshutdown")).await).then_some(()))
        })
        .await?;
        let write = PatchParams::default();
        admin.patch(&node, &write, &with("theirs")).await?;
        ensure!(
            is_refused(nodes.patch(&node, &dry, &without).await),
            "one of somebody else goes"
        );
        admin.patch(&node, &write, &with("nodeshutdown")).await?;
        nodes.patch(&node, &dry, &without).await?;
        Ok(())
    });
}
