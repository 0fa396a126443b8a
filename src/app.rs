//! Builds everything, wires it, and owns the task tree.
//!
//! ```text
//!  run ─┬─ vcenter::follow ─────────▶ updates ─┐  (while this replica leads)
//!       ├─ kubernetes::watch::nodes ─▶ updates ─┼─▶ event_loop::run ──▶ Supervisor ──▶ one NodeActor per node ──▶ Executor
//!       ├─ kubernetes::events::run ◀─── Events ◀── node events
//!       ├─ kubernetes::lease::run ───▶ standing ─┤      │ opens and shuts the fence before Executor
//!       ├─ kubernetes::watch::budgets ▶ updates ─┤      │
//!       ├─ kubernetes::watch::pods ───▶ updates ─┤      ▲                                                     │
//!       ├─ kubernetes::watch::followed, scan ────▶ updates (Nodes that the selector does not match)           │
//!       │                                     └──────┴─────────────────── findings ◀───────────────────────┘
//!       ├─ http::Server::run ◀── metrics, health and status page, which observe the event loop
//!       └─ SIGTERM, Ctrl-C ──▶ stop: the fence, the event loop and its actors, then the streams, which log out, then the Lease
//! ```

mod from_config;
mod identity;
mod kubeconfig;
mod observers;
mod outputs;
mod vcenter;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::config::{Config, Listen};
use crate::controller::event_loop::{self, EventSources, Subscriptions};
use crate::controller::executor::{AnyExecutor, Executor};
use crate::controller::node::ActorContext;
use crate::controller::supervisor::Supervisor;
use crate::fence::watchdog::{self, Watchdog};
use crate::fence::{self, WriteFence};
use crate::http::HttpServer;
use crate::http::status::{PageSettings, StatusPage};
use crate::inventory::Inventory;
use crate::keys::Keys;
use crate::kubernetes;
use crate::kubernetes::drain::{DrainSettings, OwnPod};
use crate::kubernetes::events::Publisher;
use crate::kubernetes::facts::GpuResources;
use crate::kubernetes::lease::{self, Abilities, ElectionStatus, LoginNote};
use crate::kubernetes::watch::Selection;
use crate::maintenance::clock::{Monotonic, Now};
use crate::nodemaintenance::objects::StatusReconciler;
use crate::status::observer::Observer;
use crate::telemetry::ObserverList;
use crate::telemetry::link::Links;
use crate::telemetry::log::Level;
use crate::vsphere;
use crate::vsphere::client::Vcenter;
use from_config::{RETRY_MIN, Writes, election, misconfigured, policy};
use identity::instance;
use observers::Observers;
use watches::Watches;

pub use from_config::Misconfigured;
pub(crate) use from_config::{rules, vcenter_settings};

/// How many facts may wait for the event loop. An initial set has thousands; the streams then wait, which is right, since
/// nothing may be decided on an incomplete set.
const FACTS: usize = 1024;

/// How long what has passed the gate gets to be finished at the stop. It is answered within milliseconds, or the Lease
/// is not released.
const FINISH_GRACE: Duration = Duration::from_secs(1);

/// How long the streams get to log out and end. Kubernetes sends SIGKILL after 30 s; with the grace before it and the
/// release of the Lease after it, all is over within 5 s.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// Runs the controller until SIGTERM or Ctrl-C, and follows the file that may change `level`.
///
/// # Errors
/// [`Misconfigured`] for a value that only its user could judge; otherwise whatever kept the controller from starting,
/// or a task that must run and has ended.
pub async fn run(config: Config, level: Level) -> anyhow::Result<()> {
    // Listened for from the beginning, so that a stop during the start is an orderly one as well.
    let terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    info!(
        version = env!("CARGO_PKG_VERSION"),
        settings = %config.line(),
        "starting"
    );
    let clients = Clients::prepare(&config).await?;
    if config.dry_run {
        warn!("dry run: every decision is made and logged, and nothing is changed anywhere");
    }
    let mut app = App::open(&config, clients).await?;
    if level.can_change() {
        let stop = app.streams_stop.clone();
        app.spawn("the look at the log level", level.follow(stop));
    }
    let outcome = app.until_asked_to_stop(terminate).await;
    app.close().await;
    info!("stopped; every episode stands on its Node and goes on at the next start");
    outcome
}

