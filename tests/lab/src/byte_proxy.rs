//! A proxy with TLS on both sides before one server, which breaks connections and replies at the level of bytes.
//!
//! [`crate::fault_proxy`] stops at requests and always sends complete replies. This one stops half-way: it holds or cuts a
//! connection at any stage, sends a reply slowly, twice, or that of another request, and counts what it did.

mod message;
mod relay;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::relay::Relay;
use crate::fault_proxy::{Side, write_kubeconfig_of};
use crate::vcenter::Tls;

/// The kind under which faults of connections are counted.
pub const CONNECTION: &str = "connection";
/// The kind under which a connection is counted whose client accepted a foreign certificate.
pub const ACCEPTED: &str = "accepted foreign certificate";

/// What the proxy does to a connection or to a request. Held connections stay open until the client closes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ByteFault {
    /// The connection is accepted, and nothing is sent.
    HoldAccept,
    /// The connection is accepted and closed.
    CutAccept,
    /// The TLS handshake stops after the first bytes of the server.
    HoldHandshake,
    /// The connection is closed after the first bytes of the server's part of the TLS handshake.
    CutHandshake,
    /// The certificate is that of another CA.
    ForeignCertificate,
    /// The request is read and not forwarded.
    HoldRequest,
    /// The request is read and not forwarded, and the connection is closed.
    CutRequest,
    /// 503, without forwarding the request.
    Unavailable,
    /// The request is forwarded, and the reply is not.
    HoldReply,
    /// The reply stops in its head.
    HoldReplyHead,
    /// The reply stops in its body.
    HoldReplyBody,
    /// The reply is sent with one byte a second.
    SlowReply,
    /// The connection is closed instead of a reply, after the request was forwarded.
    CutReply,
    /// The connection is closed in the head of the reply.
    CutReplyHead,
    /// The connection is closed between head and body of the reply.
    CutReplyAfterHead,
    /// The connection is closed in the body of the reply.
    CutReplyBody,
    /// The connection is closed before the last byte of the reply.
    CutReplyEnd,
    /// A thousand replies with status 103 come before the reply.
    ManyInformational,
    /// Replies with status 103 come without an end, and the reply never comes.
    EndlessInformational,
    /// 503 instead of the reply, after the request was forwarded.
    UnavailableReply,
    /// The reply is sent twice.
    RepeatedReply,
    /// The reply to an earlier request is sent instead of this one.
    OtherReply,
}

#[derive(PartialEq, Eq)]
enum FaultTarget {
    Connection,
    Request,
}

/// What becomes of the connection.
#[derive(PartialEq, Eq)]
enum FaultEnd {
    Held,
    Cut,
    Continues,
}

/// When a fault applies.
enum FaultPlan {
    /// To the first request of each kind.
    EachKind {
        is_wanted: Box<dyn Fn(&str) -> bool + Send>,
        done: BTreeSet<String>,
    },
    /// To so many connections or requests.
    Next(usize),
}

/// The server behind the proxy.
pub struct ByteUpstream {
    pub address: SocketAddr,
    /// The client's side of TLS; without it the connection is plain.
    pub tls: Option<ClientConfig>,
}

/// How often each fault applied to requests of each kind, or to connections.
pub type FaultAccount = BTreeMap<(ByteFault, String), usize>;

/// The proxy before one server. Dropping it closes its connections.
pub struct ByteProxy {
    shared: Arc<ByteProxyShared>,
    address: SocketAddr,
    _end: DropGuard,
}

struct ByteProxyState {
    plans: Vec<(ByteFault, FaultPlan)>,
    account: FaultAccount,
    /// The last complete reply, and what it was for.
    last_reply: Option<(String, Vec<u8>)>,
    one_reply_each: bool,
    connections: usize,
    requests: BTreeMap<String, usize>,
}

struct ByteProxyShared {
    side: Side,
    state: Mutex<ByteProxyState>,
    /// Counts the cuts of all connections.
    cuts: watch::Sender<u64>,
}

