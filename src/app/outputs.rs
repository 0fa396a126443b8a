//! Observers of node events, traces, and HTTP servers.

use std::sync::Arc;

use anyhow::Context as _;
use jiff::Timestamp;
use opentelemetry::KeyValue;
use opentelemetry_sdk::trace::SpanExporter as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::connections::Connections;
use super::from_config::{Writes, endpoint};
use super::observers::Observers;
use crate::config::{Config, Listen};
use crate::controller::executor::Executor;
use crate::http::access::PageAccess;
use crate::http::status::{PageSettings, StatusPage};
use crate::http::{self, HttpServer};
use crate::kubernetes::events::Publisher;
use crate::kubernetes::reads::cluster_uid;
use crate::plan::planner::Planner;
use crate::status::observer::Observer;
use crate::telemetry::client::client;
use crate::telemetry::events::Events;
use crate::telemetry::link::Links;
use crate::telemetry::log::Log;
use crate::telemetry::notify::{Notifications, Webhook};
use crate::telemetry::silences::{self, LeaderAlertmanager, SilenceBoard, SilenceRules};
use crate::telemetry::sink;
use crate::telemetry::trace::{self, Traces};
use crate::telemetry::vcenter_attribute::{self, AttributeBoard, LeaderAttribute, VcenterAttribute};
use crate::telemetry::vcenter_events::{LeaderLog, VcenterEvents};

/// The status page, if it is served.
pub(super) fn status_page(
    config: &Config,
    observers: &Observers,
    connections: &Connections,
    vcenter: String,
) -> Option<Arc<StatusPage>> {
    if config.status_page.status_address == Listen::Off {
        return None;
    }
    let about = PageSettings {
        is_dry_run: config.dry_run,
        cluster: connections.address.clone(),
        vcenter,
        links: links(config),
    };
    Some(Arc::new(StatusPage::new(
        about,
        observers.objects.clone(),
        connections.clocks.wall,
    )))
}

/// Binds the configured ports.
pub(super) async fn servers(
    config: &Config,
    observers: &Observers,
    planner: Arc<Planner>,
) -> anyhow::Result<Vec<HttpServer>> {
    let mut servers = Vec::new();
    if let Listen::At(address) = config.metrics_address {
        let metrics = Arc::clone(&observers.metrics);
        servers.push(http::metrics("METRICS_ADDRESS", address, metrics).await?);
    }
    if let Listen::At(address) = config.health_address {
        let health = Arc::clone(&observers.health);
        servers.push(http::health("HEALTH_ADDRESS", address, health).await?);
    }
    if let (Listen::At(address), Some(status)) = (config.status_page.status_address, &observers.status) {
        let status = Arc::clone(status);
        let settings = &config.status_page;
        let access = PageAccess {
            names: settings.status_hosts.clone().unwrap_or_default().0,
            token_file: settings.status_token_file.clone(),
        };
        servers.push(http::status::server("STATUS_ADDRESS", address, status, planner, access).await?);
    }
    Ok(servers)
}

fn links(config: &Config) -> Links {
    Links::new(config.trace_ui_url_template.clone())
}

/// The observers of node events.
pub(super) fn observers_of_nodes(
    config: &Config,
    publisher: Publisher,
    observers: &mut Observers,
    clock: fn() -> Timestamp,
) -> Vec<Box<dyn Observer>> {
    let mut list: Vec<Box<dyn Observer>> = vec![
        Box::new(Log::new(links(config))),
        Box::new(Arc::clone(&observers.metrics)),
    ];
    if let Some(objects) = &observers.objects {
        list.push(Box::new(Arc::clone(objects)));
    }
    if let Some(status) = &observers.status {
        list.push(Box::new(Arc::clone(status)));
    }
    if Writes::by(config).events {
        let events = Arc::new(Events::new(publisher, links(config), clock));
        observers.events = Some(Arc::clone(&events));
        list.push(Box::new(events));
    }
    list
}

