//! The image: built from a program on disk, run without anything else, and published by workflows with pinned actions.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use haulout_lab::build;
use haulout_lab::process;
use haulout_lab::run_dir::RunDir;
use haulout_lab::tools;
use haulout_lab::wait::until;
use rustix::process::geteuid;
use serde_json::Value;

/// The path of a static release program (`make image` sets it). Without it, the image contains the tests' own program.
const PROGRAM: &str = "HAULOUT_IMAGE_PROGRAM";

/// The size limit of the unpacked image: 15 MB, nine tenths of which is the program.
const MOST_BYTES: u64 = 15_000_000;

/// The user of the image, the same as `nonroot` of the distroless images.
const USER: u32 = 65532;

/// The lines of the Dockerfile's last stage.
fn last_stage() -> String {
    let text = read("Dockerfile");
    let (_, last) = text.rsplit_once("\nFROM ").expect("a Dockerfile has a FROM");
    format!("FROM {last}")
}

#[test]
fn image_holds_the_program_and_the_cas_and_runs_unprivileged() {
    let last = last_stage();
    let lines: Vec<&str> = last
        .lines()
        .filter(|line| !line.starts_with('#') && !line.starts_with(' '))
        .collect();
    let words: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    // No RUN and no ADD: there is no shell, and no download.
    assert_eq!(
        words,
        [
            "FROM",
            "COPY",
            "COPY",
            "COPY",
            "COPY",
            "LABEL",
            "USER",
            "ENTRYPOINT",
            "CMD"
        ]
    );
    assert_eq!(lines[0], "FROM scratch");
    assert_eq!(
        copies(&last),
        [
            (
                "/etc/ssl/certs/ca-certificates.crt",
                "/etc/ssl/certs/ca-certificates.crt"
            ),
            ("/out/haulout", "/haulout"),
            ("/source/LICENSE", "/licenses/LICENSE"),
            ("/source/THIRD-PARTY-NOTICES", "/licenses/THIRD-PARTY-NOTICES"),
        ]
    );
    for line in [
        r#"USER 65532:65532"#,
        r#"ENTRYPOINT ["/haulout"]"#,
        r#"CMD ["run"]"#,
    ] {
        assert!(
            lines.contains(&line),
            "the last stage has no line {line}: {lines:#?}"
        );
    }
}

#[test]
fn every_base_image_is_pinned_by_its_digest() {
    let text = read("Dockerfile");
    let bases: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("FROM "))
        .filter(|base| !base.starts_with("scratch"))
        .collect();
    assert!(!bases.is_empty());
    for base in bases {
        let digest = base
            .split_once("@sha256:")
            .and_then(|(_, rest)| rest.split(' ').next())
            .unwrap_or_default();
        assert!(is_hex(digest, 64), "{base} is not pinned by a digest");
    }
}

