//! Why a call to vCenter did not do what it should, told with the operation, the object, and what happens next.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::fault::{Failure, Fault};
use super::soap::ReplyError;
use super::update::PowerState;

/// A call to vCenter failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No usable answer came. Whether vCenter performed the call is unknown: look before repeating it.
    #[error("{operation} on {object}: vCenter gave no usable answer, whether it acted is unknown")]
    Transport {
        /// The method.
        operation: &'static str,
        /// What it was called on.
        object: String,
        /// What became of the request.
        #[source]
        source: TransportError,
    },
    /// An answer came that cannot be understood.
    #[error("{operation} on {object}: vCenter's answer cannot be understood")]
    Reply {
        /// The method.
        operation: &'static str,
        /// What it was called on.
        object: String,
        /// What is wrong with it.
        #[source]
        source: ReplyError,
    },
    /// vCenter answered with a fault: it did not act.
    #[error("{operation} on {object}: vCenter refused")]
    Refused {
        /// The method.
        operation: &'static str,
        /// What it was called on.
        object: String,
        /// The fault.
        #[source]
        source: Fault,
        /// The power state that an `InvalidPowerState` found.
        existing: Option<PowerState>,
    },
    /// There is no session, and none could be had.
    #[error("no session with vCenter at {endpoint}")]
    Login {
        /// Where.
        endpoint: String,
        /// Why. All who waited for the same login have the same one.
        #[source]
        source: Arc<LoginError>,
    },
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// A credential file cannot be read.
    #[error("the credential file {path} cannot be read")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The user name or the password is empty.
    #[error("the {what} is empty")]
    Blank {
        /// Which of them.
        what: &'static str,
    },
    /// vCenter does not accept the credentials. They are not tried again before the wait is over or they change,
    /// because repeated failures lock the account.
    #[error("vCenter did not accept the credentials; the same ones are tried again in {} s at the earliest, changed ones at once", .again_in.as_secs())]
    Credentials {
        /// How long the same credentials are held back.
        again_in: Duration,
        /// What vCenter said.
        #[source]
        source: Fault,
    },
    /// vCenter did not accept these credentials from a process before this one.
    #[error("vCenter did not accept the credentials before this replica led; they are tried again in {} s at the earliest, changed ones at once", .again_in.as_secs())]
    RefusedBefore {
        /// How long they are held back.
        again_in: Duration,
    },
    /// The login was dropped, because this process ends.
    #[error("the login was stopped")]
    Stopped,
    /// The TLS client could not be set up anew.
    #[error("the connection could not be set up")]
    Connect(#[from] ConnectError),
    /// A step of the login failed.
    #[error("{step} failed")]
    Step {
        /// Which.
        step: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// What became of a request that got no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The connection could not be made, or broke.
    #[error("the connection failed")]
    Connection(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No whole answer within the deadline.
    #[error("no whole answer within {} s", .0.as_secs())]
    Deadline(Duration),
    /// A status that carries no SOAP: 503 and 502 are the proxy's while vCenter restarts.
    #[error("HTTP status {0}, which carries no answer")]
    Status(u16),
    /// Larger than any answer that is asked for.
    #[error("an answer of more than {} MiB", .0 >> 20)]
    TooLarge(usize),
}

/// Why the client cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The CA bundle cannot be read.
    #[error("the CA bundle {path} cannot be read")]
    CaFile {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The CA bundle holds no certificate, or one that cannot be a trust anchor.
    #[error("the CA bundle {path} is not usable: {why}")]
    CaContent {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// There is nothing to verify vCenter's certificate with.
    #[error("the system has no CA certificates: name vCenter's own with VCENTER_CA_BUNDLE")]
    NoRoots,
    /// The TLS library refused its configuration.
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
    /// The HTTP client could not be built.
    #[error("the HTTP client cannot be set up")]
    Http(#[source] reqwest::Error),
}

impl Error {
    /// The fault, where vCenter answered with one.
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Refused { source, .. } => Some(source),
            Self::Login { source, .. } => match source.as_ref() {
                LoginError::Credentials { source, .. } => Some(source),
                LoginError::File { .. }
                | LoginError::Blank { .. }
                | LoginError::RefusedBefore { .. }
                | LoginError::Stopped
                | LoginError::Connect(_)
                | LoginError::Step { .. } => None,
            },
            Self::Transport { .. } | Self::Reply { .. } => None,
        }
    }

    /// Why the call did not do what was asked.
    pub fn failure(&self) -> Failure<'_> {
        match self {
            Self::Refused { source, .. } => Failure::Refused(source),
            Self::Transport { .. } | Self::Reply { .. } => Failure::Unanswered,
            Self::Login { .. } => Failure::NotSent,
        }
    }

    /// The error and all its causes in one line, for people.
    pub fn chain(&self) -> String {
        chain(self)
    }
}

/// An error and all its causes in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}
