//! The connection that a long poll has to itself: its answer is read by the very task that waits for it.
//!
//! reqwest drives each connection by a task of its own, and hands an answer from there through layers for redirects and
//! retries, of which none is wanted here. An answer that tells of a click is read a twentieth of a millisecond sooner without
//! (`benches/README.md`). All other calls go through reqwest.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tower::ServiceExt as _;

use super::error::TransportError;
use super::transport::{CONNECT_DEADLINE, KEEPALIVE, KEEPALIVE_PROBES};

/// One connection, made when it is first asked and again when it has ended. It carries one request at a time; a request
/// that is given up takes the connection with it, which tells vCenter that nobody waits.
pub(super) struct PollConnection {
    connector: HttpsConnector<HttpConnector>,
    peer: Uri,
    idle: Mutex<Option<Open>>,
}

/// A connection that stands.
struct Open {
    requests: http1::SendRequest<String>,
    wire: Wire,
}

/// What reads and writes, while somebody waits for what it brings; `None` when it has ended.
struct Wire(Option<Pin<Box<Connection>>>);

type Connection = http1::Connection<MaybeHttpsStream<TokioIo<TcpStream>>, String>;

/// An answer whose body is still to be read.
pub(super) struct Answered {
    pub(super) head: Response<Incoming>,
    open: Open,
}

impl PollConnection {
    /// To the server of `peer`, whose certificate is verified as `tls` says. Nothing is sent.
    pub(super) fn new(tls: ClientConfig, peer: Uri) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_DEADLINE));
        tcp.set_keepalive(Some(KEEPALIVE));
        tcp.set_keepalive_interval(Some(KEEPALIVE));
        tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        Self {
            connector,
            peer,
            idle: Mutex::default(),
        }
    }

    /// Makes the connection ahead of the first request, while other calls are under way. Where that does not come off in time the
    /// request makes it, and tells why it cannot.
    pub(super) async fn prepare(&self) {
        if let Ok(Ok(open)) = tokio::time::timeout(CONNECT_DEADLINE, self.open()).await {
            *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(open);
        }
    }

    /// Sends `request` and waits for the head of its answer. A connection that ended while nothing was asked over it is
    /// replaced, and a request that was not sent is sent over the next one; one that may have been sent is not repeated.
    pub(super) async fn send(&self, request: Request<String>) -> Result<Answered, TransportError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        let unsent = match idle {
            Some(open) => match open.send(request).await? {
                Sent::Answered(answered) => return Ok(answered),
                Sent::Not(request, _) => request,
            },
            None => request,
        };
        match self.open().await?.send(unsent).await? {
            Sent::Answered(answered) => Ok(answered),
            Sent::Not(_, error) => Err(broken(error)),
        }
    }

    /// Keeps a connection over which an answer was read to its end.
    pub(super) fn keep(&self, answered: Answered) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        *idle = answered.open.wire.0.is_some().then_some(answered.open);
    }

    async fn open(&self) -> Result<Open, TransportError> {
        let connected = self.connector.clone().oneshot(self.peer.clone()).await;
        let io = connected.map_err(TransportError::Connection)?;
        let (requests, connection) = http1::handshake(io).await.map_err(broken)?;
        let wire = Wire(Some(Box::pin(connection)));
        Ok(Open { requests, wire })
    }
}

/// What became of a request.
enum Sent {
    Answered(Answered),
    /// It was not sent, because the connection had ended.
    Not(Request<String>, hyper::Error),
}

impl Open {
    async fn send(mut self, request: Request<String>) -> Result<Sent, TransportError> {
        // Whether it has ended meanwhile is known once it is looked at.
        if let Err(error) = self.wire.until(self.requests.ready()).await {
            return Ok(Sent::Not(request, error));
        }
        match self.wire.until(self.requests.try_send_request(request)).await {
            Ok(head) => Ok(Sent::Answered(Answered { head, open: self })),
            Err(mut failed) => match failed.take_message() {
                Some(request) => Ok(Sent::Not(request, failed.into_error())),
                None => Err(broken(failed.into_error())),
            },
        }
    }
}

impl Answered {
    /// The next piece of the body; `None` at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<hyper::body::Bytes>, TransportError> {
        let body = self.head.body_mut();
        loop {
            let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
            match self.open.wire.until(frame).await {
                None => return Ok(None),
                Some(Err(error)) => return Err(broken(error)),
                // Trailers say nothing that anybody reads.
                Some(Ok(frame)) => {
                    if let Ok(chunk) = frame.into_data() {
                        return Ok(Some(chunk));
                    }
                }
            }
        }
    }
}

impl Wire {
    /// Waits for `what`, and reads and writes meanwhile. That the connection ends is told by what is waited for.
    async fn until<T>(&mut self, what: impl Future<Output = T>) -> T {
        let mut what = pin!(what);
        poll_fn(|context| {
            self.go_on(context);
            match what.as_mut().poll(context) {
                Poll::Pending => {
                    // What it has asked for is read at once, and not after one more turn.
                    self.go_on(context);
                    what.as_mut().poll(context)
                }
                told @ Poll::Ready(_) => told,
            }
        })
        .await
    }

    fn go_on(&mut self, context: &mut Context<'_>) {
        if let Some(connection) = &mut self.0
            && connection.as_mut().poll(context).is_ready()
        {
            self.0 = None;
        }
    }
}

