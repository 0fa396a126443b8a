//! SOAP 1.1 as vCenter speaks it: the envelope out, the answer in, and managed object references.

use std::borrow::Cow;
use std::sync::Arc;

use super::fault::{self, Fault};
use super::update::Power;
use super::xml::write::Out;
use super::xml::{Element, Part, Shape, Space, XmlError};
use haulout_core::ids::{ComputeRef, DatastoreRef, HostRef, TaskRef, VmRef};

/// A managed object reference with its type. The value is opaque.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moref {
    /// The managed object type, `HostSystem`.
    pub kind: Cow<'static, str>,
    /// The value, `host-21`; brackets appear in the references of session objects.
    pub value: Arc<str>,
}

/// The types that nearly all references have, so that these need no text of their own.
const KINDS: &[&str] = &[
    "HostSystem",
    "Task",
    "VirtualMachine",
    "Datastore",
    "ClusterComputeResource",
    "ComputeResource",
];

impl Moref {
    /// From its two parts.
    pub fn new(kind: impl Into<Cow<'static, str>>, value: impl Into<Arc<str>>) -> Self {
        Self {
            kind: kind.into(),
            value: value.into(),
        }
    }

    /// Reads `<x type="HostSystem">host-21</x>`; `None` where type or value is missing.
    pub fn read(element: Element<'_>) -> Option<Self> {
        let (kind, value) = (element.type_attr()?, element.text());
        if kind.is_empty() || value.is_empty() {
            return None;
        }
        let known = KINDS.iter().find(|known| **known == kind);
        let kind = known.map_or_else(|| Cow::Owned(kind.to_owned()), |known| Cow::Borrowed(*known));
        Some(Self::new(kind, value))
    }

    /// As a host, if it is one.
    pub fn host(&self) -> Option<HostRef> {
        (self.kind == "HostSystem").then(|| HostRef::new(Arc::clone(&self.value)))
    }

    /// As a VM, if it is one.
    pub fn vm(&self) -> Option<VmRef> {
        (self.kind == "VirtualMachine").then(|| VmRef::new(Arc::clone(&self.value)))
    }

    /// As a task, if it is one.
    pub fn task(&self) -> Option<TaskRef> {
        (self.kind == "Task").then(|| TaskRef::new(Arc::clone(&self.value)))
    }

    /// As a compute resource, if it is one.
    pub fn compute(&self) -> Option<ComputeRef> {
        matches!(&*self.kind, "ClusterComputeResource" | "ComputeResource")
            .then(|| ComputeRef::new(Arc::clone(&self.value)))
    }

    /// As a datastore, if it is one.
    pub fn datastore(&self) -> Option<DatastoreRef> {
        (self.kind == "Datastore").then(|| DatastoreRef::new(Arc::clone(&self.value)))
    }

    /// Whether it lives in a session and dies with it (`proto-notes/session.md`).
    pub fn is_of_session(&self) -> bool {
        self.value.starts_with("session[")
    }
}

impl std::fmt::Display for Moref {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&super::text::for_people(&self.value))
    }
}

impl From<&HostRef> for Moref {
    fn from(host: &HostRef) -> Self {
        Self::new("HostSystem", host.shared())
    }
}

impl From<&VmRef> for Moref {
    fn from(vm: &VmRef) -> Self {
        Self::new("VirtualMachine", vm.shared())
    }
}

impl From<&TaskRef> for Moref {
    fn from(task: &TaskRef) -> Self {
        Self::new("Task", task.shared())
    }
}

/// What vCenter answered.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The method's response element.
    Returned(Part),
    /// A fault.
    Fault {
        /// The fault.
        fault: Fault,
        /// The power state that an `InvalidPowerState` found.
        existing: Option<Power>,
    },
}

