//! A step that a hook holds.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use super::clock::{Now, Timer};
pub use crate::facts::hook::{HookPoint, Hooks};

/// A step that hooks hold, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HeldStep {
    pub point: HookPoint,
    /// Since when.
    pub timer: Timer,
}

impl HeldStep {
    pub fn begin(point: HookPoint, now: Now) -> Self {
        Self {
            point,
            timer: Timer::start(now),
        }
    }

    pub(super) fn plus(self, span: Duration) -> Self {
        Self {
            timer: self.timer.plus(span),
            ..self
        }
    }
}

/// Reads the held step of a record. A step of a newer version is not held here.
pub(super) fn read_held_step<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<HeldStep>, D::Error> {
    #[derive(Deserialize)]
    struct Named {
        point: String,
        timer: Timer,
    }
    let held = Option::<Named>::deserialize(deserializer)?;
    Ok(held.and_then(|held| {
        Some(HeldStep {
            point: held.point.parse().ok()?,
            timer: held.timer,
        })
    }))
}
