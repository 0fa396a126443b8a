//! Logs unreadable objects, once per object, so that a repeated report does not fill the log.

use std::collections::HashSet;

use crate::fault::Fault;
use crate::moref::Moref;

/// Limit of objects that are logged per stream.
const MAX_LOGGED: usize = 100;

/// Objects that were logged as unreadable.
#[derive(Default)]
pub(super) struct UnreadableObjects {
    logged: HashSet<Option<Moref>>,
    /// That vCenter withholds tasks was logged.
    tasks_withheld: bool,
}

impl UnreadableObjects {
    /// Logs the object unless it was logged before, or too many others were. All objects without a
    /// reference count as one.
    pub(super) fn log_once(&mut self, moref: Option<&Moref>, why: &str) {
        if self.logged.len() > MAX_LOGGED || !self.logged.insert(moref.cloned()) {
            return;
        }
        if self.logged.len() > MAX_LOGGED {
            tracing::warn!(
                objects = MAX_LOGGED,
                "more objects from vCenter cannot be read; further ones are not logged"
            );
            return;
        }
        let object = moref.map_or_else(
            || "an object without a reference".to_owned(),
            |moref| format!("{} {moref}", moref.kind),
        );
        tracing::warn!(
            object,
            why,
            "an object from vCenter cannot be read and is skipped; logged once per object"
        );
    }

    /// Logs, once per stream, that vCenter withholds a task. It withholds all tasks from an account without the right at the root.
    pub(super) fn note_withheld(&mut self, task: &Moref, fault: &Fault) {
        if !std::mem::replace(&mut self.tasks_withheld, true) {
            tracing::warn!(
                %task,
                "may not read tasks: {fault}; a maintenance is noticed only when its host is in maintenance mode"
            );
        }
    }
}
