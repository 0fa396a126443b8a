//! Hosts that vCenter lost, and how long they have to stay before they are used again.
//!
//! A host that is repaired may start several times, and vCenter itself takes a host out of maintenance that reports so when it
//! reconnects. A VM that is powered on then would lose its host again. So a host that returned has to stay connected for
//! `HOST_SETTLE_SECONDS`, unless a user has taken it out of maintenance since.

use super::Inventory;
use crate::facts::vsphere::{Host, HostConnection};
use crate::ids::{HostRef, TaskRef};
use crate::maintenance::clock::{Deadline, Monotonic, Now, whole_second};

/// A host that vCenter lost.
#[derive(Clone, Debug)]
pub(super) struct HostAbsence {
    /// The last exit from maintenance that was known when it was lost.
    known_exit: Option<TaskRef>,
    /// Since when it is back; `None` while it is lost.
    back_at: Option<Now>,
}

impl Inventory {
    /// Records that vCenter lost `host`, or has it again. The known host is the one before.
    pub(super) fn record_absence(&mut self, host: &Host) {
        if self.rules.host_settle.is_zero() {
            return;
        }
        match host.connection {
            // Nothing is known of it.
            None => {}
            Some(HostConnection::Disconnected | HostConnection::NotResponding) => {
                let absence = self.absences.get(&host.moref);
                if absence.is_none_or(|absence| absence.back_at.is_some()) {
                    let absence = HostAbsence {
                        known_exit: host.last_exit.clone(),
                        back_at: None,
                    };
                    self.absences.insert(host.moref.clone(), absence);
                }
            }
            Some(HostConnection::Connected) => {
                let Some(absence) = self.absences.get_mut(&host.moref) else {
                    return;
                };
                if host.last_exit.is_some() && host.last_exit != absence.known_exit {
                    self.absences.remove(&host.moref);
                } else {
                    absence.back_at.get_or_insert(self.now);
                }
            }
        }
    }

    /// When a host that is back may be used, if that is not yet so.
    pub(super) fn settles_at(&self, host: &HostRef) -> Option<Deadline> {
        let end = self.absences.get(host)?.back_at?.after(self.rules.host_settle);
        Some(Deadline {
            at: end.monotonic,
            shown: whole_second(end.wall),
        })
    }

    /// When the next host may be used.
    pub(super) fn next_settled(&self) -> Option<Monotonic> {
        let backs = self.absences.values().filter_map(|absence| absence.back_at);
        let settled = backs.map(|back| back.monotonic.after(self.rules.host_settle));
        settled.min()
    }

    /// Forgets the absences of hosts that have stayed for long enough.
    pub(super) fn end_absences(&mut self) {
        if self.next_settled().is_none_or(|at| self.now.monotonic < at) {
            return;
        }
        let is_over = |host: &&HostRef| {
            let end = self.settles_at(host);
            end.is_some_and(|end| self.now.monotonic >= end.at)
        };
        let over: Vec<HostRef> = self.absences.keys().filter(is_over).cloned().collect();
        for host in over {
            self.absences.remove(&host);
            self.is_changed = true;
        }
    }
}

#[cfg(test)]
mod tests;
