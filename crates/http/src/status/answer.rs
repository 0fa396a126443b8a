//! Plans and the report, for `kubectl haulout`.
//!
//! An answer may take minutes, so it is a stream of events: the progress, and at last the answer or an error. The work ends when
//! the client is gone; only a forecast that is being computed is completed.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures::stream;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::warn;

use crate::plan::planner::{ANSWER_TIMEOUT, NoPlan, Planner};
use crate::plan::view::{LeaderView, PlanProgress};
use crate::plan::{ANSWER_EVENT, ERROR_EVENT, PROGRESS_EVENT};

/// The interval of messages without content, so that the client sees that the leader lives.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Progress that has not been sent yet.
const EVENTS: usize = 16;

/// The plan of one host or node, or of several at once.
pub(super) async fn plan(State(planner): State<Arc<Planner>>, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let mut names: Vec<String> = form_urlencoded::parse(query.as_bytes())
        .filter(|(key, _)| key == "name")
        .map(|(_, name)| name.into_owned())
        .collect();
    let mut seen = BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    if names.is_empty() {
        let refusal = "name a host or a node: ?name=...\n";
        return (StatusCode::BAD_REQUEST, refusal).into_response();
    }
    answered(planner, Question::Plan(names)).await
}

/// The report of all nodes.
pub(super) async fn report(State(planner): State<Arc<Planner>>) -> Response {
    answered(planner, Question::Report).await
}

/// The names of all hosts.
pub(super) async fn hosts(State(planner): State<Arc<Planner>>) -> Response {
    match planner.hosts().await {
        Ok(hosts) => match event(ANSWER_EVENT, &hosts) {
            Ok(event) => Sse::new(stream::iter([Ok::<_, Infallible>(event)])).into_response(),
            Err(error) => unwritten(&error),
        },
        Err(refusal) => refused(&refusal),
    }
}

/// What is asked.
enum Question {
    Plan(Vec<String>),
    Report,
}

impl Question {
    async fn answer(self, view: LeaderView, progress: PlanProgress) -> anyhow::Result<Event> {
        match self {
            Self::Plan(names) => event(ANSWER_EVENT, &view.wave(&names, &progress).await?),
            Self::Report => event(ANSWER_EVENT, &view.report(&progress).await?),
        }
    }
}

/// As JSON, because an event may have no line ends.
fn event(name: &str, data: &impl Serialize) -> anyhow::Result<Event> {
    Ok(Event::default().event(name).data(serde_json::to_string(data)?))
}

/// Streams the answer.
async fn answered(planner: Arc<Planner>, question: Question) -> Response {
    let view = match planner.begin().await {
        Ok(view) => view,
        Err(refusal) => return refused(&refusal),
    };
    let (told, progress) = mpsc::channel(EVENTS);
    let (events, next) = mpsc::channel(1);
    // It ends with the stream, which holds it.
    let mut work = JoinSet::new();
    work.spawn(async move {
        let made = tokio::time::timeout(ANSWER_TIMEOUT, question.answer(view, PlanProgress(told)));
        let last = match made.await {
            Ok(Ok(made)) => Ok(made),
            Ok(Err(error)) => event(ERROR_EVENT, &format!("{error:#}")),
            Err(_elapsed) => {
                let limit = ANSWER_TIMEOUT.as_secs();
                event(ERROR_EVENT, &format!("it was not made within {limit} s"))
            }
        };
        match last {
            // The client may be gone.
            Ok(last) => drop(events.send(last).await),
            Err(error) => drop(unwritten(&error)),
        }
    });
    let state = (progress, next, work);
    let stream = stream::unfold(state, |(mut progress, mut next, work)| async move {
        let event = tokio::select! {
            biased;
            Some(text) = progress.recv() => event(PROGRESS_EVENT, &text).ok()?,
            Some(last) = next.recv() => last,
            else => return None,
        };
        Some((Ok::<_, Infallible>(event), (progress, next, work)))
    });
    let alive = KeepAlive::new().interval(KEEP_ALIVE);
    Sse::new(stream).keep_alive(alive).into_response()
}

/// A client may ask another replica, or this one later.
fn refused(refusal: &NoPlan) -> Response {
    let reason = format!("{refusal}\n");
    let refused = (StatusCode::SERVICE_UNAVAILABLE, reason).into_response();
    match refusal {
        NoPlan::Busy => ([(header::RETRY_AFTER, "5")], refused).into_response(),
        NoPlan::Standby | NoPlan::NotSynced(_) | NoPlan::NoAnswer => refused,
    }
}

fn unwritten(error: &anyhow::Error) -> Response {
    warn!("an answer for kubectl haulout cannot be written: {error}");
    (StatusCode::INTERNAL_SERVER_ERROR, "the log has the reason\n").into_response()
}

/// Refuses what a page of another site asks for. It could not read the answer, but keep the leader busy.
pub(super) async fn refuse_other_sites(request: Request, next: Next) -> Response {
    let site = request.headers().get("sec-fetch-site");
    if site.is_none_or(|site| site == "none" || site == "same-origin") {
        return next.run(request).await;
    }
    (StatusCode::FORBIDDEN, "a page of another site may not ask this\n").into_response()
}

#[cfg(test)]
mod tests;
