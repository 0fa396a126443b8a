//! SIGTERM, by which Kubernetes asks a pod to stop.

use std::io;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signal, listened for from [`Self::listen`] on.
pub(super) struct Terminate {
    #[cfg(unix)]
    signal: Signal,
}

#[cfg(unix)]
impl Terminate {
    pub(super) fn listen() -> io::Result<Self> {
        let signal = signal(SignalKind::terminate())?;
        Ok(Self { signal })
    }

    /// Completes when the signal arrives.
    pub(super) async fn asked(&mut self) {
        self.signal.recv().await;
    }
}

/// There is no such signal on Windows, where only the command line runs.
#[cfg(not(unix))]
impl Terminate {
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {})
    }

    pub(super) async fn asked(&mut self) {
        std::future::pending().await
    }
}
