//! HTTP requests: HTTP/1.1, no redirects, no proxy, no cookie jar, a deadline and a size limit.
//!
//! [`HttpTransport`] is the seam below the sessions: it moves bytes and knows nothing of SOAP. Deadlines, and what a status or a
//! cookie means, are above it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_TYPE, COOKIE, HeaderMap, HeaderName, HeaderValue, SET_COOKIE};
use http::{Method, Request, StatusCode};
use rustls::ClientConfig;

use super::endpoint::Endpoint;
use super::error::{ConnectError, TransportError};
use super::settings::Settings;
use super::tls;

/// Limit for a reply. A page of 50 hosts with all their PCI devices is under 8 MiB.
const MAX_REPLY: usize = 32 << 20;
/// Closes idle connections well before a proxy resets them (vCenter's own: 900 s).
const POOL_IDLE: Duration = Duration::from_secs(60);
/// A vanished peer is detected after about `KEEPALIVE` and three probes.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;
/// Three lost SYNs and their retransmissions.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
const SOAP: HeaderValue = HeaderValue::from_static("text/xml; charset=utf-8");
const SOAP_ACTION: HeaderName = HeaderName::from_static("soapaction");
/// HTTP status codes that carry SOAP; 500 carries a fault.
const CARRY_SOAP: &[u16] = &[200, 500];

/// The connection pool for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionPool {
    /// Calls that are answered at once.
    Calls,
    /// Long polls, which have separate connections, so that no call waits for one.
    Polls,
}

/// A complete reply.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The body, of at most 32 MiB. Empty for a status that carries none.
    pub body: Vec<u8>,
}

/// A reply that is to come.
pub type HttpReplyFuture<'a> =
    Pin<Box<dyn Future<Output = Result<HttpResponse, TransportError>> + Send + 'a>>;

/// Sends requests to one vCenter.
pub trait HttpTransport: fmt::Debug + Send + Sync {
    /// Sends `request`, whose URI is absolute, once. Only a reply with a status of `carry` has a body that is read: an error page may
    /// be long, or never end. A body of more than 32 MiB is an error.
    ///
    /// Dropping the future before the reply is complete closes the connection, so vCenter stops the call.
    fn send(
        &self,
        pool: ConnectionPool,
        request: Request<Vec<u8>>,
        carry: &'static [u16],
    ) -> HttpReplyFuture<'_>;
}

/// Makes transports. A new one is made when the CA file has changed.
pub trait Connector: fmt::Debug + Send + Sync {
    /// Makes a transport with the content of the CA file; sends nothing.
    ///
    /// # Errors
    /// If TLS cannot be configured.
    fn connect(&self, settings: &Settings, ca: Option<&[u8]>)
    -> Result<Arc<dyn HttpTransport>, ConnectError>;
}

/// Connects by TCP and TLS.
#[derive(Clone, Copy, Debug)]
pub struct TcpConnector;

#[derive(Debug)]
struct TcpTransport {
    calls: reqwest::Client,
    polls: reqwest::Client,
}

/// The HTTP requests to one vCenter.
#[derive(Clone, Debug)]
pub(super) struct Transport {
    http: Arc<dyn HttpTransport>,
    endpoint: Endpoint,
}

/// The user agent; vCenter shows it in its list of sessions.
fn user_agent(instance: &str) -> String {
    const PROGRAM: &str = concat!("haulout/", env!("CARGO_PKG_VERSION"));
    // The name may come from the environment; a header allows only these bytes.
    let instance: String = instance.chars().filter(char::is_ascii_graphic).collect();
    match instance.is_empty() {
        true => PROGRAM.to_owned(),
        false => format!("{PROGRAM} ({instance})"),
    }
}

/// A reply that may carry SOAP.
pub(super) struct HttpReply {
    pub(super) body: Vec<u8>,
    /// The session cookie set by the reply, `name=value`, byte for byte.
    pub(super) cookie: Option<HeaderValue>,
}

impl Connector for TcpConnector {
    fn connect(
        &self,
        settings: &Settings,
        ca: Option<&[u8]>,
    ) -> Result<Arc<dyn HttpTransport>, ConnectError> {
        let tls = tls::config(&settings.trust, settings.thumbprint, ca)?;
        let user_agent = user_agent(&settings.instance);
        Ok(Arc::new(TcpTransport {
            calls: http_client(tls.clone(), &user_agent)?,
            polls: http_client(tls, &user_agent)?,
        }))
    }
}

impl HttpTransport for TcpTransport {
    fn send(
        &self,
        pool: ConnectionPool,
        request: Request<Vec<u8>>,
        carry: &'static [u16],
    ) -> HttpReplyFuture<'_> {
        let http = match pool {
            ConnectionPool::Calls => &self.calls,
            ConnectionPool::Polls => &self.polls,
        };
        Box::pin(receive(http, request, carry))
    }
}

