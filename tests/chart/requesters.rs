//! Who may request maintenance, and whom a request may name as the user who creates it.

use anyhow::{Context as _, ensure};
use haulout::nodemaintenance::kind::{NodeMaintenance, NodeMaintenanceSpec};
use haulout_lab::fixture::WAIT_TIMEOUT;
use haulout_lab::kube::User;
use haulout_lab::scenario::run_scenario;
use haulout_lab::wait::until;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::release::{Release, fixture};

#[test]
fn request_may_name_its_own_user_only() {
    run_scenario(async {
        let fixture = fixture("requesters", "aa000000-0000-4000-8000-000000000041", &["esx1"]).await?;
        let release = Release::prepare(&fixture).await?;
        release.upgrade(&[]);
        let client = fixture.kube.client_for(&User::admin("alice"))?;
        let requests: Api<NodeMaintenance> = Api::all(client);
        let request = |by: Option<&str>| {
            let spec = NodeMaintenanceSpec {
                node_name: fixture.node_name("gpu1"),
                requested_by: by.map(str::to_owned),
                ..NodeMaintenanceSpec::default()
            };
            NodeMaintenance::new("requesters-by-alice", spec)
        };
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let refusal = async |by: Option<&str>| match requests.create(&dry, &request(by)).await {
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) if status.code == 403 || status.code == 422 => {
                Ok(Some(status.message.clone()))
            }
            Err(error) => Err(anyhow::Error::from(error)),
        };
        // The kube-apiserver needs a moment to apply a policy.
        let refused = until("the policy to hold", WAIT_TIMEOUT, async || {
            refusal(Some("bob")).await
        });
        let message = refused.await?;
        ensure!(
            message.contains("the user who creates the request, which is alice"),
            "{message}"
        );
        for other in ["Alice", "system:admin", "alice "] {
            ensure!(refusal(Some(other)).await?.is_some(), "{other:?}");
        }
        for own in [None, Some("alice")] {
            ensure!(refusal(own).await?.is_none(), "{own:?}");
        }

        requests
            .create(&PostParams::default(), &request(Some("alice")))
            .await?;
        for by in [json!("bob"), json!(null)] {
            let patch = Patch::Merge(json!({"spec": {"requestedBy": by}}));
            let changed = requests
                .patch("requesters-by-alice", &PatchParams::default(), &patch)
                .await;
            ensure!(changed.is_err(), "it was changed to {by}");
        }
        Ok(())
    });
}

#[test]
fn role_of_the_chart_is_enough_for_the_command_line() {
    run_scenario(async {
        let uuid = "aa000000-0000-4000-8000-000000000042";
        let fixture = fixture("requesters-cli", uuid, &["esx1"]).await?;
        let release = Release::prepare(&fixture).await?;
        release.upgrade(&[]);
        let roles: Api<ClusterRole> = Api::all(fixture.client());
        let roles = roles.list(&ListParams::default()).await?.items.into_iter();
        let mut names = roles
            .filter(|role| {
                role.annotations().get("meta.helm.sh/release-namespace") == Some(&release.namespace)
            })
            .map(|role| role.name_any());
        let role = names.find(|name| name.ends_with("-edit")).context("the role")?;
        let binding = json!({
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "carol"}],
        });
        let bindings: Api<ClusterRoleBinding> = Api::all(fixture.client());
        bindings
            .create(&PostParams::default(), &serde_json::from_value(binding)?)
            .await?;

        let node = fixture.node_name("gpu1");
        let kubeconfig = fixture.kube.kubeconfig(&User::stranger("carol"))?;
        let carol = async |words: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_haulout"));
            command
                .env("KUBECONFIG", &kubeconfig)
                .args(words)
                .kill_on_drop(true);
            let answer = tokio::time::timeout(WAIT_TIMEOUT, command.output()).await??;
            ensure!(answer.status.success(), "{words:?}: {answer:?}");
            Ok(String::from_utf8(answer.stdout)?)
        };
        // The kube-apiserver needs a moment to apply a binding.
        let listed = until("the binding to hold", WAIT_TIMEOUT, async || {
            Ok(carol(&["list", "-o", "json"]).await.ok())
        });
        listed.await?;
        let drained = carol(&["drain", &node, "--wait=false", "-o", "json"]).await?;
        let drained: Value = serde_json::from_str(&drained)?;
        let request = drained["name"].as_str().with_context(|| drained.to_string())?;
        let status = carol(&["list", "-l", &format!("kubernetes.io/hostname={node}")]).await;
        ensure!(status.is_ok(), "{status:?}");
        let resumed = carol(&["resume", &node]).await?;
        ensure!(resumed.contains(&format!("{request} deleted")), "{resumed}");
        bindings.delete(&role, &Default::default()).await?;
        Ok(())
    });
}
