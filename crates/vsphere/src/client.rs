//! The client: settings, and one way to call vCenter that logs in, repeats what may be repeated, and names its errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

pub use super::endpoint::{CredentialPart, CredentialSource, Endpoint, EndpointError, Trust};
pub use super::error::{ConnectError, Error, LoginError, TransportError};
pub use super::look::AskedBy;
use super::poll_connection::PollConnection;
pub use super::power::{Asked, PowerOnBy, Started};
use super::session::{Session, Sessions};
use super::soap::{self, Answer, Moref};
use super::xml::Part;
use super::xml::write::Out;
use crate::Permit;

/// Where vCenter is and how it is spoken to.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its SOAP service.
    pub endpoint: Endpoint,
    /// Who we are.
    pub credentials: CredentialSource,
    /// Whose certificates are believed.
    pub trust: Trust,
    /// Longest time for one call other than the long poll, 30 s.
    pub call_deadline: Duration,
    /// `maxWaitSeconds` of the long poll in whole seconds, at least 1, 120 s: below the idle limit of every proxy, often enough
    /// to keep the session warm, and seldom enough that the two polls of an idle stream are one call a minute.
    pub long_poll: Duration,
    /// How often hosts and lookups are read again although nothing was pushed: `POLL_INTERVAL_SECONDS`.
    pub reread_every: Duration,
    /// First pause after the stream broke, 1 s.
    pub retry_min: Duration,
    /// Longest pause between attempts to rebuild the stream, 30 s.
    pub retry_max: Duration,
    /// How long credentials that vCenter refused are not tried again, 180 s: repeated failures lock the account.
    /// Changed credentials are tried at once.
    pub bad_login_hold: Duration,
    /// Who is told of each call, nobody unless asked for.
    pub on_answer: OnAnswer,
    /// Who we are among several of us; it stands in vCenter's list of sessions. Empty where nobody needs to know.
    pub instance: String,
    /// Who is told how logins end, nobody unless asked for.
    pub on_login: OnLogin,
}

/// Is told of each login to which vCenter answered yes or no.
#[derive(Clone, Default)]
pub struct OnLogin(Option<Arc<dyn Fn(LoginOutcome) + Send + Sync>>);

/// What vCenter answered to a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginOutcome {
    /// There is a session.
    Accepted,
    /// The credentials were wrong, or their user may do nothing.
    Refused {
        /// Whose they were, for people.
        user: String,
    },
}

impl OnLogin {
    /// Tells `listener`, which must not wait.
    pub fn by(listener: impl Fn(LoginOutcome) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(listener)))
    }

    pub(super) fn tell(&self, outcome: LoginOutcome) {
        if let Some(listener) = &self.0 {
            listener(outcome);
        }
    }
}

impl std::fmt::Debug for OnLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OnLogin").field(&self.0.is_some()).finish()
    }
}

/// Is told of each call that was made: which method, what came of it, and how long it took.
#[derive(Clone, Default)]
pub struct OnAnswer(Option<Arc<Listener>>);

type Listener = dyn Fn(&'static str, Came, Duration) + Send + Sync;

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// The answer.
    Returned,
    /// A fault.
    Fault,
    /// Nothing: no connection, or no answer in time.
    Nothing,
    /// Something that cannot be read.
    Unreadable,
}

impl OnAnswer {
    /// Tells `listener`, which must not wait.
    pub fn tell(listener: impl Fn(&'static str, Came, Duration) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(listener)))
    }

    pub(super) fn note(&self, method: &'static str, came: Came, began: Instant) {
        if let Some(listener) = &self.0 {
            listener(method, came, began.elapsed());
        }
    }
}

impl std::fmt::Debug for OnAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OnAnswer").field(&self.0.is_some()).finish()
    }
}

impl Settings {
    /// The settings with the defaults above and a re-read every 30 s.
    pub fn new(endpoint: Endpoint, credentials: CredentialSource, trust: Trust) -> Self {
        Self {
            endpoint,
            credentials,
            trust,
            call_deadline: Duration::from_secs(30),
            long_poll: Duration::from_secs(120),
            reread_every: Duration::from_secs(30),
            retry_min: Duration::from_secs(1),
            retry_max: Duration::from_secs(30),
            bad_login_hold: Duration::from_secs(180),
            on_answer: OnAnswer::default(),
            instance: String::new(),
            on_login: OnLogin::default(),
        }
    }
}

/// vCenter, with one session that all clones share.
#[derive(Clone)]
pub struct Vcenter {
    pub(super) settings: Arc<Settings>,
    pub(super) sessions: Arc<Sessions>,
    calls: Arc<AtomicU64>,
    /// Which node what is asked for is about.
    subject: Arc<str>,
}

/// One call: what, and on what. It is sent once; what only reads is asked again by [`Vcenter::retrieve`].
#[derive(Clone)]
pub(super) struct Call {
    pub(super) method: &'static str,
    pub(super) on: Moref,
    pub(super) body: Out,
    /// Of the leadership that permits it, for what changes something.
    epoch: Option<u64>,
    unread_for: Duration,
    over: Option<Arc<PollConnection>>,
}

impl Call {
    /// A call that reads, or that concerns nothing but what lives in our session.
    pub(super) fn to(method: &'static str, on: &Moref) -> Self {
        Self {
            method,
            on: on.clone(),
            body: soap::method(method, on),
            epoch: None,
            unread_for: Duration::ZERO,
            over: None,
        }
    }

