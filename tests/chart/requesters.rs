//! Whom a request may name as the user who creates it.

use anyhow::ensure;
use haulout::nodemaintenance::kind::{NodeMaintenance, NodeMaintenanceSpec};
use haulout_lab::fixture::WAIT_TIMEOUT;
use haulout_lab::kube::User;
use haulout_lab::scenario::run_scenario;
use haulout_lab::wait::until;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

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
