//! The doors of the servers: only so many come in at once, and nobody stays for ever.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// How many connections stand at once where nobody stays. A few Prometheus and the kubelet need one each; the rest wait
/// outside, in the system's queue.
pub(super) const PLACES: usize = 32;

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
    /// It was given something at `true`, and has not taken it yet: the clock runs against it then, also where it listens.
    is_held: bool,
    stays: Stays,
    // Given back when the connection ends.
    _place: Option<OwnedSemaphorePermit>,
}

/// Whether a connection is there to listen: then it may be silent, and has only to take what it is told.
#[derive(Clone, Debug, Default)]
pub(super) struct Stays(Arc<AtomicBool>);

/// A connection listens for as long as this lives.
#[derive(Debug)]
pub(super) struct Listening(Stays);

impl Stays {
    /// Lets the connection listen, until what is given back is dropped.
    pub(super) fn listens(&self) -> Listening {
        self.0.store(true, Ordering::Relaxed);
        Listening(self.clone())
    }

    fn is_listening(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Relaxed);
    }
}

impl Connected<IncomingStream<'_, Doors>> for Stays {
    fn connect_info(stream: IncomingStream<'_, Doors>) -> Self {
        stream.io().stays.clone()
    }
}

impl Doors {
    pub(super) fn of(listener: TcpListener, places: usize) -> Self {
        Self {
            listener,
            places: Arc::new(Semaphore::new(places)),
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
            is_held: false,
            stays: Stays::default(),
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

    /// Who listens has as long for each thing it is told as others have for everything.
    fn taken_in_time<T>(
        &mut self,
        done: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if self.stays.is_listening() && done.is_pending() != self.is_held {
            self.is_held = done.is_pending();
            self.until.as_mut().reset(Instant::now() + STAY);
        }
        self.in_time(done, context)
    }
}

impl AsyncRead for Guest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if self.stays.is_listening() {
            return read;
        }
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
        self.taken_in_time(written, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.taken_in_time(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.in_time(shut, context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn guest() -> (TcpStream, Guest) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut doors = Doors::of(listener, PLACES);
        let outside = TcpStream::connect(address).await.unwrap();
        let (guest, _) = doors.accept().await;
        (outside, guest)
    }

    #[tokio::test(start_paused = true)]
    async fn who_listens_may_be_silent_and_who_does_not_may_not() {
        let (_outside, mut guest) = guest().await;
        let listening = guest.stays.listens();
        let silence = tokio::time::timeout(STAY * 10, guest.read_u8()).await;
        assert!(silence.is_err(), "it is let be");
        drop(listening);
        let read = guest.read_u8().await;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn who_listens_and_does_not_take_what_it_is_told_is_shown_out() {
        let (_outside, mut guest) = guest().await;
        let _listening = guest.stays.listens();
        tokio::time::sleep(STAY * 10).await;
        // More than the system keeps for somebody who does not read.
        let told = guest.write_all(&vec![0; 64 << 20]).await;
        assert_eq!(told.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_each_thing_in_time_listens_for_long() {
        let (mut outside, mut guest) = guest().await;
        let _listening = guest.stays.listens();
        for _ in 0..20 {
            tokio::time::sleep(STAY / 2).await;
            let (told, mut heard) = (vec![0; 1 << 20], vec![0; 1 << 20]);
            let (written, read) = tokio::join!(guest.write_all(&told), outside.read_exact(&mut heard));
            written.unwrap();
            read.unwrap();
        }
    }
}
