//! The door: arguments in, exit code out.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use haulout_lab::build;
use haulout_lab::kube::{Kube, Options, User};
use tokio::signal::unix::{SignalKind, signal};

/// Starts the real parts Haulout is tested against.
#[derive(Debug, Parser)]
#[command(name = "lab", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build all parts that are not in the cache yet.
    Build,
    /// Start the lab, say how to look at it, and keep it until Ctrl-C.
    Up(Up),
}

#[derive(Debug, clap::Args)]
struct Up {
    /// After how many seconds of silence a node is no longer Ready (production: 40).
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=3600))]
    node_monitor_grace_seconds: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    // kube-client reports each refused connection as an error, and a control plane that starts refuses many.
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,kube_client=off"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let outcome = match Arguments::parse().command {
        Command::Build => build_all().await,
        Command::Up(arguments) => up(&arguments).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn build_all() -> anyhow::Result<()> {
    for part in build::parts() {
        let program = build::part(part).await?;
        say(&format!("{part}: {}", program.display()));
    }
    Ok(())
}

async fn up(arguments: &Up) -> anyhow::Result<()> {
    // Listened to from the beginning, so that a Ctrl-C during the start cleans up as well.
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let asked_to_end = async {
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => interrupted.context("listening for Ctrl-C"),
            _ = terminate.recv() => Ok(()),
        }
    };
    let options = Options {
        node_monitor_grace: Duration::from_secs(arguments.node_monitor_grace_seconds),
        ..Options::default()
    };
    tokio::select! {
        ended = asked_to_end => ended,
        failed = run(&options) => failed,
    }
}

/// Runs the lab until a part of it ends, which none does by itself.
async fn run(options: &Options) -> anyhow::Result<()> {
    let started = Instant::now();
    let kube = Kube::start(options).await?;
    say(&format!(
        "Kubernetes is up after {:.1} s: {}",
        started.elapsed().as_secs_f64(),
        kube.url()
    ));
    say(&format!(
        "  export KUBECONFIG={}   # everything",
        kube.kubeconfig(&User::admin("admin"))?.display()
    ));
    say(&format!(
        "  export KUBECONFIG={}   # what Haulout may",
        kube.kubeconfig(&User::haulout("haulout"))?.display()
    ));
    say(&format!("  logs: {}", kube.dir().display()));
    say("Ctrl-C ends it and removes everything.");
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        kube.check_running().await?;
    }
}

/// Says one line to whoever asked. A reader that went away, as `lab up | head` does, is no reason to end.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "lab: {line}");
}
