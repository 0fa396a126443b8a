//! Errors of calls to vCenter, with the operation and the object. Each `Display` omits its source;
//! [`Error::chain`] includes all sources.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use haulout_core::tls_errors::explained;

use super::fault::{Failure, Fault, FaultKind};
use super::moref::Moref;
use super::soap::ReplyError;
use super::update::PowerState;
use super::xml::{LimitBreach, XmlError};

/// A failed call to vCenter.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No usable reply. vCenter may have performed the call: check before repeating it.
    #[error("{operation} on {object}: vCenter gave no usable answer, whether it acted is unknown")]
    Transport {
        operation: &'static str,
        object: String,
        #[source]
        source: TransportError,
    },
    /// The check before the call got no usable reply, so the call was not sent.
    #[error("{operation} on {object}: nothing was sent, because the check before it failed")]
    NotSent {
        operation: &'static str,
        object: String,
        #[source]
        source: Box<Error>,
    },
    /// A reply that cannot be understood.
    #[error("{operation} on {object}: vCenter's answer cannot be understood")]
    Reply {
        operation: &'static str,
        object: String,
        #[source]
        source: ReplyError,
    },
    /// vCenter returned a fault and did not act.
    #[error("{operation} on {object}: vCenter refused")]
    Refused {
        operation: &'static str,
        object: String,
        #[source]
        source: Fault,
        /// The current power state from an `InvalidPowerState` fault.
        existing: Option<PowerState>,
    },
    /// No session, and the login failed or was not tried.
    #[error("no session with vCenter at {endpoint}")]
    Login {
        endpoint: String,
        #[source]
        source: Arc<LoginError>,
    },
}

