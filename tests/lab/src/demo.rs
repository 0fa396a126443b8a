//! The demo: two nodes go through host maintenance. Every step is printed, from vCenter, Kubernetes and Haulout's log.

mod datacenter;
mod ending;
mod expect;
mod figures;
mod follow;
mod printer;
mod program;
mod show;
mod waterfall;

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use haulout_lab::build;
use haulout_lab::fixture::{Fixture, Haulout};
use haulout_lab::jaeger::Jaeger;
use haulout_lab::kube::{Kube, KubeOptions};
use haulout_lab::wait::until;

use self::follow::Phases;
use self::printer::{Printer, heading};
use self::show::Show;
use crate::say;
use crate::tracing_ui::TracingUi;

/// The timeout of one step. A step takes a few seconds on an idle machine.
const DEADLINE: Duration = Duration::from_secs(45);
/// Settings that the demo relies on, whatever the shell has set.
const SETTINGS: [(&str, &str); 9] = [
    ("DRAIN_TIMEOUT_ACTION", "power-off"),
    ("DRY_RUN", "false"),
    ("LOG_FORMAT", "text"),
    ("MAX_CONCURRENT_DRAINS", "1"),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""),
    ("OTEL_SDK_DISABLED", "false"),
    ("OTEL_TRACES_EXPORTER", "otlp"),
    ("STATUS_ADDRESS", "127.0.0.1:0"),
];
/// Lines of Haulout's log in the error of a failure.
const LOG_TAIL_LINES: usize = 12;

/// The options of the demo.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArguments {
    /// Run Haulout's release build; building it takes minutes the first time.
    #[arg(long, env = "RELEASE", value_parser = clap::builder::FalseyValueParser::new())]
    release: bool,
    /// Keep everything running until Ctrl-C, with a tracing UI, and print how to use it.
    #[arg(long, env = "KEEP", value_parser = clap::builder::FalseyValueParser::new())]
    keep: bool,
}

/// Runs the whole demo, and sets `has_finished` once it only keeps running.
pub(crate) async fn run(arguments: &DemoArguments, has_finished: &Cell<bool>) -> anyhow::Result<()> {
    let step = Instant::now();
    heading("Haulout: GPU nodes through ESXi host maintenance");
    let binary = program::build(arguments.release).await?;
    for part in build::parts(false) {
        build::part(part).await?;
    }
    let which = if arguments.release { "release" } else { "debug" };
    ready(&format!("Haulout is built ({which} build)"), step);

    let started = Instant::now();
    let step = started;
    let ui = match arguments.keep {
        true => Some(TracingUi::start().await?),
        false => None,
    };
    let (kube, jaeger) = tokio::try_join!(start_kube(), start_jaeger(ui.as_ref()))?;
    ready(
        &format!(
            "Kubernetes is up at {} (etcd, kube-apiserver, kube-controller-manager); so is Jaeger",
            kube.url()
        ),
        step,
    );
    let step = Instant::now();
    let spec = datacenter::inventory();
    let fixture = Fixture::create(
        &kube,
        datacenter::FIXTURE,
        &spec,
        datacenter::members(&spec),
        true,
    )
    .await?;
    ready(
        &format!(
            "vCenter is up at {}: 8 hosts and 5 VMs, of which 3 are Kubernetes nodes",
            fixture.vcenter.sdk()
        ),
        step,
    );
    let step = Instant::now();
    let endpoint = jaeger.otlp_http();
    let link = ui.as_ref().and_then(TracingUi::template);
    let link = link.unwrap_or_else(|| format!("{}/api/traces/{{trace_id}}", jaeger.query()));
    let traced = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("TRACE_UI_URL_TEMPLATE", link.as_str()),
    ];
    let mut haulout = fixture.start(&binary, &[&SETTINGS[..], &traced].concat())?;
    tokio::select! {
        synced = wait_for_log(&fixture, "vCenter synced") => synced?,
        ended = watch_over(&kube, &mut haulout) => ended?,
    }
    ready(
        "haulout run is started, and its watches of vCenter and Kubernetes are synced",
        step,
    );

    let show = Show {
        kube: &kube,
        fixture: &fixture,
        jaeger: &jaeger,
        binary: &binary,
        pid: haulout.pid().context("haulout has no process id")?,
        printer: Printer::start(),
        phases: Phases::default(),
        build: which,
        started,
    };
    let outcome = tokio::select! {
        outcome = show.print(ui, has_finished) => outcome,
        ended = watch_over(&kube, &mut haulout) => ended,
        lost = show.follow() => lost.context("following vCenter's journal"),
    };
    if let Err(error) = outcome {
        show.printer.end().await;
        // If it ended by itself, the error already has its last output.
        if haulout.check_running().is_ok() {
            print_end_of_log(&fixture);
        }
        return Err(error);
    }
    haulout.stop().await?;
    kube.stop().await
}

async fn start_kube() -> anyhow::Result<Kube> {
    let options = KubeOptions {
        // More than two heartbeats: a stopped machine is noticed, and a busy one is not taken for stopped.
        node_monitor_grace: Duration::from_secs(3),
        ..KubeOptions::default()
    };
    Kube::start(&options).await
}

async fn start_jaeger(ui: Option<&TracingUi>) -> anyhow::Result<Jaeger> {
    match ui {
        Some(ui) => ui.start_jaeger().await,
        None => Jaeger::start().await,
    }
}

fn print_end_of_log(fixture: &Fixture<'_>) {
    heading("The end of Haulout's log");
    let log = fixture.log_text();
    let lines: Vec<&str> = log.lines().collect();
    for line in lines.iter().skip(lines.len().saturating_sub(LOG_TAIL_LINES)) {
        say(&format!("  {line}"));
    }
}

/// Returns when a part of the demo ends unexpectedly.
async fn watch_over(kube: &Kube, haulout: &mut Haulout) -> anyhow::Result<()> {
    loop {
        tokio::time::sleep(Duration::from_millis(250)).await;
        kube.check_running().await?;
        haulout.check_running()?;
    }
}

fn ready(what: &str, since: Instant) {
    say(&format!("{:>7.1} s  {what}", since.elapsed().as_secs_f64()));
}

async fn wait_for_log(fixture: &Fixture<'_>, words: &str) -> anyhow::Result<()> {
    until(
        &format!("the log of Haulout to contain {words:?}"),
        DEADLINE,
        async || Ok(fixture.log_text().contains(words).then_some(())),
    )
    .await
}