#[tokio::test]
async fn image_needs_no_other_file_and_protects_its_memory() {
    let run = RunDir::create().unwrap();
    let program = program();
    // What the stage `source` would hold.
    let source = run.join("source");
    put(&program, &source.join("out/haulout"));
    put(
        Path::new("/etc/ssl/certs/ca-certificates.crt"),
        &source.join("etc/ssl/certs/ca-certificates.crt"),
    );
    for file in ["LICENSE", "THIRD-PARTY-NOTICES"] {
        put(&crate::root().join(file), &source.join("source").join(file));
    }
    let root = run.join("root");
    if can_build() {
        build_and_unpack(&run, &source, &root);
    } else {
        // From the same lines, by hand.
        for (from, to) in copies(&last_stage()) {
            put(&inside(&source, from), &inside(&root, to));
        }
    }

    let found = files(&root);
    let expected = [
        "etc/ssl/certs/ca-certificates.crt",
        "haulout",
        "licenses/LICENSE",
        "licenses/THIRD-PARTY-NOTICES",
    ]
    .map(PathBuf::from);
    assert_eq!(found.keys().cloned().collect::<Vec<_>>(), expected);
    let bytes: u64 = found.values().sum();
    let libraries = libraries(&program);
    if libraries.is_empty() {
        println!(
            "the image takes {bytes} bytes unpacked, with the static program {}",
            program.display()
        );
        assert!(
            bytes <= MOST_BYTES,
            "the image takes {bytes} bytes, and may take {MOST_BYTES}"
        );
    } else {
        println!(
            "the image takes {bytes} bytes unpacked; that is no measure, for {} is no static release program (`make image` builds one)",
            program.display()
        );
        for library in &libraries {
            put(library, &inside(&root, library.to_str().unwrap()));
        }
    }

    if !geteuid().is_root() {
        let test = "the start of the program in the image's root";
        return tools::record_skip(test, "only root may change its root directory");
    }
    let version = in_root(&root).arg("version").output().unwrap();
    assert!(version.status.success(), "{version:?}");
    assert_eq!(
        String::from_utf8_lossy(&version.stdout).trim(),
        format!("haulout {}", env!("CARGO_PKG_VERSION"))
    );
    let nothing = in_root(&root).arg("run").output().unwrap();
    let stderr = String::from_utf8_lossy(&nothing.stderr);
    assert_eq!(nothing.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("VCENTER_HOST"), "{stderr}");

    // Neither server exists: it logs that and continues, without a user, a resolver or a writable folder.
    std::fs::write(root.join("kubeconfig"), NOBODY).unwrap();
    let mut haulout = process::ProcessSpec::leashed("the image", "chroot", run.join("log"))
        .arg(format!("--userspec={USER}:{USER}"))
        .arg(&root)
        .args(["/haulout", "run"])
        .env("VCENTER_HOST", "127.0.0.1:9")
        .env("VCENTER_USER", "someone")
        .env("VCENTER_PASSWORD", "hunter2-canary")
        .env("KUBECONFIG", "/kubeconfig")
        .env("METRICS_ADDRESS", "off")
        .env("HEALTH_ADDRESS", "off")
        .spawn()
        .unwrap();
    until("both worlds to be missed", Duration::from_secs(60), async || {
        haulout.check_running()?;
        let log = std::fs::read_to_string(haulout.log())?;
        let missed = |words: &str| {
            log.lines()
                .any(|line| line.contains(words) && line.contains("refused"))
        };
        Ok((missed("vCenter connection lost") && missed("Kubernetes connection lost")).then_some(()))
    })
    .await
    .unwrap_or_else(|error| panic!("{error:#}\n{}", haulout.tail()));

    let of_process = PathBuf::from(format!("/proc/{}", haulout.pid().unwrap()));
    let status = std::fs::read_to_string(of_process.join("status")).unwrap();
    assert!(
        status.contains(&format!("Uid:\t{USER}\t{USER}\t{USER}\t{USER}\n")),
        "{status}"
    );
    let limits = std::fs::read_to_string(of_process.join("limits")).unwrap();
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"))
        .unwrap();
    let core: Vec<&str> = core.split_whitespace().skip(4).take(2).collect();
    assert_eq!(core, ["0", "0"], "{limits}");
    // Files of a process that is not dumpable belong to root in /proc.
    let owner = std::fs::metadata(of_process.join("environ")).unwrap().uid();
    assert_eq!(
        owner, 0,
        "another process of the user {USER} could read its memory"
    );

    let end = haulout.stop(Duration::from_secs(20)).await.unwrap();
    assert!(end.success(), "{end}: {}", haulout.tail());
}

/// A kubeconfig with a server that does not exist.
const NOBODY: &str = r#"{
  "apiVersion": "v1", "kind": "Config", "current-context": "c",
  "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:10"}}],
  "users": [{"name": "u", "user": {"token": "none"}}],
  "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
}"#;

#[test]
fn every_action_is_pinned_by_its_commit_and_says_which_version_that_is() {
    let mut uses = 0;
    let setup = ".github/actions/setup/action.yaml".to_owned();
    let setup = (setup.clone(), read(&setup));
    for (path, text) in workflows().chain([setup]) {
        for line in text.lines() {
            let Some((_, what)) = line.split_once("uses: ") else {
                continue;
            };
            if what.starts_with("./") {
                continue;
            }
            uses += 1;
            let (action, version) = what
                .split_once(" # ")
                .unwrap_or_else(|| panic!("{path}: {what} says no version"));
            let (_, commit) = action.split_once('@').unwrap_or_else(|| panic!("{path}: {what}"));
            assert!(is_hex(commit, 40), "{path}: {what} is not pinned by a commit");
            assert!(
                version.starts_with('v') && version.split('.').count() == 3,
                "{path}: {what}"
            );
        }
    }
    assert!(uses > 10, "only {uses} uses were found");
}

#[test]
fn no_job_has_a_right_that_it_does_not_name() {
    for (path, text) in workflows() {
        assert!(
            text.contains("\npermissions: {}\n"),
            "{path}: a job that names no rights has some"
        );
        let (_, jobs) = text.split_once("\njobs:\n").unwrap();
        // A job is a key with an indentation of two; its content has more.
        let mut name = String::new();
        let mut keys: BTreeSet<(String, String)> = BTreeSet::new();
        let mut names = BTreeSet::new();
        for line in jobs.lines() {
            let indent = line.len() - line.trim_start().len();
            let key = line
                .trim()
                .split(':')
                .next()
                .filter(|key| !key.starts_with('#') && !key.is_empty());
            match (indent, key) {
                (2, Some(key)) => {
                    name = key.to_owned();
                    names.insert(name.clone());
                }
                (4, Some(key)) => {
                    keys.insert((name.clone(), key.to_owned()));
                }
                (_, _) => {}
            }
        }
        assert!(!names.is_empty(), "{path}");
        for name in names {
            let has = |key: &str| keys.contains(&(name.clone(), key.to_owned()));
            assert!(has("permissions"), "{path}: the job {name} names no rights");
            // A called workflow has its own timeout.
            assert!(
                has("timeout-minutes") || has("uses"),
                "{path}: the job {name} may run for ever"
            );
        }
    }
}

