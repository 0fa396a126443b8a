//! An OTLP proxy before a trace collector, which stops at one chosen request.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::post;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::fault_proxy::Moment;

/// Forwards OTLP over HTTP. It ends when this is dropped.
#[derive(Debug)]
pub struct OtlpProxy {
    shared: Arc<OtlpProxyState>,
    address: SocketAddr,
    _end: DropGuard,
}

#[derive(Debug)]
struct OtlpProxyState {
    collector: String,
    client: reqwest::Client,
    state: Mutex<Passing>,
    stopped: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Passing {
    requests: usize,
    stop: Option<(Point, Moment)>,
    is_stopped: bool,
}

/// The request at which the proxy stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// The request with this number, from 1.
    Number(usize),
    /// The first request that contains this text, such as the name of an attribute.
    Words(&'static str),
}

impl OtlpProxy {
    /// Starts the proxy on a free port of loopback, open. `collector` is the collector's OTLP/HTTP endpoint.
    pub async fn start(collector: &str) -> anyhow::Result<Self> {
        // An error means that a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let shared = Arc::new(OtlpProxyState {
            collector: format!("{collector}/v1/traces"),
            client: reqwest::Client::builder().no_proxy().build()?,
            state: Mutex::default(),
            stopped: watch::Sender::new(false),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let end = CancellationToken::new();
        let router = Router::new()
            .route("/v1/traces", post(pass))
            .with_state(Arc::clone(&shared));
        let token = end.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = token.cancelled() => {}
                served = async { axum::serve(listener, router).await } => {
                    tracing::warn!("the OTLP proxy ended: {served:?}");
                }
            }
        });
        Ok(Self {
            shared,
            address,
            _end: end.drop_guard(),
        })
    }

    /// The endpoint for `OTEL_EXPORTER_OTLP_ENDPOINT` with the protocol `http/protobuf`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The number of requests so far.
    pub fn requests(&self) -> usize {
        self.shared.lock().requests
    }

    /// Stops at this request: nothing is forwarded from then on until [`Self::open`].
    pub fn stop_at(&self, point: Point, moment: Moment) {
        self.shared.lock().stop = Some((point, moment));
    }

    /// Waits for that request, and with [`Moment::After`] also for the collector's response.
    pub async fn stopped(&self) {
        // The sender lives in `self`.
        let _ = self.shared.stopped.subscribe().wait_for(|stopped| *stopped).await;
    }

    /// Forwards new requests again. Requests that are held stay so until their senders disconnect.
    pub fn open(&self) {
        let mut passing = self.shared.lock();
        passing.stop = None;
        passing.is_stopped = false;
    }
}

impl OtlpProxyState {
    fn lock(&self) -> std::sync::MutexGuard<'_, Passing> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn pass(
    State(shared): State<Arc<OtlpProxyState>>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, Bytes) {
    // Held before it is forwarded, or after the collector has responded.
    let held = {
        let mut passing = shared.lock();
        passing.requests += 1;
        if passing.is_stopped {
            Some(Moment::Before)
        } else {
            let number = passing.requests;
            let met = passing.stop.filter(|(point, _)| match point {
                Point::Number(at) => *at == number,
                Point::Words(words) => body.windows(words.len()).any(|part| part == words.as_bytes()),
            });
            passing.is_stopped = met.is_some();
            met.map(|(_, moment)| moment)
        }
    };
    if held == Some(Moment::Before) {
        shared.stopped.send_replace(true);
        std::future::pending::<()>().await;
    }
    let request = shared.client.post(&shared.collector).body(body);
    let kind = headers.get(header::CONTENT_TYPE).cloned();
    let request = match kind {
        Some(kind) => request.header(header::CONTENT_TYPE, kind),
        None => request,
    };
    let answer = match request.send().await {
        Ok(answer) => (answer.status(), answer.bytes().await.unwrap_or_default()),
        Err(error) => (StatusCode::BAD_GATEWAY, Bytes::from(error.to_string())),
    };
    if held.is_some() {
        shared.stopped.send_replace(true);
        std::future::pending::<()>().await;
    }
    answer
}
