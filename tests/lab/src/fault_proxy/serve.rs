//! The HTTP proxy before one server: accepts connections, and forwards requests or holds them.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION,
    TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use super::{ProxyShared, Side, Verdict, request};

/// The streamed body of a response.
type Body = UnsyncBoxBody<Bytes, anyhow::Error>;

/// Headers of a single connection, which are not forwarded.
const OF_THE_CONNECTION: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// The pause after an error of accept.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);

/// The server behind the proxy.
pub(super) enum Upstream {
    Kubernetes(kube::Client),
    Vcenter { http: reqwest::Client, origin: String },
}

impl Upstream {
    pub(super) fn kubernetes(client: kube::Client) -> Self {
        Self::Kubernetes(client)
    }

    /// `origin` is scheme, host and port.
    pub(super) fn vcenter(origin: String) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            // The client must see when the server closes an idle connection.
            .pool_max_idle_per_host(0)
            .build()
            .context("building the proxy's client of vCenter")?;
        Ok(Self::Vcenter { http, origin })
    }

    /// The name of a request that changes something.
    fn changes(&self, parts: &Parts, body: &Bytes) -> Option<String> {
        match self {
            Self::Kubernetes(_) => request::kubernetes(&parts.method, parts.uri.path()),
            Self::Vcenter { .. } => request::vcenter(body),
        }
    }

    /// Forwards a request and returns the response when its head has arrived.
    async fn send(&self, parts: Parts, body: Bytes) -> anyhow::Result<Response<Body>> {
        let tried = format!("forwarding {} {}", parts.method, parts.uri);
        self.try_send(parts, body).await.context(tried)
    }

    async fn try_send(&self, mut parts: Parts, body: Bytes) -> anyhow::Result<Response<Body>> {
        let target = parts.uri.path_and_query().context("it has no path")?.to_string();
        let headers = &mut parts.headers;
        remove_of_the_connection(headers);
        for name in [HOST, CONTENT_LENGTH, EXPECT] {
            headers.remove(name);
        }
        match self {
            Self::Kubernetes(client) => {
                let mut request = Request::new(kube::client::Body::from(body.to_vec()));
                *request.method_mut() = parts.method;
                *request.uri_mut() = target.parse().context("reading its path")?;
                *request.headers_mut() = parts.headers;
                let (head, body) = client.send(request).await?.into_parts();
                let body = body.map_err(anyhow::Error::from).boxed_unsync();
                Ok(answer(head, body))
            }
            Self::Vcenter { http, origin } => {
                let mut request = http
                    .request(parts.method, format!("{origin}{target}"))
                    .headers(parts.headers);
                if !body.is_empty() {
                    request = request.body(body);
                }
                let (head, body) = Response::<reqwest::Body>::from(request.send().await?).into_parts();
                let body = body.map_err(anyhow::Error::from).boxed_unsync();
                Ok(answer(head, body))
            }
        }
    }

    /// Forwards a request and returns the response when it is complete.
    async fn send_whole(&self, parts: Parts, body: Bytes) -> anyhow::Result<Response<Body>> {
        let tried = format!("reading the answer to {} {}", parts.method, parts.uri);
        let (head, body) = self.send(parts, body).await?.into_parts();
        let body = body.collect().await.context(tried)?.to_bytes();
        let body = Full::new(body).map_err(|never| match never {}).boxed_unsync();
        Ok(Response::from_parts(head, body))
    }
}

/// The response for the client's connection.
fn answer(head: http::response::Parts, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    remove_of_the_connection(response.headers_mut());
    response
}

fn remove_of_the_connection(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&OF_THE_CONNECTION) {
        headers.remove(name);
    }
}

/// The proxy before one server.
pub(super) struct SideProxy {
    shared: Arc<ProxyShared>,
    side: Side,
    upstream: Upstream,
}

