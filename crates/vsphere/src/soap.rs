//! SOAP 1.1: request envelopes and replies.

use super::fault::{self, Fault};
use super::moref::Moref;
use super::text::for_people;
use super::update::PowerState;
use super::xml::write::XmlWriter;
use super::xml::{self, Element, KnownNamespace, Shape, XmlError};

/// A reply to a call.
#[derive(Clone, Debug)]
pub(crate) enum SoapAnswer<T> {
    Returned(T),
    Fault {
        fault: Fault,
        /// The current power state from an `InvalidPowerState` fault.
        existing: Option<PowerState>,
    },
}

/// Why a reply cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// Invalid XML, or beyond a limit.
    #[error("the reply cannot be read")]
    Xml(#[from] XmlError),
    /// XML without a SOAP envelope that has one element in its body.
    #[error("the reply is no SOAP envelope: found <{found}> where {expected} belongs")]
    NotSoap {
        /// The element that was found.
        found: String,
        expected: &'static str,
    },
    /// A value is missing or not of its type.
    #[error("{what} is missing from the reply, or is not {expected}")]
    Value { what: String, expected: &'static str },
    /// More data than a vCenter can have.
    #[error("it has no end after {limit} {what}")]
    Endless {
        /// The unit.
        what: &'static str,
        limit: usize,
    },
    /// An object of the reply cannot be read.
    #[error("{object} cannot be read: {why}")]
    Object {
        /// The reference.
        object: String,
        /// The reason.
        why: String,
    },
}

impl ReplyError {
    /// A value that is missing or has the wrong type.
    pub fn value(what: impl Into<String>, expected: &'static str) -> Self {
        Self::Value {
            what: for_people(&what.into()),
            expected,
        }
    }

    /// Fails if `count` exceeds `limit`.
    pub(crate) fn check_limit(what: &'static str, count: usize, limit: usize) -> Result<(), Self> {
        match count > limit {
            true => Err(Self::Endless { what, limit }),
            false => Ok(()),
        }
    }
}

/// A call of `method` on `this`, without arguments.
pub(crate) fn method(method: &'static str, this: &Moref) -> XmlWriter {
    XmlWriter::new(method)
        .attribute("xmlns", xml::VIM25)
        .with(XmlWriter::moref("_this", this))
}

/// The request envelope. vCenter logs `operation_id`.
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

/// The fields kept of a `TaskInfo` on a page of the task history. `result` is omitted: it can be of any
/// type and size.
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

/// Omits fields of elements that replies have by the thousand. If a limit is exceeded, only the
/// property, or the task of a page, is lost.
pub(crate) const REPLY: Shape = Shape {
    sparse: &[
        ("TaskInfo", TASK_INFO),
        (
            "HostPciDevice",
            &["id", "vendorId", "deviceId", "subVendorId", "subDeviceId"],
        ),
        ("DatastoreHostMount", &["key", "mountInfo"]),
        ("mountInfo", &["accessible"]),
        (
            "HostPciPassthruInfo",
            &["id", "passthruActive", "hardwareLabel", "sriovActive"],
        ),
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

/// Decodes a reply to `method`; `read` decodes the response.
///
/// # Errors
/// If it is not XML, not SOAP, a response of another method, or rejected by `read`.
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

/// Ignores the response.
///
/// # Errors
pub(crate) fn nothing(_: &Element<'_>) -> Result<(), ReplyError> {
    Ok(())
}

/// Decodes a returned reference.
///
/// # Errors
/// If the response has none.
pub(crate) fn returned_moref(response: &Element<'_>) -> Result<Moref, ReplyError> {
    response
        .child("returnval")
        .and_then(Element::moref)
        .ok_or_else(|| ReplyError::value("returnval", "a managed object reference"))
}

/// Decodes the returned references, of which there may be none.
///
/// # Errors
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
