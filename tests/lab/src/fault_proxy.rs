//! Two HTTP/1.1 proxies on loopback, one before kube-apiserver and one before vCenter, that share one count of the requests
//! that change something and stop at the k-th of them.
//!
//! A test calls [`FaultProxy::stop_at`], waits for [`FaultProxy::stopped`], kills Haulout, calls [`FaultProxy::open`] and
//! starts Haulout again.

pub(crate) mod request;
mod serve;

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::serve::{SideProxy, Upstream};

/// Clones are handles to the same proxies. Dropping the last handle ends both and closes their connections.
#[derive(Clone)]
pub struct FaultProxy {
    shared: Arc<ProxyShared>,
    kubernetes: SocketAddr,
    vcenter_sdk: String,
    _end: Arc<DropGuard>,
}

/// The server that a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// kube-apiserver.
    Kubernetes,
    /// vCenter.
    Vcenter,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kubernetes => "Kubernetes",
            Self::Vcenter => "vCenter",
        })
    }
}

/// A request that changes something and was forwarded, or stopped the proxy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ForwardedRequest {
    /// Its number among those of both sides, from 1.
    pub number: usize,
    /// Its server.
    pub side: Side,
    /// Method and object: `PATCH nodes/gpu-1`, `POST pods/train-0/eviction`, `PowerOffVM_Task vm-42`.
    pub what: String,
}

impl fmt::Display for ForwardedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, side, what } = self;
        write!(f, "{side} request {number}, {what}")
    }
}

/// When a request is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moment {
    /// Before the server gets it.
    Before,
    /// After the server has responded; the client gets no response.
    After,
}

impl FaultProxy {
    /// Starts both proxies on ports of 127.0.0.1, open. The client `kubernetes` must neither retry nor limit the duration of
    /// a response, or watches end early; forwarded requests have its identity. `vcenter_sdk` is the simulator's address
    /// over plain HTTP.
    pub async fn start(kubernetes: kube::Client, vcenter_sdk: &str) -> anyhow::Result<Self> {
        // An error means that a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let sdk = reqwest::Url::parse(vcenter_sdk)
            .with_context(|| format!("reading vCenter's address {vcenter_sdk:?}"))?;
        ensure!(
            sdk.scheme() == "http",
            "the proxy needs plain HTTP to vCenter, not {vcenter_sdk}"
        );
        let end = CancellationToken::new();
        let shared = Arc::new(ProxyShared {
            state: Mutex::new(ProxyState {
                forwarded: Vec::new(),
                stop: Stop::Open,
                listeners: Vec::new(),
            }),
            cut: watch::Sender::new(None),
            generation: watch::Sender::new(0),
            reached: watch::Sender::new(None),
            held: AtomicUsize::new(0),
            end: end.clone(),
        });
        let upstream = Upstream::kubernetes(kubernetes);
        let kubernetes = SideProxy::open(&shared, Side::Kubernetes, upstream).await?;
        let upstream = Upstream::vcenter(sdk.origin().ascii_serialization())?;
        let vcenter = SideProxy::open(&shared, Side::Vcenter, upstream).await?;
        Ok(Self {
            shared,
            kubernetes,
            vcenter_sdk: format!("http://{vcenter}{}", sdk.path()),
            _end: Arc::new(end.drop_guard()),
        })
    }

    /// The address of vCenter for Haulout, `http://127.0.0.1:PORT/sdk`.
    pub fn vcenter_sdk(&self) -> String {
        self.vcenter_sdk.clone()
    }

    /// Writes a kubeconfig whose server is the proxy. It has no credentials: the proxy adds its own client's.
    pub fn write_kubeconfig(&self, path: &Path) -> anyhow::Result<()> {
        write_kubeconfig_of(&json!({"server": format!("http://{}", self.kubernetes)}), path)
    }

    /// The requests so far that change something and were forwarded or stopped the proxy, in order. Requests that came
    /// while it was stopped are not included: they did not happen.
    pub fn forwarded(&self) -> Vec<ForwardedRequest> {
        self.shared.lock().forwarded.clone()
    }

    /// The number of requests that are held: the one that stopped the proxy and those after it, until their clients
    /// disconnect.
    pub fn held(&self) -> usize {
        self.shared.held.load(Ordering::SeqCst)
    }

    /// Arms the proxy: the request with this number stops it, and after that no request that changes something passes,
    /// on either side, until [`Self::open`]. Requests before it pass, and so do their responses,
    /// even after the stop. If the number has been passed already, the very next request stops the proxy.
    ///
    /// On a stopped proxy this opens and arms it in one step, so that no request passes in between.
    pub fn stop_at(&self, number: usize, moment: Moment) {
        self.shared.set(Stop::Armed { number, moment });
    }

