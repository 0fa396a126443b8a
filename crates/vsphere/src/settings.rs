//! Settings of the client.

use std::sync::Arc;
use std::time::Duration;

use super::endpoint::{CredentialSource, Endpoint, Thumbprint, Trust};
use super::scope::VmScope;

/// Settings of the client.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The SOAP service of vCenter.
    pub endpoint: Endpoint,
    /// Source of user and password.
    pub credentials: CredentialSource,
    /// Which certificates are trusted.
    pub trust: Trust,
    /// The only certificate that is accepted, in addition to `trust`.
    pub thumbprint: Option<Thumbprint>,
    /// Deadline of one call other than the long poll, 30 s.
    pub call_deadline: Duration,
    /// `maxWaitSeconds` of the long poll in whole seconds, at least 1, default 120 s. It keeps the session alive with one call a
    /// minute from the two polls of an idle stream. It becomes shorter where polls are cut.
    pub long_poll: Duration,
    /// Period of the re-read of hosts and lookups, without any push: `POLL_INTERVAL_SECONDS`.
    pub reread_every: Duration,
    /// First pause after the stream fails, 1 s.
    pub retry_min: Duration,
    /// Longest pause between attempts to rebuild the stream, 30 s.
    pub retry_max: Duration,
    /// How long refused credentials are not tried again, 180 s, because repeated failures lock the
    /// account. Changed credentials are tried at once. Those that vCenter accepted before are tried
    /// again after 10 s and 30 s first, because a vCenter that starts may refuse a correct password. So are
    /// those of a login without an answer, which vCenter may have refused.
    pub bad_login_hold: Duration,
    /// Called after each call with the method, the outcome, and the duration.
    pub on_answer: Callback<(&'static str, CallOutcome, Duration)>,
    /// Name of this replica in vCenter's list of sessions; may be empty.
    pub instance: String,
    /// The VMs that are found: `VCENTER_SCOPE`.
    pub scope: VmScope,
    /// Called after each login that vCenter accepted or refused.
    pub on_login: Callback<LoginOutcome>,
}

/// A function that is called from the client's tasks; it must not block. By default nothing is called.
#[derive(Clone)]
pub struct Callback<T>(Option<Arc<dyn Fn(T) + Send + Sync>>);

impl<T> Callback<T> {
    /// Calls `function`.
    pub fn new(function: impl Fn(T) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(function)))
    }

    pub(super) fn call(&self, value: T) {
        if let Some(function) = &self.0 {
            function(value);
        }
    }
}

impl<T> Default for Callback<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> std::fmt::Debug for Callback<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Callback").field(&self.0.is_some()).finish()
    }
}

/// Result of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginOutcome {
    /// vCenter accepted the credentials.
    Accepted,
    /// The credentials are wrong, or the user has no permission.
    Refused {
        /// The user name, sanitized.
        user: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// A response.
    Returned,
    Fault,
    /// No reply: no connection, or none before the deadline.
    Nothing,
    /// A reply that cannot be read.
    Unreadable,
}

impl Settings {
    /// The defaults above and a re-read every 30 s.
    pub fn new(endpoint: Endpoint, credentials: CredentialSource, trust: Trust) -> Self {
        Self {
            endpoint,
            credentials,
            trust,
            thumbprint: None,
            call_deadline: Duration::from_secs(30),
            long_poll: Duration::from_secs(120),
            reread_every: Duration::from_secs(30),
            retry_min: Duration::from_secs(1),
            retry_max: Duration::from_secs(30),
            bad_login_hold: Duration::from_secs(180),
            on_answer: Callback::default(),
            instance: String::new(),
            scope: VmScope::default(),
            on_login: Callback::default(),
        }
    }
}
