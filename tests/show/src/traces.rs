//! Receives the traces that Haulout sends by OTLP over HTTP.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// A span of a trace.
#[derive(Debug, Clone)]
pub struct Span {
    pub id: String,
    /// The id of its parent; `None` for a root.
    pub parent: Option<String>,
    pub name: String,
    /// When it began, in microseconds since 1970.
    pub start: u64,
    /// When it ended, in microseconds since 1970.
    pub end: u64,
}

/// The spans by trace id and span id: one that is sent twice is there once.
type Received = Arc<Mutex<BTreeMap<(String, String), Span>>>;

/// A receiver of traces on loopback. It ends when this is dropped.
#[derive(Debug)]
pub struct TraceReceiver {
    endpoint: String,
    received: Received,
    _server: JoinSet<()>,
}

impl TraceReceiver {
    /// Starts it on a free port.
    pub async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .context("listening for traces")?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let received = Received::default();
        let router = Router::new()
            .route("/v1/traces", post(receive))
            .with_state(Arc::clone(&received));
        let mut server = JoinSet::new();
        server.spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::warn!("the receiver of traces ended: {error}");
            }
        });
        Ok(Self {
            endpoint,
            received,
            _server: server,
        })
    }

    /// The endpoint for `OTEL_EXPORTER_OTLP_ENDPOINT` with the protocol `http/protobuf`.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The spans of a trace so far.
    pub fn trace(&self, id: &str) -> Vec<Span> {
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        let of_trace = received.iter().filter(|((trace, _), _)| trace == id);
        of_trace.map(|(_, span)| span.clone()).collect()
    }
}

async fn receive(State(received): State<Received>, body: Bytes) -> StatusCode {
    let Ok(request) = ExportTraceServiceRequest::decode(body) else {
        return StatusCode::BAD_REQUEST;
    };
    let scopes = request
        .resource_spans
        .into_iter()
        .flat_map(|spans| spans.scope_spans);
    let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
    for span in scopes.flat_map(|scope| scope.spans) {
        let id = hex(&span.span_id);
        let seen = Span {
            id: id.clone(),
            parent: (!span.parent_span_id.is_empty()).then(|| hex(&span.parent_span_id)),
            name: span.name,
            start: span.start_time_unix_nano / 1_000,
            end: span.end_time_unix_nano / 1_000,
        };
        received.insert((hex(&span.trace_id), id), seen);
    }
    // An empty message is the answer that everything was taken.
    StatusCode::OK
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
