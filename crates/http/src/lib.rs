//! The HTTP servers: metrics, liveness and readiness, and the status page with plans and reports. All are read-only.

// A test may list many cases.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

pub mod access;
mod connections;
pub mod health;
pub mod plan;
pub mod status;

use std::future::ready;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::RawQuery;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::info;

use connections::{Limits, serve};
use haulout_telemetry::metrics::{Metrics, Text};
use health::{Health, HealthCheck};

/// The kubelet is on the same machine. With these limits 640 silent connections are closed per second,
/// so the accept queue of 1,024 is processed within the 2 s timeout of the kubelet.
const HEALTH: Limits = Limits {
    connections: 256,
    head: Duration::from_millis(400),
    stream: Duration::ZERO,
};

/// Prometheus may be remote; its scrape timeout is ten seconds.
const METRICS: Limits = Limits {
    connections: 256,
    head: Duration::from_secs(2),
    stream: Duration::ZERO,
};

/// A server with a bound port that does not accept connections yet.
#[derive(Debug)]
pub struct HttpServer {
    what: &'static str,
    listener: TcpListener,
    router: Router,
    limits: Limits,
}

/// A port that cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve {what} on {address}: set {setting} to another address, or to off")]
pub struct NoPort {
    what: &'static str,
    setting: &'static str,
    address: SocketAddr,
    source: std::io::Error,
}

/// Binds the port of `/metrics`.
///
/// # Errors
/// If the port is in use, or the address is not local.
pub async fn metrics(
    setting: &'static str,
    address: SocketAddr,
    metrics: Arc<Metrics>,
) -> Result<HttpServer, NoPort> {
    let answer = move |headers: HeaderMap| ready(answer_metrics(&metrics, &headers));
    let router = Router::new().route("/metrics", get(answer));
    bind("metrics", setting, address, router, METRICS).await
}

/// Binds the port of `/livez`, `/readyz` and `/healthz`, an alias of `/livez`.
///
/// # Errors
/// As [`metrics`].
pub async fn health(
    setting: &'static str,
    address: SocketAddr,
    health: Arc<Health>,
) -> Result<HttpServer, NoPort> {
    let route = |name: &'static str, checks: fn(&Health) -> Vec<HealthCheck>| {
        let health = Arc::clone(&health);
        get(move |RawQuery(query): RawQuery| ready(answer_health(name, &checks(&health), query.as_deref())))
    };
    let router = Router::new()
        .route("/livez", route("livez", Health::live))
        .route("/healthz", route("healthz", Health::live))
        .route("/readyz", route("readyz", Health::ready));
    bind("health", setting, address, router, HEALTH).await
}

async fn bind(
    what: &'static str,
    setting: &'static str,
    address: SocketAddr,
    router: Router,
    limits: Limits,
) -> Result<HttpServer, NoPort> {
    let no_port = |source| NoPort {
        what,
        setting,
        address,
        source,
    };
    let listener = match TcpListener::bind(address).await {
        // A kernel may have no IPv6.
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && error.kind() != ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        result => result,
    };
    let listener = listener.map_err(no_port)?;
    let bound = listener.local_addr().map_err(no_port)?;
    info!("serving {what} on http://{bound}");
    Ok(HttpServer {
        what,
        listener,
        router,
        limits,
    })
}

impl HttpServer {
    pub fn what(&self) -> &'static str {
        self.what
    }

    /// Serves until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        serve(self.listener, self.router, self.limits, stop).await;
    }
}

