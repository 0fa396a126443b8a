//! The demo with real parts: a real kube-apiserver, and govmomi's vCenter simulator.

mod datacenter;
mod program;
mod real;

use std::cell::Cell;
use std::time::{Duration, Instant};

use haulout_lab::build;
use haulout_lab::fixture::{Fixture, Haulout};
use haulout_lab::kube::{Kube, KubeOptions};
use haulout_show::printer::{heading, ready};
use haulout_show::{Program, SETTINGS, Show};

use self::real::{Real, TraceCollector};

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
    // Only the tracing UI needs Jaeger.
    for part in ["kube", "vcenter", "jaeger"]
        .iter()
        .take(if arguments.keep { 3 } else { 2 })
    {
        build::part(part).await?;
    }
    let profile = if arguments.release { "release" } else { "debug" };
    ready(&format!("Haulout is built ({profile} build)"), step);

    let started = Instant::now();
    let step = started;
    let (kube, collector) = tokio::try_join!(start_kube(), TraceCollector::start(arguments.keep))?;
    ready(
        &format!(
            "Kubernetes is up at {} (etcd, kube-apiserver, kube-controller-manager); so is {}",
            kube.url(),
            collector.name()
        ),
        step,
    );
    let step = Instant::now();
    let spec = datacenter::inventory();
    let members = datacenter::members(&spec);
    let fixture = Fixture::create(&kube, datacenter::FIXTURE, &spec, members, true).await?;
    ready(
        &format!(
            "vCenter is up at {}: 8 hosts and 5 VMs, of which 3 are Kubernetes nodes",
            fixture.vcenter.sdk()
        ),
        step,
    );
    let step = Instant::now();
    let traced = collector.settings();
    let traced = traced.iter().map(|(name, value)| (*name, value.as_str()));
    let settings: Vec<_> = SETTINGS.into_iter().chain(traced).collect();
    let mut haulout = fixture.start(&binary, &settings)?;
    let program = Program::new(haulout.pid(), fixture.log(), profile)?;
    let real = Real::new(&kube, &fixture, collector, &binary);
    let show = tokio::select! {
        show = Show::begin(&real, program, started) => show?,
        ended = watch_over(&kube, &mut haulout) => return ended,
    };
    ready(
        "haulout run is started, and its watches of vCenter and Kubernetes are synced",
        step,
    );
    let kept = arguments.keep.then_some(has_finished);
    show.run(watch_over(&kube, &mut haulout), kept).await?;
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

/// Returns when a part of the demo ends unexpectedly.
async fn watch_over(kube: &Kube, haulout: &mut Haulout) -> anyhow::Result<()> {
    loop {
        tokio::time::sleep(Duration::from_millis(250)).await;
        kube.check_running().await?;
        haulout.check_running()?;
    }
}