fn broken(error: hyper::Error) -> TransportError {
    TransportError::Connection(Box::new(error))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use reqwest::header::HeaderValue;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;
    use tokio::task::JoinSet;

    use super::*;
    use crate::client::{CredentialPart, CredentialSource, Endpoint, Settings, Trust};
    use crate::transport::{Reply, Transport};

    /// Longer than anything here takes, and no test waits for it to pass.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// A server whose answer to each request is `answer`, whole bytes on the wire; what is empty is never sent.
    struct Server {
        transport: Transport,
        connections: Arc<AtomicUsize>,
        /// One word for each connection that was found closed by us.
        closed: mpsc::Receiver<()>,
        _serves: JoinSet<()>,
    }

    impl Server {
        async fn answering(answer: &'static [u8], then_closes: bool) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let connections = Arc::new(AtomicUsize::new(0));
            let (tell, closed) = mpsc::channel(8);
            let count = connections.clone();
            let serves = async move {
                // One after the other: a connection of ours carries one request at a time, and there is one of them.
                while let Ok((mut tcp, _)) = listener.accept().await {
                    count.fetch_add(1, Ordering::SeqCst);
                    while read_request(&mut tcp).await {
                        tcp.write_all(answer).await.unwrap();
                        if then_closes {
                            break;
                        }
                    }
                    if !then_closes {
                        tell.send(()).await.unwrap();
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
                transport: Transport::new(&settings, None).unwrap(),
                connections,
                closed,
                _serves: tasks,
            }
        }

        async fn ask(&self, connection: &PollConnection) -> Result<Reply, TransportError> {
            let cookie = HeaderValue::from_static("vmware_soap_session=\"1\"");
            let envelope = "<call/>".to_owned();
            self.transport
                .post_over(connection, "urn:vim25/8.0", &cookie, envelope, PATIENCE)
                .await
        }

        fn connections(&self) -> usize {
            self.connections.load(Ordering::SeqCst)
        }
    }

    /// Whether a whole request came in, and not the connection's end.
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
    async fn as_long_as_it_stands_it_is_the_same_connection() {
        let server = Server::answering(WHOLE, false).await;
        let connection = server.transport.poll_connection();
        for _ in 0..3 {
            assert_eq!(server.ask(&connection).await.unwrap().body, b"<answer/>");
        }
        assert_eq!(server.connections(), 1);
    }

    #[tokio::test]
    async fn one_that_was_made_ahead_is_the_first_requests() {
        let server = Server::answering(WHOLE, false).await;
        let connection = server.transport.poll_connection();
        connection.prepare().await;
        assert_eq!(server.ask(&connection).await.unwrap().body, b"<answer/>");
        assert_eq!(server.connections(), 1);
    }

    #[tokio::test]
    async fn one_that_ended_between_two_polls_is_replaced_and_nobody_hears_of_it() {
        let server = Server::answering(WHOLE, true).await;
        let connection = server.transport.poll_connection();
        for asked in 1..=3 {
            assert_eq!(server.ask(&connection).await.unwrap().body, b"<answer/>");
            assert_eq!(server.connections(), asked);
        }
    }

    #[tokio::test]
    async fn an_answer_that_only_its_connections_end_ends_is_whole() {
        let answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<answer/>";
        let server = Server::answering(answer, true).await;
        let connection = server.transport.poll_connection();
        for _ in 0..2 {
            assert_eq!(server.ask(&connection).await.unwrap().body, b"<answer/>");
        }
    }

    #[tokio::test]
    async fn an_answer_in_pieces_is_put_together_and_trailers_are_passed_over() {
        let answer = b"HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n<ans\r\n5\r\nwer/>\r\n0\r\nX-A: b\r\n\r\n";
        let server = Server::answering(answer, false).await;
        let connection = server.transport.poll_connection();
        for _ in 0..2 {
            assert_eq!(server.ask(&connection).await.unwrap().body, b"<answer/>");
        }
        assert_eq!(server.connections(), 1);
    }

    #[tokio::test]
    async fn an_answer_that_breaks_off_is_an_error_and_its_connection_is_not_used_again() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n<answer/>";
        let server = Server::answering(answer, true).await;
        let connection = server.transport.poll_connection();
        for asked in 1..=2 {
            let error = server.ask(&connection).await.err().unwrap();
            assert!(matches!(error, TransportError::Connection(_)), "{error}");
            assert_eq!(server.connections(), asked);
        }
    }

    #[tokio::test]
    async fn a_request_that_may_have_arrived_is_not_sent_again() {
        let server = Server::answering(b"", true).await;
        let connection = server.transport.poll_connection();
        let error = server.ask(&connection).await.err().unwrap();
        assert!(matches!(error, TransportError::Connection(_)), "{error}");
        assert_eq!(server.connections(), 1);
    }

    #[tokio::test]
    async fn a_poll_that_is_given_up_takes_its_connection_with_it() {
        let mut server = Server::answering(b"", false).await;
        let connection = server.transport.poll_connection();
        {
            let mut poll = pin!(server.ask(&connection));
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
    async fn a_status_without_soap_is_told() {
        let answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
        let server = Server::answering(answer, false).await;
        let connection = server.transport.poll_connection();
        let error = server.ask(&connection).await.err().unwrap();
        assert!(matches!(error, TransportError::Status(503)), "{error}");
    }
}
