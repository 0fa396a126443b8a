//! One session with vCenter: logged in once however many ask, known by its generation, and logged out.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::HeaderValue;
use secrecy::ExposeSecret as _;
use sha2::{Digest as _, Sha256};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::endpoint::{Credentials, Trust};
use super::error::{ConnectError, Error, LoginError, TransportError};
use super::fault::{Fault, FaultKind};
use super::moref::Moref;
use super::settings::{Came, Settings};
use super::soap::{self, Answer, ReplyError};
use super::tls;
use super::transport::{Line, Transport};
use super::xml::write::Out;
use super::xml::{self, Element, Shape};

/// The API versions this client was written against, newest first. A newer server lists those it still speaks, and a
/// modest version keeps it from sending what is not known here.
const KNOWN_VERSIONS: &[&str] = &[
    "8.0.3.0", "8.0.2.0", "8.0.1.0", "8.0.0.1", "8.0.0.0", "7.0.3.2", "7.0.3.1", "7.0.3.0", "7.0.2.1",
    "7.0.2.0", "7.0.1.1", "7.0.1.0", "7.0.0.0", "7.0", "6.9.1", "6.8.7", "6.7.3", "6.7.2", "6.7.1", "6.7",
    "6.5",
];

/// A session that is believed to stand.
#[derive(Debug)]
pub(super) struct Session {
    /// Counts logins of this process: what belongs to another generation is void.
    pub(super) generation: u64,
    pub(super) transport: Transport,
    pub(super) soap_action: String,
    /// The negotiated API version, number by number.
    version: Vec<u32>,
    pub(super) cookie: HeaderValue,
    pub(super) content: Content,
    /// `UserSession.key`, by which vCenter is asked what this session may do. It is no secret: the cookie is.
    pub(super) key: Option<String>,
    /// `UserSession.userName`: how vCenter calls us where it tells who did what. It need not be what we logged in with.
    pub(super) user: Option<String>,
}

impl Session {
    /// Whether what came with that API version may be sent.
    pub(super) fn speaks(&self, version: &[u32]) -> bool {
        self.version.as_slice() >= version
    }
}

/// The numbers of an API version, `8.0.3.0`. What follows the first that is no number does not count.
fn numbers(version: &str) -> Vec<u32> {
    let numbers = version.split('.').map(str::parse);
    numbers.map_while(Result::ok).collect()
}

/// The singletons of a vCenter, read from its `ServiceContent`, never guessed.
#[derive(Clone, Debug)]
pub(super) struct Content {
    pub(super) root_folder: Moref,
    pub(super) property_collector: Moref,
    pub(super) view_manager: Moref,
    pub(super) session_manager: Moref,
    pub(super) search_index: Moref,
    /// Absent on what is no vCenter.
    pub(super) task_manager: Option<Moref>,
    /// Absent on what is no vCenter.
    pub(super) authorization_manager: Option<Moref>,
}

/// Hands out the session, and makes it.
pub(super) struct Sessions {
    settings: Settings,
    gate: tokio::sync::Mutex<Gate>,
    live: watch::Sender<Option<Arc<Session>>>,
    /// The one that was given up last: it may still stand on vCenter's side and count against its limit.
    given_up: Mutex<Option<Arc<Session>>>,
    /// Logins that are under way, each in a task of its own: who asked for one may be dropped after vCenter has accepted it, and nobody
    /// else would know of the session. They are waited for at the logout.
    logins: Mutex<JoinSet<()>>,
}

/// Who waits for a session.
type Caller = oneshot::Sender<Result<Arc<Session>, Error>>;

/// What only the one that logs in touches.
struct Gate {
    transport: Transport,
    ca: Option<Vec<u8>>,
    generation: u64,
    held: Option<Held>,
}

/// Credentials that were refused.
struct Held {
    digest: [u8; 32],
    until: Instant,
    fault: Fault,
}

