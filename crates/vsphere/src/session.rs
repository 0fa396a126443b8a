//! The vCenter session: one login for all callers, a generation number, and logout.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderValue;
use jiff::Timestamp;
use parking_lot::Mutex;
use secrecy::ExposeSecret as _;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::refusal::Refusals;
use super::endpoint::Trust;
use super::error::{ConnectError, Error, LoginError};
use super::moref::Moref;
use super::settings::{CallOutcome, LoginOutcome, Settings};
use super::soap::{self, ReplyError, SoapAnswer};
use super::tls;
use super::transport::{ConnectionPool, Connector, Transport};
use super::xml::write::XmlWriter;
use super::xml::{self, Element, Shape};

mod refusal;
#[cfg(test)]
mod tests;

/// API versions this client was written against, newest first. A newer server accepts the versions it
/// lists; an older version keeps it from sending types that are unknown here.
const KNOWN_VERSIONS: &[&str] = &[
    "8.0.3.0", "8.0.2.0", "8.0.1.0", "8.0.0.1", "8.0.0.0", "7.0.3.2", "7.0.3.1", "7.0.3.0", "7.0.2.1",
    "7.0.2.0", "7.0.1.1", "7.0.1.0", "7.0.0.0", "7.0", "6.9.1", "6.8.7", "6.7.3", "6.7.2", "6.7.1", "6.7",
    "6.5",
];

/// A session that is believed to be alive.
#[derive(Debug)]
pub(super) struct Session {
    /// The number of the login in this process. What was made in another generation is invalid.
    pub(super) generation: u64,
    pub(super) transport: Transport,
    pub(super) soap_action: String,
    /// The negotiated API version as numbers.
    version: Vec<u32>,
    pub(super) cookie: HeaderValue,
    pub(super) content: ServiceContent,
    /// `UserSession.key`, used to query the privileges of this session. It is not secret; the cookie
    /// is.
    pub(super) key: Option<String>,
    /// `UserSession.userName`: our name in the user fields of tasks. It may differ from the login name.
    pub(super) user: Option<String>,
    /// `UserSession.loginTime`, on vCenter's clock.
    pub(super) began_at: Option<Timestamp>,
}

impl Session {
    /// Whether the negotiated API version is at least `version`.
    pub(super) fn speaks(&self, version: &[u32]) -> bool {
        self.version.as_slice() >= version
    }
}

/// The numbers of an API version such as `8.0.3.0`, up to the first part that is not a number.
fn numbers(version: &str) -> Vec<u32> {
    let numbers = version.split('.').map(str::parse);
    numbers.map_while(Result::ok).collect()
}

/// The singleton objects of a vCenter, from its `ServiceContent`.
#[derive(Clone, Debug)]
pub(super) struct ServiceContent {
    pub(super) root_folder: Moref,
    pub(super) property_collector: Moref,
    pub(super) view_manager: Moref,
    pub(super) session_manager: Moref,
    pub(super) search_index: Moref,
    /// Absent on an ESXi host.
    pub(super) task_manager: Option<Moref>,
    pub(super) authorization_manager: Option<Moref>,
    pub(super) event_manager: Option<Moref>,
    pub(super) custom_fields_manager: Option<Moref>,
    pub(super) provisioning_checker: Option<Moref>,
}

/// Creates and shares the session.
pub(super) struct Sessions {
    settings: Settings,
    connector: Arc<dyn Connector>,
    connection: Mutex<TransportWithCa>,
    live: watch::Sender<Option<Arc<Session>>>,
    /// The last session that was dropped. vCenter may still hold it and count it against its limit.
    dropped: Mutex<Option<Arc<Session>>>,
    generations: AtomicU64,
    refusals: Refusals,
    logins: Mutex<Logins>,
}

/// The transport, with the content of the CA file it was made from.
struct TransportWithCa {
    transport: Transport,
    ca: Option<Vec<u8>>,
}

/// The login in progress, at most one. It runs in its own task: if a caller were dropped after vCenter
/// accepted the login, the session would be orphaned. Logout waits for it.
#[derive(Default)]
struct Logins {
    tasks: JoinSet<()>,
    latest: Option<watch::Receiver<Login>>,
}

/// Result of a login; `None` while it is in progress.
type Login = Option<Result<Arc<Session>, Arc<LoginError>>>;

impl Sessions {
    pub(super) fn new(settings: Settings, connector: Arc<dyn Connector>) -> Result<Self, ConnectError> {
        let ca = tls::read_ca(&settings.trust)?;
        let transport = Transport::new(&settings, ca.as_deref(), &*connector)?;
        Ok(Self {
            settings,
            connector,
            connection: Mutex::new(TransportWithCa { transport, ca }),
            live: watch::Sender::new(None),
            dropped: Mutex::default(),
            generations: AtomicU64::default(),
            refusals: Refusals::default(),
            logins: Mutex::default(),
        })
    }

