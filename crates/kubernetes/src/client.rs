//! Connects to the kube-apiserver: by `KUBECONFIG`, from inside the cluster, or by the user's own kubeconfig.

mod proxy;
mod token_file;

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::rt::{Read, Write};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::client::legacy::{self, Client};
use hyper_util::client::proxy::matcher::Intercept;
use hyper_util::rt::TokioExecutor;
use kube::client::{ClientBuilder, ConfigExt as _};
use kube::config::{Config, KubeConfigOptions, Kubeconfig, KubeconfigError};
use secrecy::ExposeSecret as _;
use thiserror::Error;
use tower::{BoxError, Service, ServiceBuilder};

use self::token_file::TokenFile;
use super::answer;

/// Long enough for a lost SYN and its retransmissions, short enough to reach another replica behind a load balancer soon.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// The largest request is a PATCH of a few kilobytes.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);

/// The deadline of reads inside kube's watcher. It must be longer than `WATCH_SECONDS` of [`watch`](super::watch), after which the
/// kube-apiserver ends a silent watch.
pub const READ_DEADLINE: Duration = Duration::from_secs(90);

/// Reading a kubeconfig may run a credential plugin (`exec:`), which may ask a cloud for a token.
const CONFIG_DEADLINE: Duration = Duration::from_secs(60);

/// A kube-apiserver, and the way to it.
struct ApiServer {
    config: Config,
    proxy: Option<Intercept>,
    /// Instead of that in `config`.
    token_file: Option<TokenFile>,
}

impl ApiServer {
    /// Without a proxy, whatever the environment says.
    fn direct(config: Config) -> Self {
        Self {
            config,
            proxy: None,
            token_file: None,
        }
    }

    /// The kube-apiserver of the surrounding cluster, which is reached without a proxy.
    fn surrounding() -> Result<Self, KubeConnectError> {
        let config = Config::incluster();
        let config = config.map_err(|error| KubeConnectError::InCluster(answer::chain(&error)))?;
        Ok(Self::direct(config))
    }
}

/// Why there is no client, each with what is wrong.
#[derive(Debug, Error)]
pub enum KubeConnectError {
    /// `KUBECONFIG` is set, and what it names cannot be used.
    #[error("the kubeconfig that KUBECONFIG names cannot be used: {0}; correct the file or unset KUBECONFIG")]
    Kubeconfig(String),
    /// The kubeconfig or context of the command line cannot be used.
    #[error("what --kubeconfig and --context name cannot be used: {0}")]
    Asked(String),
    /// The service account of the pod cannot be used.
    #[error(
        "the service account of this pod cannot be used: {0}; mount its token (automountServiceAccountToken)"
    )]
    InCluster(String),
    /// The kubeconfig of another cluster than that of the nodes cannot be used.
    #[error("the kubeconfig that {setting} names cannot be used: {message}")]
    Other { setting: &'static str, message: String },
    /// Neither a kubeconfig nor a service account.
    #[error(
        "no cluster to connect to: KUBECONFIG is not set, this is no pod, and ~/.kube/config cannot be used: {0}"
    )]
    Nowhere(String),
    /// The configuration was read, but no client can be built from it.
    #[error("no client can be built for {url}: {message}")]
    Build { url: String, message: String },
}

/// Makes a client. Sends no request.
pub async fn connect() -> Result<kube::Client, KubeConnectError> {
    Ok(connect_with_address().await?.0)
}

/// As [`connect`], with the address of the kube-apiserver.
pub async fn connect_with_address() -> Result<(kube::Client, String), KubeConnectError> {
    let server = configuration().await?;
    let address = address(&server.config);
    Ok((client_of(server)?, address))
}

/// Makes a client for another cluster than that of the nodes, as `setting` names it: by the kubeconfig at `path`, or for the
/// surrounding cluster if that is `in-cluster`.
pub async fn connect_other(setting: &'static str, path: &Path) -> Result<kube::Client, KubeConnectError> {
    if path == Path::new("in-cluster") {
        return client_of(ApiServer::surrounding()?);
    }
    let read = from_kubeconfig(Some(path), None).await;
    client_of(read.map_err(|message| KubeConnectError::Other { setting, message })?)
}

/// The flags of the command line that select a cluster, named as those of kubectl.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub struct Access {
    /// The kubeconfig to use, instead of KUBECONFIG, the surrounding cluster, or ~/.kube/config
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Act as another user, such as system:serviceaccount:haulout:haulout
    #[arg(long = "as", value_name = "USER")]
    pub impersonate: Option<String>,
}

