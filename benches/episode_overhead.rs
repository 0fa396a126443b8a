//! The time that Haulout adds to an episode: a whole maintenance with an instant guest, host and kubelet, less the
//! time of each of them.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a bench is a program for a person at a prompt, and reads the clock"
)]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use haulout_lab::figures::{FigureTable, Samples, is_quick};
use haulout_lab::fixture::{Fixture, WAIT_TIMEOUT};
use haulout_lab::jaeger::Jaeger;
use haulout_lab::kube::{AuditEvent, Kube, KubeOptions};
use haulout_lab::vcenter::{Collector, Entry, EntryKind};
use haulout_lab::wait::until;
use jiff::Timestamp;

#[path = "support/datacenter.rs"]
mod datacenter;

/// The times of an episode, in order. Between two of them, either Haulout or another party works.
struct Scenario {
    /// Enter Maintenance Mode.
    click: Timestamp,
    /// The kube-apiserver has received the cordon.
    cordon: Timestamp,
    /// vCenter has received the guest shutdown.
    asked: Timestamp,
    /// The VM is off.
    off: Timestamp,
    /// The host is in maintenance.
    entered: Timestamp,
    /// The Node shows that the VM is off.
    off_recorded: Timestamp,
    /// Exit Maintenance Mode has ended.
    exited: Timestamp,
    /// vCenter has received the power-on.
    power_on: Timestamp,
    /// The VM is on.
    on: Timestamp,
    /// The kubelet has written the GPUs, the last condition for Haulout.
    back: Timestamp,
    /// The kube-apiserver has responded to the PATCH that ends the episode.
    end: Timestamp,
}

fn main() -> anyhow::Result<()> {
    // `cargo test --benches` runs a bench without this argument.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    tokio::runtime::Runtime::new()?.block_on(measure())
}

async fn measure() -> anyhow::Result<()> {
    let rounds = if is_quick() { 5 } else { 50 };
    let kube = Kube::start(&KubeOptions::default()).await?;
    let jaeger = Jaeger::start().await?;
    let mut table = FigureTable::new("episode_overhead");
    let own = "wait scenario, one node";
    let simulator = "the same, the simulator's collector";
    for (case, collector) in [(own, Collector::Own), (simulator, Collector::Simulator)] {
        rows(&mut table, case, collector, rounds, (&kube, &jaeger)).await?;
    }
    table.target(own, "all that Haulout adds ms", "haulout", 250.0);
    table.note(
        "Left out as the peers' own: the guest's shutdown (vCenter's journal, from the call to the power state), the boot \
         (from the power state to the kubelet's status in the audit log), and the person's pause before Exit Maintenance \
         Mode. The way of a fact to Haulout, its decisions and its writes are in.",
    );
    table.note(
        "The simulator's own collector takes about 100 ms to report a change, which counts as Haulout's in its rows: what they \
         have more than the first is not Haulout's.",
    );
    println!("{}", table.markdown());
    table.keep(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("figures"))?;
    kube.stop().await
}

/// Measures with one of the two property collectors.
async fn rows(
    table: &mut FigureTable,
    case: &str,
    collector: Collector,
    rounds: usize,
    (kube, jaeger): (&Kube, &Jaeger),
) -> anyhow::Result<()> {
    let name = match collector {
        Collector::Own => "overhead",
        Collector::Simulator => "overhead-simulator",
    };
    let fixture = datacenter::fixture(kube, name, 1, collector, |member, vm| {
        vm.shutdown_ms = 0;
        member.machine.boot = Duration::ZERO;
        member.machine.gpus_after = Duration::ZERO;
    })
    .await?;
    let haulout =
        datacenter::start(&fixture, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &jaeger.otlp_http())]).await?;
    let mut steps: [(&str, Samples); 6] = [
        ("click to cordon ms", Samples::default()),
        ("cordon to shutdown ms", Samples::default()),
        ("off to record ms", Samples::default()),
        ("exit to power-on ms", Samples::default()),
        ("GPUs to uncordoned ms", Samples::default()),
        ("all that Haulout adds ms", Samples::default()),
    ];
    let mut whole = Samples::default();
    for _ in 0..rounds {
        let scenario = run_scenario(&fixture).await?;
        let spans = [
            (scenario.click, scenario.cordon),
            (scenario.cordon, scenario.asked),
            (scenario.off, scenario.off_recorded),
            (scenario.exited, scenario.power_on),
            (scenario.back, scenario.end),
        ];
        let mut sum = 0.0;
        for ((_, samples), (from, to)) in steps.iter_mut().zip(spans) {
            let took = ms(from, to);
            samples.add(took);
            sum += took;
        }
        if let Some((_, samples)) = steps.last_mut() {
            samples.add(sum);
        }
        let person = ms(scenario.off_recorded.max(scenario.entered), scenario.exited).max(0.0);
        whole.add(ms(scenario.click, scenario.end) - person);
        ensure!(
            scenario.on >= scenario.power_on,
            "the VM is on before it was asked to be"
        );
    }
    haulout.stop().await?;
    for (what, samples) in &steps {
        table.row(case, "haulout", what, samples);
    }
    table.row(case, "haulout and peers", "whole episode ms", &whole);
    Ok(())
}

