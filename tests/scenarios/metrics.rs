//! Metrics that agree with the journal and the audit log, and health checks that name what is wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT};
use haulout_lab::vcenter::{Down, GuestPatch};
use haulout_lab::wait::until;

use crate::fixture::{one_node, run_scenario, start};

/// A free port of loopback; the log shows it.
pub const SERVED: [(&str, &str); 2] = [
    ("METRICS_ADDRESS", "127.0.0.1:0"),
    ("HEALTH_ADDRESS", "127.0.0.1:0"),
];

const OPEN: &str = "application/openmetrics-text; version=1.0.0";

/// The address at which the fixture's latest Haulout serves `what`.
pub async fn address(fixture: &Fixture<'_>, what: &str) -> anyhow::Result<String> {
    let words = format!("serving {what} on ");
    fixture.wait_for_log(&words).await?;
    let log = fixture.log_text();
    let (_, after) = log.rsplit_once(&words).context("the log names no address")?;
    Ok(after.lines().next().unwrap_or_default().trim().to_owned())
}

/// Sends a GET request and returns status and body.
pub async fn ask(url: &str, accept: &str) -> anyhow::Result<(u16, String)> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let asked = client.get(url).header("Accept", accept);
    let answer = tokio::time::timeout(Duration::from_secs(5), asked.send()).await??;
    let status = answer.status().as_u16();
    Ok((status, answer.text().await?))
}

/// The samples by name and labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let sample = line.split(" # ").next().unwrap();
            let (name, value) = sample.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        })
        .collect()
}

pub async fn scrape(metrics: &str) -> anyhow::Result<BTreeMap<String, f64>> {
    let (status, text) = ask(metrics, "text/plain").await?;
    ensure!(status == 200, "{status}: {text}");
    Ok(samples(&text))
}

fn value(samples: &BTreeMap<String, f64>, name: &str) -> f64 {
    samples.get(name).copied().unwrap_or_default()
}

/// The errors in an OpenMetrics text: each family is described once before its samples and has our prefix, exemplars
/// are on buckets only, and the end is marked.
fn faults_of_openmetrics(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut kinds: BTreeMap<&str, &str> = BTreeMap::new();
    if !text.ends_with("\n# EOF\n") || text.matches("# EOF").count() != 1 {
        faults.push("the end is not marked once, at the end".to_owned());
    }
    let mut seen = std::collections::BTreeSet::new();
    let mut family = "";
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            if kinds.insert(name, kind).is_some() {
                faults.push(format!("{name} is described twice"));
            }
            family = name;
            continue;
        }
        if line.starts_with("# HELP ") || line.starts_with("# UNIT ") {
            continue;
        }
        let sample = line.split(" # ").next().unwrap();
        let (series, number) = sample.rsplit_once(' ').unwrap_or((sample, ""));
        if number.parse::<f64>().is_err() {
            faults.push(format!("no number: {line}"));
        }
        if !seen.insert(series.to_owned()) {
            faults.push(format!("twice: {series}"));
        }
        let name = series.split('{').next().unwrap();
        let suffixes: &[&str] = match kinds.get(family) {
            Some(&"counter") => &["_total"],
            Some(&"gauge") => &[""],
            Some(&"histogram") => &["_bucket", "_sum", "_count"],
            _ => &[],
        };
        if !suffixes.iter().any(|suffix| name == format!("{family}{suffix}")) {
            faults.push(format!("no sample of {family}: {line}"));
        }
        let exemplar = line.split_once(" # ");
        if exemplar.is_some_and(|(_, it)| !name.ends_with("_bucket") || !it.starts_with("{trace_id=\"")) {
            faults.push(format!("an exemplar out of place: {line}"));
        }
    }
    faults
}

