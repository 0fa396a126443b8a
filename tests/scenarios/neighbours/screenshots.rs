//! The screenshots of the README: the status page while a budget blocks a drain, and an episode in a tracing UI. `make
//! pictures` saves them.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, Member, WAIT_TIMEOUT, episode, is_ready};
use haulout_lab::jaeger::{Jaeger, JaegerSpan};
use haulout_lab::kubelet::EXITS_AFTER_MS;
use haulout_lab::tools::{self, Tool};
use haulout_lab::vcenter::{Delays, Spec, VmSpec};
use haulout_lab::wait::until;
use haulout_lab::zipkin::{self, Zipkin};

use super::browser::{Browser, Colours, Until};
use crate::fixture::{a40, fixture, gpu_vm, hosts, kube, run, run_scenario};
use crate::status_page::{SERVED, json, page};

/// The width of a README.
const WIDTH: u32 = 1200;

#[test]
fn status_page_of_a_blocked_drain() {
    run_scenario(async {
        let Some(mut browser) = Browser::find("the picture of the status page")? else {
            return Ok(());
        };
        let names = ["esx1", "esx2", "esx3", "esx4"];
        let mut spec = hosts(&names.map(|name| (name, &[] as &[_])));
        for host in &mut spec.clusters[0].hosts {
            host.devices = vec![a40(1)];
        }
        let vms = ["gpu1", "gpu2", "gpu3", "gpu4"].iter().zip(names);
        spec.vms = vms.map(|(vm, host)| gpu_vm("training", vm, host)).collect();
        let fixture = fixture("training", &spec).await?;
        let node = |vm| fixture.node_name(vm);
        let budgeted = node("gpu2");
        for pod in ["notebook-0", "trainer-7f9c4"] {
            fixture.add_pod(pod, &budgeted, &[]).await?;
        }
        fixture.set_budget("notebook-0", 0).await?;
        let haulout = run(&fixture, &[SERVED, ("MAX_CONCURRENT_DRAINS", "1")]).await?;
        let page = page(&fixture).await?;

        fixture.vcenter.enter_maintenance("esx1").await?;
        fixture.wait_phase(&node("gpu1"), "awaitingHost").await?;
        fixture.vcenter.enter_maintenance("esx2").await?;
        fixture
            .wait_for_log("held by PodDisruptionBudget notebook-0-budget")
            .await?;
        fixture.vcenter.enter_maintenance("esx3").await?;
        fixture.wait_phase(&node("gpu3"), "queued").await?;
        until("the other pod to be gone", WAIT_TIMEOUT, async || {
            let shown = json(&format!("{page}/api/v1/nodes/{budgeted}")).await?;
            let left = shown["pods"]["left"].as_array().map_or(0, Vec::len);
            Ok((left == 1 && shown["waitsFor"]["reason"] == "disruption-budget").then_some(()))
        })
        .await?;

        let shown = browser.dom(&page, Until::TwoSeconds).await?;
        for words in ["training/notebook-0", "notebook-0-budget", "training-gpu3"] {
            ensure!(shown.contains(words), "{words} is not on the page:\n{shown}");
        }
        for colours in [Colours::Light, Colours::Dark] {
            let name = format!("status-page-{colours:?}").to_lowercase();
            browser
                .picture(&name, &page, (WIDTH, 1240), colours, Until::TwoSeconds)
                .await?;
        }
        haulout.stop().await
    });
}