/// Why a login failed.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    #[error("the credential file {path} cannot be read")]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the {what} is empty")]
    Blank { what: &'static str },
    /// vCenter refused the credentials. They are held back until the wait ends or they change, because
    /// repeated failures lock the account.
    #[error("vCenter did not accept the credentials; the same ones are tried again in {} s at the earliest, changed ones at once", .again_in.as_secs())]
    Credentials {
        again_in: Duration,
        #[source]
        source: Fault,
    },
    /// vCenter refused these credentials to another process.
    #[error("vCenter did not accept the credentials before this replica became the leader; they are tried again in {} s at the earliest, changed ones at once", .again_in.as_secs())]
    RefusedElsewhere { again_in: Duration },
    /// vCenter may have refused the last login with these credentials.
    #[error("vCenter has not answered the last login, and may have counted it as a failed one; the credentials are tried again in {} s at the earliest, changed ones at once", .again_in.as_secs())]
    Unanswered { again_in: Duration },
    /// The process is shutting down.
    #[error("the login was stopped")]
    Stopped,
    /// The call is not worth a login.
    #[error("this call begins none")]
    NotTried,
    #[error("the connection could not be set up")]
    Connect(#[from] ConnectError),
    #[error("{step} failed")]
    Step {
        step: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Why a request got no usable reply.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The connection failed or broke.
    #[error("the connection failed")]
    Connection(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No complete reply within the deadline.
    #[error("no whole answer within {} s", .0.as_secs())]
    Deadline(Duration),
    /// A status without SOAP: the reverse proxy sends 503 and 502 while vCenter restarts.
    #[error("HTTP status {0}, which carries no answer")]
    Status(u16),
    /// The reply exceeds the limit, in bytes.
    #[error("an answer of more than {} MiB", .0 >> 20)]
    TooLarge(usize),
}

/// Why the client cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the CA bundle {path} cannot be read")]
    CaFile {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The CA bundle has no certificate, or one that cannot be a trust anchor.
    #[error("the CA bundle {path} is not usable: {why}")]
    CaContent { path: PathBuf, why: String },
    /// No trust roots on this system.
    #[error("the system has no CA certificates: name vCenter's own with VCENTER_CA_BUNDLE")]
    NoRoots,
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
    #[error("the HTTP client cannot be set up")]
    Http(#[source] reqwest::Error),
}

impl Error {
    /// The refusal of a call that was not sent.
    pub(super) fn refused(operation: &'static str, object: &Moref, source: Fault) -> Self {
        Self::Refused {
            operation,
            object: object.to_string(),
            source,
            existing: None,
        }
    }

    /// The error of the check before a call, which was not sent for it.
    pub(super) fn before(self, operation: &'static str, object: &Moref) -> Self {
        match self {
            Self::Transport { .. } | Self::Reply { .. } => Self::NotSent {
                operation,
                object: object.to_string(),
                source: Box::new(self),
            },
            Self::NotSent { .. } | Self::Refused { .. } | Self::Login { .. } => self,
        }
    }

    /// The fault, if vCenter returned one.
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Refused { source, .. } => Some(source),
            Self::Login { source, .. } => match source.as_ref() {
                LoginError::Credentials { source, .. } => Some(source),
                LoginError::File { .. }
                | LoginError::Blank { .. }
                | LoginError::RefusedElsewhere { .. }
                | LoginError::Unanswered { .. }
                | LoginError::Stopped
                | LoginError::NotTried
                | LoginError::Connect(_)
                | LoginError::Step { .. } => None,
            },
            Self::Transport { .. } | Self::Reply { .. } | Self::NotSent { .. } => None,
        }
    }

    /// The class of the failure.
    pub fn failure(&self) -> Failure<'_> {
        match self {
            Self::Refused { source, .. } => Failure::Refused(source),
            Self::Transport { .. } | Self::Reply { .. } => Failure::Unanswered,
            Self::Login { .. } | Self::NotSent { .. } => Failure::NotSent,
        }
    }

    /// Whether the server does not have what was asked for: it is older, or a simulator.
    pub fn is_not_there(&self) -> bool {
        matches!(
            self,
            Self::Transport {
                source: TransportError::Status(404),
                ..
            }
        )
    }

    /// Whether the server may answer soon: it was not reached, or its reverse proxy says that it is not up.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Transport {
                source: TransportError::Status(status),
                ..
            } => *status >= 500,
            Self::Transport { .. } => true,
            Self::Reply { .. } | Self::NotSent { .. } | Self::Refused { .. } | Self::Login { .. } => false,
        }
    }

    /// Whether the reply has more bytes or elements than are read.
    pub(super) fn is_too_large(&self) -> bool {
        matches!(
            self,
            Self::Transport {
                source: TransportError::TooLarge(_),
                ..
            } | Self::Reply {
                source: ReplyError::Xml(XmlError::Beyond(LimitBreach::Elements)),
                ..
            }
        )
    }

    /// Whether vCenter refuses what it has. What it does not have, or does not allow, it refuses for good. Some faults are of the
    /// session.
    pub(super) fn is_refused_for_now(&self) -> bool {
        let Self::Refused { source, .. } = self else {
            return false;
        };
        !matches!(
            source.kind,
            FaultKind::NotSupported
                | FaultKind::InvalidArgument
                | FaultKind::NoPermission
                | FaultKind::NotAuthenticated
                | FaultKind::ManagedObjectNotFound
                | FaultKind::RequestCanceled
        )
    }

    /// How long the credentials are held back, if that is why there is no session.
    pub(super) fn login_held_for(&self) -> Option<Duration> {
        let Self::Login { source, .. } = self else {
            return None;
        };
        match source.as_ref() {
            LoginError::Credentials { again_in, .. }
            | LoginError::RefusedElsewhere { again_in }
            | LoginError::Unanswered { again_in } => Some(*again_in),
            LoginError::File { .. }
            | LoginError::Blank { .. }
            | LoginError::Stopped
            | LoginError::NotTried
            | LoginError::Connect(_)
            | LoginError::Step { .. } => None,
        }
    }

    /// The error and its sources in one line.
    pub fn chain(&self) -> String {
        chain(self)
    }
}

/// The error and its sources in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    explained(&chain.map(ToString::to_string).collect::<Vec<_>>().join(": "))
}
