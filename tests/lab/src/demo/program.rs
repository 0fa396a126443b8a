//! Builds the `haulout` program and returns its path.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use tokio::process::Command;

/// The variables that Cargo sets for a program that it runs. With them, a nested Cargo would rebuild what depends on
/// them.
const CARGOS_OWN: [&str; 3] = [
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_PATH",
    "CARGO_MANIFEST_LINKS",
];

/// Builds it with Cargo's progress on stderr, and returns its path.
pub(crate) async fn build(release: bool) -> anyhow::Result<PathBuf> {
    #[derive(Deserialize)]
    struct Message {
        executable: Option<PathBuf>,
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let manifest = root.canonicalize().unwrap_or(root).join("Cargo.toml");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(&cargo);
    command
        .args(["build", "--package", "haulout", "--bin", "haulout"])
        .arg("--message-format=json-render-diagnostics")
        .arg("--manifest-path")
        .arg(&manifest)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    if release {
        command.arg("--release");
    }
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if CARGOS_OWN.contains(&text.as_ref()) || text.starts_with("CARGO_PKG_") {
            command.env_remove(&name);
        }
    }
    let what = format!("building haulout with {}", cargo.to_string_lossy());
    let child = command.spawn().with_context(|| what.clone())?;
    let output = child.wait_with_output().await.with_context(|| what.clone())?;
    if !output.status.success() {
        bail!("{what} ended with {}; its output is above", output.status);
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    let messages = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok());
    messages
        .filter_map(|message| message.executable)
        .next_back()
        .with_context(|| format!("{what} ended well, but did not say where the program is"))
}