impl Transport {
    /// Makes a transport with `connector`; sends nothing.
    pub(super) fn new(
        settings: &Settings,
        ca: Option<&[u8]>,
        connector: &dyn Connector,
    ) -> Result<Self, ConnectError> {
        Ok(Self {
            http: connector.connect(settings, ca)?,
            endpoint: settings.endpoint.clone(),
        })
    }

    /// Posts a SOAP envelope. Any status other than 200 and 500 is an error.
    pub(super) async fn post(
        &self,
        pool: ConnectionPool,
        soap_action: &str,
        cookie: Option<&HeaderValue>,
        envelope: String,
        deadline: Duration,
    ) -> Result<HttpReply, TransportError> {
        let mut request = Request::post(self.endpoint.sdk().as_str())
            .header(CONTENT_TYPE, SOAP)
            .header(SOAP_ACTION, soap_action);
        if let Some(cookie) = cookie {
            request = request.header(COOKIE, cookie);
        }
        self.exchange(pool, request, envelope.into_bytes(), CARRY_SOAP, deadline)
            .await
    }

    /// Makes a REST call with one header for the credentials. Any status other than those of success is an error.
    pub(super) async fn rest(
        &self,
        method: Method,
        url: reqwest::Url,
        authorization: (HeaderName, HeaderValue),
        deadline: Duration,
    ) -> Result<Vec<u8>, TransportError> {
        let (name, value) = authorization;
        let request = Request::builder()
            .method(method)
            .uri(url.as_str())
            .header(name, value);
        let pool = ConnectionPool::Calls;
        let reply = self
            .exchange(pool, request, Vec::new(), &[200, 201, 204], deadline)
            .await;
        Ok(reply?.body)
    }

    /// Reads the document with the API versions.
    pub(super) async fn versions(&self, deadline: Duration) -> Result<Vec<u8>, TransportError> {
        let request = Request::get(self.endpoint.versions().as_str());
        let pool = ConnectionPool::Calls;
        let reply = self.exchange(pool, request, Vec::new(), &[200], deadline).await;
        Ok(reply?.body)
    }

    /// Sends one request and waits for its reply, whose status has to be one of `carry`.
    async fn exchange(
        &self,
        pool: ConnectionPool,
        request: http::request::Builder,
        body: Vec<u8>,
        carry: &'static [u16],
        deadline: Duration,
    ) -> Result<HttpReply, TransportError> {
        let request = request
            .body(body)
            .map_err(|error| TransportError::Connection(error.into()))?;
        let reply = tokio::time::timeout(deadline, self.http.send(pool, request, carry)).await;
        let reply = reply.map_err(|_elapsed| TransportError::Deadline(deadline))??;
        let status = reply.status.as_u16();
        if !carry.contains(&status) {
            return Err(TransportError::Status(status));
        }
        Ok(HttpReply {
            body: reply.body,
            cookie: session_cookie(reply.headers.get_all(SET_COOKIE).iter()),
        })
    }
}

fn http_client(tls: ClientConfig, user_agent: &str) -> Result<reqwest::Client, ConnectError> {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .no_proxy()
        .referer(false)
        .user_agent(user_agent)
        .connect_timeout(CONNECT_DEADLINE)
        .pool_idle_timeout(POOL_IDLE)
        .tcp_keepalive(KEEPALIVE)
        .tcp_keepalive_interval(KEEPALIVE)
        .tcp_keepalive_retries(KEEPALIVE_PROBES)
        .tcp_nodelay(true)
        .build()
        .map_err(ConnectError::Http)
}

async fn receive(
    http: &reqwest::Client,
    request: Request<Vec<u8>>,
    carry: &[u16],
) -> Result<HttpResponse, TransportError> {
    let broken = |error: reqwest::Error| TransportError::Connection(error.without_url().into());
    let request = reqwest::Request::try_from(request).map_err(broken)?;
    let mut response = http.execute(request).await.map_err(broken)?;
    let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
    let mut body = Vec::new();
    if carry.contains(&status.as_u16()) {
        while let Some(chunk) = response.chunk().await.map_err(broken)? {
            if body.len() + chunk.len() > MAX_REPLY {
                return Err(TransportError::TooLarge(MAX_REPLY));
            }
            body.extend_from_slice(&chunk);
        }
    }
    Ok(HttpResponse {
        status,
        headers,
        body,
    })
}

