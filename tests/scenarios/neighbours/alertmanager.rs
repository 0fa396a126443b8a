//! Silences in a real Alertmanager.

use std::path::Path;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::WAIT_TIMEOUT;
use haulout_lab::ports::Port;
use haulout_lab::process::{Process, ProcessSpec};
use haulout_lab::run_dir::RunDir;
use haulout_lab::tools;
use haulout_lab::wait::until;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::fixture::run_scenario;
use crate::silences::{Alertmanager, ends_at, silence_lasts_for_the_maintenance};

/// Starts `program`, which runs until the process is dropped.
async fn start(program: &Path) -> anyhow::Result<(Alertmanager, Process, RunDir)> {
    let dir = RunDir::create()?;
    let config = json!({"route": {"receiver": "nobody"}, "receivers": [{"name": "nobody"}]});
    let config = dir.write("alertmanager.yaml", config.to_string())?;
    let port = Port::reserve()?;
    let process = ProcessSpec::leashed("alertmanager", program, dir.join("alertmanager.log"))
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.path={}", dir.join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{}", port.number()))
        // No peers.
        .arg("--cluster.listen-address=")
        .spawn()?;
    let url = format!("http://127.0.0.1:{}", port.number());
    let alertmanager = Alertmanager::at(url, JoinSet::new())?;
    until("Alertmanager to answer", WAIT_TIMEOUT, async || {
        Ok(alertmanager.silences().await.ok().map(|_| ()))
    })
    .await?;
    Ok((alertmanager, process, dir))
}

#[test]
fn real_alertmanager_silences_the_node_and_not_haulout() {
    run_scenario(async {
        let Some(program) = tools::on_path(&["alertmanager", "prometheus-alertmanager"]) else {
            return tools::skip("silences in a real Alertmanager", "there is no alertmanager");
        };
        let (alertmanager, _process, _dir) = start(&program).await?;
        let suppressed = async |node: &str| {
            let alerts: Vec<Value> = [
                ("KubeNodeNotReady", node),
                ("HauloutNodeParked", node),
                ("KubeNodeNotReady", "other"),
            ]
            .iter()
            .map(|(alert, node)| json!({"labels": {"alertname": alert, "node": node, "cluster": "east"}}))
            .collect();
            let url = format!("{}/api/v2/alerts", alertmanager.url);
            let request = alertmanager
                .client
                .post(url)
                .header("content-type", "application/json");
            let body = serde_json::to_string(&alerts)?;
            request.body(body).send().await?.error_for_status()?;
            until("Alertmanager to judge three alerts", WAIT_TIMEOUT, async || {
                let alerts = alertmanager.api("alerts").await?;
                let alerts = alerts.as_array().context("a list")?;
                let states: Vec<(String, String, String)> = alerts
                    .iter()
                    .map(|it| {
                        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                        (
                            text(&it["labels"]["alertname"]),
                            text(&it["labels"]["node"]),
                            text(&it["status"]["state"]),
                        )
                    })
                    .collect();
                if states.len() != 3 {
                    return Ok(None);
                }
                for (alert, of, state) in states {
                    let is_silent = alert == "KubeNodeNotReady" && of == node;
                    ensure!((state == "suppressed") == is_silent, "{alert} of {of} is {state}");
                }
                Ok(Some(()))
            })
            .await
        };
        silence_lasts_for_the_maintenance("silence-real", &alertmanager, suppressed).await?;
        let ended = alertmanager.silences().await?.swap_remove(0);
        // By this, an end that a person sets is known from one that Haulout has set beforehand.
        ensure!(ends_at(&ended)?.subsec_nanosecond() != 0, "{ended}");
        Ok(())
    });
}
