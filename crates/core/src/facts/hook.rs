//! Hooks: annotations of a Node that hold a step of its maintenance until they are removed.

use std::collections::{BTreeMap, BTreeSet};

use crate::keys::HOOK_SUFFIX;

/// The maximum number of hooks of a Node for one step. Others are ignored, because a kubelet may write its own Node.
const MAX_HOOKS: usize = 16;

/// The longest name of a hook: that of the last part of an annotation.
const MAX_NAME: usize = 63;

named_enum! {
    /// The step that a hook holds.
    pub enum HookPoint {
        /// The first eviction.
        PreDrain = "pre-drain",
        /// The shutdown of the guest.
        PrePowerOff = "pre-poweroff",
        /// The end of the episode, once the node is back.
        PreUncordon = "pre-uncordon",
    }
}

/// The names of the hooks of a Node, by step.
pub type Hooks = BTreeMap<HookPoint, BTreeSet<String>>;

impl HookPoint {
    /// The step and the name of the hook that an annotation with `key` is, as in `pre-drain.hook.haulout.dev/checkpoint`.
    pub fn of_key(key: &str) -> Option<(Self, &str)> {
        let (point, name) = key.split_once('/')?;
        let point = point.strip_suffix(HOOK_SUFFIX)?.parse().ok()?;
        let is_sound = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let is_name = !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(is_sound);
        is_name.then_some((point, name))
    }
}

/// The hooks among the annotations of a Node.
pub fn hooks<'a>(keys: impl Iterator<Item = &'a String>) -> Hooks {
    let mut hooks = Hooks::new();
    for (point, name) in keys.filter_map(|key| HookPoint::of_key(key)) {
        let of_step = hooks.entry(point).or_default();
        if of_step.len() < MAX_HOOKS {
            of_step.insert(name.to_owned());
        }
    }
    hooks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hook_is_named_by_the_step_and_the_last_part_of_its_key() {
        let of = HookPoint::of_key;
        let key = "pre-drain.hook.haulout.dev/checkpoint";
        assert_eq!(of(key), Some((HookPoint::PreDrain, "checkpoint")));
        for other in [
            "pre-drain.hook.haulout.dev",
            "pre-drain.hook.haulout.dev/",
            "pre-reboot.hook.haulout.dev/x",
            "PreDrain.hook.haulout.dev.example.com/x",
            "pre-drain.hook.haulout.dev/a b",
            "haulout.dev/skip",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(of(&format!("{key}{}", "x".repeat(MAX_NAME))), None);
    }

    #[test]
    fn hooks_of_a_step_are_limited() {
        let key = |n: usize| format!("pre-uncordon.hook.haulout.dev/hook-{n}");
        let keys: Vec<String> = (0..100).map(key).collect();
        let hooks = hooks(keys.iter());
        assert_eq!(hooks[&HookPoint::PreUncordon].len(), MAX_HOOKS);
        assert_eq!(hooks.len(), 1);
    }
}
