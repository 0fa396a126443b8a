use std::net::SocketAddr;

use axum::Router;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

use super::*;

const TOKEN: &str = "0123456789abcdef";

/// A page that needs the token, with an answer for each path.
async fn page() -> (SocketAddr, JoinSet<()>) {
    let stream = |events: &'static str| ([(header::CONTENT_TYPE, "text/event-stream")], events);
    let router = Router::new()
        .route(
            "/token",
            get(async move |headers: HeaderMap| -> Response {
                let sent = headers.get(header::AUTHORIZATION);
                if sent.is_some_and(|sent| sent == "Bearer 0123456789abcdef") {
                    stream("event: progress\ndata: \"half\"\n\nevent: answer\ndata: [1]\n\n").into_response()
                } else {
                    StatusCode::UNAUTHORIZED.into_response()
                }
            }),
        )
        .route(
            "/error",
            get(async move || stream("event: error\ndata: \"no host \\u001b[31mesx\"\n\n")),
        )
        .route(
            "/cut",
            get(async move || stream("event: progress\ndata: \"half\"\n\n")),
        )
        .route(
            "/other",
            get(async move || stream("event: answer\ndata: {\"a\":1}\n\n")),
        )
        .route(
            "/standby",
            get(async || (StatusCode::SERVICE_UNAVAILABLE, "this replica is a standby\n")),
        )
        .route(
            "/broken",
            get(async || (StatusCode::INTERNAL_SERVER_ERROR, "the log has the reason\n")),
        );
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut server = JoinSet::new();
    server.spawn(async move { axum_serve(listener, router).await });
    (address, server)
}

/// `axum::serve` is not among the features in use.
async fn axum_serve(listener: tokio::net::TcpListener, router: Router) {
    while let Ok((stream, _)) = listener.accept().await {
        let service = hyper_util::service::TowerToHyperService::new(router.clone());
        let connection =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        let _ = connection.await;
    }
}

async fn asked(page: SocketAddr, path: &str, token: Option<&str>) -> Result<Vec<u64>, String> {
    // As `main` does. An error means that another test was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = format!("http://{page}");
    let leader = Leader {
        asked: vec![Asked::Address(http_client(&url).unwrap(), url)],
        token: token.map(SecretString::from),
        out: Output::new(),
    };
    leader.ask(path).await.map_err(|error| format!("{error:#}"))
}

#[tokio::test]
async fn answer_or_the_reason_is_told() {
    let (page, _server) = page().await;
    assert_eq!(asked(page, "/token", Some(TOKEN)).await, Ok(vec![1]));
    for (path, token, words) in [
        (
            "/token",
            None,
            "its status page needs a token: name its file by --status-token-file",
        ),
        (
            "/token",
            Some("another"),
            "its status page refuses the token of --status-token-file",
        ),
        (
            "/none",
            Some(TOKEN),
            "it makes no plans: it is older than this command line",
        ),
        ("/standby", None, "this replica is a standby"),
        (
            "/broken",
            None,
            "it answered with status 500 Internal Server Error: the log has the reason",
        ),
        ("/error", None, "no host "),
        ("/cut", None, "the connection ended before the answer"),
        (
            "/other",
            None,
            "which may be of another version than this command line",
        ),
    ] {
        let told = asked(page, path, token).await.unwrap_err();
        assert!(told.contains(words) && !told.contains('\u{1b}'), "{path}: {told}");
    }
}

#[test]
fn token_goes_to_no_proxy_for_a_page_on_this_machine() {
    for (url, is_local) in [
        ("http://127.0.0.1:8082", true),
        ("http://[::1]:8082/", true),
        ("http://localhost:8082", true),
        ("https://haulout.example.com", false),
        ("not an address", false),
    ] {
        assert_eq!(is_on_this_machine(url), is_local, "{url}");
    }
}
