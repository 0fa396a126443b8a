//! The sentinel of the chart: its token decides for which node it may ask.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout::nodemaintenance::kind::NodeMaintenance;
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT};
use haulout_lab::process::ProcessSpec;
use haulout_lab::run_dir::RunDir;
use haulout_lab::scenario::run_scenario;
use haulout_lab::wait::until;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Container, Node, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::install::rights;
use crate::release::{Release, fixture};

const REQUIRED: &str = "haulout.dev/reboot-required";

/// A release with sentinels.
struct Sentinels<'s> {
    release: &'s Release<'s>,
    fixture: &'s Fixture<'static>,
    daemon_set: DaemonSet,
    dir: RunDir,
}

impl<'s> Sentinels<'s> {
    async fn install(release: &'s Release<'s>, fixture: &'s Fixture<'static>) -> anyhow::Result<Self> {
        release.upgrade(&[
            "sentinel.enabled=true",
            "sentinel.file=",
            "sentinel.intervalSeconds=1",
            "sentinel.window.days={Sat,Sun}",
            "sentinel.window.start=22:00",
            "sentinel.window.end=04:00",
            "sentinel.window.timeZone=europe/berlin",
        ]);
        let daemon_sets: Api<DaemonSet> = Api::namespaced(fixture.client(), &release.namespace);
        let mut all = daemon_sets.list(&ListParams::default()).await?.items;
        ensure!(all.len() == 1, "{} DaemonSets", all.len());
        Ok(Self {
            release,
            fixture,
            daemon_set: all.pop().context("there is a DaemonSet")?,
            dir: RunDir::create()?,
        })
    }

    fn account(&self) -> anyhow::Result<String> {
        let pod = self.daemon_set.spec.template.spec.clone();
        pod.and_then(|pod| pod.service_account_name)
            .context("the pods have a ServiceAccount")
    }

    fn user(&self) -> anyhow::Result<String> {
        Ok(format!(
            "system:serviceaccount:{}:{}",
            self.release.namespace,
            self.account()?
        ))
    }

    /// A token as the kubelet of `node` mounts it, bound to a pod there; without a node, one that is bound to no pod.
    async fn token(&self, node: Option<&str>) -> anyhow::Result<String> {
        let (client, namespace) = (self.fixture.client(), &self.release.namespace);
        let mut spec = json!({"audiences": ["https://kubernetes.default.svc"], "expirationSeconds": 3600});
        if let Some(node) = node {
            let restricted = json!({
                "allowPrivilegeEscalation": false, "runAsNonRoot": true, "runAsUser": 65532,
                "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
            });
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"name": format!("sentinel-on-{node}")},
                "spec": {
                    "nodeName": node, "serviceAccountName": self.account()?,
                    "containers": [{"name": "sentinel", "image": "haulout", "securityContext": restricted}],
                },
            }))?;
            let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
            let pod = pods.create(&PostParams::default(), &pod).await?;
            spec["boundObjectRef"] = json!({
                "kind": "Pod", "apiVersion": "v1", "name": pod.metadata.name, "uid": pod.metadata.uid,
            });
        }
        let request: TokenRequest = serde_json::from_value(json!({ "spec": spec }))?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client, namespace);
        let answer = accounts
            .create_token_request(&self.account()?, &PostParams::default(), &request)
            .await?;
        answer
            .status
            .map(|status| status.token)
            .context("the token has a status")?
            .context("a token")
    }

    async fn client(&self, token: &str) -> anyhow::Result<(kube::Client, PathBuf)> {
        let path = self.release.kubeconfig_with(token)?;
        let kubeconfig = kube::config::Kubeconfig::read_from(&path)?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
        Ok((kube::Client::try_from(config)?, path))
    }

    fn container(&self) -> anyhow::Result<Container> {
        let pod = self.daemon_set.spec.template.spec.clone();
        pod.and_then(|pod| pod.containers.into_iter().next())
            .context("there is a container")
    }
}