/// Makes a client for a subcommand: as [`connect`], unless `access` says otherwise.
pub async fn connect_by(access: &Access) -> Result<kube::Client, KubeConnectError> {
    let mut server = if access.kubeconfig.is_none() && access.context.is_none() {
        configuration().await?
    } else {
        let read = from_kubeconfig(access.kubeconfig.as_deref(), access.context.clone()).await;
        read.map_err(KubeConnectError::Asked)?
    };
    if let Some(user) = &access.impersonate {
        server.config.auth_info.impersonate = Some(user.clone());
    }
    client_of(server)
}

/// Makes a client of a configuration read elsewhere, with our own deadlines and without a proxy.
pub fn client(config: Config) -> Result<kube::Client, KubeConnectError> {
    client_of(ApiServer::direct(config))
}

fn client_of(server: ApiServer) -> Result<kube::Client, KubeConnectError> {
    let url = server.config.cluster_url.to_string();
    connector(server).map_err(|error| KubeConnectError::Build {
        url,
        message: answer::chain(&error),
    })
}

/// The address for people.
fn address(config: &Config) -> String {
    config.cluster_url.to_string().trim_end_matches('/').to_owned()
}

/// The client over a connection with `TCP_NODELAY`, which kube does not set. With Nagle's algorithm the body of a PATCH waits for
/// the acknowledgement of its head, which may be delayed by 40 ms.
fn connector(server: ApiServer) -> kube::Result<kube::Client> {
    let ApiServer {
        config,
        proxy,
        token_file,
    } = server;
    let mut tcp = HttpConnector::new();
    // TLS is a layer above, so https addresses reach this connector.
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let target = address(&config);
    let Some(proxy) = proxy else {
        return stack(config, token_file, tcp, target);
    };
    let to = proxy.uri().clone();
    let target = format!(
        "{target} through the proxy {}",
        to.to_string().trim_end_matches('/')
    );
    match to.scheme_str() {
        Some("socks5" | "socks5h") => {
            let mut tunnel = SocksV5::new(to, tcp);
            if let Some((user, password)) = proxy.raw_auth() {
                tunnel = tunnel.with_auth(user.to_owned(), password.to_owned());
            }
            stack(config, token_file, tunnel, target)
        }
        // As with kubectl, the CA of the kubeconfig is also that of the proxy.
        Some("https") => {
            let tls = config.rustls_https_connector_with_connector(tcp)?;
            stack(config, token_file, tunnel(&proxy, tls), target)
        }
        Some(_) | None => stack(config, token_file, tunnel(&proxy, tcp), target),
    }
}

fn tunnel<C>(proxy: &Intercept, connector: C) -> Tunnel<C> {
    let tunnel = Tunnel::new(proxy.uri().clone(), connector);
    match proxy.basic_auth() {
        Some(credentials) => tunnel.with_auth(credentials.clone()),
        None => tunnel,
    }
}

