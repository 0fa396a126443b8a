//! The command line of the lab.

mod demo;
mod tracing_ui;
mod up;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Parser, Subcommand};
use haulout_lab::tools::Tool;
use haulout_lab::{build, figures, zipkin};
use haulout_show::printer::say;
use tokio::signal::unix::{SignalKind, signal};

/// The part that is not built, but fetched.
const ZIPKIN: &str = "zipkin";

/// Starts the parts that Haulout is tested against.
#[derive(Debug, Parser)]
#[command(name = "lab", version)]
struct Arguments {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Build the parts that are not in the cache.
    Build(Build),
    /// Start a cluster, a vCenter with two GPU nodes and a tracing UI, print how to use them, and keep them running
    /// until Ctrl-C.
    Up(up::UpArguments),
    /// Take two GPU nodes through host maintenance with the real Haulout, and print every step.
    Demo(demo::DemoArguments),
    /// Write the tables of the benches into one directory, as JSON and as Markdown.
    Figures(Figures),
}

#[derive(Debug, clap::Args)]
struct Build {
    /// The parts: Go modules in `tests/lab/go`, and zipkin. Without any, those of `lab up`.
    #[arg(default_values = ["kube", "vcenter", "jaeger", ZIPKIN])]
    parts: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct Figures {
    /// The directory of the benches' tables.
    from: PathBuf,
    /// The output directory, such as `benches/results/2026-01-02-4-cores`.
    #[arg(long)]
    into: PathBuf,
    /// The commit and the machine, for the summary.
    #[arg(long)]
    about: String,
}

#[tokio::main]
async fn main() -> ExitCode {
    // kube-client logs each refused connection as an error, and there are many while a control plane starts.
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,kube_client=off"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    match run(Arguments::parse().command).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(command: LabCommand) -> anyhow::Result<()> {
    // From the beginning, so that a Ctrl-C during the start cleans up too.
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut hang_up = signal(SignalKind::hangup()).context("listening for SIGHUP")?;
    let asked_to_end = async {
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => interrupted.context("listening for Ctrl-C"),
            _ = terminate.recv() => Ok(()),
            _ = hang_up.recv() => Ok(()),
        }
    };
    match command {
        LabCommand::Build(arguments) => build_parts(&arguments).await,
        LabCommand::Figures(arguments) => publish(&arguments),
        LabCommand::Up(arguments) => tokio::select! {
            ended = asked_to_end => ended,
            failed = up::run(&arguments) => failed,
        },
        LabCommand::Demo(arguments) => {
            let has_finished = std::cell::Cell::new(false);
            tokio::select! {
                ended = asked_to_end => {
                    ended?;
                    // This is the normal end of a demo that keeps running, and an early end before.
                    if has_finished.get() { Ok(()) } else { bail!("interrupted before the demo came to its end") }
                }
                ended = demo::run(&arguments, &has_finished) => ended,
            }
        }
    }
}

async fn build_parts(arguments: &Build) -> anyhow::Result<()> {
    for part in &arguments.parts {
        if part == ZIPKIN {
            match zipkin::jar().await? {
                Tool::At(jar) => say(&format!("{part}: {}", jar.display())),
                Tool::Missing(why) => say(&format!("{part}: no tracing UI, because {why}")),
            }
        } else {
            say(&format!("{part}: {}", build::part(part).await?.display()));
        }
    }
    Ok(())
}

fn publish(arguments: &Figures) -> anyhow::Result<()> {
    let tables = figures::kept(&arguments.from)?;
    figures::publish(&tables, &arguments.about, &arguments.into)?;
    say(&format!("{}", arguments.into.join("summary.md").display()));
    Ok(())
}

fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "lab: {line}");
}
