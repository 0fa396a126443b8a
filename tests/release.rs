//! What a release has besides the image: licence notices, an SBOM, archives that engines load, the kubectl plugin, one
//! version.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::Path;
use std::process::{Command, Output};

use haulout_lab::run_dir::RunDir;
use serde_json::Value;

/// A moment for everything in an archive.
const EPOCH: (&str, &str) = ("SOURCE_DATE_EPOCH", "1772323200");

#[test]
fn notices_are_those_of_the_crates_in_the_lock_file() {
    let output = script("crates").arg("notices").output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    let made = String::from_utf8(output.stdout).unwrap();
    let kept = read("THIRD-PARTY-NOTICES");
    let first = made.lines().zip(kept.lines()).find(|(made, kept)| made != kept);
    assert!(
        made == kept,
        "run `make notices`; the first difference: {first:?}"
    );
    for known in ["\nring 0.17", "\nkube 5.", "\nRust standard library", "Mozilla"] {
        assert!(kept.contains(known), "no notice has {known:?}");
    }
    assert!(!kept.contains("\nproptest "), "proptest is for tests only");
}

#[test]
fn sbom_names_each_linked_crate_with_its_digest() {
    let output = script("crates").args(["sbom", "1.2.3"]).output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    let sbom: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(sbom["spdxVersion"], "SPDX-2.3");
    let packages = sbom["packages"].as_array().unwrap();
    assert_eq!(packages[0]["name"], "haulout");
    assert_eq!(packages[0]["versionInfo"], "1.2.3");
    let lock = read("Cargo.lock");
    for package in &packages[1..] {
        let digest = package["checksums"][0]["checksumValue"].as_str().unwrap();
        assert!(lock.contains(digest), "{package}");
    }
    let has = |name: &str| packages.iter().any(|package| package["name"] == name);
    assert!(has("rustls") && has("kube") && !has("proptest") && !has("criterion"));
}

