//! What was requested of vCenter and cannot be taken back.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::maintenance::clock::Timer;

/// What was requested of vCenter to bring a VM down, and may still take effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InFlight {
    /// The guest was asked to shut down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_shutdown: Option<Timer>,
    /// The VM's power was to be cut. It is written before vCenter is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_off: Option<Timer>,
    /// When an episode before this one asked the guest, which may still heed it. This one asks it anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earlier_guest_shutdown: Option<Timestamp>,
}

impl InFlight {
    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// When the guest was asked last, also by an episode before this one.
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
