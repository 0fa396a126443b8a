//! The client. It logs in when needed, repeats what may be repeated, and names the operation in each
//! error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::call::SoapCall;
pub use super::endpoint::{CredentialPart, CredentialSource, Endpoint, EndpointError, Thumbprint, Trust};
pub use super::error::{ConnectError, Error, LoginError, TransportError};
use super::poll_wait::PollWait;
use super::session::{Session, Sessions};
pub use super::settings::{CallOutcome, Callback, LoginOutcome, Settings};
use super::soap::{self, ReplyError, SoapAnswer};
pub use super::transport::{
    ConnectionPool, Connector, HttpReplyFuture, HttpResponse, HttpTransport, TcpConnector,
};
use super::xml::Element;

/// A vCenter, with one session that all clones share.
#[derive(Clone)]
pub struct Vcenter {
    pub(super) settings: Arc<Settings>,
    pub(super) sessions: Arc<Sessions>,
    /// How long polls for updates wait.
    pub(super) poll_wait: Arc<PollWait>,
    calls: Arc<AtomicU64>,
    /// That relocations cannot be checked was told.
    is_told: Arc<AtomicBool>,
    /// The node that the calls are for.
    subject: Arc<str>,
}

impl Vcenter {
    /// Creates the client. Reads the CA file and sends nothing; the first call logs in.
    ///
    /// # Errors
    /// If TLS cannot be configured: an unreadable CA file, one without certificates, or no trust roots.
    pub fn new(settings: Settings) -> Result<Self, ConnectError> {
        Self::with_connector(settings, Arc::new(TcpConnector))
    }

    /// Like [`Vcenter::new`], over connections that `connector` makes.
    ///
    /// # Errors
    /// As [`Vcenter::new`].
    pub fn with_connector(settings: Settings, connector: Arc<dyn Connector>) -> Result<Self, ConnectError> {
        Ok(Self {
            sessions: Arc::new(Sessions::new(settings.clone(), connector)?),
            poll_wait: Arc::new(PollWait::new(settings.long_poll)),
            settings: Arc::new(settings),
            calls: Arc::default(),
            is_told: Arc::default(),
            subject: Arc::default(),
        })
    }

    /// The same client for calls on behalf of `subject`, whose name appears in vCenter's log.
    #[must_use]
    pub fn for_subject(&self, subject: &str) -> Self {
        Self {
            subject: subject.into(),
            ..self.clone()
        }
    }

    /// The `operationID` of a call. It holds the epoch and the subject if the call changes something.
    fn operation_id(&self, call: &SoapCall) -> String {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        match call.epoch {
            Some(epoch) if self.subject.is_empty() => format!("haulout-e{epoch}-{number:x}"),
            Some(epoch) => format!("haulout-e{epoch}-{}-{number:x}", self.subject),
            None => format!("haulout-{number:x}"),
        }
    }

    /// Whether it is the first time that relocations cannot be checked.
    pub(super) fn tells_once(&self) -> bool {
        !self.is_told.swap(true, Ordering::Relaxed)
    }

    /// Ends the session within 10 s: up to 5 s for a login in progress, 5 s for the logout. A later
    /// call logs in again.
    pub async fn logout(&self) {
        self.sessions.logout().await;
    }

    /// Checks that vCenter answers, without a session, by reading its API versions within some seconds.
    pub async fn probe(&self) -> Result<(), Error> {
        self.sessions.probe().await
    }

    /// Records that vCenter refused the login of `user` to another process, so long ago. The current
    /// credentials of that user are not sent before [`Settings::bad_login_hold`] is over. `user` has
    /// the form of [`LoginOutcome::Refused`].
    pub fn login_was_refused(&self, user: &str, ago: Duration) {
        self.sessions.refused_elsewhere(user, ago);
    }

    /// Clears a recorded refusal: another process has logged in since.
    pub fn login_was_accepted(&self) {
        self.sessions.forget_refusal();
    }

    /// Makes one call, once, in this session, and reads the response with `read`. A fault that shows a
    /// dead session drops the session.
    pub(super) async fn call_in<T>(
        &self,
        session: &Session,
        call: &SoapCall,
        read: impl FnOnce(&Element<'_>) -> Result<T, ReplyError>,
    ) -> Result<T, Error> {
        let deadline = self.settings.call_deadline;
        self.call_within(session, call, deadline, read).await
    }

    /// Like [`Vcenter::call_in`], with its own deadline.
    pub(super) async fn call_within<T>(
        &self,
        session: &Session,
        call: &SoapCall,
        deadline: Duration,
        read: impl FnOnce(&Element<'_>) -> Result<T, ReplyError>,
    ) -> Result<T, Error> {
        let began = Instant::now();
        let answer = self.exchange(session, call, deadline, read).await;
        let outcome = match &answer {
            Ok(_) => CallOutcome::Returned,
            Err(Error::Refused { .. }) => CallOutcome::Fault,
            Err(Error::Transport { .. } | Error::NotSent { .. } | Error::Login { .. }) => {
                CallOutcome::Nothing
            }
            Err(Error::Reply { .. }) => CallOutcome::Unreadable,
        };
        self.settings
            .on_answer
            .call((call.method, outcome, began.elapsed()));
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
            .post(call.pool, action, Some(cookie), envelope, deadline)
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
                    self.sessions.drop_session(session.generation);
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
