//! A call to vCenter before it is sent.

use super::error::Error;
use super::fault::{Fault, FaultKind};
use super::moref::Moref;
use super::soap::{self, ReplyError};
use super::transport::ConnectionPool;
use super::xml::write::XmlWriter;
use crate::WritePermit;

/// One call. It is sent once; [`super::client::Vcenter::retrieve`] repeats calls that only read.
#[derive(Clone)]
pub(super) struct SoapCall {
    pub(super) method: &'static str,
    pub(super) on: Moref,
    pub(super) body: XmlWriter,
    /// The epoch of the permit, for a call that changes something.
    pub(super) epoch: Option<u64>,
    pub(super) pool: ConnectionPool,
}

impl SoapCall {
    /// A call that reads, or that changes only objects of our session.
    pub(super) fn to(method: &'static str, on: &Moref) -> Self {
        Self {
            method,
            on: on.clone(),
            body: soap::method(method, on),
            epoch: None,
            pool: ConnectionPool::Calls,
        }
    }

    /// A call that changes something outside of our session.
    pub(super) fn under(permit: &impl WritePermit, method: &'static str, on: &Moref) -> Self {
        Self {
            epoch: Some(permit.epoch()),
            ..Self::to(method, on)
        }
    }

    /// Sends the call on the connections for long polls.
    pub(super) fn long_poll(mut self) -> Self {
        self.pool = ConnectionPool::Polls;
        self
    }

    /// Adds an argument; the order is that of the schema.
    pub(super) fn with(mut self, argument: XmlWriter) -> Self {
        self.body = self.body.with(argument);
        self
    }

    /// The error for a reply that shows a dead session without a fault.
    pub(super) fn dead_session(&self, message: &str) -> Error {
        let fault = Fault::new(FaultKind::NotAuthenticated, message);
        Error::refused(self.method, &self.on, fault)
    }

    /// The error for a reply that cannot be understood.
    pub(super) fn unreadable(&self, source: ReplyError) -> Error {
        Error::Reply {
            operation: self.method,
            object: self.on.to_string(),
            source,
        }
    }
}
