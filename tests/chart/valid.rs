//! What the chart renders, checked by a kube-apiserver that also has the kinds of the Prometheus Operator.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use haulout_lab::build;
use haulout_lab::fixture::WAIT_TIMEOUT;
use haulout_lab::kube::{Kube, KubeOptions};
use haulout_lab::scenario::run_scenario;
use haulout_lab::wait::until;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams, ValidationDirective};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::helm::{cases, chart, object, rendered};
use crate::release::restricted_namespace;

/// A separate cluster: the chart renders other objects if these kinds exist, and the other scenarios run without them.
static OPERATED: OnceCell<Kube> = OnceCell::const_new();

pub async fn operated() -> &'static Kube {
    OPERATED
        .get_or_init(async || {
            with_operators_kinds()
                .await
                .expect("starting a cluster with the Prometheus Operator's kinds")
        })
        .await
}

async fn with_operators_kinds() -> anyhow::Result<Kube> {
    let module = build::module("prometheus-operator").await?;
    let kube = Kube::start(&KubeOptions::default()).await?;
    for kinds in ["podmonitors", "prometheusrules", "servicemonitors"] {
        let path = module.join(format!(
            "example/prometheus-operator-crd/monitoring.coreos.com_{kinds}.yaml"
        ));
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        kube.define(&text).await?;
    }
    Ok(kube)
}

/// Whether Pod Security admits a pod of this spec.
async fn is_admitted(client: &kube::Client, spec: &Value) -> anyhow::Result<()> {
    let mut pod: Pod = serde_json::from_value(json!({"metadata": {"name": "haulout"}, "spec": spec}))?;
    // Its ServiceAccount does not exist in a dry run, so that of the namespace is used.
    if let Some(spec) = &mut pod.spec {
        spec.service_account_name = None;
    }
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), "haulout");
    until("a pod to be admitted or refused", WAIT_TIMEOUT, async || {
        match pods.create(&dry, &pod).await {
            Ok(_) => Ok(Some(Ok(()))),
            // The default ServiceAccount of the namespace is created after a moment.
            Err(error) if error.to_string().contains("serviceaccount") => Ok(None),
            Err(error) => Ok(Some(Err(error))),
        }
    })
    .await??;
    Ok(())
}

#[test]
fn every_object_is_valid_and_every_pod_is_restricted() {
    run_scenario(async {
        let client = operated().await.client();
        restricted_namespace(&client, "haulout").await?;
        let params = PatchParams {
            dry_run: true,
            field_validation: Some(ValidationDirective::Strict),
            ..PatchParams::apply("chart").force()
        };
        let mut seen = BTreeSet::new();
        for case in cases() {
            let objects = rendered(&case, &[]);
            for rendered in &objects {
                let object: DynamicObject = serde_json::from_value(rendered.clone())?;
                let types = object.types.clone().context("an object has a kind")?;
                seen.insert(types.kind.clone());
                // Its ServiceAccount does not exist in a dry run, so it is admitted below without it.
                if types.kind == "Pod" {
                    continue;
                }
                let kind = GroupVersionKind::try_from(&types)?;
                let (resource, capabilities) = kube::discovery::pinned_kind(&client, &kind).await?;
                let api: Api<DynamicObject> = match capabilities.scope {
                    kube::discovery::Scope::Cluster => Api::all_with(client.clone(), &resource),
                    kube::discovery::Scope::Namespaced => {
                        let namespace = object.metadata.namespace.as_deref();
                        let namespace =
                            namespace.with_context(|| format!("{rendered} names no namespace"))?;
                        // The Role for the Lease of a hosted cluster is in that cluster, not here.
                        Api::namespaced_with(client.clone(), namespace, &resource)
                    }
                };
                let name = object.metadata.name.clone().context("an object has a name")?;
                api.patch(&name, &params, &Patch::Apply(&object))
                    .await
                    .with_context(|| format!("{}: {} {name}", case.display(), types.kind))?;
            }
            let of_deployment = &object(&objects, "Deployment")["spec"]["template"]["spec"];
            let of_test = &object(&objects, "Pod")["spec"];
            for spec in [of_deployment, of_test] {
                is_admitted(&client, spec)
                    .await
                    .with_context(|| format!("{}: a pod", case.display()))?;
            }
        }
        ensure!(
            ["PodMonitor", "PrometheusRule", "ServiceMonitor"]
                .iter()
                .all(|kind| seen.contains(*kind)),
            "the values files switch on only {seen:?}"
        );
        Ok(())
    });
}

/// All specs of pods in `rendered`, with the kind of their object.
fn pod_specs(rendered: &Value) -> Vec<&Value> {
    match rendered["kind"].as_str() {
        Some("Pod") => vec![&rendered["spec"]],
        Some("Deployment" | "DaemonSet" | "Job") => vec![&rendered["spec"]["template"]["spec"]],
        Some(_) | None => Vec::new(),
    }
}

/// OpenShift's `restricted-v2` refuses any number outside the range of the namespace, and assigns what is not named.
#[test]
fn no_pod_has_a_fixed_user_or_group_and_any_user_reads_its_files() {
    let mut seen = BTreeSet::new();
    for case in cases() {
        // The sentinel is not for all of them.
        let sentinel = chart().join("ci/default-values.yaml") == case;
        let sentinel = format!("sentinel.enabled={sentinel}");
        for object in rendered(&case, &["rbac.integrations=always", &sentinel]) {
            for spec in pod_specs(&object) {
                let kind = format!("{}: {}", case.display(), object["kind"]);
                seen.insert(object["kind"].as_str().unwrap().to_owned());
                let containers = ["containers", "initContainers"].map(|it| spec[it].as_array());
                let containers = containers.into_iter().flatten().flatten();
                for context in containers.chain([spec]).map(|it| &it["securityContext"]) {
                    for field in ["runAsUser", "runAsGroup", "fsGroup", "supplementalGroups"] {
                        assert_eq!(context[field], Value::Null, "{kind}: {field}");
                    }
                }
                assert_eq!(spec["securityContext"]["runAsNonRoot"], true, "{kind}");
                for volume in spec["volumes"].as_array().into_iter().flatten() {
                    let source = ["secret", "configMap", "projected"].map(|it| &volume[it]["defaultMode"]);
                    for mode in source.into_iter().filter_map(Value::as_u64) {
                        assert_eq!(mode & 0o004, 0o004, "{kind}: {volume}");
                    }
                }
            }
        }
    }
    let pods = ["DaemonSet", "Deployment", "Pod"].map(str::to_owned);
    assert_eq!(seen, BTreeSet::from(pods));
}
