//! Runs many seeds, or tells the story of one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use haulout_core::maintenance::kinds::PhaseKind;
use haulout_core::maintenance::waiting::WaitKind;
use haulout_sim::account::Account;
use haulout_sim::faults::Fault;
use haulout_sim::oracle::Act;
use haulout_sim::run::{COMPARED, Outcome, run, run_and_keep};
use haulout_sim::said::Said;
use haulout_sim::story::Telling;

/// Runs the controller against simulated vCenters and clusters, each drawn from a seed.
#[derive(Debug, Parser)]
struct Args {
    /// How many seeds to run
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Tell the story of this seed instead
    #[arg(long)]
    seed: Option<u64>,
    /// Show all requests in the story as well
    #[arg(long)]
    requests: bool,
    /// Show the log of the controller in the story as well (a level such as info, or a list such as haulout=debug)
    #[arg(long)]
    log: Option<String>,
    /// Fail if a fault, a phase, an act or a wait was never reached
    #[arg(long)]
    complete: bool,
    /// Write to this folder what the runs asked and said: `digests` has a digest of the requests of each seed, `said` each text once
    #[arg(long)]
    keep: Option<PathBuf>,
    /// How many threads to use
    #[arg(long)]
    threads: Option<usize>,
}

/// Every how manyth seed is run twice, and has to do the same.
const TWICE: u64 = 50;

/// What all runs together have shown.
#[derive(Default)]
struct Total {
    account: Account,
    /// The seeds that were run twice.
    compared: u64,
    failed: BTreeMap<u64, Vec<String>>,
    digests: BTreeMap<u64, String>,
    simulated: Duration,
    /// The largest of each figure, with its seed.
    slowest_rest: (Duration, u64),
    most_requests: (u64, u64),
    most_writes: (u64, u64),
}

/// The most failed seeds that are listed.
const FAILED_MAX: usize = 20;

#[expect(
    clippy::print_stdout,
    reason = "the story and the account are what the program is for"
)]
fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    if let Some(seed) = args.seed {
        let _guard = args.log.as_deref().map(log);
        let telling = if args.requests {
            Telling::Requests
        } else {
            Telling::Deeds
        };
        return tell(seed, telling);
    }
    let said = args.keep.is_some().then(Said::default);
    let total = run_all(&args, said.as_ref());
    if let (Some(folder), Some(said)) = (&args.keep, &said) {
        keep(folder, &total, said).with_context(|| format!("writing to {}", folder.display()))?;
    }
    let runs = args.seeds;
    println!(
        "{runs} seeds, {} h simulated, {} seeds compared with a second run; after the end of faults, everything was at rest within {} s (seed {}); \
         at most {} requests of a replica (seed {}) and {} writes to a Node (seed {}) in a minute",
        total.simulated.as_secs() / 3_600,
        total.compared,
        total.slowest_rest.0.as_secs(),
        total.slowest_rest.1,
        total.most_requests.0,
        total.most_requests.1,
        total.most_writes.0,
        total.most_writes.1,
    );
    for (kind, name, count) in total.account.all() {
        println!("{kind:<8} {count:>9}  {name}");
    }
    let missing = missing(&total.account);
    if args.complete && !missing.is_empty() {
        println!("never reached: {}", missing.join(", "));
    }
    for (seed, violations) in total.failed.iter().take(FAILED_MAX) {
        println!("seed {seed}: {}", violations.join("; "));
    }
    let Some(first) = total.failed.keys().next() else {
        let is_complete = !args.complete || missing.is_empty();
        return Ok(if is_complete {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        });
    };
    println!(
        "{} of {runs} seeds failed; the story of the first:",
        total.failed.len()
    );
    tell(*first, Telling::Deeds)
}

fn keep(folder: &Path, total: &Total, said: &Said) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let digests = total
        .digests
        .iter()
        .map(|(seed, digest)| format!("{seed} {digest}\n"));
    std::fs::write(folder.join("digests"), digests.collect::<String>())?;
    std::fs::write(folder.join("said"), said.lines().join("\n") + "\n")
}

