//! Requests for one node.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::policy::DrainTimeoutAction;
use crate::ids::RequestUid;

/// A request: a NodeMaintenance that is not fulfilled yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The object.
    pub identity: RequestIdentity,
    /// When it was created, on the kube-apiserver's clock. It orders the queue.
    pub asked_at: Timestamp,
    /// The requested action.
    pub action: RequestAction,
    /// Replaces `DRAIN_TIMEOUT_SECONDS` if it is longer.
    pub drain_timeout: Option<Duration>,
    /// Replaces `DRAIN_TIMEOUT_ACTION` if it is `Hold`.
    pub drain_timeout_action: Option<DrainTimeoutAction>,
    /// Replaces `GUEST_SHUTDOWN_TIMEOUT_SECONDS` if it is longer.
    pub guest_shutdown_timeout: Option<Duration>,
}

/// A request in a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestIdentity {
    /// The name of the object.
    pub name: String,
    /// The UID of the object.
    pub uid: RequestUid,
}

/// The action of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestAction {
    /// Cordon and drain; the node stays drained until the request is deleted.
    Drain,
    /// Drain and shut down; the VM stays off until the request is deleted.
    PowerOff,
    /// Drain, shut down, relocate the VM, and bring the node back.
    Relocate {
        /// The name of the target host; `None` for any that fits.
        to: Option<String>,
    },
    /// Drain, shut down, power on, and bring the node back on another boot.
    Reboot,
}

impl Request {
    /// Whether it asks for a relocation to this host.
    pub fn is_met_on(&self, host: &str) -> bool {
        match &self.action {
            RequestAction::Relocate { to: Some(to) } => to == host,
            RequestAction::Relocate { to: None }
            | RequestAction::Drain
            | RequestAction::PowerOff
            | RequestAction::Reboot => false,
        }
    }
}

impl RequestAction {
    /// Whether the VM has to be powered off for it.
    pub fn needs_power_off(&self) -> bool {
        match self {
            Self::Drain => false,
            Self::PowerOff | Self::Relocate { .. } | Self::Reboot => true,
        }
    }
}

impl fmt::Display for RequestAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drain => f.write_str("drained"),
            Self::PowerOff => f.write_str("kept off"),
            Self::Relocate { to: None } => f.write_str("relocated"),
            Self::Relocate { to: Some(host) } => write!(f, "relocated to {host}"),
            Self::Reboot => f.write_str("rebooted"),
        }
    }
}
