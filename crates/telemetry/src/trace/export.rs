//! Exports spans by OTLP, configured by the standard `OTEL_*` variables.
//!
//! A batch is sent once: retries to a failing collector would only delay later batches. A failed batch
//! is dropped, counted, and logged.

mod settings;

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{Event, Link, SpanContext, SpanId, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, Key, KeyValue};
use opentelemetry_otlp::tonic_types::metadata::MetadataMap;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as Export, SpanLinks};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::catalogue::unknown;
use super::spans::{Span, SpanEvent};
use crate::misconfigured::Misconfigured;
use settings::{OtlpProtocol, OtlpSettings};

/// Spans per request: some ten kilobytes.
const BATCH: usize = 128;

/// Limit for a request, for transports that ignore `OTEL_EXPORTER_OTLP_TIMEOUT` (10 s by default).
const EXPORT_DEADLINE: Duration = Duration::from_secs(30);

/// Limit for the last spans at shutdown, which may take five seconds in all.
const END_DEADLINE: Duration = Duration::from_secs(2);

/// How often lost spans are logged.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Creates the configured exporter; `None` without an endpoint, or if traces are disabled. `read` reads
/// a variable. Must be called inside the runtime.
///
/// # Errors
/// For an unsupported protocol, or an unusable endpoint, certificate or header.
pub fn exporter(read: impl Fn(&str) -> Option<String>) -> Result<Option<SpanExporter>, Misconfigured> {
    let Some(settings) = OtlpSettings::read(read)? else {
        return Ok(None);
    };
    let unusable = |error: &dyn std::fmt::Display| settings.endpoint.wrong(error);
    let (exporter, how) = match settings.protocol {
        OtlpProtocol::Grpc => {
            let headers = http::HeaderMap::try_from(&settings.headers);
            let headers = headers.map_err(|error| unusable(&error))?;
            let mut builder = SpanExporter::builder()
                .with_tonic()
                .with_endpoint(settings.url.as_str())
                .with_metadata(MetadataMap::from_headers(headers));
            if let Some(tls) = settings.grpc_tls() {
                builder = builder.with_tls_config(tls);
            }
            if let Some(timeout) = settings.timeout {
                builder = builder.with_timeout(timeout);
            }
            let exporter = builder.build().map_err(|error| unusable(&error))?;
            (exporter, "by gRPC, without a proxy")
        }
        OtlpProtocol::HttpProtobuf => {
            let client = client(&settings).map_err(|error| unusable(&format!("{error:#}")))?;
            let mut builder = SpanExporter::builder()
                .with_http()
                .with_http_client(client)
                .with_endpoint(settings.url.as_str())
                .with_headers(settings.headers.clone());
            if let Some(timeout) = settings.timeout {
                builder = builder.with_timeout(timeout);
            }
            let exporter = builder.build().map_err(|error| unusable(&error))?;
            (exporter, "by HTTP")
        }
    };
    info!("traces go to {} {how}", without_password(settings.url.as_str()));
    Ok(Some(exporter))
}

