//! Builds the lab's Go parts into a cache outside `target/`, once per state of their sources.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};
use tokio::process::Command;

/// The parts: Go modules in `tests/lab/go/`, what each is for, and how long it is built where Go has not compiled any of it.
const PARTS: [(&str, &str); 10] = [
    (
        "kube",
        "the Kubernetes control plane of the lab (about 3 minutes on 2 cores the first time)",
    ),
    (
        "vcenter",
        "the vCenter of the lab (about 1 minute on 2 cores the first time)",
    ),
    (
        "jaeger",
        "which stores traces (about 5 minutes on 2 cores the first time)",
    ),
    (
        "helm",
        "for the tests of the chart (1 to 4 minutes on 2 cores the first time, as busy as they are)",
    ),
    (
        "registry",
        "for the test that installs a release from a registry (about 1 minute on 2 cores the first time)",
    ),
    (
        "cluster-api",
        "for scenarios with Machines (about 3 minutes on 2 cores the first time)",
    ),
    (
        "csi",
        "for a scenario with volumes (about 3 minutes on 2 cores the first time)",
    ),
    (
        "kubelet",
        "for scenarios with real kubelets (about 3 minutes on 2 cores the first time)",
    ),
    (
        "containerd",
        "for scenarios with real kubelets (about 4 minutes on 2 cores the first time)",
    ),
    (
        "govmomi",
        "a client that a bench compares Haulout with (about 1 minute on 2 cores the first time)",
    ),
];

/// Overrides where built parts are kept.
pub const CACHE: &str = "HAULOUT_LAB_CACHE";

/// Builds of one part that stay in the cache, for a change of branch.
const KEPT: usize = 4;

/// The timeout of a module download of about 10 MB.
const DOWNLOAD: Duration = Duration::from_secs(180);

/// How often a running build prints that it continues.
const PROGRESS: Duration = Duration::from_secs(10);

/// The directory that keeps built parts: `$HAULOUT_LAB_CACHE`, else `haulout-lab` in the user's cache directory.
pub fn cache_dir() -> anyhow::Result<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    set(CACHE)
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("haulout-lab")))
        .or_else(|| set("HOME").map(|dir| dir.join(".cache/haulout-lab")))
        .with_context(|| {
            format!("where to keep built parts? None of {CACHE}, XDG_CACHE_HOME and HOME is set")
        })
}

fn sources(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("go").join(name)
}

/// The path of a part's program, which is built if the cache has none for these sources and this Go version.
/// Concurrent processes build it once. A part with several tools in its `go.mod` is a directory of them.
pub async fn part(name: &str) -> anyhow::Result<PathBuf> {
    let Some((_, why)) = PARTS.iter().find(|(part, _)| *part == name) else {
        let parts = PARTS.map(|(part, _)| part).join(", ");
        bail!("there is no lab part {name:?}; the parts are {parts}");
    };
    build_into(&cache_dir()?, name, why, &sources(name)).await
}

/// The folder of the module that `go.mod` in `tests/lab/go/<name>` requires, in Go's module cache and checked against
/// `go.sum`, for third-party files.
pub async fn module(name: &str) -> anyhow::Result<PathBuf> {
    let sources = sources(name);
    let path = sources.join("go.mod");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let required = text
        .lines()
        .find_map(|line| line.strip_prefix("require ")?.split_whitespace().next())
        .with_context(|| format!("{} requires no module", path.display()))?;
    let download = Command::new("go")
        .args(["mod", "download", "-json", required])
        .current_dir(&sources)
        .env("GOWORK", "off")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(DOWNLOAD, download)
        .await
        .with_context(|| format!("downloading {required} did not end within {DOWNLOAD:?}"))?
        .context("starting go mod download")?;
    let module: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    match module["Dir"].as_str() {
        Some(dir) if output.status.success() => Ok(PathBuf::from(dir)),
        Some(_) | None => bail!(
            "downloading {required} ended with {}: {}{}",
            output.status,
            module["Error"].as_str().unwrap_or_default(),
            String::from_utf8_lossy(&output.stderr).trim_end()
        ),
    }
}