/// kube's layers over the connections of `connector`; `target` names their other end in errors.
fn stack<C>(
    config: Config,
    token_file: Option<TokenFile>,
    connector: C,
    target: String,
) -> kube::Result<kube::Client>
where
    C: Service<http::Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError> + Send + Sync + std::error::Error + 'static,
{
    let mut timed = TimeoutConnector::new(config.rustls_https_connector_with_connector(connector)?);
    timed.set_connect_timeout(Some(CONNECT_DEADLINE));
    timed.set_write_timeout(Some(WRITE_DEADLINE));
    timed.set_read_timeout(Some(READ_DEADLINE));
    // Otherwise the idle time of a pooled connection counts against the next reply.
    timed.set_reset_reader_on_write(true);
    // kube's retry layer is left out: it repeats a 429 for minutes, and 429 is the reply to an eviction that a budget blocks.
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_request(move |mut request: http::Request<kube::client::Body>| {
            if let Some(file) = &token_file {
                request
                    .headers_mut()
                    .insert(http::header::AUTHORIZATION, file.header());
            }
            request
        })
        .map_future(|reply| head_within(READ_DEADLINE, reply))
        .map_err(move |error| named(&target, error))
        .service(Client::builder(TokioExecutor::new()).build(timed));
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// Waits for the head of a reply, at most for `deadline`. The deadline of the connection begins again with each byte, and a
/// watch has no other one until its head is there.
async fn head_within<R>(
    deadline: Duration,
    reply: impl Future<Output = Result<R, BoxError>>,
) -> Result<R, BoxError> {
    match tokio::time::timeout(deadline, reply).await {
        Ok(reply) => reply,
        Err(_elapsed) => Err(format!("no answer within {} s", deadline.as_secs()).into()),
    }
}

/// No connection to the kube-apiserver.
#[derive(Debug, Error)]
#[error("no connection to the kube-apiserver at {address}")]
struct NoConnection {
    address: String,
    source: legacy::Error,
}

/// Adds the address to an error of connecting, which a person needs to find a wrong kubeconfig or firewall.
fn named(address: &str, error: legacy::Error) -> BoxError {
    if error.is_connect() {
        let address = address.to_owned();
        return BoxError::from(NoConnection {
            address,
            source: error,
        });
    }
    BoxError::from(error)
}

/// The same client, whose requests carry `traceparent` (W3C Trace Context). A value that is not valid in a header is left out.
pub fn traced(client: &kube::Client, traceparent: &str) -> kube::Client {
    let Ok(value) = http::HeaderValue::from_str(traceparent) else {
        return client.clone();
    };
    let inner = client.clone();
    // It wraps the client, because the inner layers run in a task of their own, which does not know the episode.
    let service = tower::service_fn(move |mut request: http::Request<kube::client::Body>| {
        request.headers_mut().insert("traceparent", value.clone());
        let inner = inner.clone();
        async move { inner.send(request).await }
    });
    kube::Client::new(service, client.default_namespace())
}

/// Searches as `kubectl` does, but a KUBECONFIG that is set and unusable is an error: a fallback to the service account could
/// change nodes of the wrong cluster.
async fn configuration() -> Result<ApiServer, KubeConnectError> {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if is_set("KUBECONFIG") {
        let read = from_kubeconfig(None, None).await;
        return read.map_err(KubeConnectError::Kubeconfig);
    }
    if is_set("KUBERNETES_SERVICE_HOST") {
        return ApiServer::surrounding();
    }
    let read = from_kubeconfig(None, None).await;
    read.map_err(KubeConnectError::Nowhere)
}

/// Reads the kubeconfig at `path`, or the one that kubectl would read.
async fn from_kubeconfig(path: Option<&Path>, context: Option<String>) -> Result<ApiServer, String> {
    let read = async {
        let kubeconfig = match path {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let kubeconfig = kubeconfig.map_err(|error| unusable(&error))?;
        server_of(kubeconfig, context, |name| std::env::var(name).ok()).await
    };
    match tokio::time::timeout(CONFIG_DEADLINE, read).await {
        Ok(read) => read,
        Err(_elapsed) => Err(format!("not read within {} s", CONFIG_DEADLINE.as_secs())),
    }
}

/// The kube-apiserver that a kubeconfig names. `variable` reads a variable.
async fn server_of(
    mut kubeconfig: Kubeconfig,
    context: Option<String>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<ApiServer, String> {
    let proxy = proxy::choose(&mut kubeconfig, context.as_deref(), variable)?;
    let options = KubeConfigOptions {
        context,
        ..KubeConfigOptions::default()
    };
    let read = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let mut config = read.map_err(|error| unusable(&error))?;
    let user = &mut config.auth_info;
    if let Some(token) = &mut user.token {
        *token = token.expose_secret().trim().to_owned().into();
    }
    // kube uses it where nothing else is given.
    let is_used = user.auth_provider.is_none() && user.username.is_none() && user.token.is_none();
    let token_file = user.token_file.take_if(|_| is_used);
    let token_file = token_file.map(|path| TokenFile::open(Path::new(&path)));
    Ok(ApiServer {
        config,
        proxy,
        token_file: token_file.transpose()?,
    })
}

/// What is wrong with a kubeconfig. The parser's own text quotes the lines around, which may hold a token or a key.
pub fn unusable(error: &KubeconfigError) -> String {
    // kube reads it although `NO_PROXY` excludes the kube-apiserver.
    if let KubeconfigError::ParseProxyUrl(_) = error {
        return "HTTPS_PROXY is no address of a proxy".to_owned();
    }
    let KubeconfigError::Parse(yaml) = error else {
        return answer::chain(error);
    };
    let at = yaml.location();
    let at = at.map(|at| format!(" at line {}, column {}", at.line(), at.column()));
    format!("it is not the YAML of a kubeconfig{}", at.unwrap_or_default())
}

#[cfg(test)]
mod tests;
