//! Builds everything, wires it, and owns the task tree.
//!
//! ```text
//!  run ─┬─ vcenter::follow ─────────▶ updates ─┐  (while this replica leads)
//!       ├─ cluster::watch::run ────▶ updates ─┼─▶ hub::run ──▶ Supervisor ──▶ one NodeActor per node ──▶ Executor
//!       ├─ cluster::events::run ◀─── Events ◀── what actors tell
//!       ├─ cluster::lease::run ───▶ standing ─┤      │ opens and shuts the gate before Executor
//!       ├─ cluster::watch::budgets ▶ updates ─┤      │
//!       ├─ cluster::watch::pods ───▶ updates ─┤      ▲                                                     │
//!       ├─ cluster::watch::followed, scan ────▶ updates (Nodes that the selector does not match)           │
//!       │                                     └──────┴─────────────────── findings ◀───────────────────────┘
//!       ├─ admin::Server::run ◀── metrics, health and status page, which look on at the hub
//!       └─ SIGTERM, Ctrl-C ──▶ stop: the gate, the hub and its actors, then the streams, which log out, then the Lease
//! ```

mod event_loop;
mod kubeconfig;
mod observers;
mod vcenter;

use std::collections::BTreeSet;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::actor::node::ActorContext;
use crate::actor::observer::Observer;
use crate::actor::supervisor::Supervisor;
use crate::admin::status::{About, StatusPage};
use crate::admin::{self, HttpServer};
use crate::cluster;
use crate::cluster::drain::{DrainSettings, OwnPod};
use crate::cluster::events::Publisher;
use crate::cluster::facts::GpuResources;
use crate::cluster::lease::election::{Timing, YIELD_AFTER};
use crate::cluster::lease::{self, Abilities, ElectionStatus, LoginNote};
use crate::cluster::watch::Selection;
use crate::config::{Config, Credential, LeaderElection, Listen, without_password};
use crate::executor::{AnyExecutor, Executor};
use crate::fence::watchdog::{self, Watchdog};
use crate::fence::{self, WriteFence};
use crate::inventory::{Inventory, Rules};
use crate::keys::Keys;
use crate::maintenance::clock::{Monotonic, Now};
use crate::maintenance::policy::{Policy, Releases};
use crate::nodemaintenance::{self, objects::StatusReconciler};
use crate::telemetry::ObserverList;
use crate::telemetry::events::Events;
use crate::telemetry::link::Links;
use crate::telemetry::log::{Level, Log};
use crate::telemetry::trace::{self, Traces};
use crate::vsphere;
use crate::vsphere::client::{CredentialSource, Endpoint, Trust, Vcenter};
use observers::Observers;

/// How many facts may wait for the hub. An initial set comes in thousands; the streams then wait for the hub, which is
/// right, since nothing may be decided on half a set anyway.
const FACTS: usize = 1024;

/// The first wait after a refusal. A second is the pace at which vCenter's own state settles.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// The API's own limit for who reports an Event. Names of pods and machines are ASCII.
const INSTANCE_CHARS_MAX: usize = 128;

/// How long what has passed the gate gets to be finished at the stop. It is answered within milliseconds, or the Lease
/// is not released.
const FINISH_GRACE: Duration = Duration::from_secs(1);

/// How long the streams get to log out and end. Kubernetes sends SIGKILL after 30 s; with the grace before it and the
/// release of the Lease after it, all is over within 5 s.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// Why the controller cannot start as configured: exit code 2, like every wrong value.
#[derive(Debug, thiserror::Error)]
#[error("{name}={value:?}: {why}")]
pub struct Misconfigured {
    name: &'static str,
    value: String,
    why: String,
}

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
    let worlds = Clients::prepare(&config).await?;
    if config.dry_run {
        warn!("dry run: every decision is made and logged, and nothing is changed anywhere");
    }
    let mut house = App::open(&config, worlds).await?;
    if level.can_change() {
        let stop = house.streams_stop.clone();
        house.spawn("the look at the log level", level.follow(stop));
    }
    let outcome = house.until_asked_to_stop(terminate).await;
    house.close().await;
    info!("stopped; every episode stands on its Node and goes on at the next start");
    outcome
}

/// The ways to both worlds. Making them sends nothing, so what is wrong with the configuration shows before anything is
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
    onlookers: Observers,
}

