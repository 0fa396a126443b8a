//! A trace collector that is down, hangs or is slow does not affect an episode.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::fixture::{Fixture, Member, WAIT_TIMEOUT, label};
use haulout_lab::kubelet::EXITS_AFTER_MS;
use haulout_lab::vcenter::{ClusterSpec, Collector, Delays, VmSpec};
use haulout_lab::wait::until;
use jiff::Timestamp;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::fixture::{
    a40, gpu_vm, hosts, kube, one_node, run, run_scenario, run_scenario_alone, start, wait_scenario,
};
use crate::metrics::{address, ask};

/// A collector that accepts connections and sends no response, or one byte per second.
async fn bad_collector(tasks: &mut JoinSet<()>, answers_slowly: bool) -> anyhow::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    tasks.spawn(async move {
        let mut open = JoinSet::new();
        while let Ok((mut connection, _)) = listener.accept().await {
            open.spawn(async move {
                let answer = if answers_slowly {
                    b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n".to_vec()
                } else {
                    Vec::new()
                };
                let mut pace = tokio::time::interval(Duration::from_secs(1));
                for byte in answer {
                    pace.tick().await;
                    if connection.write_all(&[byte]).await.is_err() {
                        return;
                    }
                }
                std::future::pending().await
            });
        }
    });
    Ok(address)
}

/// One broken collector of each kind, by name.
async fn bad_collectors(tasks: &mut JoinSet<()>) -> anyhow::Result<[(&'static str, String); 3]> {
    // A port that was just released has no listener.
    let down = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    Ok([
        ("down", format!("http://{down}")),
        ("hung", bad_collector(tasks, false).await?),
        ("slow", bad_collector(tasks, true).await?),
    ])
}

/// The number of lost spans, from the metrics.
async fn lost(fixture: &Fixture<'_>) -> anyhow::Result<f64> {
    let metrics = format!("{}/metrics", address(fixture, "metrics").await?);
    let (_, metrics) = ask(&metrics, "text/plain").await?;
    let lost = metrics
        .lines()
        .find_map(|line| line.strip_prefix("haulout_trace_spans_lost_total "));
    let lost = lost.with_context(|| format!("no count of lost spans in {metrics}"))?;
    Ok(lost.parse()?)
}

#[test]
fn broken_collector_is_counted_and_does_not_delay_the_exit() {
    run_scenario(async {
        let mut tasks = JoinSet::new();
        let [down, hung, slow] = bad_collectors(&mut tasks).await?;
        let run_with = async |kind: &str, endpoint: &str| {
            let fixture = one_node(&format!("collector-{kind}")).await?;
            let changes = [
                ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "30000"),
                ("METRICS_ADDRESS", "127.0.0.1:0"),
            ];
            let haulout = run(&fixture, &changes).await?;
            wait_scenario(&fixture).await?;
            let lost = lost(&fixture).await?;
            // Fails after five seconds.
            haulout.stop().await?;
            anyhow::Ok((fixture.log_text(), lost))
        };
        let (off, down, _, _) = tokio::try_join!(
            run_with("off", ""),
            run_with(down.0, &down.1),
            run_with(hung.0, &hung.1),
            run_with(slow.0, &slow.1),
        )?;
        ensure!(
            !off.0.contains("traces go to"),
            "nothing is made where nothing is asked for"
        );
        ensure!(down.0.contains("spans were lost"), "{}", down.0);
        ensure!(
            down.1 > 0.0 && off.1 == 0.0,
            "{} and {} spans are counted as lost",
            down.1,
            off.1
        );
        Ok(())
    });
}

/// Attempts to measure. Two episodes without a collector give the noise; a measurement with noise of more than half
/// the limit does not count.
const ATTEMPTS: u32 = 3;

/// The share of an episode's time that a broken collector may cost.
const SHARE: f64 = 0.05;

/// The delays of the measured episode, 28 s in all, so that 5 % is more than the noise of a busy machine.
const POD_ENDS: Duration = Duration::from_secs(4);
const GUEST_ENDS: Duration = Duration::from_secs(5);
const MOVES: Duration = Duration::from_secs(6);
const POWERS_ON: Duration = Duration::from_secs(6);
const BOOTS: Duration = Duration::from_secs(7);

fn millis(time: Duration) -> anyhow::Result<u32> {
    Ok(u32::try_from(time.as_millis())?)
}

/// A cluster of two hosts for each of `kinds`: the node is on one and can move to the other.
async fn pairs(name: &str, kinds: &[&str]) -> anyhow::Result<Fixture<'static>> {
    let mut spec = hosts(&[]);
    let like = spec.clusters.pop().context("a cluster to be like")?;
    let mut members = Vec::new();
    for kind in kinds {
        let (from, to) = (format!("{kind}-1"), format!("{kind}-2"));
        spec.clusters.push(ClusterSpec {
            name: format!("c-{kind}"),
            hosts: hosts(&[(&from, &[a40(1)]), (&to, &[a40(1)])])
                .clusters
                .into_iter()
                .flat_map(|cluster| cluster.hosts)
                .collect(),
            ..like.clone()
        });
        let vm = VmSpec {
            shutdown_ms: millis(GUEST_ENDS)?,
            ..gpu_vm(name, kind, &from)
        };
        let mut member = Member::new(name, kind, &vm.uuid);
        member.machine = member.machine.label(label(&format!("{name}-{kind}")), "true");
        member.machine.boot = BOOTS;
        members.push(member);
        spec.vms.push(vm);
    }
    spec.delays = Delays {
        relocate_ms: millis(MOVES)?,
        power_on_ms: millis(POWERS_ON)?,
        ..Delays::default()
    };
    // The simulator's collector delivers some updates seconds late.
    Fixture::create_with(kube().await, name, &spec, members, true, Collector::Own).await
}

