//! HTTP handlers of the status page: GET only, with headers that restrict what a browser loads.

use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::stream;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tracing::warn;

use super::view::ListFilter;
use super::{StatusPage, answer, pages};
use crate::access::{self, PageAccess};
use crate::plan::planner::Planner;
use crate::plan::{HOSTS_PATH, PLAN_PATH, REPORT_PATH};
use haulout_core::ids::NodeName;

/// Concurrent event streams: a hundred, and some that are closing. Further pages poll.
pub(super) const MAX_STREAMS: usize = 128;

/// Minimum interval of change events: a drain changes with each pod.
const CHANGE_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of keep-alive messages: proxies close a silent stream after a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// Lifetime of an event stream, so that dead clients free their slot. The page then reconnects.
pub(super) const STREAM_LIFETIME: Duration = Duration::from_secs(900);

/// Reconnect delay of a page.
const RECONNECT_DELAY: Duration = Duration::from_secs(3);

/// Concurrent renders: a large fleet takes some milliseconds of CPU.
pub(super) const RENDERS: usize = 1;

/// How long a request waits for rendering.
const RENDER_TIMEOUT: Duration = Duration::from_secs(5);

const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

const NODE: &str = "node of this name";
const HOST: &str = "host of this name, among those that have nodes or could take one,";
const EPISODE: &str = "episode of this id";

/// The deepest path whose page for an unknown address links to the overview.
const LEVELS_MAX: usize = 8;

/// The longest query of the overview.
const QUERY_MAX: usize = 1024;

const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

/// Headers of every response. Pages contain names from outside: if one were not escaped, the browser
/// still would not run it.
const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; \
         base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::CACHE_CONTROL, "no-store"),
    (RESOURCE_POLICY, "same-origin"),
    (OPENER_POLICY, "same-origin"),
];

#[derive(Clone)]
struct Served {
    status: Arc<StatusPage>,
    streams: Arc<Semaphore>,
}

pub(super) fn router(status: Arc<StatusPage>, planner: Arc<Planner>, access: PageAccess) -> Router {
    let answers = Router::new()
        .route(PLAN_PATH, get(answer::plan))
        .route(REPORT_PATH, get(answer::report))
        .route(HOSTS_PATH, get(answer::hosts))
        .route_layer(from_fn(answer::refuse_other_sites))
        .with_state(planner);
    let pages = pages_with(status, Arc::new(Semaphore::new(RENDERS)));
    guarded(answers.merge(pages), access)
}

/// What every route has in common.
pub(super) fn guarded(routes: Router, access: PageAccess) -> Router {
    routes
        .layer(from_fn_with_state(Arc::new(access), access::check))
        .layer(from_fn(guard))
}

/// The pages, with `renders` as limit of concurrent renders.
pub(super) fn pages_with(status: Arc<StatusPage>, renders: Arc<Semaphore>) -> Router {
    let served = Served {
        status,
        streams: Arc::new(Semaphore::new(MAX_STREAMS)),
    };
    let rendered = Router::new()
        .route("/", get(overview))
        .route("/maintainable", get(maintainable))
        .route("/nodes/{name}", get(node))
        .route("/hosts/{name}", get(host))
        .route("/episodes/{id}", get(episode))
        .route("/api/v1/overview", get(overview_json))
        .route("/api/v1/maintainable", get(maintainable_json))
        .route("/api/v1/nodes/{name}", get(node_json))
        .route("/api/v1/hosts/{name}", get(host_json))
        .route("/api/v1/episodes/{id}", get(episode_json))
        .route_layer(from_fn_with_state(renders, render_in_turn));
    rendered
        .route("/style.css", get(([(header::CONTENT_TYPE, CSS)], pages::STYLE)))
        .route(
            "/script.js",
            get(([(header::CONTENT_TYPE, SCRIPT)], pages::SCRIPT)),
        )
        .route("/events", get(events))
        .fallback(unknown)
        .with_state(served)
}

/// Limits concurrent renders.
async fn render_in_turn(State(renders): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    let Ok(Ok(_permit)) = tokio::time::timeout(RENDER_TIMEOUT, renders.acquire()).await else {
        let refusal = "too many requests; try again later\n";
        let wait = [(header::RETRY_AFTER, "5")];
        return (StatusCode::SERVICE_UNAVAILABLE, wait, refusal).into_response();
    };
    next.run(request).await
}

/// Rejects all methods but GET and HEAD, and adds the headers to every response.
async fn guard(request: Request, next: Next) -> Response {
    let mut answer = if matches!(*request.method(), Method::GET | Method::HEAD) {
        next.run(request).await
    } else {
        let refusal = "this page is read-only: use GET\n";
        (
            StatusCode::METHOD_NOT_ALLOWED,
            [(header::ALLOW, "GET, HEAD")],
            refusal,
        )
            .into_response()
    };
    for (name, value) in HEADERS {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

async fn overview(State(served): State<Served>, RawQuery(query): RawQuery) -> Response {
    rendered(HTML, served.status.overview_page(&filter(query.as_deref())))
}

async fn overview_json(State(served): State<Served>, RawQuery(query): RawQuery) -> Response {
    rendered(JSON, served.status.overview_json(&filter(query.as_deref())))
}

async fn maintainable(State(served): State<Served>, RawQuery(query): RawQuery) -> Response {
    let page = served.status.maintainable(&filter(query.as_deref()));
    rendered(HTML, pages::maintainable(&page))
}

async fn maintainable_json(State(served): State<Served>, RawQuery(query): RawQuery) -> Response {
    let page = served.status.maintainable(&filter(query.as_deref()));
    rendered(JSON, serde_json::to_string(&page))
}

/// Reads the query of a list. What is not understood is ignored, because people edit addresses.
fn filter(query: Option<&str>) -> ListFilter {
    let query = query.unwrap_or_default();
    let query = query.get(..query.len().min(QUERY_MAX)).unwrap_or_default();
    let mut filter = ListFilter::default();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "q" => value.trim().clone_into(&mut filter.q),
            "nodes" => filter.nodes = value.parse().unwrap_or_default(),
            "hosts" => filter.hosts = value.parse().unwrap_or_default(),
            _ => {}
        }
    }
    filter
}

