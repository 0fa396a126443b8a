//! Servers and proxies on loopback, and certificates for them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// A deadline that only a program that hangs reaches.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Anything that TLS can run over.
pub trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connection for T {}

/// A CA of its own for each test.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
    pub pem: String,
}

impl Authority {
    pub fn create() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "a CA");
        let certificate = params.self_signed(&key).unwrap();
        Self {
            der: certificate.der().clone(),
            pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Certificate and key of a client, as PEM.
    pub fn client(&self) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(Vec::new()).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// Accepts TLS with a certificate for these names and addresses.
    pub fn acceptor(&self, names: &[&str]) -> TlsAcceptor {
        self.acceptor_that(false, names)
    }

    /// Asks for a certificate of this CA as well.
    pub fn acceptor_of_clients(&self, names: &[&str]) -> TlsAcceptor {
        self.acceptor_that(true, names)
    }

    fn acceptor_that(&self, asks_clients: bool, names: &[&str]) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = CertificateParams::new(names).unwrap();
        let leaf = params.signed_by(&key, &self.issuer).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let config = if asks_clients {
            let mut roots = RootCertStore::empty();
            roots.add(self.der.clone()).unwrap();
            let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            config.with_client_cert_verifier(clients.build().unwrap())
        } else {
            config.with_no_client_auth()
        };
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut config = config.with_single_cert(vec![leaf.der().clone()], key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}

/// A peer on loopback that keeps what was asked of it.
pub struct Peer {
    pub address: SocketAddr,
    seen: watch::Receiver<Vec<String>>,
    _serves: JoinSet<()>,
}

/// Where a peer keeps it.
type Log = Arc<watch::Sender<Vec<String>>>;

fn keep(log: &Log, request: String) {
    log.send_modify(|seen| seen.push(request));
}

impl Peer {
    /// Serves each connection at `at`, with TLS where an acceptor is given.
    async fn start<S, F>(at: &str, tls: Option<TlsAcceptor>, serve: S) -> Self
    where
        S: Fn(Box<dyn Connection>, Log) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (log, seen) = watch::channel(Vec::new());
        let log: Log = Arc::new(log);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                let (log, tls, serve) = (log.clone(), tls.clone(), serve.clone());
                connections.spawn(async move {
                    let connection: Box<dyn Connection> = match tls {
                        Some(tls) => match tls.accept(tcp).await {
                            Ok(tls) => Box::new(tls),
                            Err(_) => return,
                        },
                        None => Box::new(tcp),
                    };
                    serve(connection, log).await;
                });
            }
        });
        Self {
            address,
            seen,
            _serves: tasks,
        }
    }

    /// A server that knows nothing: it answers each request with 404, and keeps its head.
    pub async fn server(at: &str, tls: Option<TlsAcceptor>) -> Self {
        Self::start(at, tls, |mut connection, log| async move {
            let Some(head) = head(&mut connection).await else {
                return;
            };
            keep(&log, head);
            let answer = "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
            let _ = connection.write_all(answer.as_bytes()).await;
            let _ = connection.shutdown().await;
        })
        .await
    }

    /// A proxy that connects every name to `target`. It keeps the CONNECT requests, with the credentials in them.
    pub async fn proxy(at: &str, tls: Option<TlsAcceptor>, target: SocketAddr) -> Self {
        Self::start(at, tls, move |mut connection, log| async move {
            let Some(head) = head(&mut connection).await else {
                return;
            };
            let line = head.lines().next().unwrap_or_default().to_owned();
            let credentials = head
                .lines()
                .find_map(|line| line.strip_prefix("Proxy-Authorization: "));
            let credentials = credentials.map(|it| format!(" {it}")).unwrap_or_default();
            keep(&log, line + &credentials);
            let mut target = TcpStream::connect(target).await.unwrap();
            let _ = connection.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
            let _ = tokio::io::copy_bidirectional(&mut connection, &mut target).await;
        })
        .await
    }

    /// A SOCKS5 proxy without a login that connects every name to `target`. It keeps the names and ports.
    pub async fn socks(at: &str, target: SocketAddr) -> Self {
        Self::start(at, None, move |mut connection, log| async move {
            // RFC 1928: version 5, one method (none); CONNECT, a name with its length, a port.
            let mut greeting = [0; 3];
            connection.read_exact(&mut greeting).await.unwrap();
            connection.write_all(&[5, 0]).await.unwrap();
            let mut request = [0; 5];
            connection.read_exact(&mut request).await.unwrap();
            let asked = match request[3] {
                3 => {
                    let mut name = vec![0; usize::from(request[4])];
                    connection.read_exact(&mut name).await.unwrap();
                    String::from_utf8(name).unwrap()
                }
                1 => {
                    let mut rest = [0; 3];
                    connection.read_exact(&mut rest).await.unwrap();
                    format!("{}.{}.{}.{}", request[4], rest[0], rest[1], rest[2])
                }
                other => panic!("address type {other}"),
            };
            let port = connection.read_u16().await.unwrap();
            keep(&log, format!("{asked}:{port}"));
            connection
                .write_all(&[5, 0, 0, 1, 127, 0, 0, 1, 0, 0])
                .await
                .unwrap();
            let mut target = TcpStream::connect(target).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut connection, &mut target).await;
        })
        .await
    }

    /// The first lines of all requests.
    pub fn seen(&self) -> Vec<String> {
        let first = |head: String| head.lines().next().unwrap_or_default().to_owned();
        self.heads().into_iter().map(first).collect()
    }

    pub fn heads(&self) -> Vec<String> {
        self.seen.borrow().clone()
    }

    /// Waits for a request.
    pub async fn asked(&self) {
        let mut seen = self.seen.clone();
        seen.wait_for(|seen| !seen.is_empty()).await.unwrap();
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

/// The head of a request; `None` if the connection ends before.
async fn head(connection: &mut Box<dyn Connection>) -> Option<String> {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        match connection.read_u8().await {
            Ok(byte) => read.push(byte),
            Err(_) => return None,
        }
    }
    String::from_utf8(read).ok()
}

/// A directory for the files of one test.
pub struct Files(PathBuf);

/// Counts the directories of this process.
static DIRECTORIES: AtomicU32 = AtomicU32::new(0);

impl Files {
    pub fn create(test: &str) -> Self {
        let number = DIRECTORIES.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("haulout-{test}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// A kubeconfig for `server`, whose CA is `ca`, with further fields of the cluster.
    pub fn kubeconfig(&self, server: &str, ca: &str, more: &[(&str, &str)]) -> String {
        let ca = self.write("ca.crt", ca);
        let mut cluster = serde_json::json!({"server": server, "certificate-authority": ca});
        for (field, value) in more {
            cluster[*field] = (*value).into();
        }
        // JSON is YAML too.
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        self.write("kubeconfig", config.to_string())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A client as the program has it for a webhook, without a proxy.
pub fn http_client() -> reqwest::Client {
    // Another test may have installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().unwrap()
}

/// The program with these arguments, and no other variables than these.
pub fn haulout(args: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_haulout"));
    command
        .args(args)
        .env_clear()
        .envs(environment.iter().copied())
        .kill_on_drop(true);
    command
}

/// Runs it to its end.
pub async fn output(mut command: Command) -> Output {
    let run = tokio::time::timeout(PATIENCE, command.output());
    run.await.unwrap().unwrap()
}
