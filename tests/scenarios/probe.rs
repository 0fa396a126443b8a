//! `check --probe` against the lab's vCenter.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT};
use haulout_lab::kube::User;
use haulout_lab::vcenter::{Delays, TaskResult};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::fixture::{BINARY, a40, fixture, gpu_vm, hosts, run_scenario};

/// The limit of a probe with its polls, its watch and what it settles.
const PROBE_TIMEOUT: Duration = Duration::from_secs(120);

/// Nothing in the inventory has a name that a report may have for another reason.
const NAMES: [&str; 5] = [
    "esx-amber",
    "esx-empty",
    "gpu-cobalt",
    "cluster-ochre",
    "datacenter-mauve",
];

/// What a probe left behind.
struct Probed {
    code: i32,
    stdout: String,
    stderr: String,
    report: String,
}

impl Probed {
    /// The answer to a question in the JSON report, with what it rests on.
    fn answer(&self, id: &str) -> anyhow::Result<(String, String)> {
        let report: Value = serde_json::from_str(&self.report).with_context(|| format!("{self}"))?;
        let mut answers = report["answers"].as_array().context("answers")?.iter();
        let found = answers
            .find(|it| it["id"] == id)
            .with_context(|| format!("no {id} in {self}"))?;
        let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        Ok((text("answer"), text("observed")))
    }

    fn ensure_answers(&self, expected: &[(&str, &str)]) -> anyhow::Result<()> {
        for (id, answer) in expected {
            ensure!(self.answer(id)?.0 == *answer, "{id} is not {answer}: {self}");
        }
        Ok(())
    }
}

impl std::fmt::Display for Probed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "exit code {}\n{}{}{}",
            self.code, self.stdout, self.stderr, self.report
        )
    }
}

/// Two hosts, one of them empty, whose Enter Maintenance Mode takes long enough to be seen as running.
async fn named(name: &str) -> anyhow::Result<Fixture<'static>> {
    let [host, empty, vm, cluster, datacenter] = NAMES;
    let mut spec = hosts(&[(host, &[a40(1)]), (empty, &[])]);
    datacenter.clone_into(&mut spec.datacenter);
    cluster.clone_into(&mut spec.clusters[0].name);
    spec.vms = vec![gpu_vm(name, vm, host)];
    spec.delays = Delays {
        enter_ms: 1_500,
        exit_ms: 1_500,
        ..Delays::default()
    };
    fixture(name, &spec).await
}

fn command(fixture: &Fixture<'_>, words: &[&str], report: &str) -> anyhow::Result<(Command, PathBuf)> {
    let path = fixture.kube.dir().join(report);
    let person = User::admin(format!("person-{}", fixture.name()));
    let mut command = Command::new(BINARY);
    command
        .args(["check", "--probe", "--report"])
        .arg(&path)
        .args(words)
        .env_clear()
        .envs(fixture.environment()?)
        .env("KUBECONFIG", fixture.kube.kubeconfig(&person)?)
        .kill_on_drop(true)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ok((command, path))
}

/// A probe without a person: it must not wait.
async fn probe(fixture: &Fixture<'_>, words: &[&str], report: &str) -> anyhow::Result<Probed> {
    let (mut command, path) = command(fixture, words, report)?;
    let output = tokio::time::timeout(WAIT_TIMEOUT, command.output()).await;
    let output = output.with_context(|| format!("{command:?} did not end"))??;
    Ok(Probed {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout)?,
        stderr: String::from_utf8(output.stderr)?,
        report: std::fs::read_to_string(path)?,
    })
}

/// A whole probe, with a click on the empty host while it watches.
async fn probe_with_click(fixture: &Fixture<'_>) -> anyhow::Result<Probed> {
    let words = ["--yes", "--longest-poll", "2", "--watch-limit", "60"];
    let report = format!("{}.json", fixture.name());
    let (mut command, path) = command(fixture, &words, &report)?;
    let mut child = command.spawn()?;
    let mut lines = BufReader::new(child.stderr.take().context("stderr")?).lines();
    let mut stderr = String::new();
    let empty = NAMES[1];
    let clicks = async {
        while let Some(line) = lines.next_line().await? {
            stderr.push_str(&line);
            stderr.push('\n');
            if line.contains("click Enter and then Exit Maintenance Mode on an empty host") {
                fixture.vcenter.enter_maintenance(empty).await?;
            } else if line.ends_with("Enter Maintenance Mode ended") {
                fixture.vcenter.exit_maintenance(empty).await?;
            }
        }
        anyhow::Ok(child.wait_with_output().await?)
    };
    let output = tokio::time::timeout(PROBE_TIMEOUT, clicks).await;
    let output = match output {
        Ok(output) => output?,
        Err(_) => anyhow::bail!("{command:?} did not end; it said {stderr}"),
    };
    Ok(Probed {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout)?,
        stderr,
        report: std::fs::read_to_string(path)?,
    })
}