impl ByteFault {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::HoldAccept,
        Self::CutAccept,
        Self::HoldHandshake,
        Self::CutHandshake,
        Self::ForeignCertificate,
        Self::HoldRequest,
        Self::CutRequest,
        Self::Unavailable,
        Self::HoldReply,
        Self::HoldReplyHead,
        Self::HoldReplyBody,
        Self::SlowReply,
        Self::CutReply,
        Self::CutReplyHead,
        Self::CutReplyAfterHead,
        Self::CutReplyBody,
        Self::CutReplyEnd,
        Self::ManyInformational,
        Self::EndlessInformational,
        Self::UnavailableReply,
        Self::RepeatedReply,
        Self::OtherReply,
    ];

    /// Whether it applies to a connection, before any request.
    pub fn is_of_connection(self) -> bool {
        self.effect().0 == FaultTarget::Connection
    }

    /// Whether only a deadline of the client ends it.
    pub fn holds(self) -> bool {
        self.effect().1 == FaultEnd::Held
    }

    /// Whether the connection serves no further request.
    fn ends_connection(self) -> bool {
        self.effect().1 != FaultEnd::Continues
    }

    fn effect(self) -> (FaultTarget, FaultEnd) {
        use FaultEnd::{Continues, Cut, Held};
        use FaultTarget::{Connection, Request};
        match self {
            Self::HoldAccept | Self::HoldHandshake => (Connection, Held),
            Self::CutAccept | Self::CutHandshake | Self::ForeignCertificate => (Connection, Cut),
            Self::HoldRequest
            | Self::HoldReply
            | Self::HoldReplyHead
            | Self::HoldReplyBody
            | Self::SlowReply
            | Self::EndlessInformational => (Request, Held),
            Self::CutRequest
            | Self::CutReply
            | Self::CutReplyHead
            | Self::CutReplyAfterHead
            | Self::CutReplyBody
            | Self::CutReplyEnd => (Request, Cut),
            Self::Unavailable
            | Self::ManyInformational
            | Self::UnavailableReply
            | Self::RepeatedReply
            | Self::OtherReply => (Request, Continues),
        }
    }
}

impl fmt::Debug for ByteUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, tls } = self;
        write!(f, "{address}, TLS: {}", tls.is_some())
    }
}

impl ByteUpstream {
    /// A server over TLS with a certificate of the CA in this PEM file.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub fn trusting(address: SocketAddr, authority: &Path) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authority)? {
            roots.add(certificate).context("trusting a certificate")?;
        }
        let tls = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            address,
            tls: Some(tls),
        })
    }
}

impl ByteProxy {
    /// Starts a proxy with this certificate on a port of 127.0.0.1. It passes everything until a fault is planned.
    ///
    /// # Errors
    /// If the certificate cannot be used, or no port is free.
    pub async fn start(side: Side, certificate: &Tls, upstream: ByteUpstream) -> anyhow::Result<Self> {
        // An error means that a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let key = PrivateKeyDer::from_pem_file(&certificate.key).context("reading the proxy's key")?;
        let own = acceptor(certificates(&certificate.cert)?, key)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.context("binding a port of 127.0.0.1 for the byte proxy")?;
        let address = listener.local_addr().context("asking for the proxy's port")?;
        let shared = Arc::new(ByteProxyShared {
            side,
            state: Mutex::new(ByteProxyState {
                plans: Vec::new(),
                account: FaultAccount::new(),
                last_reply: None,
                one_reply_each: false,
                connections: 0,
                requests: BTreeMap::new(),
            }),
            cuts: watch::Sender::new(0),
        });
        let relay = Relay {
            shared: shared.clone(),
            upstream,
            own,
            foreign: foreign()?,
        };
        let end = CancellationToken::new();
        tokio::spawn(
            end.clone()
                .run_until_cancelled_owned(relay.serve(listener, end.clone())),
        );
        Ok(Self {
            shared,
            address,
            _end: end.drop_guard(),
        })
    }

