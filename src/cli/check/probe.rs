//! `check --probe`: compares a vCenter with what Haulout assumes about vCenters, without changes.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

mod answers;
mod observed;
mod report;
#[cfg(test)]
mod tests;

use self::observed::{Observations, ProbeReading};
pub(in crate::cli) use self::report::{ProbeReport, render};
use crate::cli::cluster_view::ClusterView;
use crate::cli::out::Output;
use crate::cli::question::{self, Consent};
use crate::config::parse::seconds;
use crate::vsphere::client::Vcenter;
use crate::vsphere::updates::probe::{LongPoll, PollEnd, WatchProgress, WatchStep, WatchedPushes};

/// The long polls that are tried, in seconds: below and above the usual limits of proxies (60 s), and the one that Haulout uses
/// (120 s).
const STEPS: [u64; 6] = [10, 30, 60, 120, 300, 600];

/// The longest long poll that may be tried, in seconds. Each step is tried before it, so ten minutes take a quarter of an hour.
const LONGEST_POLL_MAX: u64 = 600;

/// The longest watch, in seconds. An empty host enters and exits within some minutes.
const WATCH_MAX: u64 = 3600;

/// The flags of `check` for a probe.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Probe")]
pub struct ProbeArgs {
    /// Also compare this vCenter with what Haulout assumes about vCenters; changes nothing
    ///
    /// It reads for some seconds. Then two things need time, and it asks before each: a watch while you click Enter and then
    /// Exit Maintenance Mode on an empty host, to see what vCenter pushes, and long polls, to see which ones last. Without a
    /// terminal it does not ask and leaves both out, unless --yes is given. Ctrl-C ends the waiting; what was seen is kept. The
    /// answers do not change the exit code.
    #[arg(long)]
    probe: bool,
    /// Watch and poll without asking
    #[arg(long, requires = "probe")]
    yes: bool,
    /// Write the answers to this file, without names: as JSON if its name ends in .json, or else as Markdown
    #[arg(long, value_name = "FILE", requires = "probe")]
    report: Option<PathBuf>,
    /// The longest time to watch; ends earlier when a host was in maintenance mode and is out of it
    #[arg(long, value_name = "SECONDS", requires = "probe", default_value = "300", value_parser = seconds(WATCH_MAX))]
    watch_limit: Duration,
    /// The longest long poll to try; shorter ones are tried before it
    #[arg(long, value_name = "SECONDS", requires = "probe", default_value = "120", value_parser = seconds(LONGEST_POLL_MAX))]
    longest_poll: Duration,
}

impl ProbeArgs {
    pub(super) fn is_wanted(&self) -> bool {
        self.probe
    }
}

/// Asks, reads, watches and polls. Writes the report file if one is wanted.
pub(super) async fn perform(
    args: &ProbeArgs,
    view: &ClusterView,
    out: Output,
) -> anyhow::Result<ProbeReport> {
    // Created first: minutes of waiting would be lost to a wrong path.
    let file = match &args.report {
        Some(path) => Some((
            File::create(path).with_context(|| format!("making {}", path.display()))?,
            path,
        )),
        None => None,
    };
    // All questions come before the first wait: nobody has to come back for the second one.
    let watches = ask(args, out, &watch_question(args.watch_limit))?;
    let polls = ask(args, out, &poll_question(&steps(args.longest_poll)))?;
    out.progress("probe: reading versions, tasks, hosts and VMs");
    let mut seen = readings(view).await;
    let interrupt = CancellationToken::new();
    if watches {
        seen.watch = watch(&view.vcenter, args.watch_limit, &interrupt, out).await;
    }
    if polls {
        seen.polls = long_polls(&view.vcenter, &steps(args.longest_poll), &interrupt, out).await;
    }
    let report = ProbeReport::new(answers::findings(&seen));
    if let Some((mut file, path)) = file {
        let text = report::text(&report, path)?;
        file.write_all(text.as_bytes())
            .with_context(|| format!("writing {}", path.display()))?;
        out.progress(&format!("probe: the report is in {}", path.display()));
    }
    Ok(report)
}

