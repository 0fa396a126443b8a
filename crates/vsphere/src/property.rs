//! The PropertyCollector: what to ask for, how pages are read to their end, and what an update set says.

use super::client::{Call, Error};
use super::fault::{self, Fault, FaultKind};
use super::soap::{Moref, ReplyError};
use super::xml::write::Out;
use super::xml::{Breach, Element, Part};

/// How a dead session answers a reading.
pub(super) const WITHHELD: &str = "every property was withheld for want of a session";
/// A `PropertyFilterSpec`: which properties of which types, starting from which objects.
#[derive(Clone, Default)]
pub(super) struct Spec {
    properties: Vec<Out>,
    objects: Vec<Out>,
}

/// A `TraversalSpec`: along which property the selection goes on from an object.
#[derive(Clone)]
pub(super) struct Step(Out);

impl Spec {
    /// Asks for `paths` of every selected object of type `kind` or a type derived from it.
    pub(super) fn read(mut self, kind: &str, paths: &[&str]) -> Self {
        let spec = Out::new("propSet")
            .with(Out::text("type", kind))
            .with_all(paths.iter().map(|path| Out::text("pathSet", *path)));
        self.properties.push(spec);
        self
    }

    /// Selects `object` itself, and what `steps` lead to.
    pub(super) fn of(self, object: &Moref, steps: Vec<Step>) -> Self {
        self.select(object, false, steps)
    }

    /// Selects only what `steps` lead to from `object`.
    pub(super) fn through(self, object: &Moref, steps: Vec<Step>) -> Self {
        self.select(object, true, steps)
    }

    fn select(mut self, object: &Moref, skip: bool, steps: Vec<Step>) -> Self {
        let spec = Out::new("objectSet")
            .with(Out::moref("obj", object))
            .with(Out::text("skip", skip.to_string()))
            .with_all(steps.into_iter().map(|step| step.0));
        self.objects.push(spec);
        self
    }

    /// As the element `name`. A stale reference is reported in the result; without that the whole call would fail.
    pub(super) fn render(self, name: &'static str) -> Out {
        Out::new(name)
            .with_all(self.properties)
            .with_all(self.objects)
            .with(Out::text("reportMissingObjectsInResults", "true"))
    }
}

impl Step {
    /// From objects of type `kind` along `path`, then on by `steps`.
    pub(super) fn new(kind: &str, path: &str, steps: Vec<Self>) -> Self {
        Self::along(kind, path, false, steps)
    }

    /// The same, and what `path` itself leads to is not selected.
    pub(super) fn over(kind: &str, path: &str, steps: Vec<Self>) -> Self {
        Self::along(kind, path, true, steps)
    }

    fn along(kind: &str, path: &str, skip: bool, steps: Vec<Self>) -> Self {
        let spec = Out::new("selectSet")
            .attribute("xsi:type", "TraversalSpec")
            .with(Out::text("type", kind))
            .with(Out::text("path", path))
            .with(Out::text("skip", skip.to_string()));
        Self(spec.with_all(steps.into_iter().map(|step| step.0)))
    }

    /// From a managed entity to its parent, and on to the root.
    pub(super) fn up() -> Self {
        let again = Out::new("selectSet")
            .attribute("xsi:type", "SelectionSpec")
            .with(Out::text("name", "up"));
        let spec = Out::new("selectSet")
            .attribute("xsi:type", "TraversalSpec")
            .with(Out::text("name", "up"))
            .with(Out::text("type", "ManagedEntity"))
            .with(Out::text("path", "parent"))
            .with(Out::text("skip", "false"));
        Self(spec.with(again))
    }
}

/// An object with the properties that were read.
#[derive(Clone, Debug)]
pub struct Object {
    /// Which.
    pub moref: Moref,
    /// Paths that could not be read, and why.
    pub missing: Vec<(String, Fault)>,
    told: Part,
    /// The name of those of its elements that are properties.
    property: &'static str,
}

