//! Limits the number of NodeMaintenance objects that are processed, because people who may create them must not control the memory
//! of the program.

use std::collections::{BTreeMap, BTreeSet};

use tracing::warn;

use haulout_core::ids::RequestUid;
use haulout_kubernetes::update::{NodeMaintenanceFacts, NodeMaintenanceRole};

/// The maximum number of objects: some tens of MiB, and 250 nodes with the default history.
const OBJECTS_MAX: usize = 5_000;

/// The objects that are processed.
#[derive(Debug)]
pub(super) struct ObjectLimit {
    max: usize,
    all: BTreeMap<String, (RequestUid, ObjectClass)>,
    names: BTreeMap<ObjectClass, BTreeSet<String>>,
    is_logged: bool,
}

/// The class of an object, which decides what is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ObjectClass {
    /// An ended request or episode.
    Ended,
    Request,
    Episode,
}

/// How an object is handled.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ObjectAdmission {
    Processed,
    /// It is processed, and this other one no longer.
    InPlaceOf(String, RequestUid),
    /// It is not processed.
    Ignored,
}

impl Default for ObjectLimit {
    fn default() -> Self {
        Self::at_most(OBJECTS_MAX)
    }
}

impl ObjectLimit {
    fn at_most(max: usize) -> Self {
        Self {
            max,
            all: BTreeMap::new(),
            names: BTreeMap::new(),
            is_logged: false,
        }
    }

    /// Forgets all objects before a new list.
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.names.clear();
    }

    /// Processes an object that exists.
    ///
    /// If there are too many, ended objects are dropped first. Open requests and open episodes have half of the places each, so that
    /// neither can displace all of the others.
    pub(super) fn seen(&mut self, object: &NodeMaintenanceFacts) -> ObjectAdmission {
        let class = class(object);
        if self.all.contains_key(&object.name) {
            self.insert(object, class);
            return ObjectAdmission::Processed;
        }
        if self.all.len() < self.max {
            self.insert(object, class);
            return ObjectAdmission::Processed;
        }
        if !std::mem::replace(&mut self.is_logged, true) {
            warn!(
                "there are more than {} NodeMaintenance objects: of the rest, those that have ended are ignored, and of \
                 the open ones those that are too many; delete some, or keep a shorter history \
                 (NODE_MAINTENANCE_HISTORY)",
                self.max
            );
        }
        let Some(name) = self.gives_way_to(class) else {
            return ObjectAdmission::Ignored;
        };
        let uid = self.remove(&name);
        self.insert(object, class);
        ObjectAdmission::InPlaceOf(name, uid)
    }

    /// Processes a deletion. Returns whether the object had been processed.
    pub(super) fn remove_object(&mut self, name: &str, uid: &RequestUid) -> bool {
        let is_known = self.all.get(name).is_some_and(|(known, _)| known == uid);
        if is_known {
            self.remove(name);
        }
        is_known
    }

    fn gives_way_to(&self, class: ObjectClass) -> Option<String> {
        let other = match class {
            ObjectClass::Ended => return None,
            ObjectClass::Request => ObjectClass::Episode,
            ObjectClass::Episode => ObjectClass::Request,
        };
        let of = |class| self.names.get(&class);
        let ended = of(ObjectClass::Ended).and_then(BTreeSet::first);
        let has_its_half = of(class).map_or(0, BTreeSet::len) >= self.max / 2;
        let of_other = of(other).and_then(BTreeSet::last).filter(|_| !has_its_half);
        ended.or(of_other).cloned()
    }

    fn insert(&mut self, object: &NodeMaintenanceFacts, class: ObjectClass) {
        self.remove(&object.name);
        self.all.insert(object.name.clone(), (object.uid.clone(), class));
        self.names.entry(class).or_default().insert(object.name.clone());
    }

    fn remove(&mut self, name: &str) -> RequestUid {
        let Some((uid, class)) = self.all.remove(name) else {
            return RequestUid::new("");
        };
        if let Some(names) = self.names.get_mut(&class) {
            names.remove(name);
        }
        uid
    }
}