/// A request as the sentinel of `node` creates it.
fn request(node: &str) -> Value {
    json!({
        "apiVersion": "haulout.dev/v1alpha1", "kind": "NodeMaintenance",
        "metadata": {
            "name": format!("{node}-reboot-0123456789ab"),
            "labels": {"haulout.dev/requested-by": "haulout-sentinel"},
        },
        "spec": {
            "nodeName": node, "action": "Reboot", "reason": "a reboot is required",
            "window": {"days": ["Sun", "Sat"], "start": "22:00", "end": "04:00", "timeZone": "Europe/Berlin"},
        },
    })
}

/// `request` with another value at `pointer`, or without one.
fn changed(request: &Value, parent: &str, field: &str, value: Value) -> anyhow::Result<Value> {
    let mut request = request.clone();
    let object = request
        .pointer_mut(parent)
        .and_then(Value::as_object_mut)
        .context("an object")?;
    object.insert(field.to_owned(), value);
    object.retain(|_, value| !value.is_null());
    Ok(request)
}

/// Whether the kube-apiserver takes it in a dry run, or why not.
async fn asks(client: &kube::Client, request: &Value) -> anyhow::Result<Result<(), String>> {
    let objects: Api<NodeMaintenance> = Api::all(client.clone());
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match objects
        .create(&dry, &serde_json::from_value(request.clone())?)
        .await
    {
        Ok(_) => Ok(Ok(())),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(Err(status.message.clone())),
        Err(error) => Err(error.into()),
    }
}

#[test]
fn sentinel_may_ask_for_a_reboot_of_its_own_node_only() {
    run_scenario(async {
        let fixture = fixture("own-node", "aa000000-0000-4000-8000-00000000000b", &["esx1"]).await?;
        let release = Release::prepare(&fixture).await?;
        let sentinels = Sentinels::install(&release, &fixture).await?;
        let node = fixture.node_name("gpu1");
        let (client, _) = sentinels.client(&sentinels.token(Some(&node)).await?).await?;
        let own = request(&node);
        // The kube-apiserver needs a moment to apply a policy.
        until("the policy to hold", WAIT_TIMEOUT, async || {
            Ok(asks(&client, &request("another-node")).await?.err())
        })
        .await?;
        asks(&client, &own)
            .await?
            .map_err(anyhow::Error::msg)
            .context("its own node")?;

        let cases = [
            ("another node", "/spec", "nodeName", json!("another-node")),
            ("another action", "/spec", "action", json!("PowerOff")),
            ("the record of an episode", "/spec", "origin", json!("Episode")),
            (
                "another controller's selector",
                "/spec",
                "selector",
                json!("gpu=true"),
            ),
            ("a longer drain", "/spec", "drainTimeoutSeconds", json!(604_800)),
            (
                "an end of the drain",
                "/spec",
                "drainTimeoutAction",
                json!("Hold"),
            ),
            (
                "a longer shutdown",
                "/spec",
                "guestShutdownTimeoutSeconds",
                json!(86_400),
            ),
            ("no window", "/spec", "window", Value::Null),
            ("another day", "/spec/window", "days", json!(["Sat", "Mon"])),
            ("every day", "/spec/window", "days", Value::Null),
            ("another hour", "/spec/window", "start", json!("00:00")),
            ("another time zone", "/spec/window", "timeZone", json!("UTC")),
            ("no label", "/metadata", "labels", Value::Null),
            (
                "the name of a person's request",
                "/metadata",
                "name",
                json!("by-hand"),
            ),
            ("a finalizer", "/metadata", "finalizers", json!(["example.com/x"])),
        ];
        for (what, parent, field, value) in cases {
            let answer = asks(&client, &changed(&own, parent, field, value)?).await?;
            ensure!(answer.is_err(), "it may ask for {what}");
        }
        let (unbound, _) = sentinels.client(&sentinels.token(None).await?).await?;
        let why = asks(&unbound, &own)
            .await?
            .err()
            .context("a token without a pod was taken")?;
        ensure!(why.contains("is not bound to a pod on a node"), "{why}");

        let admin: Api<NodeMaintenance> = Api::all(fixture.client());
        let by_hand = changed(&own, "/metadata", "name", json!("own-node-by-hand"))?;
        let by_hand = changed(&by_hand, "/metadata", "labels", Value::Null)?;
        let others = request("another-node");
        for object in [&own, &by_hand, &others] {
            admin
                .create(&PostParams::default(), &serde_json::from_value(object.clone())?)
                .await?;
        }
        let objects: Api<NodeMaintenance> = Api::all(client.clone());
        let patch = Patch::Merge(json!({"spec": {"reason": "x"}}));
        for (object, expected) in [(&by_hand, false), (&others, false), (&own, true)] {
            let name = object
                .pointer("/metadata/name")
                .and_then(Value::as_str)
                .context("a name")?;
            ensure!(
                objects
                    .patch(name, &PatchParams::default(), &patch)
                    .await
                    .is_err(),
                "{name} was changed"
            );
            let deleted = objects.delete(name, &DeleteParams::default()).await;
            ensure!(deleted.is_ok() == expected, "{name}: {deleted:?}");
        }
        for object in [&by_hand, &others] {
            let name = object
                .pointer("/metadata/name")
                .and_then(Value::as_str)
                .context("a name")?;
            admin.delete(name, &DeleteParams::default()).await?;
        }
        Ok(())
    });
}

