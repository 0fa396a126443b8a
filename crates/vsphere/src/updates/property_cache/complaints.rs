//! What cannot be read is said once per object, so that one object that is told again and again does not fill the log.

use std::collections::HashSet;

use crate::moref::Moref;

/// Objects that are named in the log for one stream. A server that sends nonsense about more of them than this is broken in a way
/// that more lines do not explain.
const MOST: usize = 100;

/// The objects of which was said that they cannot be read.
#[derive(Default)]
pub(super) struct UnreadableObjects(HashSet<Option<Moref>>);

impl UnreadableObjects {
    /// Says so, unless it was said of this object before, or of too many others. All objects without a reference count as one.
    pub(super) fn note(&mut self, moref: Option<&Moref>, why: &str) {
        if self.0.len() > MOST || !self.0.insert(moref.cloned()) {
            return;
        }
        if self.0.len() > MOST {
            tracing::warn!(
                objects = MOST,
                "vCenter tells of more objects that cannot be read; further ones are not named"
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
            "vCenter told what cannot be read; it is passed over, and said once for this object"
        );
    }
}
