//! The names of this process: in the Lease, in Events, and in vCenter's list of sessions.

use std::hash::BuildHasher as _;

/// The API's own limit for who reports an Event. Names of pods and machines are ASCII.
const INSTANCE_CHARS_MAX: usize = 128;

/// Who we are in the Lease: the instance, and something that no other process has. A container that is restarted in its
/// pod is another process under the same name, and must not take what it finds for its own.
pub(super) fn identity() -> String {
    let process = std::hash::RandomState::new().hash_one(std::process::id());
    format!("{}_{process:016x}", instance())
}

/// Who we are among several of us, in Events: the pod, or else the machine.
pub(super) fn instance() -> String {
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let read = |name| std::env::var(name).ok();
    [read("POD_NAME"), read("HOSTNAME"), host()]
        .into_iter()
        .flatten()
        .map(|name| name.trim().chars().take(INSTANCE_CHARS_MAX).collect::<String>())
        .find(|name| !name.is_empty())
        .unwrap_or_else(|| "haulout".to_owned())
}
