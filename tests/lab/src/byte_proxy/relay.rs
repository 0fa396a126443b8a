//! The connections through the proxy.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{MissedTickBehavior, interval};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;

use super::message::{HttpMessage, Peer};
use super::{ACCEPTED, ByteFault, ByteProxyShared, ByteUpstream};

/// Between the bytes of a slow reply.
const SLOW: Duration = Duration::from_secs(1);
/// Between the parts of an endless flood, which would use a whole core otherwise.
const FLOOD: Duration = Duration::from_millis(5);
/// Replies in one part of a flood.
const FLOOD_PART: usize = 50;
/// Replies in a flood that ends.
const MANY: usize = 1_000;
/// A longer reply is not kept to be sent instead of another one.
const KEPT_MAX: usize = 1 << 20;
/// The pause after an error of accept, as without free descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);

const INFORMATIONAL: &str = "HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\n";
const UNAVAILABLE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html\r\nContent-Length: 33\r\n\r\n\
    <html>503 try again later.</html>";
/// The beginning of a TLS record of the handshake, with the length of a ServerHello that does not come.
const HALF_HANDSHAKE: &[u8] = &[0x16, 0x03, 0x03, 0x00, 0x7a, 0x02, 0x00];

/// The accepting side.
pub(super) struct Relay {
    pub(super) shared: Arc<ByteProxyShared>,
    pub(super) upstream: ByteUpstream,
    pub(super) own: TlsAcceptor,
    /// With the certificate of another CA.
    pub(super) foreign: TlsAcceptor,
}

/// Whether a connection serves a further request.
#[derive(PartialEq, Eq)]
enum ConnectionAfter {
    Stays,
    Closes,
}

