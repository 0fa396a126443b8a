//! A gate between Haulout and both of its servers that stops it at exactly the k-th request that changes something.
//!
//! It consists of two HTTP/1.1 proxies on loopback, one before kube-apiserver and one before vCenter, that share one
//! count. A test arms the gate with [`Gate::stop_at`], waits for [`Gate::stopped`], kills Haulout, calls [`Gate::open`]
//! and starts Haulout again.

mod serve;
mod what;

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, ensure};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::serve::{Door, Upstream};

/// Two proxies with one count of the requests that change something. Clones are handles to the same gate, and dropping
/// the last one ends both proxies and cuts their connections.
#[derive(Clone)]
pub struct Gate {
    shared: Arc<Shared>,
    kubernetes: SocketAddr,
    vcenter_sdk: String,
    _end: Arc<DropGuard>,
}

/// Which server a request was for.
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

/// A request that changes something and that was let pass, or that stopped the gate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Crossing {
    /// Its place among the crossings of both sides, from 1.
    pub number: usize,
    /// Which server it was for.
    pub side: Side,
    /// What it asks for, on what: `PATCH nodes/gpu-1`, `POST pods/train-0/eviction`, `PowerOffVM_Task vm-42`.
    pub what: String,
}

impl fmt::Display for Crossing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, side, what } = self;
        write!(f, "{side} request {number}, {what}")
    }
}

/// When a request is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moment {
    /// Its server never sees it.
    Before,
    /// Its server has answered it, well or ill, and its client never hears.
    After,
}

impl Gate {
    /// Starts both proxies on ports of 127.0.0.1, open. `kubernetes` must neither retry nor limit how long an answer
    /// may take, or watches end early; what passes has this client's identity. `vcenter_sdk` is the stand-in's address
    /// over plain HTTP.
    pub async fn start(kubernetes: kube::Client, vcenter_sdk: &str) -> anyhow::Result<Self> {
        // Whoever came first has set the same provider, or one that serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let sdk = reqwest::Url::parse(vcenter_sdk)
            .with_context(|| format!("reading vCenter's address {vcenter_sdk:?}"))?;
        ensure!(
            sdk.scheme() == "http",
            "the gate speaks plain HTTP to vCenter, and {vcenter_sdk} is something else"
        );
        let end = CancellationToken::new();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                crossings: Vec::new(),
                stop: Stop::Open,
                doors: Vec::new(),
            }),
            cut: watch::Sender::new(None),
            generation: watch::Sender::new(0),
            reached: watch::Sender::new(None),
            held: AtomicUsize::new(0),
            end: end.clone(),
        });
        let upstream = Upstream::kubernetes(kubernetes);
        let kubernetes = Door::open(&shared, Side::Kubernetes, upstream).await?;
        let upstream = Upstream::vcenter(sdk.origin().ascii_serialization())?;
        let vcenter = Door::open(&shared, Side::Vcenter, upstream).await?;
        Ok(Self {
            shared,
            kubernetes,
            vcenter_sdk: format!("http://{vcenter}{}", sdk.path()),
            _end: Arc::new(end.drop_guard()),
        })
    }

    /// The address to give to Haulout as vCenter's, `http://127.0.0.1:PORT/sdk`.
    pub fn vcenter_sdk(&self) -> String {
        self.vcenter_sdk.clone()
    }

    /// Writes a kubeconfig whose server is the gate. It has no credentials: the gate adds its own client's.
    pub fn write_kubeconfig(&self, path: &Path) -> anyhow::Result<()> {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "gate", "cluster": {"server": format!("http://{}", self.kubernetes)}}],
            "users": [{"name": "gate", "user": {}}],
            "contexts": [{"name": "gate", "context": {"cluster": "gate", "user": "gate"}}],
            "current-context": "gate",
        });
        // JSON is YAML too, and needs no second serializer.
        let text = serde_json::to_string_pretty(&config).context("composing the gate's kubeconfig")?;
        std::fs::write(path, text)
            .with_context(|| format!("writing the gate's kubeconfig to {}", path.display()))
    }

    /// All requests so far that change something and were let pass, and those that stopped the gate, in order. Requests
    /// that came while it was stopped are not among them: they did not happen.
    pub fn crossings(&self) -> Vec<Crossing> {
        self.shared.lock().crossings.clone()
    }

    /// How many requests wait now for an answer that they will never have: the one that stopped the gate, and those
    /// that came after it, until their clients hang up.
    pub fn held(&self) -> usize {
        self.shared.held.load(Ordering::SeqCst)
    }

    /// Arms the gate: the crossing with this number stops it, and after that no request that changes something passes,
    /// on either side, until [`Self::open`]. Crossings before it pass, and their answers too, also those that come when
    /// the gate has been stopped. Where the number was passed already, the very next crossing stops the gate.
    ///
    /// On a gate that is stopped this opens it and arms it in one step, so that nothing slips through in between.
    pub fn stop_at(&self, number: usize, moment: Moment) {
        self.shared.set(Stop::Armed { number, moment });
    }

    /// Waits until the armed crossing was reached: for [`Moment::Before`] its request is whole and goes nowhere, for
    /// [`Moment::After`] its server has answered or failed to.
    pub async fn stopped(&self) -> Crossing {
        let mut reached = self.shared.reached.subscribe();
        loop {
            if let Some(crossing) = &*reached.borrow_and_update() {
                return crossing.clone();
            }
            if reached.changed().await.is_err() {
                // The sender lives in `self`, so that this cannot be.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Cuts one side off, as a partition does: from here on none of its requests passes, whatever it asks for, nothing
    /// more comes of an answer that is under way, and clients meet silence. It stays so as long as the gate lives.
    pub fn cut(&self, side: Side) {
        self.shared.cut.send_replace(Some(side));
    }

    /// Disarms the gate. Requests that are held stay so until their clients hang up, and requests that change something
    /// pass where they come on connections made from here on. Older connections are closed as soon as they are idle, as
    /// on any server's idle timeout, and what else comes on them and changes something is held: what a killed client
    /// left unread in a socket must not be taken for a request of its successor. The successor is to be started after
    /// this call.
    pub fn open(&self) {
        self.shared.set(Stop::Open);
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            shared,
            kubernetes,
            vcenter_sdk,
            _end: _,
        } = self;
        f.debug_struct("Gate")
            .field("kubernetes", kubernetes)
            .field("vcenter_sdk", vcenter_sdk)
            .field("stop", &shared.lock().stop)
            .finish_non_exhaustive()
    }
}

/// Whether the gate lets pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Open,
    Armed { number: usize, moment: Moment },
    Stopped { number: usize },
}