impl SideProxy {
    /// Binds a port and serves it until the proxy ends.
    pub(super) async fn open(
        shared: &Arc<ProxyShared>,
        side: Side,
        upstream: Upstream,
    ) -> anyhow::Result<SocketAddr> {
        let bind = async || -> anyhow::Result<_> {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?.into_std()?;
            let again = listener.try_clone()?;
            let address = listener.local_addr()?;
            Ok((TcpListener::from_std(listener)?, again, address))
        };
        let (listener, again, address) = bind()
            .await
            .with_context(|| format!("binding a port of 127.0.0.1 for the proxy before {side}"))?;
        shared.lock().listeners.push(again);
        let proxy = Arc::new(Self {
            shared: shared.clone(),
            side,
            upstream,
        });
        let end = shared.end.clone();
        tokio::spawn(async move { end.run_until_cancelled(proxy.serve(listener)).await });
        Ok(address)
    }

    async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            let accepted = std::future::poll_fn(|cx| {
                // Under the lock, so that the generation is that of the time of accept.
                let _state = self.shared.lock();
                listener
                    .poll_accept(cx)
                    .map_ok(|(connection, _)| (connection, *self.shared.generation.borrow()))
            })
            .await;
            match accepted {
                Ok((connection, generation)) => {
                    let end = self.shared.end.clone();
                    let conversation = self.clone().converse(connection, generation);
                    tokio::spawn(async move { end.run_until_cancelled(conversation).await });
                }
                Err(error) => {
                    tracing::warn!(side = %self.side, %error, "the proxy failed to accept a connection");
                    // Without free descriptors it would fail again at once.
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    async fn converse(self: Arc<Self>, connection: TcpStream, generation: u64) {
        // Streamed events are small and must not be delayed.
        let _ = connection.set_nodelay(true);
        let service = service_fn(|request| {
            let proxy = self.clone();
            async move { proxy.handle(generation, request).await }
        });
        let mut current = self.shared.generation.subscribe();
        let closed = async move {
            // The sender lives as long as the servers, so there is no error.
            let _ = current.wait_for(|it| *it != generation).await;
        };
        let mut connection = pin!(http1::Builder::new().serve_connection(TokioIo::new(connection), service));
        let result = tokio::select! {
            biased;
            // The connection stays open and is no longer served, streamed responses included.
            () = self.shared.cut_off(self.side) => match self.shared.hold().await {},
            result = &mut connection => result,
            () = closed => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = result {
            let error = anyhow!(error);
            tracing::debug!(side = %self.side, "a connection through the proxy ended: {error:#}");
        }
    }

    /// Handles a request. An error closes the connection, as it would be without the proxy.
    async fn handle(
        self: Arc<Self>,
        generation: u64,
        request: Request<Incoming>,
    ) -> anyhow::Result<Response<Body>> {
        let (parts, body) = request.into_parts();
        let body = body
            .collect()
            .await
            .with_context(|| format!("reading the body of {} {}", parts.method, parts.uri))?
            .to_bytes();
        let Some(what) = self.upstream.changes(&parts, &body) else {
            return self.upstream.send(parts, body).await;
        };
        match self.shared.admit(generation, self.side, what) {
            Verdict::Hold => match self.shared.hold().await {},
            Verdict::Pass => {
                // In a separate task: a counted request reaches its server even if the client is killed.
                let proxy = self.clone();
                let forward = self.spawn(async move { proxy.upstream.send_whole(parts, body).await });
                forward
                    .await
                    .context("the task that forwards failed")?
                    .context("the proxy ended")?
            }
            Verdict::After(request) => {
                let proxy = self.clone();
                self.spawn(async move {
                    if let Err(error) = proxy.upstream.send_whole(parts, body).await {
                        tracing::warn!(%request, "the request that stops the proxy got no answer: {error:#}");
                    }
                    proxy.shared.answered(request);
                });
                match self.shared.hold().await {}
            }
        }
    }

    /// Runs `work` until it ends or the proxy ends, even if its caller is dropped.
    fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<Option<T>> {
        let end = self.shared.end.clone();
        tokio::spawn(async move { end.run_until_cancelled(work).await })
    }
}