async fn host(State(served): State<Served>, Path(name): Path<String>) -> Response {
    html(served.status.host(&name), HOST, pages::host)
}

async fn host_json(State(served): State<Served>, Path(name): Path<String>) -> Response {
    json(served.status.host(&name), HOST)
}

async fn node(State(served): State<Served>, Path(name): Path<String>) -> Response {
    html(served.status.node(&NodeName::new(name)), NODE, pages::node)
}

async fn node_json(State(served): State<Served>, Path(name): Path<String>) -> Response {
    json(served.status.node(&NodeName::new(name)), NODE)
}

async fn episode(State(served): State<Served>, Path(id): Path<String>) -> Response {
    html(served.status.episode(&id), EPISODE, pages::episode)
}

async fn episode_json(State(served): State<Served>, Path(id): Path<String>) -> Response {
    json(served.status.episode(&id), EPISODE)
}

/// Sends an event for each change, without content, so that a listener needs no buffer.
async fn events(State(served): State<Served>) -> Response {
    let Ok(permit) = Arc::clone(&served.streams).try_acquire_owned() else {
        let refusal = format!("{MAX_STREAMS} event streams are open already; poll instead\n");
        let wait = [(header::RETRY_AFTER, "60")];
        return (StatusCode::SERVICE_UNAVAILABLE, wait, refusal).into_response();
    };
    let stream = EventStream {
        changes: served.status.changes.subscribe(),
        until: Instant::now() + STREAM_LIFETIME,
        last_event: None,
        _permit: permit,
    };
    let events = stream::unfold(stream, |mut stream| async move {
        let event = stream.next().await?;
        Some((Ok::<_, Infallible>(event), stream))
    });
    let alive = KeepAlive::new().interval(KEEP_ALIVE);
    Sse::new(events).keep_alive(alive).into_response()
}

/// The event stream of a page.
struct EventStream {
    changes: watch::Receiver<u64>,
    until: Instant,
    /// Time of the last event.
    last_event: Option<Instant>,
    _permit: OwnedSemaphorePermit,
}

impl EventStream {
    /// The next event; `None` at the end of its lifetime.
    async fn next(&mut self) -> Option<Event> {
        let event = match self.last_event {
            // The page may be older than the latest change, so the first event is sent at once.
            None => Event::default().retry(RECONNECT_DELAY),
            Some(last_event) => {
                let changed = tokio::time::timeout_at(self.until, self.changes.changed());
                changed.await.ok()?.ok()?;
                tokio::time::sleep_until(last_event + CHANGE_INTERVAL).await;
                Event::default()
            }
        };
        self.last_event = Some(Instant::now());
        let revision = *self.changes.borrow_and_update();
        Some(event.event("changed").data(revision.to_string()))
    }
}

fn html<Page>(
    page: Option<Page>,
    what: &str,
    render: fn(&Page) -> Result<String, askama::Error>,
) -> Response {
    // Each of these pages is one level below the overview.
    page.map_or_else(|| missing(what, "../"), |page| rendered(HTML, render(&page)))
}

fn json(page: Option<impl Serialize>, what: &str) -> Response {
    let Some(page) = page else {
        let error = serde_json::json!({ "error": format!("there is no {what} here") });
        let body = rendered(JSON, serde_json::to_string(&error));
        return (StatusCode::NOT_FOUND, body).into_response();
    };
    rendered(JSON, serde_json::to_string(&page))
}

/// The overview is as many levels up as the path has directories. Relative, because a proxy may serve it under another path.
async fn unknown(uri: Uri) -> Response {
    let levels = uri.path().matches('/').count().saturating_sub(1);
    let root = match levels {
        0 => "./".to_owned(),
        levels => "../".repeat(levels.min(LEVELS_MAX)),
    };
    missing("page at this address", &root)
}

fn missing(what: &str, root: &str) -> Response {
    let page = rendered(HTML, pages::missing(what, root));
    (StatusCode::NOT_FOUND, page).into_response()
}

fn rendered<E: Display>(kind: &'static str, page: Result<impl IntoResponse, E>) -> Response {
    match page {
        Ok(page) => ([(header::CONTENT_TYPE, kind)], page).into_response(),
        Err(error) => {
            warn!("a status page cannot be rendered: {error}");
            let reason = "the page cannot be rendered; the log has the reason\n";
            (StatusCode::INTERNAL_SERVER_ERROR, reason).into_response()
        }
    }
}
