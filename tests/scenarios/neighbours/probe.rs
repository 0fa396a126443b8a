//! `proto-notes/probe.py` against the lab's vCenter.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::Fixture;
use haulout_lab::python::{self, PYVMOMI};
use haulout_lab::tools::{self, Tool};
use haulout_lab::vcenter::{Delays, TaskResult};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::fixture::{a40, fixture, gpu_vm, hosts, run_scenario};

/// The longest watch, in seconds, which ends by itself before.
const WATCH: &str = "120";

/// Nothing in the inventory has a name that a report may have for another reason.
const NAMES: [&str; 5] = [
    "esx-amber",
    "esx-empty",
    "gpu-cobalt",
    "cluster-ochre",
    "datacenter-mauve",
];

/// Two hosts, one of them empty, whose tasks take longer than the pause between two readings, so that they are seen as running.
async fn named(name: &str) -> anyhow::Result<Fixture<'static>> {
    let [host, empty, vm, cluster, datacenter] = NAMES;
    let mut spec = hosts(&[(host, &[a40(1)]), (empty, &[])]);
    datacenter.clone_into(&mut spec.datacenter);
    cluster.clone_into(&mut spec.clusters[0].name);
    spec.vms = vec![gpu_vm(name, vm, host)];
    spec.delays = Delays {
        enter_ms: 5_000,
        exit_ms: 5_000,
        ..Delays::default()
    };
    fixture(name, &spec).await
}

/// The report of a probe with a click on the empty host while it watches, and what it told.
async fn probe(fixture: &Fixture<'_>, python: &Path) -> anyhow::Result<(String, String)> {
    let mut child = Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("proto-notes/probe.py"))
        .args(["--json", "--watch", WATCH, "--long-polls", "2"])
        .env_clear()
        .envs(fixture.environment()?)
        .kill_on_drop(true)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stderr.take().context("stderr")?).lines();
    let mut told = String::new();
    while let Some(line) = lines.next_line().await? {
        told.push_str(&line);
        told.push('\n');
        if line.contains("click Enter and then Exit Maintenance Mode on an EMPTY host") {
            fixture.vcenter.enter_maintenance(NAMES[1]).await?;
        } else if line.ends_with("Enter Maintenance Mode: end") {
            fixture.vcenter.exit_maintenance(NAMES[1]).await?;
        }
    }
    let output = child.wait_with_output().await?;
    ensure!(output.status.success(), "{}: {told}", output.status);
    Ok((String::from_utf8(output.stdout)?, told))
}

fn ensure_answers(report: &str, expected: &[(&str, &str)]) -> anyhow::Result<()> {
    let read: Value = serde_json::from_str(report)?;
    let answers = read["answers"].as_array().context("answers")?;
    for (id, answer) in expected {
        let found = answers.iter().find(|it| it["id"] == *id);
        ensure!(
            found.is_some_and(|it| it["answer"] == *answer),
            "{id} is not {answer}: {report}"
        );
    }
    Ok(())
}

/// Fails if the report names an object, a user or an address of the lab.
async fn ensure_no_names(fixture: &Fixture<'_>, report: &str) -> anyhow::Result<()> {
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
        ensure!(!report.contains(name), "{name} is in the report: {report}");
    }
    Ok(())
}

#[test]
fn probe_answers_what_is_pushed_and_read_and_names_nothing() {
    let test = "probe_answers_what_is_pushed_and_read_and_names_nothing";
    run_scenario(async {
        let python = match python::with(PYVMOMI, "pyVmomi").await? {
            Tool::At(program) => program,
            Tool::Missing(why) => return tools::skip(test, &why),
        };
        let fixture = named("probe").await?;
        let large = TaskResult {
            bytes: 3 << 20,
            ..TaskResult::default()
        };
        fixture.vcenter.run_host_task(NAMES[0], large).await?;
        let row = "EnterMaintenanceMode_Task";
        fixture.vcenter.add_stale_row_of_host(NAMES[0], row).await?;
        // Which answers are no depends on it.
        fixture.vcenter.push_recent_task(false).await?;
        let (report, told) = probe(&fixture, &python).await?;
        ensure_answers(
            &report,
            &[
                ("recent-task-push", "no"),
                ("task-end-push", "yes"),
                ("history-begin-push", "yes"),
                ("maintenance-mode-push", "yes"),
                ("long-poll", "yes"),
                ("task-results", "yes"),
                ("stale-rows", "yes"),
                ("vmotion-task", "not seen"),
                ("binding-format", "yes"),
                ("binding-static", "not seen"),
                ("binding-dynamic", "yes"),
                ("unreadable-vms", "yes"),
            ],
        )?;
        ensure!(report.contains("2 s: answered after 2 s"), "{report}{told}");
        ensure!(report.contains(r#""productLineId": "vpx""#), "{report}");
        ensure_no_names(&fixture, &report).await?;
        // It changed nothing, and has logged out.
        ensure!(fixture.power_cycles(NAMES[2]).await? == (0, 0), "{told}");
        ensure!(fixture.vcenter.state().await?.sessions == 0, "{told}");
        Ok(())
    });
}
