use std::convert::Infallible;
use std::net::SocketAddr;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::get;
use futures::stream;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use super::*;

const HEAD: Duration = Duration::from_millis(400);
const STREAM: Duration = Duration::from_secs(60);

/// More than the system keeps for a client that does not read.
const LARGE: usize = 64 << 20;

/// A server for `connections` at once, and where it is.
async fn served(connections: usize) -> (SocketAddr, CancellationToken, JoinSet<()>) {
    let endless = || async {
        let nothing = stream::pending::<Result<Event, Infallible>>();
        Sse::new(nothing).keep_alive(KeepAlive::new().interval(Duration::from_secs(1)))
    };
    let router = Router::new()
        .route("/short", get(|| async { "ok" }))
        .route("/large", get(|| async { "x".repeat(LARGE) }))
        .route("/events", get(endless));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits {
        connections,
        head: HEAD,
        stream: STREAM,
    };
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(serve(listener, router, limits, stop.clone()));
    (address, stop, tasks)
}

/// A connection that has sent `text`.
async fn sent(address: SocketAddr, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")
}

/// Reads until the server closes the connection; gives what it sent, and after how long it closed.
async fn until_closed(mut stream: TcpStream) -> (String, Duration) {
    let begin = Instant::now();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    (String::from_utf8_lossy(&answer).into_owned(), begin.elapsed())
}

/// The clock is paused, and moves by itself while all wait; a timer is late by a millisecond at most.
fn assert_about(elapsed: Duration, expected: Duration) {
    let late = elapsed.checked_sub(expected);
    assert!(
        late.is_some_and(|late| late <= Duration::from_millis(20)),
        "{elapsed:?}"
    );
}

#[tokio::test]
async fn a_connection_is_closed_after_its_answer() {
    let (address, _stop, _tasks) = served(8).await;
    let (answer, _) = until_closed(sent(address, &request("/short")).await).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_no_whole_head_is_disconnected() {
    let (address, _stop, _tasks) = served(8).await;
    for text in ["", "GET /short HTTP/1.1\r\nHost: "] {
        let (answer, elapsed) = until_closed(sent(address, text).await).await;
        assert!(!answer.contains("200 OK"), "{answer}");
        assert_about(elapsed, HEAD);
    }
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let (address, _stop, _tasks) = served(8).await;
    let cookie = "x".repeat(2 * HEAD_BYTES_MAX);
    let text = format!("GET /short HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\n\r\n");
    let mut stream = TcpStream::connect(address).await.unwrap();
    let _ = stream.write_all(text.as_bytes()).await;
    let (answer, _) = until_closed(stream).await;
    assert!(!answer.contains("200 OK"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_its_answer_is_disconnected() {
    let (address, _stop, _tasks) = served(1).await;
    let begin = Instant::now();
    let _slow = sent(address, &request("/large")).await;
    // Only one connection is allowed, so it is answered when that client is gone.
    let (answer, _) = until_closed(sent(address, &request("/short")).await).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_about(begin.elapsed(), LIFETIME);
}

#[tokio::test(start_paused = true)]
async fn an_event_stream_lasts_longer_and_not_for_ever() {
    let (address, _stop, _tasks) = served(8).await;
    let (answer, elapsed) = until_closed(sent(address, &request("/events")).await).await;
    assert!(answer.contains("text/event-stream"), "{answer}");
    assert_about(elapsed, LIFETIME + STREAM);
}

#[tokio::test(start_paused = true)]
async fn stop_ends_open_streams() {
    let (address, stop, mut tasks) = served(8).await;
    let mut stream = sent(address, &request("/events")).await;
    let mut first = [0; 16];
    stream.read_exact(&mut first).await.unwrap();
    stop.cancel();
    tasks.join_next().await.unwrap().unwrap();
    let (_, elapsed) = until_closed(stream).await;
    assert_about(elapsed, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_connection_beyond_the_limit_waits_for_another_to_end() {
    let (address, _stop, _tasks) = served(1).await;
    let _silent = sent(address, "").await;
    let begin = Instant::now();
    let (answer, _) = until_closed(sent(address, &request("/short")).await).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_about(begin.elapsed(), HEAD);
}