#[test]
fn metrics_agree_with_the_journal_and_the_audit_log() {
    run_scenario(async {
        let fixture = one_node("metrics").await?;
        let node = fixture.node_name("gpu1");
        fixture.add_pod("train", &node, &[]).await?;
        // A guest without tools is powered off at once.
        let toolless = GuestPatch {
            tools: Some(false),
            ..GuestPatch::default()
        };
        fixture.vcenter.patch_vm("gpu1", toolless).await?;
        let haulout = start(&fixture, &SERVED)?;
        let metrics = format!("{}/metrics", address(&fixture, "metrics").await?);
        fixture.wait_for_log("vCenter synced").await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node, "awaitingHost").await?;
        let waits = format!("haulout_waiting_on{{node=\"{node}\",kind=\"host-exit\"}}");
        let away = until(
            "the metrics show what the node waits for",
            WAIT_TIMEOUT,
            async || {
                let away = scrape(&metrics).await?;
                // Free hosts are counted once a second.
                let is_counted = away.contains_key("haulout_free_gpu_hosts{compute_cluster=\"c1\"}");
                Ok((away.contains_key(&waits) && is_counted).then_some(away))
            },
        )
        .await?;
        let phase = |phase: &str| format!("haulout_node_phase{{node=\"{node}\",phase=\"{phase}\"}}");
        ensure!(value(&away, &phase("AwaitingHost")) == 1.0, "{away:#?}");
        ensure!(value(&away, "haulout_episodes_active{phase=\"AwaitingHost\"}") == 1.0);
        let of_vcenter = |name: &str| {
            let vcenter = fixture.vcenter.sdk().split('/').nth(2).unwrap();
            format!("haulout_vcenter_{name}{{vcenter=\"{vcenter}\"}}")
        };
        ensure!(value(&away, &of_vcenter("session_up")) == 1.0);
        // The only host is in maintenance.
        ensure!(away.get("haulout_free_gpu_hosts{compute_cluster=\"c1\"}") == Some(&0.0));
        // A time after 2020.
        ensure!(value(&away, &of_vcenter("last_update_timestamp_seconds")) > 1.6e9);
        let host = |state: &str| format!("haulout_host_maintenance_state{{host=\"esx1\",state=\"{state}\"}}");
        fixture.wait_in_maintenance("esx1").await?;
        until(
            "the metrics show the host in maintenance",
            WAIT_TIMEOUT,
            async || {
                let shown = scrape(&metrics).await?;
                Ok((value(&shown, &host("in")) == 1.0).then_some(()))
            },
        )
        .await?;

        fixture.vcenter.exit_maintenance("esx1").await?;
        let episode = haulout_lab::fixture::episode(&fixture.node(&node).await?);
        fixture.wait_in_service(&node).await?;
        let ended = "haulout_episodes_finished_total{result=\"success\",placement=\"returned\"}";
        let back = until(
            "the metrics show the node back in service",
            WAIT_TIMEOUT,
            async || {
                let back = scrape(&metrics).await?;
                let is_back = value(&back, ended) == 1.0 && value(&back, &phase("InService")) == 1.0;
                Ok(is_back.then_some(back))
            },
        )
        .await?;
        ensure!(!back.keys().any(|name| name.starts_with("haulout_waiting_on{")));
        ensure!(value(&back, "haulout_episodes_started_total{trigger=\"task\"}") == 1.0);
        // A re-read that meets the click may come before the push.
        let detected = |source: &str| {
            value(
                &back,
                &format!("haulout_detection_latency_seconds_count{{source=\"{source}\"}}"),
            )
        };
        ensure!(detected("property_collector") + detected("poll") == 1.0);
        ensure!(
            value(
                &back,
                "haulout_episode_duration_seconds_count{result=\"success\"}"
            ) == 1.0
        );

        // Counts from vCenter's journal.
        let counted = |count: usize| f64::from(u32::try_from(count).unwrap());
        ensure!(fixture.power_cycles("gpu1").await? == (1, 1));
        for method in ["PowerOffVM_Task", "PowerOnVM_Task", "ShutdownGuest"] {
            let here: f64 = ["ok", "fault", "no_answer", "unreadable"]
                .iter()
                .map(|code| {
                    value(
                        &back,
                        &format!("haulout_vcenter_requests_total{{operation=\"{method}\",code=\"{code}\"}}"),
                    )
                })
                .sum();
            let there = counted(fixture.calls(method, "gpu1").await?);
            ensure!(here == there, "{method}: {here} here, {there} there");
        }
        ensure!(value(&back, "haulout_forced_poweroffs_total{reason=\"no_tools\"}") == 1.0);
        ensure!(value(&back, "haulout_forced_poweroffs_total{reason=\"guest_deadline\"}") == 0.0);

        // Counts from the audit log.
        let mut asked: BTreeMap<u16, usize> = BTreeMap::new();
        for event in fixture.audit().await? {
            if event.subresource.as_deref() == Some("eviction") {
                *asked.entry(event.code).or_default() += 1;
            }
        }
        ensure!(!asked.is_empty(), "an eviction is in the audit log");
        let all: f64 = back
            .iter()
            .filter(|(name, _)| name.starts_with("haulout_eviction_requests_total{"))
            .map(|(_, value)| value)
            .sum();
        ensure!(all == counted(asked.values().sum()), "{all} of {asked:?}");
        for (code, there) in asked {
            let here = value(
                &back,
                &format!("haulout_eviction_requests_total{{code=\"{code}\"}}"),
            );
            ensure!(here == counted(there), "{code}: {here} here, {there} there");
        }

        let recorded = value(&back, "haulout_reconcile_total{result=\"recorded\"}");
        let audit = fixture.audit().await?;
        let patches = audit
            .iter()
            .filter(|it| it.verb == "patch" && it.resource == "nodes" && it.code == 200)
            .filter(|it| it.subresource.is_none());
        let there = counted(patches.count());
        ensure!(recorded == there, "{recorded} records here, {there} there");
        let took = "haulout_reconcile_duration_seconds_count{result=\"recorded\"}";
        ensure!(value(&back, took) == recorded, "each of them was timed");
        for result in ["rested", "waited", "acted"] {
            let turns = value(&back, &format!("haulout_reconcile_total{{result=\"{result}\"}}"));
            ensure!(turns > 0.0, "no actor has {result}");
        }

        let (_, open) = ask(&metrics, OPEN).await?;
        let faults = faults_of_openmetrics(&open);
        ensure!(faults.is_empty(), "{faults:#?}\n{open}");
        let id = episode
            .as_ref()
            .and_then(|episode| episode.get("id")?.as_str())
            .map(str::to_owned);
        let exemplar = format!(" # {{trace_id=\"{}\"}}", id.context("the episode has an id")?);
        ensure!(
            open.contains(&exemplar),
            "no exemplar names the episode, {exemplar}:\n{open}"
        );
        ensure!(!open.contains(fixture.vcenter.password()), "a secret");
        haulout.stop().await
    });
}

