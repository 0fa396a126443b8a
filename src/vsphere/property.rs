//! The PropertyCollector: what to ask for, how pages are read to their end, and what an update set says.

use std::sync::Arc;

use super::client::{Call, Error, TransportError, Vcenter};
use super::fault::{self, Fault, FaultKind};
use super::session::Session;
use super::soap::{Moref, ReplyError};
use super::xml::write::Out;
use super::xml::{Breach, Element, Part};

/// Objects per page. A full page of hosts with all their PCI devices stays well under the parser's limits.
const PAGE: u32 = 50;
/// How a dead session answers a reading.
pub(super) const WITHHELD: &str = "every property was withheld for want of a session";
/// Most pages of one reading, and most objects: a vCenter registers at most 45,000 VMs, and a page has [`PAGE`] of them at the most.
const MAX_PAGES: usize = 10_000;
pub(super) const MAX_OBJECTS: usize = 200_000;
/// Most bytes of one reading: the largest is a survey of the 96 hosts of a cluster, with 80 VMs each and 16 KiB of devices of each VM.
const MAX_READ: usize = 128 << 20;
/// How many times the deadline of one call a whole reading may take. Every page may be as late as a call may be, and few are.
const CALLS_A_READING: u32 = 10;

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

/// All pages of one reading.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) objects: Vec<Object>,
    pub(super) unreadable: Vec<Unreadable>,
}

impl Read {
    /// Whether the object exists: it was read, or could not be.
    pub(super) fn tells_of(&self, moref: &Moref) -> bool {
        let mut unreadable = self.unreadable.iter();
        self.objects.iter().any(|object| object.moref == *moref)
            || unreadable.any(|object| object.moref.as_ref() == Some(moref))
    }
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

impl Vcenter {
    /// Reads once, in whichever session lives, to the last page. A dead session costs one login and one more try, a broken
    /// connection one more try: reading twice is as good as reading once.
    pub(super) async fn retrieve(&self, spec: Spec) -> Result<Vec<Object>, Error> {
        Ok(self.retrieve_with_session(spec).await?.1)
    }

    /// The same, with the session in which it was read.
    pub(super) async fn retrieve_with_session(
        &self,
        spec: Spec,
    ) -> Result<(Arc<Session>, Vec<Object>), Error> {
        let session = self.sessions.get().await?;
        match self.retrieve_in(&session, spec.clone()).await {
            Err(Error::Refused { source, .. }) if source.kind == FaultKind::NotAuthenticated => {}
            Err(Error::Transport {
                source: TransportError::Connection(_),
                ..
            }) => {}
            Ok(objects) => return Ok((session, objects)),
            Err(error) => return Err(error),
        }
        let session = self.sessions.get().await?;
        let objects = self.retrieve_in(&session, spec).await?;
        Ok((session, objects))
    }

    /// Reads once, in this session, to the last page. What cannot be read whole is an error: nobody is to decide by the rest.
    pub(super) async fn retrieve_in(&self, session: &Session, spec: Spec) -> Result<Vec<Object>, Error> {
        let read = self.retrieve_pages(session, spec, PAGE).await?;
        let Some(broken) = read.unreadable.into_iter().next() else {
            return Ok(read.objects);
        };
        let call = Call::to("RetrievePropertiesEx", &session.content.property_collector);
        let object = broken.moref.map_or_else(
            || "an object without a reference".to_owned(),
            |moref| moref.to_string(),
        );
        Err(unreadable(
            &call,
            ReplyError::Object {
                object,
                why: broken.why,
            },
        ))
    }

    /// As [`Self::retrieve_in`], with so many objects per page, and with what cannot be read put aside.
    pub(super) async fn retrieve_pages(
        &self,
        session: &Session,
        spec: Spec,
        page: u32,
    ) -> Result<Read, Error> {
        let deadline = self.settings.call_deadline * CALLS_A_READING;
        let pages = self.all_pages(session, spec, page);
        tokio::time::timeout(deadline, pages).await.unwrap_or_else(|_| {
            Err(Error::Transport {
                operation: "RetrievePropertiesEx",
                object: session.content.property_collector.to_string(),
                source: TransportError::Deadline(deadline),
            })
        })
    }

    async fn all_pages(&self, session: &Session, spec: Spec, page: u32) -> Result<Read, Error> {
        let collector = &session.content.property_collector;
        let options = Out::new("options").with(Out::text("maxObjects", page.to_string()));
        let mut call = Call::to("RetrievePropertiesEx", collector)
            .with(spec.render("specSet"))
            .with(options);
        let mut read = Read::default();
        let mut bytes = 0;
        for _ in 0..MAX_PAGES {
            let response = self.call_in(session, &call).await?;
            bytes += response.size();
            let page = read_page(&response);
            read.objects.extend(page.objects);
            read.unreadable.extend(page.unreadable);
            let Some(token) = page.token else {
                return self.unless_dead(session, &call, read);
            };
            let objects = read.objects.len() + read.unreadable.len();
            endless(bytes, objects).map_err(|source| unreadable(&call, source))?;
            call = Call::to("ContinueRetrievePropertiesEx", collector).with(Out::text("token", token));
        }
        let source = ReplyError::Endless {
            what: "pages",
            limit: MAX_PAGES,
        };
        Err(unreadable(&call, source))
    }

    fn unless_dead(&self, session: &Session, call: &Call, read: Read) -> Result<Read, Error> {
        if !is_of_dead_session(&read.objects) {
            return Ok(read);
        }
        self.sessions.give_up(session.generation);
        Err(dead_session(call, WITHHELD))
    }
}

/// Refuses to read on where there is more of a reading than fits into the limits.
fn endless(bytes: usize, objects: usize) -> Result<(), ReplyError> {
    let (what, limit) = if bytes > MAX_READ {
        ("bytes", MAX_READ)
    } else if objects > MAX_OBJECTS {
        ("objects", MAX_OBJECTS)
    } else {
        return Ok(());
    };
    Err(ReplyError::Endless { what, limit })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_without_an_end_is_given_up() {
        assert_eq!(endless(MAX_READ, MAX_OBJECTS), Ok(()));
        for (bytes, objects, what) in [(MAX_READ + 1, 0, "bytes"), (0, MAX_OBJECTS + 1, "objects")] {
            let error = endless(bytes, objects).unwrap_err();
            assert!(error.to_string().ends_with(what), "{error}");
        }
    }
}