    /// Waits for the armed request. With [`Moment::Before`] it has been read and not forwarded; with [`Moment::After`]
    /// the server has responded or failed.
    pub async fn stopped(&self) -> ForwardedRequest {
        let mut reached = self.shared.reached.subscribe();
        loop {
            if let Some(request) = &*reached.borrow_and_update() {
                return request.clone();
            }
            if reached.changed().await.is_err() {
                // The sender lives in `self`, so this is unreachable.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Cuts one side off, as a network partition does: none of its requests passes any more, reads included, and responses
    /// in progress stop. It lasts as long as the proxy.
    pub fn cut(&self, side: Side) {
        self.shared.cut.send_replace(Some(side));
    }

    /// Disarms the proxy. Held requests stay so until their clients disconnect. Changes are forwarded only on
    /// connections made after this call; older connections are closed when idle, and changes on them are held, so that
    /// an unread request of a killed client is not taken for one of its successor. Start the successor after this
    /// call.
    pub fn open(&self) {
        self.shared.set(Stop::Open);
    }
}

/// Writes a kubeconfig without credentials for a proxy that is this cluster.
pub(crate) fn write_kubeconfig_of(cluster: &Value, path: &Path) -> anyhow::Result<()> {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "proxy", "cluster": cluster}],
        "users": [{"name": "proxy", "user": {}}],
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        "current-context": "proxy",
    });
    // JSON is YAML too, and needs no second serializer.
    let text = serde_json::to_string_pretty(&config).context("composing the proxy's kubeconfig")?;
    std::fs::write(path, text)
        .with_context(|| format!("writing the proxy's kubeconfig to {}", path.display()))
}

impl fmt::Debug for FaultProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            shared,
            kubernetes,
            vcenter_sdk,
            _end: _,
        } = self;
        f.debug_struct("FaultProxy")
            .field("kubernetes", kubernetes)
            .field("vcenter_sdk", vcenter_sdk)
            .field("stop", &shared.lock().stop)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Open,
    Armed { number: usize, moment: Moment },
    Stopped { number: usize },
}

enum Verdict {
    Pass,
    /// Forward it, and hold the response.
    After(ForwardedRequest),
    Hold,
}

struct ProxyState {
    forwarded: Vec<ForwardedRequest>,
    stop: Stop,
    /// Clones of the listening sockets, to accept connections without waiting.
    listeners: Vec<std::net::TcpListener>,
}

/// The state of both proxies.
struct ProxyShared {
    state: Mutex<ProxyState>,
    /// Counts the stops. It changes only while `state` is locked. A connection belongs to the generation in which it
    /// was accepted.
    generation: watch::Sender<u64>,
    /// The request that stopped the proxy. It changes only while `state` is locked.
    reached: watch::Sender<Option<ForwardedRequest>>,
    held: AtomicUsize,
    /// The side that is cut off.
    cut: watch::Sender<Option<Side>>,
    end: CancellationToken,
}

impl ProxyShared {
    fn lock(&self) -> MutexGuard<'_, ProxyState> {
        // A panic elsewhere leaves the state consistent, and fails its own test.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, stop: Stop) {
        let mut state = self.lock();
        if matches!(state.stop, Stop::Stopped { .. }) {
            // Connections made during the stop belong to it, accepted or not. The listeners do not block.
            for listener in &state.listeners {
                while let Ok((connection, _)) = listener.accept() {
                    drop(connection);
                }
            }
            self.generation.send_modify(|generation| *generation += 1);
            self.reached.send_replace(None);
        }
        state.stop = stop;
    }

    /// Decides on a request that changes something. Counts it unless it comes after a stop.
    fn admit(&self, generation: u64, side: Side, what: String) -> Verdict {
        let mut state = self.lock();
        if matches!(state.stop, Stop::Stopped { .. }) || generation != *self.generation.borrow() {
            tracing::debug!(%side, what, "the proxy holds a request that came after the stop");
            return Verdict::Hold;
        }
        let request = ForwardedRequest {
            number: state.forwarded.len() + 1,
            side,
            what,
        };
        state.forwarded.push(request.clone());
        match state.stop {
            Stop::Armed { number, moment } if request.number >= number => {
                tracing::debug!(%request, ?moment, "the proxy is stopped");
                state.stop = Stop::Stopped {
                    number: request.number,
                };
                match moment {
                    Moment::Before => {
                        self.reached.send_replace(Some(request));
                        Verdict::Hold
                    }
                    Moment::After => Verdict::After(request),
                }
            }
            Stop::Open | Stop::Armed { .. } | Stop::Stopped { .. } => Verdict::Pass,
        }
    }

    /// Reports that the server has answered the request that stopped the proxy, unless the proxy has been opened since.
    fn answered(&self, request: ForwardedRequest) {
        let state = self.lock();
        let number = request.number;
        if state.stop == (Stop::Stopped { number }) {
            self.reached.send_replace(Some(request));
        }
    }

    /// Waits until `side` is cut off.
    async fn cut_off(&self, side: Side) {
        // The sender lives in `self`, so there is no error.
        let _ = self.cut.subscribe().wait_for(|cut| *cut == Some(side)).await;
    }

    /// Never ends; the connection drops it when its client disconnects.
    async fn hold(&self) -> Infallible {
        struct Held<'a>(&'a AtomicUsize);
        impl Drop for Held<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.held.fetch_add(1, Ordering::SeqCst);
        let _held = Held(&self.held);
        std::future::pending().await
    }
}
