//! Bounds how many NodeMaintenance objects are told of: whoever may create them must not decide how much memory the
//! program takes.

use std::collections::{BTreeMap, BTreeSet};

use tracing::warn;

use crate::cluster::update::{Maintenance, Role};
use crate::ids::RequestUid;

/// How many objects are told of. With what is kept of each that is some tens of MiB, and 250 nodes with the default
/// history.
const OBJECTS_MAX: usize = 5_000;

/// The objects that have been told of.
#[derive(Debug)]
pub(super) struct Kept {
    max: usize,
    all: BTreeMap<String, (RequestUid, Class)>,
    names: BTreeMap<Class, BTreeSet<String>>,
    is_said: bool,
}

/// What an object is worth where not all are told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    /// It has come to its end, and is history.
    Ended,
    Request,
    Episode,
}

/// What becomes of an object that was seen.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It is told of.
    Told,
    /// It is told of, and this one no more.
    InPlaceOf(String, RequestUid),
    /// It is not told of.
    Ignored,
}

impl Default for Kept {
    fn default() -> Self {
        Self::at_most(OBJECTS_MAX)
    }
}

impl Kept {
    fn at_most(max: usize) -> Self {
        Self {
            max,
            all: BTreeMap::new(),
            names: BTreeMap::new(),
            is_said: false,
        }
    }

    /// Forgets all of them, before all are told anew.
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.names.clear();
    }

    /// Takes an object that is there.
    ///
    /// Where there are too many, one that has ended gives way to one that has not. Open requests and open episodes have
    /// half of the places each and may use what the other half leaves: no number of requests displaces the second
    /// copies of records, and no number of copies the requests.
    pub(super) fn seen(&mut self, object: &Maintenance) -> Admission {
        let class = class(object);
        if self.all.contains_key(&object.name) {
            self.insert(object, class);
            return Admission::Told;
        }
        if self.all.len() < self.max {
            self.insert(object, class);
            return Admission::Told;
        }
        if !std::mem::replace(&mut self.is_said, true) {
            warn!(
                "there are more than {} NodeMaintenance objects: of the rest, those that have ended are ignored, and of \
                 the open ones those that are too many; delete some, or keep a shorter history \
                 (NODE_MAINTENANCE_HISTORY)",
                self.max
            );
        }
        let Some(name) = self.gives_way_to(class) else {
            return Admission::Ignored;
        };
        let uid = self.remove(&name);
        self.insert(object, class);
        Admission::InPlaceOf(name, uid)
    }

    /// Takes that an object was deleted; whether it had been told of.
    pub(super) fn gone(&mut self, name: &str, uid: &RequestUid) -> bool {
        let is_known = self.all.get(name).is_some_and(|(known, _)| known == uid);
        if is_known {
            self.remove(name);
        }
        is_known
    }

    fn gives_way_to(&self, class: Class) -> Option<String> {
        let other = match class {
            Class::Ended => return None,
            Class::Request => Class::Episode,
            Class::Episode => Class::Request,
        };
        let of = |class| self.names.get(&class);
        let ended = of(Class::Ended).and_then(BTreeSet::first);
        let has_its_half = of(class).map_or(0, BTreeSet::len) >= self.max / 2;
        let of_other = of(other).and_then(BTreeSet::last).filter(|_| !has_its_half);
        ended.or(of_other).cloned()
    }

    fn insert(&mut self, object: &Maintenance, class: Class) {
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

fn class(object: &Maintenance) -> Class {
    match (&object.role, object.is_over) {
        (_, true) => Class::Ended,
        (Role::Request(_), false) => Class::Request,
        (Role::Episode { .. }, false) => Class::Episode,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::cluster::update::{Asked, AskedAction};
    use crate::ids::NodeName;

    fn object(name: &str, class: Class) -> Maintenance {
        let request = Role::Request(Asked {
            reason: String::new(),
            action: AskedAction::Drain,
            target_host: None,
            drain_timeout: None,
            hold_on_drain_timeout: None,
            guest_shutdown_timeout: None,
        });
        Maintenance {
            name: name.to_owned(),
            uid: uid(name),
            resource_version: 1,
            generation: 1,
            created_at: Timestamp::UNIX_EPOCH,
            node: NodeName::new("gpu-1"),
            role: match class {
                Class::Request => request,
                Class::Ended | Class::Episode => Role::Episode { record: None },
            },
            is_over: class == Class::Ended,
            status: Box::default(),
        }
    }

    fn uid(name: &str) -> RequestUid {
        RequestUid::new(format!("uid-of-{name}"))
    }

    fn in_place_of(name: &str) -> Admission {
        Admission::InPlaceOf(name.to_owned(), uid(name))
    }

    fn full(names: &[(&str, Class)]) -> Kept {
        let mut kept = Kept::at_most(names.len());
        for (name, class) in names {
            assert_eq!(kept.seen(&object(name, *class)), Admission::Told);
        }
        kept
    }

    #[test]
    fn what_has_ended_gives_way_to_what_is_open() {
        let mut kept = full(&[("old", Class::Ended), ("asked", Class::Request)]);
        assert_eq!(kept.seen(&object("older", Class::Ended)), Admission::Ignored);
        assert_eq!(kept.seen(&object("new", Class::Request)), in_place_of("old"));
        assert_eq!(kept.all.len(), 2);
    }

    #[test]
    fn requests_and_episodes_keep_half_of_the_places_each() {
        for (many, few) in [(Class::Request, Class::Episode), (Class::Episode, Class::Request)] {
            let mut kept = full(&[("a", many), ("b", many), ("c", many), ("d", many)]);
            assert_eq!(kept.seen(&object("e", many)), Admission::Ignored);
            assert_eq!(kept.seen(&object("x", few)), in_place_of("d"));
            assert_eq!(kept.seen(&object("y", few)), in_place_of("c"));
            assert_eq!(kept.seen(&object("z", few)), Admission::Ignored);
        }
    }

    #[test]
    fn a_change_of_a_known_object_is_told_and_one_that_ends_becomes_history() {
        let mut kept = full(&[("a", Class::Episode), ("b", Class::Episode)]);
        assert_eq!(kept.seen(&object("a", Class::Ended)), Admission::Told);
        assert_eq!(kept.seen(&object("c", Class::Episode)), in_place_of("a"));
    }

    #[test]
    fn a_deletion_makes_room_and_one_of_an_ignored_object_is_not_told() {
        let mut kept = full(&[("a", Class::Request)]);
        assert_eq!(kept.seen(&object("b", Class::Request)), Admission::Ignored);
        assert!(!kept.gone("b", &uid("b")));
        assert!(!kept.gone("a", &uid("b")), "another object of that name");
        assert!(kept.gone("a", &uid("a")));
        assert_eq!(kept.seen(&object("b", Class::Request)), Admission::Told);
        kept.clear();
        assert_eq!(kept.seen(&object("c", Class::Request)), Admission::Told);
    }
}
