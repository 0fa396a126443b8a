//! Serves HTTP/1.1 with limits on the number of connections, the time for a request head, and the
//! lifetime of a connection.

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

/// Lifetime of a connection without an event stream: the scrape timeout of Prometheus.
const LIFETIME: Duration = Duration::from_secs(10);

/// Buffer for a request head. Login proxies add cookies of some kilobytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Open connections. Others wait in the accept queue.
    pub(super) connections: usize,
    /// Time limit for the request head.
    pub(super) head: Duration,
    /// Lifetime of an event stream.
    pub(super) stream: Duration,
}

/// Serves `router` until `stop`, which closes every connection.
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
            // It waits itself if no file descriptor is left.
            (stream, _) = Listener::accept(&mut listener), if connections.len() < limits.connections => {
                connections.spawn(handle(stream, router.clone(), limits));
            }
        }
    }
}

/// Serves one request within the lifetime of a connection.
async fn handle(stream: TcpStream, router: Router, limits: Limits) {
    let is_stream = Arc::new(AtomicBool::new(false));
    let service = service_fn(|request| {
        let (router, is_stream) = (router.clone(), Arc::clone(&is_stream));
        async move {
            let response = router.oneshot(request).await;
            is_stream.store(response.as_ref().is_ok_and(is_event_stream), Ordering::Relaxed);
            response
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(HEAD_BYTES_MAX)
        // An idle connection would use up the limit, and clients send requests rarely.
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

fn is_event_stream(handle: &Response) -> bool {
    let kind = handle.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind == "text/event-stream")
}

#[cfg(test)]
mod tests;