#[test]
fn trace_of_an_episode() {
    run_scenario(async {
        let test = "the picture of a trace";
        let Some(mut browser) = Browser::find(test)? else {
            return Ok(());
        };
        let jar = match zipkin::jar().await? {
            Tool::At(jar) => jar,
            Tool::Missing(why) => return tools::skip(test, &why),
        };
        let mut zipkin = Zipkin::start(&jar).await?;
        let jaeger = Jaeger::start_forwarding(&[zipkin.otlp().to_owned()]).await?;
        let fixture = unhurried("traced").await?;
        let traces = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", jaeger.otlp_http()),
            ("TRACE_UI_URL_TEMPLATE", zipkin.page("{trace_id}")),
            ("STATUS_ADDRESS", SERVED.1.to_owned()),
        ];
        let traces: Vec<(&str, &str)> = traces
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let haulout = run(&fixture, &traces).await?;
        let id = held_episode(&fixture).await?;
        let spans = until("the root span of the episode", WAIT_TIMEOUT, async || {
            let spans = jaeger.trace(&id).await?;
            Ok(spans.iter().any(|span| span.parent.is_none()).then_some(spans))
        })
        .await?;
        let shown = json(&format!("{}/api/v1/episodes/{id}", page(&fixture).await?)).await?;
        ensure!(
            shown.to_string().contains(&zipkin.page(&id)),
            "the status page links to it: {shown}"
        );

        zipkin.wait_ready().await?;
        let url = zipkin.page(&id);
        let (root, phases) = names(&spans)?;
        let shown = until("the page to show the whole trace", WAIT_TIMEOUT, async || {
            let shown = browser.dom(&url, Until::Loaded).await?;
            Ok(shown.contains(&format!(": {root}")).then_some(shown))
        })
        .await?;
        for phase in &phases {
            ensure!(
                shown.contains(phase.as_str()),
                "{phase} is not on the page:\n{shown}"
            );
        }
        ensure!(phases.len() >= 5, "an episode has more phases than {phases:?}");
        browser
            .picture("trace", &url, (WIDTH, 1000), Colours::Light, Until::Loaded)
            .await?;

        ensure!(
            listeners(zipkin.port())? == ["127.0.0.1"],
            "it listens on {:?}",
            listeners(zipkin.port())?
        );
        let port = zipkin.port();
        drop(zipkin);
        until("Zipkin to end with its owner", WAIT_TIMEOUT, async || {
            Ok(listeners(port)?.is_empty().then_some(()))
        })
        .await?;
        haulout.stop().await
    });
}

/// One node whose steps are long enough to show in a screenshot.
async fn unhurried(name: &str) -> anyhow::Result<Fixture<'static>> {
    let mut spec = Spec {
        delays: Delays {
            power_on_ms: 400,
            exit_ms: 300,
            ..Delays::default()
        },
        ..hosts(&[("esx1", &[a40(1)])])
    };
    let vm = VmSpec {
        shutdown_ms: 1500,
        ..gpu_vm(name, "gpu1", "esx1")
    };
    let mut member = Member::new(name, &vm.name, &vm.uuid);
    member.machine.boot = Duration::from_millis(1500);
    spec.vms = vec![vm];
    Fixture::create(kube().await, name, &spec, vec![member], true).await
}

/// Runs a maintenance that a budget blocks for a while, and returns the trace id.
async fn held_episode(fixture: &Fixture<'_>) -> anyhow::Result<String> {
    let node = fixture.node_name("gpu1");
    let slow = [(EXITS_AFTER_MS, "700")];
    fixture.add_pod("notebook-0", &node, &slow).await?;
    fixture.add_pod("trainer-7f9c4", &node, &slow).await?;
    fixture.set_budget("notebook-0", 0).await?;
    fixture.vcenter.enter_maintenance("esx1").await?;
    fixture
        .wait_for_log("held by PodDisruptionBudget notebook-0-budget")
        .await?;
    until("only the held pod to be left", WAIT_TIMEOUT, async || {
        Ok((fixture.pods_on(&node).await? == ["notebook-0"]).then_some(()))
    })
    .await?;
    fixture.set_budget("notebook-0", 1).await?;
    fixture.wait_phase(&node, "awaitingHost").await?;
    fixture.wait_in_maintenance("esx1").await?;
    fixture
        .wait_node(&node, "is NotReady", |node| !is_ready(node))
        .await?;
    let record = episode(&fixture.node(&node).await?).context("the Node has no episode")?;
    fixture.vcenter.exit_maintenance("esx1").await?;
    fixture.wait_in_service(&node).await?;
    let id = record["id"].as_str().context("the episode has no id")?;
    Ok(id.to_owned())
}

/// The names of the root span and of its children.
fn names(spans: &[JaegerSpan]) -> anyhow::Result<(String, Vec<String>)> {
    let root = spans.iter().find(|span| span.parent.is_none());
    let root = root.context("the trace has no root")?;
    let children = spans.iter().filter(|span| span.parent.as_ref() == Some(&root.id));
    Ok((
        root.name.clone(),
        children.map(|span| span.name.clone()).collect(),
    ))
}

/// The addresses that listen on this port, from the kernel's tables.
fn listeners(port: u16) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for (table, loopback) in [
        ("/proc/net/tcp", "0100007F"),
        ("/proc/net/tcp6", "0000000000000000FFFF00000100007F"),
    ] {
        for line in std::fs::read_to_string(table)?.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            // 0A is the state of a listener.
            let (Some(local), Some(&"0A")) = (words.get(1), words.get(3)) else {
                continue;
            };
            if let Some((address, at)) = local.split_once(':')
                && u16::from_str_radix(at, 16)? == port
            {
                let is_loopback = address == loopback;
                found.push(if is_loopback { "127.0.0.1" } else { address }.to_owned());
            }
        }
    }
    Ok(found)
}
