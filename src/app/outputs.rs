//! All that is shown or told: each output is an observer, some with a task that delivers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use opentelemetry::KeyValue;
use opentelemetry_sdk::trace::SpanExporter as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::connections::Connections;
use super::from_config::endpoint;
use super::notices::Notices;
use super::writes::Writes;
use crate::config::{Config, Listen};
use crate::controller::board::NodeBoard;
use crate::controller::executor::{Executor, OnEvictions};
use crate::controller::observer::{Observer, Observers};
use crate::http::access::PageAccess;
use crate::http::health::Health;
use crate::http::status::{PageSettings, StatusPage};
use crate::http::{self, HttpServer};
use crate::kubernetes::events::Publisher;
use crate::kubernetes::reads::cluster_uid;
use crate::nodemaintenance::objects::StatusReconciler;
use crate::plan::planner::Planner;
use crate::telemetry::client::client;
use crate::telemetry::events::Events;
use crate::telemetry::link::Links;
use crate::telemetry::log::Log;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::notify::{Notifications, Webhook};
use crate::telemetry::silences::{self, LeaderAlertmanager, SilenceBoard, SilenceRules};
use crate::telemetry::sink;
use crate::telemetry::trace::{self, Traces};
use crate::telemetry::vcenter_attribute::{self, AttributeBoard, LeaderAttribute};
use crate::telemetry::vcenter_events::{LeaderLog, VcenterEvents};
use crate::vsphere::client::{CallOutcome, Callback};

/// The method of the long poll.
const LONG_POLL: &str = "WaitForUpdatesEx";

/// The outputs. Those that other parts use have a name.
pub(super) struct Outputs {
    pub(super) metrics: Arc<Metrics>,
    pub(super) health: Arc<Health>,
    /// `None` in a dry run.
    pub(super) objects: Option<Arc<StatusReconciler>>,
    page: Option<Arc<StatusPage>>,
    observers: Vec<Arc<dyn Observer>>,
}

/// With what outputs are started.
pub(super) struct OutputContext<'a> {
    pub(super) config: &'a Config,
    pub(super) release: &'a str,
    pub(super) executor: &'a Executor,
    pub(super) publisher: Publisher,
    pub(super) clock: fn() -> Timestamp,
    pub(super) tasks: &'a mut JoinSet<()>,
    pub(super) stop: &'a CancellationToken,
}

impl Outputs {
    /// The outputs that need no client: metrics, health, log, objects and page.
    pub(super) fn new(config: &Config, connections: &Connections, vcenter: &str) -> Self {
        let metrics = Arc::new(Metrics::default());
        metrics.set_vcenter_name(vcenter);
        let health = Arc::new(Health::default());
        let clock = connections.clocks.wall;
        let board = NodeBoard::new(clock);
        let mut outputs = Self {
            // The board is first: what follows reads it.
            observers: vec![
                Arc::new(board.clone()),
                Arc::<Health>::clone(&health),
                Arc::new(Notices::default()),
                Arc::new(Log::new(links(config))),
                Arc::<Metrics>::clone(&metrics),
            ],
            metrics,
            health,
            objects: None,
            page: None,
        };
        if Writes::by(config).objects {
            outputs.objects = Some(outputs.add(StatusReconciler::new(
                config.gpu_node_label.clone(),
                config.trace_ui_url_template.clone(),
                config.node_maintenance_history,
                board.clone(),
                clock,
            )));
        }
        if config.status_page.status_address != Listen::Off {
            let settings = PageSettings {
                is_dry_run: config.dry_run,
                cluster: connections.address.clone(),
                vcenter: vcenter.to_owned(),
                links: links(config),
            };
            let objects = outputs.objects.clone();
            outputs.page = Some(outputs.add(StatusPage::new(settings, objects, board, clock)));
        }
        outputs
    }

    /// Starts the other outputs that are configured.
    pub(super) fn start(&mut self, mut with: OutputContext<'_>) -> anyhow::Result<()> {
        self.start_events(&with);
        self.start_vcenter_events(&mut with);
        self.start_vcenter_attribute(&mut with);
        self.start_notifications(&mut with)?;
        self.start_silences(&mut with)?;
        self.start_traces(&mut with)
    }

    /// All outputs, in the order in which they were added.
    pub(super) fn observers(&self) -> Observers {
        self.observers.iter().cloned().collect()
    }

    fn add<O: Observer>(&mut self, observer: O) -> Arc<O> {
        let observer = Arc::new(observer);
        self.observers.push(Arc::<O>::clone(&observer));
        observer
    }

    /// Binds the configured ports.
    pub(super) async fn servers(
        &self,
        config: &Config,
        planner: Arc<Planner>,
    ) -> anyhow::Result<Vec<HttpServer>> {
        let mut servers = Vec::new();
        if let Listen::At(address) = config.metrics_address {
            let metrics = Arc::clone(&self.metrics);
            servers.push(http::metrics("METRICS_ADDRESS", address, metrics).await?);
        }
        if let Listen::At(address) = config.health_address {
            let health = Arc::clone(&self.health);
            servers.push(http::health("HEALTH_ADDRESS", address, health).await?);
        }
        if let (Listen::At(address), Some(page)) = (config.status_page.status_address, &self.page) {
            let page = Arc::clone(page);
            let settings = &config.status_page;
            let access = PageAccess {
                names: settings.status_hosts.clone().unwrap_or_default().0,
                token_file: settings.status_token_file.clone(),
            };
            servers.push(http::status::server("STATUS_ADDRESS", address, page, planner, access).await?);
        }
        Ok(servers)
    }