#[test]
fn sentinel_asks_and_withdraws_with_exactly_its_rights() {
    run_scenario(async {
        let fixture = fixture(
            "sentinel-rights",
            "aa000000-0000-4000-8000-00000000000c",
            &["esx1"],
        )
        .await?;
        let release = Release::prepare(&fixture).await?;
        let sentinels = Sentinels::install(&release, &fixture).await?;
        let node = fixture.node_name("gpu1");
        let (client, kubeconfig) = sentinels.client(&sentinels.token(Some(&node)).await?).await?;
        // The kube-apiserver needs a moment to apply a policy and a role.
        until("the rights to hold", WAIT_TIMEOUT, async || {
            Ok(asks(&client, &request(&node)).await?.is_ok().then_some(()))
        })
        .await?;
        let container = sentinels.container()?;
        let mut spec = ProcessSpec::leashed(
            "sentinel",
            env!("CARGO_BIN_EXE_haulout"),
            sentinels.dir.join("log"),
        )
        .args(container.args.as_deref().unwrap_or_default())
        .env("KUBECONFIG", &kubeconfig)
        .env("NODE_NAME", &node);
        for variable in container.env.iter().flatten() {
            if let Some(value) = &variable.value {
                spec = spec.env(&variable.name, value);
            }
        }
        let mut sentinel = spec.spawn()?;
        let objects: Api<NodeMaintenance> = Api::all(fixture.client());
        let count = async || {
            let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
            anyhow::Ok(objects.list(&of_node).await?.items.len())
        };
        let nodes: Api<Node> = Api::all(fixture.client());
        for (value, expected) in [(json!("true"), 1), (Value::Null, 0)] {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {REQUIRED: value}}}));
            nodes.patch(&node, &PatchParams::default(), &patch).await?;
            until(&format!("{expected} requests"), WAIT_TIMEOUT, async || {
                Ok((count().await? == expected).then_some(()))
            })
            .await
            .with_context(|| sentinel.tail())?;
        }
        ensure!(
            sentinel.stop(Duration::from_secs(5)).await?.success(),
            "{}",
            sentinel.tail()
        );

        let user = sentinels.user()?;
        let audit = fixture
            .kube
            .audit()
            .await?
            .into_iter()
            .filter(|event| event.user == user);
        let used: BTreeSet<_> = audit
            .map(|event| (event.group, event.resource, event.verb))
            .collect();
        let roles: Api<ClusterRole> = Api::all(fixture.client());
        let name = format!("{}-sentinel-rights-haulout-sentinel", release.namespace);
        let given = rights(roles.get(&name).await?.rules);
        ensure!(used == given, "used {used:#?}, given {given:#?}");
        Ok(())
    });
}