    /// Returns the live session, or logs in. All callers wait for the same login, which completes even
    /// if they are all dropped.
    pub(super) async fn get(self: &Arc<Self>) -> Result<Arc<Session>, Error> {
        let mut login = {
            // Checked under the lock: a login stores its session before it ends.
            let mut logins = self.logins.lock();
            if let Some(session) = self.live() {
                return Ok(session);
            }
            logins.in_progress(self)
        };
        let result = match login.wait_for(Option::is_some).await {
            Ok(result) => result.clone(),
            Err(_) => None,
        };
        let result = result.unwrap_or_else(|| Err(Arc::new(LoginError::Stopped)));
        result.map_err(|source| self.failed(source))
    }

    pub(super) fn live(&self) -> Option<Arc<Session>> {
        self.live.borrow().clone()
    }

    /// The live session, for a call that is not worth a login.
    pub(super) fn live_or_error(&self) -> Result<Arc<Session>, Error> {
        self.live()
            .ok_or_else(|| self.failed(Arc::new(LoginError::NotTried)))
    }

    pub(super) fn watch(&self) -> watch::Receiver<Option<Arc<Session>>> {
        self.live.subscribe()
    }

    /// Drops the session of `generation`; a newer one stays.
    pub(super) fn drop_session(&self, generation: u64) {
        let ended = self.live.send_if_modified(|live| {
            let matches = live
                .as_ref()
                .is_some_and(|session| session.generation == generation);
            if matches {
                self.dropped.lock().clone_from(live);
                *live = None;
            }
            matches
        });
        if ended {
            tracing::info!(generation, "the vCenter session is dead; the next call logs in");
        }
    }

    /// Logs out, after waiting for a login in progress. Errors of the logout are ignored.
    pub(super) async fn logout(&self) {
        // A caller that comes meanwhile waits for the login in progress. A second one would replace its session, which would then
        // be left behind.
        let mut logins = std::mem::take(&mut self.logins.lock().tasks);
        let ended = async { while logins.join_next().await.is_some() {} };
        if tokio::time::timeout(LOGOUT_DEADLINE, ended).await.is_err() {
            tracing::debug!("a login did not end in time; if vCenter accepts it, its session idles out");
        }
        if let Some(session) = self.live.send_replace(None) {
            self.send_logout(&session).await;
        }
    }

    /// Reads the API versions, which needs no session.
    pub(super) async fn probe(&self) -> Result<(), Error> {
        let versions = async {
            let transport = self.transport()?;
            let deadline = self.settings.call_deadline.min(PROBE_DEADLINE);
            self.negotiate(&transport, deadline).await
        };
        let versions = versions.await.map_err(|source| self.failed(Arc::new(source)));
        versions.map(|_| ())
    }

    /// Records that vCenter refused `user` to another process, so long ago.
    pub(super) fn refused_elsewhere(&self, user: &str, ago: Duration) {
        // Unreadable credentials cannot be recorded; those that are read later are different ones.
        if let Ok(credentials) = self.settings.credentials.read() {
            let hold = self.settings.bad_login_hold.saturating_sub(ago);
            self.refusals.refused_elsewhere(&credentials, user, hold);
        }
    }

    pub(super) fn forget_refusal(&self) {
        self.refusals.clear();
    }

    async fn send_logout(&self, session: &Session) {
        let call = soap::method("Logout", &session.content.session_manager);
        let envelope = soap::envelope(&call, "haulout-logout");
        let sent = session
            .transport
            .post(
                ConnectionPool::Calls,
                &session.soap_action,
                Some(&session.cookie),
                envelope,
                LOGOUT_DEADLINE,
            )
            .await;
        match sent {
            Ok(_) => tracing::debug!(generation = session.generation, "logged out of vCenter"),
            Err(error) => {
                tracing::debug!(generation = session.generation, %error, "the logout was not answered");
            }
        }
    }

    pub(super) fn failed(&self, source: Arc<LoginError>) -> Error {
        Error::Login {
            endpoint: self.settings.endpoint.to_string(),
            source,
        }
    }

    /// The transport. It is rebuilt when the CA file changed, so a new CA needs no restart.
    pub(super) fn transport(&self) -> Result<Transport, LoginError> {
        let ca = tls::read_ca(&self.settings.trust)?;
        let mut connection = self.connection.lock();
        if ca != connection.ca {
            connection.transport = Transport::new(&self.settings, ca.as_deref(), &*self.connector)?;
            connection.ca = ca;
        }
        Ok(connection.transport.clone())
    }