    /// Counts calls to vCenter.
    pub(super) fn on_answer(
        &self,
        clock: fn() -> Timestamp,
    ) -> Callback<(&'static str, CallOutcome, Duration)> {
        let (metrics, page) = (Arc::clone(&self.metrics), self.page.clone());
        Callback::new(move |(method, outcome, took)| {
            let code = match outcome {
                CallOutcome::Returned => "ok",
                CallOutcome::Fault => "fault",
                CallOutcome::Nothing => "no_answer",
                CallOutcome::Unreadable => "unreadable",
            };
            metrics.vcenter_called(method, code, took);
            if method == LONG_POLL && outcome == CallOutcome::Returned {
                metrics.vcenter_answered(clock());
                if let Some(page) = &page {
                    page.vcenter_answered();
                }
            }
        })
    }

    /// Counts evictions.
    pub(super) fn on_evictions(&self) -> OnEvictions {
        let metrics = Arc::clone(&self.metrics);
        Box::new(move |code, count| metrics.evictions(code, count))
    }

    /// Counts Events that are dropped.
    pub(super) fn on_event_dropped(&self) -> impl Fn() + Send + Sync + 'static {
        let metrics = Arc::clone(&self.metrics);
        move || metrics.event_dropped()
    }

    fn start_events(&mut self, with: &OutputContext<'_>) {
        if Writes::by(with.config).events {
            self.add(Events::new(
                with.publisher.clone(),
                links(with.config),
                with.clock,
            ));
        }
    }

    fn start_vcenter_events(&mut self, with: &mut OutputContext<'_>) {
        if !Writes::by(with.config).vcenter_events {
            return;
        }
        let log = LeaderLog {
            vcenter: with.executor.vcenter.clone(),
            fence: with.executor.fence.clone(),
        };
        let events = self.add(VcenterEvents::new(links(with.config)));
        let (outbox, stop) = (events.outbox(), with.stop.clone());
        let lost = self.metrics.vcenter_events_lost();
        with.tasks
            .spawn(async move { sink::run(&log, outbox, lost, stop).await });
    }

    fn start_vcenter_attribute(&mut self, with: &mut OutputContext<'_>) {
        if !Writes::by(with.config).vcenter_attribute {
            return;
        }
        let board = AttributeBoard::default();
        let port = LeaderAttribute::new(with.executor.vcenter.clone(), with.executor.fence.clone());
        with.tasks
            .spawn(vcenter_attribute::run(port, board.clone(), with.stop.clone()));
        self.add(board);
    }

    fn start_notifications(&mut self, with: &mut OutputContext<'_>) -> anyhow::Result<()> {
        let config = with.config;
        let Some(url_file) = config.notify_url_file.clone().filter(|_| !config.dry_run) else {
            return Ok(());
        };
        let client = client().context("preparing the connection for notifications")?;
        let webhook = Webhook { client, url_file };
        let notifications = self.add(Notifications::new(with.release, links(config), with.clock));
        let (outbox, stop) = (notifications.outbox(), with.stop.clone());
        let lost = self.metrics.notifications_lost();
        with.tasks
            .spawn(async move { sink::run(&webhook, outbox, lost, stop).await });
        Ok(())
    }

    fn start_silences(&mut self, with: &mut OutputContext<'_>) -> anyhow::Result<()> {
        let settings = &with.config.alertmanager;
        let url_file = settings.alertmanager_url_file.clone();
        let Some(url_file) = url_file.filter(|_| !with.config.dry_run) else {
            return Ok(());
        };
        let api = LeaderAlertmanager {
            client: client().context("preparing the connection to Alertmanager")?,
            url_file,
            fence: with.executor.fence.clone(),
        };
        let rules = SilenceRules {
            created_by: format!("Haulout {}", with.release),
            node_label: settings.silence_node_label.clone(),
            matchers: settings.silence_matchers.clone().unwrap_or_default().0,
            lasts: with.config.timings().silence,
        };
        let board = SilenceBoard::default();
        let failed = self.metrics.silence_requests_failed();
        with.tasks.spawn(silences::run(
            api,
            rules,
            board.clone(),
            with.clock,
            failed,
            with.stop.clone(),
        ));
        self.add(board);
        Ok(())
    }

    fn start_traces(&mut self, with: &mut OutputContext<'_>) -> anyhow::Result<()> {
        if !Writes::by(with.config).traces {
            return Ok(());
        }
        let endpoint = endpoint(with.config)?;
        let Some(mut exporter) = trace::export::exporter(|name| std::env::var(name).ok())? else {
            return Ok(());
        };
        let (sender, queue) = mpsc::channel(trace::QUEUE);
        let lost = self.metrics.trace_spans_lost();
        let (client, counter, stop) = (with.executor.client.clone(), lost.clone(), with.stop.clone());
        with.tasks.spawn(async move {
            let detected = trace::export::detected(|name| std::env::var(name).ok());
            // Spans are queued meanwhile.
            let uid = tokio::select! {
                biased;
                () = stop.cancelled() => None,
                uid = cluster_uid(client) => uid,
            };
            let uid = uid.map(|uid| KeyValue::new("k8s.cluster.uid", uid));
            exporter.set_resource(&trace::export::resource(detected.into_iter().chain(uid)));
            trace::export::run(exporter, queue, counter, stop).await;
        });
        self.add(Traces::new(sender, lost, endpoint.host().to_owned()));
        Ok(())
    }
}

fn links(config: &Config) -> Links {
    Links::new(config.trace_ui_url_template.clone())
}
