//! The session that callers share, in every order of their beginnings and ends, of vCenter's replies, of the death of the session
//! and of a logout.
//!
//! Each reply is held until the order of the run lets it through, so a run repeats exactly. The orders are enumerated: each run
//! follows the choices of the one before, and makes the last one differently that has an alternative.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and awaits each task that it spawns"
)]

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use haulout_core::ids::HostRef;
use haulout_vsphere::client::{
    ConnectError, ConnectionPool, Connector, CredentialPart, CredentialSource, Endpoint, HttpReplyFuture,
    HttpResponse, HttpTransport, Settings, Trust, Vcenter,
};
use http::header::{COOKIE, SET_COOKIE};
use http::{HeaderMap, Request, StatusCode};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How often the runtime is left to the tasks after a step. More than any chain of wake-ups is long.
const TURNS: usize = 16;

/// The most orders of one set of events.
const ORDERS_MAX: usize = 60_000;

const VERSIONS: &str = include_str!("../../../proto-notes/captures/versions.xml");
const CONTENT: &str = include_str!("../../../proto-notes/captures/service-content.xml");
const LOGIN: &str = include_str!("../../../proto-notes/captures/login.xml");
const DEAD: &str = include_str!("../../../proto-notes/captures/dead-session-call.xml");

/// A vCenter whose replies wait for [`HeldVcenter::let_through`].
#[derive(Clone, Default)]
struct HeldVcenter(Arc<Mutex<HeldState>>);

#[derive(Default)]
struct HeldState {
    waiting: Vec<(HeldRequest, oneshot::Sender<HttpResponse>)>,
    /// The cookies of the sessions that vCenter has.
    alive: BTreeSet<String>,
    logins: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum HeldRequest {
    Login,
    Logout(String),
    /// The caller is known by the host that it asks for.
    Read {
        caller: String,
        cookie: String,
    },
}

impl HeldVcenter {
    fn state(&self) -> MutexGuard<'_, HeldState> {
        self.0.lock()
    }

    /// Answers one of the waiting requests. vCenter decides now what it answers.
    fn let_through(&self, which: usize) {
        let mut state = self.state();
        let (request, reply) = state.waiting.remove(which);
        let mut headers = HeaderMap::new();
        let body = match request {
            HeldRequest::Login => {
                state.logins += 1;
                let cookie = format!("vmware_soap_session=s{}", state.logins);
                headers.insert(SET_COOKIE, cookie.parse().unwrap());
                state.alive.insert(cookie);
                LOGIN.to_owned()
            }
            HeldRequest::Logout(cookie) => {
                state.alive.remove(&cookie);
                returned("Logout")
            }
            HeldRequest::Read { cookie, .. } if state.alive.contains(&cookie) => {
                returned("RetrievePropertiesEx")
            }
            HeldRequest::Read { .. } => DEAD.to_owned(),
        };
        // The caller may be gone.
        let _ = reply.send(response(headers, body));
    }

    /// Leaves out the requests whose callers are gone.
    fn waiting(&self) -> usize {
        let mut state = self.state();
        state
            .waiting
            .retain(|(request, reply)| !reply.is_closed() || matches!(request, HeldRequest::Login));
        let logins = state
            .waiting
            .iter()
            .filter(|(request, _)| matches!(request, HeldRequest::Login));
        assert!(logins.count() <= 1, "two logins at once");
        // tokio wakes the waiters of a channel in a random order.
        state.waiting.sort_by(|(one, _), (other, _)| one.cmp(other));
        state.waiting.len()
    }
}

fn returned(method: &str) -> String {
    format!(
        "<Envelope xmlns=\"http://schemas.xmlsoap.org/soap/envelope/\"><Body><{method}Response xmlns=\"urn:vim25\"/></Body></Envelope>"
    )
}

fn response(headers: HeaderMap, body: String) -> HttpResponse {
    let status = if body.contains("Fault>") {
        StatusCode::INTERNAL_SERVER_ERROR
    } else {
        StatusCode::OK
    };
    HttpResponse {
        status,
        headers,
        body: body.into_bytes(),
    }
}

impl fmt::Debug for HeldVcenter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeldVcenter")
    }
}

impl Connector for HeldVcenter {
    fn connect(&self, _: &Settings, _: Option<&[u8]>) -> Result<Arc<dyn HttpTransport>, ConnectError> {
        Ok(Arc::new(self.clone()))
    }
}

impl HttpTransport for HeldVcenter {
    fn send(&self, _: ConnectionPool, request: Request<Vec<u8>>, _: &'static [u16]) -> HttpReplyFuture<'_> {
        let text = String::from_utf8_lossy(request.body()).into_owned();
        let cookie = request.headers().get(COOKIE);
        let cookie = cookie.map_or_else(String::new, |cookie| cookie.to_str().unwrap().to_owned());
        Box::pin(async move {
            let held = if text.contains("<Login ") {
                HeldRequest::Login
            } else if text.contains("<Logout ") {
                HeldRequest::Logout(cookie)
            } else if text.contains("<RetrievePropertiesEx ") {
                HeldRequest::Read {
                    caller: text
                        .split("host-")
                        .nth(1)
                        .unwrap_or_default()
                        .chars()
                        .take(1)
                        .collect(),
                    cookie,
                }
            } else if text.contains("<RetrieveServiceContent ") {
                return Ok(response(HeaderMap::new(), CONTENT.to_owned()));
            } else {
                return Ok(response(HeaderMap::new(), VERSIONS.to_owned()));
            };
            let (reply, answered) = oneshot::channel();
            self.state().waiting.push((held, reply));
            Ok(answered.await.expect("each request is answered"))
        })
    }
}

/// What happens besides the replies, each once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionEvent {
    Call,
    /// The first caller that is left gives up.
    GiveUp,
    /// vCenter ends all sessions.
    Restart,
    Logout,
}

