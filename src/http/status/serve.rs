//! Answers with the pages: to GET alone, with headers that let a browser load nothing and nobody but us.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::stream;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tracing::warn;

use super::{StatusPage, pages};
use crate::ids::NodeName;

/// How many pages are told of changes at once: a hundred, and room for those that are being closed. Any other is told to
/// ask by itself.
pub(super) const LISTENERS: usize = 128;

/// How long changes are gathered before they are told. A drain changes with each pod, and nobody reads faster.
const GATHER: Duration = Duration::from_secs(1);

/// How often a page is told something although nothing has changed: within the minute after which proxies give up on a
/// silent answer.
const SIGN_OF_LIFE: Duration = Duration::from_secs(20);

/// How long one page is told of changes; it then asks again by itself. So nobody keeps a place whose network has gone.
pub(super) const LISTENING_MAX: Duration = Duration::from_secs(900);

/// When a page that is told nothing more asks again.
const ASK_AGAIN: Duration = Duration::from_secs(3);

/// How many answers are rendered at once. Rendering a large fleet takes a processor for some milliseconds, and the
/// program has few.
pub(super) const RENDERS: usize = 1;

/// How long a request waits for its turn to be rendered. A reader who waits longer reloads the page anyway.
const RENDER_WAIT: Duration = Duration::from_secs(5);

const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";

/// What goes with every answer. The pages hold names that others have chosen: were one of them ever not escaped, a
/// browser still would not run it.
const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

#[derive(Clone)]
struct Served {
    status: Arc<StatusPage>,
    listeners: Arc<Semaphore>,
}

/// All that is served.
pub(super) fn router(status: Arc<StatusPage>) -> Router {
    router_with(status, Arc::new(Semaphore::new(RENDERS)))
}

/// The same, with as many renders at once as `renders` has permits.
pub(super) fn router_with(status: Arc<StatusPage>, renders: Arc<Semaphore>) -> Router {
    let served = Served {
        status,
        listeners: Arc::new(Semaphore::new(LISTENERS)),
    };
    let rendered = Router::new()
        .route("/", get(overview))
        .route("/nodes/{name}", get(node))
        .route("/episodes/{id}", get(episode))
        .route("/api/v1/overview", get(overview_json))
        .route("/api/v1/nodes/{name}", get(node_json))
        .route("/api/v1/episodes/{id}", get(episode_json))
        .route_layer(from_fn_with_state(renders, render_in_turn));
    rendered
        .route(
            "/style.css",
            get(async || asset("text/css; charset=utf-8", pages::STYLE)),
        )
        .route(
            "/script.js",
            get(async || asset("text/javascript; charset=utf-8", pages::SCRIPT)),
        )
        .route("/events", get(events))
        .fallback(async || missing("a page of this address"))
        .with_state(served)
        .layer(from_fn(guard))
}

/// Bounds how many answers are rendered at once.
async fn render_in_turn(State(renders): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    let Ok(Ok(_permit)) = tokio::time::timeout(RENDER_WAIT, renders.acquire()).await else {
        let refusal = "many requests are being answered; ask again later\n";
        let wait = [(header::RETRY_AFTER, "5")];
        return (StatusCode::SERVICE_UNAVAILABLE, wait, refusal).into_response();
    };
    next.run(request).await
}