/// The ways to both clients. Making them sends nothing, so what is wrong with the configuration shows before anything is
/// touched.
struct Clients {
    vcenter: Vcenter,
    client: kube::Client,
    /// How a leader is elected, where there are several replicas.
    election: Option<lease::Settings>,
    /// What the Lease is to say of logins.
    login: watch::Receiver<LoginNote>,
    keys: Keys,
    gpu_resources: GpuResources,
    observers: Observers,
}

/// Everything that runs.
struct App {
    /// None of them ends before it is asked to.
    tasks: JoinSet<&'static str>,
    /// They end when nothing is left to export, and their end stops nothing else.
    showing: JoinSet<()>,
    /// Ends the event loop and its actors.
    stop: CancellationToken,
    /// What every record and every effect passes.
    gate: WriteFence,
    /// The election, which outlives all others: the next leader begins where it ends.
    election: JoinSet<()>,
    election_stop: CancellationToken,
    /// Ends the process where nobody else can.
    watchdog: Option<Watchdog>,
    /// Ends everything else. The streams outlive the event loop, so that they can log out at an orderly end.
    streams_stop: CancellationToken,
}

impl Clients {
    async fn prepare(config: &Config) -> anyhow::Result<Self> {
        let writes = Writes::by(config);
        let lease = writes.lease.then(|| config.leadership.lease_name.clone());
        let mut observers = Observers::of(lease);
        if writes.objects {
            let trace_url = config.trace_ui_url_template.clone();
            let objects = StatusReconciler::new(
                config.gpu_node_label.clone(),
                trace_url,
                config.node_maintenance_history,
                clock,
            );
            observers.objects = Some(Arc::new(objects));
        }
        if config.status_address != Listen::Off {
            let about = PageSettings {
                is_dry_run: config.dry_run,
                links: Links::new(config),
            };
            let status = StatusPage::new(about, observers.objects.clone(), clock);
            observers.status = Some(Arc::new(status));
        }
        let gpu_resources = GpuResources::parse(&config.gpu_resources)
            .map_err(|error| misconfigured("GPU_RESOURCES", &config.gpu_resources, &error))?;
        let settings = vcenter_settings(config)?;
        let client = kubernetes::client::connect()
            .await
            .context("preparing the connection to Kubernetes")?;
        let election = writes.lease.then(|| election(config, &client));
        let (login_sender, login) = watch::channel(LoginNote::default());
        let settings = vsphere::client::Settings {
            on_answer: observers.on_answer(clock),
            instance: instance(),
            on_login: vcenter::on_login(login_sender, clock),
            ..settings
        };
        observers.metrics.set_vcenter_name(&settings.endpoint.name());
        let vcenter = Vcenter::new(settings).context("preparing the connection to vCenter")?;
        let keys = Keys::under(&config.annotation_prefix);
        Ok(Self {
            vcenter,
            client,
            election,
            login,
            keys,
            gpu_resources,
            observers,
        })
    }
}

fn drain_settings() -> DrainSettings {
    DrainSettings {
        own_pod: OwnPod::from_environment(),
        ..DrainSettings::default()
    }
}

fn selection(config: &Config, keys: Keys, gpu_resources: GpuResources) -> Selection {
    Selection {
        selector: config.gpu_node_label.clone(),
        keys,
        gpu_resources,
    }
}

fn watch_settings(config: &Config) -> kubernetes::watch::Settings {
    kubernetes::watch::Settings {
        backoff_max: config.retry_max.max(RETRY_MIN),
        ..kubernetes::watch::Settings::default()
    }
}

