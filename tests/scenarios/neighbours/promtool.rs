//! The format of the metrics, as Prometheus reads it.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use haulout_lab::tools;

use crate::fixture::{one_node, run_scenario, start, wait_scenario};
use crate::metrics::{SERVED, address, ask};

/// Checks `text` with promtool.
fn promtool(text: &str) -> anyhow::Result<()> {
    let Some(program) = tools::on_path(&["promtool"]) else {
        return tools::skip(
            "the check of the metrics' format by promtool",
            "there is no promtool on PATH (apt-get install prometheus)",
        );
    };
    let mut tool = Command::new(program)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting promtool")?;
    tool.stdin
        .take()
        .context("its stdin is piped")?
        .write_all(text.as_bytes())?;
    let judged = tool.wait_with_output()?;
    let stderr = String::from_utf8_lossy(&judged.stderr);
    ensure!(
        judged.status.success(),
        "promtool does not accept it: {stderr}\n{text}"
    );
    Ok(())
}

#[test]
fn promtool_accepts_the_metrics_of_a_maintenance() {
    run_scenario(async {
        let fixture = one_node("promtool").await?;
        fixture.add_pod("train", &fixture.node_name("gpu1"), &[]).await?;
        let haulout = start(&fixture, &SERVED)?;
        wait_scenario(&fixture).await?;
        let metrics = format!("{}/metrics", address(&fixture, "metrics").await?);
        let (status, text) = ask(&metrics, "*/*").await?;
        ensure!(status == 200, "{status}: {text}");
        promtool(&text)?;
        haulout.stop().await
    });
}
