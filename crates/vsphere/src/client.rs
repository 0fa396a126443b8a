//! The client: settings, and one way to call vCenter that logs in, repeats what may be repeated, and names its errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::call::SoapCall;
pub use super::commands::{GuestShutdown, MaintenanceCause, PowerOnBy, StartedTask};
pub use super::endpoint::{CredentialPart, CredentialSource, Endpoint, EndpointError, Trust};
pub use super::error::{ConnectError, Error, LoginError, TransportError};
use super::session::{Session, Sessions};
pub use super::settings::{CallOutcome, LoginOutcome, OnCall, OnLogin, Settings};
use super::soap::{self, ReplyError, SoapAnswer};
use super::xml::Element;

/// vCenter, with one session that all clones share.
#[derive(Clone)]
pub struct Vcenter {
    pub(super) settings: Arc<Settings>,
    pub(super) sessions: Arc<Sessions>,
    calls: Arc<AtomicU64>,
    /// Which node what is asked for is about.
    subject: Arc<str>,
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
    fn operation_id(&self, call: &SoapCall) -> String {
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

    /// Calls in this session and no other, once, and reads the response with `read`. A fault that says the session is gone gives
    /// it up.
    pub(super) async fn call_in<T>(
        &self,
        session: &Session,
        call: &SoapCall,
        read: impl FnOnce(&Element<'_>) -> Result<T, ReplyError>,
    ) -> Result<T, Error> {
        let deadline = self.settings.call_deadline;
        self.call_within(session, call, deadline, read).await
    }

    /// As [`Vcenter::call_in`], with a deadline of its own.
    pub(super) async fn call_within<T>(
        &self,
        session: &Session,
        call: &SoapCall,
        deadline: Duration,
        read: impl FnOnce(&Element<'_>) -> Result<T, ReplyError>,
    ) -> Result<T, Error> {
        let began = Instant::now();
        let answer = self.exchange(session, call, deadline, read).await;
        let came = match &answer {
            Ok(_) => CallOutcome::Returned,
            Err(Error::Refused { .. }) => CallOutcome::Fault,
            Err(Error::Transport { .. } | Error::Login { .. }) => CallOutcome::Nothing,
            Err(Error::Reply { .. }) => CallOutcome::Unreadable,
        };
        self.settings.on_answer.note(call.method, came, began);
        answer
    }

    async fn exchange<T>(
        &self,
        session: &Session,
        call: &SoapCall,
        deadline: Duration,
        read: impl FnOnce(&Element<'_>) -> Result<T, ReplyError>,
    ) -> Result<T, Error> {
        let (operation, object) = (call.method, call.on.to_string());
        let envelope = soap::envelope(&call.body, &self.operation_id(call));
        let Session {
            transport,
            soap_action: action,
            cookie,
            ..
        } = session;
        let reply = transport
            .post(call.line, action, Some(cookie), envelope, deadline)
            .await;
        let reply = reply.map_err(|source| Error::Transport {
            operation,
            object: object.clone(),
            source,
        })?;
        match soap::read_answer(operation, &reply.body, read) {
            Ok(SoapAnswer::Returned(response)) => Ok(response),
            Ok(SoapAnswer::Fault { fault, existing }) => {
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