impl App {
    /// Wires everything and sets it going.
    async fn open(config: &Config, clients: Clients) -> anyhow::Result<Self> {
        let servers = outputs::servers(config, &clients.observers).await?;
        let mut app = Self::new(clients.election.is_some());
        let (vsphere_sender, vsphere) = mpsc::channel(FACTS);
        let (kubernetes_sender, kubernetes) = mpsc::channel(FACTS);
        let (reports_sender, reports) = mpsc::channel(FACTS);
        let (subscriptions, wanted) = Subscriptions::channels();
        let Clients {
            vcenter,
            client,
            election,
            login,
            keys,
            gpu_resources,
            mut observers,
        } = clients;
        if election.is_some() {
            app.probe(&vcenter, &observers);
        }
        let standing = app.stand_for_election(election, login, &client, &observers)?;
        let (publisher, to_publish) = kubernetes::events::queue(observers.on_event_dropped());
        let executor = Executor {
            fence: app.gate.clone(),
            vcenter: vcenter.clone(),
            client: client.clone(),
            keys: keys.clone(),
            gpu_resources: gpu_resources.clone(),
            drain: drain_settings(),
            events: publisher.clone(),
            on_evictions: observers.on_evictions(),
            reports: reports_sender,
            nodes: kubernetes_sender.clone(),
        };
        let supervisor = app.supervisor(config, executor, publisher, &mut observers, &client)?;
        let stop = app.streams_stop.clone();
        let events = kubernetes::events::run(client.clone(), instance(), to_publish, stop.clone());
        app.spawn("the writer of Events", events);
        let stream = vcenter::follow(
            vcenter,
            standing.clone(),
            clock,
            wanted.watch_set,
            vsphere_sender,
            stop,
        );
        app.spawn("the stream of vCenter", stream);
        let watches = Watches {
            client: client.clone(),
            selection: selection(config, keys, gpu_resources),
            settings: watch_settings(config),
            facts: kubernetes_sender,
            standing: standing.clone(),
            draining: wanted.draining,
            budgets: wanted.budgets,
            followed: wanted.followed,
        };
        app.watch_kubernetes(config, watches, &observers);
        let sources = EventSources {
            vsphere,
            kubernetes,
            reports,
            election: standing,
        };
        let inventory = Inventory::new(rules(config, &client), clock());
        let stop = app.stop.clone();
        let event_loop = event_loop::run(
            sources,
            subscriptions,
            inventory,
            supervisor,
            observers,
            clocks,
            stop,
        );
        app.spawn("the event loop", event_loop);
        app.serve(servers);
        Ok(app)
    }

    fn serve(&mut self, servers: Vec<HttpServer>) {
        for server in servers {
            let token = self.streams_stop.clone();
            self.spawn(server.what(), server.run(token));
        }
    }

    fn new(has_election: bool) -> Self {
        Self {
            tasks: JoinSet::new(),
            showing: JoinSet::new(),
            stop: CancellationToken::new(),
            gate: if has_election {
                WriteFence::for_replica()
            } else {
                WriteFence::without_election()
            },
            election: JoinSet::new(),
            election_stop: CancellationToken::new(),
            watchdog: None,
            streams_stop: CancellationToken::new(),
        }
    }

    /// The supervisor of the actors, whose events all observers see.
    fn supervisor(
        &mut self,
        config: &Config,
        executor: Executor,
        publisher: Publisher,
        observers: &mut Observers,
        client: &kube::Client,
    ) -> anyhow::Result<Supervisor<AnyExecutor>> {
        let mut of_nodes = outputs::observers_of_nodes(config, publisher, observers);
        let traces = outputs::traces(config, observers, &mut self.showing, &self.streams_stop)?;
        observers.traces.clone_from(&traces);
        of_nodes.extend(traces.map(|traces| Box::new(traces) as Box<dyn Observer>));
        let context = ActorContext {
            executor: AnyExecutor::of(executor, config.dry_run),
            observer: Box::new(ObserverList(of_nodes)),
            policy: policy(config, client),
            clock: clocks,
        };
        Ok(Supervisor::new(context, &self.stop))
    }

