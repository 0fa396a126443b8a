//! Bounds on HTTP connections: how many are open, how long each may take, and which one gives way when all places are
//! taken.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};

/// How many connections are open at once on a server without long streams. The kubelet and a few Prometheus servers
/// need one each; the rest keeps others from being in their way, and costs 5 MiB at the most.
pub(super) const PLACES: usize = 256;

/// How long a connection may be open in all, unless it is a stream: the time that Prometheus gives a scrape. One that says
/// nothing keeps its place only while nobody else needs it.
const STAY: Duration = Duration::from_secs(10);

/// How old a connection without a request has to be before it is closed in favour of another. The request of a kubelet
/// is read by then, also on a busy machine. It bounds the work that a flood of connections causes as well: with 256
/// places, 1,280 are accepted in a second, so that the 1,000 in the system's queue are worked off within the kubelet's
/// timeout.
const GRACE: Duration = Duration::from_millis(200);

/// A listener with a bound on open connections.
#[derive(Debug)]
pub(super) struct Doors {
    listener: TcpListener,
    open: Arc<OpenConnections>,
}

/// The open connections of one listener.
#[derive(Debug)]
struct OpenConnections {
    max: usize,
    table: Mutex<Table>,
    /// A connection has ended.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    next_id: u64,
    /// Ids grow, so the first is the oldest.
    by_id: BTreeMap<u64, Arc<Connection>>,
}

/// What is known of one open connection.
#[derive(Debug)]
struct Connection {
    from: IpAddr,
    accepted: Instant,
    /// A whole request head has been read.
    has_asked: AtomicBool,
    /// It receives a stream.
    is_listening: AtomicBool,
    /// It gave way to another connection.
    is_closed: AtomicBool,
    /// The task that reads from it.
    reader: AtomicWaker,
}

/// An entry in the table, removed when it is dropped.
#[derive(Debug)]
struct Place {
    id: u64,
    open: Arc<OpenConnections>,
}

/// One open connection.
#[derive(Debug)]
pub(super) struct Guest {
    stream: TcpStream,
    until: Pin<Box<Sleep>>,
    /// A stream has something to send that the client does not read: `until` counts against it.
    is_held: bool,
    stays: Stays,
    _place: Place,
}

/// What a request handler may tell of its connection.
#[derive(Clone, Debug)]
pub(super) struct Stays(Arc<Connection>);

/// A connection may be silent for as long as this lives.
#[derive(Debug)]
pub(super) struct Listening(Stays);

impl Stays {
    /// Lets the connection be silent until what is returned is dropped; it still has to read what it is sent.
    pub(super) fn listens(&self) -> Listening {
        self.0.is_listening.store(true, Ordering::Relaxed);
        Listening(self.clone())
    }

    /// A whole request head has been read: the connection is not closed in favour of another any more.
    pub(super) fn asks(&self) {
        self.0.has_asked.store(true, Ordering::Relaxed);
    }

    fn is_listening(&self) -> bool {
        self.0.is_listening.load(Ordering::Relaxed)
    }
}

/// A connection from nowhere, for routers that are called without one.
impl Default for Stays {
    fn default() -> Self {
        Self(Arc::new(Connection::from(Ipv4Addr::UNSPECIFIED.into())))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.0.is_listening.store(false, Ordering::Relaxed);
    }
}

impl Connected<IncomingStream<'_, Doors>> for Stays {
    fn connect_info(stream: IncomingStream<'_, Doors>) -> Self {
        stream.io().stays.clone()
    }
}

impl Connection {
    fn from(from: IpAddr) -> Self {
        Self {
            from,
            accepted: Instant::now(),
            has_asked: AtomicBool::new(false),
            is_listening: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            reader: AtomicWaker::new(),
        }
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.reader.wake();
    }
}

impl Table {
    fn insert(&mut self, connection: Arc<Connection>) -> u64 {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.by_id.insert(id, connection);
        id
    }

    /// The connection that gives way to another: of the address with the most connections, the oldest that has not
    /// sent its request head. One client that opens many thus closes its own.
    fn gives_way(&self) -> Option<(u64, &Arc<Connection>)> {
        let mut of_address: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for connection in self.by_id.values() {
            *of_address.entry(connection.from).or_default() += 1;
        }
        self.by_id
            .iter()
            .rev()
            .filter(|(_, connection)| !connection.has_asked.load(Ordering::Relaxed))
            .max_by_key(|(_, connection)| of_address.get(&connection.from).copied())
            .map(|(id, connection)| (*id, connection))
    }
}

impl OpenConnections {
    /// Waits for a place for `connection`.
    async fn admit(self: &Arc<Self>, connection: &Arc<Connection>) -> Place {
        loop {
            let look_again = match self.try_admit(connection, Instant::now()) {
                Ok(place) => return place,
                Err(look_again) => look_again,
            };
            tokio::select! {
                biased;
                () = self.freed.notified() => {}
                () = tokio::time::sleep_until(look_again) => {}
            }
        }
    }

