//! Nodes of OpenShift: their MachineHealthChecks are paused while one of them is in maintenance.

use std::collections::BTreeSet;

use anyhow::ensure;
use haulout::kubernetes::rights::OPENSHIFT;
use haulout_lab::fixture::{Fixture, Member, WAIT_TIMEOUT};
use haulout_lab::kube::{Kube, KubeOptions};
use haulout_lab::wait::until;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::fixture::{a40, gpu_vm, hosts, run, run_scenario};

const GROUP: &str = "machine.openshift.io";
const NAMESPACE: &str = "openshift-machine-api";
const PAUSED: &str = "cluster.x-k8s.io/paused";

/// The kinds of the Machine API with their names; the schema of OpenShift is not needed.
const KINDS: [(&str, &str); 2] = [
    ("Machine", "machines"),
    ("MachineHealthCheck", "machinehealthchecks"),
];

fn api(fixture: &Fixture<'_>, kind: &str, plural: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(GROUP, "v1beta1", kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    Api::namespaced_with(fixture.client(), NAMESPACE, &resource)
}

/// Installs the kinds, and makes a Machine for each node and one check for all.
async fn machine_api(fixture: &Fixture<'_>, names: &[&str]) -> anyhow::Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(fixture.client());
    for (kind, plural) in KINDS {
        let definition = serde_json::from_value(json!({
            "metadata": {"name": format!("{plural}.{GROUP}")},
            "spec": {
                "group": GROUP, "scope": "Namespaced",
                "names": {"kind": kind, "plural": plural},
                "versions": [{"name": "v1beta1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                }}}],
            },
        }))?;
        definitions.create(&PostParams::default(), &definition).await?;
    }
    fixture.kube.create_namespace(NAMESPACE).await?;
    let nodes: Api<Node> = Api::all(fixture.client());
    let mut objects: Vec<Value> = Vec::new();
    for name in names {
        let node = fixture.node_name(name);
        let provider = nodes.get(&node).await?.spec.and_then(|spec| spec.provider_id);
        objects.push(json!({
            "apiVersion": format!("{GROUP}/v1beta1"), "kind": "Machine",
            "metadata": {"name": name, "labels": {"pool": "gpu"}},
            "spec": {"providerID": provider}, "status": {"nodeRef": {"name": node}},
        }));
        let annotation =
            json!({"metadata": {"annotations": {format!("{GROUP}/machine"): format!("{NAMESPACE}/{name}")}}});
        nodes
            .patch(&node, &PatchParams::default(), &Patch::Merge(&annotation))
            .await?;
    }
    objects.push(json!({
        "apiVersion": format!("{GROUP}/v1beta1"), "kind": "MachineHealthCheck",
        "metadata": {"name": "gpu"}, "spec": {"selector": {"matchLabels": {"pool": "gpu"}}},
    }));
    for object in objects {
        let object: DynamicObject = serde_json::from_value(object)?;
        let kind = object
            .types
            .as_ref()
            .map(|types| types.kind.clone())
            .unwrap_or_default();
        let plural = KINDS
            .iter()
            .find(|(known, _)| *known == kind)
            .map_or("", |(_, plural)| plural);
        let api = api(fixture, &kind, plural);
        // The kube-apiserver needs a moment to serve a kind.
        until(&format!("{kind} to be served"), WAIT_TIMEOUT, async || match api
            .create(&PostParams::default(), &object)
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            created => Ok(Some(created.map(|_| ())?)),
        })
        .await?;
    }
    Ok(())
}

/// Waits until the check is paused for as many VMs.
async fn paused_for(fixture: &Fixture<'_>, vms: usize) -> anyhow::Result<()> {
    let checks = api(fixture, "MachineHealthCheck", "machinehealthchecks");
    until(
        &format!("the check to be paused for {vms} VMs"),
        WAIT_TIMEOUT,
        async || {
            let check = checks.get("gpu").await?;
            let value = check.annotations().get(PAUSED);
            let count = value.map_or(0, |value| value.split(", ").count());
            Ok((count == vms).then_some(()))
        },
    )
    .await
}

#[test]
fn health_check_of_openshift_is_paused_until_the_last_node_is_back() {
    run_scenario(async {
        let options = KubeOptions {
            audit_reads: true,
            ..KubeOptions::default()
        };
        let kube = Kube::start(&options).await?;
        let mut spec = hosts(&[("esx1", &[a40(1)]), ("esx2", &[a40(1)])]);
        let names = ["gpu1", "gpu2"];
        spec.vms = vec![
            gpu_vm("openshift", "gpu1", "esx1"),
            gpu_vm("openshift", "gpu2", "esx2"),
        ];
        let members = names.iter().zip(&spec.vms);
        let members = members
            .map(|(name, vm)| Member::new("openshift", name, &vm.uuid))
            .collect();
        let fixture = Fixture::create(&kube, "openshift", &spec, members, true).await?;
        machine_api(&fixture, &names).await?;
        let haulout = run(&fixture, &[("MAX_CONCURRENT_DRAINS", "2")]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        paused_for(&fixture, 1).await?;
        fixture.vcenter.enter_maintenance("esx2").await?;
        fixture.wait_in_maintenance("esx2").await?;
        paused_for(&fixture, 2).await?;

        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&fixture.node_name("gpu1")).await?;
        paused_for(&fixture, 1).await?;
        fixture.vcenter.exit_maintenance("esx2").await?;
        fixture.wait_in_service(&fixture.node_name("gpu2")).await?;
        paused_for(&fixture, 0).await?;
        haulout.stop().await?;

        let listed: BTreeSet<(String, String)> = OPENSHIFT
            .iter()
            .flat_map(|right| {
                right
                    .verbs
                    .iter()
                    .map(|verb| (right.resource.to_owned(), (*verb).to_owned()))
            })
            .collect();
        let requests = kube.requests().await?;
        let used: BTreeSet<_> = requests
            .into_iter()
            .filter(|event| {
                event.user == "haulout-openshift" && event.group == GROUP && !event.resource.is_empty()
            })
            .map(|event| (event.resource, event.verb))
            .collect();
        ensure!(used == listed, "used: {used:?}; listed: {listed:?}");
        Ok(())
    });
}