async fn build_into(cache: &Path, name: &str, why: &str, sources: &Path) -> anyhow::Result<PathBuf> {
    let ldflags = ldflags(sources)?;
    let key = digest(sources, &go_version().await?, &ldflags)?;
    std::fs::create_dir_all(cache)
        .with_context(|| format!("making the cache directory {}", cache.display()))?;
    let program = cache.join(format!("{name}-{key}"));
    if program.exists() {
        return Ok(program);
    }
    let _lock = lock(cache, name).await?;
    if !program.exists() {
        compile(name, why, sources, &ldflags, &program).await?;
        prune(cache, name);
    }
    Ok(program)
}

/// Takes the build lock of this part. The kernel releases it when its holder ends.
pub(crate) async fn lock(cache: &Path, name: &str) -> anyhow::Result<File> {
    let path = cache.join(format!("{name}.lock"));
    let file = File::create(&path).with_context(|| format!("opening the lock {}", path.display()))?;
    let started = Instant::now();
    let mut next = Duration::ZERO;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(std::fs::TryLockError::WouldBlock) => {
                if started.elapsed() >= next {
                    say(&format!(
                        "another process is building {name} … {} s",
                        started.elapsed().as_secs()
                    ));
                    next += PROGRESS;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(std::fs::TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("locking {}", path.display()));
            }
        }
    }
}