/// The observer that logs events in vCenter, if it is configured.
pub(super) fn vcenter_events(
    config: &Config,
    executor: &Executor,
    observers: &Observers,
    tasks: &mut JoinSet<()>,
    (stop, clock): (&CancellationToken, fn() -> Timestamp),
) -> Option<VcenterEvents> {
    if !Writes::by(config).vcenter_events {
        return None;
    }
    let log = LeaderLog {
        vcenter: executor.vcenter.clone(),
        fence: executor.fence.clone(),
    };
    let events = VcenterEvents::new(links(config), clock);
    let (outbox, stop) = (events.outbox(), stop.clone());
    let lost = observers.metrics.vcenter_events_lost();
    tasks.spawn(async move { sink::run(&log, outbox, lost, stop).await });
    Some(events)
}

/// The observer that sets the custom attribute in vCenter, if it is configured.
pub(super) fn vcenter_attribute(
    config: &Config,
    executor: &Executor,
    observers: &mut Observers,
    tasks: &mut JoinSet<()>,
    (stop, clock): (&CancellationToken, fn() -> Timestamp),
) -> Option<VcenterAttribute> {
    if !Writes::by(config).vcenter_attribute {
        return None;
    }
    let board = AttributeBoard::default();
    let port = LeaderAttribute::new(executor.vcenter.clone(), executor.fence.clone());
    tasks.spawn(vcenter_attribute::run(port, board.clone(), stop.clone()));
    observers.attribute = Some(board.clone());
    Some(VcenterAttribute::new(board, clock))
}

/// The observer that sends notifications, if a receiver is configured.
pub(super) fn notifications(
    config: &Config,
    release: &str,
    observers: &Observers,
    tasks: &mut JoinSet<()>,
    (stop, clock): (&CancellationToken, fn() -> Timestamp),
) -> anyhow::Result<Option<Notifications>> {
    let Some(url_file) = config.notify_url_file.clone().filter(|_| !config.dry_run) else {
        return Ok(None);
    };
    let client = client().context("preparing the connection for notifications")?;
    let webhook = Webhook { client, url_file };
    let notifications = Notifications::new(release, links(config), clock);
    let (outbox, stop) = (notifications.outbox(), stop.clone());
    let lost = observers.metrics.notifications_lost();
    tasks.spawn(async move { sink::run(&webhook, outbox, lost, stop).await });
    Ok(Some(notifications))
}

/// Starts setting silences in an Alertmanager, if one is configured.
pub(super) fn silences(
    config: &Config,
    release: &str,
    executor: &Executor,
    observers: &mut Observers,
    tasks: &mut JoinSet<()>,
    (stop, clock): (&CancellationToken, fn() -> Timestamp),
) -> anyhow::Result<()> {
    let settings = &config.alertmanager;
    let Some(url_file) = settings.alertmanager_url_file.clone().filter(|_| !config.dry_run) else {
        return Ok(());
    };
    let api = LeaderAlertmanager {
        client: client().context("preparing the connection to Alertmanager")?,
        url_file,
        fence: executor.fence.clone(),
    };
    let rules = SilenceRules {
        created_by: format!("Haulout {release}"),
        node_label: settings.silence_node_label.clone(),
        matchers: settings.silence_matchers.clone().unwrap_or_default().0,
        lasts: config.timings().silence,
    };
    let board = SilenceBoard::default();
    let failed = observers.metrics.silence_requests_failed();
    tasks.spawn(silences::run(
        api,
        rules,
        board.clone(),
        clock,
        failed,
        stop.clone(),
    ));
    observers.silences = Some(board);
    Ok(())
}

/// The observer that sends traces, if a collector is configured.
pub(super) fn traces(
    config: &Config,
    client: &kube::Client,
    observers: &Observers,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> anyhow::Result<Option<Arc<Traces>>> {
    if !Writes::by(config).traces {
        return Ok(None);
    }
    let endpoint = endpoint(config)?;
    let exporter = trace::export::exporter(|name| std::env::var(name).ok())?;
    Ok(exporter.map(|mut exporter| {
        let (sender, queue) = mpsc::channel(trace::QUEUE);
        let lost = observers.metrics.trace_spans_lost();
        let (client, counter, stop) = (client.clone(), lost.clone(), stop.clone());
        tasks.spawn(async move {
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
        let vcenter = endpoint.host().to_owned();
        Arc::new(Traces::new(sender, lost, vcenter))
    }))
}