fn class(object: &NodeMaintenanceFacts) -> ObjectClass {
    match (&object.role, object.is_over) {
        (_, true) => ObjectClass::Ended,
        (NodeMaintenanceRole::Request(_) | NodeMaintenanceRole::Foreign(_), false) => ObjectClass::Request,
        (NodeMaintenanceRole::Episode { .. }, false) => ObjectClass::Episode,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use haulout_core::ids::NodeName;
    use haulout_kubernetes::update::{RequestAction, RequestedMaintenance};

    fn object(name: &str, class: ObjectClass) -> NodeMaintenanceFacts {
        let request = NodeMaintenanceRole::Request(RequestedMaintenance {
            requested_by: None,
            reason: String::new(),
            action: RequestAction::Drain,
            drain_timeout: None,
            hold_on_drain_timeout: None,
            guest_shutdown_timeout: None,
            not_before: None,
            window: None,
        });
        NodeMaintenanceFacts {
            name: name.to_owned(),
            uid: uid(name),
            resource_version: 1,
            generation: 1,
            created_at: Timestamp::UNIX_EPOCH,
            node: NodeName::new("gpu-1"),
            role: match class {
                ObjectClass::Request => request,
                ObjectClass::Ended | ObjectClass::Episode => NodeMaintenanceRole::Episode { record: None },
            },
            is_over: class == ObjectClass::Ended,
            status: Box::default(),
        }
    }

    fn uid(name: &str) -> RequestUid {
        RequestUid::new(format!("uid-of-{name}"))
    }

    fn in_place_of(name: &str) -> ObjectAdmission {
        ObjectAdmission::InPlaceOf(name.to_owned(), uid(name))
    }

    fn full(names: &[(&str, ObjectClass)]) -> ObjectLimit {
        let mut kept = ObjectLimit::at_most(names.len());
        for (name, class) in names {
            assert_eq!(kept.seen(&object(name, *class)), ObjectAdmission::Processed);
        }
        kept
    }

    #[test]
    fn ended_objects_are_dropped_for_open_ones() {
        let mut kept = full(&[("old", ObjectClass::Ended), ("asked", ObjectClass::Request)]);
        assert_eq!(
            kept.seen(&object("older", ObjectClass::Ended)),
            ObjectAdmission::Ignored
        );
        assert_eq!(
            kept.seen(&object("new", ObjectClass::Request)),
            in_place_of("old")
        );
        assert_eq!(kept.all.len(), 2);
    }

    #[test]
    fn requests_and_episodes_keep_half_of_the_places_each() {
        for (many, few) in [
            (ObjectClass::Request, ObjectClass::Episode),
            (ObjectClass::Episode, ObjectClass::Request),
        ] {
            let mut kept = full(&[("a", many), ("b", many), ("c", many), ("d", many)]);
            assert_eq!(kept.seen(&object("e", many)), ObjectAdmission::Ignored);
            assert_eq!(kept.seen(&object("x", few)), in_place_of("d"));
            assert_eq!(kept.seen(&object("y", few)), in_place_of("c"));
            assert_eq!(kept.seen(&object("z", few)), ObjectAdmission::Ignored);
        }
    }

    #[test]
    fn open_object_that_ends_becomes_history() {
        let mut kept = full(&[("a", ObjectClass::Episode), ("b", ObjectClass::Episode)]);
        assert_eq!(
            kept.seen(&object("a", ObjectClass::Ended)),
            ObjectAdmission::Processed
        );
        assert_eq!(kept.seen(&object("c", ObjectClass::Episode)), in_place_of("a"));
    }

    #[test]
    fn deletion_makes_room_and_that_of_an_ignored_object_is_not_passed_on() {
        let mut kept = full(&[("a", ObjectClass::Request)]);
        assert_eq!(
            kept.seen(&object("b", ObjectClass::Request)),
            ObjectAdmission::Ignored
        );
        assert!(!kept.remove_object("b", &uid("b")));
        assert!(!kept.remove_object("a", &uid("b")), "another object of that name");
        assert!(kept.remove_object("a", &uid("a")));
        assert_eq!(
            kept.seen(&object("b", ObjectClass::Request)),
            ObjectAdmission::Processed
        );
        kept.clear();
        assert_eq!(
            kept.seen(&object("c", ObjectClass::Request)),
            ObjectAdmission::Processed
        );
    }
}