    /// Its address for clients.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Writes a kubeconfig for the proxy without credentials: the proxy's own connections have some.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_kubeconfig(&self, path: &Path, authority: &Path) -> anyhow::Result<()> {
        let cluster = json!({"server": self.url(), "certificate-authority": authority});
        write_kubeconfig_of(&cluster, path)
    }

    /// From now on the first request of each wanted kind has this fault, beside what is planned already.
    pub fn strike_each(&self, fault: ByteFault, is_wanted: impl Fn(&str) -> bool + Send + 'static) {
        let plan = FaultPlan::EachKind {
            is_wanted: Box::new(is_wanted),
            done: BTreeSet::new(),
        };
        self.shared.lock().plans.push((fault, plan));
    }

    /// The next `count` connections or requests have this fault. For a fault of connections, present ones are cut, so that
    /// there are new ones.
    pub fn strike_next(&self, fault: ByteFault, count: usize) {
        self.shared.lock().plans.push((fault, FaultPlan::Next(count)));
        if fault.is_of_connection() {
            self.cut();
        }
    }

    /// Cuts all present connections.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Closes each connection after one reply, which says so. Each request then needs another connection. Without the
    /// announcement, the next request could be sent on the connection that ends, and would have no reply.
    pub fn close_after_each_reply(&self) {
        self.shared.lock().one_reply_each = true;
    }

    /// The number of connections so far whose TLS handshake was completed.
    pub fn connections(&self) -> usize {
        self.shared.lock().connections
    }

    /// The number of requests of each kind so far.
    pub fn requests(&self) -> BTreeMap<String, usize> {
        self.shared.lock().requests.clone()
    }

    /// What was done so far.
    pub fn account(&self) -> FaultAccount {
        self.shared.lock().account.clone()
    }
}

impl fmt::Debug for ByteProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteProxy")
            .field("side", &self.shared.side)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl ByteProxyShared {
    fn lock(&self) -> MutexGuard<'_, ByteProxyState> {
        // A panic elsewhere leaves the state consistent, and fails its own test.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault of a new connection.
    fn of_connection(&self) -> Option<ByteFault> {
        self.lock().take(CONNECTION, ByteFault::is_of_connection)
    }

    /// The fault of a request of this kind.
    fn of_request(&self, kind: &str) -> Option<ByteFault> {
        let mut state = self.lock();
        *state.requests.entry(kind.to_owned()).or_default() += 1;
        let has_other = state.last_reply.as_ref().is_some_and(|(it, _)| it != kind);
        state.take(kind, |fault| {
            !fault.is_of_connection() && (has_other || fault != ByteFault::OtherReply)
        })
    }
}

impl ByteProxyState {
    /// The first planned fault that applies. It is counted.
    fn take(&mut self, kind: &str, is_possible: impl Fn(ByteFault) -> bool) -> Option<ByteFault> {
        let mut plans = self.plans.iter_mut().filter(|(fault, _)| is_possible(*fault));
        let fault = plans.find_map(|(fault, plan)| plan.takes(kind).then_some(*fault))?;
        self.count(fault, kind);
        Some(fault)
    }

    fn count(&mut self, fault: ByteFault, kind: &str) {
        *self.account.entry((fault, kind.to_owned())).or_default() += 1;
        tracing::debug!(?fault, kind, "the byte proxy applies a fault");
    }
}

impl FaultPlan {
    fn takes(&mut self, kind: &str) -> bool {
        match self {
            Self::EachKind { is_wanted, done } => is_wanted(kind) && done.insert(kind.to_owned()),
            Self::Next(0) => false,
            Self::Next(left) => {
                *left -= 1;
                true
            }
        }
    }
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
    read().with_context(|| format!("reading the certificates in {}", path.display()))
}

fn acceptor(
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> anyhow::Result<TlsAcceptor> {
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .context("using the proxy's certificate")?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// An acceptor with a certificate for the same address, which no CA of the lab has signed.
pub(crate) fn foreign() -> anyhow::Result<TlsAcceptor> {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]);
    let made = made.context("making a foreign certificate")?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
    acceptor(vec![made.cert.der().clone()], key)
}
