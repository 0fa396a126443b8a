//! Serves HTTP/1.1 on a listener with bounds: how many connections are open at once, how long a client may take to send its
//! request head, and how long a connection may last.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::header;
use axum::response::Response;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tracing::debug;

/// The longest connection that is no event stream: the time that Prometheus gives a scrape.
const LIFETIME: Duration = Duration::from_secs(10);

/// The most that is buffered of a request head. Proxies for logins add cookies of some kilobytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Bounds on the connections of one server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// How many may be open at once. Others wait in the queue of the system.
    pub(super) connections: usize,
    /// The longest wait for the request head.
    pub(super) head: Duration,
    /// The longest event stream.
    pub(super) stream: Duration,
}

/// Answers with `router` until `stop`, which ends every connection: an answer from a process that stops is worth nothing.
pub(super) async fn serve(
    mut listener: TcpListener,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Some(_) = connections.join_next() => {}
            // It waits by itself where no file descriptor is left.
            (stream, _) = Listener::accept(&mut listener), if connections.len() < limits.connections => {
                connections.spawn(answer(stream, router.clone(), limits));
            }
        }
    }
}

/// Answers one request, for as long as a connection may last.
async fn answer(stream: TcpStream, router: Router, limits: Limits) {
    let is_stream = Arc::new(AtomicBool::new(false));
    let service = service_fn(|request| {
        let (router, is_stream) = (router.clone(), Arc::clone(&is_stream));
        async move {
            let answer = router.oneshot(request).await;
            is_stream.store(answer.as_ref().is_ok_and(is_event_stream), Ordering::Relaxed);
            answer
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(HEAD_BYTES_MAX)
        // A connection that stays open would take up a place, and clients ask again after many seconds, if at all.
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let mut ended = timeout(LIFETIME, &mut connection).await;
    if ended.is_err() && is_stream.load(Ordering::Relaxed) {
        ended = timeout(limits.stream, &mut connection).await;
    }
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "a connection ended early"),
        Err(_) => debug!("a connection was closed because it took too long"),
    }
}

fn is_event_stream(answer: &Response) -> bool {
    let kind = answer.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind == "text/event-stream")
}

#[cfg(test)]
mod tests;
