//! The log: every line names its node and episode, the level changes at run time, and no secret is written.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT};
use haulout_lab::process::ProcessSpec;
use haulout_lab::vcenter::FaultRule;
use haulout_lab::wait::until;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;

use crate::fixture::{BINARY, one_node, run, run_scenario, start};

/// The fields of every log line of an episode.
const FIELDS: [&str; 4] = ["node", "host", "phase", "trace_id"];

#[test]
fn every_log_line_names_node_host_episode_phase_and_trace() {
    run_scenario(async {
        let fixture = one_node("lines").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        let template = "https://jaeger.example/trace/{trace_id}";
        let changes = [
            ("LOG_FORMAT", "json"),
            // Lines about connections below that level belong to no episode.
            (
                "LOG_LEVEL",
                "haulout=info,haulout_telemetry=debug,haulout_controller::executor=debug",
            ),
            ("TRACE_UI_URL_TEMPLATE", template),
        ];
        let haulout = run(&fixture, &changes).await?;
        // The attempt is logged with its result.
        let busy = FaultRule::soap("PowerOnVM_Task", "TaskInProgress").times(1);
        fixture.vcenter.fault(&busy).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        haulout.stop().await?;

        let text = fixture.log_text();
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).with_context(|| format!("no JSON: {line}")))
            .collect::<anyhow::Result<_>>()?;
        let begun = lines.iter().position(|line| line["from"] == "InService");
        let ended = lines.iter().position(|line| has(line, "-> InService"));
        let (begun, ended) = begun.zip(ended).context("no episode begins and ends")?;
        let of_node: Vec<&Value> = lines[begun..=ended]
            .iter()
            .filter(|line| line["node"] == node.as_str() && line["pod"].is_null())
            .collect();
        for words in [
            "starting to drain",
            "tried to",
            "waiting for",
            ": The VM is powered off",
            "-> Rejoining: The VM is powered on",
        ] {
            ensure!(
                of_node.iter().any(|line| has(line, words)),
                "no line says {words:?}:\n{text}"
            );
        }
        for line in &of_node {
            for field in FIELDS {
                ensure!(line[field].is_string(), "no {field} in {line}");
            }
            ensure!(
                line["trace_id"] == of_node[0]["trace_id"],
                "another trace: {line}"
            );
        }
        let id = of_node[0]["trace_id"].as_str().unwrap_or_default();
        let evicted: Vec<&Value> = lines.iter().filter(|line| has(line, "evicted a pod")).collect();
        ensure!(evicted.len() == 1, "one line for each eviction: {evicted:?}");
        ensure!(
            evicted[0]["pod"] == "lines/train"
                && evicted[0]["trace_id"] == id
                && evicted[0]["level"] == "DEBUG",
            "{evicted:?}"
        );
        let link = template.replace("{trace_id}", id);
        for line in [of_node[0], of_node[of_node.len() - 1]] {
            ensure!(line["trace"] == link.as_str(), "no link in {line}");
        }
        Ok(())
    });
}

fn has(line: &Value, words: &str) -> bool {
    line["message"]
        .as_str()
        .is_some_and(|message| message.contains(words))
}

#[test]
fn outage_of_vcenter_is_logged_once_then_ever_more_rarely() {
    run_scenario(async {
        let fixture = one_node("outage-log").await?;
        let away = FaultRule::soap("Login", "HostConnectFault").times(9);
        fixture.vcenter.fault(&away).await?;
        let haulout = start(&fixture, &[])?;
        fixture
            .wait_for_log("vCenter synced, after 9 attempts that failed")
            .await?;
        let log = fixture.log_text();
        let warnings: Vec<&str> = log
            .lines()
            .filter(|line| line.contains(" WARN ") && line.contains("vCenter"))
            .collect();
        let [lost, still] = warnings[..] else {
            anyhow::bail!("two lines are expected: {warnings:#?}");
        };
        ensure!(
            lost.contains("vCenter connection lost; maintenance paused until it is back"),
            "{lost}"
        );
        ensure!(
            still.contains("vCenter connection still lost after 8 attempts: "),
            "{still}"
        );
        // Once, and not for each node.
        ensure!(!log.contains("waiting for vCenter"), "{log}");
        haulout.stop().await
    });
}

