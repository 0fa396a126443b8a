//! The doors of the servers: only so many come in at once, and nobody stays for ever.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

/// How many connections stand at once. A few Prometheus and the kubelet need one each; the rest wait outside, in the
/// system's queue.
const PLACES: usize = 32;

/// How long a connection that has nothing to read or write may have stood: the time that Prometheus gives a scrape. Who
/// keeps one for the next scrape opens another; who sends a byte a minute does not hold a place.
const STAY: Duration = Duration::from_secs(10);

/// A listener with a bound on who is inside.
#[derive(Debug)]
pub(super) struct Doors {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

/// One connection that is inside.
#[derive(Debug)]
pub(super) struct Guest {
    stream: TcpStream,
    until: Pin<Box<Sleep>>,
    // Given back when the connection ends.
    _place: Option<OwnedSemaphorePermit>,
}

impl Doors {
    pub(super) fn of(listener: TcpListener) -> Self {
        Self {
            listener,
            places: Arc::new(Semaphore::new(PLACES)),
        }
    }
}

impl Listener for Doors {
    type Io = Guest;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Guest, SocketAddr) {
        // The semaphore is never closed.
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let guest = Guest {
            stream,
            until: Box::pin(tokio::time::sleep(STAY)),
            _place: place,
        };
        (guest, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Guest {
    /// What is not done at once is done in time, or not at all.
    fn in_time<T>(&mut self, done: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if done.is_pending() && self.until.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        done
    }
}

impl AsyncRead for Guest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.in_time(read, context)
    }
}

impl AsyncWrite for Guest {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(written, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.in_time(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.in_time(shut, context)
    }
}