impl Object {
    /// The value at `path`, where it is set and readable.
    pub fn get(&self, path: &str) -> Option<Element<'_>> {
        self.properties().find(|(name, _)| *name == path)?.1
    }

    /// Path and value of all that was read; `None` where the property is unset.
    pub fn properties(&self) -> impl Iterator<Item = (&str, Option<Element<'_>>)> {
        let all = self.told.element().children();
        let read = all.filter(|child| child.name() == self.property && child.breach().is_none());
        read.map(|property| {
            let removed = matches!(property.text_of("op"), Some("remove" | "indirectRemove"));
            let value = property.children().find(|child| child.name() == "val");
            let path = property.text_of("name").unwrap_or_default();
            (path, value.filter(|_| !removed))
        })
    }

    /// The fault for `path`, where it could not be read.
    pub fn denied(&self, path: &str) -> Option<&Fault> {
        let found = self.missing.iter().find(|(name, _)| name == path)?;
        Some(&found.1)
    }
}

/// One page of `RetrievePropertiesEx`.
#[derive(Clone, Debug)]
pub struct Page {
    /// The objects on it.
    pub objects: Vec<Object>,
    /// Asks for the next page; absent on the last one.
    pub token: Option<String>,
    /// Those that could not be read.
    pub unreadable: Vec<Unreadable>,
}

/// An object of a reply that cannot be read. The others of the same reply can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Which, where that much could be read.
    pub moref: Option<Moref>,
    /// What is wrong with it.
    pub why: String,
}

/// One answer of `WaitForUpdatesEx`.
#[derive(Clone, Debug)]
pub struct UpdateSet {
    /// Asks for what comes after it.
    pub version: String,
    /// It is only a part: the rest comes at once, and nothing is complete before.
    pub truncated: bool,
    /// What changed, in the order it was told.
    pub changes: Vec<Change>,
    /// Changes that could not be read.
    pub unreadable: Vec<Unreadable>,
}

/// What an update set says about one object.
#[derive(Clone, Debug)]
pub enum Change {
    /// It is selected, or properties of it changed.
    Upsert(Object),
    /// It is not selected any more, or it does not exist.
    Gone(Moref),
}

/// Reads a response of `RetrievePropertiesEx` or `ContinueRetrievePropertiesEx`. An object without a reference, or with a property
/// without a name, is put aside.
pub fn read_page(response: &Part) -> Page {
    let mut page = Page {
        objects: Vec::new(),
        token: None,
        unreadable: Vec::new(),
    };
    let Some(value) = response.find(|child| child.name() == "returnval") else {
        return page;
    };
    for child in value.children() {
        match child.element().name() {
            "token" => page.token = Some(child.element().text().to_owned()),
            "objects" => match read_object(&child, "propSet") {
                Ok(object) => page.objects.push(object),
                Err(error) => page.unreadable.push(Unreadable::of(&child, &error)),
            },
            _ => {}
        }
    }
    page
}

/// Reads a response of `WaitForUpdatesEx`; `None` is the server's "nothing happened". A change of an unknown kind, without a
/// reference, or with a property without a name, is put aside.
///
/// # Errors
/// Where the version is missing: what comes next cannot be asked for.
pub fn read_update_set(response: &Part) -> Result<Option<UpdateSet>, ReplyError> {
    let Some(value) = response.find(|child| child.name() == "returnval") else {
        return Ok(None);
    };
    let element = value.element();
    let version = element.text_of("version").unwrap_or_default().to_owned();
    if version.is_empty() {
        return Err(ReplyError::value("UpdateSet.version", "a version"));
    }
    let mut set = UpdateSet {
        version,
        truncated: element.text_of("truncated") == Some("true"),
        changes: Vec::new(),
        unreadable: Vec::new(),
    };
    for filter in value.children() {
        if filter.element().name() != "filterSet" {
            continue;
        }
        for child in filter.children() {
            let change = match child.element().name() {
                "objectSet" => read_change(&child).map(Some),
                "missingSet" => read_missing_object(child.element()),
                _ => continue,
            };
            match change {
                Ok(change) => set.changes.extend(change),
                Err(error) => set.unreadable.push(Unreadable::of(&child, &error)),
            }
        }
    }
    Ok(Some(set))
}