    /// Gives a place, or when to look again unless a connection ends before.
    fn try_admit(self: &Arc<Self>, connection: &Arc<Connection>, now: Instant) -> Result<Place, Instant> {
        let mut table = self.table();
        if table.by_id.len() >= self.max {
            let Some((id, oldest)) = table.gives_way() else {
                return Err(now + STAY);
            };
            if now < oldest.accepted + GRACE {
                return Err(oldest.accepted + GRACE);
            }
            oldest.close();
            table.by_id.remove(&id);
        }
        Ok(Place {
            id: table.insert(Arc::clone(connection)),
            open: Arc::clone(self),
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Every change of it is whole, whatever panicked meanwhile.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.table().by_id.remove(&self.id);
        self.open.freed.notify_one();
    }
}

impl Doors {
    pub(super) fn of(listener: TcpListener, places: usize) -> Self {
        Self {
            listener,
            open: Arc::new(OpenConnections {
                max: places,
                table: Mutex::default(),
                freed: Notify::new(),
            }),
        }
    }
}

impl Listener for Doors {
    type Io = Guest;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Guest, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let connection = Arc::new(Connection::from(address.ip()));
        let place = self.open.admit(&connection).await;
        let guest = Guest {
            stream,
            until: Box::pin(tokio::time::sleep(STAY)),
            is_held: false,
            stays: Stays(connection),
            _place: place,
        };
        (guest, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Guest {
    /// Ends what is not done by the deadline, and everything once the connection has given way to another.
    fn in_time<T>(&mut self, done: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        let connection = &self.stays.0;
        connection.reader.register(context.waker());
        if connection.is_closed.load(Ordering::Acquire) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if done.is_ready() || self.until.as_mut().poll(context).is_pending() {
            return done;
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// As [`Self::in_time`]; a stream has [`STAY`] for each thing that it is sent.
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

    /// A table of `addresses`, each a connection accepted now that has sent nothing.
    fn table(addresses: &[[u8; 4]]) -> (Arc<OpenConnections>, Vec<Arc<Connection>>, Vec<Place>) {
        let open = Arc::new(OpenConnections {
            max: addresses.len(),
            table: Mutex::default(),
            freed: Notify::new(),
        });
        let connections: Vec<_> = addresses.iter().map(|address| from(*address)).collect();
        let places = connections
            .iter()
            .map(|connection| open.try_admit(connection, Instant::now()).unwrap())
            .collect();
        (open, connections, places)
    }

    fn from(address: [u8; 4]) -> Arc<Connection> {
        Arc::new(Connection::from(IpAddr::from(address)))
    }

    fn closed(connections: &[Arc<Connection>]) -> Vec<usize> {
        (0..connections.len())
            .filter(|index| connections[*index].is_closed.load(Ordering::Acquire))
            .collect()
    }

    const MANY: [u8; 4] = [10, 0, 0, 1];
    const FEW: [u8; 4] = [10, 0, 0, 2];

    #[tokio::test(start_paused = true)]
    async fn the_busiest_address_gives_way_with_its_oldest_silent_connection() {
        let (open, connections, _places) = table(&[FEW, MANY, MANY, MANY]);
        connections[1].has_asked.store(true, Ordering::Relaxed);
        tokio::time::advance(GRACE).await;
        let admitted = open.try_admit(&from(FEW), Instant::now());
        assert!(admitted.is_ok());
        assert_eq!(closed(&connections), [2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_has_the_grace_before_it_gives_way() {
        let (open, connections, _places) = table(&[MANY, MANY]);
        let begin = Instant::now();
        tokio::time::advance(GRACE - Duration::from_millis(1)).await;
        let refused = open.try_admit(&from(FEW), Instant::now());
        assert_eq!(refused.unwrap_err(), begin + GRACE);
        assert!(closed(&connections).is_empty());
        let _place = open.admit(&from(FEW)).await;
        assert_eq!(closed(&connections), [0]);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_with_a_request_keep_their_places_until_they_end() {
        let (open, connections, mut places) = table(&[MANY, MANY]);
        for connection in &connections {
            connection.has_asked.store(true, Ordering::Relaxed);
        }
        tokio::time::advance(GRACE).await;
        assert!(open.try_admit(&from(FEW), Instant::now()).is_err());
        places.pop();
        assert!(open.try_admit(&from(FEW), Instant::now()).is_ok());
        assert!(closed(&connections).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_open_for_ten_seconds_at_most() {
        for has_asked in [false, true] {
            let begin = Instant::now();
            let (_outside, mut guest) = guest().await;
            guest.stays.0.has_asked.store(has_asked, Ordering::Relaxed);
            let silent = guest.read_u8().await;
            assert_eq!(silent.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!(begin.elapsed(), STAY);
        }
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
