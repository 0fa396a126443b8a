//! Runs one seed: the replicas of the controller, and the world around them, in one thread and in simulated time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use fastrand::Rng;
use haulout::app::{Connections, Controller};
use haulout::cli::{Cli, Command};
use haulout::config::Config;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

use crate::account::Account;
use crate::clock;
use crate::kube_api;
use crate::plan::{Plan, Settings};
use crate::said::Said;
use crate::soap::SimConnector;
use crate::story::{Story, Telling};
use crate::twin::{EndedMaintenance, differences};
use crate::world::{Orders, Shared, World, lock};

/// How long a container takes to be started again.
const RESTART: Duration = Duration::from_secs(3);

/// How often it is checked whether everything is at rest.
const LOOK: Duration = Duration::from_secs(5);

/// How long after the end of faults records have to be complete.
const SETTLED: Duration = Duration::from_secs(120);

/// How the account names a maintenance that was compared with one without faults.
pub const COMPARED: &str = "maintenance with one without faults";

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    /// The plan, in one line.
    pub plan: String,
    /// The digest of all requests and events.
    pub digest: String,
    /// The rules that were broken.
    pub violations: Vec<String>,
    pub account: Account,
    /// The lines of the story, if it was told.
    pub lines: Vec<String>,
    /// How much time was simulated.
    pub simulated: Duration,
    /// How long after the end of faults everything was at rest.
    pub rested: Duration,
    /// The maintenances one after the other, in a run that is compared with one without faults.
    pub in_turn: Vec<EndedMaintenance>,
    /// The most requests of one replica in a minute.
    pub most_requests: u64,
    /// The most writes to one Node in a minute.
    pub most_writes: u64,
}

/// Runs `seed`, and keeps the story that `telling` selects.
///
/// # Errors
/// If the runtime cannot be built, or the settings of the plan are wrong.
pub fn run(seed: u64, telling: Telling) -> anyhow::Result<Outcome> {
    run_and_keep(seed, telling, None)
}

/// As [`run`], and adds what the program says to `said`.
///
/// # Errors
/// As [`run`].
pub fn run_and_keep(seed: u64, telling: Telling, said: Option<&Said>) -> anyhow::Result<Outcome> {
    let mut rng = Rng::with_seed(seed);
    let plan = Plan::draw(seed, &mut rng);
    if plan.in_turn.is_empty() {
        return play_plan(plan, rng, telling, said);
    }
    let is_hostile = plan.faults.are_hostile();
    let twin = play_plan(plan.without_faults(), rng.clone(), Telling::Nothing, said)?;
    let mut outcome = play_plan(plan, rng, telling, said)?;
    let differences = differences(&outcome.in_turn, &twin.in_turn, is_hostile);
    let count = outcome.in_turn.len().min(twin.in_turn.len());
    for _ in 0..count {
        outcome.account.count("compared", COMPARED);
    }
    let broken = differences
        .into_iter()
        .map(|it| format!("a node is treated as without faults: {it}"));
    outcome.violations.extend(broken);
    Ok(outcome)
}

fn play_plan(plan: Plan, rng: Rng, telling: Telling, said: Option<&Said>) -> anyhow::Result<Outcome> {
    let _log = said.map(|said| {
        let log = tracing_subscriber::fmt().without_time().with_ansi(false);
        let log = log.with_max_level(tracing::Level::INFO).with_writer(said.clone());
        tracing::subscriber::set_default(log.finish())
    });
    let seed = plan.seed;
    let runtime = runtime(seed).context("building the runtime")?;
    // The jitter of retries is drawn from the generator of the thread.
    fastrand::seed(seed);
    let configs = [
        config(&plan, &plan.settings)?,
        config(&plan, &plan.other_settings)?,
    ];
    let line = plan.line();
    runtime.block_on(async {
        clock::begin();
        let world = World::new(plan, rng, Story::new(telling, said.cloned()));
        let world: Shared = Arc::new(Mutex::new(world));
        let rested = play(&world, &configs).await;
        let world = lock(&world);
        Ok(Outcome {
            seed,
            plan: line,
            digest: world.story.digest(),
            violations: world.oracle.violations.clone(),
            account: world.account.clone(),
            lines: world.story.lines().to_vec(),
            simulated: clock::elapsed(),
            rested,
            in_turn: world.ended_in_turn().to_vec(),
            most_requests: world.oracle.most_requests,
            most_writes: world.oracle.most_writes,
        })
    })
}

