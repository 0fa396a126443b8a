//! Builds everything, wires it, and owns the task tree.
//!
//! ```text
//!  run ─┬─ vcenter::follow ─────────▶ updates ─┐  (while this replica leads)
//!       ├─ vcenter::policies ───────▶ updates ─┤  (the compute policies, once an hour)
//!       ├─ kubernetes::watch::nodes ─▶ updates ─┼─▶ event_loop::run ──▶ Supervisor ──▶ one NodeActor per node ──▶ Executor
//!       ├─ kubernetes::events::run ◀─── Events ◀── node events
//!       ├─ telemetry::vcenter_events::run ◀─── node events
//!       ├─ kubernetes::lease::run ───▶ election ─┤      │ opens and closes the fence before Executor
//!       ├─ kubernetes::watch::budgets ▶ updates ─┤      │
//!       ├─ kubernetes::watch::pods ───▶ updates ─┤      ▲                                                     │
//!       ├─ kubernetes::watch::followed, scan ────▶ updates (Nodes that the selector does not match)           │
//!       │                                     └──────┴──────────── effect reports ◀───────────────────────┘
//!       ├─ http::Server::run ◀── metrics, health and status page, which observe the event loop
//!       │                    ◀── plans and report, of copies of its inventory
//!       └─ SIGTERM, Ctrl-C ──▶ stop: the fence, the event loop and its actors, then the streams, which log out, then the Lease
//! ```

mod connections;
mod from_config;
mod identity;
mod kubeconfig;
mod notices;
mod outputs;
mod sentinel;
mod terminate;
mod vcenter;
mod watches;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::config::Config;
use crate::controller::event_loop::{self, EventSources, WatchSenders};
use crate::controller::executor::{AnyExecutor, Executor, RefusalLog};
use crate::controller::node::ActorContext;
use crate::controller::supervisor::Supervisor;
use crate::fence::watchdog::{self, Watchdog};
use crate::fence::{self, WriteFence};
use crate::http::HttpServer;
use crate::inventory::Inventory;
use crate::kubernetes;
use crate::kubernetes::drain::{DrainSettings, OwnPod};
use crate::kubernetes::events::EventQueue;
use crate::kubernetes::facts::GpuResources;
use crate::kubernetes::lease::{self, Abilities, ElectionStatus, LoginNote};
use crate::kubernetes::machine_guard::MachineApi;
use crate::kubernetes::watch::Selection;
use crate::maintenance::clock::{Monotonic, Now};
use crate::maintenance::policy::{Policy, Releases};
use crate::telemetry::log::Level;
use crate::telemetry::misconfigured::Misconfigured;
use crate::vsphere;
use crate::vsphere::client::Vcenter;
use from_config::policy;
use outputs::{OutputContext, Outputs};
use terminate::Terminate;
use vcenter::VcenterReads;
use watches::Watches;
use writes::Writes;

pub use connections::{Clocks, Connections};
pub(crate) use from_config::{inventory_settings, vcenter_settings};
pub use sentinel::run_sentinel;

/// Capacity of the channels to the event loop. An initial set has thousands of facts; the streams wait meanwhile.
const FACTS: usize = 1024;

/// Capacity of the channel for copies of the inventory, of which few are wanted.
const COPIES: usize = 8;

/// Limit for requests in flight at the stop. If one is not answered in time, the Lease is not released.
const FINISH_GRACE: Duration = Duration::from_secs(1);

/// Limit for the logout and the end of the streams. The whole stop, including [`FINISH_GRACE`] and the release of the Lease,
/// takes at most 5 s; Kubernetes sends SIGKILL after 30 s.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// Runs the controller until SIGTERM or Ctrl-C, and follows the file that may change `level`.
///
/// # Errors
/// [`Misconfigured`] for a value that cannot be validated earlier; otherwise an error at the start, or a task that ended.
pub async fn run(config: Config, level: Level) -> anyhow::Result<()> {
    // Before anything else, so that a stop during the start is orderly too.
    let terminate = Terminate::listen().context("listening for SIGTERM")?;
    info!(
        version = env!("CARGO_PKG_VERSION"),
        settings = %config.line(),
        "starting"
    );
    // Wrong settings are reported before the connections are made.
    gpu_resources(&config)?;
    vcenter_settings(&config)?;
    let connections = Connections::of(&config).await?;
    let mut controller = Controller::start(&config, connections).await?;
    let watchdog = controller.watch_over(&config)?;
    if level.can_change() {
        let stop = controller.streams_stop.clone();
        controller.spawn("log level", level.follow(stop));
    }
    let outcome = controller.until_asked_to_stop(terminate, &config).await;
    controller.stop().await;
    drop(watchdog);
    info!("stopped; episodes are recorded on their Nodes and continue at the next start");
    outcome
}

