//! A KubeVirt virtual machine: a webhook refuses the eviction of its pod and starts a live migration.

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::post;
use haulout_lab::fixture::Fixture;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::fixture::{kube, one_node, run, run_scenario};

/// The response of KubeVirt's webhook.
async fn admit(body: String) -> impl IntoResponse {
    let review: Value = serde_json::from_str(&body).unwrap_or_default();
    let request = &review["request"];
    let (namespace, name) = (
        &request["namespace"],
        request["name"].as_str().unwrap_or_default(),
    );
    let mut response = json!({"uid": request["uid"], "allowed": true});
    if name.starts_with("virt-launcher") {
        let namespace = namespace.as_str().unwrap_or_default();
        response["allowed"] = json!(false);
        response["status"] = json!({
            "code": 429,
            "message": format!("Eviction triggered evacuation of VMI \"{namespace}/trainer\""),
        });
    }
    let answer =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    ([(CONTENT_TYPE, "application/json")], answer.to_string())
}

/// Serves the webhook for the evictions of one namespace, until it is dropped.
struct Webhook {
    _serving: JoinSet<()>,
}

impl Webhook {
    async fn start(fixture: &Fixture<'_>) -> anyhow::Result<Self> {
        let (certificate, key) = kube()
            .await
            .server_certificate(&format!("webhook-{}", fixture.name()))?;
        let chain = CertificateDer::pem_file_iter(&certificate)?.collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_file(&key)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            let app = axum::Router::new().route("/", post(admit));
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, app) = (acceptor.clone(), app.clone());
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let service = TowerToHyperService::new(app);
                    let _ = Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        let webhook = Self { _serving: serving };
        let bundle = std::fs::read(kube().await.authority())?;
        let configuration: ValidatingWebhookConfiguration = serde_json::from_value(json!({
            "metadata": {"name": format!("kubevirt-{}", fixture.name())},
            "webhooks": [{
                "name": "virt-launcher-eviction-interceptor.kubevirt.io",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "clientConfig": {
                    "url": format!("https://127.0.0.1:{port}/"),
                    "caBundle": k8s_openapi::ByteString(bundle),
                },
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": fixture.name()}},
                "rules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                    "resources": ["pods/eviction"], "scope": "Namespaced",
                }],
            }],
        }))?;
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(fixture.client());
        configurations
            .create(&PostParams::default(), &configuration)
            .await?;
        Ok(webhook)
    }
}

#[test]
fn eviction_that_becomes_a_live_migration_holds_up_no_other_pod() {
    run_scenario(async {
        let fixture = one_node("kubevirt").await?;
        let node = fixture.node_name("gpu1");
        let _webhook = Webhook::start(&fixture).await?;
        fixture.add_pod("virt-launcher-trainer", &node, &[]).await?;
        fixture.add_pod("web", &node, &[]).await?;
        let haulout = run(&fixture, &[]).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_for_log("its VM is being migrated live").await?;
        haulout_lab::wait::until(
            "the other pod to go",
            std::time::Duration::from_secs(30),
            async || {
                let left = fixture.pods_on(&node).await?;
                Ok((left.len() == 1 && left[0].contains("virt-launcher")).then_some(()))
            },
        )
        .await?;
        ensure!(
            fixture.power_cycles("gpu1").await? == (0, 0),
            "power was cut on a VM that migrates"
        );
        // The migration and the pod have ended.
        let pods: Api<Pod> = Api::namespaced(fixture.client(), fixture.name());
        let launcher = fixture.pods_on(&node).await?;
        let name = launcher[0].rsplit('/').next().context("no name")?.to_owned();
        pods.delete(&name, &DeleteParams::default().grace_period(0))
            .await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}
