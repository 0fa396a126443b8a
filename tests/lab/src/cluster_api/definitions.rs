//! The kinds of Cluster API with their webhooks, from its module, and the kinds of the stand-ins.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::PostParams;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The timeout of a kind to be served.
const SERVED: Duration = Duration::from_secs(60);

/// Where the webhooks are served.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) port: u16,
    /// The CA of the server's certificate.
    pub(super) authority: ByteString,
}

impl Serving {
    fn client_config(&self, path: &str) -> Value {
        json!({"url": format!("https://127.0.0.1:{}{path}", self.port), "caBundle": self.authority})
    }
}

/// Creates all kinds and waits until they are served.
pub(super) async fn install_kinds(
    client: &kube::Client,
    module: &Path,
    serving: &Serving,
) -> anyhow::Result<()> {
    let folder = module.join("config/crd/bases");
    let mut definitions = stand_ins();
    let reading = || format!("reading {}", folder.display());
    for entry in std::fs::read_dir(&folder).with_context(reading)? {
        let path = entry.with_context(reading)?.path();
        let mut definition: Value = read_yaml(&std::fs::read_to_string(&path).with_context(reading)?)
            .with_context(|| format!("reading {}", path.display()))?;
        // As Cluster API's own manifests: their patch of each kind, and the label of its contracts.
        definition["metadata"]["labels"] = contracts("v1beta1", "v1beta2");
        definition["spec"]["conversion"] = json!({
            "strategy": "Webhook",
            "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": serving.client_config("/convert")},
        });
        definitions.push(definition);
    }
    let kinds: Api<CustomResourceDefinition> = Api::all(client.clone());
    stream::iter(definitions)
        .map(Ok)
        .try_for_each_concurrent(None, async |definition| {
            let definition: CustomResourceDefinition = serde_json::from_value(definition)?;
            let name = definition.metadata.name.clone().unwrap_or_default();
            kinds
                .create(&PostParams::default(), &definition)
                .await
                .with_context(|| format!("creating {name}"))?;
            let served = kube::runtime::conditions::is_crd_established();
            let waiting = kube::runtime::wait::await_condition(kinds.clone(), &name, served);
            tokio::time::timeout(SERVED, waiting)
                .await
                .with_context(|| format!("{name} was not served in time"))??;
            Ok(())
        })
        .await
}

/// Registers the webhooks of Cluster API's manifests.
pub(super) async fn install_webhooks(
    client: &kube::Client,
    module: &Path,
    serving: &Serving,
) -> anyhow::Result<()> {
    let path = module.join("config/webhook/manifests.yaml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    for document in text.split("---\n").filter(|document| !document.trim().is_empty()) {
        let mut configuration: Value = read_yaml(document)?;
        let name = format!(
            "capi-{}",
            configuration["metadata"]["name"].as_str().unwrap_or_default()
        );
        configuration["metadata"]["name"] = json!(name);
        for webhook in configuration["webhooks"].as_array_mut().into_iter().flatten() {
            let path = webhook
                .pointer("/clientConfig/service/path")
                .and_then(Value::as_str);
            let config = serving.client_config(path.context("a webhook without a path")?);
            webhook["clientConfig"] = config;
        }
        let params = PostParams::default();
        if configuration["kind"] == "MutatingWebhookConfiguration" {
            let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
            api.create(&params, &serde_json::from_value(configuration)?)
                .await?;
        } else {
            let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
            api.create(&params, &serde_json::from_value(configuration)?)
                .await?;
        }
    }
    Ok(())
}

fn read_yaml<T: DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    serde_saphyr::from_str(text).context("reading YAML")
}

/// The versions that follow these contracts of Cluster API.
fn contracts(v1beta1: &str, v1beta2: &str) -> Value {
    json!({"cluster.x-k8s.io/v1beta1": v1beta1, "cluster.x-k8s.io/v1beta2": v1beta2})
}

/// The kinds of the stand-ins, with any fields. The versions and contracts of CAPV's are those of CAPV v1.16.1, but without
/// a conversion.
fn stand_ins() -> Vec<Value> {
    let infrastructure = |kind: &str| {
        definition(
            "infrastructure.cluster.x-k8s.io",
            kind,
            &["v1beta1", "v1beta2"],
            &contracts("v1beta1", "v1beta2"),
        )
    };
    vec![
        infrastructure("VSphereCluster"),
        infrastructure("VSphereMachine"),
        infrastructure("VSphereMachineTemplate"),
        infrastructure("VSphereVM"),
        definition(
            "controlplane.cluster.x-k8s.io",
            "KamajiControlPlane",
            &["v1alpha1"],
            &contracts("v1alpha1", "v1alpha1"),
        ),
    ]
}

/// A kind of which the last version is stored.
fn definition(group: &str, kind: &str, versions: &[&str], labels: &Value) -> Value {
    let singular = kind.to_lowercase();
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| {
            let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
            json!({
                "name": version,
                "served": true,
                "storage": Some(version) == versions.last(),
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": any, "status": any}}},
            })
        })
        .collect();
    json!({
        "metadata": {"name": format!("{singular}s.{group}"), "labels": labels},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "listKind": format!("{kind}List"), "singular": singular, "plural": format!("{singular}s")},
            "versions": versions,
        },
    })
}