/// The clients, and what observes them.
struct Clients {
    vcenter: Vcenter,
    connections: Connections,
    machines: Arc<MachineApi>,
    election: Option<lease::Settings>,
    /// The result of logins, for the Lease.
    login: watch::Receiver<LoginNote>,
    gpu_resources: GpuResources,
    outputs: Outputs,
}

/// A running controller: all its tasks. When it is dropped, they end as in a crash.
pub struct Controller {
    /// A task that ends before the stop is an error.
    tasks: JoinSet<&'static str>,
    /// Exporters, which may end at any time.
    showing: JoinSet<()>,
    /// Ends the event loop and its actors.
    stop: CancellationToken,
    fence: WriteFence,
    /// The election ends last, because the next leader begins then.
    election: JoinSet<()>,
    election_stop: CancellationToken,
    /// Ends the other tasks. The streams end after the event loop, and log out.
    streams_stop: CancellationToken,
}

impl Clients {
    fn prepare(config: &Config, connections: Connections) -> anyhow::Result<Self> {
        let writes = Writes::by(config);
        let Connections { clocks, .. } = &connections;
        let gpu_resources = gpu_resources(config)?;
        let settings = vcenter_settings(config)?;
        let outputs = Outputs::new(config, &connections, &settings.endpoint.name());
        let election = writes.lease.then(|| from_config::election(config, &connections));
        let (login_sender, login) = watch::channel(LoginNote::default());
        let settings = vsphere::client::Settings {
            on_answer: outputs.on_answer(clocks.wall),
            instance: connections.instance.clone(),
            on_login: vcenter::on_login(login_sender, clocks.wall),
            ..settings
        };
        let vcenter = Vcenter::with_connector(settings, Arc::clone(&connections.vcenter))
            .context("preparing the connection to vCenter")?;
        Ok(Self {
            vcenter,
            machines: Arc::new(MachineApi::new(connections.machines.clone())),
            connections,
            election,
            login,
            gpu_resources,
            outputs,
        })
    }
}

fn gpu_resources(config: &Config) -> Result<GpuResources, Misconfigured> {
    GpuResources::parse(&config.gpu_resources)
        .map_err(|error| Misconfigured::new("GPU_RESOURCES", &config.gpu_resources, &error))
}

fn drain_settings(config: &Config) -> DrainSettings {
    DrainSettings {
        own_pod: OwnPod::from_environment(),
        wait_max: config.drain_wait_max,
        ..DrainSettings::default()
    }
}

fn selection(config: &Config, gpu_resources: GpuResources, releases: Releases) -> Selection {
    Selection {
        selector: config.gpu_node_label.clone(),
        limit_group: config.pace.limit_group_label.clone(),
        gpu_resources,
        releases,
    }
}

fn watch_settings(config: &Config) -> kubernetes::watch::Settings {
    kubernetes::watch::Settings {
        backoff_max: config.timings().retry_max,
        ..kubernetes::watch::Settings::default()
    }
}

impl Controller {
    /// Starts a controller on `connections`.
    ///
    /// # Errors
    /// [`Misconfigured`] for a value that cannot be validated earlier; otherwise an error at the start.
    pub async fn start(config: &Config, connections: Connections) -> anyhow::Result<Self> {
        let clients = Clients::prepare(config, connections)?;
        if config.dry_run {
            warn!("dry run: decisions are made and logged, and nothing is changed");
        }
        let policy = policy(
            config,
            &clients.connections.nodes,
            &clients.machines,
            &clients.gpu_resources,
        )
        .await;
        Self::open(config, clients, policy).await
    }