/// What becomes of a request that changes something.
enum Verdict {
    Pass,
    /// To be forwarded, and held when it is answered.
    After(Crossing),
    Hold,
}

struct State {
    crossings: Vec<Crossing>,
    stop: Stop,
    /// The listening sockets once more, so that connections can be taken from them without waiting.
    doors: Vec<std::net::TcpListener>,
}

/// What both proxies have in common.
struct Shared {
    state: Mutex<State>,
    /// Which of the times between two stops it is. It changes only while `state` is locked; a connection belongs to the
    /// generation in which it was accepted.
    generation: watch::Sender<u64>,
    /// The crossing that stopped the gate. It changes only while `state` is locked.
    reached: watch::Sender<Option<Crossing>>,
    held: AtomicUsize,
    /// The side that is cut off.
    cut: watch::Sender<Option<Side>>,
    end: CancellationToken,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves nothing half done here, and the test that panicked tells of itself.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, stop: Stop) {
        let mut state = self.lock();
        if matches!(state.stop, Stop::Stopped { .. }) {
            // Whoever connected during the stop belongs to it, also where the connection was not accepted yet. The
            // listeners do not block: each loop ends where nobody waits.
            for door in &state.doors {
                while let Ok((connection, _)) = door.accept() {
                    drop(connection);
                }
            }
            self.generation.send_modify(|generation| *generation += 1);
            self.reached.send_replace(None);
        }
        state.stop = stop;
    }

    /// Decides on a request that changes something, and counts it unless it is held uncounted.
    fn admit(&self, generation: u64, side: Side, what: String) -> Verdict {
        let mut state = self.lock();
        if matches!(state.stop, Stop::Stopped { .. }) || generation != *self.generation.borrow() {
            tracing::debug!(%side, what, "the gate holds a request that came after the stop");
            return Verdict::Hold;
        }
        let crossing = Crossing {
            number: state.crossings.len() + 1,
            side,
            what,
        };
        state.crossings.push(crossing.clone());
        match state.stop {
            Stop::Armed { number, moment } if crossing.number >= number => {
                tracing::debug!(%crossing, ?moment, "the gate is stopped");
                state.stop = Stop::Stopped {
                    number: crossing.number,
                };
                match moment {
                    Moment::Before => {
                        self.reached.send_replace(Some(crossing));
                        Verdict::Hold
                    }
                    Moment::After => Verdict::After(crossing),
                }
            }
            Stop::Open | Stop::Armed { .. } | Stop::Stopped { .. } => Verdict::Pass,
        }
    }

    /// Tells that the server has answered the crossing that stopped the gate, unless the gate was opened meanwhile.
    fn answered(&self, crossing: Crossing) {
        let state = self.lock();
        let number = crossing.number;
        if state.stop == (Stop::Stopped { number }) {
            self.reached.send_replace(Some(crossing));
        }
    }

    /// Waits until `side` is cut off.
    async fn cut_off(&self, side: Side) {
        // The sender lives in `self`, so that an error cannot be.
        let _ = self.cut.subscribe().wait_for(|cut| *cut == Some(side)).await;
    }

    /// Never ends by itself; the connection drops it when its client hangs up.
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