async fn readings(view: &ClusterView) -> Observations {
    let vcenter = &view.vcenter;
    let hosts = view.inventory.hosts_of_ours().into_keys().collect();
    Observations {
        product: ProbeReading::of(vcenter.product().await),
        results: ProbeReading::of(vcenter.task_results().await),
        tasks: ProbeReading::of(vcenter.listed_tasks().await),
        traits: ProbeReading::of(vcenter.inventory_traits(&hosts).await),
        event_age: ProbeReading::of(vcenter.setting("event.maxAge").await),
        ..Observations::default()
    }
}

fn watch_question(limit: Duration) -> String {
    format!(
        "Watch for at most {} s while you click Enter and then Exit Maintenance Mode on an EMPTY host, without nodes?",
        limit.as_secs()
    )
}

fn poll_question(steps: &[Duration]) -> String {
    let seconds: Vec<String> = steps.iter().map(|step| step.as_secs().to_string()).collect();
    let all: Duration = steps.iter().sum();
    format!(
        "Try long polls of {} s? It takes {} s",
        seconds.join(", "),
        all.as_secs()
    )
}

/// The long polls to try: each step below `longest`, and `longest`.
fn steps(longest: Duration) -> Vec<Duration> {
    let shorter = STEPS.into_iter().map(Duration::from_secs);
    shorter.filter(|step| *step < longest).chain([longest]).collect()
}

/// Whether to wait: by the flag, the answer of a person, or not at all.
fn ask(args: &ProbeArgs, out: Output, question: &str) -> anyhow::Result<bool> {
    let consent = question::ask(args.yes, out, question)?;
    if consent == Consent::NobodyToAsk {
        out.progress(&format!(
            "probe: {question} Left out, without a terminal and without --yes"
        ));
    }
    Ok(consent == Consent::Given)
}

async fn watch(
    vcenter: &Vcenter,
    limit: Duration,
    interrupt: &CancellationToken,
    out: Output,
) -> ProbeReading<WatchedPushes> {
    let progress = |progress| {
        let step = |step| match step {
            WatchStep::Enter => "Enter",
            WatchStep::Exit => "Exit",
        };
        out.progress(&match progress {
            WatchProgress::Ready => format!(
                "probe: watching for at most {} s; click Enter and then Exit Maintenance Mode on an empty host",
                limit.as_secs()
            ),
            WatchProgress::Began(of) => format!("probe: {} Maintenance Mode began", step(of)),
            WatchProgress::Ended(of) => format!("probe: {} Maintenance Mode ended", step(of)),
        });
    };
    let stop = async {
        tokio::select! {
            biased;
            () = interrupted(interrupt) => {}
            () = tokio::time::sleep(limit) => {}
        }
    };
    ProbeReading::of(vcenter.watch_pushes(stop, progress).await)
}

/// Tries each step until one fails.
async fn long_polls(
    vcenter: &Vcenter,
    steps: &[Duration],
    interrupt: &CancellationToken,
    out: Output,
) -> ProbeReading<Vec<LongPoll>> {
    let mut polls = Vec::new();
    for step in steps {
        out.progress(&format!("probe: a long poll of {} s", step.as_secs()));
        let poll = tokio::select! {
            biased;
            () = interrupted(interrupt) => break,
            poll = vcenter.try_long_poll(*step) => poll,
        };
        match poll {
            Ok(poll) => {
                polls.push(poll);
                if poll.end != PollEnd::Answered {
                    break;
                }
            }
            Err(error) if polls.is_empty() => return ProbeReading::of(Err(error)),
            Err(_) => break,
        }
    }
    ProbeReading::Got(polls)
}

/// Completes at Ctrl-C, and at once after it: it ends all waiting. If it cannot be known, never.
async fn interrupted(interrupt: &CancellationToken) {
    if interrupt.is_cancelled() {
        return;
    }
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
    interrupt.cancel();
}