    /// Wires and starts everything.
    #[expect(
        clippy::too_many_lines,
        reason = "one list of parts, in the order in which they need each other"
    )]
    async fn open(config: &Config, clients: Clients, policy: Policy) -> anyhow::Result<Self> {
        let (copies_sender, copies) = mpsc::channel(COPIES);
        let planner = from_config::planner(config, &clients.connections, &clients.vcenter, copies_sender);
        let servers = clients.outputs.servers(config, Arc::new(planner)).await?;
        let clocks = clients.connections.clocks;
        let mut app = Self::new(clients.election.is_some(), clocks);
        let (vsphere_sender, vsphere) = mpsc::channel(FACTS);
        let (kubernetes_sender, kubernetes) = mpsc::channel(FACTS);
        let (reports_sender, reports) = mpsc::channel(FACTS);
        let subscriptions = WatchSenders::default();
        let (connections, vcenter, mut outputs) = (clients.connections, clients.vcenter, clients.outputs);
        let client = connections.nodes.clone();
        let election = clients.election.map(|settings| (connections.leases, settings));
        let election_status = app.stand_for_election(election, clients.login, &vcenter, &outputs);
        let (publisher, to_publish) = kubernetes::events::queue(outputs.on_event_dropped());
        let executor = Executor {
            fence: app.fence.clone(),
            vcenter: vcenter.clone(),
            client: client.clone(),
            machines: clients.machines,
            limit_group: config.pace.limit_group_label.clone(),
            gpu_resources: clients.gpu_resources.clone(),
            drain: drain_settings(config),
            events: publisher.clone(),
            on_evictions: outputs.on_evictions(),
            refusals: RefusalLog::default(),
            reports: reports_sender,
            nodes: kubernetes_sender.clone(),
        };
        let releases = policy.releases.clone();
        outputs.start(OutputContext {
            config,
            release: &policy.releases.own,
            executor: &executor,
            publisher,
            clock: clocks.wall,
            tasks: &mut app.showing,
            stop: &app.streams_stop,
        })?;
        let observers = outputs.observers();
        let actors = ActorContext {
            executor: AnyExecutor::of(executor, config.dry_run),
            observers: observers.clone(),
            policy,
            clock: clocks.decisions,
        };
        let supervisor = Supervisor::new(actors, &app.stop);
        app.write_events(client.clone(), connections.instance, to_publish);
        let reads = VcenterReads {
            vcenter,
            election_status: election_status.clone(),
            clock: clocks.wall,
            watch_set: subscriptions.watch_set.subscribe(),
            out: vsphere_sender,
        };
        app.read_vcenter(reads, &outputs);
        let watches = Watches {
            client: client.clone(),
            selection: selection(config, clients.gpu_resources, releases),
            settings: watch_settings(config),
            facts: kubernetes_sender,
            election_status: election_status.clone(),
            draining: subscriptions.draining.subscribe(),
            budgets: subscriptions.budgets.subscribe(),
            followed: subscriptions.followed.subscribe(),
        };
        app.watch_kubernetes(config, watches, &outputs);
        let sources = EventSources {
            vsphere,
            kubernetes,
            reports,
            election: election_status,
            copies,
        };
        let inventory = Inventory::new(inventory_settings(config, &client), (clocks.wall)());
        let (clock, stop) = (clocks.decisions, app.stop.clone());
        let event_loop = event_loop::run(
            sources,
            subscriptions,
            inventory,
            supervisor,
            observers,
            clock,
            stop,
        );
        app.spawn("event loop", event_loop);
        app.serve(servers);
        Ok(app)
    }

    fn write_events(&mut self, client: kube::Client, instance: String, to_publish: EventQueue) {
        let (fence, stop) = (self.fence.clone(), self.streams_stop.clone());
        let events = kubernetes::events::run(client, fence, instance, to_publish, stop);
        self.spawn("Events writer", events);
    }

    fn serve(&mut self, servers: Vec<HttpServer>) {
        for server in servers {
            let token = self.streams_stop.clone();
            self.spawn(server.what(), server.run(token));
        }
    }

    fn new(has_election: bool, clocks: Clocks) -> Self {
        Self {
            tasks: JoinSet::new(),
            showing: JoinSet::new(),
            stop: CancellationToken::new(),
            fence: if has_election {
                WriteFence::for_replica(clocks.boot)
            } else {
                WriteFence::without_election()
            },
            election: JoinSet::new(),
            election_stop: CancellationToken::new(),
            streams_stop: CancellationToken::new(),
        }
    }

    /// Starts the election, if it is configured.
    fn stand_for_election(
        &mut self,
        election: Option<(kube::Client, lease::Settings)>,
        login: watch::Receiver<LoginNote>,
        vcenter: &Vcenter,
        outputs: &Outputs,
    ) -> watch::Receiver<ElectionStatus> {
        let Some((client, settings)) = election else {
            let (_, election_status) = watch::channel(ElectionStatus::alone());
            return election_status;
        };
        self.probe_vcenter(vcenter, outputs);
        let (sender, election_status) = watch::channel(ElectionStatus::candidate(&settings.name));
        let stop = self.election_stop.clone();
        let abilities = Abilities {
            can_work: outputs.health.vcenter_reachable(),
            login,
        };
        let election = lease::run(client, settings, self.fence.clone(), abilities, sender, stop);
        self.election.spawn(election);
        election_status
    }

    fn spawn(&mut self, what: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(async move {
            task.await;
            what
        });
    }

    /// Starts the thread that ends the process if it hangs as leader. Without an election there is no other leader.
    fn watch_over(&self, config: &Config) -> anyhow::Result<Option<Watchdog>> {
        if !Writes::by(config).lease {
            return Ok(None);
        }
        // Two intervals of a tenth end well before the earliest takeover.
        let period = config.leadership.renew_deadline / 10;
        let watchdog = watchdog::watch(self.fence.clone(), period);
        watchdog.context("starting the watchdog's thread").map(Some)
    }

    /// Waits for a signal; a task that ends earlier is an error.
    async fn until_asked_to_stop(&mut self, mut terminate: Terminate, config: &Config) -> anyhow::Result<()> {
        tokio::select! {
            biased;
            interrupted = tokio::signal::ctrl_c() => {
                interrupted.context("listening for Ctrl-C")?;
                info!("Ctrl-C: stopping");
            }
            () = terminate.asked() => info!("SIGTERM: stopping"),
            () = kubeconfig::rotated(config) => {}
            what = self.ended() => {
                error!("{what}; exiting to be restarted");
                anyhow::bail!(what);
            }
        }
        Ok(())
    }

    /// Waits until a task has ended without being asked, and returns which. The process has to exit then.
    pub async fn ended(&mut self) -> String {
        tokio::select! {
            biased;
            Some(ended) = self.election.join_next() => match ended {
                Ok(()) => "this replica lost the leadership".to_owned(),
                Err(panic) => format!("the election panicked: {panic}"),
            },
            ended = self.tasks.join_next() => match ended {
                Some(Ok(what)) => format!("task {what:?} ended unexpectedly"),
                Some(Err(panic)) => format!("a task panicked: {panic}"),
                None => "no task was started".to_owned(),
            },
        }
    }

    /// Stops everything within the limits.
    pub async fn stop(mut self) {
        self.fence.close();
        // Before the tasks end: they drop their permits then, also those of requests that may still arrive.
        let is_idle = tokio::time::timeout(FINISH_GRACE, self.fence.idle())
            .await
            .is_ok();
        if !is_idle {
            warn!(
                "requests were not answered within {FINISH_GRACE:?}, so a Lease is not released and expires by itself; the next \
                 leader checks their results"
            );
        }
        self.stop.cancel();
        self.streams_stop.cancel();
        let all = async {
            while self.tasks.join_next().await.is_some() {}
            while self.showing.join_next().await.is_some() {}
        };
        if tokio::time::timeout(STOP_GRACE, all).await.is_err() {
            warn!("some tasks did not end within {STOP_GRACE:?}; they are aborted");
        }
        if is_idle {
            self.election_stop.cancel();
        } else {
            self.election.abort_all();
        }
        while self.election.join_next().await.is_some() {}
    }
}

/// The clocks of decisions.
pub(crate) fn clocks() -> Now {
    Now {
        wall: clock(),
        monotonic: Monotonic::since_boot(fence::now().since_boot),
    }
}

/// The wall clock.
#[expect(
    clippy::disallowed_methods,
    reason = "the only place that reads the clock; the time is an argument elsewhere"
)]
pub(crate) fn clock() -> Timestamp {
    Timestamp::now()
}

#[cfg(test)]
mod tests;