/// vCenter's session cookie: the bytes before the first `;`, quotes included.
fn session_cookie<'a>(mut headers: impl Iterator<Item = &'a HeaderValue>) -> Option<HeaderValue> {
    headers.find_map(|header| {
        let pair = header.as_bytes().split(|byte| *byte == b';').next()?;
        if !pair.starts_with(b"vmware_soap_session=") {
            return None;
        }
        let mut cookie = HeaderValue::from_bytes(pair).ok()?;
        cookie.set_sensitive(true);
        Some(cookie)
    })
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;
    use tokio::task::JoinSet;

    use super::*;
    use crate::endpoint::{CredentialPart, CredentialSource, Trust};

    #[test]
    fn the_session_cookie_is_kept_byte_for_byte() {
        let headers = [
            HeaderValue::from_static("other=1; Path=/"),
            HeaderValue::from_static("vmware_soap_session=\"52a=b c\"; Path=/; HttpOnly; Secure"),
        ];
        let cookie = session_cookie(headers.iter()).unwrap();
        assert_eq!(cookie.as_bytes(), b"vmware_soap_session=\"52a=b c\"");
        assert!(cookie.is_sensitive());
    }

    /// Deadline of the requests; no test waits for it.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// Replies to each request with `answer`, raw HTTP bytes. Serves one connection at a time.
    struct FakeServer {
        transport: Transport,
        connections: Arc<AtomicUsize>,
        /// One message for each connection that the client closed.
        closed: mpsc::Receiver<()>,
        _serves: JoinSet<()>,
    }

    impl FakeServer {
        async fn answering(answer: &'static [u8], then_closes: bool) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let connections = Arc::new(AtomicUsize::new(0));
            let (on_close, closed) = mpsc::channel(8);
            let count = connections.clone();
            let serves = async move {
                while let Ok((mut tcp, _)) = listener.accept().await {
                    count.fetch_add(1, Ordering::SeqCst);
                    while read_request(&mut tcp).await {
                        tcp.write_all(answer).await.unwrap();
                        if then_closes {
                            break;
                        }
                    }
                    if !then_closes {
                        on_close.send(()).await.unwrap();
                    }
                }
            };
            let mut tasks = JoinSet::new();
            tasks.spawn(serves);
            let plain = |text: &str| CredentialPart::Given(text.to_owned().into());
            let credentials = CredentialSource {
                user: plain("nobody"),
                password: plain("nothing"),
            };
            let endpoint = Endpoint::parse(&format!("http://{address}")).unwrap();
            let settings = Settings::new(endpoint, credentials, Trust::Nothing);
            Self {
                transport: Transport::new(&settings, None, &TcpConnector).unwrap(),
                connections,
                closed,
                _serves: tasks,
            }
        }

        async fn ask(&self) -> Result<HttpReply, TransportError> {
            let (action, envelope) = ("urn:vim25/8.0", "<call/>".to_owned());
            let post = self
                .transport
                .post(ConnectionPool::Polls, action, None, envelope, PATIENCE);
            post.await
        }

        fn connections(&self) -> usize {
            self.connections.load(Ordering::SeqCst)
        }
    }

    /// Returns true for a whole request, false when the connection ends.
    async fn read_request(tcp: &mut TcpStream) -> bool {
        let mut read = Vec::new();
        while !read.ends_with(b"<call/>") {
            match tcp.read_buf(&mut read).await {
                Ok(0) | Err(_) => return false,
                Ok(_) => {}
            }
        }
        true
    }

    const WHOLE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<answer/>";

    #[tokio::test]
    async fn polls_reuse_their_connection() {
        let server = FakeServer::answering(WHOLE, false).await;
        for _ in 0..3 {
            assert_eq!(server.ask().await.unwrap().body, b"<answer/>");
        }
        assert_eq!(server.connections(), 1);
    }

    #[tokio::test]
    async fn connection_closed_between_polls_is_replaced() {
        let server = FakeServer::answering(WHOLE, true).await;
        for asked in 1..=3 {
            assert_eq!(server.ask().await.unwrap().body, b"<answer/>");
            assert_eq!(server.connections(), asked);
        }
    }

    #[tokio::test]
    async fn connection_of_a_cut_answer_is_not_reused() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n<answer/>";
        let server = FakeServer::answering(answer, true).await;
        for asked in 1..=2 {
            let error = server.ask().await.err().unwrap();
            assert!(matches!(error, TransportError::Connection(_)), "{error}");
            assert_eq!(server.connections(), asked);
        }
    }

    #[tokio::test]
    async fn request_that_may_have_arrived_is_not_repeated() {
        let server = FakeServer::answering(b"", true).await;
        let error = server.ask().await.err().unwrap();
        assert!(matches!(error, TransportError::Connection(_)), "{error}");
        assert_eq!(server.connections(), 1);
    }

    #[tokio::test]
    async fn abandoned_poll_closes_its_connection() {
        let mut server = FakeServer::answering(b"", false).await;
        {
            let mut poll = pin!(server.ask());
            while server.connections() == 0 {
                tokio::select! {
                    biased;
                    _ = &mut poll => panic!("it is never answered"),
                    () = tokio::task::yield_now() => {}
                }
            }
        }
        let closed = tokio::time::timeout(PATIENCE, server.closed.recv()).await;
        assert_eq!(closed.unwrap(), Some(()));
    }

    #[tokio::test]
    async fn status_without_soap_is_an_error() {
        // The second page never ends.
        for answer in [
            &b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"[..],
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 90\r\n\r\n<html>",
        ] {
            let server = FakeServer::answering(answer, false).await;
            let error = server.ask().await.err().unwrap();
            assert!(matches!(error, TransportError::Status(503)), "{error}");
        }
    }
}