impl Sessions {
    pub(super) fn new(settings: Settings) -> Result<Self, ConnectError> {
        let ca = tls::read_ca(&settings.trust)?;
        let transport = Transport::new(&settings, ca.as_deref())?;
        Ok(Self {
            settings,
            gate: tokio::sync::Mutex::new(Gate {
                transport,
                ca,
                generation: 0,
                held: None,
            }),
            live: watch::Sender::new(None),
            given_up: Mutex::new(None),
            logins: Mutex::default(),
        })
    }

    /// The live session; logs in where there is none. However many ask at once, one login is made. A login that has begun is
    /// finished, also when nobody waits for it any more.
    pub(super) async fn get(self: &Arc<Self>) -> Result<Arc<Session>, Error> {
        if let Some(session) = self.live() {
            return Ok(session);
        }
        let (caller, answer) = oneshot::channel();
        {
            let mut logins = self.logins.lock().unwrap_or_else(PoisonError::into_inner);
            while logins.try_join_next().is_some() {}
            logins.spawn(Arc::clone(self).answer(caller));
        }
        let answer = answer.await;
        answer.unwrap_or_else(|gone| Err(self.failed(step("Login", gone))))
    }

    async fn answer(self: Arc<Self>, mut caller: Caller) {
        let deadline = self.settings.call_deadline;
        let gate = tokio::select! {
            biased;
            () = caller.closed() => return,
            gate = tokio::time::timeout(deadline, self.gate.lock()) => gate,
        };
        let session = match gate {
            Ok(mut gate) => self.session(&mut gate).await,
            Err(_) => Err(step(
                "waiting for another login",
                TransportError::Deadline(deadline),
            )),
        };
        // Who has gone meanwhile leaves the session to those who ask next.
        drop(caller.send(session.map_err(|error| self.failed(error))));
    }

    async fn session(&self, gate: &mut Gate) -> Result<Arc<Session>, LoginError> {
        if let Some(session) = self.live() {
            return Ok(session);
        }
        let session = Arc::new(self.login(gate).await?);
        self.live.send_replace(Some(session.clone()));
        Ok(session)
    }

    /// The live session, if there is one.
    pub(super) fn live(&self) -> Option<Arc<Session>> {
        self.live.borrow().clone()
    }

    /// Tells of every change of the live session.
    pub(super) fn watch(&self) -> watch::Receiver<Option<Arc<Session>>> {
        self.live.subscribe()
    }

    /// Gives up the session of that generation; a younger one stays.
    pub(super) fn give_up(&self, generation: u64) {
        let ended = self.live.send_if_modified(|live| {
            let hit = live
                .as_ref()
                .is_some_and(|session| session.generation == generation);
            if hit {
                self.given_up
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone_from(live);
                *live = None;
            }
            hit
        });
        if ended {
            tracing::info!(generation, "the vCenter session is gone; the next call logs in");
        }
    }

    /// Logs out where there is a session, or where a login that is under way makes one in time; what vCenter says to it changes
    /// nothing.
    pub(super) async fn logout(&self) {
        let mut logins = std::mem::take(&mut *self.logins.lock().unwrap_or_else(PoisonError::into_inner));
        let ended = async { while logins.join_next().await.is_some() {} };
        if tokio::time::timeout(GOODBYE, ended).await.is_err() {
            tracing::debug!("a login did not end in time; if vCenter accepts it, its session idles out");
        }
        if let Some(session) = self.live.send_replace(None) {
            self.say_goodbye(&session).await;
        }
    }

    async fn say_goodbye(&self, session: &Session) {
        let call = soap::method("Logout", &session.content.session_manager);
        let envelope = soap::envelope(&call, "haulout-logout");
        let sent = session
            .transport
            .post(
                Line::Call,
                &session.soap_action,
                Some(&session.cookie),
                envelope,
                GOODBYE,
            )
            .await;
        match sent {
            Ok(_) => tracing::debug!(generation = session.generation, "logged out of vCenter"),
            Err(error) => {
                tracing::debug!(generation = session.generation, %error, "the logout was not answered");
            }
        }
    }