#[tokio::test]
async fn actionlint_finds_nothing_to_say_about_the_workflows() {
    let tools = build::part("helm").await.unwrap();
    let output = Command::new(tools.join("actionlint"))
        .args(workflows().map(|(path, _)| path))
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", words(&output));
}

/// The program of the image.
fn program() -> PathBuf {
    match std::env::var_os(PROGRAM) {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(env!("CARGO_BIN_EXE_haulout")),
    }
}

/// Builds the Dockerfile's last stage with the directory `source` as the stage of that name, and unpacks the image.
fn build_and_unpack(run: &RunDir, source: &Path, root: &Path) {
    let file = run.write("Dockerfile", last_stage()).unwrap();
    let image = run.join("image");
    let buildah = || {
        let mut command = Command::new("buildah");
        // Separate storage without overlayfs: it works in a container and is removed with the run.
        command
            .args(["--storage-driver", "vfs", "--root"])
            .arg(run.join("storage"));
        command.arg("--runroot").arg(run.join("storage-run"));
        command
    };
    succeed(
        buildah()
            .args(["bud", "--isolation", "chroot", "--tag", "haulout:test", "--file"])
            .arg(&file)
            .arg("--build-context")
            .arg(format!("source={}", source.display()))
            .arg(run.path()),
    );
    succeed(
        buildah()
            .args(["push", "haulout:test"])
            .arg(format!("oci:{}:test", image.display())),
    );

    let blob = |digest: &Value| {
        image.join("blobs/sha256").join(
            digest
                .as_str()
                .and_then(|digest| digest.strip_prefix("sha256:"))
                .expect("a digest"),
        )
    };
    let json = |path: &Path| -> Value {
        serde_json::from_slice(&std::fs::read(path).unwrap()).expect("JSON of an image")
    };
    let index = json(&image.join("index.json"));
    let manifest = json(&blob(&index["manifests"][0]["digest"]));
    let config = json(&blob(&manifest["config"]["digest"]));
    assert_eq!(config["config"]["User"], format!("{USER}:{USER}"));
    assert_eq!(config["config"]["Entrypoint"][0], "/haulout");
    assert_eq!(config["config"]["Cmd"][0], "run");
    std::fs::create_dir(root).unwrap();
    let mut packed = 0;
    for layer in manifest["layers"].as_array().unwrap() {
        packed += layer["size"].as_u64().unwrap();
        succeed(
            Command::new("tar")
                .arg("-xzf")
                .arg(blob(&layer["digest"]))
                .arg("-C")
                .arg(root),
        );
    }
    println!("buildah: the image takes {packed} bytes packed, as it is pulled");
}

/// What the last stage copies: from where in the stage `source`, to where.
fn copies(stage: &str) -> Vec<(&str, &str)> {
    stage
        .lines()
        .filter_map(|line| line.strip_prefix("COPY --from=source "))
        .map(|line| line.split_once(' ').expect("COPY has two paths"))
        .collect()
}

/// The shared libraries of a program with its loader; none if it is static.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).output().expect("running ldd");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

/// The image's program as its user, with the image as root directory and only a path in its environment.
fn in_root(root: &Path) -> Command {
    let mut command = Command::new("chroot");
    command
        .arg(format!("--userspec={USER}:{USER}"))
        .arg(root)
        .arg("/haulout");
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

/// Every file under a directory, by its path there, with its size in bytes.
fn files(folder: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.metadata().unwrap();
            if kind.is_dir() {
                folders.push(entry.path());
            } else {
                found.insert(entry.path().strip_prefix(folder).unwrap().to_owned(), kind.len());
            }
        }
    }
    found
}

/// Copies a file with its folders, readable for everybody and executable if it was.
fn put(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::copy(from, to).unwrap_or_else(|error| panic!("copying {}: {error}", from.display()));
    let mut mode = std::fs::metadata(to).unwrap().permissions();
    mode.set_mode(mode.mode() | 0o444);
    std::fs::set_permissions(to, mode).unwrap();
}

fn inside(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Whether the image can be built here, which needs root; a workflow runs this test as root.
fn can_build() -> bool {
    let test = "the build of the image";
    if !geteuid().is_root() {
        tools::record_skip(test, "only root builds it without an engine");
        return false;
    }
    let found = tools::on_path(&["buildah"]).is_some();
    if !found {
        tools::skip(test, "there is no buildah on PATH (apt-get install buildah)").unwrap();
    }
    found
}

fn succeed(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", words(&output));
}

fn words(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// The workflows: path and text.
fn workflows() -> impl Iterator<Item = (String, String)> {
    std::fs::read_dir(root().join(".github/workflows"))
        .unwrap()
        .map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let path = format!(".github/workflows/{name}");
            let text = read(&path);
            (path, text)
        })
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length
        && text
            .chars()
            .all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}