    async fn login(&self) -> Result<Session, LoginError> {
        let credentials = self.settings.credentials.read()?;
        self.refusals.check(&credentials)?;
        let dropped = self.dropped.lock().take();
        if let Some(session) = dropped {
            self.send_logout(&session).await;
        }
        self.warn_of_unverified();
        let transport = self.transport()?;
        let version = self.negotiate(&transport, self.settings.call_deadline).await?;
        let soap_action = format!("urn:vim25/{version}");
        let content = self.service_content(&transport, &soap_action).await?;
        let call = soap::method("Login", &content.session_manager)
            .with(XmlWriter::text("userName", credentials.user.clone()))
            .with(XmlWriter::text("password", credentials.password.expose_secret()));
        let reply = self
            .ask(&transport, &soap_action, "Login", &call, read_user)
            .await;
        // vCenter may have refused it.
        if reply.is_err() {
            self.refusals
                .unanswered(&credentials, self.settings.bad_login_hold);
        }
        let LoginReply { answer, cookie } = reply?;
        let (key, user, began_at) = match answer {
            SoapAnswer::Returned(user) => user,
            SoapAnswer::Fault { fault, .. } if refusal::is_refusal(&fault) => {
                let hold = self.settings.bad_login_hold;
                let error = self.refusals.refused(&credentials, fault, hold);
                let user = super::text::for_people(&credentials.user);
                self.settings.on_login.call(LoginOutcome::Refused { user });
                return Err(error);
            }
            SoapAnswer::Fault { fault, .. } => return Err(step("Login", fault)),
        };
        let cookie =
            cookie.ok_or_else(|| step("Login", ReplyError::value("Set-Cookie", "a session cookie")))?;
        self.refusals.accepted(&credentials);
        self.settings.on_login.call(LoginOutcome::Accepted);
        let generation = self.generations.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::info!(
            endpoint = %self.settings.endpoint,
            user = %super::text::for_people(&credentials.user),
            generation,
            version = %soap_action,
            "logged in to vCenter"
        );
        Ok(Session {
            generation,
            transport,
            soap_action,
            version: numbers(&version),
            cookie,
            content,
            key,
            user,
            began_at,
        })
    }

    fn warn_of_unverified(&self) {
        if self.settings.trust == Trust::Nothing && self.settings.thumbprint.is_none() {
            tracing::warn!(
                endpoint = %self.settings.endpoint,
                "VCENTER_TLS_VERIFY=false: vCenter's certificate is NOT verified, and anyone on the network path can \
                 read the password and control vCenter; set VCENTER_CA_BUNDLE instead"
            );
        }
    }

    async fn negotiate(&self, transport: &Transport, deadline: Duration) -> Result<String, LoginError> {
        const STEP: &str = "asking for the API versions";
        let body = transport.versions(deadline).await;
        let body = body.map_err(|error| step(STEP, error))?;
        choose_version(&body).map_err(|error| step(STEP, error))
    }

    async fn service_content(
        &self,
        transport: &Transport,
        action: &str,
    ) -> Result<ServiceContent, LoginError> {
        let instance = Moref::new("ServiceInstance", "ServiceInstance");
        let call = soap::method("RetrieveServiceContent", &instance);
        let reply = self
            .ask(transport, action, "RetrieveServiceContent", &call, read_content)
            .await?;
        match reply.answer {
            SoapAnswer::Returned(content) => Ok(content),
            SoapAnswer::Fault { fault, .. } => Err(step("RetrieveServiceContent", fault)),
        }
    }

