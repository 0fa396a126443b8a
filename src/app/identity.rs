//! The names of this process: in the Lease, in Events, and in the session list of vCenter.

use std::hash::BuildHasher as _;

/// The API's limit for the reporting instance of an Event.
const INSTANCE_CHARS_MAX: usize = 128;

/// The holder identity in the Lease, unique for each process: a restarted container has the same pod name, and must not
/// continue the leadership of the previous one.
pub(super) fn identity() -> String {
    let process = std::hash::RandomState::new().hash_one(std::process::id());
    format!("{}_{process:016x}", instance())
}

/// The name of the replica: the pod, or else the machine.
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