/// Everything that runs.
struct App {
    /// None of them ends before it is asked to.
    tasks: JoinSet<&'static str>,
    /// They end when nobody is left who tells, and bring nothing down with them.
    showing: JoinSet<()>,
    /// Ends the hub and its actors.
    stop: CancellationToken,
    /// What every record and every effect passes.
    gate: WriteFence,
    /// The election, which outlives all others: the next leader begins where it ends.
    election: JoinSet<()>,
    election_stop: CancellationToken,
    /// Ends the process where nobody else can.
    watchdog: Option<Watchdog>,
    /// Ends everything else. The streams outlive the hub, so that an orderly end still has somebody to tell that it ends.
    streams_stop: CancellationToken,
}

impl Clients {
    async fn prepare(config: &Config) -> anyhow::Result<Self> {
        let writes = Writes::by(config);
        let lease = writes.lease.then(|| config.leadership.lease_name.clone());
        let mut onlookers = Observers::of(lease);
        if writes.objects {
            let trace_url = config.trace_ui_url_template.clone();
            let objects = StatusReconciler::new(
                config.gpu_node_label.clone(),
                trace_url,
                config.node_maintenance_history,
                clock,
            );
            onlookers.objects = Some(Arc::new(objects));
        }
        if config.status_address != Listen::Off {
            let about = About {
                is_dry_run: config.dry_run,
                links: Links::new(config),
            };
            let status = StatusPage::new(about, onlookers.objects.clone(), clock);
            onlookers.status = Some(Arc::new(status));
        }
        let gpu_resources = GpuResources::parse(&config.gpu_resources)
            .map_err(|error| misconfigured("GPU_RESOURCES", &config.gpu_resources, &error))?;
        let settings = vcenter_settings(config)?;
        let client = cluster::client::connect()
            .await
            .context("preparing the connection to Kubernetes")?;
        let election = writes.lease.then(|| election(config, &client));
        let (login_sender, login) = watch::channel(LoginNote::default());
        let settings = vsphere::client::Settings {
            on_answer: onlookers.on_answer(clock),
            instance: instance(),
            on_login: vcenter::on_login(login_sender, clock),
            ..settings
        };
        onlookers.metrics.name_vcenter(&settings.endpoint.name());
        let vcenter = Vcenter::new(settings).context("preparing the connection to vCenter")?;
        let keys = Keys::under(&config.annotation_prefix);
        Ok(Self {
            vcenter,
            client,
            election,
            login,
            keys,
            gpu_resources,
            onlookers,
        })
    }
}

