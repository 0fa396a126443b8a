//! Hosts that vCenter lost, and how long they have to stay before they are used again.
//!
//! A host that is repaired may start several times, and vCenter itself takes a host out of maintenance that reports so when it
//! reconnects. A VM that is powered on then would lose its host again. So a host that returned has to stay connected for
//! `HOST_SETTLE_SECONDS`, unless a user has taken it out of maintenance since.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::facts::vsphere::{Host, HostConnection};
use crate::ids::{HostRef, TaskRef};
use crate::maintenance::clock::{Deadline, Monotonic, Now, whole_second};

#[derive(Clone, Debug)]
pub(super) struct Absences {
    /// How long a host has to stay; zero uses it at once.
    settle: Duration,
    hosts: BTreeMap<HostRef, HostAbsence>,
}

/// A host that vCenter lost.
#[derive(Clone, Debug)]
struct HostAbsence {
    /// The last exit from maintenance that was known when it was lost.
    known_exit: Option<TaskRef>,
    /// Since when it is back; `None` while it is lost.
    back_at: Option<Now>,
}

impl Absences {
    pub(super) fn new(settle: Duration) -> Self {
        Self {
            settle,
            hosts: BTreeMap::new(),
        }
    }

    /// Records that vCenter lost `host`, or has it again.
    pub(super) fn record_host(&mut self, host: &Host, now: Now) {
        if self.settle.is_zero() {
            return;
        }
        match host.connection {
            // Nothing is known of it.
            None => {}
            Some(HostConnection::Disconnected | HostConnection::NotResponding) => {
                let absence = self.hosts.get(&host.moref);
                if absence.is_none_or(|absence| absence.back_at.is_some()) {
                    let absence = HostAbsence {
                        known_exit: host.last_exit.clone(),
                        back_at: None,
                    };
                    self.hosts.insert(host.moref.clone(), absence);
                }
            }
            Some(HostConnection::Connected) => {
                let Some(absence) = self.hosts.get_mut(&host.moref) else {
                    return;
                };
                if host.last_exit.is_some() && host.last_exit != absence.known_exit {
                    self.hosts.remove(&host.moref);
                } else {
                    absence.back_at.get_or_insert(now);
                }
            }
        }
    }

    pub(super) fn settles_at(&self, host: &HostRef) -> Option<Deadline> {
        let end = self.hosts.get(host)?.back_at?.after(self.settle);
        Some(Deadline {
            at: end.monotonic,
            shown: whole_second(end.wall),
        })
    }

    pub(super) fn next_settled(&self) -> Option<Monotonic> {
        let backs = self.hosts.values().filter_map(|absence| absence.back_at);
        let settled = backs.map(|back| back.monotonic.after(self.settle));
        settled.min()
    }

    /// Forgets the absences of hosts that have stayed for long enough. Returns whether there were any.
    pub(super) fn end(&mut self, now: Monotonic) -> bool {
        let before = self.hosts.len();
        let settle = self.settle;
        self.hosts.retain(|_, absence| {
            let back = absence.back_at;
            back.is_none_or(|back| now < back.monotonic.after(settle))
        });
        self.hosts.len() < before
    }

    pub(super) fn forget(&mut self, host: &HostRef) {
        self.hosts.remove(host);
    }

    /// Forgets the hosts that are not among `seen`.
    pub(super) fn retain(&mut self, seen: &BTreeSet<String>) {
        self.hosts.retain(|moref, _| seen.contains(moref.as_str()));
    }
}

#[cfg(test)]
mod tests;