    /// A call without a session cookie: vCenter refuses a login on a request that has one.
    async fn ask<T>(
        &self,
        transport: &Transport,
        soap_action: &str,
        method: &'static str,
        call: &XmlWriter,
        read: impl FnOnce(&Element<'_>) -> Result<T, ReplyError>,
    ) -> Result<LoginReply<T>, LoginError> {
        let envelope = soap::envelope(call, "haulout-login");
        let began = tokio::time::Instant::now();
        let reply = transport
            .post(
                ConnectionPool::Calls,
                soap_action,
                None,
                envelope,
                self.settings.call_deadline,
            )
            .await;
        let read = reply
            .map_err(|error| (CallOutcome::Nothing, step(method, error)))
            .and_then(|reply| {
                let answer = soap::read_answer(method, &reply.body, read);
                let answer = answer.map_err(|error| (CallOutcome::Unreadable, step(method, error)))?;
                Ok(LoginReply {
                    answer,
                    cookie: reply.cookie,
                })
            });
        let outcome = match &read {
            Ok(reply) => match reply.answer {
                SoapAnswer::Returned(_) => CallOutcome::Returned,
                SoapAnswer::Fault { .. } => CallOutcome::Fault,
            },
            Err((outcome, _)) => *outcome,
        };
        self.settings.on_answer.call((method, outcome, began.elapsed()));
        read.map_err(|(_, error)| error)
    }
}

/// The reply to a call without a session.
struct LoginReply<T> {
    answer: SoapAnswer<T>,
    /// The session cookie, which vCenter sets with a refused login as well.
    cookie: Option<HeaderValue>,
}

impl Logins {
    /// Returns the login in progress, or starts one.
    fn in_progress(&mut self, sessions: &Arc<Sessions>) -> watch::Receiver<Login> {
        while self.tasks.try_join_next().is_some() {}
        let latest = self.latest.as_ref().filter(|login| {
            // A login whose task panicked or was dropped never ends.
            login.has_changed().is_ok() && login.borrow().is_none()
        });
        if let Some(login) = latest {
            return login.clone();
        }
        let (end, login) = watch::channel(None);
        let sessions = Arc::clone(sessions);
        self.tasks.spawn(async move {
            let session = sessions.login().await;
            let session = session.map(Arc::new).map_err(Arc::new);
            if let Ok(session) = &session {
                sessions.live.send_replace(Some(session.clone()));
            }
            end.send_replace(Some(session));
        });
        self.latest = Some(login.clone());
        login
    }
}

/// Reading a file of a kilobyte takes less.
const PROBE_DEADLINE: Duration = Duration::from_secs(5);

/// Limit for a logout, so that it does not delay an exit or a login.
const LOGOUT_DEADLINE: Duration = Duration::from_secs(5);

fn step(step: &'static str, source: impl std::error::Error + Send + Sync + 'static) -> LoginError {
    LoginError::Step {
        step,
        source: Box::new(source),
    }
}

/// Selects the newest API version that both sides support from `vimServiceVersions.xml`; the server's
/// own version if there is none.
pub(crate) fn choose_version(document: &[u8]) -> Result<String, ReplyError> {
    let document = xml::parse(document, Shape::default())?;
    let texts = |element: &Element<'_>, name: &str| -> Vec<String> {
        let named = element.children().filter(|child| child.name() == name);
        named.map(|child| child.text().to_owned()).collect()
    };
    let vim = document
        .children()
        .find(|space| texts(space, "name") == [xml::VIM25])
        .ok_or_else(|| ReplyError::value("namespace urn:vim25", "listed"))?;
    let mut offered = texts(vim, "version");
    let own = offered.first().cloned();
    for prior in vim.children().filter(|child| child.name() == "priorVersions") {
        offered.extend(texts(prior, "version"));
    }
    let common = KNOWN_VERSIONS
        .iter()
        .find(|known| offered.iter().any(|offer| offer == *known));
    let own = own.filter(|own| own.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.'));
    common
        .map(|known| (*known).to_owned())
        .or(own)
        .ok_or_else(|| ReplyError::value("version", "an API version"))
}

/// `key`, `userName` and `loginTime` of a `UserSession`.
pub(crate) type UserSession = (Option<String>, Option<String>, Option<Timestamp>);

pub(crate) fn read_user(response: &Element<'_>) -> Result<UserSession, ReplyError> {
    let session = response.child("returnval");
    let text = |name: &str| Some(session?.text_of(name)?.to_owned());
    let began_at = text("loginTime").as_deref().and_then(super::decode::timestamp);
    Ok((text("key"), text("userName"), began_at))
}

pub(crate) fn read_content(response: &Element<'_>) -> Result<ServiceContent, ReplyError> {
    let content = response
        .child("returnval")
        .ok_or_else(|| ReplyError::value("returnval", "a ServiceContent"))?;
    let moref = |name: &str| {
        content
            .child(name)
            .and_then(Element::moref)
            .ok_or_else(|| ReplyError::value(name, "a managed object reference"))
    };
    Ok(ServiceContent {
        root_folder: moref("rootFolder")?,
        property_collector: moref("propertyCollector")?,
        view_manager: moref("viewManager")?,
        session_manager: moref("sessionManager")?,
        search_index: moref("searchIndex")?,
        task_manager: moref("taskManager").ok(),
        authorization_manager: moref("authorizationManager").ok(),
        event_manager: moref("eventManager").ok(),
        custom_fields_manager: moref("customFieldsManager").ok(),
        provisioning_checker: moref("vmProvisioningChecker").ok(),
    })
}