impl App {
    /// Wires everything and sets it going.
    async fn open(config: &Config, worlds: Clients) -> anyhow::Result<Self> {
        let servers = servers(config, &worlds.onlookers).await?;
        let mut house = Self {
            tasks: JoinSet::new(),
            showing: JoinSet::new(),
            stop: CancellationToken::new(),
            gate: if worlds.election.is_some() {
                WriteFence::of_a_replica()
            } else {
                WriteFence::without_election()
            },
            election: JoinSet::new(),
            election_stop: CancellationToken::new(),
            watchdog: None,
            streams_stop: CancellationToken::new(),
        };
        let (vsphere_sender, vsphere_updates) = mpsc::channel(FACTS);
        let (cluster_sender, cluster_updates) = mpsc::channel(FACTS);
        let (findings_sender, findings) = mpsc::channel(FACTS);
        let (roster_sender, roster) = watch::channel(vsphere::update::WatchSet::default());
        let (draining_sender, draining) = watch::channel(BTreeSet::new());
        let (holding_sender, holding) = watch::channel(BTreeSet::new());
        let (followed_sender, followed) = watch::channel(BTreeSet::new());

        let Clients {
            vcenter,
            client,
            election,
            login,
            keys,
            gpu_resources,
            onlookers,
        } = worlds;
        if election.is_some() {
            house.probe(&vcenter, &onlookers);
        }
        let standing = house.stand_for_election(election, login, &client, &onlookers)?;
        let (publisher, to_publish) = cluster::events::queue(onlookers.on_event_dropped());
        let executor = Executor {
            gate: house.gate.clone(),
            vcenter: vcenter.clone(),
            client: client.clone(),
            keys: keys.clone(),
            gpu_resources: gpu_resources.clone(),
            drain: DrainSettings {
                own_pod: OwnPod::from_environment(),
                ..DrainSettings::default()
            },
            events: publisher.clone(),
            on_evictions: onlookers.on_evictions(),
            findings: findings_sender,
            nodes: cluster_sender.clone(),
        };
        let mut listeners = listeners(config, publisher, &onlookers);
        let traces = traces(config, &onlookers, &mut house.showing, &house.streams_stop)?;
        let mut onlookers = onlookers;
        onlookers.traces.clone_from(&traces);
        listeners.extend(traces.map(|traces| Box::new(traces) as Box<dyn Observer>));
        let tell = Box::new(ObserverList(listeners));
        let shared = ActorContext {
            perform: AnyExecutor::of(executor, config.dry_run),
            tell,
            policy: policy(config, &client),
            clock: clocks,
        };
        let supervisor = Supervisor::new(shared, &house.stop);
        let inventory = Inventory::new(rules(config, &client), clock());
        let inbox = event_loop::EventSources {
            vsphere: vsphere_updates,
            cluster: cluster_updates,
            findings,
            standing: standing.clone(),
        };
        let interest = event_loop::Subscriptions {
            roster: roster_sender,
            draining: draining_sender,
            holding: holding_sender,
            followed: followed_sender,
        };
        let selection = Selection {
            selector: config.gpu_node_label.clone(),
            keys,
            gpu_resources,
        };
        let watching = cluster::watch::Settings {
            backoff_max: config.retry_max.max(RETRY_MIN),
            ..cluster::watch::Settings::default()
        };

        let stop = house.streams_stop.clone();
        let token = || stop.clone();
        let (client_of_objects, objects_sender) = (client.clone(), cluster_sender.clone());
        let watching_objects = watching.clone();
        let vsphere = vcenter::follow(vcenter, standing.clone(), clock, roster, vsphere_sender, token());
        let nodes = cluster::watch::run(
            client.clone(),
            selection.clone(),
            watching.clone(),
            cluster_sender.clone(),
            token(),
        );
        let scan = cluster::watch::scan::run(
            client.clone(),
            selection.clone(),
            standing,
            watching.clone(),
            cluster_sender.clone(),
            token(),
        );
        let followed = cluster::watch::followed::run(
            client.clone(),
            followed,
            selection,
            watching.clone(),
            cluster_sender.clone(),
            token(),
        );
        let pods = cluster::watch::pods::run(
            client.clone(),
            draining,
            watching.clone(),
            cluster_sender.clone(),
            token(),
        );
        let budgets =
            cluster::watch::budgets::run(client.clone(), holding, watching, cluster_sender, token());
        let events = cluster::events::run(client, instance(), to_publish, token());
        if config.node_maintenances {
            let (client, out) = (client_of_objects.clone(), objects_sender.clone());
            let watch = nodemaintenance::watch::run(
                client,
                config.gpu_node_label.clone(),
                watching_objects,
                out,
                token(),
            );
            house.spawn("the watch of NodeMaintenances", watch);
        }
        if let Some(objects) = &onlookers.objects {
            let metrics = Arc::clone(&onlookers.metrics);
            let writing = nodemaintenance::writer::run(
                client_of_objects,
                house.gate.clone(),
                Arc::clone(objects),
                move |count| metrics.node_maintenance_writes_refused(count),
                objects_sender,
                token(),
            );
            house.spawn("the writer of NodeMaintenances", writing);
        }
        let hub = event_loop::run(
            inbox,
            interest,
            inventory,
            supervisor,
            onlookers,
            clocks,
            house.stop.clone(),
        );
        house.spawn("the stream of vCenter", vsphere);
        house.spawn("the watch of Nodes", nodes);
        house.spawn("the watch of followed Nodes", followed);
        house.spawn("the look through all Nodes", scan);
        house.spawn("the watch of pods", pods);
        house.spawn("the watch of budgets", budgets);
        house.spawn("the publisher of Events", events);
        house.spawn("the hub", hub);
        for server in servers {
            let token = house.streams_stop.clone();
            house.spawn(server.what(), server.run(token));
        }
        Ok(house)
    }