#[test]
fn health_names_the_disconnected_source_and_haulout_keeps_running() {
    run_scenario(async {
        let fixture = one_node("health").await?;
        let down = fixture.vcenter.restart(Down::Refused, Duration::from_secs(8));
        let meanwhile = async {
            let vcenter = fixture.vcenter.sdk().split('/').nth(2).unwrap();
            until("vCenter to be down", WAIT_TIMEOUT, async || {
                let connected = tokio::net::TcpStream::connect(vcenter).await;
                Ok(connected.is_err().then_some(()))
            })
            .await?;
            let haulout = start(&fixture, &SERVED)?;
            let health = address(&fixture, "health").await?;
            fixture
                .wait_for_log("vCenter connection lost; maintenance paused until it is back")
                .await?;
            let (status, body) = ask(&format!("{health}/readyz"), "*/*").await?;
            ensure!(
                status == 503 && body.contains("[-]vcenter failed: "),
                "{status}: {body}"
            );
            ensure!(body.contains("[+]event-loop ok\n") && body.ends_with("readyz check failed\n"));
            for path in ["livez", "healthz"] {
                let (status, body) = ask(&format!("{health}/{path}"), "*/*").await?;
                ensure!((status, body.as_str()) == (200, "ok"), "{path}: {status}: {body}");
            }
            let (status, body) = ask(&format!("{health}/livez?verbose"), "*/*").await?;
            ensure!(
                (status, body.as_str()) == (200, "[+]event-loop ok\nlivez check passed\n"),
                "{body}"
            );
            Ok((haulout, health))
        };
        let ((), (haulout, health)) = tokio::try_join!(down, meanwhile)?;
        let ready = format!("{health}/readyz");

        fixture.wait_for_log("vCenter synced").await?;
        until("the program to be ready", WAIT_TIMEOUT, async || {
            let (status, _) = ask(&ready, "*/*").await?;
            Ok((status == 200).then_some(()))
        })
        .await?;
        let (status, body) = ask(&format!("{ready}?verbose"), "*/*").await?;
        ensure!(
            (status, body.as_str())
                == (
                    200,
                    "[+]event-loop ok\n[+]vcenter ok\n[+]kubernetes ok\nreadyz check passed\n"
                ),
            "{body}"
        );
        let (status, _) = ask(&format!("{health}/elsewhere"), "*/*").await?;
        ensure!(status == 404, "{status}");
        haulout.stop().await
    });
}

#[test]
fn port_that_is_taken_ends_the_program_and_names_the_setting() {
    run_scenario(async {
        let fixture = one_node("port-taken").await?;
        let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
        let address = taken.local_addr()?.to_string();
        let haulout = start(&fixture, &[("METRICS_ADDRESS", &address)])?;
        ensure!(haulout.ended().await? == Some(1));
        let log = fixture.log_text();
        let words = format!(
            "cannot serve metrics on {address}: set METRICS_ADDRESS to another address, or to off: Address already in use"
        );
        ensure!(log.contains(&words), "{log}");
        Ok(())
    });
}