async fn run_scenario(fixture: &Fixture<'_>) -> anyhow::Result<Scenario> {
    let (host, vm) = (datacenter::host(0), datacenter::vm(0));
    let node = fixture.node_name(&vm);
    let began = fixture.vcenter.journal().await?.len();
    let since = Timestamp::now();
    fixture.vcenter.enter_maintenance(&host).await?;
    fixture.wait_state(&node, Some("powered-off")).await?;
    fixture
        .wait_vcenter("the host is in maintenance", |state| {
            state.host(&host).is_some_and(|host| host.in_maintenance)
        })
        .await?;
    fixture.vcenter.exit_maintenance(&host).await?;
    fixture.wait_in_service(&node).await?;

    let journal = fixture.vcenter.journal().await?;
    let journal = journal.get(began..).unwrap_or_default();
    let power = |detail: &'static str| {
        move |it: &Entry| it.kind == EntryKind::Power && it.object == vm_name() && it.detail == detail
    };
    let maintenance =
        |detail: &'static str| move |it: &Entry| it.kind == EntryKind::Maintenance && it.detail == detail;
    let audit = all_of(fixture, &node, since).await?;
    let patches: Vec<&AuditEvent> = audit
        .iter()
        .filter(|it| it.user == fixture.user().name())
        .collect();
    let first = patches.first().context("no PATCH of Haulout's")?;
    let last = patches.last().context("no PATCH of Haulout's")?;
    let off = find(journal, "a power off", power("poweredOff"))?;
    let on = find(journal, "a power on", power("poweredOn"))?;
    let off_recorded = patches
        .iter()
        .find(|it| it.received >= off)
        .context("no PATCH after the power off")?
        .answered;
    let back = audit
        .iter()
        .filter(|it| {
            it.subresource.as_deref() == Some("status") && it.received >= on && it.received <= last.received
        })
        // Not the time of the response: a watcher may act before it.
        .map(|it| it.received)
        .max()
        .context("no status of the kubelet's after the power on")?;
    Ok(Scenario {
        click: find(journal, "the click", maintenance("entering"))?,
        cordon: first.answered,
        asked: find(journal, "the shutdown", |it| it.is_call("ShutdownGuest"))?,
        off,
        entered: find(journal, "the host's maintenance", maintenance("entered"))?,
        off_recorded,
        exited: find(journal, "the host's exit", maintenance("exited"))?,
        power_on: find(journal, "the power on", |it| {
            it.is_call("PowerOnVM_Task") || it.is_call("PowerOnMultiVM_Task")
        })?,
        on,
        back,
        end: last.answered,
    })
}

fn vm_name() -> String {
    datacenter::vm(0)
}

/// The writes to the Node since then. Waits for the last one, because the audit log may be later than a read.
async fn all_of(fixture: &Fixture<'_>, node: &str, since: Timestamp) -> anyhow::Result<Vec<AuditEvent>> {
    until("the audit log", WAIT_TIMEOUT, async || {
        let mut audit = fixture.kube.audit().await?;
        audit.retain(|it| it.resource == "nodes" && it.name.as_deref() == Some(node) && it.received >= since);
        let is_end = |it: &AuditEvent| {
            let object = it.object.as_ref().map(ToString::to_string);
            it.user == fixture.user().name()
                && object.is_some_and(|it| {
                    it.contains("\"unschedulable\":null") || it.contains("\"unschedulable\":false")
                })
        };
        Ok(audit.iter().any(is_end).then_some(audit))
    })
    .await
}

fn find(journal: &[Entry], what: &str, is_it: impl Fn(&Entry) -> bool) -> anyhow::Result<Timestamp> {
    let found = journal.iter().find(|it| is_it(it));
    Ok(found
        .with_context(|| format!("vCenter's journal has no {what}: {journal:#?}"))?
        .time)
}

fn ms(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64() * 1e3
}
