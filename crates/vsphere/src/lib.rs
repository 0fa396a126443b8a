//! The vSphere client of Haulout: SOAP, one session, the update stream, power, relocate and maintenance
//! calls.
//!
//! Where do I …
//! - … start something in vCenter? [`client::Vcenter`]: power, shutdown, relocate, the survey of
//!   devices.
//! - … receive changes? [`updates::run`] sends [`update::VsphereUpdate`]s.
//! - … learn how to react to a fault? [`fault`].
//! - … change how bytes are read or written? `xml`, then `decode` and `fault`, then `soap`, then
//!   `property` and `task`. XML elements do not leave these modules; a call returns typed values.
//!
//! `proto-notes/` describes the wire protocol, with captures.

// A test may list many cases.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]
#![deny(unreachable_pub)]

mod attributes;
mod call;
pub mod client;
mod decode;
mod endpoint;
mod error;
mod events;
pub mod fault;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod moref;
pub mod policies;
mod poll_wait;
mod power;
mod preflight;
pub mod privileges;
mod property;
mod reach;
mod reading;
mod reconfigure;
mod relocate;
pub mod scope;
mod session;
mod settings;
mod soap;
mod survey;
mod task;
#[cfg(test)]
mod tests;
mod text;
mod tls;
mod transport;
pub mod updates;
mod xml;

pub use decode::custom_fields::AttributeDefinition;
pub use haulout_core::facts::permit::WritePermit;
pub use haulout_core::facts::vsphere as update;
pub use power::StartedTask;