fn read_change(update: &Part) -> Result<Change, ReplyError> {
    match update.element().text_of("kind") {
        Some("leave") => Ok(Change::Gone(object_ref(update.element())?)),
        Some("enter" | "modify") => Ok(Change::Upsert(read_object(update, "changeSet")?)),
        _ => Err(ReplyError::value("ObjectUpdate.kind", "enter, modify or leave")),
    }
}

/// Only an object that does not exist is gone; one that is denied for another reason stays what it was, unknown.
fn read_missing_object(missing: Element<'_>) -> Result<Option<Change>, ReplyError> {
    let moref = object_ref(missing)?;
    let fault = missing.child("fault").map(fault::read_localized);
    let gone = fault.is_some_and(|fault| fault.kind == FaultKind::ManagedObjectNotFound);
    Ok(gone.then_some(Change::Gone(moref)))
}

impl Unreadable {
    fn of(told: &Part, error: &ReplyError) -> Self {
        let why = match told.element().breach() {
            Some(breach) => format!("{error} (it has {breach})"),
            None => error.to_string(),
        };
        Self {
            moref: object_ref(told.element()).ok(),
            why,
        }
    }
}

fn object_ref(element: Element<'_>) -> Result<Moref, ReplyError> {
    element
        .child("obj")
        .and_then(Moref::read)
        .ok_or_else(|| ReplyError::value("obj", "a managed object reference"))
}

fn read_object(told: &Part, property: &'static str) -> Result<Object, ReplyError> {
    let element = told.element();
    let moref = object_ref(element)?;
    let missing = element.children().filter_map(|child| {
        let path = || child.text_of("path").unwrap_or_default().to_owned();
        match child.breach() {
            Some(breach) if child.name() == property => Some((
                child.text_of("name").unwrap_or_default().to_owned(),
                beyond(breach),
            )),
            Some(breach) if child.name() == "missingSet" => Some((path(), beyond(breach))),
            None if child.name() == "missingSet" => {
                Some((path(), fault::read_localized(child.child("fault")?)))
            }
            Some(_) | None => None,
        }
    });
    let object = Object {
        missing: missing.collect(),
        moref,
        told: told.clone(),
        property,
    };
    let paths = object.properties().map(|(path, _)| path);
    let mut paths = paths.chain(object.missing.iter().map(|(path, _)| path.as_str()));
    if element.breach().is_some() || paths.any(str::is_empty) {
        let what = format!("a property name of {}", object.moref);
        return Err(ReplyError::value(what, "a path"));
    }
    drop(paths);
    Ok(object)
}

/// Why a value is not known that breaks a limit of ours: for whoever asks it is as good as withheld.
fn beyond(breach: Breach) -> Fault {
    Fault {
        kind: FaultKind::Unreadable,
        said: format!("the value cannot be read: it has {breach}"),
    }
}

/// Whether the reply is that of a dead session: reading needs no session (`System.Anonymous`), so it answers with every
/// property missing for want of one.
pub fn is_of_dead_session<'a>(objects: impl IntoIterator<Item = &'a Object>) -> bool {
    let mut any = false;
    let all = objects.into_iter().all(|object| {
        any = true;
        object.properties().next().is_none()
            && !object.missing.is_empty()
            && object
                .missing
                .iter()
                .all(|(_, fault)| fault.kind == FaultKind::NotAuthenticated)
    });
    any && all
}

/// The error for a reply that shows a dead session without a fault.
pub(super) fn dead_session(call: &Call, said: &str) -> Error {
    Error::Refused {
        operation: call.method,
        object: call.on.to_string(),
        source: Fault {
            kind: FaultKind::NotAuthenticated,
            said: said.to_owned(),
        },
        existing: None,
    }
}

/// The error for an answer to `call` that cannot be understood.
pub(super) fn unreadable(call: &Call, source: ReplyError) -> Error {
    Error::Reply {
        operation: call.method,
        object: call.on.to_string(),
        source,
    }
}