/// A runtime of one thread whose time is paused.
fn runtime(seed: u64) -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true);
    // In which order tokio wakes the receivers of a channel is random otherwise. This needs the flag of .cargo/config.toml.
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_le_bytes()));
    builder.build()
}

fn config(plan: &Plan, settings: &Settings) -> anyhow::Result<Config> {
    let cli = Cli::read(plan.command_line(settings).into_iter().map(Into::into));
    match cli.map(|cli| cli.command) {
        Ok(Command::Run(config)) => Ok(*config),
        Ok(_) => anyhow::bail!("the command line of the plan does not run the controller"),
        Err(error) => anyhow::bail!("the settings of the plan are wrong: {error:?}"),
    }
}

/// Plays until everything is at rest, or a rule is broken. Returns how long it took after the end of faults.
async fn play(world: &Shared, configs: &[Config; 2]) -> Duration {
    let mut replicas = JoinSet::new();
    let orders: Vec<_> = lock(world).orders.iter().map(watch::Sender::subscribe).collect();
    for (replica, orders) in orders.into_iter().enumerate() {
        replicas.spawn(live(Arc::clone(world), configs.clone(), replica, orders));
    }
    let wake = Arc::clone(&lock(world).queue.wake);
    let (calm, last) = {
        let world = lock(world);
        (world.plan.active, world.plan.active + world.plan.rest)
    };
    let mut look = LOOK;
    loop {
        let next = lock(world).queue.next().unwrap_or(last).min(look);
        tokio::select! {
            biased;
            () = sleep_until(clock::instant(next)) => {}
            () = wake.notified() => continue,
        }
        let mut world = lock(world);
        while let Some(event) = world.queue.take() {
            world.happens(event);
        }
        if !world.oracle.violations.is_empty() {
            break;
        }
        let now = clock::elapsed();
        if now < look {
            continue;
        }
        look = now + LOOK;
        world.check_lasting();
        if now < calm + LOOK {
            continue;
        }
        if now > world.connected_since().max(calm) + SETTLED {
            world.check_waits();
        }
        let unrest = world.unrest();
        if unrest.is_empty() {
            break;
        }
        if now >= last {
            world.tell_records();
            world.violated("everything comes to rest", unrest.join("; "));
            break;
        }
    }
    replicas.shutdown().await;
    clock::elapsed().saturating_sub(calm)
}

/// The life of a replica: it is started again whenever it ends.
async fn live(world: Shared, configs: [Config; 2], replica: usize, mut orders: watch::Receiver<Orders>) {
    for incarnation in 1_u32.. {
        let connections = Connections {
            vcenter: Arc::new(SimConnector {
                world: Arc::clone(&world),
                replica,
            }),
            nodes: kube_api::client(&world, replica),
            address: "https://kubernetes.example.com".to_owned(),
            machines: kube_api::client(&world, replica),
            leases: kube_api::client(&world, replica),
            instance: format!("replica-{replica}"),
            identity: format!("replica-{replica}_{incarnation}"),
            clocks: clock::clocks(replica),
        };
        let before = *orders.borrow_and_update();
        let is_other = lock(&world).has_other_settings[replica];
        lock(&world).runs_other_settings[replica] = is_other;
        lock(&world).has_listed[replica] = false;
        let [usual, other] = &configs;
        let config = if is_other { other } else { usual };
        let who = format!("replica-{replica}");
        let started = Controller::start(config, connections).await;
        let why = match started {
            Err(error) => format!("cannot start: {error:#}"),
            Ok(mut controller) => {
                {
                    let mut world = lock(&world);
                    world.tell(&who, "starts");
                    world.replica_starts();
                }
                tokio::select! {
                    biased;
                    _ = orders.changed() => {
                        let is_killed = orders.borrow().kills != before.kills;
                        if is_killed {
                            drop(controller);
                            "is killed".to_owned()
                        } else {
                            controller.stop().await;
                            "has stopped".to_owned()
                        }
                    }
                    what = controller.ended() => {
                        controller.stop().await;
                        what
                    }
                }
            }
        };
        {
            let mut world = lock(&world);
            if why.contains("panicked") {
                world.violated("no task panics", why.clone());
            }
            world.tell(&who, &why);
        }
        sleep(RESTART).await;
    }
}