    fn failed(&self, source: LoginError) -> Error {
        Error::Login {
            endpoint: self.settings.endpoint.to_string(),
            source,
        }
    }

    async fn login(&self, gate: &mut Gate) -> Result<Session, LoginError> {
        let credentials = self.settings.credentials.read()?;
        let digest = digest(&credentials);
        if let Some(held) = gate.held.as_ref().filter(|held| held.digest == digest) {
            let again_in = held.until.saturating_duration_since(Instant::now());
            if !again_in.is_zero() {
                return Err(LoginError::Credentials {
                    again_in,
                    source: held.fault.clone(),
                });
            }
        }
        let given_up = self
            .given_up
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(session) = given_up {
            self.say_goodbye(&session).await;
        }
        gate.renew_transport(&self.settings)?;
        let transport = gate.transport.clone();
        let version = self.negotiate(&transport).await?;
        let soap_action = format!("urn:vim25/{version}");
        let content = self.service_content(&transport, &soap_action).await?;
        let call = soap::method("Login", &content.session_manager)
            .with(Out::text("userName", credentials.user.clone()))
            .with(Out::text("password", credentials.password.expose_secret()));
        let turns = &self.settings.turns;
        turns
            .take(self.settings.call_deadline + TURN_MARGIN)
            .await
            .map_err(LoginError::Turn)?;
        let asked = self
            .ask(&transport, &soap_action, "Login", &call, read_user)
            .await;
        let is_refused = matches!(
            &asked,
            Ok((Answer::Fault { fault, .. }, _)) if fault.kind == FaultKind::InvalidLogin
        );
        turns
            .end(is_refused.then_some(self.settings.bad_login_hold))
            .await;
        let (answer, cookie) = asked?;
        let (key, user) = match answer {
            Answer::Returned(user) => user,
            Answer::Fault { fault, .. } if fault.kind == FaultKind::InvalidLogin => {
                // Those who share the account may have other credentials by then: they come first.
                let others_first = if turns.are_taken() {
                    self.settings.retry_max * 2
                } else {
                    Duration::ZERO
                };
                let again_in = self.settings.bad_login_hold + others_first;
                gate.held = Some(Held {
                    digest,
                    until: Instant::now() + again_in,
                    fault: fault.clone(),
                });
                return Err(LoginError::Credentials {
                    again_in,
                    source: fault,
                });
            }
            Answer::Fault { fault, .. } => return Err(step("Login", fault)),
        };
        let cookie =
            cookie.ok_or_else(|| step("Login", ReplyError::value("Set-Cookie", "a session cookie")))?;
        gate.held = None;
        gate.generation += 1;
        tracing::info!(
            endpoint = %self.settings.endpoint,
            user = %super::text::for_people(&credentials.user),
            generation = gate.generation,
            version = %soap_action,
            "logged in to vCenter"
        );
        Ok(Session {
            generation: gate.generation,
            transport,
            soap_action,
            version: numbers(&version),
            cookie,
            content,
            key,
            user,
        })
    }

    async fn negotiate(&self, transport: &Transport) -> Result<String, LoginError> {
        const STEP: &str = "asking for the API versions";
        let body = transport
            .versions(self.settings.call_deadline)
            .await
            .map_err(|error| step(STEP, error))?;
        choose_version(&body).map_err(|error| step(STEP, error))
    }

    async fn service_content(&self, transport: &Transport, action: &str) -> Result<Content, LoginError> {
        let instance = Moref::new("ServiceInstance", "ServiceInstance");
        let call = soap::method("RetrieveServiceContent", &instance);
        let (answer, _) = self
            .ask(transport, action, "RetrieveServiceContent", &call, read_content)
            .await?;
        match answer {
            Answer::Returned(content) => Ok(content),
            Answer::Fault { fault, .. } => Err(step("RetrieveServiceContent", fault)),
        }
    }

