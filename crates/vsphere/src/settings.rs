//! How vCenter is spoken to, and who is told of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::endpoint::{CredentialSource, Endpoint, Trust};

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
    pub on_answer: OnCall,
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
pub struct OnCall(Option<Arc<CallListener>>);

type CallListener = dyn Fn(&'static str, CallOutcome, Duration) + Send + Sync;

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The answer.
    Returned,
    /// A fault.
    Fault,
    /// Nothing: no connection, or no answer in time.
    Nothing,
    /// Something that cannot be read.
    Unreadable,
}

impl OnCall {
    /// Tells `listener`, which must not wait.
    pub fn tell(listener: impl Fn(&'static str, CallOutcome, Duration) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(listener)))
    }

    pub(super) fn note(&self, method: &'static str, came: CallOutcome, began: Instant) {
        if let Some(listener) = &self.0 {
            listener(method, came, began.elapsed());
        }
    }
}

impl std::fmt::Debug for OnCall {
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
            on_answer: OnCall::default(),
            instance: String::new(),
            on_login: OnLogin::default(),
        }
    }
}
