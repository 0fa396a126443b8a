//! What a kubelet may write, with the rights of a real one: the Node authorizer, NodeRestriction and the chart's policy.

use anyhow::ensure;
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT, label};
use haulout_lab::kube::User;
use haulout_lab::scenario::run_scenario;
use haulout_lab::wait::until;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::release::{Release, fixture};

const UUID: &str = "aa0b0c0d-0e0f-4001-8000-000000000031";

/// The same machine, in the byte order of another hardware version.
const SWAPPED_UUID: &str = "0d0c0baa-0f0e-0140-8000-000000000031";

/// What the kubelet of a Node writes, without lasting effect.
struct AsKubelet {
    nodes: Api<Node>,
    node: String,
}

impl AsKubelet {
    fn of(fixture: &Fixture<'_>, node: &str) -> anyhow::Result<Self> {
        let client = fixture.kube.client_for(&User::kubelet(node))?;
        Ok(Self {
            nodes: Api::all(client),
            node: node.to_owned(),
        })
    }

    /// Whether the kube-apiserver accepts the patch of the Node, or of its status.
    async fn may(&self, patch: &Value) -> anyhow::Result<bool> {
        let dry = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let answer = if patch.get("status").is_some() {
            let patch = Patch::Strategic(patch);
            self.nodes.patch_status(&self.node, &dry, &patch).await
        } else {
            self.nodes.patch(&self.node, &dry, &Patch::Merge(patch)).await
        };
        accepted(answer)
    }

    async fn may_create(&self, node: &Value) -> anyhow::Result<bool> {
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let node: Node = serde_json::from_value(node.clone())?;
        accepted(self.nodes.create(&dry, &node).await)
    }
}

fn accepted(answer: Result<Node, kube::Error>) -> anyhow::Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 403 || status.code == 422 => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn annotated(key: &str, value: Option<&str>) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

fn machine(uuid: &str) -> Value {
    json!({"status": {"nodeInfo": {"systemUUID": uuid}}})
}

#[test]
fn kubelet_may_not_change_what_haulout_goes_by() {
    run_scenario(async {
        let fixture = fixture("kubelets", UUID, &["esx1"]).await?;
        let release = Release::prepare(&fixture).await?;
        release.upgrade(&[]);
        let node = fixture.node_name("gpu1");
        let admin: Api<Node> = Api::all(fixture.client());
        let approved = annotated("haulout.dev/approved", Some("false"));
        admin
            .patch(&node, &PatchParams::default(), &Patch::Merge(&approved))
            .await?;
        let kubelet = AsKubelet::of(&fixture, &node)?;
        // The kube-apiserver needs a moment to apply a policy.
        let approve = annotated("haulout.dev/approved", Some("true"));
        until("the policy to hold", WAIT_TIMEOUT, async || {
            Ok((!kubelet.may(&approve).await?).then_some(()))
        })
        .await?;

        let selector = label("kubelets");
        for refused in [
            annotated("haulout.dev/approved", None),
            annotated("haulout.dev/skip", Some("true")),
            annotated("haulout.dev/accepted-gpus", Some("nvidia.com/gpu=0")),
            annotated("vsphere-maintenance.boeye.net/state", Some("draining")),
            annotated("haulout.dev/episode", Some("{}")),
            annotated("pre-drain.hook.haulout.dev/x", Some("")),
            json!({"metadata": {"labels": {selector.as_str(): null}}}),
            json!({"metadata": {"labels": {selector.as_str(): "false"}}}),
            machine("aa000000-0000-4000-8000-000000000032"),
            json!({"spec": {"providerID": "vsphere://aa000000-0000-4000-8000-000000000032"}}),
        ] {
            ensure!(!kubelet.may(&refused).await?, "a kubelet may write {refused}");
        }
        for written in [
            annotated("example.com/own", Some("1")),
            annotated("haulout.dev/reboot-required", Some("kernel")),
            json!({"metadata": {"labels": {"node.kubernetes.io/own": "1"}}}),
            json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "x", "message": "x"}]}}),
            machine(UUID),
            machine(&UUID.to_uppercase()),
            machine(SWAPPED_UUID),
        ] {
            ensure!(kubelet.may(&written).await?, "a kubelet may not write {written}");
        }
        Ok(())
    });
}

#[test]
fn kubelet_may_register_and_name_its_machine_once() {
    run_scenario(async {
        let fixture = fixture("registering", "aa000000-0000-4000-8000-000000000033", &["esx1"]).await?;
        let release = Release::prepare(&fixture).await?;
        release.upgrade(&[]);
        let selector = label("registering");
        let kubelet = AsKubelet::of(&fixture, "registering-new")?;
        let node = |annotations: Value| json!({"metadata": {"name": "registering-new", "labels": {selector.as_str(): "true"}, "annotations": annotations}});
        until("the policy to hold", WAIT_TIMEOUT, async || {
            let skipped = node(json!({"haulout.dev/skip": "true"}));
            Ok((!kubelet.may_create(&skipped).await?).then_some(()))
        })
        .await?;
        ensure!(kubelet.may_create(&node(json!({"example.com/own": "1"}))).await?);

        // A Node that another program created gets the UUID from its kubelet.
        let admin: Api<Node> = Api::all(fixture.client());
        let bare: Node = serde_json::from_value(node(json!({})))?;
        admin.create(&PostParams::default(), &bare).await?;
        ensure!(kubelet.may(&machine(UUID)).await?);
        let given = json!({"spec": {"providerID": format!("vsphere://{UUID}")}});
        ensure!(!kubelet.may(&given).await?, "a cloud provider names the machine");
        Ok(())
    });
}