    /// A call that changes something for others, which `permit` permits.
    pub(super) fn under(permit: &impl Permit, method: &'static str, on: &Moref) -> Self {
        Self {
            epoch: Some(permit.epoch()),
            ..Self::to(method, on)
        }
    }

    /// Leaves the answer unread for so long, so that reading it holds up nothing that comes in at the same moment.
    pub(super) fn unread_for(mut self, time: Duration) -> Self {
        self.unread_for = time;
        self
    }

    /// Goes over a connection of its own, where nothing stands before it.
    pub(super) fn over(mut self, connection: Arc<PollConnection>) -> Self {
        self.over = Some(connection);
        self
    }

    /// With one more argument, in the schema's order.
    pub(super) fn with(mut self, argument: Out) -> Self {
        self.body = self.body.with(argument);
        self
    }
}

impl Vcenter {
    /// Prepares the client. Reads the CA file and sends nothing; the first call logs in.
    ///
    /// # Errors
    /// Where TLS cannot be set up: an unreadable CA file, one without certificates, no trust roots at all.
    pub fn new(settings: Settings) -> Result<Self, ConnectError> {
        Ok(Self {
            sessions: Arc::new(Sessions::new(settings.clone())?),
            settings: Arc::new(settings),
            calls: Arc::default(),
            subject: Arc::default(),
        })
    }

    /// The same vCenter, asked on behalf of `subject`: what is started by it carries that name in vCenter's log.
    #[must_use]
    pub fn about(&self, subject: &str) -> Self {
        Self {
            subject: subject.into(),
            ..self.clone()
        }
    }

    /// Names one call in vCenter's log, and, where it changes something, under which leadership and for whom.
    fn operation_id(&self, call: &Call) -> String {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        match call.epoch {
            Some(epoch) if self.subject.is_empty() => format!("haulout-e{epoch}-{number:x}"),
            Some(epoch) => format!("haulout-e{epoch}-{}-{number:x}", self.subject),
            None => format!("haulout-{number:x}"),
        }
    }

    /// Ends the session, if there is one, within 10 s: a login that is under way has 5 s to end, and so has the logout. A later call
    /// logs in again.
    pub async fn logout(&self) {
        self.sessions.logout().await;
    }

    /// Whether vCenter answers, asked without a session and for its API versions, within some seconds.
    ///
    /// # Errors
    /// What keeps it from being reached: name, connection, certificate, or an answer that is none.
    pub async fn probe(&self) -> Result<(), Error> {
        self.sessions.probe().await
    }

    /// Takes that another process was refused as `user`, as [`LoginOutcome::Refused`] names it, so long ago. The credentials
    /// of that user, as they are at this moment, are not sent before [`Settings::bad_login_hold`] is over.
    pub fn login_was_refused(&self, user: &str, ago: Duration) {
        self.sessions.refused_before(user, ago);
    }

    /// Takes that no refusal counts any more: another process has logged in since.
    pub fn login_was_accepted(&self) {
        self.sessions.forget_refusal();
    }

    /// Calls in this session and no other, once. A fault that says the session is gone gives it up.
    pub(super) async fn call_in(&self, session: &Session, call: &Call) -> Result<Part, Error> {
        self.call_within(session, call, self.settings.call_deadline).await
    }

    /// As [`Vcenter::call_in`], with a deadline of its own.
    pub(super) async fn call_within(
        &self,
        session: &Session,
        call: &Call,
        deadline: Duration,
    ) -> Result<Part, Error> {
        let began = Instant::now();
        let answer = self.exchange(session, call, deadline).await;
        let came = match &answer {
            Ok(_) => Came::Returned,
            Err(Error::Refused { .. }) => Came::Fault,
            Err(Error::Transport { .. } | Error::Login { .. }) => Came::Nothing,
            Err(Error::Reply { .. }) => Came::Unreadable,
        };
        self.settings.on_answer.note(call.method, came, began);
        answer
    }

    async fn exchange(&self, session: &Session, call: &Call, deadline: Duration) -> Result<Part, Error> {
        let (operation, object) = (call.method, call.on.to_string());
        let envelope = soap::envelope(&call.body, &self.operation_id(call));
        let Session {
            transport,
            soap_action: action,
            cookie,
            ..
        } = session;
        let reply = match &call.over {
            Some(own) => transport.post_over(own, action, cookie, envelope, deadline).await,
            None => transport.post(action, Some(cookie), envelope, deadline).await,
        };
        let reply = reply.map_err(|source| Error::Transport {
            operation,
            object: object.clone(),
            source,
        })?;
        if !call.unread_for.is_zero() {
            tokio::time::sleep(call.unread_for).await;
        }
        match soap::read_answer(operation, reply.body) {
            Ok(Answer::Returned(response)) => Ok(response),
            Ok(Answer::Fault { fault, existing }) => {
                if super::fault::ends_session(&fault, &call.on) {
                    self.sessions.give_up(session.generation);
                }
                Err(Error::Refused {
                    operation,
                    object,
                    source: fault,
                    existing,
                })
            }
            Err(source) => Err(Error::Reply {
                operation,
                object,
                source,
            }),
        }
    }
}

impl std::fmt::Debug for Vcenter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Vcenter").field(&self.settings.endpoint).finish()
    }
}
