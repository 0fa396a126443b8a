//! Requests that may begin in a window only.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout::nodemaintenance::kind::{
    MaintenanceAction, MaintenanceWindow, NodeMaintenance, NodeMaintenanceSpec,
};
use haulout_lab::fixture::{Fixture, boot_id, is_cordoned};
use haulout_lab::wait::until;
use jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::fixture::{one_node, run, run_scenario};

const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// A window that was closed at `now` and stays so for three days.
pub fn closed_at(now: Timestamp) -> String {
    let day = (now + SignedDuration::from_hours(4 * 24))
        .strftime("%a")
        .to_string();
    format!("{day} 12:00-13:00 UTC")
}

pub fn window(text: &str) -> anyhow::Result<MaintenanceWindow> {
    let window: haulout::window::Window = text.parse()?;
    Ok(MaintenanceWindow::from(&window))
}

pub async fn change(fixture: &Fixture<'_>, name: &str, window: &MaintenanceWindow) -> anyhow::Result<()> {
    let objects: Api<NodeMaintenance> = Api::all(fixture.client());
    let mut window = serde_json::to_value(window)?;
    // A merge patch keeps what it does not name.
    window["days"] = window.get("days").cloned().unwrap_or_default();
    let patch = Patch::Merge(json!({ "spec": { "window": window } }));
    objects.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until the status of the request contains `text`.
pub async fn says(fixture: &Fixture<'_>, name: &str, text: &str) -> anyhow::Result<()> {
    let objects: Api<NodeMaintenance> = Api::all(fixture.client());
    let seen = std::cell::RefCell::new(String::new());
    let what = format!("{name} to say {text}");
    let said = until(&what, WAIT_TIMEOUT, async || {
        let status = serde_json::to_string(&objects.get(name).await?.status)?;
        seen.replace(status.clone());
        Ok(status.contains(text).then_some(()))
    });
    said.await
        .with_context(|| format!("the status was {}", seen.borrow()))
}

#[test]
fn request_outside_its_window_waits_and_says_when_it_opens() {
    run_scenario(async {
        let fixture = one_node("window").await?;
        let node = fixture.node_name("gpu1");
        let before = fixture.node(&node).await?;
        let haulout = run(&fixture, &[]).await?;
        let now = before
            .creation_timestamp()
            .context("the Node has no creation time")?;
        let request = NodeMaintenance {
            metadata: ObjectMeta {
                name: Some("window-reboot".to_owned()),
                ..ObjectMeta::default()
            },
            spec: NodeMaintenanceSpec {
                node_name: node.clone(),
                action: MaintenanceAction::Reboot,
                window: Some(window(&closed_at(now.0))?),
                ..NodeMaintenanceSpec::default()
            },
            status: None,
        };
        let objects: Api<NodeMaintenance> = Api::all(fixture.client());
        objects.create(&PostParams::default(), &request).await?;
        says(
            &fixture,
            "window-reboot",
            "T12:00:00Z, when the window of NodeMaintenance window-reboot opens",
        )
        .await?;
        fixture
            .wait_for_log("when the window of NodeMaintenance window-reboot opens")
            .await?;
        ensure!(!is_cordoned(&fixture.node(&node).await?));

        let unknown = MaintenanceWindow {
            time_zone: "Europe/Berlln".to_owned(),
            ..window("00:00-00:00")?
        };
        change(&fixture, "window-reboot", &unknown).await?;
        says(&fixture, "window-reboot", "is not a time zone that Haulout knows").await?;
        says(&fixture, "window-reboot", r#""status":"True","type":"Stalled""#).await?;

        change(&fixture, "window-reboot", &window("00:00-00:00 Europe/Berlin")?).await?;
        says(
            &fixture,
            "window-reboot",
            r#""reason":"Succeeded","status":"True","type":"Succeeded""#,
        )
        .await?;
        let after = fixture.wait_in_service(&node).await?;
        ensure!(boot_id(&after) != boot_id(&before));
        haulout.stop().await
    });
}

#[test]
fn invalid_window_is_rejected_by_the_kube_apiserver() {
    run_scenario(async {
        let fixture = one_node("window-refused").await?;
        let objects: Api<kube::core::DynamicObject> = Api::all_with(
            fixture.client(),
            &kube::api::ApiResource::erase::<NodeMaintenance>(&()),
        );
        let ask = async |window: Value| {
            let request = json!({
                "apiVersion": "haulout.dev/v1alpha1", "kind": "NodeMaintenance",
                "metadata": { "name": "window-refused" },
                "spec": { "nodeName": fixture.node_name("gpu1"), "window": window },
            });
            let params = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            objects
                .create(&params, &serde_json::from_value(request)?)
                .await
                .map_err(anyhow::Error::from)
        };
        let taken = ask(json!({"start": "22:00", "end": "04:00"})).await?;
        ensure!(taken.data["spec"]["window"]["timeZone"] == "UTC", "{taken:?}");
        for (window, field) in [
            (json!({"start": "22:00"}), "spec.window.end"),
            (json!({"start": "24:00", "end": "04:00"}), "spec.window.start"),
            (json!({"start": "22:00", "end": "4:00"}), "spec.window.end"),
            (
                json!({"start": "22:00", "end": "04:00", "days": ["Monday"]}),
                "spec.window.days",
            ),
            (
                json!({"start": "22:00", "end": "04:00", "days": ["Mon", "Mon"]}),
                "spec.window.days",
            ),
            (
                json!({"start": "22:00", "end": "04:00", "timeZone": "a b"}),
                "spec.window.timeZone",
            ),
        ] {
            let refused = ask(window.clone())
                .await
                .err()
                .with_context(|| format!("{window} was taken"))?;
            ensure!(refused.to_string().contains(field), "{window}: {refused}");
        }
        Ok(())
    });
}