impl Relay {
    pub(super) async fn serve(self, listener: TcpListener, end: CancellationToken) {
        let relay = Arc::new(self);
        loop {
            match listener.accept().await {
                Ok((tcp, _)) => {
                    let (relay, end) = (relay.clone(), end.clone());
                    let mut cuts = relay.shared.cuts.subscribe();
                    tokio::spawn(async move {
                        let side = relay.shared.side;
                        let result = tokio::select! {
                            biased;
                            () = end.cancelled() => Ok(()),
                            // The sender lives as long as `relay`.
                            _ = cuts.changed() => Ok(()),
                            result = relay.converse(tcp) => result,
                        };
                        if let Err(error) = result {
                            tracing::debug!(%side, %error, "a connection through the byte proxy ended");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(side = %relay.shared.side, %error, "the byte proxy failed to accept a connection");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    async fn converse(&self, mut tcp: TcpStream) -> io::Result<()> {
        tcp.set_nodelay(true)?;
        match self.shared.of_connection() {
            None => {}
            Some(ByteFault::ForeignCertificate) => {
                if self.foreign.accept(tcp).await.is_ok() {
                    self.shared.lock().count(ByteFault::ForeignCertificate, ACCEPTED);
                }
                return Ok(());
            }
            Some(fault) => {
                if matches!(fault, ByteFault::HoldHandshake | ByteFault::CutHandshake) {
                    tcp.read_u8().await?;
                    tcp.write_all(HALF_HANDSHAKE).await?;
                }
                if fault.holds() {
                    Peer::new(tcp).closed().await;
                }
                return Ok(());
            }
        }
        let mut client = Peer::new(self.own.accept(tcp).await?);
        self.shared.lock().connections += 1;
        let mut server = None;
        while let Some(request) = client.request().await? {
            let is_last = self.exchange(&mut client, &mut server, &request).await? == ConnectionAfter::Closes;
            if is_last || self.shared.lock().one_reply_each {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn connect(&self) -> io::Result<Peer> {
        let tcp = TcpStream::connect(self.upstream.address).await?;
        tcp.set_nodelay(true)?;
        let Some(tls) = &self.upstream.tls else {
            return Ok(Peer::new(tcp));
        };
        let name = ServerName::from(self.upstream.address.ip());
        let connector = TlsConnector::from(Arc::new(tls.clone()));
        Ok(Peer::new(connector.connect(name, tcp).await?))
    }

    /// Forwards a request and its reply, with the fault that is planned.
    async fn exchange(
        &self,
        client: &mut Peer,
        server: &mut Option<Peer>,
        request: &HttpMessage,
    ) -> io::Result<ConnectionAfter> {
        let kind = request.what(self.shared.side);
        let fault = self.shared.of_request(&kind);
        match fault {
            Some(ByteFault::HoldRequest) => {
                client.closed().await;
                return Ok(ConnectionAfter::Closes);
            }
            Some(ByteFault::CutRequest) => return Ok(ConnectionAfter::Closes),
            Some(ByteFault::Unavailable) => {
                client.write(UNAVAILABLE).await?;
                return Ok(ConnectionAfter::Stays);
            }
            Some(_) | None => {}
        }
        let upstream = match server {
            Some(upstream) => upstream,
            None => server.insert(self.connect().await?),
        };
        upstream.write(&request.bytes).await?;
        let method = request.method();
        let mut reply = tokio::select! {
            biased;
            head = upstream.reply_head(&method) => head?,
            // A client that has given up: the server has to see that.
            () = client.closed() => return Ok(ConnectionAfter::Closes),
        };
        // A watch has no end, so what is done to it is done to its head.
        let is_watch = kind.starts_with("WATCH ");
        let Some(fault) = fault else {
            if self.shared.lock().one_reply_each {
                reply.announce_close();
            }
            client.write(&reply.bytes).await?;
            return self
                .pass(client, upstream, reply, (!is_watch).then_some(kind))
                .await;
        };
        while !is_watch && let Some(bytes) = upstream.rest(&mut reply).await? {
            reply.bytes.extend(bytes);
        }
        let connection = self.damage(client, &reply, fault).await?;
        if is_watch && connection == ConnectionAfter::Stays {
            if matches!(fault, ByteFault::UnavailableReply | ByteFault::OtherReply) {
                // The client had another reply, so the watch is of no use.
                *server = None;
            } else {
                return self.pass(client, upstream, reply, None).await;
            }
        }
        Ok(connection)
    }

    /// Forwards the rest of a reply. A complete one to a request of `kind` is kept.
    async fn pass(
        &self,
        client: &mut Peer,
        upstream: &mut Peer,
        mut reply: HttpMessage,
        kind: Option<String>,
    ) -> io::Result<ConnectionAfter> {
        loop {
            let bytes = tokio::select! {
                biased;
                bytes = upstream.rest(&mut reply) => bytes?,
                () = client.closed() => return Ok(ConnectionAfter::Closes),
            };
            let Some(bytes) = bytes else { break };
            client.write(&bytes).await?;
            if kind.is_some() && reply.bytes.len() <= KEPT_MAX {
                reply.bytes.extend(bytes);
            }
        }
        if let Some(kind) = kind.filter(|_| reply.bytes.len() <= KEPT_MAX) {
            self.shared.lock().last_reply = Some((kind, reply.bytes));
        }
        Ok(ConnectionAfter::Stays)
    }

    /// Sends a reply with a fault.
    async fn damage(
        &self,
        client: &mut Peer,
        reply: &HttpMessage,
        fault: ByteFault,
    ) -> io::Result<ConnectionAfter> {
        let bytes = &reply.bytes[..];
        let in_body = reply.head + (bytes.len() - reply.head) / 2;
        match fault {
            ByteFault::HoldReply | ByteFault::CutReply => {}
            ByteFault::HoldReplyHead | ByteFault::CutReplyHead => {
                client.write(&bytes[..reply.head / 2]).await?
            }
            ByteFault::CutReplyAfterHead => client.write(&bytes[..reply.head]).await?,
            ByteFault::HoldReplyBody | ByteFault::CutReplyBody => client.write(&bytes[..in_body]).await?,
            ByteFault::CutReplyEnd => client.write(&bytes[..bytes.len() - 1]).await?,
            ByteFault::SlowReply => {
                let mut tick = interval(SLOW);
                tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
                for byte in bytes.chunks(1) {
                    tokio::select! {
                        biased;
                        () = client.closed() => return Ok(ConnectionAfter::Closes),
                        _ = tick.tick() => {}
                    }
                    client.write(byte).await?;
                }
            }
            ByteFault::ManyInformational => {
                let flood = INFORMATIONAL.repeat(MANY);
                client.write(&[flood.as_bytes(), bytes].concat()).await?;
            }
            ByteFault::EndlessInformational => {
                let part = INFORMATIONAL.repeat(FLOOD_PART);
                let mut tick = interval(FLOOD);
                // Ends with an error when the client has closed the connection.
                loop {
                    tick.tick().await;
                    client.write(part.as_bytes()).await?;
                }
            }
            ByteFault::UnavailableReply => client.write(UNAVAILABLE).await?,
            ByteFault::RepeatedReply => client.write(&bytes.repeat(2)).await?,
            ByteFault::OtherReply => {
                let other = self.shared.lock().last_reply.clone();
                client
                    .write(&other.map(|(_, bytes)| bytes).unwrap_or_default())
                    .await?;
            }
            ByteFault::HoldAccept
            | ByteFault::CutAccept
            | ByteFault::HoldHandshake
            | ByteFault::CutHandshake
            | ByteFault::ForeignCertificate
            | ByteFault::HoldRequest
            | ByteFault::CutRequest
            | ByteFault::Unavailable => {}
        }
        if fault.holds() {
            client.closed().await;
        }
        Ok(if fault.ends_connection() {
            ConnectionAfter::Closes
        } else {
            ConnectionAfter::Stays
        })
    }
}
