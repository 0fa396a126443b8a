//! Runs the chart's tools, and reads what helm renders.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use haulout_lab::build;
use haulout_lab::scenario::RUNTIME;
use serde_json::Value;

/// The directory of the tools. It is used inside and outside of scenarios, so a separate thread waits for the build.
static TOOLS: LazyLock<PathBuf> = LazyLock::new(|| {
    std::thread::spawn(|| RUNTIME.block_on(build::part("helm")))
        .join()
        .expect("the build does not panic")
        .expect("building helm and its companions")
});

/// The folder of the tools.
pub fn tools() -> &'static Path {
    &TOOLS
}

/// The chart's folder.
pub fn chart() -> PathBuf {
    root().join("chart")
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs one of the tools and returns its output.
pub fn run(tool: &str, args: &[&str]) -> Output {
    Command::new(TOOLS.join(tool))
        .args(args)
        // A test must not depend on the machine's configuration of helm.
        .env("HELM_CONFIG_HOME", "/nonexistent")
        .env("HELM_CACHE_HOME", "/nonexistent")
        .env("HELM_DATA_HOME", "/nonexistent")
        .env_remove("KUBECONFIG")
        .output()
        .unwrap_or_else(|error| panic!("starting {tool}: {error}"))
}

/// Runs one of the tools, which must succeed, and returns what it printed.
pub fn succeed(tool: &str, args: &[&str]) -> String {
    let output = run(tool, args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{tool} {args:?} ended with {}:\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// What helm prints when it refuses to render the chart with these values.
pub fn refusal(values: &[&str]) -> String {
    let chart = chart();
    let mut args = vec!["template", "haulout", chart.to_str().unwrap()];
    args.extend(values.iter().flat_map(|value| ["--set", value]));
    let output = run("helm", &args);
    assert!(!output.status.success(), "helm accepts {values:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The values files with typical settings of administrators.
pub fn cases() -> Vec<PathBuf> {
    let mut cases: Vec<PathBuf> = std::fs::read_dir(chart().join("ci"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    cases.sort();
    assert!(!cases.is_empty());
    cases
}

/// The objects that the chart renders in the namespace `haulout` with one values file.
pub fn rendered(values: &Path, set: &[&str]) -> Vec<Value> {
    let chart = chart();
    let mut args = vec!["template", "haulout", chart.to_str().unwrap(), "-n", "haulout"];
    args.extend(["-f", values.to_str().unwrap()]);
    args.extend(set.iter().flat_map(|value| ["--set", value]));
    let text = succeed("helm", &args);
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    objects.into_iter().filter(|object| !object.is_null()).collect()
}

/// The first object of this kind.
pub fn object<'o>(objects: &'o [Value], kind: &str) -> &'o Value {
    objects
        .iter()
        .find(|object| object["kind"] == kind)
        .unwrap_or_else(|| panic!("no {kind} is rendered"))
}