/// Why an answer cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// It is not XML as it should be.
    #[error("the reply cannot be read")]
    Xml(#[from] XmlError),
    /// It is XML, but not a SOAP envelope with one element in its body.
    #[error("the reply is no SOAP envelope: found <{found}> where {expected} belongs")]
    NotSoap {
        /// What was found.
        found: String,
        /// What should be there.
        expected: &'static str,
    },
    /// A value is missing or not of its type.
    #[error("{what} is missing from the reply, or is not {expected}")]
    Value {
        /// Where.
        what: String,
        /// What should be there.
        expected: &'static str,
    },
    /// It goes on for longer than any reply of a vCenter does.
    #[error("it has no end after {limit} {what}")]
    Endless {
        /// Of what.
        what: &'static str,
        /// How much is read.
        limit: usize,
    },
    /// An object of the reply cannot be read.
    #[error("{object} cannot be read: {why}")]
    Object {
        /// Which.
        object: String,
        /// What is wrong with it.
        why: String,
    },
}

impl ReplyError {
    /// A missing or ill-typed value.
    pub fn value(what: impl Into<String>, expected: &'static str) -> Self {
        Self::Value {
            what: super::text::for_people(&what.into()),
            expected,
        }
    }
}

/// A request of `method` on `this`, without arguments yet.
pub fn method(method: &'static str, this: &Moref) -> Out {
    Out::new(method)
        .attribute("xmlns", super::xml::VIM25)
        .with(Out::moref("_this", this))
}

/// The whole request. `operation_id` is logged by vCenter's `vpxd`, which makes one call findable on both sides.
pub fn envelope(call: &Out, operation_id: &str) -> String {
    let mut text = String::with_capacity(1_024);
    text.push_str(r#"<?xml version="1.0" encoding="UTF-8"?>"#);
    Out::new("soapenv:Envelope")
        .attribute("xmlns:soapenv", super::xml::ENVELOPE)
        .attribute("xmlns:xsd", "http://www.w3.org/2001/XMLSchema")
        .attribute("xmlns:xsi", "http://www.w3.org/2001/XMLSchema-instance")
        .with(Out::new("soapenv:Header").with(Out::text("operationID", operation_id)))
        .with(Out::new("soapenv:Body").with(call.clone()))
        .render(&mut text);
    text
}

/// Of a `TaskInfo` on a page of the history what [`super::task`] reads is kept: its `result` is of any type and of any size. Of an
/// object the property that breaks a limit is given up, and of a page the task that does.
const REPLY: Shape = Shape {
    sparse: Some(("TaskInfo", super::task::KEPT)),
    bulkheads: &[
        "changeSet",
        "propSet",
        "missingSet",
        "TaskInfo",
        "objectSet",
        "objects",
    ],
};

/// Reads an answer to `method`.
///
/// # Errors
/// Where it is no XML, no SOAP, or the answer to something else.
pub fn read_answer(method: &str, body: impl Into<Vec<u8>>) -> Result<Answer, ReplyError> {
    let of_envelope =
        |element: Element<'_>, name| element.space() == Space::Envelope && element.name() == name;
    let envelope = Part::parse_as(body, REPLY)?;
    if !of_envelope(envelope.element(), "Envelope") {
        return Err(not_soap(envelope.element(), "a SOAP 1.1 Envelope"));
    }
    let content = envelope
        .find(|child| of_envelope(*child, "Body"))
        .and_then(|body| body.find(|_| true))
        .ok_or_else(|| ReplyError::value("Body", "an element with the answer"))?;
    let element = content.element();
    if of_envelope(element, "Fault") {
        let (fault, existing) = fault::read_soap(element);
        return Ok(Answer::Fault { fault, existing });
    }
    if element.space() != Space::Vim || element.name().strip_suffix("Response") != Some(method) {
        return Err(not_soap(element, "the method's response in urn:vim25"));
    }
    Ok(Answer::Returned(content))
}

/// The returned reference of a method that gives one.
///
/// # Errors
/// Where the response has none.
pub fn returned_moref(response: &Part) -> Result<Moref, ReplyError> {
    response
        .element()
        .child("returnval")
        .and_then(Moref::read)
        .ok_or_else(|| ReplyError::value("returnval", "a managed object reference"))
}

fn not_soap(found: Element<'_>, expected: &'static str) -> ReplyError {
    ReplyError::NotSoap {
        found: super::text::for_people(found.name()),
        expected,
    }
}