/// The choices of a run, each with the number of alternatives there were.
#[derive(Debug, Default)]
struct Choices {
    made: Vec<(usize, usize)>,
    next: usize,
}

impl Choices {
    fn choose(&mut self, of: usize) -> usize {
        if self.next == self.made.len() {
            self.made.push((0, of));
        }
        let (choice, alternatives) = self.made[self.next];
        assert_eq!(
            alternatives, of,
            "a run repeats the one before up to its last choice"
        );
        self.next += 1;
        choice
    }

    /// Goes to the next order; `false` after the last one.
    fn advance(&mut self) -> bool {
        self.next = 0;
        while let Some((choice, alternatives)) = self.made.pop() {
            if choice + 1 < alternatives {
                self.made.push((choice + 1, alternatives));
                return true;
            }
        }
        false
    }
}

async fn settle() {
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
}

/// One order of `events` and of the replies to what they cause.
async fn run(events: &[SessionEvent], choices: &mut Choices) {
    let held = HeldVcenter::default();
    let someone = CredentialSource {
        user: CredentialPart::Given("someone".to_owned().into()),
        password: CredentialPart::Given("hunter2".to_owned().into()),
    };
    let endpoint = Endpoint::parse("vcenter.example.com").unwrap();
    let settings = Settings::new(endpoint, someone, Trust::Nothing);
    let vcenter = Vcenter::with_connector(settings, Arc::new(held.clone())).unwrap();
    let mut left = events.to_vec();
    let mut callers: Vec<JoinHandle<bool>> = Vec::new();
    let mut logouts = Vec::new();
    loop {
        settle().await;
        let waiting = held.waiting();
        if waiting + left.len() == 0 {
            break;
        }
        // Equal events are alternatives once.
        let mut distinct: Vec<SessionEvent> = left.clone();
        distinct.dedup();
        let choice = choices.choose(waiting + distinct.len());
        let Some(event) = choice.checked_sub(waiting).map(|event| distinct[event]) else {
            held.let_through(choice);
            continue;
        };
        left.remove(left.iter().position(|it| *it == event).unwrap());
        let vcenter = vcenter.clone();
        match event {
            SessionEvent::Call => {
                let host = HostRef::new(format!("host-{}", callers.len()));
                callers.push(tokio::spawn(async move { vcenter.survey(&[host]).await.is_ok() }));
            }
            SessionEvent::GiveUp => drop(callers.first().map(JoinHandle::abort)),
            SessionEvent::Restart => held.state().alive.clear(),
            SessionEvent::Logout => logouts.push(tokio::spawn(async move { vcenter.logout().await })),
        }
    }
    for logout in logouts {
        assert!(logout.is_finished(), "a logout hangs: {choices:?}");
    }
    for caller in callers {
        assert!(caller.is_finished(), "a caller hangs: {choices:?}");
        let ended = caller.await;
        // A read is repeated once in another session.
        let may_fail = events.contains(&SessionEvent::Restart) && events.contains(&SessionEvent::Logout);
        assert!(
            ended.map_or_else(|error| error.is_cancelled(), |is_ok| is_ok || may_fail),
            "a call failed: {choices:?}"
        );
    }
    let ends = events
        .iter()
        .filter(|it| matches!(it, SessionEvent::Restart | SessionEvent::Logout))
        .count();
    assert!(
        held.state().logins <= 1 + ends,
        "{} logins: {choices:?}",
        held.state().logins
    );
    let logout = tokio::spawn(async move { vcenter.logout().await });
    settle().await;
    while held.waiting() > 0 {
        held.let_through(0);
        settle().await;
    }
    assert!(logout.is_finished(), "the last logout hangs: {choices:?}");
    assert_eq!(
        held.state().alive,
        BTreeSet::new(),
        "a session is left behind: {choices:?}"
    );
}

fn in_every_order(events: &[SessionEvent]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let mut choices = Choices::default();
    let mut orders = 0;
    loop {
        runtime.block_on(run(events, &mut choices));
        orders += 1;
        assert!(orders < ORDERS_MAX, "these are too many events to try all orders");
        if !choices.advance() {
            break;
        }
    }
    assert!(orders > 10, "only {orders} orders");
}

#[test]
fn callers_share_one_login_and_one_of_them_gives_up() {
    in_every_order(&[
        SessionEvent::Call,
        SessionEvent::Call,
        SessionEvent::Call,
        SessionEvent::GiveUp,
    ]);
}

#[test]
fn dead_session_is_replaced_once_for_all_callers() {
    in_every_order(&[SessionEvent::Call, SessionEvent::Call, SessionEvent::Restart]);
}

#[test]
fn logout_leaves_no_session_of_a_caller_that_gave_up() {
    in_every_order(&[
        SessionEvent::Call,
        SessionEvent::Call,
        SessionEvent::GiveUp,
        SessionEvent::Logout,
    ]);
}

#[test]
fn logout_of_a_dead_session_leaves_none_behind() {
    in_every_order(&[
        SessionEvent::Call,
        SessionEvent::Call,
        SessionEvent::Restart,
        SessionEvent::Logout,
    ]);
}