    /// Asks vCenter whether it answers, so that a leader without vCenter knows where another could do better.
    fn probe(&mut self, vcenter: &Vcenter, observers: &Observers) {
        let probe = vcenter::probe(
            vcenter.clone(),
            Arc::clone(&observers.health),
            Arc::clone(&observers.metrics),
            self.streams_stop.clone(),
        );
        self.spawn("the probe of vCenter", probe);
    }

    /// Takes part in the election, where there is one.
    fn stand_for_election(
        &mut self,
        election: Option<lease::Settings>,
        login: watch::Receiver<LoginNote>,
        client: &kube::Client,
        observers: &Observers,
    ) -> anyhow::Result<watch::Receiver<ElectionStatus>> {
        let Some(settings) = election else {
            let (_, standing) = watch::channel(ElectionStatus::alone());
            return Ok(standing);
        };
        let (sender, standing) = watch::channel(ElectionStatus::default());
        let timing = settings.timing;
        // Two looks of a tenth each lie well before the earliest moment at which another may lead.
        let watchdog = watchdog::watch(self.gate.clone(), timing.renew_deadline / 10);
        self.watchdog = Some(watchdog.context("starting the watchdog's thread")?);
        let stop = self.election_stop.clone();
        let abilities = Abilities {
            can_work: observers.health.vcenter_reachable(),
            login,
        };
        let election = lease::run(
            client.clone(),
            settings,
            self.gate.clone(),
            abilities,
            sender,
            stop,
        );
        self.election.spawn(election);
        Ok(standing)
    }

    fn spawn(&mut self, what: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(async move {
            task.await;
            what
        });
    }

    /// Waits for a signal; a task that ends before one is a fault.
    async fn until_asked_to_stop(&mut self, mut terminate: Signal) -> anyhow::Result<()> {
        tokio::select! {
            biased;
            interrupted = tokio::signal::ctrl_c() => {
                interrupted.context("listening for Ctrl-C")?;
                info!("Ctrl-C: stopping");
            }
            _ = terminate.recv() => info!("SIGTERM: stopping"),
            () = kubeconfig::rotated() => {}
            Some(ended) = self.election.join_next() => {
                let what = match ended {
                    Ok(()) => "this replica leads no longer".to_owned(),
                    Err(panic) => format!("the election panicked: {panic}"),
                };
                error!("{what}; stopping, so that whoever started Haulout starts it again");
                anyhow::bail!(what);
            }
            ended = self.tasks.join_next() => {
                let what = match ended {
                    Some(Ok(what)) => format!("{what} ended without being asked"),
                    Some(Err(panic)) => format!("a task panicked: {panic}"),
                    None => "no task was started".to_owned(),
                };
                error!("{what}; stopping, so that whoever started Haulout starts it again");
                anyhow::bail!(what);
            }
        }
        Ok(())
    }

    /// Stops everything, and says if not all of it ended in time.
    async fn close(mut self) {
        self.gate.close();
        if tokio::time::timeout(FINISH_GRACE, self.gate.idle())
            .await
            .is_err()
        {
            warn!(
                "something was not answered within {FINISH_GRACE:?}; the next start looks what became of it"
            );
        }
        self.stop.cancel();
        self.streams_stop.cancel();
        let all = async {
            while self.tasks.join_next().await.is_some() {}
            while self.showing.join_next().await.is_some() {}
        };
        if tokio::time::timeout(STOP_GRACE, all).await.is_err() {
            warn!("not everything ended within {STOP_GRACE:?}; the rest is dropped");
        }
        self.election_stop.cancel();
        while self.election.join_next().await.is_some() {}
        drop(self.watchdog);
    }
}

/// The clocks that decisions are made by.
pub(crate) fn clocks() -> Now {
    Now {
        wall: clock(),
        monotonic: Monotonic::since_boot(fence::now().since_boot),
    }
}

/// The wall clock.
#[expect(
    clippy::disallowed_methods,
    reason = "this is where the clock is read; everybody else gets the time as an argument"
)]
pub(crate) fn clock() -> Timestamp {
    Timestamp::now()
}
