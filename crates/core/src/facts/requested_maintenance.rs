//! What a NodeMaintenance asks for.

use std::fmt;

use jiff::Timestamp;

use super::window::{Window, WindowError};

/// The spec of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedMaintenance {
    /// `spec.reason`.
    pub reason: String,
    /// `spec.requestedBy`, for people: an admission policy keeps it from naming another user, where one is installed.
    pub requested_by: Option<String>,
    pub action: RequestAction,
    /// `spec.drainTimeoutSeconds`.
    pub drain_timeout: Option<std::time::Duration>,
    /// `spec.drainTimeoutAction` is `Hold`, or `PowerOff`.
    pub hold_on_drain_timeout: Option<bool>,
    /// `spec.guestShutdownTimeoutSeconds`.
    pub guest_shutdown_timeout: Option<std::time::Duration>,
    /// `spec.notBefore`.
    pub not_before: Option<Timestamp>,
    /// `spec.window`, or what is wrong with it.
    pub window: Option<Result<Window, WindowError>>,
}

/// `spec.action`, and `spec.targetHost`.
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