async fn compile(name: &str, why: &str, sources: &Path, ldflags: &str, program: &Path) -> anyhow::Result<()> {
    // Written to a temporary name and renamed, so that no incomplete program is run.
    let partial = program.with_extension(format!("partial-{}", std::process::id()));
    let packages = packages(sources)?;
    if packages.len() > 1 {
        // If the directory exists, go build writes all programs into it.
        std::fs::create_dir_all(&partial)
            .with_context(|| format!("making the directory {}", partial.display()))?;
    }
    let what = format!("building {name}, {why}");
    say(&what);
    let started = Instant::now();
    let child = Command::new("go")
        .args([
            "build",
            "-trimpath",
            "-buildvcs=false",
            "-mod=readonly",
            "-ldflags",
            ldflags,
            "-o",
        ])
        .arg(&partial)
        .args(&packages)
        .current_dir(sources)
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting go build in {}", sources.display()))?;
    let output = child.wait_with_output();
    tokio::pin!(output);
    let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + PROGRESS, PROGRESS);
    let output = loop {
        tokio::select! {
            output = &mut output => break output.context("waiting for go build")?,
            _ = tick.tick() => say(&format!("{what} … {} s", started.elapsed().as_secs())),
        }
    };
    if !output.status.success() {
        remove(&partial);
        bail!(
            "go build of the lab part {name} in {} ended with {}:\n{}",
            sources.display(),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    std::fs::rename(&partial, program)
        .with_context(|| format!("moving {} to {}", partial.display(), program.display()))?;
    say(&format!("built {name} in {} s", started.elapsed().as_secs()));
    Ok(())
}

/// The module's own program, or the third-party programs that its `go.mod` names as tools.
fn packages(sources: &Path) -> anyhow::Result<Vec<String>> {
    let path = sources.join("go.mod");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let tools = text.lines().filter_map(|line| line.strip_prefix("tool "));
    let tools: Vec<String> = tools.map(|tool| tool.trim().to_owned()).collect();
    Ok(if tools.is_empty() {
        vec![".".to_owned()]
    } else {
        tools
    })
}

/// Removes a program or a directory of programs. Errors only cost disk space.
fn remove(built: &Path) {
    let _ = match built.is_dir() {
        true => std::fs::remove_dir_all(built),
        false => std::fs::remove_file(built),
    };
}

/// The output of `go version`, or an error with a hint if there is no Go.
async fn go_version() -> anyhow::Result<String> {
    let output = Command::new("go")
        .arg("version")
        .stdin(Stdio::null())
        .output()
        .await;
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!(
                "the lab builds its parts with Go, and there is no `go` on PATH: install Go 1.26 or newer (https://go.dev/dl)"
            )
        }
        Err(error) => return Err(error).context("running `go version`"),
    };
    if !output.status.success() {
        bail!(
            "`go version` ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The linker's flags. A control plane built from source has an empty version, and helm assumes an old Kubernetes;
/// charts that check `kubeVersion` refuse both. The versions are from `go.mod`.
fn ldflags(sources: &Path) -> anyhow::Result<String> {
    let path = sources.join("go.mod");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let required = |module: &str| {
        text.lines().find_map(|line| {
            let line = line.trim();
            let mut words = line.strip_prefix("require ").unwrap_or(line).split_whitespace();
            (words.next() == Some(module)).then(|| words.next()).flatten()
        })
    };
    let numbers = |version: &str| {
        let mut numbers = version.trim_start_matches('v').split('.').map(str::to_owned);
        (
            numbers.next().unwrap_or_default(),
            numbers.next().unwrap_or_default(),
        )
    };
    let mut variables = Vec::new();
    if let Some(version) = required("k8s.io/kubernetes") {
        let (major, minor) = numbers(version);
        let package = "k8s.io/component-base/version";
        variables.push(format!("{package}.gitVersion={version}"));
        variables.push(format!("{package}.gitMajor={major}"));
        variables.push(format!("{package}.gitMinor={minor}"));
    } else if let (Some(_), Some(client)) = (required("helm.sh/helm/v3"), required("k8s.io/client-go")) {
        // client-go v0.36 belongs to Kubernetes 1.36, as in helm's Makefile.
        let (_, minor) = numbers(client);
        for package in ["helm.sh/helm/v3/pkg/lint/rules", "helm.sh/helm/v3/pkg/chartutil"] {
            variables.push(format!("{package}.k8sVersionMajor=1"));
            variables.push(format!("{package}.k8sVersionMinor={minor}"));
        }
    }
    Ok(std::iter::once("-s -w".to_owned())
        .chain(variables.into_iter().map(|variable| format!(" -X {variable}")))
        .collect())
}

/// Names one state of a part: its sources, the Go version and the flags.
fn digest(sources: &Path, go_version: &str, ldflags: &str) -> anyhow::Result<String> {
    let mut files = Vec::new();
    collect(sources, &mut files)?;
    files.sort();
    let mut hash = Sha256::new();
    hash.update(go_version);
    hash.update(ldflags);
    for file in files {
        let content = std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        hash.update(
            file.strip_prefix(sources)
                .unwrap_or(&file)
                .as_os_str()
                .as_encoded_bytes(),
        );
        hash.update(content.len().to_le_bytes());
        hash.update(content);
    }
    Ok(hash
        .finalize()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

/// Finds `go.mod`, `go.sum`, and all Go files except tests.
fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let reading = || format!("reading the directory {}", dir.display());
    for entry in std::fs::read_dir(dir).with_context(reading)? {
        let path = entry.with_context(reading)?.path();
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        if path.is_dir() {
            collect(&path, files)?;
        } else if matches!(name.as_str(), "go.mod" | "go.sum")
            || name.ends_with(".go") && !name.ends_with("_test.go")
        {
            files.push(path);
        }
    }
    Ok(())
}

/// Removes all but the newest builds of a part.
fn prune(cache: &Path, name: &str) {
    let Ok(entries) = std::fs::read_dir(cache) else {
        return;
    };
    let mut builds: Vec<(std::time::SystemTime, PathBuf)> = entries
        .flatten()
        .filter(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with(&format!("{name}-"))
        })
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    builds.sort();
    for (_, path) in builds.iter().rev().skip(KEPT) {
        remove(path);
    }
}

#[expect(
    clippy::print_stderr,
    reason = "a build of minutes has to show that it lives, also where no log is set up"
)]
pub(crate) fn say(line: &str) {
    eprintln!("lab: {line}");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{KEPT, build_into, digest, ldflags, prune};
    use crate::run_dir::RunDir;

    #[test]
    fn the_key_follows_the_sources_and_the_toolchain() {
        let dir = RunDir::create().unwrap();
        dir.write("go.mod", "module x").unwrap();
        dir.write("main.go", "package main").unwrap();
        let first = digest(dir.path(), "go1", "").unwrap();
        dir.write("README.md", "words").unwrap();
        dir.write("main_test.go", "package main").unwrap();
        assert_eq!(digest(dir.path(), "go1", "").unwrap(), first);
        assert_ne!(digest(dir.path(), "go2", "").unwrap(), first);
        assert_ne!(digest(dir.path(), "go1", "-s").unwrap(), first);
        dir.write("main.go", "package main // changed").unwrap();
        assert_ne!(digest(dir.path(), "go1", "").unwrap(), first);
    }

    #[test]
    fn the_control_plane_carries_the_version_that_go_mod_names() {
        let flags = ldflags(&Path::new(env!("CARGO_MANIFEST_DIR")).join("go/kube")).unwrap();
        assert!(flags.contains("version.gitVersion=v1."), "{flags}");
        assert!(flags.contains("version.gitMajor=1 "), "{flags}");
        let flags = ldflags(&Path::new(env!("CARGO_MANIFEST_DIR")).join("go/helm")).unwrap();
        assert!(flags.contains("chartutil.k8sVersionMinor=3"), "{flags}");
    }

    #[tokio::test]
    async fn concurrent_builds_of_a_part_run_once() {
        let dir = RunDir::create().unwrap();
        let sources = dir.join("sources");
        let cache = dir.join("cache");
        std::fs::create_dir(&sources).unwrap();
        dir.write("sources/go.mod", "module haulout.lab/small\n\ngo 1.26\n")
            .unwrap();
        dir.write("sources/main.go", "package main\n\nfunc main() {}\n")
            .unwrap();
        let (one, two) = tokio::join!(
            build_into(&cache, "small", "for a test", &sources),
            build_into(&cache, "small", "for a test", &sources)
        );
        let (one, two) = (one.unwrap(), two.unwrap());
        assert_eq!(one, two);
        assert!(std::process::Command::new(&one).status().unwrap().success());
        let built = one.metadata().unwrap().modified().unwrap();
        let again = build_into(&cache, "small", "for a test", &sources).await.unwrap();
        assert_eq!(again.metadata().unwrap().modified().unwrap(), built);

        dir.write("sources/main.go", "package main\n\nfunc main() { undefined() }\n")
            .unwrap();
        let error = format!(
            "{:#}",
            build_into(&cache, "small", "for a test", &sources)
                .await
                .unwrap_err()
        );
        assert!(
            error.contains("main.go:3") && error.contains("undefined"),
            "{error}"
        );
        // The program and the lock, and no incomplete build.
        assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 2);
    }

    #[test]
    fn the_cache_keeps_the_newest_builds() {
        let dir = RunDir::create().unwrap();
        for age in 0..10 {
            let path = dir.write(format!("kube-{age}"), "").unwrap();
            let when = std::time::SystemTime::now() - std::time::Duration::from_secs(age * 60);
            std::fs::File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_modified(when)
                .unwrap();
        }
        dir.write("kube.lock", "").unwrap();
        prune(dir.path(), "kube");
        assert!(dir.join("kube.lock").exists());
        let left = (0..10)
            .filter(|age| dir.join(format!("kube-{age}")).exists())
            .collect::<Vec<_>>();
        assert_eq!(left, (0..KEPT).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_part_of_several_tools_is_a_directory_that_holds_them() {
        let dir = RunDir::create().unwrap();
        let sources = dir.join("sources");
        let module =
            "module haulout.lab/two\n\ngo 1.26\n\ntool haulout.lab/two/one\n\ntool haulout.lab/two/other\n";
        for tool in ["one", "other"] {
            std::fs::create_dir_all(sources.join(tool)).unwrap();
            dir.write(
                format!("sources/{tool}/main.go"),
                "package main\n\nfunc main() {}\n",
            )
            .unwrap();
        }
        dir.write("sources/go.mod", module).unwrap();
        let built = build_into(&dir.join("cache"), "two", "for a test", &sources)
            .await
            .unwrap();
        for tool in ["one", "other"] {
            assert!(
                std::process::Command::new(built.join(tool))
                    .status()
                    .unwrap()
                    .success()
            );
        }
    }

    #[tokio::test]
    async fn an_unknown_part_is_named() {
        let error = super::part("kuba").await.unwrap_err().to_string();
        assert!(error.contains("\"kuba\""), "{error}");
    }
}
