//! One call to vCenter, before it is sent.

use super::error::Error;
use super::fault::{Fault, FaultKind};
use super::moref::Moref;
use super::soap::{self, ReplyError};
use super::transport::Line;
use super::xml::write::XmlWriter;
use crate::Permit;

/// One call: what, and on what. It is sent once; what only reads is asked again by [`super::client::Vcenter::retrieve`].
#[derive(Clone)]
pub(super) struct SoapCall {
    pub(super) method: &'static str,
    pub(super) on: Moref,
    pub(super) body: XmlWriter,
    /// Of the leadership that permits it, for what changes something.
    pub(super) epoch: Option<u64>,
    pub(super) line: Line,
}

impl SoapCall {
    /// A call that reads, or that concerns nothing but what lives in our session.
    pub(super) fn to(method: &'static str, on: &Moref) -> Self {
        Self {
            method,
            on: on.clone(),
            body: soap::method(method, on),
            epoch: None,
            line: Line::Call,
        }
    }

    /// A call that changes something for others, which `permit` permits.
    pub(super) fn under(permit: &impl Permit, method: &'static str, on: &Moref) -> Self {
        Self {
            epoch: Some(permit.epoch()),
            ..Self::to(method, on)
        }
    }

    /// Waits for its answer on a connection that no other call takes.
    pub(super) fn long_poll(mut self) -> Self {
        self.line = Line::Poll;
        self
    }

    /// With one more argument, in the schema's order.
    pub(super) fn with(mut self, argument: XmlWriter) -> Self {
        self.body = self.body.with(argument);
        self
    }

    /// The error for an answer that shows a dead session without a fault.
    pub(super) fn dead_session(&self, said: &str) -> Error {
        Error::Refused {
            operation: self.method,
            object: self.on.to_string(),
            source: Fault {
                kind: FaultKind::NotAuthenticated,
                said: said.to_owned(),
            },
            existing: None,
        }
    }

    /// The error for an answer that cannot be understood.
    pub(super) fn unreadable(&self, source: ReplyError) -> Error {
        Error::Reply {
            operation: self.method,
            object: self.on.to_string(),
            source,
        }
    }
}