#[test]
fn log_level_follows_its_file_while_the_program_runs() {
    run_scenario(async {
        let fixture = one_node("level").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("held", &node, &[]).await?;
        fixture.set_budget("held", 0).await?;
        let file = fixture.kube.dir().join("level");
        let path = file.display().to_string();
        let haulout = run(&fixture, &[("LOG_LEVEL_FILE", &path)]).await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture
            .wait_for_log("held by PodDisruptionBudget held-budget")
            .await?;
        ensure!(
            !fixture.log_text().contains("DEBUG"),
            "it is at info: {}",
            fixture.log_text()
        );

        std::fs::write(&file, "haulout=debug\n")?;
        fixture
            .wait_for_log("the log level is haulout=debug; it was info")
            .await?;
        fixture.wait_for_log("starting to drain").await?;
        std::fs::write(&file, "loud")?;
        fixture.wait_for_log("holds no level: one of off, error").await?;
        fixture.wait_for_log("the log level stays haulout=debug").await?;
        std::fs::remove_file(&file)?;
        fixture
            .wait_for_log("the log level is info; it was haulout=debug")
            .await?;
        fixture.vcenter.cancel_maintenance("esx1").await?;
        fixture.wait_in_service(&node).await?;
        haulout.stop().await
    });
}

#[test]
fn node_with_an_unreadable_record_is_reported_without_an_episode() {
    run_scenario(async {
        let fixture = one_node("unread").await?;
        let node = fixture.node_name("gpu1");
        fixture.annotate(&node, &[("episode", "{\"version\":7}")]).await?;
        let haulout = start(&fixture, &[])?;
        let parked = until("an Event of the Node", WAIT_TIMEOUT, async || {
            let events = events(&fixture).await?;
            Ok(events
                .into_iter()
                .find(|event| event.reason.as_deref() == Some("MaintenanceParked")))
        })
        .await?;
        let regarding = parked.regarding.context("it is about something")?;
        ensure!(regarding.uid == fixture.node(&node).await?.metadata.uid);
        let note = parked.note.unwrap_or_default();
        ensure!(note.contains("cannot be read and is left alone"), "{note}");
        haulout.stop().await
    });
}

#[test]
fn no_secret_is_in_any_output_or_in_a_crash() {
    run_scenario(async {
        let fixture = one_node("canary").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        let right = fixture.vcenter.password().to_owned();
        let (wrong, of_collector) = ("canary-of-a-wrong-login", "canary-of-the-collector");
        let collector = format!("http://someone:{of_collector}@127.0.0.1:9");
        let header = format!("authorization=Bearer%20{of_collector}");
        // With the highest log level and all outputs enabled.
        let all = [
            ("LOG_LEVEL", "trace"),
            ("RUST_BACKTRACE", "full"),
            ("METRICS_ADDRESS", "127.0.0.1:0"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.as_str()),
            ("OTEL_EXPORTER_OTLP_HEADERS", header.as_str()),
        ];
        let with = |changes: &[(&'static str, &'static str)]| {
            let mut all: BTreeMap<&str, &str> = all.into_iter().collect();
            all.extend(changes.iter().copied());
            all.into_iter().collect::<Vec<_>>()
        };
        let haulout = run(&fixture, &with(&[])).await?;
        let metrics = crate::metrics::address(&fixture, "metrics").await?;
        fixture.vcenter.enter_maintenance("esx1").await?;
        let away = fixture.wait_phase(&node, "awaitingHost").await?;
        let (_, shown) = crate::metrics::ask(&format!("{metrics}/metrics"), "*/*").await?;
        ensure!(shown.contains("haulout_episodes_started_total"), "{shown}");
        // A crash during an episode.
        haulout.abort().await?;

        // Starts that fail in different ways.
        let refused = start(&fixture, &with(&[("VCENTER_PASSWORD", wrong)]))?;
        fixture.wait_for_log("did not accept the credentials").await?;
        refused.stop().await?;
        let untrusting = start(&fixture, &with(&[("VCENTER_CA_BUNDLE", "")]))?;
        fixture.wait_for_log("certificate").await?;
        untrusting.stop().await?;
        for (changes, code) in [
            (("POLL_INTERVAL_SECONDS", "0"), 2),
            (
                ("VCENTER_HOST", "https://someone:canary-in-a-host@vc.example.com"),
                2,
            ),
            (("VCENTER_CA_BUNDLE", "/dev/null"), 1),
            (("OTEL_EXPORTER_OTLP_PROTOCOL", "canary-is-no-protocol"), 2),
        ] {
            let ended = start(&fixture, &with(&[changes]))?.ended().await?;
            ensure!(
                ended == Some(code),
                "{changes:?}: {ended:?}:\n{}",
                fixture.log_text()
            );
        }

        let haulout = start(&fixture, &with(&[]))?;
        fixture.wait_in_maintenance("esx1").await?;
        fixture.vcenter.exit_maintenance("esx1").await?;
        let back = fixture.wait_in_service(&node).await?;
        haulout.stop().await?;
        let written = [
            ("stdout and stderr", fixture.log_text()),
            ("the metrics", shown),
            ("the Node in mid-episode", serde_json::to_string(&away)?),
            ("the Node afterwards", serde_json::to_string(&back)?),
            ("the Events", serde_json::to_string(&events(&fixture).await?)?),
        ];
        for (place, text) in &written {
            for secret in [right.as_str(), wrong, of_collector, "canary-in-a-host"] {
                let line = text.lines().find(|line| line.contains(secret));
                ensure!(
                    line.is_none(),
                    "{secret} is in {place}: {}",
                    line.unwrap_or_default()
                );
            }
            ensure!(!text.is_empty(), "{place} is empty");
        }
        Ok(())
    });
}

