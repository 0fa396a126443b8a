//! Third-party Python programs, each pinned and installed with pip into its own folder of the lab's cache.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::process::Command;
use tokio::time::timeout;

use crate::build;
use crate::tools::Tool;

/// The timeout of pip for a package of 20 MB.
const WAIT_TIMEOUT: Duration = Duration::from_secs(240);

/// The release of VMware's Python client that benches and `proto-notes/probe.py` are run with.
pub const PYVMOMI: &str = "pyvmomi==8.0.3.0.1";

/// A Python with `requirement` (`name==version`), which is imported as `module`. It is installed if the cache does not
/// have it; concurrent processes install it once.
pub async fn with(requirement: &str, module: &str) -> anyhow::Result<Tool> {
    let cache = build::cache_dir()?;
    std::fs::create_dir_all(&cache)
        .with_context(|| format!("making the cache directory {}", cache.display()))?;
    let dir = cache.join(requirement);
    let program = dir.join("bin/python");
    let import = format!("import {module}");
    let _lock = build::lock(&cache, requirement).await?;
    if run_to_end(Command::new(&program).args(["-c", &import]))
        .await
        .is_ok()
    {
        return Ok(Tool::At(program));
    }
    // The modules that create a virtual environment and install pip; some distributions package them separately.
    if let Err(error) = run_to_end(Command::new("python3").args(["-c", "import venv, ensurepip"])).await {
        return Ok(Tool::Missing(format!(
            "there is no python3 with venv and pip on PATH: {error}"
        )));
    }
    if let Err(error) = run_to_end(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&dir)).await {
        bail!(
            "making a folder for {requirement} at {} failed: {error}",
            dir.display()
        );
    }
    let mut pip = Command::new(&program);
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        requirement,
    ]);
    if let Err(error) = run_to_end(&mut pip).await {
        bail!("pip could not install {requirement}: {error}");
    }
    Ok(Tool::At(program))
}

/// Runs it to its end. The error has its output.
async fn run_to_end(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = match timeout(WAIT_TIMEOUT, output).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("it had not ended after {} s", WAIT_TIMEOUT.as_secs())),
    };
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim_end()
    ))
}
