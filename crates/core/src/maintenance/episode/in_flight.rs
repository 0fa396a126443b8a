//! The requests to vCenter that cannot be cancelled.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::maintenance::clock::Timer;

/// The requests to vCenter that may still stop the VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InFlight {
    /// A guest shutdown was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_shutdown: Option<Timer>,
    /// `guest_shutdown` is only assumed: its reply was lost, an earlier process may have requested it and recorded nothing, or its
    /// time passed in a shutdown that was left. It may take effect, but the guest is asked again before its power is cut.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_assumed: bool,
    /// A power-off is requested. It is recorded before the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_off: Option<Timer>,
    /// When an earlier episode requested a guest shutdown that may still take effect. This episode requests its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earlier_guest_shutdown: Option<Timestamp>,
}

impl InFlight {
    /// Whether no request is pending.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The request to shut the guest down that vCenter has confirmed, and whose time counts.
    pub fn confirmed_guest_shutdown(&self) -> Option<Timer> {
        self.guest_shutdown.filter(|_| !self.is_assumed)
    }

    /// When a guest shutdown was requested last, also by an earlier episode.
    pub fn guest_asked_at(&self) -> Option<Timestamp> {
        let asked = self.guest_shutdown.map(|asked| asked.since);
        asked.or(self.earlier_guest_shutdown)
    }

    pub(super) fn plus(self, span: Duration) -> Self {
        let later = |timer: Option<Timer>| timer.map(|timer| timer.plus(span));
        Self {
            guest_shutdown: later(self.guest_shutdown),
            power_off: later(self.power_off),
            ..self
        }
    }
}