/// The outcome of a start with little memory.
enum Starved {
    /// It synced with both sources.
    Lived,
    /// It ended or hung after this output.
    Died(String),
}

/// Starts Haulout with a limit of its address space and the highest log level, and waits for the outcome.
async fn starve(fixture: &Fixture<'_>, mebibytes: u64, from_file: Option<&Path>) -> anyhow::Result<Starved> {
    let way = if from_file.is_some() {
        "file"
    } else {
        "environment"
    };
    let log = fixture.kube.dir().join(format!("starved-{mebibytes}-{way}"));
    let shell = format!("ulimit -v {} && exec \"$0\" run", mebibytes * 1024);
    let mut spec = ProcessSpec::leashed("haulout", "sh", log.clone())
        .args(["-c", shell.as_str()])
        .arg(BINARY);
    for (name, value) in fixture.environment()? {
        spec = spec.env(name, value);
    }
    if let Some(file) = from_file {
        spec = spec
            .env("VCENTER_PASSWORD", "")
            .env("VCENTER_PASSWORD_FILE", file);
    }
    let mut process = spec
        .env("LOG_LEVEL", "trace")
        .env("RUST_BACKTRACE", "full")
        .spawn()?;
    let what = format!("haulout with {mebibytes} MiB to live or to die");
    let became = until(&what, DECIDED, async || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let lives = ["vCenter", "Kubernetes"]
            .iter()
            .all(|half| text.contains(&format!("{half} synced")));
        let has_ended = process.check_running().is_err();
        Ok((lives || has_ended || text.contains(PANIC)).then_some(lives && !has_ended))
    });
    let lives = became.await.unwrap_or(false);
    process.kill().await?;
    if lives {
        return Ok(Starved::Lived);
    }
    Ok(Starved::Died(std::fs::read_to_string(&log)?))
}

/// The first words of Rust's messages for a panic and for failed allocation.
const PANIC: &str = "panicked at";
const ABORT: &str = "memory allocation of";

#[test]
fn no_secret_is_in_a_panic_or_an_out_of_memory_abort() {
    run_scenario(async {
        let fixture = one_node("panic").await?;
        let secret = fixture.vcenter.password();
        let file = fixture.kube.dir().join("panic-password");
        std::fs::write(&file, secret)?;
        // Between the two limits it fails, and just below, a thread or an allocation fails.
        let (mut dies, mut lives) = (LEAST, 1024);
        while lives - dies > 1 {
            let middle = u64::midpoint(dies, lives);
            match starve(&fixture, middle, None).await? {
                Starved::Lived => lives = middle,
                Starved::Died(_) => dies = middle,
            }
        }
        for from_file in [None, Some(file.as_path())] {
            let (mut panics, mut aborts) = (0, 0);
            // On a busy machine one may have failed for another reason at a higher limit.
            for mebibytes in (LEAST..lives).rev() {
                if panics > 0 && aborts > 0 {
                    break;
                }
                let Starved::Died(text) = starve(&fixture, mebibytes, from_file).await? else {
                    continue;
                };
                let line = text.lines().find(|line| line.contains(secret));
                ensure!(line.is_none(), "the password is in {line:?} of\n{text}");
                panics += usize::from(text.contains(PANIC));
                aborts += usize::from(text.contains(ABORT));
            }
            println!("password from {from_file:?}: {panics} panics, {aborts} ends for want of memory");
            ensure!(panics > 0, "nothing panicked with {LEAST} to {lives} MiB");
        }
        Ok(())
    });
}

/// After this time a starved process counts as ended: some hang without a thread.
const DECIDED: Duration = Duration::from_secs(30);

/// Below this many MiB the program cannot be mapped.
const LEAST: u64 = 16;

/// The Events about the fixture's Node.
async fn events(fixture: &Fixture<'_>) -> anyhow::Result<Vec<Event>> {
    let uid = fixture.node(&fixture.node_name("gpu1")).await?.metadata.uid;
    let all: Api<Event> = Api::namespaced(fixture.client(), "default");
    let listed = all.list(&ListParams::default()).await.context("listing Events")?;
    let is_about = |event: &Event| event.regarding.as_ref().is_some_and(|it| it.uid == uid);
    Ok(listed.items.into_iter().filter(is_about).collect())
}
