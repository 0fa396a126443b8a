//! SOAP 1.1 as vCenter speaks it: the envelope out, the answer in.

use super::fault::{self, Fault};
use super::moref::Moref;
use super::text::for_people;
use super::update::PowerState;
use super::xml::write::XmlWriter;
use super::xml::{self, Element, KnownNamespace, Shape, XmlError};

/// What vCenter answered.
#[derive(Clone, Debug)]
pub(crate) enum SoapAnswer<T> {
    /// What the method's response says.
    Returned(T),
    /// A fault.
    Fault {
        /// The fault.
        fault: Fault,
        /// The power state that an `InvalidPowerState` found.
        existing: Option<PowerState>,
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
            what: for_people(&what.into()),
            expected,
        }
    }
}

/// A request of `method` on `this`, without arguments yet.
pub(crate) fn method(method: &'static str, this: &Moref) -> XmlWriter {
    XmlWriter::new(method)
        .attribute("xmlns", xml::VIM25)
        .with(XmlWriter::moref("_this", this))
}

/// The whole request. `operation_id` is logged by vCenter's `vpxd`, which makes one call findable on both sides.
pub(crate) fn envelope(call: &XmlWriter, operation_id: &str) -> String {
    let mut text = String::with_capacity(1_024);
    text.push_str(r#"<?xml version="1.0" encoding="UTF-8"?>"#);
    XmlWriter::new("soapenv:Envelope")
        .attribute("xmlns:soapenv", xml::ENVELOPE)
        .attribute("xmlns:xsd", "http://www.w3.org/2001/XMLSchema")
        .attribute("xmlns:xsi", "http://www.w3.org/2001/XMLSchema-instance")
        .with(XmlWriter::new("soapenv:Header").with(XmlWriter::text("operationID", operation_id)))
        .with(XmlWriter::new("soapenv:Body").with(call.clone()))
        .render(&mut text);
    text
}

/// What is kept of a `TaskInfo` on a page of the task history: its `result` is of any type and of any size.
pub(crate) const TASK_INFO: &[&str] = &[
    "task",
    "descriptionId",
    "entity",
    "state",
    "cancelled",
    "error",
    "reason",
    "queueTime",
];

/// What is kept of the elements that replies have thousands of. Of an object the property that exceeds a limit is given up, and of a page the task that does.
const REPLY: Shape = Shape {
    sparse: &[
        ("TaskInfo", TASK_INFO),
        ("HostPciDevice", &["id", "vendorId", "deviceId"]),
        ("HostPciPassthruInfo", &["id", "passthruActive"]),
    ],
    bulkheads: &[
        "changeSet",
        "propSet",
        "missingSet",
        "TaskInfo",
        "objectSet",
        "objects",
    ],
};

/// Reads an answer to `method`, whose response is read by `read`.
///
/// # Errors
/// Where it is no XML, no SOAP, the answer to something else, or `read` cannot read it.
pub(crate) fn read_answer<T>(
    method: &str,
    body: &[u8],
    read: impl FnOnce(&Element<'_>) -> Result<T, ReplyError>,
) -> Result<SoapAnswer<T>, ReplyError> {
    let of_envelope =
        |element: &Element<'_>, name| element.space() == KnownNamespace::Envelope && element.name() == name;
    let envelope = xml::parse(body, REPLY)?;
    if !of_envelope(&envelope, "Envelope") {
        return Err(not_soap(&envelope, "a SOAP 1.1 Envelope"));
    }
    let body = envelope.children().find(|child| of_envelope(child, "Body"));
    let content = body
        .and_then(|body| body.children().next())
        .ok_or_else(|| ReplyError::value("Body", "an element with the answer"))?;
    if of_envelope(content, "Fault") {
        let (fault, existing) = fault::read_soap(content);
        return Ok(SoapAnswer::Fault { fault, existing });
    }
    if content.space() != KnownNamespace::Vim || content.name().strip_suffix("Response") != Some(method) {
        return Err(not_soap(content, "the method's response in urn:vim25"));
    }
    read(content).map(SoapAnswer::Returned)
}

/// Reads the response of a method that returns nothing, or nothing of interest.
///
/// # Errors
/// Never.
pub(crate) fn nothing(_: &Element<'_>) -> Result<(), ReplyError> {
    Ok(())
}

/// Reads the reference that a method returns.
///
/// # Errors
/// Where the response has none.
pub(crate) fn returned_moref(response: &Element<'_>) -> Result<Moref, ReplyError> {
    response
        .child("returnval")
        .and_then(Element::moref)
        .ok_or_else(|| ReplyError::value("returnval", "a managed object reference"))
}

/// Reads the references that a method returns.
///
/// # Errors
/// Never: none is an answer too.
pub(crate) fn returned_morefs(response: &Element<'_>) -> Result<Vec<Moref>, ReplyError> {
    Ok(response
        .children_named("returnval")
        .filter_map(Element::moref)
        .collect())
}

fn not_soap(found: &Element<'_>, expected: &'static str) -> ReplyError {
    ReplyError::NotSoap {
        found: for_people(found.name()),
        expected,
    }
}