    /// A call outside of any session: without a cookie, because vCenter refuses a login on a session that has one.
    async fn ask<T>(
        &self,
        transport: &Transport,
        soap_action: &str,
        method: &'static str,
        call: &Out,
        read: impl FnOnce(&Element<'_>) -> Result<T, ReplyError>,
    ) -> Result<(Answer<T>, Option<HeaderValue>), LoginError> {
        let envelope = soap::envelope(call, "haulout-login");
        let began = tokio::time::Instant::now();
        let reply = transport
            .post(
                Line::Call,
                soap_action,
                None,
                envelope,
                self.settings.call_deadline,
            )
            .await;
        let read = reply
            .map_err(|error| (Came::Nothing, step(method, error)))
            .and_then(|reply| {
                let answer = soap::read_answer(method, &reply.body, read);
                let answer = answer.map_err(|error| (Came::Unreadable, step(method, error)))?;
                Ok((answer, reply.cookie))
            });
        let came = match &read {
            Ok((Answer::Returned(_), _)) => Came::Returned,
            Ok((Answer::Fault { .. }, _)) => Came::Fault,
            Err((came, _)) => *came,
        };
        self.settings.on_answer.note(method, came, began);
        read.map_err(|(_, error)| error)
    }
}

impl Gate {
    /// Builds the client anew where the CA file changed, so that a replaced CA is believed without a restart.
    fn renew_transport(&mut self, settings: &Settings) -> Result<(), LoginError> {
        if settings.trust == Trust::Nothing {
            tracing::warn!(
                endpoint = %settings.endpoint,
                "VCENTER_TLS_VERIFY=false: vCenter's certificate is NOT verified, and anyone between this program and \
                 vCenter can read the password and give orders to vCenter; set VCENTER_CA_BUNDLE instead"
            );
        }
        let ca = tls::read_ca(&settings.trust)?;
        if ca != self.ca {
            self.transport = Transport::new(settings, ca.as_deref())?;
            self.ca = ca;
        }
        Ok(())
    }
}

/// How much longer than its call a turn to log in lasts, for what is on its way when the call is given up.
const TURN_MARGIN: Duration = Duration::from_secs(5);

/// A logout is a courtesy: it is not worth holding up an exit or a login.
const GOODBYE: Duration = Duration::from_secs(5);

fn step(step: &'static str, source: impl std::error::Error + Send + Sync + 'static) -> LoginError {
    LoginError::Step {
        step,
        source: Box::new(source),
    }
}

/// Tells one pair of credentials from another without keeping either.
fn digest(credentials: &Credentials) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(credentials.user.len().to_be_bytes());
    hash.update(credentials.user.as_bytes());
    hash.update(credentials.password.expose_secret().as_bytes());
    hash.finalize().into()
}

/// Picks the newest API version that both sides know from `vimServiceVersions.xml`; the server's own where none is.
///
/// # Errors
/// Where the document names no version of `urn:vim25`.
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

/// `key` and `userName` of a `UserSession`.
fn read_user(response: &Element<'_>) -> Result<(Option<String>, Option<String>), ReplyError> {
    let session = response.child("returnval");
    let text = |name: &str| Some(session?.text_of(name)?.to_owned());
    Ok((text("key"), text("userName")))
}

fn read_content(response: &Element<'_>) -> Result<Content, ReplyError> {
    let content = response
        .child("returnval")
        .ok_or_else(|| ReplyError::value("returnval", "a ServiceContent"))?;
    let moref = |name: &str| {
        content
            .child(name)
            .and_then(Element::moref)
            .ok_or_else(|| ReplyError::value(name, "a managed object reference"))
    };
    Ok(Content {
        root_folder: moref("rootFolder")?,
        property_collector: moref("propertyCollector")?,
        view_manager: moref("viewManager")?,
        session_manager: moref("sessionManager")?,
        search_index: moref("searchIndex")?,
        task_manager: moref("taskManager").ok(),
        authorization_manager: moref("authorizationManager").ok(),
    })
}