/// Removes credentials from addresses in `text`.
fn without_password(text: &str) -> String {
    let word = |word: &str| match word.rsplit_once('@') {
        Some((before, host)) => {
            let scheme = before.split_once("//").map_or("", |(scheme, _)| scheme);
            let slashes = if scheme.is_empty() { "" } else { "//" };
            format!("{scheme}{slashes}***@{host}")
        }
        None => word.to_owned(),
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// A client that uses the proxy variables, as curl does.
fn client(settings: &OtlpSettings) -> anyhow::Result<reqwest::Client> {
    Ok(reqwest::Client::builder()
        .tls_backend_preconfigured(settings.http_tls()?)
        .build()?)
}

/// The attributes of the resource that the environment has, under the names of the semantic conventions.
///
/// None names this replica: the next leader sends the finished spans of an episode again, and a backend takes them for the same
/// spans only if the resource is the same.
pub fn detected(read: impl Fn(&str) -> Option<String>) -> Vec<KeyValue> {
    let namespace = read("POD_NAMESPACE").filter(|value| !value.is_empty());
    let namespace = namespace.map(|value| KeyValue::new("k8s.namespace.name", value));
    namespace.into_iter().collect()
}

/// The resource: `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, with the default service name `haulout`, and those of `detected`
/// that are not given.
pub fn resource(detected: impl IntoIterator<Item = KeyValue>) -> Resource {
    let given = Resource::builder().build();
    let is_named = given
        .get(&Key::new("service.name"))
        .is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let detected = detected.into_iter().filter(|it| given.get(&it.key).is_none());
    let builder = Resource::builder()
        .with_attribute(version)
        .with_attributes(detected);
    if is_named {
        builder.build()
    } else {
        builder.with_service_name("haulout").build()
    }
}

/// Exports the spans from `queue` until all its senders are closed; after `stop` for at most two
/// seconds more. `lost` counts lost spans.
pub async fn run<E: Export>(
    exporter: E,
    mut queue: mpsc::Receiver<Span>,
    lost: Counter,
    stop: CancellationToken,
) {
    let mut errors = ExportErrors {
        lost,
        event: 0,
        quiet_until: None,
    };
    let send = async {
        let mut batch = Vec::with_capacity(BATCH);
        while queue.recv_many(&mut batch, BATCH).await > 0 {
            let count = batch.len();
            let spans = batch.drain(..).map(data).collect();
            let why = match tokio::time::timeout(EXPORT_DEADLINE, exporter.export(spans)).await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("no answer within {EXPORT_DEADLINE:?}")),
            };
            errors.after(count, why.as_deref());
        }
    };
    let end = async {
        stop.cancelled().await;
        tokio::time::sleep(END_DEADLINE).await;
    };
    // Spans first, so that a finished export counts even at the deadline.
    tokio::select! {
        biased;
        () = send => {}
        () = end => warn!("the collector did not take the last spans within {END_DEADLINE:?}; they are lost"),
    }
}

/// Logs lost spans at a limited rate.
struct ExportErrors {
    lost: Counter,
    event: u64,
    quiet_until: Option<Instant>,
}

impl ExportErrors {
    fn after(&mut self, batch: usize, why: Option<&str>) {
        if why.is_some() {
            let batch = u64::try_from(batch).unwrap_or(u64::MAX);
            self.lost.inc_by(batch);
        }
        let lost = self.lost.get();
        let at = Instant::now();
        if lost == self.event || self.quiet_until.is_some_and(|until| at < until) {
            return;
        }
        let why = why.map_or_else(|| "the queue was full".to_owned(), without_password);
        warn!(
            "{} spans were lost, {lost} since the start: {why}; episodes go on without",
            lost - self.event
        );
        self.event = lost;
        self.quiet_until = Some(at + LOG_INTERVAL);
    }
}

fn data(span: Span) -> SpanData {
    debug_assert_eq!(unknown(&span), None, "add it to the lists in catalogue.rs");
    let mut links = SpanLinks::default();
    links
        .links
        .extend(span.link.map(|root| Link::new(root, Vec::new(), 0)));
    let mut events = SpanEvents::default();
    events.events.extend(span.events.into_iter().map(event));
    SpanData {
        span_context: SpanContext::new(
            span.trace,
            span.id,
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        ),
        parent_span_id: span.parent.unwrap_or(SpanId::INVALID),
        parent_span_is_remote: false,
        span_kind: span.kind,
        name: span.name.into(),
        start_time: SystemTime::from(span.start),
        end_time: SystemTime::from(span.end),
        attributes: span.attributes,
        dropped_attributes_count: 0,
        events,
        links,
        status: span.failed.map_or(Status::Unset, Status::error),
        instrumentation_scope: InstrumentationScope::builder("haulout").build(),
    }
}

fn event(moment: SpanEvent) -> Event {
    Event::new(moment.name, SystemTime::from(moment.at), moment.attributes, 0)
}

#[cfg(test)]
mod tests;
