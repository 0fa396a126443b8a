//! The hosts whose latest maintenance task failed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::facts::vsphere::{EndOutcome, Host};
use crate::ids::{HostRef, TaskRef};
use crate::maintenance::clock::Now;
use crate::maintenance::observed::FailedMaintenance;

/// For each of them, the task and its failure.
#[derive(Clone, Debug, Default)]
pub(super) struct FailedMaintenances(BTreeMap<HostRef, (TaskRef, FailedMaintenance)>);

impl FailedMaintenances {
    pub(super) fn failure_of(&self, host: &HostRef) -> Option<&FailedMaintenance> {
        self.0.get(host).map(|(_, failed)| failed)
    }

    /// Records a failed maintenance task of `host`, until a later one begins or is cancelled. A rebuilt stream does not report the
    /// failed task again, so its absence changes nothing. `before` is the host before the stream was rebuilt.
    pub(super) fn record_host(&mut self, host: &Host, before: Option<&Arc<Host>>, now: Now) {
        if host.entering.is_some() || host.in_maintenance == Some(true) {
            self.forget(&host.moref);
        }
        match host.last_end.as_ref().map(|end| (&end.task, &end.outcome)) {
            Some((_, EndOutcome::Cancelled)) => self.forget(&host.moref),
            Some((task, EndOutcome::Failed { message })) => {
                if self.0.get(&host.moref).is_none_or(|(known, _)| known != task) {
                    self.insert(host, task, message, now);
                }
            }
            None => {
                // A vCenter that restarts forgets its task, and the host may go on entering. It counts as failed, because a cancel
                // would be undone at once.
                let lost = before.and_then(|before| before.entering.as_ref());
                if let Some(lost) =
                    lost.filter(|_| host.entering.is_none() && host.in_maintenance == Some(false))
                {
                    let message = "vCenter does not list its task any more";
                    self.insert(host, &lost.task, message, now);
                }
            }
        }
    }

    pub(super) fn forget(&mut self, host: &HostRef) {
        self.0.remove(host);
    }

    /// Forgets the hosts that are not among `seen`.
    pub(super) fn retain(&mut self, seen: &BTreeSet<String>) {
        self.0.retain(|moref, _| seen.contains(moref.as_str()));
    }

    fn insert(&mut self, host: &Host, task: &TaskRef, message: &str, now: Now) {
        let failed = FailedMaintenance {
            at: now,
            message: message.to_owned(),
        };
        self.0.insert(host.moref.clone(), (task.clone(), failed));
    }
}
