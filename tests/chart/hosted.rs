//! A hosted cluster: the program runs in the management cluster, with a kubeconfig that has only the documented rights.

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT};
use haulout_lab::scenario::run_scenario;
use haulout_lab::wait::until;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;

use crate::release::{Release, fixture};
use crate::valid::operated;

/// The token that `tenantObjectsOnly` makes, once the controller of Secrets has filled it in.
async fn token(tenant: &Release<'_>, fixture: &Fixture<'_>) -> anyhow::Result<String> {
    let secrets: Api<Secret> = Api::namespaced(fixture.client(), &tenant.namespace);
    until("the token of the ServiceAccount", WAIT_TIMEOUT, async || {
        let secret = secrets.get("hosted-haulout-token").await?;
        let token = secret.data.and_then(|mut data| data.remove("token"));
        Ok(token.map(|token| String::from_utf8(token.0)).transpose()?)
    })
    .await
}

#[test]
fn hosted_cluster_is_managed_with_least_rights() {
    run_scenario(async {
        let fixture = fixture("hosted", "aa000000-0000-4000-8000-000000000005", &["esx1"]).await?;
        let node = fixture.node_name("gpu1");
        let tenant = Release::prepare(&fixture).await?;
        tenant.upgrade(&["tenantObjectsOnly=true"]);
        let kubeconfig = tenant.kubeconfig_with(&token(&tenant, &fixture).await?)?;

        let management_cluster = operated().await;
        let management = Release::prepare_in(&fixture, management_cluster).await?;
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": "tenant-a-haulout"},
            "stringData": {"value": std::fs::read_to_string(kubeconfig)?},
        }))?;
        Api::namespaced(management_cluster.client(), &management.namespace)
            .create(&PostParams::default(), &secret)
            .await?;
        management.upgrade(&[
            "workloadCluster.name=tenant-a",
            "workloadCluster.kubeconfigSecret.name=tenant-a-haulout",
        ]);
        management.wait_admitted().await?;
        let deployment = management.deployment().await?;
        ensure!(deployment.metadata.name.as_deref() == Some("hosted-haulout-tenant-a"));
        let mut replica = management.start().await?;
        replica.wait_ready().await?;

        fixture.add_pod("train", &node, &[]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        replica.stop().await?;

        let leases =
            |client: kube::Client, namespace: &str| -> Api<Lease> { Api::namespaced(client, namespace) };
        leases(management_cluster.client(), &management.namespace)
            .get("hosted-haulout-tenant-a")
            .await
            .context("the Lease is beside the pods")?;
        let in_tenant = leases(fixture.client(), "kube-system")
            .list(&ListParams::default())
            .await?
            .items;
        let is_ours = |lease: &Lease| {
            let name = lease.metadata.name.as_deref().unwrap_or_default();
            name.contains("hosted-haulout")
        };
        ensure!(!in_tenant.iter().any(is_ours), "{in_tenant:#?}");

        let user = format!("system:serviceaccount:{}:hosted-haulout", tenant.namespace);
        let used = fixture.kube.audit().await?;
        let used: Vec<_> = used.into_iter().filter(|event| event.user == user).collect();
        let refused: Vec<_> = used.iter().filter(|event| event.code == 403).collect();
        ensure!(refused.is_empty(), "refused in the hosted cluster: {refused:#?}");
        ensure!(
            used.iter()
                .any(|event| event.resource == "nodes" && event.verb == "patch"),
            "nothing was done in the hosted cluster"
        );
        let asked = management.audit().await?;
        let others: Vec<_> = asked
            .iter()
            .filter(|event| event.resource != "leases" && !event.resource.is_empty())
            .collect();
        ensure!(others.is_empty(), "asked of the management cluster: {others:#?}");
        Ok(())
    });
}