fn log(filter: &str) {
    let filter = tracing_subscriber::EnvFilter::new(filter);
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    log.without_time().init();
}

/// Runs a seed. Some are run twice, if every detail of a run comes from its seed.
fn run_checked(seed: u64, said: Option<&Said>) -> anyhow::Result<Outcome> {
    let mut outcome = run_and_keep(seed, Telling::Nothing, said)?;
    if is_compared(seed) {
        let again = run(seed, Telling::Nothing)?;
        if again.digest != outcome.digest {
            let digests = format!("{} and {}", outcome.digest, again.digest);
            outcome
                .violations
                .push(format!("the same seed gives the same run: {digests}"));
        }
    }
    Ok(outcome)
}

fn is_compared(seed: u64) -> bool {
    seed.is_multiple_of(TWICE)
}

/// Runs all seeds on all cores.
fn run_all(args: &Args, said: Option<&Said>) -> Total {
    let next = AtomicU64::new(args.first);
    let end = args.first + args.seeds;
    let total = Mutex::new(Total::default());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..args.threads.unwrap_or(cores) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let outcome = run_checked(seed, said);
                    total
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .add(seed, outcome);
                }
            });
        }
    });
    total.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Total {
    fn add(&mut self, seed: u64, outcome: anyhow::Result<Outcome>) {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                self.failed.insert(seed, vec![format!("{error:#}")]);
                return;
            }
        };
        self.digests.insert(seed, outcome.digest.clone());
        self.account.add(&outcome.account);
        self.compared += u64::from(is_compared(seed));
        self.simulated += outcome.simulated;
        self.most_requests = self.most_requests.max((outcome.most_requests, seed));
        self.most_writes = self.most_writes.max((outcome.most_writes, seed));
        if outcome.violations.is_empty() {
            self.slowest_rest = self.slowest_rest.max((outcome.rested, seed));
        } else {
            self.failed.insert(seed, outcome.violations);
        }
    }
}

/// Waits that no run reaches, because what they wait for is not simulated yet.
const NOT_SIMULATED: &[WaitKind] = &[
    // A second release, and a Node that is written too often.
    WaitKind::OtherRelease,
    WaitKind::WritePace,
    // A power state that cannot be read, and a host that is kept from maintenance for long.
    WaitKind::PowerState,
    WaitKind::HostEntry,
];

/// The faults, phases, acts and waits that were never reached.
fn missing(account: &Account) -> Vec<String> {
    // Episodes of the Python controller are not simulated.
    let phases = PhaseKind::ALL
        .iter()
        .filter(|phase| **phase != PhaseKind::Adopting);
    let waits = WaitKind::ALL.iter().filter(|wait| !NOT_SIMULATED.contains(wait));
    let wanted = Fault::ALL.iter().map(|fault| ("fault", fault.name()));
    let wanted = wanted
        .chain(phases.map(|phase| ("phase", phase.name())))
        .chain(Act::ALL.iter().map(|act| ("act", act.name())))
        .chain(waits.map(|wait| ("wait", wait.variant())));
    let wanted = wanted.chain([("compared", COMPARED)]);
    let missing = wanted.filter(|(kind, name)| account.of(kind, name) == 0);
    missing.map(|(kind, name)| format!("{kind} {name:?}")).collect()
}

#[expect(clippy::print_stdout, reason = "the story is what the program is for")]
fn tell(seed: u64, telling: Telling) -> anyhow::Result<ExitCode> {
    let outcome = run(seed, telling)?;
    println!("seed {seed}: {}", outcome.plan);
    for line in &outcome.lines {
        println!("{line}");
    }
    println!("digest {}", outcome.digest);
    if outcome.violations.is_empty() {
        println!("no rule was broken");
        return Ok(ExitCode::SUCCESS);
    }
    for violation in &outcome.violations {
        println!("broken: {violation}");
    }
    println!("run it again with: make simulate SEED={seed}");
    Ok(ExitCode::FAILURE)
}
