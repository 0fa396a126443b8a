//! The demo: the real `haulout`, a process of its own, takes two nodes through host maintenance. Its cluster and its vCenter are those
//! of the simulation, served over TLS on loopback in real time.

mod certificate;
mod serve;
mod simulated;

use std::cell::Cell;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::Parser;
use haulout_show::printer::{heading, paragraph, ready};
use haulout_show::process::{Process, ProcessSpec};
use haulout_show::run_dir::RunDir;
use haulout_show::{Program, SETTINGS, Show};
use tokio::signal::unix::{SignalKind, signal};

use self::simulated::Simulated;

/// The hosts and guests of the demo take seconds, so Haulout's intervals are short.
const QUICK: [(&str, &str); 11] = [
    ("POLL_INTERVAL_SECONDS", "1"),
    ("DRAIN_TIMEOUT_SECONDS", "120"),
    ("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "30"),
    ("POWER_ON_TIMEOUT_SECONDS", "60"),
    ("HOST_SETTLE_SECONDS", "1"),
    // A simulated cluster notices after 5 s that a kubelet is gone.
    (
        "TEST_TIMINGS",
        "eviction_retry=1,relocate=60,retry_max=1,node_monitor_grace=6",
    ),
    ("LEADER_ELECTION", "false"),
    ("LOG_LEVEL", "info"),
    ("METRICS_ADDRESS", "off"),
    ("HEALTH_ADDRESS", "off"),
    // The simulated vCenter has no EventManager.
    ("VCENTER_REPORT", "none"),
];

/// Variables of the shell that would lead Haulout somewhere else.
const PROXIES: [&str; 4] = ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"];

/// Takes two GPU nodes through host maintenance with the real Haulout, on a simulated cluster and vCenter, and prints every step.
#[derive(Debug, Parser)]
#[command(name = "demo", version)]
struct Arguments {
    /// Haulout's program; by default, the one beside this program.
    #[arg(long)]
    haulout: Option<PathBuf>,
    /// Keep everything running until Ctrl-C, and print how to use it.
    #[arg(long, env = "KEEP", value_parser = clap::builder::FalseyValueParser::new())]
    keep: bool,
}

// One thread: the simulation reads its clock from the thread.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(&Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut hang_up = signal(SignalKind::hangup()).context("listening for SIGHUP")?;
    let has_finished = Cell::new(false);
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted.context("listening for Ctrl-C")?,
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
        ended = demo(arguments, &has_finished) => return ended,
    }
    // This is the normal end of a demo that keeps running, and an early end before.
    ensure!(has_finished.get(), "interrupted before the demo came to its end");
    Ok(())
}

async fn demo(arguments: &Arguments, has_finished: &Cell<bool>) -> anyhow::Result<()> {
    let started = Instant::now();
    heading("Haulout: GPU nodes through ESXi host maintenance");
    paragraph(
        "Cluster and vCenter are simulated, and everything that Haulout does is real. make demo REAL=1 has a real kube-apiserver and \
         govmomi's vCenter simulator.",
    );
    let binary = program(arguments.haulout.as_deref())?;
    let dir = RunDir::create()?;
    let simulated = Simulated::start(&dir, &binary).await?;
    let step = Instant::now();
    ready(
        &format!(
            "Simulated: a kube-apiserver at {}, and a vCenter at {} with 4 hosts and 3 VMs, which are Kubernetes nodes",
            simulated.apiserver(),
            simulated.vcenter()
        ),
        started,
    );
    let mut haulout = spawn(&binary, &dir, &simulated)?;
    let profile = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    let program = Program::new(haulout.pid(), dir.join("haulout.log"), profile)?;
    let show = tokio::select! {
        show = Show::begin(&simulated, program, started) => show?,
        ended = watch_over(&mut haulout) => return ended,
    };
    ready(
        "haulout run is started, and its watches of vCenter and Kubernetes are synced",
        step,
    );
    let kept = arguments.keep.then_some(has_finished);
    show.run(watch_over(&mut haulout), kept).await?;
    let status = haulout.stop(Duration::from_secs(5)).await?;
    ensure!(status.success(), "haulout ended with {status} after SIGTERM");
    Ok(())
}

/// Haulout's program: the one that was named, or the one that Cargo has built beside this one.
fn program(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("asking for this program's path")?;
    let path = named.map_or_else(|| own.with_file_name("haulout"), Path::to_owned);
    if !path.is_file() {
        bail!(
            "there is no program {}: make demo builds it, as does cargo build --bin haulout",
            path.display()
        );
    }
    Ok(path)
}

fn spawn(binary: &Path, dir: &RunDir, simulated: &Simulated) -> anyhow::Result<Process> {
    let mut spec = ProcessSpec::leashed("haulout", binary, dir.join("haulout.log")).arg("run");
    for (name, value) in SETTINGS.into_iter().chain(QUICK) {
        spec = spec.env(name, value);
    }
    for (name, value) in simulated.settings() {
        spec = spec.env(name, value);
    }
    for name in PROXIES {
        spec = spec.env(name, "");
    }
    spec.spawn()
}

/// Returns when Haulout ends unexpectedly.
async fn watch_over(haulout: &mut Process) -> anyhow::Result<()> {
    loop {
        tokio::time::sleep(Duration::from_millis(250)).await;
        haulout.check_running()?;
    }
}