    /// Asks vCenter whether it answers, so that a leader without vCenter knows where another could do better.
    fn probe(&mut self, vcenter: &Vcenter, onlookers: &Observers) {
        let probe = vcenter::probe(
            vcenter.clone(),
            Arc::clone(&onlookers.health),
            Arc::clone(&onlookers.metrics),
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
        onlookers: &Observers,
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
            can_work: onlookers.health.reaches_vcenter(),
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

/// Takes the ports that are configured. One that cannot be had ends the program here, before it has touched anything.
async fn servers(config: &Config, onlookers: &Observers) -> anyhow::Result<Vec<HttpServer>> {
    let mut servers = Vec::new();
    if let Listen::At(address) = config.metrics_address {
        let metrics = Arc::clone(&onlookers.metrics);
        servers.push(admin::metrics("METRICS_ADDRESS", address, metrics).await?);
    }
    if let Listen::At(address) = config.health_address {
        let health = Arc::clone(&onlookers.health);
        servers.push(admin::health("HEALTH_ADDRESS", address, health).await?);
    }
    if let (Listen::At(address), Some(status)) = (config.status_address, &onlookers.status) {
        let status = Arc::clone(status);
        servers.push(admin::status::server("STATUS_ADDRESS", address, status).await?);
    }
    Ok(servers)
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

fn misconfigured(name: &'static str, value: &str, why: &dyn std::fmt::Display) -> Misconfigured {
    Misconfigured {
        name,
        value: value.to_owned(),
        why: why.to_string(),
    }
}

pub(crate) fn vcenter_settings(config: &Config) -> Result<vsphere::client::Settings, Misconfigured> {
    let endpoint = endpoint(config)?;
    let trust = match (&config.vcenter_ca_bundle, config.verifies_tls()) {
        // A CA that is written down is used even where verification is switched off beside it, as the Python
        // controller does.
        (Some(bundle), _) => Trust::CaBundle(bundle.clone()),
        (None, true) => Trust::SystemRoots,
        (None, false) => Trust::Nothing,
    };
    Ok(vsphere::client::Settings {
        call_deadline: config.vcenter_call_timeout,
        long_poll: config.vcenter_long_poll,
        reread_every: config.poll_interval,
        retry_min: RETRY_MIN.min(config.retry_max),
        retry_max: config.retry_max,
        ..vsphere::client::Settings::new(endpoint, credentials(config), trust)
    })
}

fn endpoint(config: &Config) -> Result<Endpoint, Misconfigured> {
    Endpoint::parse(&config.vcenter_host)
        .map_err(|error| misconfigured("VCENTER_HOST", &without_password(&config.vcenter_host), &error))
}

fn policy(config: &Config, client: &kube::Client) -> Policy {
    Policy {
        drain_timeout: config.drain_timeout,
        drain_timeout_action: config.drain_timeout_action,
        eviction_retry: config.eviction_retry,
        guest_shutdown_timeout: config.guest_shutdown_timeout,
        relocate_timeout: config.relocate_timeout,
        power_on_timeout: config.power_on_timeout,
        power_off_timeout: config.power_off_timeout,
        survey_every: config.poll_interval,
        node_monitor_grace: config.node_monitor_grace,
        maintenance_retry_grace: config.maintenance_retry_grace,
        unanswered_for: config.vcenter_call_timeout + config.poll_interval * 2,
        releases: releases(config, client),
        require_approval: config.require_approval,
        retry_min: RETRY_MIN.min(config.retry_max),
        retry_max: config.retry_max,
    }
}

fn releases(config: &Config, client: &kube::Client) -> Releases {
    let leadership = &config.leadership;
    let of_lease = || format!("{}/{}", lease_namespace(config, client), leadership.lease_name);
    Releases {
        own: leadership.release.clone().unwrap_or_else(of_lease).into(),
        adopted: Arc::new(leadership.adopted()),
    }
}

pub(crate) fn rules(config: &Config, client: &kube::Client) -> Rules {
    Rules {
        releases: releases(config, client),
        concurrent_drains: config.max_concurrent_drains,
        unavailable: config.max_unavailable,
        bind_by_name: config.bind_by_name,
        require_approval: config.require_approval,
        node_maintenances: config.node_maintenances,
        drain_slot: config.drain_slot,
    }
}

/// What is written beside effects and records. In a dry run nothing is: nothing happens that it could be about.
struct Writes {
    lease: bool,
    objects: bool,
    events: bool,
    traces: bool,
}

impl Writes {
    fn by(config: &Config) -> Self {
        let is_live = !config.dry_run;
        Self {
            lease: is_live && is_one_of_several(config),
            objects: is_live && config.node_maintenances,
            events: is_live,
            traces: is_live,
        }
    }
}

/// Who listens to what actors tell.
fn listeners(config: &Config, publisher: Publisher, onlookers: &Observers) -> Vec<Box<dyn Observer>> {
    let mut listeners: Vec<Box<dyn Observer>> = vec![
        Box::new(Log::new(config)),
        Box::new(Arc::clone(&onlookers.metrics)),
    ];
    if let Some(objects) = &onlookers.objects {
        listeners.push(Box::new(Arc::clone(objects)));
    }
    if let Some(status) = &onlookers.status {
        listeners.push(Box::new(Arc::clone(status)));
    }
    if Writes::by(config).events {
        listeners.push(Box::new(Events::new(
            publisher,
            config.node_conditions,
            Links::new(config),
            clock,
        )));
    }
    listeners
}

/// Whether replicas take turns.
fn is_one_of_several(config: &Config) -> bool {
    match config.leadership.election {
        LeaderElection::On => true,
        LeaderElection::Off => false,
        LeaderElection::Auto => {
            std::env::var_os("KUBERNETES_SERVICE_HOST").is_some_and(|host| !host.is_empty())
        }
    }
}

/// Which Lease replicas take turns by, and how.
fn election(config: &Config, client: &kube::Client) -> lease::Settings {
    let leadership = &config.leadership;
    lease::Settings {
        namespace: lease_namespace(config, client),
        name: leadership.lease_name.clone(),
        identity: identity(),
        timing: Timing {
            lease: leadership.lease_duration,
            renew_deadline: leadership.renew_deadline,
            retry: leadership.retry_period,
            yield_after: YIELD_AFTER,
        },
        clock,
    }
}

fn lease_namespace(config: &Config, client: &kube::Client) -> String {
    let configured = config.leadership.lease_namespace.clone();
    configured.unwrap_or_else(|| client.default_namespace().to_owned())
}

/// Who we are in the Lease: the instance, and something that no other process has. A container that is restarted in its
/// pod is another process under the same name, and must not take what it finds for its own.
fn identity() -> String {
    let process = std::hash::RandomState::new().hash_one(std::process::id());
    format!("{}_{process:016x}", instance())
}

/// Who we are among several of us, in Events: the pod, or else the machine.
fn instance() -> String {
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let read = |name| std::env::var(name).ok();
    [read("POD_NAME"), read("HOSTNAME"), host()]
        .into_iter()
        .flatten()
        .map(|name| name.trim().chars().take(INSTANCE_CHARS_MAX).collect::<String>())
        .find(|name| !name.is_empty())
        .unwrap_or_else(|| "haulout".to_owned())
}

/// Turns what actors tell into traces, where the environment names a collector.
fn traces(
    config: &Config,
    onlookers: &Observers,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> anyhow::Result<Option<Arc<Traces>>> {
    if !Writes::by(config).traces {
        return Ok(None);
    }
    let endpoint = endpoint(config)?;
    let exporter = trace::export::exporter(|name| std::env::var(name).ok())
        .map_err(|wrong| misconfigured(wrong.name, &wrong.value, &wrong.why))?;
    Ok(exporter.map(|exporter| {
        let (sender, queue) = mpsc::channel(trace::QUEUE);
        let lost = onlookers.metrics.trace_spans_lost();
        let run = trace::export::run(exporter, queue, lost.clone(), stop.clone());
        tasks.spawn(run);
        let vcenter = endpoint.host().to_owned();
        Arc::new(Traces::new(sender, lost, vcenter))
    }))
}

fn credentials(config: &Config) -> CredentialSource {
    let part = |credential| match credential {
        Credential::Value(value) => vsphere::client::CredentialPart::Given(value),
        Credential::File(path) => vsphere::client::CredentialPart::File(path),
    };
    CredentialSource {
        user: part(config.vcenter_user()),
        password: part(config.vcenter_password()),
    }
}