/// From the start of the maintenance in vCenter's journal to the end of the episode in the audit log.
async fn click_to_end(fixture: &Fixture<'_>, kind: &str) -> anyhow::Result<f64> {
    let journal = fixture.vcenter.journal().await?;
    let host = format!("{kind}-1");
    let clicks: Vec<Timestamp> = journal
        .iter()
        .filter(|entry| entry.object == host && entry.detail == "entering")
        .map(|entry| entry.time)
        .collect();
    let [click] = clicks[..] else {
        anyhow::bail!("{host} was clicked {} times: {journal:#?}", clicks.len());
    };
    let node = fixture.node_name(kind);
    let audit = fixture.audit().await?;
    let ends: Vec<Timestamp> = audit
        .iter()
        .filter(|event| event.resource == "nodes" && event.name.as_ref() == Some(&node))
        .filter(|event| event.verb == "patch" && event.code == 200 && event.subresource.is_none())
        .filter(|event| {
            // The uncordon.
            let body = event.object.as_ref();
            body.is_some_and(|body| {
                body.pointer("/spec/unschedulable")
                    .is_some_and(|it| !it.is_boolean())
            })
        })
        .map(|event| event.answered)
        .collect();
    let [end] = ends[..] else {
        anyhow::bail!("{node} was uncordoned {} times: {audit:#?}", ends.len());
    };
    Ok(end.duration_since(click).as_secs_f64())
}

/// Runs the same episode on equal nodes at the same time, each with its own Haulout that sends spans to one of
/// `endpoints`. Returns the durations in order.
async fn measure(name: &str, endpoints: &[(&str, &str)]) -> anyhow::Result<Vec<f64>> {
    let kinds: Vec<&str> = endpoints.iter().map(|(kind, _)| *kind).collect();
    let fixture = pairs(name, &kinds).await?;
    let mut haulouts = Vec::new();
    for (kind, endpoint) in endpoints {
        let ends = POD_ENDS.as_millis().to_string();
        let train = format!("train-{kind}");
        fixture
            .add_pod(&train, &fixture.node_name(kind), &[(EXITS_AFTER_MS, &ends)])
            .await?;
        let label = label(&format!("{name}-{kind}"));
        let changes = [
            ("GPU_NODE_LABEL", label.as_str()),
            // No periodic read may add a random second.
            ("POLL_INTERVAL_SECONDS", "3600"),
            ("TEST_TIMINGS", "eviction_retry=600"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "30000"),
        ];
        haulouts.push(start(&fixture, &changes)?);
    }
    for half in ["vCenter", "Kubernetes"] {
        let words = format!("{half} synced");
        until("all of them to be synced", WAIT_TIMEOUT, async || {
            Ok((fixture.log_text().matches(&words).count() == kinds.len()).then_some(()))
        })
        .await?;
    }
    // At the same time, so that other load affects all of them equally.
    let clicks = kinds.iter().map(async |kind| {
        let host = format!("{kind}-1");
        fixture.vcenter.enter_maintenance(&host).await
    });
    futures::future::try_join_all(clicks).await?;
    let episodes = kinds.iter().map(async |kind| {
        let node = fixture.node_name(kind);
        fixture.wait_phase(&node, "shuttingDown").await?;
        fixture.wait_in_service(&node).await?;
        click_to_end(&fixture, kind).await
    });
    let took = futures::future::try_join_all(episodes).await?;
    for haulout in haulouts {
        haulout.stop().await?;
    }
    Ok(took)
}

#[test]
fn broken_collector_prolongs_an_episode_by_at_most_5_percent() {
    run_scenario_alone(async {
        let mut tasks = JoinSet::new();
        let bad = bad_collectors(&mut tasks).await?;
        let bad = bad.each_ref().map(|(kind, endpoint)| (*kind, endpoint.as_str()));
        let [down, hung, slow] = bad;
        // A vCenter under load serves requests in order: the baselines are the first and the last.
        let endpoints = [("off", ""), down, hung, slow, ("off-too", "")];
        for attempt in 1..=ATTEMPTS {
            let took = measure(&format!("collector-time-{attempt}"), &endpoints).await?;
            let [off, with @ .., off_too] = &took[..] else {
                anyhow::bail!("five were measured: {took:?}");
            };
            let without = f64::midpoint(*off, *off_too);
            let share = |seconds: &f64| (seconds - without) / without;
            for ((kind, _), seconds) in endpoints.iter().zip(&took) {
                println!("{kind}: {seconds:.2} s, {:+.1} %", share(seconds) * 100.0);
            }
            ensure!(
                without > (POD_ENDS + GUEST_ENDS + MOVES + POWERS_ON + BOOTS).as_secs_f64(),
                "an episode was not as long as it is meant to be: {took:?}"
            );
            if (off - off_too).abs() > without * SHARE / 2.0 {
                println!("those that go without differ by too much for this to be a measurement");
                continue;
            }
            for ((kind, _), seconds) in bad.iter().zip(with) {
                ensure!(
                    share(seconds) <= SHARE,
                    "{kind} is slower by more than 5 %: {took:?}"
                );
            }
            return Ok(());
        }
        anyhow::bail!("the machine is too busy to measure 5 % of an episode: {ATTEMPTS} times in vain")
    });
}
