//! Connects to the kube-apiserver: by `KUBECONFIG`, from inside the cluster, or by the user's own kubeconfig.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::TokioExecutor;
use kube::client::{ClientBuilder, ConfigExt as _};
use kube::config::{Config, KubeConfigOptions, Kubeconfig, KubeconfigError};
use thiserror::Error;
use tower::{BoxError, ServiceBuilder};

use super::answer;

/// Long enough for a lost SYN and its retransmissions, short enough to reach another replica behind a load balancer soon.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// The largest request is a PATCH of a few kilobytes.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);

/// The deadline of reads inside kube's watcher. It must be longer than [`super::watch::Settings::watch_timeout`], after which the
/// kube-apiserver ends a silent watch.
pub const READ_DEADLINE: Duration = Duration::from_secs(90);

/// Reading a kubeconfig may run a credential plugin (`exec:`), which may ask a cloud for a token.
const CONFIG_DEADLINE: Duration = Duration::from_secs(60);

/// Why there is no client.
#[derive(Debug, Error)]
pub enum KubeConnectError {
    /// `KUBECONFIG` is set, and what it names cannot be used.
    #[error(
        "the kubeconfig that KUBECONFIG names cannot be used: {message}; correct the file or unset KUBECONFIG"
    )]
    Kubeconfig {
        /// What is wrong with it.
        message: String,
    },
    /// The kubeconfig or context of the command line cannot be used.
    #[error("what --kubeconfig and --context name cannot be used: {message}")]
    Asked {
        /// What is wrong with it.
        message: String,
    },
    /// The service account of the pod cannot be used.
    #[error(
        "the service account of this pod cannot be used: {message}; mount its token (automountServiceAccountToken)"
    )]
    InCluster {
        /// What is wrong with it.
        message: String,
    },
    /// The kubeconfig of another cluster than that of the nodes cannot be used.
    #[error("the kubeconfig that {setting} names cannot be used: {message}")]
    Other {
        /// The setting that names it.
        setting: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// Neither a kubeconfig nor a service account.
    #[error(
        "no cluster to connect to: KUBECONFIG is not set, this is no pod, and ~/.kube/config cannot be used: {message}"
    )]
    Nowhere {
        /// What is wrong with the user's own kubeconfig.
        message: String,
    },
    /// The configuration was read, but no client can be built from it.
    #[error("no client can be built for {url}: {message}")]
    Build {
        /// The kube-apiserver's address.
        url: String,
        /// What is wrong.
        message: String,
    },
}

/// Makes a client. Sends no request.
pub async fn connect() -> Result<kube::Client, KubeConnectError> {
    Ok(connect_with_address().await?.0)
}

/// As [`connect`], with the address of the kube-apiserver.
pub async fn connect_with_address() -> Result<(kube::Client, String), KubeConnectError> {
    let config = configuration().await?;
    let address = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    Ok((client(config)?, address))
}

/// Makes a client for another cluster than that of the nodes, as `setting` names it: by the kubeconfig at `path`, or for the
/// surrounding cluster if that is `in-cluster`.
///
/// # Errors
/// When the kubeconfig or the service account cannot be used.
pub async fn connect_other(setting: &'static str, path: &Path) -> Result<kube::Client, KubeConnectError> {
    if path == Path::new("in-cluster") {
        let config = Config::incluster();
        return client(config.map_err(|error| KubeConnectError::InCluster {
            message: answer::chain(&error),
        })?);
    }
    let read = from_kubeconfig(Some(path), None).await;
    client(read.map_err(|message| KubeConnectError::Other { setting, message })?)
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
///
/// # Errors
/// When what `access` names cannot be used, or there is no cluster to connect to.
pub async fn connect_by(access: &Access) -> Result<kube::Client, KubeConnectError> {
    let mut config = if access.kubeconfig.is_none() && access.context.is_none() {
        configuration().await?
    } else {
        let read = from_kubeconfig(access.kubeconfig.as_deref(), access.context.clone()).await;
        read.map_err(|message| KubeConnectError::Asked { message })?
    };
    if let Some(user) = &access.impersonate {
        config.auth_info.impersonate = Some(user.clone());
    }
    client(config)
}

/// Makes a client of a configuration read elsewhere, with our own deadlines.
pub fn client(config: Config) -> Result<kube::Client, KubeConnectError> {
    let url = config.cluster_url.to_string();
    stack(config).map_err(|error| KubeConnectError::Build {
        url,
        message: answer::chain(&error),
    })
}

/// kube's layers over a connection with `TCP_NODELAY`, which kube does not set. With Nagle's algorithm the body of a PATCH waits
/// for the acknowledgement of its head, which may be delayed by 40 ms.
fn stack(mut config: Config) -> kube::Result<kube::Client> {
    if config.proxy_url.is_some() {
        // kube knows which proxies it supports.
        config.default_retry = false;
        return kube::Client::try_from(config);
    }
    let address = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    let mut tcp = HttpConnector::new();
    // TLS is a layer above, so https addresses reach this connector.
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let mut timed = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp)?);
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
        .map_future(|reply| head_within(READ_DEADLINE, reply))
        .map_err(move |error| named(&address, error))
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
async fn configuration() -> Result<Config, KubeConnectError> {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if is_set("KUBECONFIG") {
        return from_kubeconfig(None, None)
            .await
            .map_err(|message| KubeConnectError::Kubeconfig { message });
    }
    if is_set("KUBERNETES_SERVICE_HOST") {
        return Config::incluster().map_err(|error| KubeConnectError::InCluster {
            message: answer::chain(&error),
        });
    }
    from_kubeconfig(None, None)
        .await
        .map_err(|message| KubeConnectError::Nowhere { message })
}

/// Reads the kubeconfig at `path`, or the one that kubectl would read.
async fn from_kubeconfig(path: Option<&Path>, context: Option<String>) -> Result<Config, String> {
    let options = KubeConfigOptions {
        context,
        ..KubeConfigOptions::default()
    };
    let read = async {
        match path {
            Some(path) => Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &options).await,
            None => Config::from_kubeconfig(&options).await,
        }
    };
    match tokio::time::timeout(CONFIG_DEADLINE, read).await {
        Ok(read) => read.map_err(|error| unusable(&error)),
        Err(_elapsed) => Err(format!("not read within {} s", CONFIG_DEADLINE.as_secs())),
    }
}

/// What is wrong with a kubeconfig. The parser's own text quotes the lines around, which may hold a token or a key.
pub(crate) fn unusable(error: &KubeconfigError) -> String {
    let KubeconfigError::Parse(yaml) = error else {
        return answer::chain(error);
    };
    let at = yaml.location();
    let at = at.map(|at| format!(" at line {}, column {}", at.line(), at.column()));
    format!("it is not the YAML of a kubeconfig{}", at.unwrap_or_default())
}

#[cfg(test)]
mod tests;