/// Fails if the report names an object, a user or an address of the lab.
async fn ensure_no_names(fixture: &Fixture<'_>, probed: &Probed) -> anyhow::Result<()> {
    let state = fixture.vcenter.state().await?;
    let hosts = state.hosts.iter().flat_map(|host| [&host.name, &host.reference]);
    let vms = state
        .vms
        .iter()
        .flat_map(|vm| [&vm.name, &vm.reference, &vm.uuid]);
    let objects = hosts.chain(vms).map(String::as_str);
    let others = [
        fixture.vcenter.user(),
        fixture.vcenter.password(),
        fixture.name(),
        "127.0.0.1",
        "ds1",
        "operator",
    ];
    for name in objects.chain(NAMES).chain(others) {
        ensure!(!probed.report.contains(name), "{name} is in the report: {probed}");
    }
    Ok(())
}

#[test]
fn probe_answers_what_is_pushed_while_somebody_clicks() {
    run_scenario(async {
        let fixture = named("probe-pushed").await?;
        let result = TaskResult {
            bytes: 3 << 20,
            ..TaskResult::default()
        };
        fixture.vcenter.run_host_task(NAMES[0], result).await?;
        let probed = probe_with_click(&fixture).await?;
        ensure!(probed.code == 0, "{probed}");
        probed.ensure_answers(&[
            ("recent-task-push", "yes"),
            ("task-end-push", "yes"),
            ("history-begin-push", "yes"),
            ("history-end-push", "yes"),
            ("maintenance-mode-push", "yes"),
            ("maintenance-without-task", "not seen"),
            ("long-poll", "yes"),
            ("task-results", "yes"),
            ("unreadable-vms", "yes"),
            ("binding-format", "yes"),
            ("binding-dynamic", "yes"),
            ("binding-static", "not seen"),
        ])?;
        let (_, results) = probed.answer("task-results")?;
        ensure!(results.contains("1 of ") && results.contains("314"), "{probed}");
        ensure!(
            probed.answer("long-poll")?.1 == "2 s: answered after 2 s",
            "{probed}"
        );
        ensure!(
            probed.answer("api-version")?.1.contains("product line vpx"),
            "{probed}"
        );
        ensure!(
            probed.stdout.contains(" √   0 ‼   0 ×\n") && probed.stdout.contains("\nProbe\n"),
            "{probed}"
        );
        ensure_no_names(&fixture, &probed).await?;
        // Nothing was changed by the probe.
        ensure!(fixture.power_cycles(NAMES[2]).await? == (0, 0), "{probed}");
        Ok(())
    });
}

#[test]
fn probe_answers_no_where_vcenter_does_not_push() {
    run_scenario(async {
        let fixture = named("probe-silent").await?;
        fixture.vcenter.push_recent_task(false).await?;
        fixture.vcenter.push_task_end(false).await?;
        let probed = probe_with_click(&fixture).await?;
        probed.ensure_answers(&[
            ("recent-task-push", "no"),
            ("task-end-push", "yes"),
            ("history-begin-push", "yes"),
            ("history-end-push", "no"),
            ("maintenance-mode-push", "yes"),
        ])?;
        ensure_no_names(&fixture, &probed).await
    });
}

#[test]
fn probe_without_a_terminal_waits_for_nothing_unless_told_to() {
    run_scenario(async {
        let fixture = named("probe-alone").await?;
        let probed = probe(&fixture, &[], "probe-alone.md").await?;
        ensure!(probed.code == 0, "{probed}");
        ensure!(
            probed
                .stderr
                .matches("Left out, without a terminal and without --yes")
                .count()
                == 2,
            "{probed}"
        );
        for row in [
            "| `recent-task-push` | Is the beginning of a maintenance task pushed in `recentTask` of its host? | not seen | left out |",
            "| `long-poll` | Does a long poll last as long as it was asked for? | not seen | left out |",
        ] {
            ensure!(probed.report.contains(row), "{row} in {probed}");
        }
        ensure_no_names(&fixture, &probed).await?;

        let json = probe(&fixture, &["-o", "json"], "probe-alone.json").await?;
        let shown: Value = serde_json::from_str(&json.stdout).with_context(|| format!("{json}"))?;
        let (items, answers) = (&shown["items"], &shown["probe"]["answers"]);
        ensure!(
            items[0]["section"] == "Kubernetes" && answers[0]["id"] == "api-version",
            "{json}"
        );
        Ok(())
    });
}