#[test]
fn archive_of_an_image_is_the_last_stage_of_the_dockerfile() {
    let run = RunDir::create().unwrap();
    let stage = run.join("stage");
    for (path, content) in [
        ("out/haulout", "the program"),
        ("etc/ssl/certs/ca-certificates.crt", "the CAs"),
        ("source/LICENSE", "the licence"),
        ("source/THIRD-PARTY-NOTICES", "the notices"),
    ] {
        let path = stage.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let archive = |name: &str| {
        let file = run.join(name);
        let output = script("oci-image")
            .arg(&file)
            .arg("registry.example.com/haulout:1.2.3")
            .arg(format!("amd64={}", stage.display()))
            .args(["--label", "org.opencontainers.image.version=1.2.3"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", words(&output));
        file
    };
    let file = archive("image.oci.tar");
    assert_eq!(
        std::fs::read(&file).unwrap(),
        std::fs::read(archive("again.oci.tar")).unwrap()
    );

    let folder = run.join("unpacked");
    std::fs::create_dir(&folder).unwrap();
    untar(&file, &folder);
    let blob = |digest: &Value| {
        folder
            .join("blobs")
            .join(digest.as_str().unwrap().replace(':', "/"))
    };
    let index = json(&folder.join("index.json"));
    let manifest = &index["manifests"][0];
    assert_eq!(manifest["platform"]["architecture"], "amd64");
    assert_eq!(
        manifest["annotations"]["io.containerd.image.name"],
        "registry.example.com/haulout:1.2.3"
    );
    // For engines that know Docker's format only.
    let docker = json(&folder.join("manifest.json"));
    assert_eq!(docker[0]["RepoTags"][0], "registry.example.com/haulout:1.2.3");
    let manifest = json(&blob(&manifest["digest"]));
    let config = json(&blob(&manifest["config"]["digest"]));
    assert_eq!(config["config"]["User"], "65532:65532");
    assert_eq!(config["config"]["Entrypoint"][0], "/haulout");
    assert_eq!(config["config"]["Cmd"][0], "run");
    let labels = &config["config"]["Labels"];
    assert_eq!(labels["org.opencontainers.image.licenses"], "Apache-2.0");
    assert_eq!(labels["org.opencontainers.image.version"], "1.2.3");
    let root = run.join("root");
    std::fs::create_dir(&root).unwrap();
    untar(&blob(&manifest["layers"][0]["digest"]), &root);
    for (path, content) in [
        ("haulout", "the program"),
        ("etc/ssl/certs/ca-certificates.crt", "the CAs"),
        ("licenses/LICENSE", "the licence"),
        ("licenses/THIRD-PARTY-NOTICES", "the notices"),
    ] {
        assert_eq!(std::fs::read_to_string(root.join(path)).unwrap(), content);
    }
}

#[test]
fn a_release_has_one_version_and_its_notes_are_the_changelogs() {
    let run = RunDir::create().unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let notes = |changelog: &str, asked: &str| {
        run.write("CHANGELOG.md", changelog).unwrap();
        script("release-notes")
            .arg(asked)
            .current_dir(run.path())
            .output()
            .unwrap()
    };
    run.write("Cargo.toml", read("Cargo.toml")).unwrap();
    std::fs::create_dir(run.join("chart")).unwrap();
    let chart = read("chart/Chart.yaml");
    run.write("chart/Chart.yaml", &chart).unwrap();
    let entries =
        format!("# Changelog\n\n## [{version}] - 2026-03-01\n\nWords.\n\n## [0.0.1]\n\nOlder words.\n");
    let candidate = format!("{version}-rc.1");
    for (changelog, asked) in [
        (entries.as_str(), version),
        (entries.as_str(), candidate.as_str()),
        ("## [Unreleased]\n\nWords.\n\n## [0.0.1]\n", candidate.as_str()),
    ] {
        let printed = notes(changelog, asked);
        assert!(printed.status.success(), "{}", words(&printed));
        assert_eq!(String::from_utf8_lossy(&printed.stdout).trim(), "Words.");
    }
    for (changelog, asked, because) in [
        (entries.as_str(), "99.0.0", "Cargo.toml says"),
        (entries.as_str(), "99.0.0-rc.1", "Cargo.toml says"),
        (
            "## [Unreleased]\n",
            version,
            "the newest entry of CHANGELOG.md is Unreleased",
        ),
    ] {
        let refused = notes(changelog, asked);
        assert!(!refused.status.success());
        assert!(words(&refused).contains(because), "{}", words(&refused));
    }

    // The chart and the program have the same version.
    let other = chart.replace(&format!("appVersion: {version}"), "appVersion: 0.0.1");
    run.write("chart/Chart.yaml", other).unwrap();
    let refused = notes(&entries, version);
    assert!(
        words(&refused).contains("appVersion in chart/Chart.yaml is 0.0.1"),
        "{}",
        words(&refused)
    );
}

#[test]
fn the_plugins_manifest_carries_the_digests_of_its_archives() {
    let run = RunDir::create().unwrap();
    for platform in ["linux_amd64", "linux_arm64", "windows_amd64"] {
        let content = format!("for {}", platform.split_once('_').unwrap().1);
        run.write(format!("kubectl-haulout_{platform}.tar.gz"), content)
            .unwrap();
    }
    let output = script("krew-manifest")
        .args(["1.2.3", "https://example.com/haulout"])
        .arg(run.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", words(&output));
    let manifest = String::from_utf8(output.stdout).unwrap();
    // The SHA-256 of "for amd64" and of "for arm64".
    for line in [
        "  version: v1.2.3",
        "      uri: https://example.com/haulout/releases/download/v1.2.3/kubectl-haulout_linux_arm64.tar.gz",
        "      sha256: 50aa6c57e66656ab878ccc2b86ca76cca10bd4f900ee03019dbd2e58f1fa783c",
        "      sha256: 255ad8a7e3f2a1a81242fd5ae2940811b46ca77e22629cf497df64b9b7f736a6",
        "          os: windows",
        "      bin: kubectl-haulout.exe",
    ] {
        assert!(
            manifest.lines().any(|have| have == line),
            "no line {line:?} in\n{manifest}"
        );
    }
    assert!(!manifest.contains("darwin"), "there is no archive for macOS");
}

#[test]
fn a_program_becomes_a_plugin_archive_with_its_licences() {
    let run = RunDir::create().unwrap();
    let programs = run.join("programs/windows_amd64");
    std::fs::create_dir_all(&programs).unwrap();
    std::fs::write(programs.join("haulout.exe"), "a program").unwrap();
    let output = script("release")
        .arg("plugins")
        .env("OUT", run.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", words(&output));
    let folder = run.join("unpacked");
    std::fs::create_dir(&folder).unwrap();
    untar(&run.join("assets/kubectl-haulout_windows_amd64.tar.gz"), &folder);
    let mut files: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(files, ["LICENSE", "THIRD-PARTY-NOTICES", "kubectl-haulout.exe"]);
}

/// A script of `.ci/`.
fn script(name: &str) -> Command {
    let mut command = Command::new(root().join(".ci").join(name));
    command.current_dir(root()).env(EPOCH.0, EPOCH.1);
    command
}

fn untar(file: &Path, folder: &Path) {
    let output = Command::new("tar")
        .arg("-xf")
        .arg(file)
        .arg("-C")
        .arg(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", words(&output));
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).expect("JSON of an image")
}

fn words(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}