fn answer_metrics(metrics: &Metrics, headers: &HeaderMap) -> Response {
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    let text = Text::accepted(accept);
    match metrics.write(text) {
        Ok(body) => ([(header::CONTENT_TYPE, text.content_type())], body).into_response(),
        Err(error) => {
            let reason = format!("the metrics cannot be written: {error}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, reason).into_response()
        }
    }
}

/// Replies like the kube-apiserver: `ok`, or all checks by name if one fails or `verbose` is set.
fn answer_health(name: &str, checks: &[HealthCheck], query: Option<&str>) -> Response {
    let is_well = checks.iter().all(|check| check.failure.is_none());
    let is_verbose = query.is_some_and(|query| {
        query
            .split('&')
            .any(|part| part.split('=').next() == Some("verbose"))
    });
    if is_well && !is_verbose {
        return "ok".into_response();
    }
    let mut body = String::new();
    for check in checks {
        match &check.failure {
            None => {
                let detail = check.detail.iter().map(|detail| format!(": {detail}"));
                body.push_str(&format!("[+]{} ok{}\n", check.name, detail.collect::<String>()));
            }
            Some(why) => body.push_str(&format!("[-]{} failed: {why}\n", check.name)),
        }
    }
    if is_well {
        body.push_str(&format!("{name} check passed\n"));
        body.into_response()
    } else {
        body.push_str(&format!("{name} check failed\n"));
        (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::task::JoinSet;
    use tokio::time::Instant;

    use super::*;

    /// A health server and its address.
    async fn served() -> (SocketAddr, JoinSet<()>) {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = health("HEALTH_ADDRESS", loopback, Arc::new(Health::default()))
            .await
            .unwrap();
        let address = server.listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(server.run(CancellationToken::new()));
        (address, tasks)
    }

    /// Connects and sends only `first`, and reconnects when the server closes the connection.
    async fn stay_connected(address: SocketAddr, first: &'static [u8]) {
        loop {
            if let Ok(mut stream) = TcpStream::connect(address).await {
                let _ = stream.write_all(first).await;
                let mut answer = Vec::new();
                let _ = stream.read_to_end(&mut answer).await;
            }
            tokio::task::yield_now().await;
        }
    }

    /// The kubelet restarts the container after three probes of two seconds each. Connections that kept their places would keep them
    /// for ten.
    const RESTART_AFTER: Duration = Duration::from_secs(6);

    /// Requests `/livez` for three seconds while 300 clients send `first`; returns the slowest
    /// response.
    async fn slowest_answer_beside(first: &'static [u8]) -> Duration {
        let (address, mut tasks) = served().await;
        for _ in 0..300 {
            tasks.spawn(stay_connected(address, first));
        }
        let begin = Instant::now();
        let mut slowest = Duration::ZERO;
        while begin.elapsed() < Duration::from_secs(3) {
            let asked = Instant::now();
            let answer = tokio::time::timeout(RESTART_AFTER, async {
                let mut stream = TcpStream::connect(address).await.unwrap();
                let question = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n";
                stream.write_all(question).await.unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                answer
            });
            let answer = answer.await.expect("an answer before the kubelet restarts it");
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            slowest = slowest.max(asked.elapsed());
        }
        slowest
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn livez_answers_beside_300_silent_connections() {
        let slowest = slowest_answer_beside(b"").await;
        assert!(slowest < RESTART_AFTER, "{slowest:?}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn livez_answers_beside_300_half_sent_requests() {
        let slowest = slowest_answer_beside(b"GET /livez HTTP/1.1\r\n").await;
        assert!(slowest < RESTART_AFTER, "{slowest:?}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn livez_answers_beside_300_clients_that_keep_asking() {
        let slowest = slowest_answer_beside(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(slowest < RESTART_AFTER, "{slowest:?}");
    }

    #[test]
    fn checks_are_listed_on_failure_or_request() {
        let check = |failure: Option<&str>| HealthCheck {
            name: "vcenter",
            failure: failure.map(str::to_owned),
            detail: None,
        };
        let status = |failure, query| answer_health("readyz", &[check(failure)], query).status();
        assert_eq!(status(None, None), StatusCode::OK);
        assert_eq!(status(None, Some("verbose")), StatusCode::OK);
        assert_eq!(status(Some("refused"), None), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            status(Some("refused"), Some("a=b&verbose=1")),
            StatusCode::SERVICE_UNAVAILABLE
        );
    }
}
