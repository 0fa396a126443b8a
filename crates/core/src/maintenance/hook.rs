//! A step that a hook holds.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use super::clock::{Now, Timer};
use super::episode::{Phase, Record};
pub use crate::facts::hook::{HookPoint, Hooks};
use crate::keys::VALIDATION_HOOK;

/// A step that hooks hold, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HeldStep {
    /// The step.
    pub point: HookPoint,
    /// Since when.
    pub timer: Timer,
}

impl HeldStep {
    /// A step that is held from now on.
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

/// Whether the write of a transition sets (`true`) or removes the hook of the validation Job; `hooks` are those on the Node.
///
/// It is set before the power is cut, and again if the Node was registered anew meanwhile. Once the node is coming back it is not,
/// because the Job has removed it, or a person.
pub fn validation_hook(before: &Record, after: &Record, hooks: &Hooks) -> Option<bool> {
    let of_step = hooks.get(&HookPoint::PreUncordon);
    let is_set = HookPoint::of_key(VALIDATION_HOOK)
        .is_some_and(|(_, name)| of_step.is_some_and(|names| names.contains(name)));
    let is_away = |record: &Record| {
        let episode = record.episode();
        episode.is_some_and(|episode| match episode.phase.at_work() {
            Phase::ShuttingDown(_)
            | Phase::Relocating { .. }
            | Phase::AwaitingHost
            | Phase::PoweringOn { .. } => true,
            Phase::Queued | Phase::Draining | Phase::Drained | Phase::Rejoining | Phase::Parked { .. } => {
                false
            }
        })
    };
    match after.episode() {
        Some(_) => (!is_set && (is_away(before) || is_away(after))).then_some(true),
        None => (is_set && before.episode().is_some()).then_some(false),
    }
}

/// Reads the held step of a record. A step of a newer version is not held here.
pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<HeldStep>, D::Error> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{episode, record};
    use crate::maintenance::episode::DrainEnd;

    #[test]
    fn validation_hook_is_set_with_the_shutdown_and_removed_at_the_end() {
        let at = |phase| record(episode(phase, 0));
        let on_node = || Hooks::from([(HookPoint::PreUncordon, ["haulout-validation".to_owned()].into())]);
        let none = Hooks::new;
        let off = || at(Phase::AwaitingHost);
        for (before, after, hooks, expected) in [
            (Record::InService, at(Phase::Draining), none(), None),
            (at(Phase::Draining), at(Phase::Drained), none(), None),
            (
                at(Phase::Drained),
                at(Phase::ShuttingDown(DrainEnd::Complete)),
                none(),
                Some(true),
            ),
            (
                at(Phase::ShuttingDown(DrainEnd::Complete)),
                off(),
                on_node(),
                None,
            ),
            (off(), off(), none(), Some(true)),
            (off(), at(Phase::Rejoining), none(), Some(true)),
            (at(Phase::Rejoining), at(Phase::Rejoining), none(), None),
            (at(Phase::Rejoining), Record::InService, none(), None),
            (at(Phase::Rejoining), Record::InService, on_node(), Some(false)),
            (Record::InService, Record::InService, on_node(), None),
        ] {
            assert_eq!(
                validation_hook(&before, &after, &hooks),
                expected,
                "{before:?} -> {after:?}"
            );
        }
    }
}