/// Refuses all but GET, and puts the headers on every answer, also on those that refuse.
async fn guard(request: Request, next: Next) -> Response {
    let mut answer = if request.method() == Method::GET {
        next.run(request).await
    } else {
        let refusal = "this page is only read: GET is all it answers to\n";
        (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET")], refusal).into_response()
    };
    for (name, value) in HEADERS {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

async fn overview(State(served): State<Served>) -> Response {
    html(served.status.overview_page())
}

async fn node(State(served): State<Served>, Path(name): Path<String>) -> Response {
    match served.status.node(&NodeName::new(name)) {
        Some(page) => html(pages::node(&page)),
        None => missing("a node of this name"),
    }
}

async fn episode(State(served): State<Served>, Path(id): Path<String>) -> Response {
    match served.status.episode(&id) {
        Some(page) => html(pages::episode(&page)),
        None => missing("an episode of this id"),
    }
}

async fn overview_json(State(served): State<Served>) -> Response {
    json_text(served.status.overview_json())
}

async fn node_json(State(served): State<Served>, Path(name): Path<String>) -> Response {
    match served.status.node(&NodeName::new(name)) {
        Some(page) => json(&page),
        None => missing_json("a node of this name"),
    }
}

async fn episode_json(State(served): State<Served>, Path(id): Path<String>) -> Response {
    match served.status.episode(&id) {
        Some(page) => json(&page),
        None => missing_json("an episode of this id"),
    }
}

/// Tells of changes: that there is one, not which, so that however many listen, nothing is kept for any of them.
async fn events(State(served): State<Served>) -> Response {
    let Ok(place) = Arc::clone(&served.listeners).try_acquire_owned() else {
        let refusal = format!("{LISTENERS} pages listen already; this one has to ask by itself\n");
        let wait = [(header::RETRY_AFTER, "60")];
        return (StatusCode::SERVICE_UNAVAILABLE, wait, refusal).into_response();
    };
    let listener = PageListener {
        changes: served.status.changes.subscribe(),
        until: Instant::now() + LISTENING_MAX,
        told: None,
        _place: place,
    };
    let told = stream::unfold(listener, |mut listener| async move {
        let event = listener.next().await?;
        Some((Ok::<_, Infallible>(event), listener))
    });
    let alive = KeepAlive::new().interval(SIGN_OF_LIFE);
    Sse::new(told).keep_alive(alive).into_response()
}

/// One page that is told of changes.
struct PageListener {
    changes: watch::Receiver<u64>,
    until: Instant,
    /// When it was told something last.
    told: Option<Instant>,
    _place: OwnedSemaphorePermit,
}

impl PageListener {
    /// The next event; `None` when it has listened for long enough.
    async fn next(&mut self) -> Option<Event> {
        let event = match self.told {
            // It may have been drawn before the latest change, so it is told where things stand.
            None => Event::default().retry(ASK_AGAIN),
            Some(told) => {
                let changed = tokio::time::timeout_at(self.until, self.changes.changed());
                changed.await.ok()?.ok()?;
                tokio::time::sleep_until(told + GATHER).await;
                Event::default()
            }
        };
        self.told = Some(Instant::now());
        let revision = *self.changes.borrow_and_update();
        Some(event.event("changed").data(revision.to_string()))
    }
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

fn html<Page: IntoResponse>(page: Result<Page, askama::Error>) -> Response {
    match page {
        Ok(page) => ([(header::CONTENT_TYPE, HTML)], page).into_response(),
        Err(error) => {
            warn!("a status page cannot be written: {error}");
            let said = "the page cannot be written; the log says why\n";
            (StatusCode::INTERNAL_SERVER_ERROR, said).into_response()
        }
    }
}

fn json(page: &impl Serialize) -> Response {
    json_text(serde_json::to_string(page))
}

fn json_text<Text: IntoResponse>(text: serde_json::Result<Text>) -> Response {
    match text {
        Ok(text) => ([(header::CONTENT_TYPE, JSON)], text).into_response(),
        Err(error) => {
            warn!("a status page cannot be written as JSON: {error}");
            let said = "{\"error\":\"the page cannot be written; the log says why\"}";
            let kind = [(header::CONTENT_TYPE, JSON)];
            (StatusCode::INTERNAL_SERVER_ERROR, kind, said).into_response()
        }
    }
}

fn missing(what: &str) -> Response {
    let mut answer = html(pages::missing(what));
    if answer.status() == StatusCode::OK {
        *answer.status_mut() = StatusCode::NOT_FOUND;
    }
    answer
}

fn missing_json(what: &str) -> Response {
    let mut answer = json(&serde_json::json!({ "error": format!("{what} is not known") }));
    if answer.status() == StatusCode::OK {
        *answer.status_mut() = StatusCode::NOT_FOUND;
    }
    answer
}
